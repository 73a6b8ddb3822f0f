"""
Keyed steps of a stream from one micro-batch to the next, on the stand-in for Spark: no session, no Java.

What drawn pipelines found, each in the smallest case.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from asyncstream import (
    BoundedOutOfOrderness,
    KeyedContext,
    KeyedProcessFunction,
    Pipeline,
    PipelineError,
    Stream,
    UserFunctionError,
)
from asyncstream.plan import Output
from asyncstream.runtime.spark.stages import Route, stages_of
from asyncstream.runtime.spark.wire.batches import Entering, Leaving
from asyncstream.runtime.spark.wire.envelope import entering, pack
from asyncstream.runtime.spark.wire.keys import GROUPING
from asyncstream.runtime.spark.worker import outputs
from asyncstream.runtime.spark.worker.keyed import KeyGroup
from asyncstream.runtime.spark.worker.operators import Terms
from asyncstream.state import TimeToLive, ValueDescriptor
from asyncstream.windowing import Collect, Count, CountTrigger, GlobalWindows, Sum, TumblingWindows
from tests.spark.cluster import columns, event_columns, run_stream, run_to_the_end
from tests.spark.contract import doubled, embedded, key_of, on_stand_in, row
from tests.spark.fake_spark import BEGUN_MS, StandIn


def test_timer_at_the_end_of_time_stays_among_us() -> None:
    """Java's numbers end there."""

    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        keyed = timed.key_by(key_of)
        counts = keyed.window(GlobalWindows(fire_at_end=True)).aggregate(n=Count())
        fourth = keyed.window(TumblingWindows(2)).trigger(CountTrigger(2)).aggregate(n=Count())
        of_counted = keyed.count_window(2).aggregate(n=Count()).key_by(lambda result: result.key)
        return {"counts": counts, "fourth": fourth, "last": of_counted.window(TumblingWindows(2)).collect()}

    batches = [[row(1_000), row(1_500)], [row(9_000), row(9_100)], [row(9_200)]]
    assert sorted(on_stand_in(batches, define)) == embedded(batches, define) != []


class Reminder(KeyedProcessFunction[Any, Any]):
    """Wants to be told of the time of each element when it is over."""

    def process_element(self, value: Any, ctx: KeyedContext, out: Any) -> None:
        ctx.register_event_timer(value["ts"])

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Any) -> None:
        out({"ts": timestamp, "watermark": ctx.watermark})


def test_timer_that_was_due_at_once_waits_for_a_new_watermark() -> None:
    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        return {"told": timed.key_by(key_of).process(Reminder()), "all": timed.map(dict)}

    # W(1) is 7,999 and so is W(2), for which timers have fired: 1,000 is due with W(3)
    batches = [[row(10_000)], [row(1_000)], [row(2_000), row(20_000)], []]
    found = sorted(on_stand_in(batches, define))
    assert found == embedded(batches, define)
    assert "told: {'ts': 1000, 'watermark': 17999}" in found


def test_what_timers_emit_is_judged_by_the_watermark_before_also_by_a_key_group_that_is_new() -> None:
    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        reminders: Any = timed.key_by(key_of).process(Reminder())
        windows = reminders.key_by(lambda value: 0).window(TumblingWindows(2)).aggregate(n=Count())
        return {"windows": windows, "late": windows.late}

    # the timer for 1,000 was due with W(1) and fires with W(2), when [0, 2000) is long over
    batches = [[row(10_000)], [row(1_000), row(20_000)], []]
    found = sorted(on_stand_in(batches, define))
    assert found == embedded(batches, define)
    assert [line for line in found if line.startswith("late")] == ["late: {'ts': 1000, 'watermark': 17999}"]


