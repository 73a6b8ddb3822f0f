"""
Which windows of one key are open, where windows that touch become one.

After Flink's MergingWindowSet: each open window knows its *state window*, the name under which its contents
are kept. When a window grows its contents stay where they are and only its name changes, so a session of a
million elements that grows by one copies nothing. Open windows never touch each other, so sorted by start
they are sorted by end as well, and what a new one touches is found by bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from asyncstream.windowing.windows import TimeWindow

__all__ = ("Merge", "MergingWindowSet")

_END = attrgetter("end_ms")


class Merge(NamedTuple):
    """
    What adding a window did.

    Attributes:
        window: the open window that holds the element now.
        merged: the windows that are in it and are open no more, by start; empty if nothing changed.
        state_windows: where the contents of those are, in the same order.
    """

    window: TimeWindow
    merged: list[TimeWindow]
    state_windows: list[TimeWindow]


class MergingWindowSet:
    """
    The open windows of one key, each with its state window.

    Args:
        pairs: windows with their state windows, to go on from.
    """

    __slots__ = ("_state_windows", "_windows")

    def __init__(self, pairs: Iterable[tuple[TimeWindow, TimeWindow]] = ()) -> None:
        self._state_windows = dict(pairs)
        self._windows = sorted(self._state_windows)

    def add(self, window: TimeWindow) -> Merge:
        """
        Open `window`, or merge it with those that it touches.

        After a merge the contents are taken to be at the first of `state_windows`; `move` says otherwise.
        """
        windows = self._windows
        first = bisect_left(windows, window.start_ms, key=_END)
        past = first
        cover = window
        while past < len(windows) and windows[past].start_ms <= window.end_ms:
            cover = cover.cover(windows[past])
            past += 1
        if past == first:
            windows.insert(first, window)
            self._state_windows[window] = window
            return Merge(window, [], [])
        if past == first + 1 and cover == windows[first]:
            return Merge(cover, [], [])
        merged = windows[first:past]
        state_windows = [self._state_windows.pop(old) for old in merged]
        windows[first:past] = [cover]
        self._state_windows[cover] = state_windows[0]
        return Merge(cover, merged, state_windows)

    def state_window(self, window: TimeWindow) -> TimeWindow | None:
        """Where the contents of an open window are; None if it is not open, having merged or gone."""
        return self._state_windows.get(window)

    def move(self, window: TimeWindow, state_window: TimeWindow) -> None:
        """Have the contents of `window` elsewhere."""
        self._state_windows[window] = state_window

    def retire(self, window: TimeWindow) -> None:
        """Close an open window."""
        del self._state_windows[window]
        del self._windows[bisect_left(self._windows, window)]

    def __deepcopy__(self, memo: Any) -> MergingWindowSet:
        return type(self)(self._state_windows.items())

    def __iter__(self) -> Iterator[tuple[TimeWindow, TimeWindow]]:
        """(window, state window) by start."""
        for window in self._windows:
            yield window, self._state_windows[window]

    def __len__(self) -> int:
        return len(self._windows)
