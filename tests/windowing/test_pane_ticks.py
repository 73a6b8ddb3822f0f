"""Ticks of windows of all keys together: what waits for room, and what another kind of operator has left."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import pytest

from asyncstream.clock import ManualClock
from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.state import ListDescriptor
from asyncstream.windowing import (
    AfterWatermark,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    Count,
    ProcessWindowFunction,
    Trigger,
    TumblingWindows,
    WindowOperator,
    WindowPlan,
)
from asyncstream.windowing.pane_ticks import TickingWindowOperator
from tests.windowing.harness import Harness, Recorder, ms

ENDS: dict[str, Any] = {
    "time": lambda operator: operator.advance_watermark(MAX_TIMESTAMP),
    "input": lambda operator: operator.end_input(),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_tick_that_waits_for_room_comes_when_nothing_follows(end: str) -> None:
    trigger = AfterWatermark(early=ContinuousProcessingTimeTrigger(ms(10)))
    plan = WindowPlan(TumblingWindows(ms(100)), trigger, aggregate=Count())
    operator, clock, records = TickingWindowOperator(itemgetter(0), plan), ManualClock(), list[Any]()
    operator.out = Recorder("out", records)
    operator.open(OperatorContext(clock=clock, has_room=lambda: False))
    operator.process(("a", 1), 1)
    clock.set_ms(15)
    operator.advance_clock(15)
    assert records == []
    ENDS[end](operator)
    fired = [record[1].value for record in records if record[0] == "out"]
    assert fired == ([1, 1] if end == "time" else [1])


@pytest.mark.parametrize(
    "trigger",
    [ContinuousEventTimeTrigger(ms(10)), AfterWatermark(early=ContinuousEventTimeTrigger(ms(10)))],
    ids=["with late elements", "early"],
)
def test_a_timer_at_the_end_of_a_window_that_the_general_operator_has_left_does_nothing(
    trigger: Trigger,
) -> None:
    plan = WindowPlan(TumblingWindows(ms(30)), trigger, None, 20, Count())

    def general() -> Operator:
        return WindowOperator(itemgetter(0), plan)

    run = Harness(general, lambda: TickingWindowOperator(itemgetter(0), plan))
    run.element(("a", 1), 5)
    run.watermark(21)
    run.restart()
    run.operator.restore_watermark(21)
    run.watermark(29)
    run.watermark(60)
    assert [record[1].value for record in run.records if record[0] == "out"] == [1, 1, 1]
    assert run.operator.metrics()["event_timers"] == 0


def test_a_tick_after_late_elements_that_the_general_operator_has_left_does_nothing() -> None:
    def plan(lateness_ms: int) -> WindowPlan:
        ticks = ContinuousProcessingTimeTrigger(ms(10))
        trigger = AfterWatermark(early=ticks, late=ticks)
        return WindowPlan(TumblingWindows(ms(100)), trigger, None, lateness_ms, Count())

    run = Harness(
        lambda: WindowOperator(itemgetter(0), plan(1000)),
        lambda: TickingWindowOperator(itemgetter(0), plan(0)),
    )
    run.element(("a", 1), 5)
    run.watermark(150)
    run.element(("a", 1), 6)
    assert run.operator.metrics()["processing_timers"] == 1
    run.restart()  # how far event time was is not known
    run.time(30)
    assert [record[1].value for record in run.records if record[0] == "out"] == [1]


class Gone(ProcessWindowFunction[Any]):
    """Tells which windows of its key have gone."""

    gone = ListDescriptor[int]("gone")

    def process(self, key: Any, contents: Any, ctx: Any, out: Any) -> None:
        out((ctx.window.start_ms, ctx.key_state(self.gone).get()))

    def clear(self, key: Any, ctx: Any) -> None:
        ctx.key_state(self.gone).add(ctx.window.start_ms)


def test_windows_tick_before_and_after_another_goes_as_time_has_it() -> None:
    trigger = AfterWatermark(early=ContinuousEventTimeTrigger(ms(4)))
    plan = WindowPlan(TumblingWindows(ms(10)), trigger, None, 5, Count(), Gone())
    run = Harness(lambda: TickingWindowOperator(itemgetter(0), plan))
    run.run([("el", ("a", 1), 9), ("el", ("a", 1), 11), ("wm", 9), ("wm", 18)])
    assert [record[1] for record in run.records if record[0] == "out"] == [(0, []), (10, []), (10, [0])]
