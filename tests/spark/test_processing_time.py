"""Streams that follow processing time: timers of both kinds, windows and policy windows by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncstream import BoundedOutOfOrderness, KeyedContext, KeyedProcessFunction, Pipeline, Stream
from asyncstream.operators.keyed_context import TimeDomain
from asyncstream.windowing import Count, TumblingWindows
from tests.spark.cluster import columns, stream
from tests.spark.contract import key_of, told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Reminder(KeyedProcessFunction[Any, Any]):
    """Reminds of each key a moment later, and again when event time has passed a second."""

    def process_element(self, value: Any, ctx: KeyedContext, out: Any) -> None:
        ctx.register_processing_timer(ctx.now_ms + 1)
        ctx.register_event_timer(ctx.timestamp + 1000)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Any) -> None:
        if ctx.domain is TimeDomain.EVENT:
            out(f"{ctx.key} at {timestamp}")
        else:
            out(f"{ctx.key} by the clock")


def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
    keyed = timed.key_by(key_of)
    moment = timedelta(milliseconds=1)
    return {
        "reminder": keyed.process(Reminder()),
        "windows": keyed.window(TumblingWindows(moment, time="processing")).aggregate(n=Count()),
        "by_length": keyed.policy_window(length=moment, tumbling=True, time="processing"),
        "by_event_time": keyed.policy_window(length=2, tumbling=True, watermark_interval=moment),
    }


def test_clock_and_event_time_both_fire(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql.types import StringType

    batches = [[row(key, ts + n) for key in "ab" for n in range(2)] for ts in (0, 3_000, 6_000)]
    pipeline = Pipeline()
    source: Stream[Any] = pipeline.source([], name="rows")
    timed = source.event_time(lambda row: row["ts"], BoundedOutOfOrderness(0))
    told(define(timed)).to([], name="lines")
    plan = pipeline.on_spark(
        spark,
        inputs={"rows": stream(spark, tmp_path / "in", batches)},
        outputs={"lines": columns(line=StringType())},
        key_groups=1,
        processing_time=True,
    )
    found: list[str] = []

    def write(outputs: Mapping[str, Any], number: int) -> None:
        found.extend(row.line for row in outputs["lines"].collect())

    def count(name: str, of: Callable[[str], int] = lambda line: 1) -> int:
        return sum(of(line) for line in found if line.startswith(name))

    def is_complete() -> bool:
        return (
            count("reminder: 'a at") == 4
            and count("reminder: 'b by") == 3
            and count("windows") == count("by_length") == 6
            and count("by_event_time") == 6
        )

    query = plan.write_stream(write).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        deadline = time.monotonic() + 120
        while not is_complete() and time.monotonic() < deadline and query.isActive:
            query.awaitTermination(0.2)
    finally:
        query.stop()
    # what the last rows wait for in event time has not come
    assert sorted(line for line in found if " at " in line) == [
        f"reminder: '{key} at {ts}'" for key in "ab" for ts in (1_000, 1_001, 4_000, 4_001)
    ]
    assert count("reminder: 'a by") == count("reminder: 'b by") == 3
    assert all("'n': 2" in line for line in found if line.startswith("windows"))
    assert sum(line.count("'key'") for line in found if line.startswith("by_length")) >= 12
    assert count("by_event_time") == 6


def row(key: str, ts: int) -> dict[str, Any]:
    return {"key": key, "ts": ts, "v": 1}
