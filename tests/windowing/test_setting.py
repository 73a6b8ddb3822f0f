"""Settings of windows are shown as they are written, or nearly so."""

from __future__ import annotations

from typing import Any

import pytest

from asyncstream import (
    Collect,
    Count,
    CumulativeWindows,
    DynamicSessionWindows,
    GlobalWindows,
    Max,
    Quantile,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
)
from asyncstream.windowing import Aggregates, CountEvictor, CountTrigger, PurgingTrigger, Reduce, TimeEvictor

SHOWN: list[tuple[Any, str]] = [
    (TumblingWindows(3600), "TumblingWindows(size=1:00:00)"),
    (
        TumblingWindows(60, offset=5, time="processing"),
        "TumblingWindows(time='processing', size=0:01:00, offset=0:00:05)",
    ),
    (SlidingWindows(60, 10), "SlidingWindows(size=0:01:00, slide=0:00:10)"),
    (CumulativeWindows(60, 10), "CumulativeWindows(size=0:01:00, step=0:00:10)"),
    (SessionWindows(60), "SessionWindows(gap=0:01:00)"),
    (DynamicSessionWindows(len), "DynamicSessionWindows(gap_of=len)"),
    (GlobalWindows(), "GlobalWindows()"),
    (PurgingTrigger(CountTrigger(5)), "PurgingTrigger(of=CountTrigger(n=5))"),
    (CountEvictor(5), "CountEvictor(when='before', n=5)"),
    (TimeEvictor(60, "after"), "TimeEvictor(when='after', size=0:01:00)"),
    (Count(), "Count()"),
    (Max("price"), "Max(of='price')"),
    (Collect(len), "Collect(of=len)"),
    (Quantile(0.5, "price"), "Quantile(of='price', share=0.5, k=200)"),
    (Reduce(max), "Reduce(reduce=max)"),
    (Aggregates(n=Count(), dear=Max("price")), "Aggregates(n=Count(), dear=Max(of='price'))"),
]


@pytest.mark.parametrize(("setting", "shown"), SHOWN, ids=[shown for _, shown in SHOWN])
def test_setting_is_shown_as_it_is_written(setting: Any, shown: str) -> None:
    assert repr(setting) == shown


class Unclear:
    """Neither true nor false, as an array is."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")

    def __repr__(self) -> str:
        return "array([1, 2])"


def test_an_attribute_need_not_be_true_or_false() -> None:
    trigger = CountTrigger(5)
    vars(trigger)["weights"] = Unclear()
    assert repr(trigger) == "CountTrigger(n=5, weights=array([1, 2]))"
