"""
What becomes of work under way when who asked for it is cancelled: some goes on, the rest ends for good.

A request that has left cannot be called back: a caller that no longer waits for it cannot know what the
server has done. So what is under way goes on in a task of its own, to be looked at later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from asyncstream.aside import heed, to_its_end
from asyncstream.errors import SourceError

__all__ = ("answered_within", "carried_through", "now_and_then", "stopped")

T = TypeVar("T")

_PATIENCE = 5.0
"""Seconds that a call may still take when who asked for it was cancelled."""


async def carried_through(call: Coroutine[Any, Any, T]) -> T:
    """
    Do `call`. If the caller is cancelled, it may still come to its end, for some seconds; then it is
    cancelled, too. Raises `CancelledError` if the caller was cancelled, however the call has ended.
    """
    task = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        timer = asyncio.get_running_loop().call_later(_PATIENCE, task.cancel)
        await to_its_end(task)
        timer.cancel()
        heed(task)
        raise


@asynccontextmanager
async def answered_within(seconds: float | None) -> AsyncIterator[None]:
    """Raises `TimeoutError`, which says so, if what is awaited in this block takes longer; None: any time."""
    bound = asyncio.timeout(seconds)
    try:
        async with bound:
            yield
    except TimeoutError as error:
        if bound.expired():
            raise TimeoutError(f"there was no answer within {seconds:g} s") from error
        raise


async def now_and_then(seconds: float, call: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """
    Call, again and again, with so many seconds between, until this is cancelled: so that a server hears of a
    source that nobody reads. What fails is for the next read to say.
    """
    while True:
        await asyncio.sleep(seconds)
        with suppress(SourceError):
            await call()


async def stopped(task: asyncio.Task[Any] | None) -> None:
    """Cancel a task until it has ended: clients at times take a cancellation for an error."""
    if task is None:
        return
    if task.done():  # maybe of a loop that is closed, and calls nobody back
        heed(task)
        return
    task.add_done_callback(heed)  # also if who waits for its end does so no more
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.1)
