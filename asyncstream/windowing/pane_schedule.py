"""
What panes have to do when event time gets there: windows fire, and slices and windows go.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Literal, NamedTuple

from asyncstream.windowing.windows import Span, max_timestamp

__all__ = ("Due", "Schedule")


class Due(NamedTuple):
    """
    What is to be done with which watermark.

    Attributes:
        at_ms: the watermark.
        turn: when, among what is due with that.
        place: a window, or a slice.
        what: whether a window fires, or a slice goes, or a window that is kept whole.
    """

    at_ms: int
    turn: int
    place: Span
    what: Literal["fire", "slice", "window"]


class Schedule:
    """
    Gives what is due, in the order of time.

    Args:
        lateness_ms: for how long a window's contents stay when it has fired. What goes at the time at which a
            window fires goes ahead of that; without lateness, behind it.

    Attributes:
        lateness_ms: the same.
        armed: the windows that are to fire.
    """

    def __init__(self, lateness_ms: int) -> None:
        self.lateness_ms = lateness_ms
        self.armed: set[Span] = set()
        self._heap: list[Due] = []

    def arm(self, window: Span) -> None:
        """Have a window fire at its end."""
        if window not in self.armed:
            self.armed.add(window)
            heappush(self._heap, Due(max_timestamp(window), 1 if self.lateness_ms else -1, window, "fire"))

    def keep(self, place: Span, last: Span, what: Literal["slice", "window"]) -> None:
        """Have a slice go with the last of its windows, or a window that is kept whole."""
        heappush(self._heap, Due(max_timestamp(last) + self.lateness_ms, 0, place, what))

    def due_ms(self) -> int | None:
        """The watermark with which something is due; None: nothing is."""
        return self._heap[0].at_ms if self._heap else None

    def fires_by(self, watermark: float) -> bool:
        """Whether a window is to fire with this watermark."""
        first_ms = self.due_ms()
        if first_ms is None or first_ms > watermark:
            return False
        return any(max_timestamp(window) <= watermark for window in self.armed)

    def take(self, watermark: float) -> Due | None:
        """What is due next by this watermark; None: nothing."""
        if not self._heap or self._heap[0].at_ms > watermark:
            return None
        due = heappop(self._heap)
        if due.what == "fire":
            self.armed.discard(due.place)
        return due
