"""
Keys by the times at which something is to be done about their sessions.

Such calendars follow from the sessions and are not kept. Where sessions may be more than memory holds, the
keys wait in tables like timers, which may be elsewhere too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, Final

from asyncstream.state.timer_queue import TimerQueue

__all__ = ("Calendar", "Waiting")

_PAGE_MS: Final = 32
"""Event time that a page spans, a power of two; where much is to be done, watermarks are further apart."""

_TIME = itemgetter(0)


class Calendar:
    """
    As a `TimerQueue`, in memory.

    Times that differ in the lowest bits only share a page, in which they are in no order: to take all of it
    costs a fraction of taking time after time from a heap. A page that has come in part is torn up into pages
    of one time each.
    """

    __slots__ = ("_lasts", "_pages", "_torn")

    def __init__(self) -> None:
        self._pages: dict[int, list[tuple[int, Any]]] = {}  # by the last time that they may have
        self._lasts: list[int] = []  # a heap
        self._torn: float = -math.inf  # up to this time, pages have one time each

    def register(self, time_ms: int, key: Any) -> None:
        last_ms = time_ms | _PAGE_MS - 1
        if last_ms <= self._torn:
            last_ms = time_ms
        page = self._pages.get(last_ms)
        if page is None:
            self._pages[last_ms] = [(time_ms, key)]
            heappush(self._lasts, last_ms)
        else:
            page.append((time_ms, key))

    def fill(self, keys: Iterable[tuple[int, Any]]) -> None:
        for time_ms, key in keys:
            self.register(time_ms, key)

    def pop(self, until: float) -> tuple[int, list[tuple[int, Any]]] | None:
        """
        The earliest times up to and including `until`, with their keys, in no order, and the time up to which
        these are all that there are; they are gone then.
        """
        lasts = self._lasts
        if lasts and self._torn < lasts[0] and until < lasts[0] < until + _PAGE_MS:
            self._torn = heappop(lasts)
            self.fill(self._pages.pop(self._torn))
        if not lasts or lasts[0] > until:
            return None
        last_ms = heappop(lasts)
        return last_ms, self._pages.pop(last_ms)

    def earliest(self) -> int | None:
        return min(self._pages[self._lasts[0]], key=_TIME)[0] if self._lasts else None

    def clear(self) -> None:
        self._lasts.clear()
        self._pages.clear()
        self._torn = -math.inf

    def rebuilding(self) -> Iterator[None]:
        """It keeps nothing in a table."""
        return iter(())


@dataclass(slots=True)
class Waiting:
    """
    What follows from sessions.

    Attributes:
        to_fire, to_clean: the keys of those that are armed, and of those that have fired.
        open: how many there are.
    """

    to_fire: Calendar | TimerQueue
    to_clean: Calendar | TimerQueue
    open: int = 0
