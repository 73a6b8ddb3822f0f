"""
What of a job can be called from other threads: Flask and Django views, workers, functions in a pool.

    async with pipeline.start() as job:
        await asyncio.to_thread(serve, job.from_thread)  # which calls .submit(event)

Each call is carried to the event loop of the job, and blocks its own thread until it is done there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent import futures
from typing import TYPE_CHECKING, Any, TypeVar, overload

from asyncstream.aside import running_loop
from asyncstream.checkpoint import CheckpointInfo
from asyncstream.connectors.outlets import Published, ResultsHandle, Slow
from asyncstream.errors import JobStopped, PipelineError
from asyncstream.runtime.aio.inspection import STUCK_SECONDS, Shown
from asyncstream.runtime.aio.snapshot import JobSnapshot
from asyncstream.runtime.aio.status import JobState, JobStatus
from asyncstream.runtime.aio.tickets import wait_in_thread
from asyncstream.validation import Duration, duration_seconds

if TYPE_CHECKING:
    from asyncstream.runtime.aio.job import Job

__all__ = ("FromThread",)

T = TypeVar("T")


class FromThread:
    """
    A job, for threads other than that of its event loop.

    Args:
        job: what is called.
        loop: gives its event loop; raises `PipelineError` if it does not run yet.
    """

    def __init__(self, job: Job, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._job = job
        self._loop_of_job = loop

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._job.name!r}, {self._job.state}>"

    # ------------------------------------------------------------------ in

    def submit(
        self,
        value: Any,
        *,
        to: str | None = None,
        durable: bool | None = None,
        id: str | None = None,
        timeout: Duration | None = None,
    ) -> bool:
        """As `Job.submit_threadsafe`: returns when the element is accepted."""
        return self._job.submit_threadsafe(value, to=to, durable=durable, id=id, timeout=timeout)

    def ask(
        self,
        value: Any,
        *,
        to: str | None = None,
        durable: bool | None = None,
        id: str | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """As `Job.ask`: returns the answer."""
        return self._do(self._job.ask(value, to=to, durable=durable, id=id, timeout=timeout))

    # ------------------------------------------------------------------ out

    @overload
    def results(self, of: ResultsHandle[T]) -> Iterator[T]: ...
    @overload
    def results(self, of: str | None = None) -> Iterator[Any]: ...
    def results(self, of: ResultsHandle[Any] | str | None = None) -> Iterator[Any]:
        """As `Job.results`, for a plain `for`; several threads share the results between them."""
        return self._each(self._job.results(of))

    @overload
    def subscribe(
        self,
        of: Published[T],
        *,
        filter: Callable[[T], object] | None = None,
        buffer: int = 100,
        slow: Slow = "drop",
    ) -> Iterator[T]: ...
    @overload
    def subscribe(
        self,
        of: str | None = None,
        *,
        filter: Callable[[Any], object] | None = None,
        buffer: int = 100,
        slow: Slow = "drop",
    ) -> Iterator[Any]: ...
    def subscribe(
        self,
        of: Any = None,
        *,
        filter: Callable[[Any], object] | None = None,
        buffer: int = 100,
        slow: Slow = "drop",
    ) -> Iterator[Any]:
        """As `Job.subscribe`, for a plain `for`; `filter` is called in the event loop's thread."""

        async def begin() -> AsyncIterator[Any]:
            return self._job.subscribe(of, filter=filter, buffer=buffer, slow=slow)

        return self._each(self._do(begin()))

    def _each(self, elements: AsyncIterator[T]) -> Iterator[T]:
        async def following() -> tuple[T, ...]:
            async for element in elements:
                return (element,)
            return ()

        while found := self._do(following()):
            yield found[0]

    # ------------------------------------------------------------------ the rest of it

    def wait(self, timeout: Duration | None = None) -> None:
        """As `Job.wait`; raises `TimeoutError` if that takes longer than `timeout`."""
        seconds = None if timeout is None else duration_seconds("timeout", timeout)
        self._do(_within(seconds, self._job.wait))

    def drain(self, timeout: Duration | None = None) -> None:
        """As `Job.drain`."""
        self._do(self._job.drain(timeout))

    def stop(self, timeout: Duration = 10.0, *, grace: Duration = 0.0) -> JobSnapshot:
        """As `Job.stop`."""
        return self._do(self._job.stop(timeout, grace=grace))

    def checkpoint(self) -> CheckpointInfo:
        """As `Job.checkpoint`."""
        return self._do(self._job.checkpoint())

    def metrics(self) -> dict[str, dict[str, int]]:
        """As `Job.metrics`."""
        return self._job.metrics()

    def status(self, *, values: Shown = False, stuck_after: Duration = STUCK_SECONDS) -> JobStatus:
        """As `Job.status`."""
        return self._job.status(values=values, stuck_after=stuck_after)

    @property
    def state(self) -> JobState:
        """As `Job.state`."""
        return self._job.state.name

    @property
    def error(self) -> BaseException | None:
        """As `Job.error`."""
        return self._job.error

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it in the loop of the job."""
        try:
            loop = self._loop_of_job()
            self._job._check_process()
            if loop is running_loop():
                raise PipelineError(
                    "this would hold the event loop of the job; await the job's own method there"
                )
            if not loop.is_running():
                raise self._ended() from self.error
            doing = asyncio.run_coroutine_threadsafe(work, loop)
        except BaseException as error:
            work.close()
            if isinstance(error, RuntimeError):  # the loop has been closed since
                raise self._ended() from self.error
            raise
        try:
            wait_in_thread(doing, loop)
        except BaseException:  # Ctrl-C, say: what nobody waits for any more is to take no result
            doing.cancel()
            raise
        if not doing.done():  # the loop was closed before it came to this
            work.close()
            raise self._ended() from self.error
        try:
            return doing.result()
        except futures.CancelledError:  # by the end of the loop
            raise self._ended() from self.error

    def _ended(self) -> JobStopped:
        return JobStopped(f"the job has ended; its state is {self.state!r}")


async def _within(seconds: float | None, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with asyncio.timeout(seconds):
        await work()
