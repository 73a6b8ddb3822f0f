"""
What shows that the stand-in can be trusted: it and Spark do the same, batch by batch and group by group.

`test_contract` runs the definitions of these tests on Spark, on micro-batches of the same seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import NoWatermarks, Pipeline
from tests.spark.cluster import columns, event_columns, run_stream, stream
from tests.spark.contract import Definition, batches_of, embedded, functions, on_spark, told, untimed, windows
from tests.spark.fake_spark import StandIn

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


class Probe:
    """A stateful processor that tells all that it sees: rows, state, timers, and the watermark."""

    def init(self, handle: Any) -> None:
        from pyspark.sql.types import BinaryType

        self.handle = handle
        self.seen = handle.getValueState("seen", columns(blob=BinaryType()))

    def handleInputRows(self, key: Any, rows: Iterable[Any], timerValues: Any) -> Iterator[Any]:
        watermark = timerValues.getCurrentWatermarkInMs()
        before = self.seen.get()
        mine = sorted((row.n, row.ts) for row in rows)
        yield self.line(key, f"{mine} at {watermark}, before {before and before[0]!r}, {self.timers()}")
        text = "".join(f" {n}" for n, _ in mine)
        self.seen.update((((before and bytes(before[0])) or b"") + text.encode(),))
        for n, ts in mine:
            for time in (ts, ts + 1, ts + 2000):
                if time > watermark:
                    self.handle.registerTimer(time)
                    if n % 3 == 0:
                        self.handle.deleteTimer(time)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        watermark, time = timerValues.getCurrentWatermarkInMs(), expiredTimerInfo.getExpiryTimeInMs()
        yield self.line(key, f"timer {time} at {watermark}, {bytes(self.seen.get()[0])!r}")
        self.handle.registerTimer(watermark + 700)

    def close(self) -> None:
        del self.handle

    def timers(self) -> list[int]:
        return sorted(self.handle.listTimers())

    def line(self, key: Any, text: str) -> Any:
        from pyspark.sql import Row

        return Row("group", "line")(key[0], text)


def timed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Envelopes of a kind: a group, and an event time."""
    import pyarrow as pa

    for batch in batches:
        groups = pa.array([ord(key[0]) % 3 for key in batch["key"].to_pylist()], pa.int32())
        times = pa.array([time * 1000 for time in batch["ts"].to_pylist()], pa.timestamp("us", "UTC"))
        arrays = [groups, batch["v"], batch["ts"], times]
        yield pa.RecordBatch.from_arrays(arrays, names=["group", "n", "ts", "event_time"])


def probed(source: Any, checkpoint: Path) -> dict[tuple[int, int], list[str]]:
    """What a probe tells, by micro-batch and group."""
    from pyspark.sql import types

    envelopes = columns(
        group=types.IntegerType(), n=types.LongType(), ts=types.LongType(), event_time=types.TimestampType()
    )
    lines = columns(group=types.IntegerType(), line=types.StringType())
    frame = source.mapInArrow(lambda batches: timed(batches), envelopes)
    frame = frame.withWatermark("event_time", "0 seconds").select("group", "n", "ts")
    frame = frame.groupBy("group").transformWithState(Probe(), lines, "append", "EventTime")
    found: dict[tuple[int, int], list[str]] = {}

    def write(batch: Any, number: int) -> None:
        for row in batch.collect():
            found.setdefault((number, row.group), []).append(row.line)

    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()
    return found


def test_stand_in_shows_a_processor_what_spark_shows_it(spark: SparkSession, tmp_path: Path) -> None:
    batches = [batch[:9] for batch in batches_of(4, count=5)]
    batches[3:3] = [[], batches[0]]  # without rows, and all of it late
    source = StandIn(7).stream([[rows[:4], rows[4:]] for rows in batches], event_columns())
    found = probed(source, tmp_path)
    assert found == probed(stream(spark, tmp_path / "in", batches), tmp_path / "checkpoint")
    assert (len(batches), 0) in found, "the last micro-batch has no data"


DEFINITIONS = [windows, functions, untimed]


@pytest.mark.parametrize("define", DEFINITIONS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_stream_on_the_stand_in_gives_what_the_embedded_engine_gives(
    define: Definition, seed: int, tmp_path: Path
) -> None:
    batches = batches_of(seed)
    source: Any = StandIn(seed).stream([[rows] for rows in batches], event_columns())
    found = run_stream(on_spark(source.sparkSession, source, define, key_groups=5), tmp_path)["lines"]
    assert sorted(found) == embedded(batches, define)


@pytest.mark.parametrize("define", DEFINITIONS)
def test_bounded_job_on_the_stand_in_gives_what_the_embedded_engine_gives(define: Definition) -> None:
    batches = batches_of(3)
    source: Any = StandIn(3).bounded(batches, event_columns())
    plan = on_spark(source.sparkSession, source, define, key_groups=5)
    expected: list[str] = []
    pipeline = Pipeline("embedded")
    rows: list[Mapping[str, Any]] = [row for batch in batches for row in batch]
    told(define(pipeline.source(rows).event_time(lambda row: row["ts"], NoWatermarks()))).to(expected)
    pipeline.run_blocking()
    assert sorted(row.line for row in plan["lines"].collect()) == sorted(expected)
