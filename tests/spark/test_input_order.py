"""An input of a stream goes on where it was, and not where another one was that Spark takes it for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from asyncstream import Pipeline, Stream
from asyncstream.errors import CheckpointError
from asyncstream.runtime.spark import SparkPlan, failure_text, stream_json_lines
from asyncstream.runtime.spark.input_order import BY_NAME, check_order
from asyncstream.runtime.spark.stages import StageKind, stages_of
from asyncstream.runtime.spark.wire.batches import NOW
from asyncstream.runtime.spark.wire.envelope import CLOCK
from asyncstream.runtime.spark.worker.keyed import KeyGroup
from asyncstream.runtime.spark.worker.operators import Terms
from tests.spark.cluster import event_columns, run_stream, write_batches, write_more
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


def plan_of(inputs: Mapping[str, DataFrame]) -> SparkPlan:
    def line(number: int, row: dict[str, str]) -> str:
        return f"input {number}: {row['key']}"

    pipeline = Pipeline()
    lines: list[Stream[str]] = []
    for number, name in enumerate(inputs):
        source: Stream[dict[str, str]] = pipeline.source([], name=name)
        lines.append(source.map(partial(line, number)))
    lines[0].union(*lines[1:]).to([], name="lines")
    spark = next(iter(inputs.values())).sparkSession
    return pipeline.on_spark(spark, inputs=inputs, outputs={"lines": "line string"})


def test_renamed_input_is_not_read_from_where_another_was(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    ones, others = (
        stream_json_lines(spark, tmp_path / name, schema=event_columns(), max_rows_per_trigger=1)
        for name in ("first", "second")
    )

    def write(name: str, *keys: str) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        with (tmp_path / name / "rows.jsonl").open("a") as file:
            file.writelines(json.dumps(row(0, key)) + "\n" for key in keys)

    write("first", "a", "b")
    write("second", "x")

    def run(*names: str) -> list[str]:
        inputs = dict(zip(names, (ones, others), strict=True))
        return sorted(run_stream(plan_of(inputs), checkpoint)["lines"])

    def refused(*names: str) -> None:
        with pytest.raises(StreamingQueryException) as caught:
            run(*names)
        assert failure_text(caught.value).startswith(
            "CheckpointError: Spark's checkpoint knows the inputs of a query by their places"
        )

    assert run("left", "right") == ["input 0: a", "input 0: b", "input 1: x"]
    assert {"0", "1"} <= {path.name for path in (checkpoint / "offsets").iterdir()}, "one row at a time"
    write("first", "c")
    refused("straight", "right")
    assert run("left", "right on") == ["input 0: c"], "it can only be the one that is gone"
    write("second", "y")
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


def test_micro_batch_that_runs_again_asks_the_state_what_its_inputs_were() -> None:
    """Its offsets are in the checkpoint already, so Spark shows them to nobody."""
    pipeline = Pipeline()
    rows: Stream[dict[str, str]] = pipeline.source([])
    rows.key_by("key").count_window(2).collect(name="pairs").to([], name="out")
    stage = next(one for one in stages_of(pipeline._graph, streaming=True) if one.kind is StageKind.KEYED)
    kept: list[tuple[bytes]] = []
    state = SimpleNamespace(get=lambda: kept[-1] if kept else None, update=kept.append)
    handle = SimpleNamespace(getValueState=lambda *_: state, getMapState=lambda *_: None)

    def look(inputs: str) -> None:
        group = KeyGroup(stage, Terms(4, frozenset(), streaming=True, inputs=(*inputs,)), 1)
        group.init(handle)
        list(group.handleInputRows((0,), [Row(route=CLOCK, watermark=NOW, origin=0, sequence=0)], None))

    look("ab")
    with pytest.raises(CheckpointError, match="there were 'a', 'b', and there are 'b', 'c'"):
        look("bc")
    for inputs in ("ac", "dc"):  # one after the other
        look(inputs)
    assert len(kept) == 3
