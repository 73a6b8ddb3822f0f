"""
A process whose work is a pipeline: it runs to its end or until a signal, and is over in bounded time.

What happens at SIGTERM or SIGINT, with seconds since the signal, where `grace` is 10 by default:

    0               nothing is read and no call started any more; with checkpoints, one is taken at once
    until grace     calls that run may end, and sinks write what comes of them
    then, at most 3 each
                    sinks write what has reached them; what is cancelled ends; what is open closes;
                    with checkpoints, the last one is taken
    grace + 15      a thread of its own ends the process, whatever holds it, and says what that is

At the second signal the job is cancelled, and the process has 5 seconds left; the third ends it at once. The
checkpoint of the first signal is there by then, in all likelihood, and nothing depends on it.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from types import FrameType
from typing import Any, TypeVar

from asyncstream.aside import heed
from asyncstream.runtime.aio.job import Job

__all__ = ("GRACE", "LIMIT", "PROCESS_PATIENCE", "Signals", "end_job", "leave", "run_bounded", "until_signal")

log = logging.getLogger("asyncstream.job")

GRACE = 10.0
"""Seconds that running calls get after a signal: with all that follows well inside the usual 30."""

PROCESS_PATIENCE = 3.0
"""Seconds that sinks get to write, and what is cancelled or closed to end, after a signal."""

LIMIT = 15.0
"""Seconds after the grace at which the process is ended, whatever holds it."""

LAST_LIMIT = 5.0
"""The same, after the second signal."""

THREAD_PATIENCE = 3.0
"""Seconds that threads get to end when the event loop has."""

THREADS = "asyncstream-thread"
"""How the names of event loops' threads begin."""

_numbers = count(1)

_left: list[threading.Thread] = []
"""Of event loops that have ended: threads that did not end with them."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)

T = TypeVar("T")


def run_bounded(main: Coroutine[Any, Any, T], loop_factory: Callable[[], Any] | None = None) -> T:
    """
    As `asyncio.run`, but tasks that ignore their cancellation and threads that hang do not keep it for ever.

    They are named in the log. Python itself waits for threads at the end of the process; `leave` does not.
    """
    runner = asyncio.Runner(loop_factory=loop_factory)
    loop = runner.get_loop()
    prefix = f"{THREADS}-{next(_numbers)}"
    executor = ThreadPoolExecutor(thread_name_prefix=prefix)
    loop.set_default_executor(executor)
    try:
        with _woken_by_signals(loop):
            return runner.run(_heeded(main))
    finally:
        try:
            _end_rest(loop)
        finally:
            main.close()  # it may have been cancelled before it began
            executor.shutdown(wait=False, cancel_futures=True)
            left = _threads_left(loop, prefix, THREAD_PATIENCE)
            if left:
                log.error("threads that do not end: %s", ", ".join(thread.name for thread in left))
                _left.extend(left)
            asyncio.set_event_loop(None)
            loop.close()


@contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """
    Have a signal wake the loop, so that its handler is called at once.

    Python calls handlers in the main thread, between two of its steps. If the signal comes just before a loop
    waits, or another thread gets it, the loop would first wait for whatever comes next.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not isinstance(loop, asyncio.SelectorEventLoop):  # other loops do so themselves
        yield
        return
    mine, written = socket.socketpair()
    with mine, written:
        mine.setblocking(False)
        written.setblocking(False)
        before = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
        loop.add_reader(mine, mine.recv, 4096)
        try:
            yield
        finally:
            loop.remove_reader(mine)
            signal.set_wakeup_fd(before)


async def _heeded(main: Coroutine[Any, Any, T]) -> T:
    """`main`, with which nobody hears what its task ends with after an exit has gone up through the loop."""
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(heed)
    return await main


def _end_rest(loop: asyncio.AbstractEventLoop) -> None:
    """
    End the tasks and async generators that are left.

    Tasks are cancelled before one of them goes on: who waits for a task that has exited would exit once more.
    One that another thread has asked for, and that begins only now, may still do so, and so may what is
    cancelled: the exit goes up when all is ended.
    """
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    ending, exited = loop.create_task(_ended(tasks)), None
    while not ending.done():
        try:
            loop.run_until_complete(ending)
        except (SystemExit, KeyboardInterrupt) as error:
            exited = error
    if exited is not None:
        raise exited


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    stubborn = (await asyncio.wait(tasks, timeout=1))[1] if tasks else ()
    for task in stubborn:
        log.error("a task that ignored its cancellation is left behind: %s", task.get_name())
    closing = asyncio.create_task(asyncio.get_running_loop().shutdown_asyncgens())
    await asyncio.wait({closing}, timeout=1)


