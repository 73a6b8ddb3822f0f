"""
A running pipeline, in the event loop that is already there: what the user holds of it.

A `Job` owns every task it starts: one for each source and sink, and the workers of the async steps; `run` has
them. The first failure anywhere stops everything, is logged, and is raised once.
"""

from __future__ import annotations

import asyncio
import os
from types import TracebackType
from typing import TYPE_CHECKING, Any

from asyncstream.aside import running_loop
from asyncstream.checkpoint import CheckpointInfo
from asyncstream.errors import PipelineError
from asyncstream.metrics import Metric
from asyncstream.operators.base import Operator
from asyncstream.plan import Graph
from asyncstream.runtime.aio.exchange import Exchange
from asyncstream.runtime.aio.from_thread import FromThread
from asyncstream.runtime.aio.inside import refuse_inside
from asyncstream.runtime.aio.inspection import STUCK_SECONDS, Shown, check_shown, inspect
from asyncstream.runtime.aio.journeys import Tracer
from asyncstream.runtime.aio.measuring import measure
from asyncstream.runtime.aio.progress import JobProgress, progress_of
from asyncstream.runtime.aio.run import Run
from asyncstream.runtime.aio.snapshot import JobSnapshot, take
from asyncstream.runtime.aio.standing_still import standing_still
from asyncstream.runtime.aio.state_view import Standing
from asyncstream.runtime.aio.status import JobState, JobStatus
from asyncstream.validation import Duration, duration_seconds, flag, refuse

__all__ = ("Job", "need_loop")


def need_loop() -> None:
    """See that an event loop of asyncio runs here; raises `PipelineError` if not, as under trio."""
    if running_loop() is None:
        raise PipelineError(
            "a job runs in an event loop of asyncio, and none runs here; under trio use "
            "`pipeline.start_in_thread()`, or have anyio run the program on its asyncio backend"
        )


