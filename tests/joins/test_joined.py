"""Joins as a user writes them: what comes out, what is told of them, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    AscendingTimestamps,
    BoundedOutOfOrderness,
    Checkpoints,
    DiskState,
    GlobalWindows,
    MemoryStore,
    Pipeline,
    PipelineError,
    SessionWindows,
    TumblingWindows,
)
from asyncstream.errors import UserFunctionError
from asyncstream.joins import CoGrouped
from asyncstream.joins.interval import IntervalJoinOperator
from asyncstream.joins.window_join import WindowJoinOperator
from asyncstream.state.timer_queue import Timer
from asyncstream.windowing import CountEvictor, CountTrigger, EventTimeTrigger, TimeWindow, WindowPlan
from tests.operators.recorder import record

Timed = tuple[str, int, str]
"""Key, seconds, value."""

ORDERS = [("a", 1, "order"), ("b", 2, "order"), ("c", 30, "order")]
PAYMENTS = [("a", 4, "paid"), ("a", 5, "again"), ("b", 20, "paid"), ("d", 21, "paid")]


def key_of(element: Timed) -> str:
    return element[0]


def timed(pipeline: Pipeline, elements: list[Timed], name: str) -> Any:
    stream = pipeline.source(elements, name=name)
    return stream.event_time(lambda element: element[1] * 1000, AscendingTimestamps()).key_by(key_of)


def two(pipeline: Pipeline) -> tuple[Any, Any]:
    return timed(pipeline, ORDERS, "orders"), timed(pipeline, PAYMENTS, "payments")


def shown(pairs: list[Any]) -> list[str]:
    return sorted(f"{left and left[0]} {left and left[2]} {right and right[2]}" for left, right in pairs)


@pytest.mark.parametrize(
    ("how", "alone"),
    [
        ("inner", []),
        ("left", ["b order None", "c order None"]),
        ("right", ["None None paid", "None None paid"]),
        ("full", ["None None paid", "None None paid", "b order None", "c order None"]),
    ],
)
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_interval_join_pairs_what_is_near(how: Any, alone: list[str]) -> None:
    pipeline = Pipeline()
    orders, payments = two(pipeline)
    found: list[Any] = []
    orders.join(payments, how=how).within(0, timedelta(seconds=10), name="paid").to(found)
    await pipeline.run()
    assert shown(found) == sorted(["a order again", "a order paid", *alone])
    assert f"(how={how}, before=0, after=0:00:10)" in pipeline.describe()


@pytest.mark.parametrize(
    ("inclusive", "seconds"), [("both", [3, 5, 7]), ("before", [3, 5]), ("after", [5, 7]), ("neither", [5])]
)
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_bounds_are_inside_or_not(inclusive: Any, seconds: list[int]) -> None:
    pipeline = Pipeline()
    left = timed(pipeline, [("a", 5, "left")], "left")
    right = timed(pipeline, [("a", second, "right") for second in range(10) if second % 2], "right")
    found: list[Any] = []
    left.join(right).within(2, 2, inclusive=inclusive).to(found)
    await pipeline.run()
    assert sorted(right[1] for _, right in found) == seconds


@pytest.mark.parametrize(("before", "after", "seconds"), [(-1, 3, [6, 7, 8]), (-2, 2, [7]), (2, -2, [3])])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_negative_bound_is_on_the_other_side(before: int, after: int, seconds: list[int]) -> None:
    pipeline = Pipeline()
    left = timed(pipeline, [("a", 5, "left")], "left")
    right = timed(pipeline, [("a", second, "right") for second in range(10)], "right")
    found: list[Any] = []
    left.join(right).within(before, after).to(found)
    await pipeline.run()
    assert sorted(right[1] for _, right in found) == seconds


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_elements_that_are_late_come_out_beside_or_are_counted() -> None:
    pipeline = Pipeline()
    left = timed(pipeline, [("a", 5, "x"), ("a", 9, "x"), ("a", 1, "late")], "left")
    right = timed(pipeline, [("a", 5, "x"), ("a", 9, "x"), ("a", 1, "late")], "right")
    joined = left.join(right).within(1, 1)
    late: list[Any] = []
    joined.discard()
    joined.late_left.to(late)
    joined.late_right.to(late)
    windowed = left.join(right).window(TumblingWindows(2), name="windowed")
    windowed.discard()
    windowed.late_left.to(late)
    async with pipeline.start() as job:
        await job.drain()
        counts = job.metrics()
    assert set(map(tuple, late)) <= {("a", 1, "late"), ("a", 5, "x")}
    assert counts


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_windows_join_pairs_and_co_groups_lists() -> None:
    pipeline = Pipeline()
    orders, payments = two(pipeline)
    pairs: list[Any] = []
    groups: list[Any] = []
    orders.join(payments, how="left").window(TumblingWindows(10), allowed_lateness=5).to(pairs)
    orders.co_group(payments).window(SessionWindows(4), name="sessions").to(groups)
    await pipeline.run()
    assert shown(pairs) == ["a order again", "a order paid", "b order None", "c order None"]
    assert CoGrouped("a", 1000, 9000, [ORDERS[0]], PAYMENTS[:2]) in groups
    assert CoGrouped("d", 21000, 25000, [], [PAYMENTS[3]]) in groups
    assert "allowed_lateness=0:00:05" in pipeline.describe()


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_triggers_and_evictors_see_both_streams() -> None:
    pipeline = Pipeline()
    orders, payments = two(pipeline)
    found: list[Any] = []
    grouped = orders.co_group(payments).window(
        GlobalWindows(), trigger=CountTrigger(3), evictor=CountEvictor(2)
    )
    grouped.to(found)
    await pipeline.run()
    assert [(one.key, len(one.left) + len(one.right)) for one in found] == [("a", 2)]


PRICES = [("a", 0, "1"), ("a", 10, "2"), ("b", 12, "3")]
SALES = [("a", 5, "x"), ("b", 11, "x"), ("a", 10, "x"), ("b", 13, "x")]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_as_of_finds_the_version_that_is_valid() -> None:
    pipeline = Pipeline()
    sales = (
        pipeline.source(SALES).event_time(lambda one: one[1] * 1000, BoundedOutOfOrderness(5)).key_by(key_of)
    )
    found: list[Any] = []
    sales.as_of(timed(pipeline, PRICES, "prices"), name="priced").to(found)
    await pipeline.run()
    assert [(sale[1], price and price[2]) for sale, price in found] == [
        (5, "1"),
        (10, "2"),
        (11, None),
        (13, "3"),
    ]


def test_latest_version_is_found_in_the_next_run(tmp_path: Path) -> None:
    found: list[Any] = []
    for sales in ([], SALES[:1]):
        pipeline = Pipeline("sales")
        events = pipeline.source(sales, name="sales").key_by(key_of)
        prices = pipeline.source(PRICES, name="prices").key_by(key_of)
        events.as_of(prices, latest=True, name="priced").to(found, name="found")
        pipeline.run_blocking(checkpoints=tmp_path)
    assert found == [(SALES[0], PRICES[1])]


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.usefixtures("tidy")
async def test_buffers_outlive_a_job(tmp_path: Path, on_disk: bool) -> None:
    """What came in the first run is joined with what comes in the second."""
    kept = Checkpoints(store=MemoryStore())
    found: list[Any] = []
    for payments in (False, True):
        pipeline = Pipeline("kept")
        left, right = (
            pipeline.submissions(name=name)
            .event_time(lambda one: one[1], AscendingTimestamps(), name=f"time of {name}")
            .key_by(key_of)
            for name in ("left", "right")
        )
        joined = left.join(right, how="full").within(1, 1, name="join")
        joined.to(found, name="found")
        state = DiskState(tmp_path / "state") if on_disk else None
        async with pipeline.start(checkpoints=kept, state=state) as job:
            await job.submit(("a", 5, str(payments)), to="right" if payments else "left")
            await job.checkpoint()
            await job.stop()
    assert found == [(("a", 5, "False"), ("a", 5, "True"))]


def test_buffer_goes_a_while_after_its_time_at_the_latest() -> None:
    """Then nothing is left; and one in use holds what may be joined, and hardly more."""
    operator = IntervalJoinOperator((key_of, key_of), -100, 100)
    record(operator)
    for at_ms in range(0, 2_000, 10):
        for port in operator.ports:
            port.process(("a", 0, ""), at_ms)
        for port in operator.ports:
            port.advance_watermark(at_ms)
        assert operator.metrics()["buffered"] <= 2 * (11 + 1)
    for port in operator.ports:
        port.advance_watermark(3_000)
    assert (
        operator.metrics()["buffered"] == len(operator.tables["left"]) == len(operator.tables["right"]) == 0
    )


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_element_without_a_time_is_refused_by_name() -> None:
    pipeline = Pipeline()
    untimed = pipeline.source(ORDERS).key_by(key_of)
    untimed.join(untimed).within(1, 1, name="near").discard()
    with pytest.raises(UserFunctionError, match=r"'near'.*needs a timestamp"):
        await pipeline.run()


class Late(EventTimeTrigger):
    def on_event_time(self, timestamp: int, window: Any, ctx: Any) -> Any:
        raise ValueError(timestamp)


@pytest.mark.parametrize("side", [0, 1])
def test_join_in_windows_names_the_element_as_it_came_and_the_timer(side: int) -> None:
    operator = WindowJoinOperator((itemgetter(1), itemgetter(1)), WindowPlan(TumblingWindows(1), Late()))
    record(operator)
    with pytest.raises(UserFunctionError) as failure:
        operator.ports[side].process(["a"], 5)
    assert failure.value.element == ["a"]
    operator.ports[side].process(["a", "b"], 5)
    operator.ports[1 - side].advance_watermark(999)
    with pytest.raises(UserFunctionError) as failure:
        operator.ports[side].advance_watermark(999)
    assert failure.value.element == Timer(999, "b", TimeWindow(0, 1000))


def test_what_cannot_be_joined_is_refused() -> None:
    pipeline = Pipeline()
    orders, payments = two(pipeline)
    plain = pipeline.source(ORDERS)
    for join in (plain.join, plain.co_group, plain.as_of):
        with pytest.raises(PipelineError, match="expected keyed streams, the first has no key"):
            join(orders)
    for join in (orders.join, orders.co_group, orders.as_of):
        with pytest.raises(PipelineError, match="expected keyed streams, the second has no key"):
            join(plain)
        with pytest.raises(PipelineError, match="belongs to another pipeline"):
            join(timed(Pipeline(), ORDERS, "orders"))
        with pytest.raises(PipelineError, match="expected a stream, got 5"):
            join(5)
    with pytest.raises(PipelineError, match="how: expected one of 'inner'"):
        orders.join(payments, how="outer")
    with pytest.raises(PipelineError, match="before= and after= together must not be negative"):
        orders.join(payments).within(5, -6)
    with pytest.raises(PipelineError, match="before: expected a timedelta or a number of seconds"):
        orders.join(payments).within("5", 5)
    with pytest.raises(PipelineError, match="after: expected a whole number of milliseconds"):
        orders.join(payments).within(1, 0.0005)
    with pytest.raises(PipelineError, match="inclusive: expected one of"):
        orders.join(payments).within(1, 1, inclusive="left")
    with pytest.raises(PipelineError, match="window: expected a WindowAssigner"):
        orders.join(payments).window(5)
    with pytest.raises(PipelineError, match="allowed_lateness: expected"):
        orders.join(payments).window(TumblingWindows(5), allowed_lateness=-1)
    with pytest.raises(PipelineError, match="latest: expected True or False"):
        orders.as_of(payments, latest="yes")
    with pytest.raises(PipelineError, match="step 'latest' does not wait for event time, so nothing is late"):
        orders.as_of(payments, latest=True, name="latest").late  # noqa: B018
