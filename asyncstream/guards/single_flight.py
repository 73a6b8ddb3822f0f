"""
Single flight: calls with equal keys that overlap are one call.

The call belongs to none of those who wait for it: it is a task of its own, and each of them waits on a
future of its own. A caller that is cancelled or timed out leaves, and the others do not notice. The last to
leave cancels the call and sees it end, so that no call runs without a caller; if it is cancelled once more
before that, the guard sees the call end when it is closed.

Rejected: letting the first caller make the call itself. It saves the task, but when it is cancelled its
call ends with it, and those that wait must start again.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from asyncstream.aside import in_its_loop
from asyncstream.guards.guard import (
    Background,
    Call,
    Guard,
    delivery,
    end,
    fail,
    hashable,
    usable_as_decorator,
)
from asyncstream.validation import selector

__all__ = ("SingleFlight", "single_flight")

In = TypeVar("In")
Out = TypeVar("Out")


class _Flight(Generic[Out]):
    """
    One call under way and those who wait for it; `is_over`: no one joins it any more.

    `place` is the hash that its key had when it began: the call may change the key.
    """

    __slots__ = ("is_over", "key", "place", "task", "waiting")

    def __init__(self, key: Hashable, place: int, task: asyncio.Task[Out]) -> None:
        self.key = key
        self.place = place
        self.task = task
        self.is_over = False
        self.waiting: set[asyncio.Future[Out]] = set()


class SingleFlight(Guard[In, Out]):
    """
    Shares one call among all callers whose keys are equal while it runs.

    All get the same result object, or the same error.

    Args:
        fn: the async function that it wraps.
        key: function of the element that gives something hashable, or the name of a field, or several; by
            default the element itself.
    """

    counted = ("coalesced",)

    def __init__(
        self, fn: Call[In, Out], *, key: Callable[[In], Hashable] | str | tuple[str, ...] | None = None
    ) -> None:
        super().__init__(fn)
        self._key = None if key is None else selector("key", key)
        self._flights: dict[int, list[_Flight[Out]]] = {}  # by their places
        self._background = Background()

    async def open(self) -> None:
        await super().open()
        for flight in [flight for flights in self._flights.values() for flight in flights]:
            if flight.task.get_loop().is_closed():  # in the middle of the call, which ends no more
                self._forget(flight)

    async def invoke(self, value: In) -> Out:
        key = value if self._key is None else self._key(value)
        at = hash(hashable(key))
        for flight in self._flights.get(at, ()):
            if flight.key is key or flight.key == key:
                self._counts["coalesced"] += 1
                break
        else:
            flight = self._start(key, at, value)
        place: asyncio.Future[Out] = get_running_loop().create_future()
        flight.waiting.add(place)
        try:
            return await delivery(place)
        finally:
            flight.waiting.discard(place)
            if not flight.waiting and not flight.task.done():
                # forgotten first: who comes now must not join a call that is being ended
                self._forget(flight)
                if in_its_loop(place):
                    await end(flight.task)

    def _start(self, key: Hashable, place: int, value: In) -> _Flight[Out]:
        async def call() -> Out:
            return await self._call(value)

        flight = _Flight(key, place, self._background.start(call()))
        self._flights.setdefault(place, []).append(flight)
        flight.task.add_done_callback(lambda task: self._land(flight))
        return flight

    def _land(self, flight: _Flight[Out]) -> None:
        """Give all who wait what the call has ended with."""
        self._forget(flight)
        task = flight.task
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        for place in flight.waiting:
            if error is not None:
                fail(place, error)
            elif not place.done():
                place.set_result(task.result())

    def _forget(self, flight: _Flight[Out]) -> None:
        if flight.is_over:
            return
        flight.is_over = True
        there = self._flights[flight.place]
        there.remove(flight)
        if not there:
            del self._flights[flight.place]

    async def stop(self) -> None:
        await self._background.stop()


single_flight = usable_as_decorator(SingleFlight)
