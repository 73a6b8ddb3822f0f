"""What a job says of elements that came too late and that nothing reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from asyncstream import Count, Pattern, Pipeline, PunctuatedWatermarks, TumblingWindows
from asyncstream.windowing import CountTrigger

STEPS: dict[str, Callable[[Any], Any]] = {
    "on a grid": lambda keyed: keyed.window(TumblingWindows(1)).aggregate(n=Count(), name="s"),
    "with a trigger": lambda keyed: (
        keyed.window(TumblingWindows(1)).trigger(CountTrigger(9)).collect(name="s")
    ),
    "pattern": lambda keyed: keyed.pattern(Pattern.begin("any", lambda at: True), name="s"),
}


def run(step: Callable[[Any], Any], *, reads: bool) -> None:
    pipeline = Pipeline("late")
    timed = pipeline.source([5_000, 1, 2, 6_000], name="in").event_time(
        lambda at: at, PunctuatedWatermarks(lambda at, timestamp: timestamp)
    )
    found = step(timed.key_by(lambda at: "a"))
    found.discard()
    if reads:
        found.late.discard()
    asyncio.run(pipeline.run())


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_the_first_one_that_is_dropped_is_told_of(step: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "asyncstream"):
        run(step, reads=False)
    (told,) = [record.getMessage() for record in caplog.records]
    assert "step 's' dropped an element with timestamp 1: it came too late" in told
    assert "late_dropped" in told
    assert ".late" in told


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_those_that_are_read_are_not(step: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "asyncstream"):
        run(step, reads=True)
    assert not caplog.records
