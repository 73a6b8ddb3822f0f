"""When windows of panes fire, and when what they hold goes."""

from __future__ import annotations

import math

from asyncstream.windowing.pane_schedule import Schedule


def taken(schedule: Schedule, watermark: float) -> tuple[str, tuple[int, int]] | None:
    due = schedule.take(watermark)
    return None if due is None else (due.what, due.place)


def test_windows_fire_in_the_order_of_their_ends_and_each_once() -> None:
    schedule = Schedule(0)
    for window in ((10, 20), (0, 10), (10, 20)):
        schedule.arm(window)
    assert schedule.due_ms() == 9
    assert [taken(schedule, 19) for _ in range(3)] == [("fire", (0, 10)), ("fire", (10, 20)), None]
    assert not schedule.armed


def test_nothing_is_due_before_its_time() -> None:
    schedule = Schedule(5)
    schedule.arm((0, 10))
    schedule.keep((0, 5), (0, 10), "slice")
    assert schedule.take(8) is None
    assert taken(schedule, 9) == ("fire", (0, 10))
    assert schedule.take(13) is None
    assert taken(schedule, 14) == ("slice", (0, 5))
    assert schedule.due_ms() is None


def test_without_lateness_a_slice_goes_when_its_last_window_has_fired() -> None:
    schedule = Schedule(0)
    schedule.keep((0, 10), (0, 10), "slice")
    schedule.arm((0, 10))
    assert [taken(schedule, 9) for _ in range(2)] == [("fire", (0, 10)), ("slice", (0, 10))]


def test_with_lateness_what_is_over_goes_before_windows_fire_at_that_time() -> None:
    schedule = Schedule(10)
    schedule.keep((0, 10), (0, 10), "window")
    schedule.arm((10, 20))
    assert [taken(schedule, 19) for _ in range(2)] == [("window", (0, 10)), ("fire", (10, 20))]


def test_at_the_end_of_time_all_is_due_and_then_nothing() -> None:
    schedule = Schedule(10)
    schedule.arm((0, 10))
    schedule.keep((0, 10), (0, 10), "window")
    assert [taken(schedule, math.inf) for _ in range(3)] == [
        ("fire", (0, 10)),
        ("window", (0, 10)),
        None,
    ]
