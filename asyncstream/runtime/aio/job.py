"""
A running pipeline, in the event loop that is already there.

A `Job` owns every task it starts: one for each source and sink, and the workers of the async steps. The
first failure anywhere stops everything, and is raised once. Between two callbacks of the loop the whole
pipeline stands still, so a snapshot is simply taken at such a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from asyncstream.arguments import Duration, duration_seconds, refuse
from asyncstream.clock import Clock, SystemClock
from asyncstream.connectors.submissions import Results, Submissions
from asyncstream.errors import AsyncStreamError, JobStopped, PipelineError, SinkError, SourceError
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.flow import Intake
from asyncstream.plan import Graph, SinkStep, SourceStep
from asyncstream.runtime.aio.alarms import Alarms
from asyncstream.runtime.aio.endpoints import SinkOperator, SourceDriver
from asyncstream.runtime.aio.wiring import Wiring

__all__ = ("Job", "JobSnapshot")

PATIENCE = 10.0
"""Seconds that sinks get, after a failure, to write what had reached them."""

E = TypeVar("E")


@dataclass(frozen=True)
class JobSnapshot:
    """
    Everything a stopped job had accepted and not finished: `start(snapshot=...)` goes on from here.

    Attributes:
        operators: what each step remembers, by its name.
        sources: where each source stands, by its name.
    """

    operators: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Any] = field(default_factory=dict)


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
    """

    def __init__(
        self, graph: Graph, *, clock: Clock | None = None, snapshot: JobSnapshot | None = None
    ) -> None:
        self._graph = graph
        self._clock = clock or SystemClock()
        self._from = snapshot
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
        self._cancel_rest: asyncio.TimerHandle | None = None
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
        if self._error is not None and error is not self._error:
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
        if self._state != "running" or self._error is not None:
            raise JobStopped("the job takes no more elements") from self._error
        await _the_one(self._submissions, to, "pipeline.submissions()", "to").submit(value)

    def results(self, of: str | None = None) -> AsyncIterator[Any]:
        """
        Iterate over the elements that reach a `stream.results()`, as they come.

        Ends when the job does. Several iterators share the elements between them.

        Args:
            of: name of the `results()` step; not needed if there is one only.
        """
        return _the_one(self._results, of, "stream.results()", "of").stream()

    async def wait(self) -> None:
        """Wait until every source has come to its end and everything is written."""
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
        self._end_sources()
        seconds = None if timeout is None else duration_seconds("timeout", timeout)
        async with asyncio.timeout(seconds):
            await self._outcome()

    async def stop(self, timeout: Duration = 10.0) -> JobSnapshot:
        """
        Stop now: running calls are cancelled, and what was accepted and not finished is returned.

        Args:
            timeout: how long sinks may take to write what has already reached them: a `timedelta` or
                seconds. What they did not write by then is in the snapshot.
        """
        if self._state == "running":
            self._state = "stopping"
            self._wind_down(duration_seconds("timeout", timeout))
            await asyncio.shield(self._finished)
        snapshot = self.snapshot()
        await self._close()
        return snapshot

    def snapshot(self) -> JobSnapshot:
        """Everything accepted and not finished, at this moment. Disturbs nothing."""
        return JobSnapshot(
            {name: operator.snapshot() for name, operator in self._wiring.operators.items()},
            {name: driver.source.position() for name, driver in self._wiring.sources.items()},
        )

    def metrics(self) -> dict[str, dict[str, int]]:
        """Counters and gauges of every step, by its name."""
        parts: dict[str, SourceDriver | Operator] = {**self._wiring.sources, **self._wiring.operators}
        return {name: counts for name, part in parts.items() if (counts := part.metrics())}

    # ------------------------------------------------------------------ inside

    async def _open(self) -> None:
        # tail first: an operator may emit as soon as it is open, also while it is restored
        operators = self._wiring.operators
        for name, operator in reversed(operators.items()):
            operator.open(
                OperatorContext(name, self._clock, partial(self._alarms.wake, operator), self._fail)
            )
            if isinstance(operator, Intake):
                await operator.start()
        for driver in self._wiring.sources.values():
            await driver.source.open()
        if self._from is not None:
            await self._restore(self._from)
        for name, operator in operators.items():
            if isinstance(operator, SinkOperator):
                self._spawn(name, operator.run())
        for name, driver in self._wiring.sources.items():
            self._spawn(name, driver.run())

    async def _restore(self, snapshot: JobSnapshot) -> None:
        unknown = [
            name
            for name, state in (*snapshot.operators.items(), *snapshot.sources.items())
            if state is not None and name not in self._graph
        ]
        if unknown:
            raise PipelineError(
                f"the snapshot holds state of steps that this pipeline does not have: {', '.join(unknown)}"
            )
        for name, driver in self._wiring.sources.items():
            position = snapshot.sources.get(name)
            if position is not None:
                await driver.source.seek(position)
        for name, operator in reversed(self._wiring.operators.items()):
            state = snapshot.operators.get(name)
            if state is not None:
                operator.restore(state)

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work, name=f"asyncstream {name}")
        self._tasks[task] = name
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        name = self._tasks.pop(task)
        if task.cancelled():
            if self._state == "running" and name not in self._wiring.sources:
                self._fail(SinkError(f"the task of sink {name!r} was cancelled from outside"))
        elif (error := task.exception()) is not None:
            if not isinstance(error, AsyncStreamError):
                kind = SourceError if name in self._wiring.sources else SinkError
                wrapped = kind(f"step {name!r}: {type(error).__name__}: {error}")
                wrapped.__cause__ = error
                error = wrapped
            self._fail(error)
        if not self._tasks and not self._finished.done():
            self._finished.set_result(None)

    def _fail(self, error: BaseException) -> None:
        """The first error decides: everything winds down, and it is raised to whoever waits for the job."""
        if self._error is None and self._state != "closed":
            self._error = error
            for results in self._results.values():
                results.unbind(error)
            self._wind_down(PATIENCE)

    def _wind_down(self, seconds: float) -> None:
        """Take in nothing, start nothing, and let sinks write what has reached them, for so long."""
        for operator in self._wiring.operators.values():
            if isinstance(operator, SinkOperator):
                operator.end_input()
            elif isinstance(operator, Intake):
                operator.halt()
        sources = [task for task, name in self._tasks.items() if name in self._wiring.sources]
        for task in sources:
            task.cancel()
        for submissions in self._submissions.values():
            submissions.end()
        self._cancel_rest = self._loop.call_later(seconds, self._cancel_tasks)
        if not self._tasks and not self._finished.done():
            self._finished.set_result(None)

    def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _outcome(self) -> None:
        await asyncio.shield(self._finished)
        if self._error is not None:
            raise self._error

    def _end_sources(self) -> None:
        for results in self._results.values():
            results.unbind()
        for name, driver in self._wiring.sources.items():
            if isinstance(driver.source, Submissions):
                driver.source.end()  # what was accepted is still read
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
        """End everything, whatever has happened; the first error found on the way is kept."""
        if self._state == "closed":
            return
        self._state = "closed"
        self._cancel_tasks()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        if self._cancel_rest is not None:
            self._cancel_rest.cancel()
        self._alarms.cancel()
        closing = [driver.source.close for driver in self._wiring.sources.values()]
        closing += [o.stop for o in self._wiring.operators.values() if isinstance(o, Intake)]
        for close in closing:
            try:
                await close()
            except Exception as error:
                self._error = self._error or error
        for operator in self._wiring.operators.values():
            operator.close()
        if not self._finished.done():
            self._finished.set_result(None)
        self._graph.in_use = False


def _the_one(endpoints: dict[str, E], name: str | None, what: str, argument: str) -> E:
    """The endpoint called `name`, or the only one."""
    if name is None and len(endpoints) == 1:
        return next(iter(endpoints.values()))
    if name in endpoints:
        return endpoints[name]
    if not endpoints:
        raise PipelineError(f"the pipeline has no {what}")
    raise refuse(argument, f"the name of a {what}: " + ", ".join(map(repr, endpoints)), name)
