"""
Concurrency limit: not more than so many calls at once.

A step has a `concurrency` of its own. This is for a limit that several steps have together, or several
processes: it is a semaphore, whose places are given first come first served.
"""

from __future__ import annotations

from typing import TypeVar

from asyncstream.guards.adaptive import AdaptiveLimit
from asyncstream.guards.guard import Call, Guard, check_not_inside, usable_as_decorator
from asyncstream.guards.shared import SharedLimit
from asyncstream.guards.shared.concurrency import SharedConcurrency
from asyncstream.guards.shared.exchanging import waits
from asyncstream.validation import count, refuse

__all__ = ("ConcurrencyLimit", "concurrency_limit")

In = TypeVar("In")
Out = TypeVar("Out")


class ConcurrencyLimit(Guard[In, Out]):
    """
    Runs no more than so many calls at once; the others wait, first come first served.

    Args:
        fn: the async function that it wraps.
        most: how many calls.
        scope: with whom the limit is shared, in other processes and on other hosts.
        limit: one shared with other guards of this process, instead: an `AdaptiveLimit` or a
            `SharedConcurrency`.
    """

    counted = ("concurrency_waited",)

    def __init__(
        self,
        fn: Call[In, Out],
        *,
        most: int | None = None,
        scope: SharedLimit | None = None,
        limit: AdaptiveLimit | SharedConcurrency | None = None,
    ) -> None:
        super().__init__(fn)
        if (most is None) == (limit is None):
            raise refuse("concurrency_limit", "either most= or limit=", (most, limit))
        if scope is not None and most is None:
            raise refuse("scope", "most= to go with it", scope)
        if most is not None:
            count("most", most)
            limit = (
                AdaptiveLimit(least=most, most=most)
                if scope is None
                else SharedConcurrency(most, scope=scope)
            )
        if not isinstance(limit, AdaptiveLimit | SharedConcurrency):
            raise refuse("limit", "an AdaptiveLimit or a SharedConcurrency", limit)
        check_not_inside("limit", limit, fn)
        self.limit = limit
        if isinstance(limit, SharedConcurrency):
            self.shares = limit

    async def invoke(self, value: In) -> Out:
        limit = self.limit
        if not limit.try_acquire():
            await limit.acquire()
        try:
            return await self._call(value)
        finally:
            limit.release()

    def counters(self) -> dict[str, int]:
        return {
            "concurrency_limit": self.limit.limit,
            "concurrency_waited": self.limit.waited,
            **waits(self.limit),
        }


concurrency_limit = usable_as_decorator(ConcurrencyLimit)
