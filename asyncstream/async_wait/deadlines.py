"""
The deadlines of running calls, on one timer of the event loop.

All calls of a step have the same timeout, so deadlines are due in the order in which they were set: a FIFO
and one `call_at` handle do, for a fraction of what a timer per call costs. Only calls that have suspended
are ever entered. A call that ends leaves its entry behind, to be passed over when it is due.

An entry names workers, and not the promises of their calls, which would keep elements alive that are long
done. That the call is still the same is told by its stamp, which it shares only with those that began before
the same turn. Of elements of a block it names the places, for they began in order, and a block lets go of
elements that have left it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Set
from typing import TypeAlias

from asyncstream.async_wait.blocks import Block
from asyncstream.async_wait.promise import Promise
from asyncstream.async_wait.timing import Stamp
from asyncstream.async_wait.worker import Worker

__all__ = ("Began", "BegunInBlock", "Deadlines")

CLOCK_SLACK = 0.0005
"""Seconds by which a deadline may be met early: uvloop's clock ticks in milliseconds."""


class Began:
    """The calls of these workers, in input order, that have this stamp."""

    __slots__ = ("_stamp", "_workers")

    def __init__(self, workers: list[Worker], stamp: Stamp) -> None:
        self._workers = workers
        self._stamp = stamp

    def __len__(self) -> int:
        return len(self._workers)

    def is_running(self) -> bool:
        """Whether one of them has not ended."""
        return any(map(self._runs, self._workers))

    def forget_ended(self) -> None:
        """Remember no more of them than needed."""
        self._workers = [worker for worker in self._workers if self._runs(worker)]

    def late(self) -> Iterator[tuple[Worker, Promise]]:
        """Those that have not ended and were not given up, in input order."""
        for worker in self._workers:
            promise = worker.promise
            if promise is not None and promise.started is self._stamp and not worker.doomed:
                yield worker, promise

    def _runs(self, worker: Worker) -> bool:
        return worker.promise is not None and worker.promise.started is self._stamp


class BegunInBlock:
    """
    The calls of consecutive elements of a block.

    Args:
        workers: all that may have begun them; the same set, as it is when this is asked.
        block: whose elements.
        start, end: from which place to which.
    """

    __slots__ = ("_block", "_end", "_start", "_workers")

    def __init__(self, workers: Set[Worker], block: Block, start: int, end: int) -> None:
        self._workers = workers
        self._block = block
        self._start = start
        self._end = end

    def __len__(self) -> int:
        return 1

    def is_running(self) -> bool:
        return self._block.is_pending(self._start, self._end)

    def forget_ended(self) -> None:
        """It takes no more room than one call."""

    def late(self) -> Iterator[tuple[Worker, Promise]]:
        if not self.is_running():
            return
        late = {}
        for worker in self._workers:
            if worker.call is not None and not worker.doomed:
                block, place, _ = worker.call
                if block is self._block and self._start <= place < self._end:
                    late[place] = worker
        for place, worker in sorted(late.items()):
            yield worker, self._block.promise_of(place)


BegunCalls: TypeAlias = Began | BegunInBlock
"""Calls that have begun together; its length is how many are remembered, those that have ended included."""


class Deadlines:
    """
    Tells when a call has run for too long.

    Args:
        overdue: told of each worker and promise whose time is up; nothing more is due once it gives False.
    """

    def __init__(self, seconds: float, calls: int, overdue: Callable[[Worker, Promise], bool]) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        # behind one slow call, entries of calls that have ended pile up: at most one per worker is of use
        self._most = 4 * calls + 64
        self._overdue = overdue
        self._entries: deque[tuple[float, BegunCalls]] = deque()
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """How many are remembered, those of calls that have ended included."""
        return self._count

    def add(self, calls: BegunCalls, now: float) -> None:
        """These have been at it since `now`."""
        self._entries.append((now, calls))
        self._count += len(calls)
        if self._count > self._most:
            self._forget_ended()
        if self._timer is None:
            self._timer = self._loop.call_at(now + self._seconds, self._expire)

    def _forget_ended(self) -> None:
        """Drop entries of which no call runs; if that does not do, also calls that have ended in others."""
        kept = [entry for entry in self._entries if entry[1].is_running()]
        if sum(len(calls) for _, calls in kept) > self._most // 2:
            for _, calls in kept:
                calls.forget_ended()
        self._entries = deque(kept)
        self._count = sum(len(calls) for _, calls in kept)

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
            since, calls = self._entries[0]
            if since + self._seconds > now:
                if calls.is_running():
                    self._timer = self._loop.call_at(since + self._seconds, self._expire)
                    return
            else:
                for worker, promise in calls.late():
                    if not self._overdue(worker, promise):
                        return
            self._entries.popleft()
            self._count -= len(calls)
