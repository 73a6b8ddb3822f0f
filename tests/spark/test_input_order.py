"""An input of a stream goes on where it was, and not where another one was that Spark takes it for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from asyncstream import Pipeline, Stream
from asyncstream.errors import CheckpointError
from asyncstream.runtime.spark import SparkPlan, failure_text
from asyncstream.runtime.spark.input_order import BY_NAME, check_order
from tests.spark.cluster import event_columns, run_stream, stream, write_batches, write_more
from tests.spark.contract import row


@pytest.mark.parametrize(
    ("were", "names"), [("ab", "ab"), ("ab", "ac"), ("ab", "cb"), ("abc", "adc"), ("abc", "abc")]
)
def test_inputs_that_can_only_be_the_same_ones_go_on(were: str, names: str) -> None:
    check_order([*were], [*names])


@pytest.mark.parametrize(("were", "names"), [("ab", "bc"), ("ab", "ba"), ("ab", "cd"), ("abc", "acb")])
def test_inputs_that_may_be_others_are_refused(were: str, names: str) -> None:
    with pytest.raises(CheckpointError, match=f"there were '{were[0]}', .* and there are '{names[0]}', "):
        check_order([*were], [*names])


def plan_of(inputs: Mapping[str, DataFrame], failing: str = "") -> SparkPlan:
    """Has no state; fails at a key."""

    def line(name: str, row: dict[str, str]) -> str:
        assert row["key"] != failing
        return f"{name}: {row['key']}"

    pipeline = Pipeline()
    lines: list[Stream[str]] = []
    for number, name in enumerate(inputs):
        source: Stream[dict[str, str]] = pipeline.source([], name=name)
        lines.append(source.map(lambda row, number=number: line(f"input {number}", row)))
    lines[0].union(*lines[1:]).to([], name="lines")
    spark = next(iter(inputs.values())).sparkSession
    return pipeline.on_spark(spark, inputs=inputs, outputs={"lines": "line string"})


def test_renamed_input_is_not_read_from_where_another_was(spark: SparkSession, tmp_path: Path) -> None:
    """Also in a micro-batch that has failed, and is run again by the changed program."""
    first, second, checkpoint = tmp_path / "1" / "in", tmp_path / "2" / "in", tmp_path / "checkpoint"
    first.parent.mkdir()
    second.parent.mkdir()
    ones, others = (
        stream(spark, first, [[row(0, "a")], [row(0, "b")]]),
        stream(spark, second, [[row(0, "x")]]),
    )

    def run(*names: str, failing: str = "") -> list[str]:
        inputs = dict(zip(names, (ones, others), strict=True))
        return sorted(run_stream(plan_of(inputs, failing), checkpoint)["lines"])

    def refused(*names: str) -> None:
        with pytest.raises(StreamingQueryException) as caught:
            run(*names)
        assert failure_text(caught.value).startswith(
            "CheckpointError: Spark's checkpoint knows the inputs of a query by their places"
        )

    assert run("left", "right") == ["input 0: a", "input 0: b", "input 1: x"]
    write_more(first, [[row(0, "c")]], 2)
    refused("straight", "right")
    with pytest.raises(StreamingQueryException, match="AssertionError"):
        run("left", "right", failing="c")
    refused("straight", "right")
    assert run("left", "right on") == ["input 0: c"], "it can only be the one that is gone"
    write_more(second, [[row(0, "y")]], 1)
    assert run("left", "right") == ["input 1: y"]


def test_inputs_that_spark_knows_by_name_may_change_places(spark: SparkSession, tmp_path: Path) -> None:
    folders = [tmp_path / "1" / "in", tmp_path / "2" / "in"]
    for folder, key in zip(folders, "ab", strict=True):
        folder.parent.mkdir()
        write_batches(folder, [[row(0, key)]])

    def run(*names: str) -> list[str]:
        readers = [spark.readStream.name(f"in_{place}").schema(event_columns()) for place in (0, 1)]
        frames = [reader.json(str(folder)) for reader, folder in zip(readers, folders, strict=True)]
        plan = plan_of(dict(zip(names, frames, strict=True)))
        return sorted(run_stream(plan, tmp_path / "checkpoint")["lines"])

    spark.conf.set(BY_NAME, "true")
    try:
        assert run("left", "right") == ["input 0: a", "input 1: b"]
        write_more(folders[0], [[row(0, "c")]], 1)
        assert run("straight", "right") == ["input 0: c"]
    finally:
        spark.conf.unset(BY_NAME)
