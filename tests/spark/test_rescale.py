"""State of a stopped query: looked up by key, and divided among another number of partitions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import BoundedOutOfOrderness, CheckpointError, Pipeline, PipelineError, Stream
from asyncstream.cli import main
from asyncstream.runtime.spark import SparkPlan
from asyncstream.windowing import Count, TumblingWindows
from tests.spark.cluster import columns, event_columns, frame, run_stream, stream, write_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = [f"k{number}" for number in range(20)]


def micro_batch(second: int) -> list[dict[str, Any]]:
    return [{"key": key, "ts": second * 1000 + n, "v": n} for key in KEYS for n in range(3)]


def windows(spark: SparkSession, rows: DataFrame) -> SparkPlan:
    from pyspark.sql.types import StringType

    pipeline = Pipeline("windows")
    source: Stream[Any] = pipeline.source([], name="rows")
    timed = source.event_time(lambda row: row["ts"], BoundedOutOfOrderness(0))
    counts = timed.key_by(lambda row: row["key"]).window(TumblingWindows(4)).aggregate(Count(), name="counts")
    counts.map(lambda found: f"{found.key} {found.start_ms} {found.value}").to([], name="lines")
    outputs = {"lines": columns(line=StringType())}
    return pipeline.on_spark(spark, inputs={"rows": rows}, outputs=outputs, key_groups=12)


@pytest.mark.timeout(400)
def test_stream_goes_on_with_another_number_of_partitions(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    plan = windows(spark, stream(spark, tmp_path / "in", [micro_batch(0), micro_batch(1)]))
    assert run_stream(plan, Path(checkpoint)) == {"lines": []}
    plan.save_checkpoint(checkpoint, tmp_path / "saved")
    assert main(["state", "query", str(tmp_path / "saved"), "counts", "k7"]) == 0
    assert "6" in capsys.readouterr().out, "three elements of each second"
    plan.rescale(checkpoint, 3)

    rows = spark.readStream.schema(event_columns()).json(str(tmp_path / "in"))
    write_batches(tmp_path / "more", [micro_batch(second) for second in (2, 3, 9)])
    for number, path in enumerate(sorted((tmp_path / "more").iterdir()), start=2):
        path.rename(tmp_path / "in" / f"{number:05}.json")
    lines = run_stream(windows(spark, rows), Path(checkpoint))["lines"]
    assert sorted(lines) == sorted(f"{key} 0 12" for key in KEYS)
    state = Path(checkpoint, "state", "0")
    assert {path.name for path in state.iterdir() if path.name.isdigit()} == {"0", "1", "2"}


def test_what_cannot_be_divided_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    plan = windows(spark, stream(spark, tmp_path / "in", [micro_batch(0)]))
    with pytest.raises(PipelineError, match="partitions: expected at most the 12 key groups, got 13"):
        plan.rescale(str(tmp_path), 13)
    with pytest.raises(PipelineError, match="partitions: expected an integer of at least 1, got 0"):
        plan.rescale(str(tmp_path), 0)
    with pytest.raises(CheckpointError, match="cannot divide the state in"):
        plan.rescale(str(tmp_path / "nothing"), 2)
    with pytest.raises(PipelineError, match="only a stream of keyed steps has state"):
        windows(spark, frame(spark, micro_batch(0))).rescale(str(tmp_path), 2)
