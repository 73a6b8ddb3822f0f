"""A capture is a snapshot that is made later: the same, whatever happens in between."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.operators.base import OperatorContext
from asyncstream.windowing import (
    Aggregates,
    Count,
    SessionWindows,
    SlidingWindows,
    Sum,
    TumblingWindows,
    WindowOperator,
    WindowPlan,
    window_operator,
)

ASSIGNERS = {
    "tumbling": TumblingWindows(0.01),
    "sliding": SlidingWindows(0.02, 0.005),
    "sparse": SlidingWindows(0.005, 0.02),
    "session": SessionWindows(0.004),
}


def key_of(value: Any) -> Any:
    return value[0]


def of_event(value: Any) -> Any:
    return value[1]


def operator(kind: str) -> Any:
    aggregate = Aggregates(n=Count(), total=Sum(of_event))
    plan = WindowPlan(ASSIGNERS[kind.removeprefix("general ")], aggregate=aggregate, allowed_lateness_ms=7)
    make = WindowOperator if kind.startswith("general ") else window_operator
    made = make(key_of, plan)
    made.open(OperatorContext())
    return made


EVENTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 100)), min_size=1)


def feed(to: Any, events: list[Any]) -> None:
    highest = 0
    for key, value, timestamp in events:
        to.process_batch([(key, value)], [timestamp])
        if value % 3 == 0:
            highest = max(highest, timestamp - 5)
            to.advance_watermark(highest)


@pytest.mark.parametrize("kind", [*ASSIGNERS, *(f"general {kind}" for kind in ASSIGNERS)])
@given(EVENTS, EVENTS, st.booleans())
def test_capture_gives_the_snapshot_of_its_moment(
    kind: str, before: list[Any], after: list[Any], restored: bool
) -> None:
    subject = operator(kind)
    feed(subject, before)
    if restored:
        state = subject.snapshot()
        subject = operator(kind)
        subject.restore(state)
        feed(subject, before[:3])
    expected, captured = subject.snapshot(), subject.capture()
    assert not captured.is_live
    feed(subject, after)
    subject.advance_watermark(200)
    assert captured.thaw() == expected


def test_key_that_cannot_be_copied_is_captured_all_the_same() -> None:
    subject = operator("tumbling")
    key = ValueError("odd, but hashable")
    subject.process_batch([(key, 1)], [5])
    captured = subject.capture()
    assert captured.thaw()["tables"]["slices"] == [[(0, 10), [[key, [1, 1]]]]]
