"""
The parts of a run, what drives its sources and its operators: opened one after the other, each in bounded
time, and closed the other way round. What fails is named by its step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncstream.aside import heed, in_its_loop, to_its_end
from asyncstream.async_wait.tasks import end_tasks
from asyncstream.errors import AsyncStreamError, SinkError, SourceError, UserFunctionError, tells_its_step
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.flow import Attended
from asyncstream.operators.whereabouts import RecentFailures
from asyncstream.plan import left_behind
from asyncstream.runtime.aio.inside import enter
from asyncstream.runtime.aio.jobclock import JobClock
from asyncstream.runtime.aio.naming import is_thrown_in
from asyncstream.runtime.aio.reading import SourceDriver
from asyncstream.runtime.aio.run_tasks import RunTasks
from asyncstream.runtime.aio.snapshot import JobSnapshot, positions, restore
from asyncstream.runtime.aio.spilling import Spilling
from asyncstream.state import StateBackend

if TYPE_CHECKING:
    from asyncstream.runtime.aio.run import Run

__all__ = ("OPEN_SECONDS", "RunParts")

log = logging.getLogger("asyncstream.job")

OPEN_SECONDS = 300.0
"""Seconds that a step gets to open, if the user does not say: a large model may have to be loaded."""


class RunParts:
    """
    The parts of one run.

    Args:
        run, tasks, clock: the run, its tasks, and its processing time.
        snapshot, state: as of the run.
        seconds: what each part gets to open.
        patience: seconds in which it must end when it is cancelled.

    Attributes:
        begun: those whose opening was begun, each with its step, in this order: also what fails to open is
            closed.
        current: the step that is being opened, or closed.
        is_over: they are being closed.
    """

    def __init__(
        self,
        run: Run,
        tasks: RunTasks,
        clock: JobClock,
        snapshot: JobSnapshot | None,
        state: StateBackend | None,
        seconds: float,
        patience: float,
    ) -> None:
        self._run = run
        self._tasks = tasks
        self._clock = clock
        self._from = snapshot
        self._state = state
        self._spilling: Spilling | None = None
        self._seconds = seconds
        self._patience = patience
        self._overdue: asyncio.Future[tuple[str, type[AsyncStreamError]]] | None = None
        self.begun: list[tuple[str, SourceDriver | Operator]] = []
        self.current = "a checkpoint"
        self.is_over = False

    async def open(self) -> None:
        """
        Open all parts, unless one of them takes too long, and have sinks write; sources are read later.

        Raises:
            AsyncStreamError: names the step that failed, or took too long.
        """
        # in a task of its own: who opens this job must be able to give up, whatever a step does
        loop = asyncio.get_running_loop()
        overdue = self._overdue = loop.create_future()
        opening = loop.create_task(self._open_all(), name="asyncstream open")
        opening.add_done_callback(heed)  # an exit goes up through the loop, and not to who waits here
        stubborn: set[asyncio.Task[Any]] = set()
        cancelled: asyncio.CancelledError | None = None
        try:
            waited: set[asyncio.Future[Any]] = {opening, overdue}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not opening.done() and in_its_loop(opening):
                ending = loop.create_task(end_tasks({opening}, self._patience))
                cancelled = await to_its_end(ending)  # nothing is closed that is still being opened
                stubborn = ending.result()
            if stubborn:
                log.error(
                    "pipeline %r: step %r ignored its cancellation while it was opened",
                    self._run.name,
                    self.current,
                )
        if cancelled is not None:
            raise cancelled
        if overdue.done():
            step, kind = overdue.result()
            error = TimeoutError(f"it did not open within {self._seconds:g} s")
            if kind is UserFunctionError:
                raise UserFunctionError(step, None, error, when="when it was opened")
            raise kind(f"step {step!r}: {error}")
        opening.result()

    async def _open_all(self) -> None:
        run = self._run
        self._tasks.remember_context()
        enter(run, "a checkpoint")
        journal = None if run.checkpointer is None else run.checkpointer.journal
        tracking = run.graph.tracking(() if journal is None else journal.steps)
        for name, driver in run.wiring.sources.items():
            driver.follow(run.followed)
            if name in tracking:
                driver.number(run.name)
        if run.checkpointer is not None:
            await run.checkpointer.tenure.begin()
        if self._state is not None:  # not before: the job that was waited for may have had the place
            self._spilling = Spilling(self._state, run.checkpointer, run.fail)
        start = await self._find_start()
        await self._open_operators(tracking)
        for name, driver in run.wiring.sources.items():
            with self._opening(driver, name, SourceError):
                await driver.start(self._patience)
        run.parts = run.wiring.parts()  # not before: one that has not been opened knows nothing of itself
        if start is not None:
            await self._go_on(start)
        for name, sink in run.wiring.sinks.items():
            self._tasks.spawn(name, sink.run)
        if self._spilling is not None:
            self._tasks.help(self._spilling.run, run.wiring.operators)
        if run.checkpointer is not None:
            enter(run, "a checkpoint")
            await run.checkpointer.begin()
        for name, driver in run.wiring.sources.items():
            if run.checkpointer is None and not left_behind(run.graph, name):
                driver.acknowledge_at_once()

    async def _find_start(self) -> JobSnapshot | None:
        """What an earlier job has left; lets the clock show no time before that."""
        checkpointer, found = self._run.checkpointer, self._from
        if checkpointer is not None:
            found = JobSnapshot(*await checkpointer.load(self._run.wiring, self._bounded))
            self._tasks.migrated = checkpointer.migrated
            if checkpointer.resumed_from is not None:
                self._clock.not_before(checkpointer.resumed_from.created_ms)
        elif found is not None:
            self._clock.not_before(found.now_ms)
        return found

    async def _open_operators(self, tracking: Collection[str]) -> None:
        """Tail first: an operator may emit as soon as it is open, also while it is restored."""
        wiring = self._run.wiring
        for name, operator in reversed(wiring.operators.items()):
            kind = SinkError if name in wiring.sinks else UserFunctionError
            with self._opening(operator, name, kind):
                if self._spilling is not None:
                    self._spilling.take(name, operator)
                operator.open(self._context_for(name, tracks=name in tracking))
                if isinstance(operator, Attended):
                    await operator.start()

    def _context_for(self, name: str, *, tracks: bool) -> OperatorContext:
        run, wiring, checkpointer = self._run, self._run.wiring, self._run.checkpointer
        woken = wiring.woken(name)
        return OperatorContext(
            name,
            clock=self._clock,
            wake_at=partial(run.wakeups.wake, woken),
            fail=run.fail,
            is_held=partial(wiring.is_held, name),
            held_ms=partial(wiring.held_ms, name),
            has_room=partial(wiring.has_room, name),
            wake_with_room=partial(run.wakeups.wake_with_room, woken),
            work_off=wiring.work_off(name),
            patience=self._patience,
            keeps_checkpoints=checkpointer is not None,
            journeys=run.followed,
            pipeline=run.name,
            tracks=tracks,
            call_log=None if checkpointer is None else checkpointer.call_log(name),
            checkpoint=None if checkpointer is None else checkpointer.ask,
        )

    async def _go_on(self, start: JobSnapshot) -> None:
        """Have sources and operators go on where an earlier job was."""
        run = self._run
        for name, position in positions(start, run.graph, run.wiring.sources).items():
            with self._bounded(name, SourceError):
                await run.wiring.sources[name].seek(position)
        await restore(start, run.graph, run.wiring, is_shared=run.checkpointer is None)

    @contextmanager
    def _opening(
        self, part: SourceDriver | Operator, step: str, kind: type[AsyncStreamError]
    ) -> Iterator[None]:
        """This block opens `part` of `step`; if that takes too long, a `kind` of error is raised."""
        self.begun.append((step, part))
        with self._bounded(step, kind):
            yield

    @contextmanager
    def _bounded(self, step: str, kind: type[AsyncStreamError]) -> Iterator[None]:
        """This block does what belongs to the opening of `step`, in the time that a part gets for that."""
        enter(self._run, f"step {step!r}")
        before, self.current = self.current, step
        timer = asyncio.get_running_loop().call_later(self._seconds, self._note_overdue, step, kind)
        try:
            with _naming_function(step, "when it was opened"):
                yield
        finally:
            timer.cancel()
            self.current = before

    def _note_overdue(self, step: str, kind: type[AsyncStreamError]) -> None:
        if self._overdue is not None and not self._overdue.done():
            self._overdue.set_result((step, kind))

    def closings(self) -> Iterator[Coroutine[Any, Any, None]]:
        """What closes each, from head to tail, to be awaited before the next is asked for."""
        for step, part in reversed(self.begun):
            self.current, self.is_over = step, True
            enter(self._run, f"step {step!r}")
            yield part.stop(self._patience) if isinstance(part, SourceDriver) else _close(step, part)

    def leave(self) -> None:
        """Give up the place on disk, when all are closed."""
        if self._spilling is not None:
            self._spilling.close(self._run.wiring.operators)


async def _close(step: str, operator: Operator) -> None:
    with _naming_function(step, "when it was closed"):
        try:
            if isinstance(operator, Attended):
                await operator.stop()
        finally:
            operator.close()
            if isinstance(operator.recent_failures, RecentFailures):
                operator.recent_failures.say_rest()


@contextmanager
def _naming_function(step: str, when: str) -> Iterator[None]:
    """What the user's part of an operator raises in this block comes out naming the step."""
    task = asyncio.current_task()
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        if tells_its_step(error) or is_thrown_in(error, task):
            raise
        raise UserFunctionError(step, None, error, when=when) from error