def _threads_left(loop: asyncio.AbstractEventLoop, prefix: str, seconds: float) -> list[threading.Thread]:
    """The threads of an event loop, and those that anyio has begun for it, that have not ended in time."""
    until = time.monotonic() + seconds
    threads = [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith(f"{prefix}_") or vars(thread).get("loop") is loop
    ]
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return [thread for thread in threads if thread.is_alive()]


def leave(status: int) -> int:
    """`status`, to exit with; if threads are left for which Python would wait, the process ends here."""
    if any(thread.is_alive() for thread in _left):
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # it is closed
                with suppress(OSError):  # nobody reads it, or its disk is full
                    stream.flush()
        logging.shutdown()
        os._exit(status or 1)
    return status


async def until_signal(
    job: Job, signals: Signals, *, keeps: bool, grace: float, say: Callable[[str], None]
) -> None:
    """
    Run a job to its end, or stop it at the first signal: with a checkpoint if it `keeps` them; otherwise it
    is drained, for as long as the grace.
    """
    work = asyncio.create_task(job.wait())
    first = asyncio.create_task(signals.first.wait())
    await asyncio.wait({work, first}, return_when=asyncio.FIRST_COMPLETED)
    first.cancel()
    if not work.done():
        say(f"stopping, within {grace + LIMIT:g} s; a second signal stops at once")
        await end_job(job, keeps=keeps, grace=grace, say=say)
    await work


async def end_job(job: Job, *, keeps: bool, grace: float, say: Callable[[str], None]) -> None:
    """
    End a job in bounded time, because its process is to end; arguments as for `until_signal`.
    """
    if keeps:
        await job.stop(PROCESS_PATIENCE, grace=grace)
        return
    try:
        await job.drain(grace or 0.001)
    except TimeoutError:
        await job.stop(PROCESS_PATIENCE)
        say("what was not finished in time is lost: no checkpoints are kept")


class Signals:
    """
    Sets `first` at the first signal, and cancels the task that made it at the second; `with` ends it.

    Handlers of their own, not the loop's: the clock must start to run also while a step holds the loop.

    Args:
        grace: seconds that the first one gives.
        say: told what happens; from a thread, too.
    """

    def __init__(self, grace: float, say: Callable[[str], None]) -> None:
        self.first = asyncio.Event()
        self.cut_short: int | None = None  # the signal that did
        self._grace = grace
        self._say = say
        self._count = 0
        self._job: Job | None = None
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._limit: threading.Timer | None = None

    def watch(self, job: Job) -> None:
        """Name the steps of this one."""
        self._job = job

    def __enter__(self) -> Signals:
        self._before = {number: signal.signal(number, self._came) for number in SIGNALS}
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _came(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 2:
            os._exit(128 + number)
        self._set_limit(self._grace + LIMIT if self._count == 1 else LAST_LIMIT)
        self._loop.call_soon_threadsafe(self._act, self._count, number)

    def _act(self, count: int, number: int) -> None:
        is_open = self._job is None or self._job.state not in ("new", "opening")
        if count == 1 and is_open:
            self.first.set()
        elif self._task is not None and self.cut_short is None:
            self.cut_short = number
            self._task.cancel()

    def _set_limit(self, seconds: float) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = threading.Timer(seconds, self._end, (seconds,))
        self._limit.daemon = True
        self._limit.start()

    def _end(self, seconds: float) -> None:
        """The process has not ended in time: say why, and end it."""
        try:
            steps = [] if self._job is None else self._job.unfinished()
            names = ", ".join(map(repr, steps)) or "no step"
            self._say(f"ended by force, {seconds:g} s after a signal; unfinished: {names}")
            faulthandler.dump_traceback()
            sys.stderr.flush()
        finally:
            os._exit(1)
