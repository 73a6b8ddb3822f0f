"""
Ends a job in time when the process is told to end, whatever server the job lives in.

A server that is told to end stops accepting connections, waits until those that are open are done, and only
then tells the application. A stream of server-sent events is done when its job is: so the job has to be ended
first, at the signal itself. And while an application starts, a server waits for that before it ends.
`told_to_end` therefore puts a handler in front of the server's own, which it calls in turn. A process whose
signals no server has taken for itself is left alone.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from types import FrameType
from typing import Any

from asyncstream.errors import JobStopped
from asyncstream.runtime.aio import Job
from asyncstream.runtime.aio.process import end_job

__all__ = ("Ending", "told_to_end")

log = logging.getLogger("asyncstream.web")

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Ending:
    """
    Ends a job once, at the first request: it is stopped with a checkpoint if it `keeps` them, and otherwise
    drained. Running calls get the grace, in seconds. One that does not run yet is not begun.
    """

    def __init__(self, job: Job, *, keeps: bool, grace: float) -> None:
        self._job = job
        self._keeps = keeps
        self._grace = grace
        self._opening: asyncio.Timeout | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self, opening: Awaitable[Job]) -> None:
        """
        Wait for the job to run, which may take long: another one may have to end first.

        Raises:
            JobStopped: if it is to end before that.
        """
        try:
            async with asyncio.timeout(None) as limit:
                self._opening = limit
                await opening
        except TimeoutError:
            if not limit.expired():
                raise
            raise JobStopped(f"the process was told to end while {self._job.name!r} was starting") from None
        finally:
            self._opening = None
        if limit.when() is not None:  # it was told in the moment in which it opened
            self.begin()

    def begin(self) -> None:
        """End the job from now on: it takes in nothing more. To be called in its event loop."""
        if self._opening is not None:
            if self._opening.when() is None:  # else it is being given up already
                self._opening.reschedule(asyncio.get_running_loop().time())
        elif self._task is None:
            self._task = asyncio.get_running_loop().create_task(
                self._end(), name="asyncstream end of service"
            )

    async def wait(self) -> None:
        """Wait until the job has ended, if that has begun; an error of its own stays with it."""
        if self._task is not None:
            await self._task

    async def _end(self) -> None:
        if self._job.error is not None:
            return
        try:
            await end_job(self._job, keeps=self._keeps, grace=self._grace, say=log.warning)
        except Exception as error:
            if error is not self._job.error:  # which leaving the job raises
                raise


@contextmanager
def told_to_end(begin: Callable[[], object]) -> Iterator[None]:
    """
    Call `begin` in the running event loop when SIGTERM or SIGINT comes, before the server hears of it.

    Nothing happens where no handler of a server is there to be called next: in another thread than the
    main one, and where the signal would end the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    # a signal may come while a step of the job runs, in the context of that step
    context = copy_context()
    before: dict[int, Any] = {}

    def came(number: int, frame: FrameType | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(begin, context=context)
        before[number](number, frame)

    for number in SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler) and handler is not signal.default_int_handler:
            before[number] = handler
            signal.signal(number, came)
    try:
        yield
    finally:
        for taken, handler in before.items():
            if signal.getsignal(taken) is came:  # else another stands before it, and will call it
                signal.signal(taken, handler)
