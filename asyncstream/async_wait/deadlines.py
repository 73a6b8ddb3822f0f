"""
The deadlines of running calls, on one timer of the event loop.

All calls of a step have the same timeout, so deadlines are due in the order in which they were set: a FIFO
and one `call_at` handle do, for a fraction of what a timer per call costs. Only calls that have suspended
are ever entered. A call that ends leaves its entry behind, to be passed over when it is due.

An entry names workers, and not the promises of their calls, which would keep elements alive that are long
done. That the call is still the same is told by when it was stamped. So no two stamps are equal, even where
the loop's clock ticks in milliseconds (uvloop) and a worker takes up another call within one tick.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf, nextafter

from asyncstream.async_wait.promise import Promise
from asyncstream.async_wait.worker import Worker

__all__ = ("Deadlines",)

CLOCK_SLACK = 0.0005
"""Seconds by which a deadline may be met early: uvloop's clock ticks in milliseconds."""


class Deadlines:
    """
    Tells when a call has run for too long.

    Args:
        seconds: how long a call may run.
        calls: how many run at once, at most.
        overdue: told of each worker and promise whose time is up; nothing more is due once it gives False.
    """

    def __init__(self, seconds: float, calls: int, overdue: Callable[[Worker, Promise], bool]) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        # behind one slow call, entries of calls that have ended pile up: at most one per worker is of use
        self._most = 4 * calls + 64
        self._overdue = overdue
        self._entries: deque[tuple[float, list[Worker]]] = deque()
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stamp = -inf

    def stamp(self) -> float:
        """The time in loop time, or the next larger number if that was given before."""
        self._stamp = max(self._loop.time(), nextafter(self._stamp, inf))
        return self._stamp

    def __len__(self) -> int:
        """How many are remembered, those of calls that have ended included."""
        return self._count

    def add(self, workers: list[Worker], now: float) -> None:
        """The calls that these workers run, in input order, have been at it since `now`, a `stamp`."""
        self._entries.append((now, workers))
        self._count += len(workers)
        if self._count > self._most:
            running = (
                (since, [w for w in workers if _runs_since(w, since)]) for since, workers in self._entries
            )
            self._entries = deque(entry for entry in running if entry[1])
            self._count = sum(len(workers) for _, workers in self._entries)
        if self._timer is None:
            self._timer = self._loop.call_at(now + self._seconds, self._expire)

    def cancel(self) -> None:
        """Nothing is due any more."""
        self._entries.clear()
        self._count = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time() + CLOCK_SLACK
        while self._entries:
            since, workers = self._entries[0]
            if since + self._seconds > now:
                if any(_runs_since(worker, since) for worker in workers):
                    self._timer = self._loop.call_at(since + self._seconds, self._expire)
                    return
            else:
                for worker in workers:
                    promise = worker.promise
                    if not isinstance(promise, Promise) or promise.started != since or worker.doomed:
                        continue
                    if not self._overdue(worker, promise):
                        self._entries.clear()
                        return
            self._entries.popleft()
            self._count -= len(workers)


def _runs_since(worker: Worker, since: float) -> bool:
    promise = worker.promise
    return isinstance(promise, Promise) and promise.started == since
