from __future__ import annotations

import time

import pytest

from asyncstream import Clock, ManualClock, PipelineError, SystemClock


def test_system_clock_tells_milliseconds_since_the_epoch() -> None:
    before = time.time_ns() // 1_000_000
    assert before <= SystemClock().now_ms() <= time.time_ns() // 1_000_000


def test_system_clock_does_not_run_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    shown = []
    for now in (5_000_000, 7_999_999, 3_000_000, 8_000_000):
        monkeypatch.setattr(time, "time_ns", lambda now=now: now)
        shown.append(clock.now_ms())
    assert shown == [5, 7, 7, 8]


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
