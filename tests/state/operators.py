"""Keyed operators of all kinds, their input, and what they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from asyncstream.operators.base import Operator
from asyncstream.operators.keyed_context import KeyedContext
from asyncstream.operators.process import KeyedProcessFunction, KeyedProcessOperator
from asyncstream.state import ListDescriptor
from asyncstream.windowing import (
    ContinuousEventTimeTrigger,
    CountTrigger,
    SessionWindows,
    SlidingWindows,
    Sum,
    TumblingWindows,
)
from asyncstream.windowing.plan import WindowPlan
from asyncstream.windowing.policies import policy_window
from asyncstream.windowing.spec import window_operator
from tests.operators.recorder import Recorder


class Latest(KeyedProcessFunction[Any, Any]):
    """Tells, at every tenth millisecond, what came for a key since."""

    def open(self, ctx: KeyedContext) -> None:
        self.seen = ctx.state(ListDescriptor[Any]("seen"))

    def process_element(self, value: Any, ctx: KeyedContext, out: Any) -> None:
        self.seen.add(value)
        ctx.register_event_timer(ctx.timestamp // 10 * 10 + 9)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Any) -> None:
        out((ctx.key, list(self.seen.get())))
        self.seen.clear()


def key_of(value: Any) -> Any:
    return value[0]


def windows(plan: WindowPlan) -> Callable[[], Operator]:
    return lambda: window_operator(key_of, plan)


TOTAL_OF_SECOND = Sum(lambda value: value[1])

OPERATORS: dict[str, Callable[[], Operator]] = {
    "process": lambda: KeyedProcessOperator(key_of, Latest()),
    "tumbling": windows(WindowPlan(TumblingWindows(0.01), aggregate=TOTAL_OF_SECOND, allowed_lateness_ms=10)),
    "sliding": windows(WindowPlan(SlidingWindows(0.02, 0.01), aggregate=TOTAL_OF_SECOND)),
    "ticking": windows(
        WindowPlan(TumblingWindows(0.01), ContinuousEventTimeTrigger(0.003), aggregate=TOTAL_OF_SECOND)
    ),
    "ticking, sliding": windows(
        WindowPlan(SlidingWindows(0.02, 0.01), ContinuousEventTimeTrigger(0.004), aggregate=TOTAL_OF_SECOND)
    ),
    "session": windows(WindowPlan(SessionWindows(0.005), aggregate=TOTAL_OF_SECOND)),
    "general": windows(WindowPlan(TumblingWindows(0.01), trigger=CountTrigger(2))),
    "policy": lambda: policy_window(2, tumbling=True, time="processing", key_by=key_of),
}

ELEMENTS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 40)), max_size=12)


def feed(operator: Operator, values: list[Any]) -> None:
    if values:
        operator.process_batch(values, [value[1] for value in values])


def results(recorder: Recorder) -> list[str]:
    return sorted(map(repr, recorder.values()))
