"""
A plain function that blocks, as an async function: each call runs in a thread, and the event loop goes on.

A thread cannot be ended from outside. So a call that is cancelled, by the timeout of its step or by a stop,
ends when the function returns, and keeps its thread until then: there are never more of them than were asked
for. A function that takes long may ask whether it still has to: `anyio.from_thread.check_cancelled()` raises
if not. It may also call back into the event loop, by `anyio.from_thread.run`.

Threads help functions that wait, for a network or a disk, or that compute outside of Python. Those that
compute in Python share one interpreter, and are no faster.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TypeVar

from anyio import CancelScope, CapacityLimiter
from anyio.to_thread import run_sync

from asyncstream.aside import heed, in_a_thread, to_its_end
from asyncstream.operators.functions import AsyncFunction
from asyncstream.operators.results import is_deferred, not_a_value
from asyncstream.sharing import hold, release
from asyncstream.validation import count, function, refuse

__all__ = ("THREADS", "InThreads", "in_threads")

THREADS = 40
"""Calls at once, if nothing else is asked for: as many as anyio runs of all kinds together."""

In = TypeVar("In")
Out = TypeVar("Out")


class InThreads(AsyncFunction[In, Out]):
    """
    An async function whose calls are those of a plain function, each in a thread of anyio's.

    Context variables of the caller are seen in the thread, `current_attempt()` for one.

    Args:
        fn: a plain function of one element, which may block.
        threads: how many calls run at once; or a limiter that is shared with others of one event loop.

    Attributes:
        fn: the function.
        threads: how many calls run at once.

    Raises:
        PipelineError: if `fn` is no plain function, or `threads` no such number.
    """

    def __init__(self, fn: Callable[[In], Out], *, threads: int | CapacityLimiter = THREADS) -> None:
        self.fn = function("fn", fn, "element")
        self._shared: CapacityLimiter | None = None
        if isinstance(threads, CapacityLimiter):
            if math.isinf(threads.total_tokens):
                raise refuse("threads", "a limiter with a finite number of tokens", threads.total_tokens)
            self._shared, self.threads = threads, int(threads.total_tokens)
        else:
            self.threads = count("threads", threads)
        # made when it opens: a process that is sent it makes its own
        self._own: CapacityLimiter | None = None

    def told_apart_by(self) -> tuple[Callable[[In], Out]]:
        """For `operators.fingerprint`."""
        return (self.fn,)

    async def open(self) -> None:
        self._own = CapacityLimiter(self.threads)
        if self._shared is not None:
            await hold(self._shared)

    async def close(self) -> None:
        self._own = None
        if self._shared is not None:
            await release(self._shared)

    async def invoke(self, value: In) -> Out:
        limiter = self._shared or self._own
        if limiter is None:
            limiter = self._own = CapacityLimiter(self.threads)
        scope = CancelScope()
        # in a task of its own: who cancels that of the caller would let go of the thread, not end its work
        call = asyncio.create_task(self._call(scope, limiter, value))
        # of a caller who is cancelled, a call that waits for its thread ends; one that has it can see this
        cancelled = await to_its_end(call, scope.cancel)
        if cancelled is not None:
            heed(call)
            raise cancelled
        return call.result()

    __call__ = invoke

    async def _call(self, scope: CancelScope, limiter: CapacityLimiter, value: In) -> Out:
        with scope:
            with in_a_thread():
                result: Out = await run_sync(self.fn, value, limiter=limiter)
            if is_deferred(result):
                raise not_a_value([result], "of an async def make an async_map without in_threads")
            return result
        raise asyncio.CancelledError  # before it had its thread


in_threads = InThreads
