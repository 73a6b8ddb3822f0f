"""
The parts of one job and the tasks that drive them: opened, watched, and ended in bounded time.

Theory of operation
-------------------
A run has a task for each source and each sink; the workers of async steps are their operators' own. It goes
through phases, and never back::

    new ── open ──> running ── every task has ended ─────────> finished ── close ──> closed
                       │                                          ^
                       ├─ wind_down: stopped, or failed ──────────┤
                       └─ end_sources: drained ───────────────────┘

*Winding down*: nothing is read, no call is started and none emits; sinks get some time to write what had
reached them, then they are cancelled. *Draining*: nothing is read, and what was accepted is finished.

Nothing here waits without bound for the user's code when a run ends. What is cancelled is cancelled again
each second, and after `patience` seconds it is left alone and named in an error; so is what does not close,
and what does not open in `open_seconds`. Between two callbacks of the loop the whole pipeline stands still,
so a snapshot is simply taken at such a moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Literal, TypeAlias

from asyncstream.aside import is_at_work, running_loop, to_its_end
from asyncstream.async_wait.tasks import end_tasks, within
from asyncstream.checkpoint import Checkpoints
from asyncstream.clock import Clock
from asyncstream.connectors.outlets import Outlet
from asyncstream.connectors.submissions import Submissions
from asyncstream.errors import AsyncStreamError, SinkError, SourceError, describe_error
from asyncstream.operators.base import Operator
from asyncstream.plan import Graph
from asyncstream.runtime.aio.checkpoints import Checkpointer
from asyncstream.runtime.aio.jobclock import JobClock
from asyncstream.runtime.aio.journeys import Followed, Tracer
from asyncstream.runtime.aio.reading import SourceDriver
from asyncstream.runtime.aio.run_parts import RunParts
from asyncstream.runtime.aio.run_tasks import RunTasks
from asyncstream.runtime.aio.snapshot import JobSnapshot
from asyncstream.runtime.aio.wakeups import Wakeups
from asyncstream.runtime.aio.watching import LoopWatch
from asyncstream.runtime.aio.wiring import LOOK, RunWiring
from asyncstream.state import StateBackend

__all__ = ("Phase", "Run")

log = logging.getLogger("asyncstream.job")

PATIENCE = 10.0
"""Seconds that sinks get, after a failure, to write what had reached them."""

SLOW = 30.0
"""Seconds after which what is waited for is named in the log."""

Phase: TypeAlias = Literal["new", "opening", "running", "stopping", "closed"]


class Run:
    """
    One run of a graph.

    Args:
        graph: what to run; has been checked.
        open_seconds, patience: `open_timeout` and `end_timeout` of `Pipeline.start`, which says of the rest.

    Attributes:
        name: the pipeline's.
        phase: how far it has come.
        error: the first that happened, or None.
        is_draining: no more input is read, though nothing has failed.
        awaited: how many wait for its end, to whom its error is raised.
        told: called with the error when it fails; to be set before it is opened.
        started_ms: processing time at which it was opened; 0: not yet.
        tracer: records what happens to elements, from when it is opened on.
        parts: what runs each step, by its name; empty until all of them are open.
        finished: done when every task has ended, and the last checkpoint is taken.
    """

    told: Callable[[BaseException], None]

    def __init__(
        self,
        graph: Graph,
        *,
        name: str,
        clock: Clock | None,
        snapshot: JobSnapshot | None,
        checkpoints: Checkpoints | None,
        state: StateBackend | None,
        open_seconds: float,
        patience: float,
    ) -> None:
        self.graph = graph
        self.phase: Phase = "new"
        self.error: BaseException | None = None
        self.is_draining = False
        self.awaited = self.started_ms = 0
        self.tracer: Tracer | None = None
        self.parts: dict[str, SourceDriver | Operator] = {}
        self.name = name
        self._clock = JobClock(clock)
        self.checkpointer = (
            None if checkpoints is None else Checkpointer(checkpoints, graph, name, self._clock, self.fail)
        )
        self._patience = patience
        self._tasks = RunTasks(self, patience, self.fail, self._ended)
        self._opened = RunParts(self, self._tasks, self._clock, snapshot, state, open_seconds, patience)
        self._winding_down = False
        self._finishing: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._warning: asyncio.TimerHandle | None = None

    def now_ms(self) -> int:
        """Processing time, milliseconds since the epoch."""
        return self._clock.now_ms()

    # ------------------------------------------------------------------ opening

    async def open(self) -> None:
        """
        Open every part and start the tasks; what has been opened is closed again if that fails.

        Raises:
            AsyncStreamError: names the step that failed, or took too long.
        """
        self.loop = asyncio.get_running_loop()
        self.finished: asyncio.Future[None] = self.loop.create_future()
        self._clock.begin()
        self.started_ms = self._clock.now_ms()
        self.wakeups = Wakeups(self._clock, self.fail)
        self.followed = Followed(self.name, self.tracer)
        self.wiring = RunWiring(self.graph, self.wakeups.has_room, self.followed, self.fail, self.now_ms)
        self.loop_watch = LoopWatch(self.name, self.wiring.parts())
        self.phase = "opening"  # not before: a clock or a part that cannot be made leaves all as it was
        self.loop_watch.begin()
        try:
            await self._opened.open()
            # not before who opened the job has its turn: leaving at once is to read nothing
            for name, driver in self.wiring.sources.items():
                if not self._winding_down:  # over what a sink was given by a restore
                    self._tasks.spawn(name, driver.run)
        except BaseException as error:
            if isinstance(error, Exception):
                self._note(error)
            await self.close()
            raise
        self.phase = "stopping" if self._winding_down else "running"

    # ------------------------------------------------------------------ the end of tasks, and failure

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        driver = self.wiring.sources.get(name)
        if task.cancelled():
            has_left = driver is not None and driver.has_left
            if self.phase in ("opening", "running") and self.error is None and not has_left:
                kind = SinkError if driver is None else SourceError
                self.fail(kind(f"step {name!r}: its task was cancelled from outside"))
        elif (error := task.exception()) is not None:
            self.fail(error)
        if self._winding_down:
            self._end_sinks()
        if not self._tasks.running:
            self._finish()

    def fail(self, error: BaseException) -> None:
        """The first error decides: everything winds down, and it is raised to those that wait for the job."""
        if self.phase == "closed":
            return
        if self._note(error):
            if self.checkpointer is not None:
                self.checkpointer.begin_no_more()
            self.wiring.cut_short(self._note)
            self.wind_down(PATIENCE)
            self.told(error)

    def _note(self, error: BaseException) -> bool:
        """Keep the first error, and say it in the log; later ones are said there only."""
        if first := self.error is None:
            self.error = error
        is_raised = self.awaited or self.phase == "opening"  # without a log, stderr would have it twice
        fields = {"pipeline": self.name, "step": getattr(error, "step", None)}
        with suppress(Exception):  # of the program's handlers: the job would not end
            if error is not self.error:
                log.warning("pipeline %r, as it ended: %s", self.name, describe_error(error), extra=fields)
            elif first and isinstance(error, Exception) and (log.hasHandlers() or not is_raised):
                text = str(error) if isinstance(error, AsyncStreamError) else describe_error(error)
                log.error("pipeline %r failed: %s", self.name, text, exc_info=error, extra=fields)
        return first

    # ------------------------------------------------------------------ winding down

    def wind_down(self, seconds: float) -> None:
        """Take in nothing, start nothing, and let sinks write what has reached them, for so long."""
        self._unbind_outlets()
        if self._winding_down:
            return
        self._winding_down = True
        self.wiring.end_work(at_once=self.error is None)
        self._end_sinks()
        for intake in self.wiring.intakes.values():
            intake.halt()
        self.leave_sources()
        self.wakeups.cancel()  # what a timer emitted now would not be written
        self._tasks.help(self._end_tasks, seconds)
        if not self._tasks.running:
            self._finish()

    def _end_sinks(self) -> None:
        """Have the sinks write what they have, each when no other can give it more."""
        running = set(self._tasks.running.values())
        for name, sink in self.wiring.sinks.items():
            if not self.wiring.feeders[name] & running:
                sink.write_rest()

    def stop(self, seconds: float) -> None:
        """Wind down because the user says so."""
        if self.phase == "running":
            self.phase = "stopping"
            self.wind_down(seconds)

    def leave_sources(self) -> None:
        """Read no more, as if more could come."""
        self.wiring.reads_no_more = True
        for task, name in self._tasks.running.items():
            driver = self.wiring.sources.get(name)
            if driver is not None and not driver.has_left:
                driver.leave()
                task.cancel()
        for submissions in self.wiring.ends(Submissions):
            submissions.end()

    async def _end_tasks(self, seconds: float) -> None:
        """See that every task ends: sources soon, sinks in so many seconds, and what will not end is left."""
        until = self.loop.time() + seconds
        sources = {task for task, name in self._tasks.running.items() if name in self.wiring.sources}
        stubborn = await self._tasks.cancelled(sources)
        sinks = set(self._tasks.running) - sources
        if sinks:
            _, sinks = await asyncio.wait(sinks, timeout=max(0.0, until - self.loop.time()))
        if sinks:
            self._abandon_sinks()
            stubborn |= await end_tasks(sinks, self._patience)
        stubborn &= set(self._tasks.running)  # a source may have ended while sinks still wrote
        if stubborn:
            self._leave_alone(stubborn)
            self._finish()

    def _abandon_sinks(self) -> None:
        """Have none begin another write, though it may ignore that its task is cancelled in one."""
        if self.checkpointer is not None:
            self.checkpointer.give_up()  # it may be waiting for one of them
        for sink in self.wiring.sinks.values():
            sink.abandon()

    def _leave_alone(self, stubborn: Iterable[asyncio.Task[None]]) -> None:
        names = self._tasks.leave_alone(stubborn)
        kind = SinkError if any(name in self.wiring.operators for name in names) else SourceError
        text = ", ".join(map(repr, names))
        self._note(kind(f"steps that ignored their cancellation for {self._patience:g} s: {text}"))

    # ------------------------------------------------------------------ draining

    def end_sources(self) -> None:
        """Read no more, unless it was stopped: what was taken is finished, and event time goes to its end."""
        if self.is_draining or self._winding_down:
            return
        self.is_draining = True
        self._unbind_outlets()
        self._warning = self.loop.call_later(SLOW, self._warn)
        for name, driver in self.wiring.sources.items():
            try:
                has_ended = driver.take_no_more()  # what it has taken is still read
            except SourceError as error:
                self.fail(error)
                return
            if not has_ended:
                for task in [task for task, owner in self._tasks.running.items() if owner == name]:
                    driver.leave()
                    task.cancel()
                    self._tasks.help(self._end_source, driver, task)

    def suspend_sources(self) -> None:
        """Have the sources keep what they have taken and cannot take again: another job goes on with them."""
        for driver in self.wiring.sources.values():
            driver.suspend()

    async def _end_source(self, driver: SourceDriver, task: asyncio.Task[None]) -> None:
        if await self._tasks.cancelled({task}):
            ignored = f"reading ignored its cancellation for {self._patience:g} s"
            self.fail(SourceError(f"step {driver.name!r}: {ignored}"))
        elif self.error is None:
            driver.end()

    async def come_to_rest(self, seconds: float) -> None:
        """
        Read no more, start no call, and wait until those that run have ended, for so long. A checkpoint is
        taken meanwhile.
        """
        if self.checkpointer is not None:
            self.checkpointer.ask(lambda is_safe: None)  # if it fails, that is in the log, and the last comes
        self.is_draining = True
        self._unbind_outlets()
        self.leave_sources()
        until = self.loop.time() + seconds
        for intake in self.wiring.intakes.values():
            intake.settle()
        while self.error is None and self.loop.time() < until:
            if not self.wiring.restless():
                return
            await asyncio.sleep(LOOK)

    def _unbind_outlets(self) -> None:
        for outlet in self.wiring.ends(Outlet):
            outlet.unbind(self.error)

    def _warn(self) -> None:
        if not self.finished.done():  # else the block goes on after the drain, and nothing is waited for
            waited = ", ".join(map(repr, self.unfinished())) or "its last checkpoint"
            log.warning("pipeline %r takes in no more, and has waited %g s for: %s", self.name, SLOW, waited)

    def unfinished(self) -> list[str]:
        """The steps that open, read, call, write or close."""
        if self.phase in ("new", "opening"):
            return [self._opened.current] if self.phase == "opening" else []
        if self._opened.is_over:
            return [self._opened.current]
        found = [name for name in self._tasks.running.values() if name in self.wiring.sources]
        found += self.wiring.restless()
        return found or list(self._tasks.running.values())  # at last, sinks that are being flushed

    # ------------------------------------------------------------------ finishing and closing

    def _finish(self) -> None:
        """Every task has ended: take the last checkpoint, unless the job has failed."""
        self.wakeups.cancel()
        if self.checkpointer is None or self.error is not None or self.phase == "closed":
            if not self.finished.done():
                self.finished.set_result(None)
        elif self._finishing is None:
            self._finishing = self.loop.create_task(self._take_last(self.checkpointer))

    async def _take_last(self, checkpointer: Checkpointer) -> None:
        try:
            await checkpointer.finish(finished=self.phase == "running")
        except Exception as error:
            self.fail(error)
        if not self.finished.done():
            self.finished.set_result(None)

    async def close(self) -> None:
        """End everything, whatever has happened, even if the caller is cancelled meanwhile."""
        if running_loop() is not self.loop:  # it was closed, and the caller is collected
            return
        self.phase = "closed"
        if self._closing is None:
            self._closing = self.loop.create_task(self._close_all(), name="asyncstream close")
        cancelled = await to_its_end(self._closing)
        if cancelled is not None:
            raise cancelled

    async def _close_all(self) -> None:
        """From head to tail; the first error found on the way is kept."""
        if self.error is not None or not self.finished.done():
            self.wiring.cut_short(self._note)
        self.wiring.end_work(at_once=False)
        self._abandon_sinks()
        stubborn = await self._tasks.end_all()
        if stubborn:
            self._leave_alone(stubborn)
        if self._finishing is not None:
            await end_tasks({self._finishing}, self._patience)
        if self.checkpointer is not None:
            await self._closed(within(self._patience, self.checkpointer.close()))
        if self._warning is not None:
            self._warning.cancel()
        self.wakeups.cancel()
        for closing in self._opened.closings():
            await self._closed(closing)
        self._opened.leave()
        if self.checkpointer is not None:  # last: who waits for the lease may want any of the places
            await self.checkpointer.leave()
        self.loop_watch.end()
        if not self.finished.done():
            self.finished.set_result(None)
        self.graph.give_back(self)

    async def _closed(self, work: Coroutine[Any, Any, None]) -> None:
        """The first error decides, but all is closed."""
        try:
            await work
        except BaseException as error:
            if isinstance(error, GeneratorExit) and not is_at_work(self._closing):
                raise
            self._note(error)
