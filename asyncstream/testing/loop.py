"""
An asyncio event loop on virtual time: a `sleep(3600)` takes no time at all.

Whenever nothing is ready to run, the loop's clock jumps to the next timer. While threads of the loop's
executor work (`asyncio.to_thread`), or those of `in_threads`, time stands still until one of them is done.
Real sockets still work: they are polled before each jump, but a jump does not wait for them, so a test
either waits for the network or for time. The selector is handed to asyncio's own loop, and nothing private is
touched.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple, Unpack

from asyncstream.errors import InternalError, PipelineError, safe_repr

__all__ = ("VirtualTime", "VirtualTimeLoop", "run_virtual", "waiting")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

GRID = 1e-9
"""Seconds that the clock goes by at least, and by which a timer may go off early."""

PATIENCE = 10.0
"""Real seconds to wait for a socket when no timer is set, which then is called a deadlock."""

PATIENCE_WITH_THREADS = 60.0
"""The same while threads work: disks of busy machines are slow, and time must not jump over what they do."""


TASKS_SHOWN = 20
"""Tasks of which it is said where they wait."""

ASYNCIO = str(Path(asyncio.__file__).parent)
PACKAGE = str(Path(__file__).parents[1])


def waiting() -> str:
    """Where the tasks of the running loop wait, a line each: those in a user's code first."""
    places = sorted((_place(task.get_coro()), task.get_name()) for task in asyncio.all_tasks())
    lines = [f"\n  {name} in {place}" for (_, place), name in places[:TASKS_SHOWN]]
    more = len(places) - len(lines)
    return f"waiting are{''.join(lines) or ' none'}" + (f"\n  and {more} more" if more else "")


def _place(coroutine: Any) -> tuple[bool, str]:
    """Whether a coroutine waits in this package, and where: the innermost place that is not in asyncio."""
    is_ours, place = True, repr(coroutine)
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        code = frame.f_code
        if not code.co_filename.startswith(ASYNCIO):
            is_ours = code.co_filename.startswith(PACKAGE)
            place = f"{code.co_qualname}, {code.co_filename}:{frame.f_lineno}"
        coroutine = coroutine.cr_await
    return is_ours, place


class _JumpingSelector(selectors.DefaultSelector):
    """Waits by moving the loop's clock instead of by waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.threads = 0
        self.resting: list[asyncio.Future[None]] = []  # who waits for the moment before the next jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None and not self.resting:  # no timer: only a socket or a thread can go on from here
            ready = super().select(PATIENCE_WITH_THREADS if self.threads else PATIENCE)
            if not ready:
                raise InternalError(
                    f"virtual time stands still: every task waits and no timer is set; {waiting()}"
                )
            return ready
        is_jump = timeout is None or timeout > 0
        ready = super().select(PATIENCE_WITH_THREADS if self.threads and is_jump else 0)
        if is_jump and not ready:
            if self.resting:
                for waiter in self.resting:
                    if not waiter.done():
                        waiter.set_result(None)
                self.resting.clear()
            elif timeout is not None:
                self.now += timeout
        return ready


class _Endless(asyncio.TimerHandle):
    """Never due. Its loop keeps it until it is cancelled, as any other, and so the task that sleeps."""

    def __init__(self, kept: dict[int, asyncio.TimerHandle], *args: Any) -> None:
        super().__init__(*args)
        self._kept = kept
        kept[id(self)] = self

    def cancel(self) -> None:
        self._kept.pop(id(self), None)
        super().cancel()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` starts at 0 seconds and jumps from timer to timer."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        self._least = 0.0
        super().__init__(self._jumping)
        self._endless: dict[int, asyncio.TimerHandle] = {}

    def time(self) -> float:
        # a nanosecond grid: sums of many small jumps must meet the times that timers were set for
        return max(round(self._jumping.now, 9), self._least)

    def now_ms(self) -> int:
        """The loop's time as a `Clock` tells it, so that event loop and pipeline share one time."""
        return int(self.time() * 1000 + 1e-6)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if when == inf:  # as of a sleep for ever: there is nothing to jump to
            return _Endless(self._endless, when, callback, args, self, context)
        if 0 < when - self.time() < GRID:
            # it goes off now, and who sets it anew until its time has come, as anyio does, would so for ever
            self._least = when
        return super().call_at(when, callback, *args, context=context)

    async def rest(self) -> None:
        """Wait until nothing more happens at this time: the clock would jump, or nothing is left to do."""
        waiter = self.create_future()
        self._jumping.resting.append(waiter)
        await waiter

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._jumping.threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, future: asyncio.Future[Any]) -> None:
        self._jumping.threads -= 1

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for threads without a time limit: in virtual time it would be over at once."""
        self._jumping.threads += 1  # the one that waits for them
        try:
            await super().shutdown_default_executor()
        finally:
            self._jumping.threads -= 1


class VirtualTime:
    """
    The time of the `VirtualTimeLoop` that runs. It is a `Clock`, though a job in that loop needs none given.
    """

    def now_ms(self) -> int:
        """Milliseconds since the loop was made."""
        return self._loop().now_ms()

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._loop().time()

    async def advance(self, seconds: float | timedelta) -> None:
        """
        Let time pass: returns when all that happens until then, and at that very time, has happened.

        Args:
            seconds: how long; a `timedelta` or seconds.

        Raises:
            PipelineError: if it is no length of time, or the event loop is not on virtual time.
        """
        loop = self._loop()
        length = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        if not isinstance(length, int | float) or not 0 <= length < inf:
            raise PipelineError(f"seconds: expected a duration of at least 0, got {safe_repr(seconds)}")
        await asyncio.sleep(length)
        await loop.rest()

    def _loop(self) -> VirtualTimeLoop:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualTimeLoop):
            raise PipelineError(
                f"the event loop is a {type(loop).__name__}, which is not on virtual time: ask for the "
                "fixture virtual_time in the test, or use run_virtual"
            )
        return loop


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """
    Run `main` on a fresh `VirtualTimeLoop` and return what it returns.

    Args:
        main: the coroutine to run, as of `asyncio.run`.

    Raises:
        InternalError: if every task waits and no timer is set.
        PipelineError: if it is no coroutine.
    """
    if not asyncio.iscoroutine(main):
        raise PipelineError(
            f"main: expected a coroutine, got {safe_repr(main)}; call it: run_virtual(main())"
        )
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
