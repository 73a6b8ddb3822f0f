"""Event time that moves in a bounded job, on the stand-in for Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from asyncstream import (
    BoundedOutOfOrderness,
    Count,
    KeyedContext,
    KeyedProcessFunction,
    Pipeline,
    Stream,
    TumblingWindows,
)
from asyncstream.plan import Output
from asyncstream.runtime.spark.stages import Route
from asyncstream.runtime.spark.wire.batches import Leaving
from asyncstream.runtime.spark.wire.envelope import pack
from asyncstream.runtime.spark.worker.replay import Replay
from asyncstream.state import ValueDescriptor
from tests.spark.cluster import columns
from tests.spark.fake_spark import StandIn

SILENT_MS = 10_000

Row = dict[str, Any]


class Silence(KeyedProcessFunction[Row, Row]):
    """Tells when a key has been silent for ten seconds."""

    def open(self, ctx: KeyedContext) -> None:
        self.due = ctx.state(ValueDescriptor[int]("due"))

    def process_element(self, value: Row, ctx: KeyedContext, out: Any) -> None:
        due = self.due.get()
        if due is not None:
            ctx.delete_event_timer(due)
        self.due.set(ctx.timestamp + SILENT_MS)
        ctx.register_event_timer(ctx.timestamp + SILENT_MS)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Any) -> None:
        out({"key": ctx.key, "ts": timestamp})
        self.due.clear()


def rows(count: int = 500, *, late: bool = True) -> list[Row]:
    """One a second, of two keys in turn for fifty seconds each; one may be hours late."""
    found = [{"k": number // 50 % 2, "ts": 1_700_000_000_000 + number * 1000} for number in range(count)]
    return [*found[:400], *[{"k": 0, "ts": 1_700_000_000_000 - 10_000_000}] * late, *found[400:]]


def silences(timed: Stream[Row]) -> Stream[Row]:
    return timed.key_by(lambda row: row["k"]).process(Silence(), name="silences")


def silences_of_windows(timed: Stream[Row]) -> Stream[Row]:
    windows = timed.key_by(lambda row: row["k"]).window(TumblingWindows(5)).aggregate(n=Count())
    results = windows.map(lambda result: {"k": result.key, "ts": (result.end_ms or 0) - 1})
    return results.key_by(lambda row: row["k"]).process(Silence(), name="silences")


def silences_of_silences(timed: Stream[Row]) -> Stream[Row]:
    found = silences(timed).map(lambda row: {"k": 0, "ts": row["ts"]})
    return found.key_by(lambda row: row["k"]).process(Silence(), name="again")


def timed(source: Stream[Row]) -> Stream[Row]:
    return source.event_time(lambda row: row["ts"], BoundedOutOfOrderness(1))


def embedded(given: list[Row], define: Any) -> list[Row]:
    pipeline = Pipeline()
    found: list[Row] = []
    define(timed(pipeline.source(given))).to(found)
    pipeline.run_blocking()
    return found


def on_spark(partitions: list[list[Row]], define: Any, spark: StandIn) -> list[Row]:
    from pyspark.sql.types import LongType

    pipeline = Pipeline()
    source: Stream[Any] = pipeline.source([], name="rows")
    define(timed(source)).to([], name="out")
    frame: Any = spark.bounded(partitions, columns(k=LongType(), ts=LongType()))
    outputs = {"out": columns(key=LongType(), ts=LongType())}
    plan = pipeline.on_spark(spark, inputs={"rows": frame}, outputs=outputs)
    return [row.asDict() for row in plan["out"].collect()]


def in_order(found: list[Row]) -> list[tuple[Any, ...]]:
    return sorted((row["key"], row["ts"]) for row in found)


@pytest.mark.parametrize(
    ("define", "given"),
    [(silences, rows()), (silences_of_windows, rows(late=False)), (silences_of_silences, rows())],
)
@pytest.mark.parametrize("parts", [1, 7])
def test_silences_between_elements_are_noticed(define: Any, given: list[Row], parts: int) -> None:
    size = -(-len(given) // parts)
    partitions = [given[start : start + size] for start in range(0, len(given), size)]
    found = on_spark(partitions, define, StandIn(3, partitions=2))
    assert in_order(found) == in_order(embedded(given, define))
    assert len(found) >= 9


def test_windows_beside_a_process_function_have_every_element() -> None:
    def both(stream: Stream[Row]) -> Stream[Row]:
        counts = stream.key_by(lambda row: 0).window(TumblingWindows(60)).aggregate(n=Count())
        counted: Stream[Row] = counts.map(lambda result: {"key": result.value["n"], "ts": None})
        return counted.union(silences(stream).map(lambda row: {"key": None, "ts": row["ts"]}))

    given = rows()
    random.Random(4).shuffle(given)
    found = on_spark([given[:250], given[250:]], both, StandIn(3))
    assert sum(row["key"] or 0 for row in found) == len(given)


def test_input_without_event_time_holds_up_nobody() -> None:
    from pyspark.sql.types import LongType

    pipeline = Pipeline()
    clocked: Stream[Any] = pipeline.source([], name="clocked")
    plain: Stream[Any] = pipeline.source([], name="plain")
    silences(timed(clocked).union(timed(plain))).to([], name="out")
    spark, schema = StandIn(3), columns(k=LongType(), ts=LongType())
    outputs = {"out": columns(key=LongType(), ts=LongType())}
    frames: Any = {"clocked": spark.bounded([rows()], schema), "plain": spark.bounded([[]], schema)}
    plan = pipeline.on_spark(spark, inputs=frames, outputs=outputs)
    assert len(plan["out"].collect()) == 10


def test_only_envelopes_that_are_under_way_are_open() -> None:
    route = Route(0, Output("rows"), "reader")

    def envelope(first: int, origin: int) -> tuple[Any, ...]:
        marks = [*range(first, first + 10)]
        values = [(mark, origin) for mark in marks]
        payload = pack(Leaving(route, first, (0,), values, [None] * 10, marks))
        return first, origin, first, 0, payload

    replay, given, most = Replay(), [], 0
    found: list[Any] = []

    def take(items: Iterator[Any]) -> None:
        for item in items:
            assert all(value[0] == item.watermark for value in item.values)
            found.extend(item.values)

    for first in range(0, 1000, 10):
        for origin in (2, 1):
            given.append((first + 5 * (origin - 1), origin))
    for first, origin in sorted(given):
        take(replay.add(*envelope(first, origin)))
        most = max(most, len(replay._open))
    take(replay.rest())
    assert [value[0] for value in found] == sorted(value[0] for value in found)
    assert len(found) == 2000
    assert most <= 3
    assert not replay._open


def test_partitions_that_follow_each_other_in_time_are_read_one_after_the_other() -> None:
    class Order(KeyedProcessFunction[Row, Row]):
        def process_element(self, value: Row, ctx: KeyedContext, out: Any) -> None:
            out({"key": value["k"], "ts": value["ts"]})

    def seen(stream: Stream[Row]) -> Stream[Row]:
        return stream.key_by(lambda row: 0).process(Order(), name="order")

    given = [{"k": 0, "ts": 60_000 * number} for number in range(100)]
    found = on_spark([given[75:], given[:25], given[25:75]], seen, StandIn(3))
    assert [row["ts"] for row in found] == [row["ts"] for row in given]
