"""
The calls of elements that have a promise each: of steps that must know each single call (of a key, of a
journal, of a flat map), and of elements that no block takes.
"""

from __future__ import annotations

from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from asyncstream.async_wait.entries import MARKED, UNCALLED, Finished, Known
from asyncstream.async_wait.own_task import call_followed
from asyncstream.async_wait.promise import PENDING, Arrived, Passage, Promise, Several, pending
from asyncstream.async_wait.worker import Worker
from asyncstream.operators.call_context import CURRENT, NOWHERE, identified
from asyncstream.operators.origins import Origin
from asyncstream.state.capture import IMMUTABLE

if TYPE_CHECKING:
    from asyncstream.async_wait.pool import WorkerPool

__all__ = ("PromiseCalls",)


class PromiseCalls:
    """
    Makes the calls of a pool's elements one by one.

    Attributes:
        unstamped: workers whose calls may have begun since the last turn, in the order of their elements.
        tells: each call is told for which element it is.
    """

    __slots__ = ("_called", "_pool", "tells", "unstamped")

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._called = pool.function  # by elements that are followed, each in a context of its own
        self.tells = False
        self.unstamped: list[Worker] = []

    def _next(self) -> Promise | None:
        """
        The promise of the next element whose call may begin; None if there is none, or no room, or if
        elements are to be taken in blocks from here on.
        """
        pool = self._pool
        inbox, serializer, blocks = pool.inbox, pool.serializer, pool.blocks
        while not (pool.halted or pool.settled):
            if serializer is not None and serializer.released:
                return serializer.released.popleft()
            if (
                not inbox.values
                or pool.way_out.promised >= pool.room
                or (blocks is not None and blocks.open())
            ):
                break
            value, timestamp, origin = inbox.values.popleft(), inbox.stamps.popleft(), inbox.origins.popleft()
            if timestamp.__class__ in MARKED:
                inbox.marks.popleft()
            if timestamp.__class__ in UNCALLED:
                self._add_uncalled(value, timestamp, origin)
                continue
            promise = pending(value, timestamp, origin)
            pool.way_out.promised += 1
            pool.way_out.queue.add(promise)
            if serializer is None:
                return promise
            try:
                if serializer.enter(promise):
                    return promise
            except BaseException as error:
                pool.fail(pool.blame(value, error))
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
        return None

    def _add_uncalled(self, value: Any, what: Any, origin: Origin | None) -> None:
        if isinstance(what, Finished):
            self._pool.way_out.add_finished(value, what.timestamp, what.outcome, origin)
        else:
            self._pool.way_out.add_finished(None, None, Passage(what))

    async def make_calls(self, worker: Worker, context: Context) -> bool:
        """
        Make calls, until there are elements that are taken in blocks, or the worker is not to be used again;
        whether it may be.
        """
        pool, unstamped = self._pool, self.unstamped
        blocks, serializer, journaled = pool.blocks, pool.serializer, pool.journaled
        is_plain, flat = pool.copies is None and not pool.way_out.tracks, pool.settings.flat
        suspends = False  # the call before this one did
        while True:
            promise = self._next()
            if promise is None:
                if blocks is not None and blocks.unbegun():
                    return True
                outcome = None
                if await pool.park(worker):
                    continue
                return False
            worker.promise, worker.value, promise.started = promise, promise.value, pool.stamp
            if suspends or not unstamped or unstamped[-1] is not worker:
                unstamped.append(worker)
            pool.schedule_turn()
            try:
                if is_plain and promise.timestamp.__class__ is not Known:  # a coroutine less for each element
                    outcome = await pool.function(promise.value)
                    if flat:
                        outcome = pool.outcomes.several(outcome)
                else:
                    outcome = await self._call(worker, promise)
            except BaseException as error:
                outcome = pool.failed(worker, error)
                if outcome is PENDING:  # its timeout has completed it, or the job fails
                    if serializer is not None:
                        serializer.leave(promise)
                    worker.promise = None
                    return False
                if isinstance(error, GeneratorExit):  # if it came by a task, it closes all that awaits this
                    worker.doomed = True
            suspends = promise.started.time is not None
            if promise.outcome is PENDING:
                if suspends:
                    pool.outcomes.times.began.append(promise.started)
                if journaled is not None:
                    journaled.add(promise, outcome)
                else:
                    promise.outcome = outcome
                    pool.way_out.queue.finish(promise)
            if serializer is not None:
                serializer.leave(promise)
            worker.promise = None
            try:
                if context == worker.base and not worker.doomed and not worker.task.cancelling():
                    continue
            except Exception:  # to compare contexts is to compare the user's values
                pass
            pool.soil(worker)
            return False

    async def _call(self, worker: Worker, promise: Promise) -> Any:
        """The outcome of the call of an element of which more is to be known than its value."""
        pool, journey = self._pool, None
        if promise.timestamp.__class__ is Known:
            journey, promise.timestamp = promise.timestamp.journey, promise.timestamp.timestamp
        flat = pool.settings.flat
        outcome: Any = self._outcome_before(promise)
        is_made = outcome is None
        if is_made:
            value = promise.value
            if self.tells:
                CURRENT.set(promise.origin or NOWHERE)
                worker.base = copy_context()  # the next call sets its own
            if pool.copies is not None and value.__class__ not in IMMUTABLE:
                value = pool.copies.of(value)
            if journey is None:
                outcome = await pool.function(value)
            else:
                outcome = await call_followed(self._called, value, journey, pool.context.name)
            if flat:
                outcome = pool.outcomes.several(outcome)
        if journey is not None:
            pool.way_out.special += is_made and not flat
            outcome = Arrived(outcome, journey)
        return outcome

    def _outcome_before(self, promise: Promise) -> Several | None:
        """Find where an element comes from; the outcome of its call, if that was made in an earlier life."""
        pool = self._pool
        if pool.settings.identity is not None:  # where it comes from is what the user says
            promise.origin = identified(pool.settings.identity, pool.context.pipeline, promise.value)
        if pool.journaled is None or not pool.journaled.known:
            return None
        known = pool.journaled.take(promise.origin, promise.value)
        pool.way_out.special += known is not None
        return known
