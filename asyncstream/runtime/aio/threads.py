"""
A job in a thread of its own, for programs that have no event loop: Flask, Django, scripts.

    with pipeline.start_in_thread() as job:
        job.submit(event)               # from any thread; waits while the pipeline has no room
        for result in job.results():
            ...

Under a web server, start it in each worker process, after a fork, and call `close` when the worker ends (in
gunicorn: the hooks `post_fork` and `worker_exit`). A process that ends without that ends at once: the thread
does not hold it, and with checkpoints the next start goes on as after a crash.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from asyncstream.errors import PipelineError
from asyncstream.runtime.aio.from_thread import FromThread
from asyncstream.runtime.aio.inside import refuse_inside
from asyncstream.runtime.aio.job import Job
from asyncstream.runtime.aio.process import run_bounded

__all__ = ("ThreadedJob",)

T = TypeVar("T")


class _Abandoned(Exception):
    """The block was left by an exception, so that the job is to be stopped at once."""


class ThreadedJob(FromThread):
    """
    A job whose event loop runs in a thread of its own: a context manager, used from any other thread.

    Leaving the block ends the job as that of a `Job` does, and raises its error. A job that fails ends by
    itself: `error` and `state` tell, and `submit` raises `JobStopped`.

    Args:
        job: not entered yet; its block is to be cancelled when it fails.
        loop_factory: makes the event loop; asyncio's own by default.
    """

    def __init__(self, job: Job, loop_factory: Callable[[], Any] | None = None) -> None:
        super().__init__(job, self._running_loop)
        self._loop_factory = loop_factory
        self._begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()
        self._opened: Future[asyncio.AbstractEventLoop] = Future()
        self._failure: BaseException | None = None
        self._abandoned = False
        self._thread = threading.Thread(target=self._work, name="asyncstream job", daemon=True)

    def __enter__(self) -> ThreadedJob:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abandoned = error is not None
        self.close()

    if not TYPE_CHECKING:  # type checkers are to see that these are wrong

        def __aenter__(self) -> None:
            raise PipelineError(
                "a job in a thread of its own is for programs without an event loop: "
                "`with pipeline.start_in_thread() as job:`; here use `async with pipeline.start() as job:`"
            )

        __aexit__ = __aenter__

    def open(self) -> ThreadedJob:
        """Start it; returns when it runs. For where there is no block: `close` is to be called then."""
        if self._thread.ident is not None:
            raise PipelineError("a job runs once; call pipeline.start_in_thread() for another one")
        try:
            self._thread.start()
            self._opened.result()
        except BaseException as error:  # of the start; or of a signal, such as Ctrl-C, while this waited
            if isinstance(error, RuntimeError) and self._thread.ident is None:
                raise  # no thread could be had
            self._give_up()
            self._thread.join()
            raise
        return self

    def close(self) -> None:
        """
        End it, as leaving the block does; returns when its thread has ended.

        Raises:
            PipelineError: inside a step of the job, which would wait for itself.
        """
        if self._thread.ident is None:
            return
        refuse_inside(self._job._run, "close")
        try:
            self._opened.result().call_soon_threadsafe(self._leave.set)
        except RuntimeError:  # the loop is closed: it has failed, and ended by itself
            pass
        self._thread.join()
        failure, self._failure = self._failure, None
        if failure is not None and not isinstance(failure, _Abandoned):
            raise failure

    def _give_up(self) -> None:
        """Cancel the job, if it has begun to open and not ended."""
        either: set[Future[Any]] = {self._begun, self._opened}
        wait(either, return_when=FIRST_COMPLETED)
        if self._begun.done():
            loop, task = self._begun.result()
            with suppress(RuntimeError):  # the loop is closed: it has ended
                loop.call_soon_threadsafe(task.cancel)

    # ------------------------------------------------------------------ in the thread

    def _work(self) -> None:
        try:
            run_bounded(self._main(), self._loop_factory)
        except BaseException as error:
            self._failure = error
            if not self._opened.done():
                self._failure = None  # `open` raises it
                self._opened.set_exception(error)

    async def _main(self) -> None:
        self._leave = asyncio.Event()
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._begun.set_result((loop, task))
        async with self._job:
            self._opened.set_result(loop)
            await self._leave.wait()
            if self._abandoned:
                raise _Abandoned

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if not self._opened.done():
            raise PipelineError("the job is not running yet: `with pipeline.start_in_thread() as job:`")
        return self._opened.result()
