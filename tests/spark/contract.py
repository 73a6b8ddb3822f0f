"""
Pipelines that are run embedded and on Spark, their input, and what the embedded engine gives.

A watermark is brought to the embedded engine by an element of its own, from which it is read:
W(0) rows(0) W(1) rows(1) ...
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncstream import (
    BoundedOutOfOrderness,
    KeyedContext,
    KeyedProcessFunction,
    NoWatermarks,
    Pipeline,
    PunctuatedWatermarks,
    Stream,
)
from asyncstream.checkpoint import Checkpoints
from asyncstream.state import ListDescriptor, ListState
from asyncstream.testing.loop import run_virtual
from asyncstream.windowing import (
    Count,
    CountEvictor,
    CountTrigger,
    SessionWindows,
    SlidingWindows,
    Sum,
    TumblingWindows,
)
from tests.spark.cluster import columns, event_columns, run_stream
from tests.spark.fake_spark import StandIn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from asyncstream.runtime.spark import SparkPlan


DELAY = 2
"""Seconds."""


class Alarm(KeyedProcessFunction[Any, Any]):
    """Collects what came for a key, and tells it when event time has passed the next round second."""

    def open(self, ctx: KeyedContext) -> None:
        self.seen: ListState[int] = ctx.state(ListDescriptor("seen"))

    def process_element(self, value: Any, ctx: KeyedContext, out: Any) -> None:
        self.seen.add(value["v"])
        ctx.register_event_timer(ctx.timestamp - ctx.timestamp % 1000 + 1000)  # may be due already
        if value["v"] % 7 == 0:
            ctx.side("sevens", value["v"])

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Any) -> None:
        out({"key": ctx.key, "ts": timestamp, "seen": list(self.seen.get()), "v": len(list(self.seen.get()))})
        self.seen.clear()


async def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"v": row["v"] * 2}


def key_of(row: Any) -> Any:
    return row["key"]


def result_key(result: Any) -> Any:
    return result.key[:1]


def as_row(result: Any) -> dict[str, Any]:
    return {"key": result.key, "v": result.value["n"]}


def windows(timed: Stream[Any]) -> dict[str, Stream[Any]]:
    """Windows of all kinds, side by side."""
    keyed = timed.key_by(key_of)
    lenient = keyed.window(TumblingWindows(2)).allowed_lateness(1)
    tumbling = lenient.aggregate(n=Count(), total=Sum("v"), name="tumbling_windows")
    triggered = keyed.window(TumblingWindows(4)).trigger(CountTrigger(3))
    evicted = keyed.window(TumblingWindows(4)).evictor(CountEvictor(2)).collect(name="evicting")
    return {
        "tumbling": tumbling,
        "late": tumbling.late,
        "sliding": keyed.window(SlidingWindows(3, 1)).aggregate(
            n=Count(), total=Sum("v"), name="sliding_windows"
        ),
        "session": keyed.window(SessionWindows(1)).aggregate(n=Count(), name="sessions"),
        "counted": keyed.count_window(4).aggregate(total=Sum("v"), name="counting"),
        "counted_sliding": keyed.count_window(3, 2).collect(name="counting_sliding"),
        "triggered": triggered.aggregate(n=Count(), name="triggering"),
        "evicted": evicted,
    }


def functions(timed: Stream[Any]) -> dict[str, Stream[Any]]:
    """Timers, async calls around them, and two keyed steps in a row, with and without steps between."""
    alarms = (
        timed.async_map(doubled, concurrency=8, name="double")
        .key_by(key_of)
        .process(Alarm(), name="alarming")
    )
    first = timed.key_by(key_of).window(TumblingWindows(1)).aggregate(n=Count(), name="first")
    again = first.key_by(result_key).window(TumblingWindows(4))
    of_windows = again.aggregate(n=Count(), name="second")
    of_alarms = (
        alarms.async_map(doubled, concurrency=4, name="double_again")
        .key_by(key_of)
        .window(TumblingWindows(3))
    )
    summed = of_alarms.aggregate(n=Count(), total=Sum("v"), name="of_alarms_windows")
    return {
        "alarms": alarms,
        "sevens": alarms.side("sevens"),
        "of_windows": of_windows,
        "of_windows_late": of_windows.late,
        "of_alarms": summed,
        "of_alarms_late": summed.late,
        "both": first.map(as_row).union(timed.filter(lambda row: row["v"] % 5 == 0), name="united"),
    }


def untimed(timed: Stream[Any]) -> dict[str, Stream[Any]]:
    """Nothing that looks at event time; two sources of one stream, and calls in the order of a key."""
    asked = timed.key_by(key_of).async_map(doubled, order="per_key", concurrency=4)
    both = asked.union(timed.map(dict))
    counts = asked.key_by(key_of).count_window(3)
    return {
        "asked": asked,
        "both": both,
        "counted": counts.collect(),
        "sums": counts.aggregate(total=Sum("v")),
    }


def told(outputs: dict[str, Stream[Any]]) -> Stream[str]:
    """All of them as lines of one stream, each with the name of its own."""
    first, *others = (out.map(partial("{}: {!r}".format, name)) for name, out in outputs.items())
    return first.union(*others, name="all_lines")


Definition = Callable[[Stream[Any]], dict[str, Stream[Any]]]


def batches_of(seed: int, count: int = 6, size: int = 60) -> list[list[dict[str, Any]]]:
    """Micro-batches, disordered by more than the delay now and then."""
    rng = random.Random(seed)
    now, batches = 1_700_000_000_000, []
    for _ in range(count):
        rows: list[dict[str, Any]] = []
        for _ in range(size):
            now += rng.choice((0, 0, 50))
            lag = rng.choice((0, 0, 500, 1500, 3500, 6000)) + rng.randrange(2)  # at boundaries and below
            rows.append({"key": rng.choice("abc") + rng.choice("xyz"), "ts": now - lag, "v": len(rows)})
        batches.append(rows)
        now += rng.choice((0, 0, 5000))
    return batches


def with_watermarks(batches: list[list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """W(0) rows(0) W(1) rows(1) … W(n)"""
    largest: int | None = None
    for rows in [*batches, []]:
        if largest is not None:
            yield {"watermark": largest - DELAY * 1000 - 1}
        yield from rows
        largest = max([row["ts"] for row in rows] + ([] if largest is None else [largest]), default=None)


def embedded(batches: list[list[dict[str, Any]]], define: Definition) -> list[str]:
    """What the embedded engine gives while its input has not ended; a stream on Spark does not."""

    async def elements() -> AsyncIterator[dict[str, Any]]:
        for element in with_watermarks(batches):
            yield element
        await asyncio.Event().wait()

    pipeline = Pipeline("embedded")
    strategy = PunctuatedWatermarks(lambda row, ts: row.get("watermark"))
    marked = pipeline.source(elements()).event_time(lambda row: row.get("ts", 0), strategy)
    found: list[str] = []
    told(define(marked.filter(lambda row: "watermark" not in row))).to(found)

    async def main() -> None:
        async with pipeline.start() as job:
            await asyncio.sleep(3600)  # in virtual time: all is done that can be
            await job.stop()

    run_virtual(main())
    return sorted(found)


def embedded_to_the_end(rows: list[dict[str, Any]], define: Definition) -> list[str]:
    """What it gives of all there is."""
    pipeline = Pipeline("embedded")
    found: list[str] = []
    source = pipeline.source(rows).event_time(lambda row: row["ts"], NoWatermarks())
    told(define(source)).to(found)
    pipeline.run_blocking()
    return sorted(found)


def on_spark(spark: SparkSession, source: Any, define: Definition, **options: Any) -> SparkPlan:
    from pyspark.sql.types import StringType

    pipeline = Pipeline("spark")
    rows: Stream[Any] = pipeline.source([], name="rows")
    if define is not untimed:
        strategy = BoundedOutOfOrderness(DELAY) if source.isStreaming else NoWatermarks()
        rows = rows.event_time(lambda row: row["ts"], strategy, name="event_time")
    told(define(rows)).to([], name="lines")
    schema = columns(line=StringType())
    return pipeline.on_spark(spark, inputs={"rows": source}, outputs={"lines": schema}, **options)


def row(ts: int, key: str = "k") -> dict[str, Any]:
    return {"key": key, "ts": ts, "v": 1}


def on_stand_in(batches: list[list[dict[str, Any]]], define: Definition, **options: Any) -> list[str]:
    """What comes out, in its order."""
    source: Any = StandIn(1, **options).stream([[rows] for rows in batches], event_columns())
    return run_stream(on_spark(source.sparkSession, source, define, key_groups=3), Path())["lines"]


def run_embedded(elements: Sequence[Any], define: Definition, settings: Checkpoints, name: str) -> list[str]:
    """Run over elements some of which carry watermarks, and stop where the pipeline stands then."""

    async def source() -> AsyncIterator[Any]:
        for element in elements:
            yield element
        await asyncio.Event().wait()

    pipeline = Pipeline("spark")
    strategy = PunctuatedWatermarks(lambda row, ts: row.get("watermark"))
    marked = pipeline.source(source(), name="rows").event_time(
        lambda row: row.get("ts", 0), strategy, name=name
    )
    found: list[str] = []
    told(define(marked.filter(lambda row: "watermark" not in row))).to(found, name="lines")

    async def main() -> None:
        async with pipeline.start(checkpoints=settings) as job:
            await asyncio.sleep(3600)
            await job.stop()

    run_virtual(main())
    return found


def halves(batches: list[list[dict[str, Any]]], at: int) -> tuple[list[Any], list[Any]]:
    """The elements before the rows of micro-batch `at`, and from the watermark before them on."""
    elements = list(with_watermarks(batches))
    marks = [place for place, element in enumerate(elements) if "watermark" in element]
    return elements[: marks[at - 1] + 1], elements[marks[at - 1] :]
