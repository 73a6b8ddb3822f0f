"""Elements get the time of the clock, and event time goes on with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream import (
    AscendingTimestamps,
    Checkpoints,
    Count,
    IngestionTime,
    ManualClock,
    MemoryStore,
    Pipeline,
    PipelineError,
    TumblingWindows,
    WindowResult,
)
from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.operators.base import OperatorContext
from asyncstream.operators.ingestion import AssignIngestionTime, IngestionTimeSpec
from asyncstream.testing import VirtualTime
from tests.operators.recorder import END, RESTORED, W, record


def test_elements_get_the_time_of_the_clock_and_event_time_goes_on_without_them() -> None:
    clock, wakes = ManualClock(1000), list[int]()
    operator = AssignIngestionTime(200)
    recorder = record(operator, clock, wakes)
    operator.process_batch(["a", "b"], [5, 6])
    clock.set_ms(1100)
    operator.process("c", None)
    assert recorder.seen == [(W, 999), ("a", 1000), ("b", 1000), ("c", 1100)]
    operator.advance_clock(1300)
    assert recorder.seen[4:] == [(W, 1299)]
    assert wakes == [1200, 1500]


@pytest.mark.parametrize(("every", "every_ms"), [(0.2, 200), (0.001, 1), (0, 1)])
def test_time_is_asked_for_as_often_as_is_said(every: float, every_ms: int) -> None:
    wakes = list[int]()
    record(IngestionTimeSpec(IngestionTime(every=every)).build(), ManualClock(1000), wakes)
    assert wakes == [1000 + every_ms]


def test_input_has_no_say_in_event_time_but_for_its_end() -> None:
    clock, wakes = ManualClock(1000), list[int]()
    operator = AssignIngestionTime(200)
    recorder = record(operator, clock, wakes)
    operator.advance_watermark(70)
    operator.set_idle(True)
    operator.advance_watermark(MAX_TIMESTAMP)
    operator.end_input()
    operator.advance_clock(5000)
    assert recorder.seen == [(W, MAX_TIMESTAMP), (END,)]
    assert wakes == [1200]


def test_windows_do_not_fire_into_a_pipeline_without_room() -> None:
    held = [True]
    operator = AssignIngestionTime(200)
    recorder = record(operator)
    operator.open(OperatorContext("step", clock=ManualClock(1000), is_held=lambda: held[0]))
    operator.advance_clock(1300)
    assert recorder.seen == []
    held[0] = False
    operator.advance_clock(1500)
    assert recorder.seen == [(W, 1499)]


class ClockThatJumps(ManualClock):
    """As the one of a machine that somebody sets."""

    set_to = 0

    def now_ms(self) -> int:
        return self.set_to


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans(), st.booleans())))
def test_nothing_is_late_and_time_never_goes_back(moves: list[tuple[int, bool, bool]]) -> None:
    """Also with a clock that jumps, and over restores."""
    clock = ClockThatJumps()
    operator = AssignIngestionTime(3)
    seen = record(operator, clock).seen
    for clock.set_to, comes, restores in moves:
        if restores:
            state, operator = operator.snapshot(), AssignIngestionTime(3)
            recorder = record(operator, clock)
            recorder.seen = seen
            operator.restore(state)
            operator.resume()
        if comes:
            operator.process("x", None)
        else:
            operator.advance_clock(clock.now_ms())
    latest = -1
    for kind, time in ((entry[0], entry[1]) for entry in seen if entry[0] != RESTORED):
        assert time > latest if kind == "x" else time >= latest
        latest = max(latest, time if kind == W else time - 1)


async def test_windows_by_ingestion_time_fire_while_nothing_comes(virtual_time: VirtualTime) -> None:
    counted: list[WindowResult[Any, Any]] = []
    pipeline = Pipeline()
    events = pipeline.submissions().event_time(IngestionTime(every=1))
    events.key_by(lambda event: event).window(TumblingWindows(60)).aggregate(count=Count()).to(counted)
    async with pipeline.start() as job:
        await job.submit("a")
        await virtual_time.advance(50)
        await job.submit("a")
        await virtual_time.advance(15)
        assert [tuple(result) for result in counted] == [("a", 0, 60_000, {"count": 2})]
        await job.submit("a")
    assert [result.value["count"] for result in counted] == [2, 1]


async def test_ingestion_time_is_kept_by_checkpoints(virtual_time: VirtualTime) -> None:
    store, stamps = MemoryStore(), list[int]()

    def pipeline(clock: ManualClock) -> Any:
        made = Pipeline("ingestion")
        timed = made.submissions(name="in").event_time(watermarks=IngestionTime(), name="time")
        windows = timed.key_by(lambda event: 0).window(TumblingWindows(1)).aggregate(Count(), name="count")
        windows.map(lambda result: result.start_ms or 0).to(stamps, name="out")
        return made.start(checkpoints=Checkpoints(store=store), clock=clock)

    async with pipeline(ManualClock(50_000)) as job:
        await job.submit("a")
    async with pipeline(ManualClock(10_000)) as job:  # set back, while nobody looked
        await job.submit("b")
        await asyncio.sleep(1)
        await job.drain()
    assert stamps == [50_000]


@pytest.mark.parametrize(
    "arguments",
    [
        {"timestamp": "at", "watermarks": IngestionTime()},
        {"timestamp": IngestionTime(), "idle_after": 5},
        {"watermarks": IngestionTime(), "on_error": "skip"},
    ],
)
def test_what_ingestion_time_has_no_use_for_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match=r"that of the clock: .* write event_time"):
        Pipeline().source([1]).event_time(**arguments)
    with pytest.raises(PipelineError, match="timestamp: expected"):
        Pipeline().source([1]).event_time(IngestionTime(), AscendingTimestamps())  # type: ignore[call-overload]
