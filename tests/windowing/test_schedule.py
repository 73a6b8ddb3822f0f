"""When windows of panes fire, and when what they hold goes."""

from __future__ import annotations

import math

from asyncstream.windowing.schedule import CleanUp, Schedule


def test_windows_fire_in_the_order_of_their_ends_and_each_once() -> None:
    schedule = Schedule(0)
    for window in ((10, 20), (0, 10), (10, 20)):
        schedule.arm(window)
    assert schedule.due_ms() == 9
    assert [schedule.take(19), schedule.take(19), schedule.take(19)] == [(0, 10), (10, 20), None]
    assert not schedule.armed


def test_nothing_is_due_before_its_time() -> None:
    schedule = Schedule(5)
    schedule.arm((0, 10))
    schedule.keep_slice((0, 5), 10)
    assert schedule.take(8) is None
    assert not schedule.fires_by(8)
    assert schedule.fires_by(9)
    assert schedule.take(9) == (0, 10)
    assert schedule.take(13) is None
    assert schedule.take(14) == CleanUp(14, (0, 5), is_slice=True)
    assert schedule.due_ms() is None


def test_without_lateness_a_slice_goes_when_its_last_window_has_fired() -> None:
    schedule = Schedule(0)
    schedule.keep_slice((0, 10), 10)
    schedule.arm((0, 10))
    assert [schedule.take(9), schedule.take(9)] == [(0, 10), CleanUp(9, (0, 10), is_slice=True)]


def test_with_lateness_what_is_over_goes_before_windows_fire_at_that_time() -> None:
    schedule = Schedule(10)
    schedule.keep_window((0, 10))
    schedule.arm((10, 20))
    assert [schedule.take(19), schedule.take(19)] == [CleanUp(19, (0, 10), is_slice=False), (10, 20)]


def test_at_the_end_of_time_all_is_due_and_then_nothing() -> None:
    schedule = Schedule(10)
    schedule.arm((0, 10))
    schedule.keep_window((0, 10))
    assert [schedule.take(math.inf) for _ in range(3)] == [
        (0, 10),
        CleanUp(19, (0, 10), is_slice=False),
        None,
    ]