def test_calls_in_the_order_of_a_key_are_made_in_that_order_behind_a_shuffle() -> None:
    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        asked = timed.key_by(key_of).async_map(doubled, order="per_key", concurrency=2)
        return {"counted": asked.key_by(key_of).count_window(3).collect(), "all": timed.map(dict)}

    batches = [[row(1_000 + number, key) for number in range(9) for key in "ab"]]
    assert sorted(on_stand_in(batches, define, packed=1, records=1)) == embedded(batches, define)


class Clocked(KeyedProcessFunction[Any, Any]):
    """Tells how many seconds of processing time are over with each element, and whether one came lately."""

    def open(self, ctx: KeyedContext) -> None:
        self.lately = ctx.state(ValueDescriptor[bool]("lately", ttl=TimeToLive(2)))

    def process_element(self, value: Any, ctx: KeyedContext, out: Any) -> None:
        out({"line": f"{ctx.key} {(ctx.now_ms - BEGUN_MS) / 1000} {self.lately.get()}"})
        if self.lately.get() is None:
            self.lately.set(True)


@pytest.mark.parametrize("is_timed", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_processing_time_is_that_of_the_micro_batch_also_if_it_runs_again(seed: int, is_timed: bool) -> None:
    """Whether a stream follows it or not: else a repeated micro-batch would find other state expired."""
    from pyspark.sql.types import StringType

    pipeline = Pipeline()
    rows: Stream[Any] = pipeline.source([], name="rows")
    if is_timed:
        rows = rows.event_time(lambda row: row["ts"], BoundedOutOfOrderness(2))
    rows.key_by(key_of).process(Clocked()).to([], name="lines")
    keys = "abcdefgh"  # of several groups in a task
    source: Any = StandIn(seed).stream([[[row(n, key) for key in keys]] for n in range(5)], event_columns())
    plan = pipeline.on_spark(
        source.sparkSession,
        inputs={"rows": source},
        outputs={"lines": columns(line=StringType())},
        key_groups=6,
    )
    found = run_stream(plan, Path())["lines"]
    lately = [None, True, None, True, None]
    assert sorted(found) == [f"{key} {n}.0 {lately[n]}" for key in keys for n in range(5)]


class Echo(KeyedProcessFunction[Any, Any]):
    """Tells of each element when it comes, and once more when its time is over."""

    def process_element(self, value: Any, ctx: KeyedContext, out: Any) -> None:
        ctx.register_event_timer(ctx.timestamp)
        self.tell(ctx, value["v"], out)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Any) -> None:
        self.tell(ctx, timestamp, out)

    def tell(self, ctx: KeyedContext, v: int, out: Any) -> None:
        out({"key": ctx.key, "v": v, "line": f"{ctx.key} {v}"})


@pytest.mark.parametrize("kind", ["keyed", "shuffled"])
def test_elements_keep_their_order_past_a_later_keyed_step(kind: str) -> None:
    """What is not for that step goes through its shuffle all the same, which keeps no order."""
    from pyspark.sql.types import StringType

    pipeline = Pipeline()
    rows: Stream[Any] = pipeline.source([], name="rows")
    timed = rows.event_time(lambda row: row["ts"], BoundedOutOfOrderness(2))
    echoes = timed.key_by(key_of).process(Echo())
    again: Any = echoes.key_by(key_of)
    echoes.to([], name="echoes")
    second = again.count_window(2).collect() if kind == "keyed" else again.async_map(doubled, order="per_key")
    second.map(repr).to([], name="second")

    # an element's time is over in the second micro-batch after it, before that one's own element
    batches = [[row(time, key) | {"v": -time} for key in "abc"] for time in range(3_000, 30_000, 3_000)]
    told = [v for time in range(3_000, 24_000, 3_000) for v in (time, -time - 6_000)]
    source: Any = StandIn(1).stream([[rows] for rows in batches], event_columns())
    schema = columns(line=StringType())
    plan = pipeline.on_spark(
        source.sparkSession,
        inputs={"rows": source},
        outputs={"echoes": schema, "second": schema},
        key_groups=3,
    )
    found = run_stream(plan, Path())["echoes"]
    for key in "abc":
        mine = [line for line in found if line.startswith(key)]
        assert mine == [f"{key} {v}" for v in (-3_000, -6_000, *told, 24_000)]


