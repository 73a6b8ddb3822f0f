"""
Which slices windows are made of.

Time is cut into *slices* wherever a window starts or ends, so all elements of a slice are in the same
windows, and a window is a run of whole slices. Windows that do not overlap are slices themselves. Sliding
ones have a slice for each slide, or two where the size is no multiple of the slide. (Slices as long as the
greatest common divisor of both were more, without bound: 10,800,000 in 3 h by 1 h + 1 ms.)

Slices and windows are plain tuples here, (start, end) in milliseconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import Any, Final, TypeAlias

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.errors import InternalError
from asyncstream.state.rows import Rows
from asyncstream.windowing.assigners import (
    CumulativeWindows,
    GlobalWindows,
    SlidingWindows,
    TumblingWindows,
    WindowAssigner,
)

__all__ = ("SliceRows", "Slicing", "Span", "has_slices", "max_timestamp", "slicing_of")

Span: TypeAlias = tuple[int, int]
"""The first millisecond in it, and the first one after it."""


def max_timestamp(span: Span) -> int:
    """The last millisecond in it; a window fires when event time comes to that."""
    return span[1] - 1


_SLICES_WITH_ROWS: Final = 4
"""As many as elements out of order alternate between."""


class Slicing(ABC):
    """
    How some windows are cut into slices, no two of which end at the same time. Windows that are disjoint are
    one slice each.
    """

    is_disjoint: bool

    @abstractmethod
    def slice_at(self, timestamp: int) -> Span:
        """The slice that a timestamp lies in."""

    @abstractmethod
    def windows_of(self, start: int) -> Collection[Span]:
        """The windows that the slice at `start` is in, in the order in which they are assigned."""

    @abstractmethod
    def last_end(self, start: int) -> int:
        """The end of the last window that the slice at `start` is in."""

    @abstractmethod
    def starts_in(self, window: Span, known: Collection[int]) -> Iterable[int]:
        """The starts of the slices of a window, by time; perhaps of those only that are `known`."""


class _Hopping(Slicing):
    """Tumbling and sliding windows."""

    def __init__(self, size_ms: int, slide_ms: int, offset_ms: int) -> None:
        self._size_ms, self._slide_ms, self._offset_ms = size_ms, slide_ms, offset_ms
        # from a window's start to the next end of another; 0 if they fall together
        self._cut_ms = size_ms % slide_ms
        self.is_disjoint = slide_ms >= size_ms

    def slice_at(self, timestamp: int) -> Span:
        start = timestamp - (timestamp - self._offset_ms) % self._slide_ms
        if not self._cut_ms:
            return start, start + self._slide_ms
        cut = start + self._cut_ms
        return (start, cut) if timestamp < cut else (cut, start + self._slide_ms)

    def windows_of(self, start: int) -> Collection[Span]:
        size = self._size_ms
        return [(first, first + size) for first in range(self._newest(start), start - size, -self._slide_ms)]

    def last_end(self, start: int) -> int:
        return self._newest(start) + self._size_ms

    def starts_in(self, window: Span, known: Collection[int]) -> Iterable[int]:
        first, end = window
        if len(known) < self._size_ms // self._slide_ms:
            return sorted(start for start in known if first <= start < end)
        starts: Iterable[int] = range(first, end, self._slide_ms)
        if self._cut_ms:
            starts = chain.from_iterable((start, start + self._cut_ms) for start in starts)
        return (start for start in starts if start < end)

    def _newest(self, start: int) -> int:
        return start - (start - self._offset_ms) % self._slide_ms


class _Cumulative(Slicing):
    """Windows that start together and end a step apart."""

    is_disjoint = False

    def __init__(self, assigner: CumulativeWindows) -> None:
        self._size_ms, self._step_ms = assigner.size_ms, assigner.step_ms
        self._offset_ms = assigner.offset_ms

    def slice_at(self, timestamp: int) -> Span:
        start = timestamp - (timestamp - self._offset_ms) % self._step_ms
        return start, start + self._step_ms

    def windows_of(self, start: int) -> Collection[Span]:
        first = self._first(start)
        return [
            (first, end) for end in range(start + self._step_ms, first + self._size_ms + 1, self._step_ms)
        ]

    def last_end(self, start: int) -> int:
        return self._first(start) + self._size_ms

    def starts_in(self, window: Span, known: Collection[int]) -> Iterable[int]:
        return range(*window, self._step_ms)

    def _first(self, start: int) -> int:
        return start - (start - self._offset_ms) % self._size_ms


class _Endless(Slicing):
    """The global window: one slice."""

    is_disjoint = True

    def slice_at(self, timestamp: int) -> Span:
        return MIN_TIMESTAMP, MAX_TIMESTAMP + 1

    def windows_of(self, start: int) -> Collection[Any]:
        return [()]

    def last_end(self, start: int) -> int:
        return MAX_TIMESTAMP + 1

    def starts_in(self, window: Span, known: Collection[int]) -> Iterable[int]:
        return known


_SLICINGS: Final[dict[type, Callable[[Any], Slicing]]] = {
    TumblingWindows: lambda of: _Hopping(of.size_ms, of.size_ms, of.offset_ms),
    SlidingWindows: lambda of: _Hopping(of.size_ms, of.slide_ms, of.offset_ms),
    CumulativeWindows: _Cumulative,
    GlobalWindows: lambda of: _Endless(),
}


def has_slices(assigner: WindowAssigner) -> bool:
    """
    Whether the windows of an assigner are made of slices.

    A subclass may assign otherwise, and the first element is still to say where staggered windows begin.
    """
    return type(assigner) in _SLICINGS and not getattr(assigner, "stagger", False)


def slicing_of(assigner: WindowAssigner) -> Slicing:
    """How the windows of an assigner are cut, which has slices."""
    if not has_slices(assigner):
        raise InternalError(f"{type(assigner).__name__} has no slices")
    return _SLICINGS[type(assigner)](assigner)


class SliceRows:
    """
    Accumulators by slice and key: for each window of the slice that of the key, in one row.

    So an element is added to all of its windows in one loop, without a look at any of them. A row is good as
    long as its accumulators are where they were found.
    """

    __slots__ = ("_slices",)

    def __init__(self) -> None:
        self._slices: dict[Span, Rows] = {}

    def of(self, place: Span) -> Rows:
        """The rows of a slice by key, to be read and written."""
        rows = self._slices.get(place)
        if rows is None:
            if len(self._slices) == _SLICES_WITH_ROWS:
                del self._slices[next(iter(self._slices))]
            rows = self._slices[place] = {}
        return rows

    def forget(self, key: Any) -> None:
        """Have no rows of a key."""
        for rows in self._slices.values():
            rows.pop(key, None)

    def forget_until(self, time_ms: float) -> None:
        """Have no rows of slices that have ended by then."""
        if self._slices:
            self._slices = {
                place: rows for place, rows in self._slices.items() if max_timestamp(place) > time_ms
            }

    def clear(self) -> None:
        """Have no rows."""
        self._slices.clear()
