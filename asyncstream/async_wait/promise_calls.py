"""
The calls of elements that have a promise each, or pass without one: of steps that must know each single call
(of a key, of a journal, of a flat map), and of elements that no block takes.
"""

from __future__ import annotations

from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from asyncstream.async_wait.entries import MARKED, UNCALLED, Finished, Known
from asyncstream.async_wait.key_serializer import KeySerializer
from asyncstream.async_wait.own_task import call_followed
from asyncstream.async_wait.promise import PENDING, Arrived, Passage, Promise, Several, pending
from asyncstream.async_wait.worker import UNMADE, Worker
from asyncstream.operators.call_context import CURRENT, NOWHERE, identified
from asyncstream.operators.journey import Journey
from asyncstream.operators.origins import Origin
from asyncstream.state.capture import IMMUTABLE

if TYPE_CHECKING:
    from asyncstream.async_wait.pool import WorkerPool

__all__ = ("PromiseCalls",)


class PromiseCalls:
    """
    Makes the calls of a pool's elements one by one.

    Attributes:
        unstamped: workers whose calls may have begun since the last turn.
        unmade: the last of these, if its call may be without a promise.
        tells: each call is told for which element it is.
    """

    __slots__ = ("_called", "_pool", "tells", "unmade", "unstamped")

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._called = pool.function  # by elements that are followed, each in a context of its own
        self.tells = False
        self.unstamped: list[Worker] = []
        self.unmade: Worker | None = None

    def make_last_promise(self) -> None:
        """If the call that started last runs without a promise, make it: something comes behind it."""
        worker, self.unmade = self.unmade, None
        if worker is not None and worker.promise is UNMADE:
            self._make_promise(worker)

    def _make_promise(self, worker: Worker) -> Promise:
        worker.promise = promise = pending(*worker.entry)
        promise.started = self._pool.stamp
        self._pool.emitter.promised += 1
        self._pool.emitter.queue.add(promise)
        return promise

    def promise_of(self, worker: Worker) -> Promise:
        """The promise for the element of a busy worker; made now if it does not exist yet."""
        known = worker.known_promise()
        return self._make_promise(worker) if known is None else known

    def _add_uncalled(self, value: Any, what: Any, origin: Origin | None) -> None:
        self.make_last_promise()
        if isinstance(what, Finished):
            self._pool.emitter.add_finished(value, what.timestamp, what.outcome, origin)
        else:
            self._pool.emitter.add_finished(None, None, Passage(what))
            if self._pool.journaled is None and self._pool.blocks is None:  # both keep places of their own
                self._pool.emitter.set_aside()
        self._pool.schedule_turn()

    def _next_of_a_free_key(self, serializer: KeySerializer) -> Promise | None:
        """The next promise whose key has no call running; None if there is none, or no room."""
        while not (self._pool.halted or self._pool.settled):
            if serializer.released:
                return serializer.released.popleft()
            inbox = self._pool.inbox
            if not inbox.values or self._pool.emitter.promised >= self._pool.room:
                break
            value, timestamp, origin = inbox.values.popleft(), inbox.stamps.popleft(), inbox.origins.popleft()
            if timestamp.__class__ in MARKED:
                inbox.marks.popleft()
            if timestamp.__class__ in UNCALLED:
                self._add_uncalled(value, timestamp, origin)
                continue
            promise = pending(value, timestamp, origin)
            self._pool.emitter.promised += 1
            self._pool.emitter.queue.add(promise)
            try:
                if serializer.enter(promise):
                    return promise
                self._pool.schedule_turn()  # the inbox has drained by one, though no call has started
            except BaseException as error:
                self._pool.fail(self._pool.blame(value, error))
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
        return None

    async def make_calls(self, worker: Worker, context: Context) -> bool:
        """
        Make calls, until there are elements that are taken in blocks, or the worker is not to be used again;
        whether it may be.
        """
        # A loop that runs per element: what can be a local is one.
        pool = self._pool
        inbox, marks, unstamped, emitter = pool.inbox.values, pool.inbox.marks, self.unstamped, pool.emitter
        take, take_stamp, take_origin = inbox.popleft, pool.inbox.stamps.popleft, pool.inbox.origins.popleft
        (values, timestamps, origins), queue = emitter.passed, emitter.queue
        ahead, add, finish = queue.ahead, queue.add, queue.finish
        serializer, journaled, copies, blocks = pool.serializer, pool.journaled, pool.copies, pool.blocks
        flat, tracks, ended = pool.settings.flat, emitter.tracks, pool.outcomes.times.began.append
        may_pass = not flat and serializer is None and (journaled is None or not journaled.waits)
        plain = copies is None and not tracks and not flat
        tells, tell, identifies = self.tells, CURRENT.set, pool.settings.identity is not None
        known_calls = () if journaled is None else journaled.known
        note_passed = None if journaled is None else journaled.passed.append
        note_ended = None if journaled is None else journaled.ended.append
        hold = None if journaled is None or not journaled.waits else journaled.add
        cancelling = worker.task.cancelling
        journey: Journey | None = None
        suspends = False  # the call before this one did
        passes = False  # nothing is ahead of the next element, and nothing else has run since that was found
        while True:
            if blocks is not None and blocks.open():
                return True
            if not passes and self.unmade is not None:
                self.make_last_promise()
            if serializer is not None:
                promise = self._next_of_a_free_key(serializer)
                if promise is None:
                    await pool.park(worker)
                    continue
                worker.promise, promise.started = promise, pool.stamp
                value, timestamp, origin = promise.value, promise.timestamp, promise.origin
                if timestamp.__class__ is Known:
                    journey, timestamp = timestamp.journey, timestamp.timestamp
                    promise.timestamp = timestamp
                worker.entry = value, timestamp, origin
            else:
                if not inbox or emitter.promised + len(values) >= pool.room:
                    passes = False
                    await pool.park(worker)
                    continue
                worker.entry = value, timestamp, origin = take(), take_stamp(), take_origin()
                if timestamp is not None and timestamp.__class__ in MARKED:
                    marks.popleft()
                    if timestamp.__class__ is not Known:
                        passes = False
                        self._add_uncalled(value, timestamp, origin)
                        continue
                    journey, timestamp = timestamp.journey, timestamp.timestamp
                    worker.entry = value, timestamp, origin
            if not passes:
                if suspends or not unstamped or unstamped[-1] is not worker:
                    unstamped.append(worker)
                if not pool.turning:
                    pool.schedule_turn()
                if not suspends and may_pass and not ahead:
                    passes = True
                    self.unmade = worker
            if passes and journey is None:
                worker.promise = UNMADE
            elif serializer is None:  # now, while all that it takes is at hand
                worker.promise = promise = Promise()
                promise.value, promise.timestamp, promise.outcome = value, timestamp, PENDING
                promise.started, promise.origin = pool.stamp, origin
                emitter.promised += 1
                add(promise)
            try:
                if plain and journey is None:
                    outcome = await pool.function(value)
                else:
                    given = value if copies is None or value.__class__ in IMMUTABLE else copies.of(value)
                    known: Any = self._prepare(worker) if identifies or known_calls else None
                    if tells:
                        tell(worker.entry[2] or NOWHERE)
                        worker.base = copy_context()  # the next call sets its own
                    if known is not None:
                        outcome = known
                    elif journey is None:
                        outcome = await pool.function(given)
                    else:
                        outcome = await call_followed(self._called, given, journey, pool.context.name)
                    if flat and known is None:
                        outcome = pool.outcomes.several(outcome)
                    if journey is not None:
                        emitter.special += known is None and not flat
                        outcome, journey = Arrived(outcome, journey), None
            except BaseException as error:
                journey = None
                outcome = pool.failed(worker, error)
                if outcome is PENDING:  # its timeout has completed it, or the job fails
                    if serializer is not None:
                        serializer.leave(self.promise_of(worker))
                    worker.promise = None
                    return False
                if isinstance(error, GeneratorExit):  # if it came by a task, it closes all that awaits this
                    worker.doomed = True
            made: Any = worker.promise
            worker.promise = None
            if made is UNMADE:
                values.append(outcome)
                timestamps.append(timestamp)
                if tracks:
                    origins.append(worker.entry[2])
                if note_passed is not None:
                    note_passed(value)
            else:
                suspends = made.started.time is not None
                if made.outcome is PENDING:
                    if hold is not None:
                        hold(made, outcome)
                    else:
                        made.outcome = outcome
                        finish(made)
                        if note_ended is not None:
                            note_ended(made)
                    if suspends:
                        ended(made.started)
                    elif passes and journaled is None:
                        emitter.set_aside()
                passes = False  # others have run
                if serializer is not None:
                    serializer.leave(made)
            try:
                if context == worker.base and not worker.doomed and not cancelling():
                    continue
            except Exception:  # to compare contexts is to compare the user's values
                pass
            pool.soil(worker)
            return False

    def _prepare(self, worker: Worker) -> Several | None:
        """Find where an element comes from; the outcome of its call, if that was made in an earlier life."""
        known, identity = None, self._pool.settings.identity
        value, timestamp, origin = worker.entry
        if identity is not None:  # what the user says tells it from others is where it comes from
            origin = identified(identity, self._pool.context.pipeline, value)
            worker.entry = value, timestamp, origin
            if isinstance(worker.promise, Promise):
                worker.promise.origin = origin
        if self._pool.journaled is not None and self._pool.journaled.known:
            known = self._pool.journaled.take(origin, value)
        if known is not None:
            self._pool.emitter.special += 1
            self.promise_of(worker)  # for it is none that passes
        return known
