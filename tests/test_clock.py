from __future__ import annotations

import time

import pytest

from asyncstream import Clock, ManualClock, PipelineError, SystemClock
from asyncstream import clock as clock_module


def test_system_clock_tells_milliseconds_since_the_epoch() -> None:
    before = time.time_ns() // 1_000_000
    assert before <= SystemClock().now_ms() <= time.time_ns() // 1_000_000


def test_system_clock_does_not_run_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_module, "monotonic_seconds", lambda: 1.0)
    clock = SystemClock()
    shown = []
    for now in (5_000_000, 7_999_999, 3_000_000, 8_000_000):
        monkeypatch.setattr(time, "time_ns", lambda now=now: now)
        shown.append(clock.now_ms())
    assert shown == [5, 7, 7, 8]


def test_system_clock_that_was_set_back_goes_at_half_its_pace_until_it_has_caught_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Standing still, it would let no budget of a minute begin anew for an hour."""
    begun, hour, passed = 1_800_000_000, 3600.0, 0.0
    monkeypatch.setattr(clock_module, "monotonic_seconds", lambda: 50.0 + passed)
    monkeypatch.setattr(
        time, "time_ns", lambda: round((begun + passed - (hour if passed else 0.0)) * 1_000_000_000)
    )
    clock = SystemClock()
    assert clock.now_ms() == begun * 1000
    for now, expected in ((60.0, 30.0), (60.5, 30.25), (hour, hour / 2), (3 * hour, 2 * hour)):
        passed = now
        assert clock.now_ms() == round((begun + expected) * 1000)


def test_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(5)
    assert clock.now_ms() == clock.now_ms() == 5
    clock.set_ms(5)
    clock.set_ms(9)
    assert clock.now_ms() == 9


def test_manual_clock_does_not_run_backwards() -> None:
    clock = ManualClock(5)
    with pytest.raises(PipelineError, match="does not run backwards: it shows 5, got 4"):
        clock.set_ms(4)


def test_both_are_clocks() -> None:
    clocks: list[Clock] = [SystemClock(), ManualClock()]
    assert all(isinstance(clock.now_ms(), int) for clock in clocks)