def test_what_timers_emit_comes_first_from_all_key_groups_together() -> None:
    """Sums by two keys of what has one: envelopes of all groups, from before and behind the watermark."""

    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        echoes = timed.key_by(key_of).process(Echo())
        again = echoes.key_by(lambda value: value["key"] < "c").process(Echo())
        sums = again.key_by(lambda value: 0).window(TumblingWindows(3)).aggregate(n=Count(), total=Sum("v"))
        return {"again": again, "sums": sums, "late": sums.late}

    batches = [[row(time + ord(key), key) for key in "abcdef"] for time in range(3_000, 30_000, 3_000)]
    found = sorted(on_stand_in(batches, define))
    assert found == embedded(batches, define)
    assert len([line for line in found if line.startswith("sums")]) > 5


def test_calls_in_the_order_of_a_key_let_no_element_go_ahead_of_its_watermark() -> None:
    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        asked = timed.key_by(key_of).async_map(doubled, order="per_key", concurrency=2)
        windows = asked.key_by(key_of).window(TumblingWindows(2)).aggregate(all=Collect("ts"))
        return {"windows": windows, "late": windows.late}

    batches = [[row(1_000), row(7_000)], [row(1_500), row(1_600, "other"), row(6_500)], [row(20_000)], []]
    found = sorted(on_stand_in(batches, define))
    assert len([line for line in found if line.startswith("late")]) == 2
    assert [line for line in found if "'all'" in line] == [
        "windows: WindowResult(key='k', start_ms=0, end_ms=2000, value={'all': [1000]})",
        "windows: WindowResult(key='k', start_ms=6000, end_ms=8000, value={'all': [7000, 6500]})",
    ]


@pytest.mark.parametrize(
    ("divided", "told"),
    [
        ((8,), r"has 8 key groups, and the plan 4: .*key_groups=8"),
        ((4,), r"of another version of asyncstream.*plan.save_checkpoint.*start_from"),
        ((4, GROUPING + 1), "of another version of asyncstream"),
    ],
)
def test_checkpoint_whose_keys_are_divided_otherwise_is_refused(divided: tuple[int, ...], told: str) -> None:
    pipeline = Pipeline()
    pipeline.source([row(0)]).key_by(key_of).count_window(2).collect().to([], name="out")
    _, stage = stages_of(pipeline._graph, streaming=True)
    blob = pickle.dumps(({}, 0, None, *divided), 5)
    group = KeyGroup(stage, Terms(4, frozenset(), streaming=True), 1)
    group.init(
        SimpleNamespace(
            getValueState=lambda *_: SimpleNamespace(get=lambda: (blob,)),
            getMapState=lambda *_: None,
        )
    )
    times = SimpleNamespace(getCurrentWatermarkInMs=lambda: 0)
    due = SimpleNamespace(getExpiryTimeInMs=lambda: 0)
    with pytest.raises(PipelineError, match=told):
        list(group.handleExpiredTimer((0,), times, due))


async def as_it_is(result: Any) -> Any:
    return result


class Hoard(KeyedProcessFunction[Any, Any]):
    """Remembers what is of no use to another process."""

    def open(self, ctx: KeyedContext) -> None:
        self.kept = ctx.state(ValueDescriptor[Any]("kept"))

    def process_element(self, value: Any, ctx: KeyedContext, out: Any) -> None:
        self.kept.set(lambda: value)


def test_state_that_cannot_be_pickled_is_blamed_on_its_step() -> None:
    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        return {"hoard": timed.key_by(key_of).process(Hoard()), "rows": timed.map(dict)}

    with pytest.raises(PipelineError, match="what 'process' remembers cannot be pickled, as Spark's state"):
        on_stand_in([[row(0)]], define)


