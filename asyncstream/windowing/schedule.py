"""
What panes have to do when event time gets there: windows fire, and slices and windows go.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import NamedTuple

from asyncstream.windowing.slices import Span, max_timestamp

__all__ = ("CleanUp", "Schedule")


class CleanUp(NamedTuple):
    """What goes, and the watermark with which it does: a slice, or a window that is kept whole."""

    at_ms: int
    place: Span
    is_slice: bool


class Schedule:
    """
    Gives what is due, in the order of time.

    Args:
        lateness_ms: for how long a window's contents stay when it has fired. What goes at the time at which a
            window fires goes ahead of that; without lateness, behind it.

    Attributes:
        armed: the windows that are to fire.
    """

    def __init__(self, lateness_ms: int) -> None:
        self._lateness_ms = lateness_ms
        self.armed: set[Span] = set()
        self._to_fire: list[Span] = []  # windows, as (end, start)
        self._to_clean: list[CleanUp] = []

    def arm(self, window: Span) -> None:
        """Have a window fire at its end."""
        if window not in self.armed:
            self.armed.add(window)
            heappush(self._to_fire, (window[1], window[0]))

    def keep_slice(self, place: Span, last_end: int) -> None:
        """Have a slice go with the last of its windows, which ends at `last_end`."""
        heappush(self._to_clean, CleanUp(last_end - 1 + self._lateness_ms, place, is_slice=True))

    def keep_window(self, window: Span) -> None:
        """Have a window go that is kept whole."""
        heappush(self._to_clean, CleanUp(max_timestamp(window) + self._lateness_ms, window, is_slice=False))

    def due_ms(self) -> int | None:
        """The watermark with which something is due; None: nothing is."""
        due = [end - 1 for end, _ in self._to_fire[:1]] + [first.at_ms for first in self._to_clean[:1]]
        return min(due, default=None)

    def fires_by(self, watermark: float) -> bool:
        """Whether a window is to fire by this watermark."""
        return bool(self._to_fire) and self._to_fire[0][0] - 1 <= watermark

    def take(self, watermark: float) -> Span | CleanUp | None:
        """What is due next by this watermark: a window to fire, or what is to go; None: nothing."""
        to_fire, to_clean = self._to_fire, self._to_clean
        if not to_fire and not to_clean:
            return None
        end_ms: float = to_fire[0][0] - 1 if to_fire else math.inf
        clean_ms: float = to_clean[0].at_ms if to_clean else math.inf
        if min(end_ms, clean_ms) > watermark:
            return None
        if end_ms < clean_ms or (end_ms == clean_ms and not self._lateness_ms):
            end, start = heappop(to_fire)
            self.armed.discard((start, end))
            return start, end
        return heappop(to_clean)
