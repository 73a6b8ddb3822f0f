"""
A store of checkpoints that answers in bounded time: what waits for it longer fails. Whatever it fails with,
the error says which store, and at what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from functools import partial
from operator import index
from typing import Any, ParamSpec, TypeVar

from asyncstream.checkpoint.stores import CheckpointStore, Manifests, manifests_of
from asyncstream.errors import AsyncStreamError, CheckpointError, describe_error
from asyncstream.lease import Lease

__all__ = ("StoreFailed", "TimelyStore", "too_late")

T = TypeVar("T")
P = ParamSpec("P")


class StoreFailed(CheckpointError):
    """Raised when a store failed with an error of its own, or took too long: another time it may do it."""


def too_late(store: object, what: str, seconds: float) -> StoreFailed:
    """The error for a store that did not do something in time, to be raised by the caller."""
    return StoreFailed(f"{store} did not {what} within {seconds:g} s, the timeout= of checkpoints")


class TimelyStore:
    """
    Another store, which each method asks, and gives up on with `StoreFailed`. Not `acquire`: a lease that
    comes later is to be given back, so its time is its caller's.

    Args:
        seconds: what each call gets.
    """

    def __init__(self, store: CheckpointStore, seconds: float) -> None:
        self._store = store
        self._seconds = seconds
        self.acquire = self._named("give a lease", store.acquire, _lease)
        self.renew = self._timely("renew the lease", store.renew)
        self.release = self._timely("take the lease back", store.release)
        self.put = self._timely("keep a part", store.put)
        self.commit = self._timely("commit checkpoint {1}", store.commit)
        self.numbers = self._timely("say which checkpoints there are", store.numbers, _ascending)
        self.parts = self._timely("say which parts there are", store.parts, list)
        self.read = self._timely("give {0}", store.read, bytes)
        self.delete = self._timely("delete what is old", store.delete)
        self.holder = self._timely("say who has its lease", store.holder)
        self._some = self._timely("give checkpoints", partial(manifests_of, store), _manifests)

    def __str__(self) -> str:
        return str(self._store)

    def _timely(
        self, what: str, ask: Callable[P, Awaitable[T]], take: Callable[[T], T] | None = None
    ) -> Callable[P, Coroutine[Any, Any, T]]:
        """As `_named`, in its time."""
        named_ask = self._named(what, ask, take)

        async def asked(*args: P.args, **named: P.kwargs) -> T:
            try:
                async with asyncio.timeout(self._seconds):
                    return await named_ask(*args, **named)
            except TimeoutError as error:
                raise too_late(self._store, what.format(*args), self._seconds) from error

        return asked

    def _named(
        self, what: str, ask: Callable[P, Awaitable[T]], take: Callable[[T], T] | None = None
    ) -> Callable[P, Coroutine[Any, Any, T]]:
        """
        A method of the store, of which only the errors of this package are raised as they are.

        Args:
            what: it is to do, of its arguments by their places.
            take: gives what was promised of what it gave; raises any error if it gave something else.
        """

        async def asked(*args: P.args, **named: P.kwargs) -> T:
            try:
                given = await ask(*args, **named)
                return given if take is None else take(given)
            except AsyncStreamError:
                raise
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                    raise
                text = f"{self._store} could not {what.format(*args)}: {describe_error(error)}"
                raise StoreFailed(text) from error

        return asked

    async def manifests(self, numbers: Collection[int]) -> Manifests:
        found: Manifests = {}
        # what a store has no method for, it is asked for one by one, and each answer has its time
        together = [numbers] if hasattr(self._store, "manifests") else [[number] for number in numbers]
        for some in together:
            found |= await self._some(some)
        return found


def _lease(given: Lease) -> Lease:
    if not isinstance(given, Lease):
        raise TypeError(f"acquire() gave a {type(given).__name__}, and no Lease")
    return given


def _ascending(given: list[int]) -> list[int]:
    return sorted(map(index, given))


def _manifests(given: Manifests) -> Manifests:
    return {number: one if isinstance(one, CheckpointError) else bytes(one) for number, one in given.items()}


def _is_cancelled() -> bool:
    """Whether it is the caller that is cancelled, and not something that the store has cancelled itself."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