def test_elements_enter_so_many_at_a_time_as_were_packed_together() -> None:
    route = Route(3, Output("ask"), "count")
    parts = [Leaving(route, 7, (0,), [1, 2], [10, 20]), Leaving(route, 7, (0,), [3], [None])]
    payload = b"".join(pack(part) for part in parts)
    assert list(entering(3, payload, watermark=7)) == [
        Entering((3,), [1, 2], [10, 20], watermark=7),
        Entering((3,), [3], [None]),
    ]


@pytest.mark.parametrize("few", [1, 100])
def test_results_leave_as_rows_however_many_they_are_and_whatever_comes_behind(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One output from the first of two keyed stages, one from the second, and calls behind both."""
    monkeypatch.setattr(outputs, "FEW", few)
    rows = [row(1_000 + number, f"k{number}") for number in range(300)]
    source: Any = StandIn(2).stream([[rows[::2], rows[1::2]], [[row(50_000)]], []], event_columns())
    pipeline = Pipeline()
    timed: Stream[Any] = pipeline.source([], name="rows").event_time("ts", BoundedOutOfOrderness(0))
    counts = timed.key_by("key").window(TumblingWindows(10)).aggregate(n=Count())
    again = counts.key_by(lambda result: len(result.key)).window(TumblingWindows(10))
    sums = again.aggregate(n=Count())
    counts.to([], name="counts")
    sums.to([], name="sums")
    sums.async_map(as_it_is).discard()
    schemas = {"counts": columns(key=StringType()), "sums": columns(key=LongType())}
    plan = pipeline.on_spark(
        source.sparkSession, inputs={"rows": source}, outputs=schemas, key_groups=3, partitions=2
    )
    found = run_stream(plan, Path())
    assert sorted(found["counts"]) == sorted(f"k{number}" for number in range(300))
    assert sorted(map(int, found["sums"])) == [2, 3, 4]


def test_results_leave_as_rows_beside_calls_that_are_for_nothing() -> None:
    source: Any = StandIn(1).stream(
        [[[row(1_000, f"k{n}") for n in range(300)]], [[row(50_000)]], []], event_columns()
    )
    pipeline = Pipeline()
    timed: Stream[Any] = pipeline.source([], name="rows").event_time("ts", BoundedOutOfOrderness(0))
    counts = timed.key_by("key").window(TumblingWindows(10)).aggregate(n=Count())
    counts.to([], name="counts")
    counts.async_map(as_it_is).discard()
    value = StructType([StructField("n", LongType())])
    schema = columns(key=StringType(), value=value, end_ms=LongType())
    plan = pipeline.on_spark(
        source.sparkSession, inputs={"rows": source}, outputs={"counts": schema}, key_groups=1
    )
    found: list[Any] = []
    run_to_the_end(
        plan["counts"].writeStream.foreachBatch(lambda rows, _: found.extend(rows.collect())), Path()
    )
    assert sorted(found) == sorted((f"k{n}", {"n": 1}, 10_000) for n in range(300))


def test_a_result_that_is_no_row_is_blamed_on_the_output() -> None:
    source: Any = StandIn(1).stream(
        [[[row(1_000, f"k{n}") for n in range(300)]], [[row(50_000)]], []], event_columns()
    )
    pipeline = Pipeline()
    timed: Stream[Any] = pipeline.source([], name="rows").event_time("ts", BoundedOutOfOrderness(0))
    timed.key_by("key").window(TumblingWindows(10)).aggregate(n=Count()).to([], name="out")
    plan = pipeline.on_spark(
        source.sparkSession, inputs={"rows": source}, outputs={"out": columns(key=LongType())}, key_groups=1
    )
    with pytest.raises(UserFunctionError, match=r"step 'out': .*k\d+.* on its way into column 'key'"):
        run_stream(plan, Path())
