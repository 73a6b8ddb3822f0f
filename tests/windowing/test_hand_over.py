"""Operators that are put away, pickled, and brought back by another one of their kind."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.codec import JsonCodec
from asyncstream.operators.base import Operator
from asyncstream.windowing import (
    AfterWatermark,
    Collect,
    Count,
    CountDistinct,
    CountTrigger,
    SessionWindows,
    SlidingWindows,
    Sum,
    TumblingWindows,
)
from asyncstream.windowing.aggregates import Aggregates
from asyncstream.windowing.plan import WindowPlan
from tests.operators.recorder import RESTORED, record
from tests.state.operators import ELEMENTS, OPERATORS, feed, results, windows

SETS = Aggregates(n=Count(), times=CountDistinct(lambda value: value[1]), values=Collect())

TOTAL = Sum(lambda value: value[1] / 8)
"""Of floats, with which the order of elements matters."""

TWO = CountTrigger(2)

ALL: dict[str, Callable[[], Operator]] = {
    **OPERATORS,
    "tumbling, saved": windows(WindowPlan(TumblingWindows(0.01), aggregate=SETS, allowed_lateness_ms=10)),
    "sliding, late": windows(WindowPlan(SlidingWindows(0.02, 0.005), aggregate=SETS, allowed_lateness_ms=10)),
    "sliding, in order": windows(WindowPlan(SlidingWindows(0.02, 0.005), aggregate=TOTAL)),
    "sliding, apart": windows(WindowPlan(SlidingWindows(0.005, 0.01), aggregate=SETS)),
    "sliding, early and late": windows(
        WindowPlan(SlidingWindows(0.02, 0.005), AfterWatermark(early=TWO, late=TWO), None, 10, TOTAL)
    ),
    "session, late": windows(WindowPlan(SessionWindows(0.005), aggregate=SETS, allowed_lateness_ms=10)),
}


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
@given(parts=st.lists(st.tuples(ELEMENTS, st.integers(0, 60)), max_size=4))
def test_operator_goes_on_in_place_of_another(
    make: Callable[[], Operator], parts: list[tuple[list[Any], int]]
) -> None:
    whole = make()
    recorder = record(whole)
    found: list[str] = []
    state: bytes | None = None
    watermark = -1
    for elements, time in [*parts, ([], 200)]:
        operator = make()
        own = record(operator)
        if state is not None:
            operator.advance_watermark(watermark)
            operator.restore(pickle.loads(state))
        watermark = max(watermark, time)
        for each in (whole, operator):
            feed(each, elements)
            each.advance_watermark(watermark)
        found += results(own)
        due_ms = operator.due_ms()
        timers = operator.snapshot()["tables"].get("timers/event") if "tables" in operator.snapshot() else ()
        if timers:
            assert due_ms is not None
            assert due_ms <= min(timestamp for timestamp, _ in timers)
        state = pickle.dumps(operator.snapshot())
    assert sorted(found) == sorted(results(recorder))


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
@given(before=ELEMENTS, after=ELEMENTS, watermark=st.integers(0, 60))
def test_restored_operator_knows_again_what_is_late(
    make: Callable[[], Operator], before: list[Any], after: list[Any], watermark: int
) -> None:
    whole, restored = make(), make()
    recorder, own = record(whole), record(restored)
    feed(whole, before)
    whole.advance_watermark(watermark)
    restored.restore(JsonCodec().decode(JsonCodec().encode(whole.snapshot())))
    restored.resume()
    restored.restore_watermark(watermark)
    assert own.seen == [(RESTORED, watermark)]
    fired = len(recorder.values())
    for each in (whole, restored):
        feed(each, after)
        each.advance_watermark(200)
    assert sorted(results(own)) == sorted(map(repr, recorder.values()[fired:]))
