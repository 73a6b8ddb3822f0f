"""
The pool of workers that make the calls of an async step; its theory stands in `operator`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from functools import partial
from typing import Any
from weakref import ref

from asyncstream.aside import heed, is_at_work
from asyncstream.async_wait.block_calls import BlockCalls
from asyncstream.async_wait.copies import Copies
from asyncstream.async_wait.deadlines import Began, BegunInBlock, Deadlines
from asyncstream.async_wait.inbox import Inbox
from asyncstream.async_wait.journaled import Journaled
from asyncstream.async_wait.key_serializer import KeySerializer
from asyncstream.async_wait.outcomes import Outcomes
from asyncstream.async_wait.own_task import in_own_task
from asyncstream.async_wait.promise import PENDING, Promise
from asyncstream.async_wait.promise_calls import PromiseCalls
from asyncstream.async_wait.settings import AsyncWaitSettings
from asyncstream.async_wait.timing import Stamp
from asyncstream.async_wait.way_out import WayOut
from asyncstream.async_wait.worker import Worker
from asyncstream.errors import InternalError, UserFunctionError
from asyncstream.operators.base import OperatorContext
from asyncstream.operators.call_context import CALLING, KEEP, CallingStep
from asyncstream.operators.call_log import retry_of
from asyncstream.operators.functions import AsyncFunction

__all__ = ("WorkerPool",)

LARGEST_BURST = 256
"""Workers woken in one turn at the most, so that a turn stays short."""

SOILED_LIMIT = 3
"""Workers lost to changed context variables before every call gets a task, and a context, of its own."""


class WorkerPool:
    """
    Takes elements from an inbox, makes their calls, and gives what comes of them to the way out.

    Args:
        way_out: takes promises and results.
        counts: what its `Outcomes` count.
        turn: what is to be called once in the loop's next pass whenever something has changed.
        blame: makes the error for what was raised over an element, and is not its call's.

    Attributes:
        inbox: elements that have been accepted and not taken.
        outcomes: decides about calls that give no result.
        serializer: keeps the calls of one key in order; None: the order is another one.
        journaled: writes down what has ended; None: nothing does.
        blocks: makes the calls of elements in blocks; None: each is made for itself.
        promises: makes all other calls.
        stamp: of the calls that begin before the next turn.
        copies: makes copies of elements to call with; None: they are given as they are.
        function: makes a call.
        context: of the step.
        workers: all of them.
        most_running: how many of them had a call at the most.
        room: how many elements may be held; 0 once settled or halted, when nothing is taken any more.
        turning: a turn is due.
        halted: nothing is started or emitted any more.
        settled: nothing is started any more.
    """

    def __init__(
        self,
        settings: AsyncWaitSettings,
        way_out: WayOut,
        counts: dict[str, int],
        turn: Callable[[], None],
        blame: Callable[[object, BaseException], BaseException],
    ) -> None:
        self.settings = settings
        self.way_out = way_out
        self._turn = turn
        self.blame = blame
        self.inbox = Inbox()
        self.outcomes = Outcomes(settings, way_out, counts, self.fail)
        self.serializer = None if settings.key_by is None else KeySerializer(settings.key_by)
        self.journaled: Journaled | None = None
        self.workers: set[Worker] = set()
        self.most_running = 0
        self.room = settings.buffer_size
        self.blocks: BlockCalls | None = None
        self.turning = False
        self.halted = False
        self.settled = False
        self._idle: list[Worker] = []
        self._deadlines: Deadlines | None = None
        self._burst = 1
        self._soiled = 0
        self.stamp = Stamp()
        self.copies: Copies | None = None
        function = settings.function
        self.function: Callable[[Any], Awaitable[Any]] = (
            function.invoke if isinstance(function, AsyncFunction) else function
        )
        self.promises = PromiseCalls(self)

    def open(self, context: OperatorContext) -> None:
        """Called once, in the event loop, before all else."""
        copies = self.settings.copy_input
        if copies or (copies is None and context.keeps_checkpoints):
            self.copies = Copies(context.name, refuses=bool(copies))
        self.context = context
        self._name = f"asyncstream {context.name}"  # whose it is, should it hold the loop
        self._loop = asyncio.get_running_loop()
        self._base: Context = copy_context()
        keep = partial(_keep, ref(self))  # a task that a call starts may live longer than the job
        self._base.run(KEEP.set, frozenset() if context.checkpoint is None else frozenset({keep}))
        self._outside = copy_context()
        self.outcomes.open(context, self._loop)
        if context.call_log is not None:
            self.journaled = Journaled(context.call_log, self.way_out.queue.finish, self.schedule_turn)
        retry = None if context.call_log is None else retry_of(self.settings.function)
        uses_key = self.settings.uses_key
        if self.way_out.tracks and (uses_key or retry is not None):
            self.promises.tells = True
            self._base.run(CALLING.set, CallingStep(context.name, context.call_log, retry, uses_key))
        if not self._asks_for_single_calls():
            self.blocks = BlockCalls(self)
        if self.settings.isolation == "task":
            self._isolate()
        if self.settings.timeout is not None:
            timeout, concurrency = self.settings.timeout, self.settings.concurrency
            self._deadlines = Deadlines(timeout, concurrency, self._time_out)

    def now(self) -> float:
        """The time of its event loop, in seconds; in any thread."""
        return self._loop.time()

    def _asks_for_single_calls(self) -> bool:
        """Whether something has to be known of each single call."""
        settings = self.settings
        waits = self.journaled is not None and self.journaled.waits
        return settings.flat or self.serializer is not None or settings.identity is not None or waits

    def settle(self) -> None:
        """Start no call any more."""
        self.settled = True
        self._take_nothing()

    def halt(self) -> None:
        """Start and emit nothing more."""
        self.halted = True
        self._take_nothing()
        if self._deadlines is not None:
            self._deadlines.cancel()

    def _take_nothing(self) -> None:
        self.room = 0
        if self.blocks is not None:
            self.blocks.close()

    def fail(self, error: BaseException) -> None:
        """The job fails, if this step has not halted before."""
        if not self.halted:
            self.halt()
            self.context.fail(error)

    def held(self) -> int:
        """How many elements were taken from the inbox and have not left downstream."""
        return self.way_out.promised - self.unbegun()

    def unbegun(self) -> int:
        """How many of the elements in the queue still wait to be called for, as those in the inbox do."""
        return 0 if self.blocks is None else self.blocks.unbegun()

    def waiting(self) -> int:
        """How many elements have been accepted, and their calls have not begun."""
        return len(self.inbox) + self.unbegun()

    def busy(self) -> list[Worker]:
        """The workers with a call."""
        return [worker for worker in self.workers if worker.is_busy()]

    def schedule_turn(self) -> None:
        """Something has changed."""
        if not self.turning and not self.halted:
            self.turning = True
            # not in the context of the call that has ended: what is downstream is no part of it
            self._loop.call_soon(self._turn, context=self._outside.copy())

    def stamp_calls(self, now: float) -> None:
        """Note since when the calls run that have suspended since the last turn."""
        began = [] if self.blocks is None else self.blocks.take_begun()
        unstamped, deadlines = self.promises.unstamped, self._deadlines
        if not unstamped and not began:
            return
        self.most_running = self.most_running or 1
        if len(self.workers) - len(self._idle) > self.most_running:  # of which some may have found nothing
            self.most_running = max(self.most_running, len(self.busy()))
        stamp, self.stamp = self.stamp, Stamp()
        stamp.time = now
        if unstamped:
            workers = unstamped.copy()
            unstamped.clear()
            if deadlines is not None and any(worker.promise is not None for worker in workers):
                deadlines.add(Began(workers, stamp), now)
        for block in began:
            running = block.stamp_begun(stamp)
            if running is not None and deadlines is not None:
                deadlines.add(BegunInBlock(self.workers, block, *running), now)

    def promote(self) -> None:
        """If elements wait without a worker, wake more workers, and look again in the next pass."""
        if not self._idle and len(self.workers) >= self.settings.concurrency:
            return  # all are busy; the first to finish takes the next one
        if self.halted or not self._has_work():
            return
        released = 0 if self.serializer is None else len(self.serializer.released)
        wanted = min(released + self.waiting(), self._burst)
        for _ in range(wanted):
            if self._idle:
                self._idle.pop().go_on(True)
            elif len(self.workers) < self.settings.concurrency:
                self._hire()
            else:
                return
        self._burst = min(self._burst * 2, LARGEST_BURST)
        self.schedule_turn()

    def _has_work(self) -> bool:
        if self.serializer is not None and self.serializer.released and not self.settled:
            return True
        return self.unbegun() > 0 or (len(self.inbox) > 0 and self.held() < self.room)

    def _hire(self) -> None:
        worker = Worker()
        self.workers.add(worker)
        # a context of its own: elements must not see each other's variables
        context, worker.base = self._base.copy(), self._base
        calls = self.blocks
        work = self._work(worker, context) if calls is None else calls.work(worker, context)
        worker.task = asyncio.Task(work, loop=self._loop, name=self._name, context=context)

    async def _work(self, worker: Worker, context: Context) -> None:
        try:
            await self.promises.make_calls(worker, context)
        except BaseException as error:
            self.end_with(worker, error)
        finally:
            self.retire(worker)

    def end_with(self, worker: Worker, error: BaseException) -> None:
        """A worker ends by an error that is not of its call: of a key whose hash has changed, say."""
        if worker.is_asked_to_end(error, self.halted):
            worker.task.add_done_callback(heed)  # `fail` has been told
            raise error
        if not (isinstance(error, GeneratorExit) and worker.doomed):  # of the call, and dealt with
            self.fail(self.blame(worker.element(), error))

    async def park(self, worker: Worker) -> bool:
        """Have a worker wait until it is needed, as it keeps no element alive; False if it never will be."""
        if self.halted:
            return False
        self.schedule_turn()  # for what its last call has given
        self._burst = 1
        worker.value = None
        worker.parked = self._loop.create_future()
        self._idle.append(worker)
        try:
            return await worker.parked
        finally:
            worker.parked = None

    def dismiss_idle(self) -> None:
        """Nothing is started any more: have those that wait end; to cancel them takes twice the time."""
        for worker in self._idle:
            worker.go_on(False)
        self._idle.clear()

    def soil(self, worker: Worker) -> None:
        """A call has left a trace on its worker, which is not to be used again."""
        if not worker.doomed and not worker.task.cancelling():
            self._soiled += 1
            if self._soiled == SOILED_LIMIT and self.settings.isolation == "pool":
                self._isolate()

    def _isolate(self) -> None:
        """From now on, make every call in a task and a context of its own."""
        self.function = in_own_task(self.function, self._base, self._name)

    def retire(self, worker: Worker) -> None:
        """The task of a worker ends."""
        self.workers.discard(worker)
        if not is_at_work(worker.task):  # it is collected, for its loop is gone
            return
        if worker.again is not None:
            worker.again.cancel()
        if worker.is_busy():
            promise = worker.held_promise()
            if promise.outcome is PENDING:
                error = InternalError("the task of this call ended without an outcome")
                self.fail(UserFunctionError(self.context.name, promise.value, error))
        self.schedule_turn()

    def failed(self, worker: Worker, error: BaseException) -> Any:
        """The outcome of a call that raised; PENDING if it has none."""
        promise = worker.held_promise()
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self.fail(error)  # not about this element: the process is asked to stop
            raise error
        if not is_at_work(worker.task):
            raise error  # not of the call, which is collected: the loop is torn down
        if worker.doomed:
            return PENDING  # its timeout has completed the promise
        if self.halted:
            if isinstance(error, asyncio.CancelledError):
                raise error
            return PENDING  # kept for the snapshot
        return self.outcomes.of_error(promise, error)

    def _time_out(self, worker: Worker, promise: Promise) -> bool:
        """Complete a promise whose time is up, and have its call end; False if the step has halted."""
        try:
            outcome = self.outcomes.of_timeout(promise)
        except (KeyboardInterrupt, SystemExit) as end:
            self.fail(self.blame(promise.value, end))
            raise  # not about this element: the process is asked to stop
        worker.doomed = True
        self._have_end(worker)
        if outcome is not PENDING:
            if self.blocks is not None and worker.call is not None:
                promise.outcome = outcome
                self.blocks.give_up(worker, worker.call, promise)
            elif self.journaled is not None:
                self.journaled.add(promise, outcome)
            else:
                promise.outcome = outcome
                self.way_out.queue.finish(promise)
        self.schedule_turn()
        return not self.halted

    def _have_end(self, worker: Worker) -> None:
        """Cancel a call that counts no more, and again if it goes on: it may have made an error of that."""
        worker.task.cancel()
        if not self.halted:
            worker.again = self._loop.call_later(self.context.patience, self._have_end, worker)


def _keep(held: ref[WorkerPool]) -> None:
    """Ask for a checkpoint, unless it is too late for one."""
    pool = held()
    if pool is not None and pool.context.checkpoint is not None and not pool.halted:
        pool.context.checkpoint(lambda is_safe: None)
