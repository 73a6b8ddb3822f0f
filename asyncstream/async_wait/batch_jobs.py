"""
`BatchJobs`: elements become jobs at a provider, which take minutes to hours, and are parked meanwhile.

Theory of operation
-------------------
Elements gather until there are `size`, or `wait` seconds have passed since the first, or the input ends. They
are a *job* then, which goes through these states, and never back::

    formed ── a checkpoint has it ──> kept ── submit ──> parked ── poll says yes ──> done ── fetch ──> gone

A job gets its key when it is formed. It is submitted only when a checkpoint holds it, with its elements and
its key, and asks for another as soon as it is parked, which holds what `submit` gave. So whenever the process
is killed, the next one has

* a job that is not in a checkpoint: it was never submitted, and its elements come again from the source;
* a job that is kept: it may have been submitted or not. It is submitted with the same key, by which the
  provider, or `submit`, knows it again;
* a job that is parked: it is asked for.

Without checkpoints a job is submitted when it is formed.

What is always true
-------------------
* Each element that was accepted and has not left is a promise in the queue, which keeps the order. It is
  gathering, in one job, or finished.
* A job has one task from when it is formed until it is gone, or the step ends; what was not finished is in
  the snapshot. At most `jobs` have one; further elements wait, gathered.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import AsyncExitStack
from contextvars import copy_context
from typing import Any, Final

from asyncstream.aside import is_at_work
from asyncstream.async_wait.batch_settings import BatchSettings
from asyncstream.async_wait.entries import OF_THIS_RUN, Finished, entry_of, inbox_item
from asyncstream.async_wait.holding import Holding
from asyncstream.async_wait.promise import PENDING, Passage, Promise, pending
from asyncstream.async_wait.tasks import end_tasks
from asyncstream.async_wait.way_out import WayOut
from asyncstream.elements import Control, Timestamps
from asyncstream.errors import UserFunctionError
from asyncstream.eventtime.strategy import kept_ms
from asyncstream.operators.base import OperatorContext, pairs
from asyncstream.operators.call_context import on_behalf_of_none
from asyncstream.operators.failures import FAILED
from asyncstream.operators.functions import AsyncFunction
from asyncstream.operators.whereabouts import Whereabouts
from asyncstream.sharing import hold

__all__ = ("COUNTED", "BatchJobs")

COUNTED: Final = ("elements_in", "results_out", "failed", "skipped", "jobs_submitted", "jobs_done")
"""What the step counts."""

KEEP_AGAIN: Final = 1.0
"""Seconds after a checkpoint has failed until the next is asked for."""


class _Job:
    """
    Elements that go together.

    Attributes:
        key: tells it from all others, and is the same whenever it is submitted.
        promises: of its elements, in order.
        parked: what `submit` gave, in a list; None: it has not, as far as is known.
        is_kept: a checkpoint has it.
        began_ms: processing time at which it was formed.
    """

    __slots__ = ("began_ms", "is_kept", "key", "parked", "promises")

    def __init__(self, key: str, promises: list[Promise], began_ms: int) -> None:
        self.key = key
        self.promises = promises
        self.parked: list[Any] | None = None
        self.is_kept = False
        self.began_ms = began_ms


class BatchJobs(Holding):
    """
    Hands elements to a provider in jobs, asks how they stand, and emits their results.

    Emits when: a job is done, and its order lets its results go.
    Backpressures when: `jobs` jobs are under way and as many elements as one has are gathered; or when
        downstream is full.
    Completes when: the input has ended and every job is done.
    Cancels when: `stop` is called; jobs go on at the provider, and are in the snapshot.
    Snapshot holds: every element not yet emitted, in input order, the jobs that they are in, and control
        elements in their places.

    Args:
        settings: what the user asked for.
    """

    def __init__(self, settings: BatchSettings) -> None:
        super().__init__(2 * settings.size, self._schedule_turn)
        self.settings = settings
        self._counts = dict.fromkeys(COUNTED, 0)
        self._way_out = WayOut(self, settings.order.queue(), self._counts, flat=False)
        self._queue = self._way_out.queue
        self._gathered: deque[Promise] = deque()
        self._jobs: dict[_Job, asyncio.Task[None]] = {}  # in the order in which they were formed
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False  # what is gathered goes, though it is not `size`
        self._turning = False
        self._halted = False
        self._settled = False
        self._held: list[AsyncFunction[Any, Any]] = []

    # ------------------------------------------------------------------ the operator contract

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._loop = asyncio.get_running_loop()
        self._outside = copy_context()

    async def start(self) -> None:
        for function in self.settings.opened:
            self._held.append(function)
            await hold(function)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self._counts["elements_in"] += len(values)
        for value, timestamp in pairs(values, timestamps):
            self._gathered.append(self._promise(value, timestamp))
        self._accepted()

    def end_input(self) -> None:
        self._is_due = True
        super().end_input()

    def waiting(self) -> int:
        return len(self._gathered)

    def is_at_rest(self) -> bool:
        return not self._turning and (self._settled or not len(self._queue))

    def settle(self) -> None:
        self._settled = True

    def halt(self) -> None:
        self._halted = True

    async def stop(self) -> None:
        self.halt()
        if self._timer is not None:
            self._timer.cancel()
        patience = self.context.patience
        running = await end_tasks(self._jobs.values(), patience)
        async with AsyncExitStack() as closing:  # each, though another fails to close
            while self._held:
                closing.push_async_callback(self._let_go, self._held.pop())
        if running:
            raise UserFunctionError(
                self.context.name, None, TimeoutError(f"{len(running)} jobs ignored their cancellation")
            )

    def metrics(self) -> dict[str, int]:
        parked = sum(job.parked is not None for job in self._jobs)
        return {
            **self._counts,
            "jobs_parked": parked,
            "held": len(self._queue) - len(self._gathered),
            "waiting": len(self._gathered),
        }

    def whereabouts(self) -> Whereabouts:
        finished = sum(
            promise.outcome is not PENDING and not isinstance(promise.outcome, Passage)
            for promise in self._queue
        )
        in_turn = 0 if self.emitting.is_open() else finished
        return Whereabouts(
            inbox=len(self._gathered),
            call=sum(len(job.promises) for job in self._jobs),
            order=finished - in_turn,
            downstream=in_turn,
            doing="job",
        )

    # ------------------------------------------------------------------ elements

    def _promise(self, value: Any, timestamp: int | None) -> Promise:
        promise = pending(value, timestamp)
        self._way_out.promised += 1
        self._queue.add(promise)
        return promise

    def _add_control(self, control: Control) -> None:
        self._way_out.add_finished(None, None, Passage(control))
        self._accepted()

    def _accepted(self) -> None:
        self._schedule_turn()
        self._hold_if_full()

    def _schedule_turn(self) -> None:
        if not self._turning and not self._halted:
            self._turning = True
            # not in the context of the job that is done: those that follow it, and what is downstream, are no
            # part of it
            self._loop.call_soon(self._turn, context=self._outside.copy())

    def _turn(self) -> None:
        """Form jobs of what is gathered, and emit what may go."""
        self._turning = False
        if self._halted:
            return
        try:
            if not self._settled:
                self._form()
            if self.emitting.is_open():
                self._way_out.emit_ready()
            self._release_if_drained()
        except BaseException as error:  # of an operator downstream
            self._fail(error)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise

    def _form(self) -> None:
        gathered, size = self._gathered, self.settings.size
        while len(self._jobs) < self.settings.jobs and (len(gathered) >= size or (gathered and self._is_due)):
            promises = [gathered.popleft() for _ in range(min(size, len(gathered)))]
            self._start(_Job(secrets.token_hex(16), promises, self.context.clock.now_ms()))
        if not gathered:
            self._is_due = False
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None:
            self._timer = self._loop.call_later(self.settings.wait, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self._is_due = True
        self._schedule_turn()

    # ------------------------------------------------------------------ jobs

    def _start(self, job: _Job) -> None:
        # not of the loop's task factory: an eager task might end before it is noted here
        name = f"asyncstream {self.context.name}"
        self._jobs[job] = asyncio.Task(self._run(job), loop=self._loop, name=name)

    async def _run(self, job: _Job) -> None:
        """Have a job done, from the state in which it is."""
        size, me = len(job.promises), asyncio.current_task()
        try:
            on_behalf_of_none()
            if job.parked is None:
                if not job.is_kept:
                    await self._keep(job)
                values = [promise.value for promise in job.promises]
                job.parked = [await self.settings.submit(values, job.key)]
                self._counts["jobs_submitted"] += 1
                if self.context.checkpoint is not None:
                    self.context.checkpoint(_not_told)
                await asyncio.sleep(self.settings.every)
            while not await self.settings.poll(job.parked[0]):  # noqa: ASYNC110  # nothing else tells
                await asyncio.sleep(self.settings.every)
            answers = _listed(await self.settings.fetch(job.parked[0]))
            if len(answers) != size:
                raise ValueError(f"fetch gave {len(answers)} answers for a job of {size} elements")
        except (KeyboardInterrupt, SystemExit) as error:
            self._fail(error)
            raise
        except BaseException as error:
            if not is_at_work(me):  # it is collected, for its loop is gone: that is about no element
                raise
            answers = [error] * size
        if self._halted:
            return  # it is asked for again
        outcomes = []
        for promise, answer in zip(job.promises, answers, strict=True):
            is_error = issubclass(type(answer), BaseException)  # not of its __class__, which may do anything
            outcomes.append(self._failed(job, promise, answer) if is_error else answer)
            if outcomes[-1] is PENDING:
                return  # the job of the pipeline fails, and this one stays as it is
        for promise, outcome in zip(job.promises, outcomes, strict=True):
            promise.outcome = outcome
            self._queue.finish(promise)
        self._counts["jobs_done"] += 1
        del self._jobs[job]
        self._schedule_turn()

    async def _keep(self, job: _Job) -> None:
        """Wait until a checkpoint has the job, if there are any."""
        ask = self.context.checkpoint
        while ask is not None and not job.is_kept:
            kept: asyncio.Future[bool] = self._loop.create_future()
            ask(lambda is_safe, kept=kept: kept.done() or kept.set_result(is_safe))  # type: ignore[misc]
            job.is_kept = await kept
            if not job.is_kept:
                await asyncio.sleep(KEEP_AGAIN)

    def _failed(self, job: _Job, promise: Promise, error: BaseException) -> Any:
        """The outcome of an element that has no answer; PENDING if it has none."""
        choice = self.settings.on_error
        self._counts["failed"] += 1
        if choice == "fail" or not isinstance(error, Exception):
            self._fail(self.blame(promise.value, error))
            return PENDING
        now_ms = self.context.clock.now_ms()
        return self._way_out.without_result(promise, FAILED, choice, error, job.began_ms, now_ms)

    def _fail(self, error: BaseException) -> None:
        if not self._halted:
            self.halt()
            self.context.fail(error)

    # ------------------------------------------------------------------ snapshot

    def snapshot(self) -> Any:
        place = {promise: number for number, job in enumerate(self._jobs) for promise in job.promises}
        entries = [
            (place.get(promise, -1), entry_of(promise.value, promise.timestamp, promise.outcome))
            for promise in self._queue
        ]
        return {
            "jobs": [[job.key, job.began_ms, job.parked] for job in self._jobs],
            "entries": [[number, *entry] for number, entry in entries if entry not in OF_THIS_RUN],
            "watermark": self._way_out.watermark,
        }

    def restore(self, state: Any) -> None:
        self._restore_reached(kept_ms(state["watermark"]))
        jobs = []
        for key, began_ms, parked in state["jobs"]:
            job = _Job(key, [], began_ms)
            job.parked, job.is_kept = parked, True
            jobs.append(job)
        for number, *entry in state["entries"]:
            value, stamp, _ = inbox_item(entry, call_all=False)
            if isinstance(stamp, Control):
                self._add_control(stamp)
            elif isinstance(stamp, Finished):
                self._way_out.add_finished(value, stamp.timestamp, stamp.outcome)
            else:
                promise = self._promise(value, stamp)
                (self._gathered if number < 0 else jobs[number].promises).append(promise)
        for job in jobs:
            self._start(job)
        self._accepted()


def _listed(answers: Iterable[Any]) -> list[Any]:
    """
    What `fetch` gave, in its order; raises `TypeError` if it has none, or stands for something else, as the
    keys of a mapping do.
    """
    if isinstance(answers, str | bytes | bytearray | Mapping | Set):
        raise TypeError(
            "fetch must give a list of answers in the order of the job's elements, got a "
            f"{type(answers).__name__}"
        )
    return list(answers)


def _not_told(is_safe: bool) -> None:
    """For a checkpoint that nothing waits for."""
