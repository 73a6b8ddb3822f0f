from __future__ import annotations

import pytest

from asyncstream.windowing.policies import (
    CountEviction,
    CountTriggerPolicy,
    Event,
    EvictionPolicy,
    Firing,
    TimeTriggerPolicy,
    TriggerPolicy,
    WatermarkCountEviction,
    WatermarkTimeEviction,
    WatermarkTimeTriggerPolicy,
    WindowManager,
)


class Told(WindowManager):
    """Notes (end, values) of each window, and the values that expire."""

    def __init__(self, eviction: EvictionPolicy, trigger: TriggerPolicy) -> None:
        super().__init__(eviction, trigger, self.on_window, self.on_expiry)
        self.windows: list[tuple[int, list[int]]] = []
        self.gone: list[int] = []

    def on_window(self, window: list[Event], new: list[Event], expired: list[Event], end_ms: int) -> None:
        self.windows.append((end_ms, [event.value for event in window]))

    def on_expiry(self, expired: list[Event]) -> None:
        self.gone += [event.value for event in expired]


@pytest.mark.parametrize("size", [1, 3, 300])
def test_looks_for_the_expired_a_hundred_events_from_the_one_that_fired(size: int) -> None:
    manager = Told(CountEviction(5), CountTriggerPolicy(120))
    for start in range(0, 219, size):
        values = list(range(start, min(start + size, 219)))
        manager.add(values, values, 0)
    # the window of the first 120 held 115 to 119; the event that fired it is the first of the next hundred
    assert [values for _, values in manager.windows] == [[115, 116, 117, 118, 119]]
    assert manager.gone == list(range(214))


def test_window_asked_for_does_not_take_the_first_of_the_slide_away() -> None:
    manager = Told(WatermarkTimeEviction(20), WatermarkTimeTriggerPolicy(10))
    manager.add([1, 2, 3], [3, 8, 15], 0)
    assert manager.fire(Firing(9), 0)
    manager.advance(20, 0)
    assert manager.windows == [(9, [1, 2]), (10, [1, 2]), (20, [1, 2, 3])]


def test_window_asked_for_leaves_a_count_length_only_what_it_did_not_show() -> None:
    manager = Told(CountEviction(5), TimeTriggerPolicy(10, only_new=True))
    manager.add([1, 2], [3, 4], 4)
    assert manager.fire(Firing(4), 4)
    manager.advance(11, 11)
    manager.add([3], [12], 12)
    manager.advance(21, 21)
    assert manager.windows == [(4, [1, 2]), (20, [1, 2, 3])]


def test_window_asked_for_beyond_the_next_end_leaves_that_one_what_is_up_to_it() -> None:
    manager = Told(WatermarkCountEviction(3), WatermarkTimeTriggerPolicy(10, only_new=True))
    manager.add([1, 2, 3, 4], [8, 9, 12, 13], 0)
    manager.fire(Firing(14), 0)
    manager.advance(14, 0)
    assert manager.windows == [(10, [1, 2])]
    assert manager.gone == []


def test_window_asked_for_beyond_the_next_end_does_not_have_that_one_fire_with_nothing_new() -> None:
    manager = Told(WatermarkCountEviction(3), WatermarkTimeTriggerPolicy(10, only_new=True))
    manager.add([1], [8], 0)
    manager.advance(14, 0)
    manager.add([2], [25], 0)
    manager.fire(Firing(25, count=1), 0)
    manager.advance(30, 0)
    assert manager.windows == [(10, [1]), (25, [1]), (30, [1, 2])]
