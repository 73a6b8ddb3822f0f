"""
Calls that wait for leave to begin, first come first served: of a limit, a rate, a breaker, a budget.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from asyncstream.aside import in_its_loop

__all__ = ("Queued", "Waiting")

Need = TypeVar("Need")
Leave = TypeVar("Leave")


class Waiting(deque[tuple[asyncio.Future[Leave], Need]], Generic[Leave, Need]):
    """
    The *place* of each, a future that is told when it may begin, and what it needs. Places whose callers were
    cancelled are done, and passed over, as are those of an event loop that was closed; behind one that waits
    for long, they do not pile up.
    """

    _gone = 0  # who left since the last time that there were too many

    def join(self, need: Need, *, in_front: bool = False) -> asyncio.Future[Leave]:
        """A place behind all others, or before them."""
        place: asyncio.Future[Leave] = get_running_loop().create_future()
        (self.appendleft if in_front else self.append)((place, need))
        return place

    async def turn(self, place: asyncio.Future[Leave], give_back: Callable[[Leave], object]) -> Leave:
        """
        Wait for the leave to begin.

        Args:
            give_back: takes the leave of a caller who was cancelled when it had just been given.
        """
        try:
            return await place
        except BaseException:  # also one that whoever drives the call throws in here
            if in_its_loop(place):
                place.cancel()
                if self.left(place):
                    give_back(place.result())
            raise

    def left(self, place: asyncio.Future[Leave]) -> bool:
        """
        The caller with this place was cancelled; whether it had been let in, in the same pass of the loop.
        """
        self._gone += 1
        if self._gone > len(self) // 2 + 64:  # now and then, so O(1) a caller
            kept = [one for one in self if not one[0].done()]
            self.clear()
            self.extend(kept)
            self._gone = 0
        return place.done() and not place.cancelled() and place.exception() is None

    def number(self) -> int:
        """How many wait now."""
        return sum(_waits(place) for place, _ in self)

    def first(self) -> Need | None:
        """What the first of them needs; None: nobody waits."""
        while self:
            place, need = self[0]
            if _waits(place):
                return need
            self.popleft()
        return None

    def is_first(self, place: asyncio.Future[Leave]) -> bool:
        """Whether nobody waits before this one: what was to let others in may have ended with their loop."""
        return self.first() is not None and self[0][0] is place

    def let_in(self, leave: Leave) -> None:
        """Have the first of them begin; `first` has just told of it."""
        self.popleft()[0].set_result(leave)

    def fail(self, error: Exception) -> None:
        """Raise an error in all of them."""
        while self.first() is not None:
            self.popleft()[0].set_exception(error)


class Queued:
    """Base of what calls wait for, in `_queue`."""

    _queue: Waiting[Any, Any]

    def waiting(self) -> int:
        """How many calls wait now."""
        return self._queue.number()


def _waits(place: asyncio.Future[Any]) -> bool:
    """Whether a caller waits there still."""
    return not place.done() and not place.get_loop().is_closed()
