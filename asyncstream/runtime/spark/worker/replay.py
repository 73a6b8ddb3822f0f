"""
Event time that moves in a bounded job: elements come back in the order of the watermarks that held for them.

Each partition of an input has watermarks of its own, as its elements make them, and every element carries the
one that held for it (`MarkingExit`). A keyed step reads elements of many partitions, of each in order. They
are merged by their watermarks, and event time advances with them: so an element meets the watermark that it
met in its own partition, none is later than it was there, and between two elements of a key those timers fire
that fire embedded. Partitions that follow each other in time are read one after the other.

Envelopes come sorted by the watermark of their first element. One is open from there to its last element, and
only those that are open are in memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any, NamedTuple

from asyncstream.runtime.spark.observe import OBSERVED
from asyncstream.runtime.spark.wire.batches import Entering
from asyncstream.runtime.spark.wire.envelope import entering, unpack_marked

__all__ = ("Replay",)


class _Place(NamedTuple):
    """
    Where an element stands among those of all partitions: by the origin and sequence of its envelope, which
    no other has.
    """

    watermark: int
    origin: int
    sequence: int


class _Envelope:
    """One that is open: its elements from `start` on are still to come."""

    def __init__(self, route: int, payload: bytes) -> None:
        self.route = route
        self.start = 0
        self._payload: bytes | None = payload
        self._values: list[Any] = []
        self._timestamps: list[int | None] = []
        self._marks: list[int] = []

    def until(self, here: _Place, bound: _Place | None) -> Iterator[Entering]:
        """The elements before `bound`, those of one watermark together; the first is at `here`."""
        if self._payload is not None:  # unpacked when it is needed, and not while others go first
            self._values, self._timestamps, self._marks = unpack_marked(self._payload, here.watermark)
            self._payload = None
        marks = self._marks
        if bound is None:
            end = len(marks)
        else:
            find = bisect_right if here[1:] < bound[1:] else bisect_left
            end = find(marks, bound.watermark, self.start)
        if not marks:  # says how far event time has come, and nothing else
            yield Entering((self.route,), [], [], here.watermark)
        while self.start < end:
            start, watermark = self.start, marks[self.start]
            self.start = bisect_right(marks, watermark, start, end)
            values, timestamps = self._values[start : self.start], self._timestamps[start : self.start]
            yield Entering((self.route,), values, timestamps, watermark)

    def next_watermark(self) -> int | None:
        """That of the next element, if there is one."""
        return self._marks[self.start] if self.start < len(self._marks) else None


class Replay:
    """Merges envelopes, which must be added in the order of their places."""

    def __init__(self) -> None:
        self._open: list[tuple[_Place, _Envelope]] = []

    def add(
        self, watermark: int, origin: int, sequence: int, route: int, payload: bytes
    ) -> Iterator[Entering]:
        """Open an envelope; gives the elements that come before it."""
        if route < OBSERVED:  # what steps remember comes before all elements
            yield from entering(route, payload)
            return
        place = _Place(watermark, origin, sequence)
        yield from self._until(place)
        heappush(self._open, (place, _Envelope(route, payload)))

    def rest(self) -> Iterator[Entering]:
        """The elements that are left."""
        return self._until(None)

    def _until(self, end: _Place | None) -> Iterator[Entering]:
        while self._open and (end is None or self._open[0][0] < end):
            here, envelope = heappop(self._open)
            bound = self._open[0][0] if self._open else end
            if end is not None and bound is not None:
                bound = min(bound, end)
            yield from envelope.until(here, bound)
            watermark = envelope.next_watermark()
            if watermark is not None:
                heappush(self._open, (here._replace(watermark=watermark), envelope))