class Job(Exchange):
    """
    One run of a pipeline: an async context manager.

    Leaving the block ends the job. Without checkpoints it is drained, as by `drain`: no new input is read,
    what was accepted is finished, and open windows fire, for no job will go on with them. With checkpoints it
    is stopped, as by `stop`: a last checkpoint holds what was accepted and not finished, and windows stay
    open for the next job; call `await job.drain()` in the block where it is to come to an end instead.
    Leaving it by an exception stops the job at once. `await job.wait()` inside the block lets finite sources
    come to their end.

    None of `stop`, `drain`, `wait` and `checkpoint` can be awaited inside a step of the job, nor in a task
    that a step has started: the job would wait for itself.

    Args:
        run: of the pipeline.
        cancel_body: cancel the task that runs the block when the job fails; the job's error then leaves the
            block, as that of a task leaves an `asyncio.TaskGroup`.
    """

    def __init__(self, run: Run, *, cancel_body: bool = False) -> None:
        run.told = self._failed
        super().__init__(run)
        self._cancel_body = cancel_body
        self._body: asyncio.Task[Any] | None = None  # while it is in the block and may be cancelled
        self._cancelled_body: asyncio.Task[Any] | None = None
        self._was_stopped = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, {self.state}>"

    @property
    def graph(self) -> Graph:
        """The plan that it runs."""
        return self._run.graph

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self._run.name

    if not TYPE_CHECKING:  # type checkers are to see that a plain `with` is wrong

        def __enter__(self) -> None:
            raise PipelineError(
                "a job is entered with `async with pipeline.start() as job:`; where no event loop runs, use "
                "`with pipeline.start_in_thread() as job:`"
            )

        __exit__ = __enter__

    async def __aenter__(self) -> Job:
        need_loop()
        if self._run.phase != "new":
            raise PipelineError("a job runs once; call pipeline.start() for another one")
        if self._run.graph.in_use:
            raise PipelineError("this pipeline is running already; its sources and sinks serve one job")
        self._process = os.getpid()
        self.graph.take(self._run)
        try:
            await self._run.open()
        except BaseException:
            self.graph.give_back(self._run)
            raise
        if self._cancel_body:
            self._body = asyncio.current_task()
            self._requests = 0 if self._body is None else self._body.cancelling()
            if self._run.error is not None:
                self._failed(self._run.error)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._body = None
        body = self._cancelled_body
        is_ours = body is not None and await self._take_back_cancellation(body)
        if is_ours and isinstance(error, asyncio.CancelledError):
            error = None  # it has done its work
        try:
            if self._run.phase in ("running", "stopping") and error is None:
                await self._leave()
        finally:
            if error is not None and not self._run.finished.done():
                self._was_stopped = True
            await self._run.close()
            self._tickets.refuse()
        failure = self._run.error
        if failure is None or error is failure:
            return
        # KeyboardInterrupt has gone up through the loop already; what leaves the block is its aftermath
        if error is None or isinstance(failure, Exception):
            raise failure

    async def _leave(self) -> None:
        if self._run.checkpointer is None:
            self._run.end_sources()
            await self._outcome()
        elif not self._run.finished.done():
            self._begin_end(10.0)  # there is a checkpoint: no snapshot is asked for
            await asyncio.shield(self._run.finished)
            await self._close()

    def _failed(self, error: BaseException) -> None:
        if self._body is not None and isinstance(error, Exception):
            self._cancelled_body, self._body = self._body, None
            self._cancelled_body.cancel()

    async def _take_back_cancellation(self, body: asyncio.Task[Any]) -> bool:
        """Whether this job alone has asked for the end of the block."""
        if not isinstance(self._run.error, Exception):
            return False
        try:
            await asyncio.sleep(0)  # if the block had ended already, its cancellation is still to come
        except asyncio.CancelledError:
            pass
        return body.uncancel() <= self._requests

    # ------------------------------------------------------------------ how it is

    @property
    def state(self) -> Standing:
        """
        Where the job stands, one of `JobState`.

        Called, it gives what a step remembers: `await job.state("totals").get(key)`, on the job's event loop.
        """
        return Standing(self._state(), self._operator)

    def _operator(self, step: str) -> Operator:
        operators = self._run.wiring.operators
        if step not in operators:
            raise PipelineError(
                f"the pipeline has no step {step!r} that remembers; it has {', '.join(operators)}"
            )
        return operators[step]

    def _state(self) -> JobState:
        run = self._run
        if run.error is not None:
            return "failed"
        if run.phase in ("new", "opening"):
            return run.phase
        if self._was_stopped:
            return "stopped" if run.finished.done() else "stopping"
        if run.finished.done():
            return "finished"
        return "draining" if run.is_draining else "running"

    @property
    def error(self) -> BaseException | None:
        """What the job failed with, as soon as it has; it is logged, and raised on leaving the block."""
        return self._run.error

    def status(self, *, values: Shown = False, stuck_after: Duration = STUCK_SECONDS) -> JobStatus:
        """
        How every step stands now: its counts, its event time, where its elements wait, and what for.

        May be asked at any time and in any thread, also before the job runs and when it is over. It disturbs
        nothing.

        Args:
            values: False: elements, and errors of functions, which may quote them, are hidden. True: they are
                shown, cut to 200 characters. A function of an element: what that gives is shown, an id, say.
            stuck_after: a step is stuck when what it waits for has not come for so long: a `timedelta` or
                seconds.
        """
        check_shown(values)
        seconds = duration_seconds("stuck_after", stuck_after, zero=True)
        return standing_still(
            self._run, lambda: inspect(self._run, self._state(), values=values, stuck_after=seconds)
        )

    def measure(self) -> tuple[Metric, ...]:
        """
        All that is counted and timed, with names and units, for exporters; see `asyncstream.telemetry`.

        May be asked at any time and in any thread.
        """
        return standing_still(self._run, lambda: measure(self._run, self._state()))

    def trace(self, tracer: Tracer) -> None:
        """
        Have elements followed and recorded, from when the job is entered; see `asyncstream.telemetry`.

        Raises:
            PipelineError: if it has been entered.
        """
        if self._run.phase != "new":
            raise PipelineError("the job runs already; trace it before `async with`")
        if not callable(getattr(tracer, "begin", None)):
            raise refuse("tracer", "a Tracer, with a method `begin`", tracer)
        self._run.tracer = tracer

    @property
    def resumed_from(self) -> CheckpointInfo | None:
        """The checkpoint that the job goes on from; None: it has begun at the beginning, or is not open."""
        return None if self._run.checkpointer is None else self._run.checkpointer.resumed_from

    def progress(self) -> JobProgress:
        """
        How far it has come: what was read, of how much, and what is on its way; in any thread. Nothing until
        all its steps are open.
        """
        self._check_started(is_open=False)
        return standing_still(self._run, lambda: progress_of(self._run.parts))

    def unfinished(self) -> list[str]:
        """The names of the steps that have something to do, open, read or close."""
        return self._run.unfinished()

    @property
    def from_thread(self) -> FromThread:
        """The job for other threads, which its methods block: `job.from_thread.submit(event)`."""
        self._check_started()
        return FromThread(self, lambda: self._run.loop)

    # ------------------------------------------------------------------ its end

    async def wait(self) -> None:
        """Wait until every source has come to its end and everything is written."""
        self._check_outside("wait")
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
        self._check_outside("drain")
        seconds = None if timeout is None else duration_seconds("timeout", timeout)
        self._run.end_sources()
        async with asyncio.timeout(seconds):
            await self._outcome()

    async def stop(self, timeout: Duration = 10.0, *, grace: Duration = 0.0) -> JobSnapshot:
        """
        Stop: running calls are cancelled, and what was accepted and not finished is returned.

        Event time stays where it is, and open windows stay open: another job goes on with them. Results that
        have not been taken yet are finished: `job.results()` still gives them.

        Sinks write what has already reached them. A write that takes longer than `timeout` is cancelled, and
        what the sink has not taken for good by then is in the snapshot: nothing is lost, and nothing is
        written twice by sinks that know what they have taken (`Sink.taken`), as all of this package do. The
        one element whose async function was cancelled is written again.

        Args:
            timeout: how long sinks may take to write what has already reached them: a `timedelta` or
                seconds.
            grace: how long, before that, running calls may go on; no input is read and no call started
                meanwhile. Ends as soon as nothing is left to wait for. With checkpoints, one is taken at the
                beginning of it too, for the case that the process is not left alone for so long.
        """
        self._check_outside("stop")
        seconds = duration_seconds("timeout", timeout, zero=True)
        grace_seconds = duration_seconds("grace", grace, zero=True)
        try:
            if self._run.phase == "running" and grace_seconds:
                await self._run.come_to_rest(grace_seconds)
        finally:  # also if who waits gives up: nothing is read any more, so nothing would end the job
            self._begin_end(seconds)
        await asyncio.shield(self._run.finished)
        snapshot = self.snapshot()
        await self._close()
        return snapshot

    def _begin_end(self, seconds: float) -> None:
        if not self._run.finished.done():
            self._was_stopped = True
        self._run.stop(seconds)

    async def _close(self) -> None:
        self._run.suspend_sources()
        await self._run.close()
        self._tickets.refuse()

    def snapshot(self) -> JobSnapshot:
        """
        Everything accepted and not finished, at this moment. Disturbs nothing.

        Nothing to go on from once the job has failed: a step that failed has not handed on all that it was
        given, and a source that is closed may have lost its place. That takes checkpoints.
        """
        self._check_started()
        return take(self._run.graph, self._run.wiring, self._run.now_ms())

    async def checkpoint(self, *, savepoint: bool = False) -> CheckpointInfo:
        """
        Take a checkpoint now; returns when it is safe, and committed by the sinks.

        Args:
            savepoint: it is to stay, however few are kept (`Checkpoints(keep=...)`), until it is deleted by
                `asyncstream checkpoint delete`. `Checkpoints(restore=number)` goes on from it.

        Raises:
            CheckpointError: if it failed; the job goes on.
            PipelineError: if the job was started without `checkpoints=`.
        """
        flag("savepoint", savepoint)
        self._check_outside("checkpoint")
        if self._run.checkpointer is None:
            raise PipelineError("the job keeps no checkpoints; start it with checkpoints=Checkpoints(...)")
        return await self._run.checkpointer.take(savepoint)

    def checkpoint_metrics(self) -> dict[str, int]:
        """Counters, and figures of the last checkpoint; empty without `checkpoints=`."""
        return {} if self._run.checkpointer is None else self._run.checkpointer.metrics()

    def metrics(self) -> dict[str, dict[str, int]]:
        """Counters and gauges of every step, by its name; in any thread. None until all of them are open."""
        self._check_started(is_open=False)
        parts = self._run.parts
        found = standing_still(self._run, lambda: {name: part.metrics() for name, part in parts.items()})
        return {name: counts for name, counts in found.items() if counts}

    # ------------------------------------------------------------------ inside

    def _check_outside(self, method: str) -> None:
        refuse_inside(self._run, method)
        self._check_started()
        self._check_loop(method, "asyncio.run_coroutine_threadsafe(...) takes it there")

    async def _outcome(self) -> None:
        self._run.awaited += 1
        try:
            await asyncio.shield(self._run.finished)
        finally:
            self._run.awaited -= 1
        if self._run.error is not None:
            raise self._run.error
