"""
Which keys have windows that may end by some time: those alone are looked at, however many keys there are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from heapq import heappop, heappush
from operator import itemgetter
from typing import TypeAlias

__all__ = ("Schedule",)

_Entry: TypeAlias = tuple[int, int, Hashable]
"""Time, place, key."""


class Schedule:
    """
    Keys in the order in which they came, and for each the earliest time at which a window of it may end.

    A time may be too early, not too late: a key whose time has moved away is looked at in vain, once. So
    nothing is taken out of the middle of the heap. All this follows from the windows, and is not kept.

    Attributes:
        due: the keys to look at, in their order; whoever does takes them out, and puts them again.
    """

    def __init__(self) -> None:
        self.due: OrderedDict[Hashable, None] = OrderedDict()
        self._due_ms = 0
        self._places: dict[Hashable, int] = {}
        self._came = 0
        self._times: dict[Hashable, int] = {}  # of keys of which a window may end
        self._heap: list[_Entry] = []  # those of another time than that are gone

    def put(self, key: Hashable, time_ms: int | None) -> None:
        """A window of `key` may end at a time; None: none without a further element."""
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = self._came
            self._came += 1
        if time_ms is not None and time_ms < self._times.get(key, time_ms + 1):
            self._times[key] = time_ms
            heappush(self._heap, (time_ms, place, key))

    def reach(self, time_ms: int) -> None:
        """Keys of which a window may end by a time are due; of those that were before, some may still be."""
        found: list[_Entry] = []
        while self._heap and self._heap[0][0] <= time_ms:
            time, place, key = entry = heappop(self._heap)
            if self._times.get(key) == time and self._places[key] == place:
                del self._times[key]
                found.append(entry)
        found.sort(key=itemgetter(1))
        self.due.update((key, None) for _, _, key in found)
        self._due_ms = time_ms

    def next_ms(self) -> int | None:
        """The earliest time at which a window may end."""
        if self.due:
            return self._due_ms
        return self._heap[0][0] if self._heap else None

    def forget(self, key: Hashable) -> None:
        """The key is gone; should it come again, it is the last."""
        del self._places[key]
        self._times.pop(key, None)
