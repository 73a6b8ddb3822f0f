"""
A running pipeline, in the event loop that is already there.

A `Job` owns every task it starts: one for each source and sink, and the workers of the async steps. The
first failure anywhere stops everything, and is raised once. Between two callbacks of the loop the whole
pipeline stands still, so a snapshot is simply taken at such a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from asyncstream.arguments import Duration, duration_seconds, refuse
from asyncstream.async_wait.tasks import CANCEL_PATIENCE, end_tasks
from asyncstream.checkpoint import CheckpointInfo, Checkpoints
from asyncstream.clock import Clock, SystemClock
from asyncstream.connectors.submissions import Results, Submissions
from asyncstream.errors import (
    AsyncStreamError,
    InternalError,
    JobStopped,
    PipelineError,
    SinkError,
    SourceError,
    UserFunctionError,
    describe_error,
)
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.flow import Intake
from asyncstream.plan import Graph, SinkStep, SourceStep
from asyncstream.runtime.aio.alarms import Alarms
from asyncstream.runtime.aio.checkpoints import Checkpointer
from asyncstream.runtime.aio.endpoints import SinkOperator, SourceDriver
from asyncstream.runtime.aio.snapshot import JobSnapshot, restore, take
from asyncstream.runtime.aio.wiring import Wiring

__all__ = ("Job",)

PATIENCE = 10.0
"""Seconds that sinks get, after a failure, to write what had reached them."""

REST_CHECK = 0.01
"""Seconds between two looks whether the pipeline has come to rest."""

E = TypeVar("E")


class Job:
    """
    One run of a pipeline: an async context manager.

    Leaving the block drains the job: no new input is read, what was accepted is finished. Leaving it by
    an exception stops the job at once. `await job.wait()` inside the block lets finite sources come to
    their end.

    Args:
        graph: what to run; has been checked.
        clock: processing time; the system's by default.
        snapshot: where an earlier job was stopped.
        checkpoints: how to keep what must not be lost, and where to go on from.
        name: the pipeline's.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        clock: Clock | None = None,
        snapshot: JobSnapshot | None = None,
        checkpoints: Checkpoints | None = None,
        name: str = "pipeline",
    ) -> None:
        if snapshot is not None and checkpoints is not None:
            raise PipelineError("a job goes on from a snapshot= or from checkpoints=, not from both")
        self._graph = graph
        self._clock = clock or SystemClock()
        self._from = snapshot
        self._checkpointer = (
            None if checkpoints is None else Checkpointer(checkpoints, graph, name, self._clock, self._fail)
        )
        self._finishing: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._submissions = {
            step.name: step.source
            for step in graph
            if isinstance(step, SourceStep) and isinstance(step.source, Submissions)
        }
        self._results = {
            step.name: step.sink
            for step in graph
            if isinstance(step, SinkStep) and isinstance(step.sink, Results)
        }
        self._opened: list[SourceDriver | Operator] = []
        self._draining = False
        self._cancel_rest: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._state = "new"

    async def __aenter__(self) -> Job:
        if self._state != "new":
            raise PipelineError("a job runs once; call pipeline.start() for another one")
        if self._graph.in_use:
            raise PipelineError("this pipeline is running already; its sources and sinks serve one job")
        self._graph.in_use = True
        self._state = "running"
        self._loop = asyncio.get_running_loop()
        self._finished: asyncio.Future[None] = self._loop.create_future()
        self._alarms = Alarms(self._clock, self._fail)
        self._wiring = Wiring(self._graph)
        try:
            await self._open()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._state == "running" and error is None:
                self._end_sources()
                await self._outcome()
        finally:
            await self._close()
        if self._error is None or error is self._error:
            return
        # KeyboardInterrupt has gone up through the loop already; what leaves the block is its aftermath
        if error is None or isinstance(self._error, Exception):
            raise self._error

    # ------------------------------------------------------------------ for users

    async def submit(self, value: Any, *, to: str | None = None) -> None:
        """
        Hand an element to the pipeline; waits while it has no room.

        Once this returns, the element is accepted: it is finished, or in the snapshot, unless the job
        fails.

        Args:
            value: the element.
            to: name of the `pipeline.submissions()` source; not needed if there is one only.

        Raises:
            JobStopped: if the job takes no more.
        """
        self._check_started()
        submissions = _the_one(self._submissions, to, "pipeline.submissions()", "to")
        try:
            await submissions.submit(value)
        except JobStopped as stopped:
            raise stopped from self._error

    def results(self, of: str | None = None) -> AsyncIterator[Any]:
        """
        Iterate over the elements that reach a `stream.results()`, as they come.

        Ends when the job does. Several iterators share the elements between them.

        Args:
            of: name of the `results()` step; not needed if there is one only.
        """
        self._check_started()
        return _the_one(self._results, of, "stream.results()", "of").stream()

    async def wait(self) -> None:
        """Wait until every source has come to its end and everything is written."""
        self._check_started()
        await self._outcome()

    async def drain(self, timeout: Duration | None = None) -> None:
        """
        Read no more input, and finish what was accepted.

        Event time advances to its end: open windows fire.

        Args:
            timeout: how long to wait: a `timedelta` or seconds.

        Raises:
            TimeoutError: if that was not long enough; the job still runs, `stop` gives what is left.
        """
        self._check_started()
        seconds = None if timeout is None else duration_seconds("timeout", timeout)
        self._end_sources()
        async with asyncio.timeout(seconds):
            await self._outcome()

    async def stop(self, timeout: Duration = 10.0, *, grace: Duration = 0.0) -> JobSnapshot:
        """
        Stop: running calls are cancelled, and what was accepted and not finished is returned.

        Event time stays where it is, and open windows stay open: another job goes on with them. Results that
        nobody has taken yet are finished: `job.results()` still gives them.

        Args:
            timeout: how long sinks may take to write what has already reached them: a `timedelta` or
                seconds. What they did not write by then is in the snapshot.
            grace: how long, before that, running calls may go on, and what follows from them; no input is
                read meanwhile. Ends as soon as nothing is left to wait for.
        """
        self._check_started()
        seconds = duration_seconds("timeout", timeout, zero=True)
        grace_seconds = duration_seconds("grace", grace, zero=True)
        if self._state == "running" and grace_seconds:
            await self._come_to_rest(grace_seconds)
        if self._state == "running":
            self._state = "stopping"
            self._wind_down(seconds)
        await asyncio.shield(self._finished)
        snapshot = self.snapshot()
        await self._close()
        return snapshot

    def snapshot(self) -> JobSnapshot:
        """Everything accepted and not finished, at this moment. Disturbs nothing."""
        self._check_started()
        return take(self._wiring)

    async def checkpoint(self) -> CheckpointInfo:
        """
        Take a checkpoint now; returns when it is safe, and committed by the sinks.

        Raises:
            CheckpointError: if it failed; the job goes on.
            PipelineError: if the job was started without `checkpoints=`.
        """
        self._check_started()
        if self._checkpointer is None:
            raise PipelineError("the job keeps no checkpoints; start it with checkpoints=Checkpoints(...)")
        return await self._checkpointer.take()

    def checkpoint_metrics(self) -> dict[str, int]:
        """Counters, and figures of the last checkpoint; empty without `checkpoints=`."""
        return {} if self._checkpointer is None else self._checkpointer.metrics()

    def metrics(self) -> dict[str, dict[str, int]]:
        """Counters and gauges of every step, by its name."""
        self._check_started()
        parts: dict[str, SourceDriver | Operator] = {**self._wiring.sources, **self._wiring.operators}
        return {name: counts for name, part in parts.items() if (counts := part.metrics())}

    # ------------------------------------------------------------------ inside

    def _check_started(self) -> None:
        if self._state == "new":
            raise PipelineError("the job is not running yet; enter it: `async with pipeline.start() as job:`")

    async def _open(self) -> None:
        if self._checkpointer is not None:
            self._from = JobSnapshot(*await self._checkpointer.load(self._wiring))
        # tail first: an operator may emit as soon as it is open, also while it is restored
        operators = self._wiring.operators
        for name, operator in reversed(operators.items()):
            self._opened.append(operator)  # before it is: also what fails to open is closed
            with _naming_opened(name, "when it was opened"):
                operator.open(
                    OperatorContext(
                        name,
                        self._clock,
                        partial(self._alarms.wake, operator),
                        self._fail,
                        partial(self._wiring.is_held, name),
                    )
                )
                if isinstance(operator, Intake):
                    await operator.start()
        for driver in self._wiring.sources.values():
            self._opened.append(driver)
            await driver.start()
        if self._from is not None:
            await restore(self._from, self._graph, self._wiring)
        for name, operator in operators.items():
            if isinstance(operator, SinkOperator):
                self._spawn(name, operator.run())
        if self._checkpointer is not None:
            await self._checkpointer.begin()
        for name, driver in self._wiring.sources.items():
            self._spawn(name, driver.run())

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work, name=f"asyncstream {name}")
        self._tasks[task] = name
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        name = self._tasks.pop(task)
        is_source = name in self._wiring.sources
        if task.cancelled():
            if self._state == "running" and self._error is None and not (is_source and self._draining):
                kind = SourceError if is_source else SinkError
                self._fail(kind(f"step {name!r}: its task was cancelled from outside"))
        elif (error := task.exception()) is not None:
            if isinstance(error, Exception) and not isinstance(error, AsyncStreamError):
                broken = InternalError(f"behind step {name!r}: {describe_error(error)}")
                broken.__cause__ = error
                error = broken
            self._fail(error)
        if not self._tasks:
            self._finish()

    def _fail(self, error: BaseException) -> None:
        """The first error decides: everything winds down, and it is raised to whoever waits for the job."""
        if self._error is None and self._state != "closed":
            self._error = error
            self._wind_down(PATIENCE)

    def _wind_down(self, seconds: float) -> None:
        """Take in nothing, start nothing, and let sinks write what has reached them, for so long."""
        for results in self._results.values():
            results.unbind(self._error)
        for operator in self._wiring.operators.values():
            if isinstance(operator, SinkOperator):
                operator.end_input()
            elif isinstance(operator, Intake):
                operator.halt()
        self._leave_sources()
        self._alarms.cancel()  # what a timer emitted now, nobody would write
        self._cancel_rest = self._loop.call_later(seconds, self._cancel_tasks)
        if not self._tasks:
            self._finish()

    def _leave_sources(self) -> None:
        """Read no more, as if more could come."""
        sources = [task for task, name in self._tasks.items() if name in self._wiring.sources]
        for task in sources:
            task.cancel()
        for submissions in self._submissions.values():
            submissions.end()

    async def _come_to_rest(self, seconds: float) -> None:
        """Read no more, and wait until nothing is on its way any more, for so long."""
        self._draining = True
        self._leave_sources()
        until = self._loop.time() + seconds
        intakes = [part for part in self._wiring.operators.values() if isinstance(part, Intake)]
        while self._error is None and self._loop.time() < until:
            if all(intake.is_at_rest() for intake in intakes):
                return
            await asyncio.sleep(REST_CHECK)

    def _finish(self) -> None:
        """Every task has ended: take the last checkpoint, unless the job has failed."""
        self._alarms.cancel()
        if self._checkpointer is None or self._error is not None or self._state == "closed":
            if not self._finished.done():
                self._finished.set_result(None)
        elif self._finishing is None:
            self._finishing = self._loop.create_task(self._take_last(self._checkpointer))

    async def _take_last(self, checkpointer: Checkpointer) -> None:
        try:
            await checkpointer.finish(finished=self._state == "running")
        except Exception as error:
            self._fail(error)
        if not self._finished.done():
            self._finished.set_result(None)

    def _cancel_tasks(self) -> None:
        if self._checkpointer is not None:
            self._checkpointer.give_up()  # before the sinks that it may be waiting for
        for task in self._tasks:
            task.cancel()
        # whoever waits for the job does not wait for a sink that ignores this; closing tells its name
        self._cancel_rest = self._loop.call_later(CANCEL_PATIENCE, self._finish)

    async def _outcome(self) -> None:
        await asyncio.shield(self._finished)
        if self._error is not None:
            raise self._error

    def _end_sources(self) -> None:
        self._draining = True
        for results in self._results.values():
            results.unbind()
        for name, driver in self._wiring.sources.items():
            if driver.source.end():  # what it has taken is still read
                continue
            for task in [task for task, owner in self._tasks.items() if owner == name]:
                task.cancel()
                task.add_done_callback(partial(self._source_left, driver))

    def _source_left(self, driver: SourceDriver, task: asyncio.Task[None]) -> None:
        if self._error is None and task.cancelled():
            try:
                driver.end()
            except Exception as error:
                self._fail(error)

    async def _close(self) -> None:
        """End everything, whatever has happened, even if the caller is cancelled meanwhile."""
        self._state = "closed"
        if self._closing is None:
            self._closing = self._loop.create_task(self._close_all(), name="asyncstream close")
        cancelled: asyncio.CancelledError | None = None
        while not self._closing.done():
            try:
                await asyncio.wait({self._closing})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def _close_all(self) -> None:
        """From head to tail; the first error found on the way is kept."""
        stubborn = await end_tasks(self._tasks)
        if stubborn:
            names = ", ".join(sorted(repr(self._tasks[task]) for task in stubborn))
            error = SinkError(f"steps that ignored their cancellation for {CANCEL_PATIENCE} s: {names}")
            self._error = self._error or error
        if self._finishing is not None:
            self._finishing.cancel()
            await asyncio.wait({self._finishing})
        if self._checkpointer is not None:
            await self._checkpointer.close()
        if self._cancel_rest is not None:
            self._cancel_rest.cancel()
        self._alarms.cancel()
        for part in reversed(self._opened):
            try:
                if isinstance(part, SourceDriver):
                    await part.stop()
                    continue
                with _naming_opened(part.context.name, "when it was closed"):
                    try:
                        if isinstance(part, Intake):
                            await part.stop()
                    finally:
                        part.close()
            except BaseException as error:
                self._error = self._error or error
        if not self._finished.done():
            self._finished.set_result(None)
        self._graph.in_use = False


@contextmanager
def _naming_opened(step: str, when: str) -> Iterator[None]:
    """What the user's part of an operator raises in this block comes out naming the step."""
    try:
        yield
    except AsyncStreamError:
        raise
    except Exception as error:
        raise UserFunctionError(step, None, error, when=when) from error


def _the_one(endpoints: dict[str, E], name: str | None, what: str, argument: str) -> E:
    """The endpoint called `name`, or the only one."""
    if name is None and len(endpoints) == 1:
        return next(iter(endpoints.values()))
    if name in endpoints:
        return endpoints[name]
    if not endpoints:
        raise PipelineError(f"the pipeline has no {what}")
    raise refuse(argument, f"the name of a {what}: " + ", ".join(map(repr, endpoints)), name)
