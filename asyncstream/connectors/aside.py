"""
Waits for the disk in a thread that nobody waits for.

A write to a dead network disk may never come back. A thread of asyncio's own pool that hangs in one keeps the
process from ending; a daemon thread does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar

__all__ = ("aside",)

T = TypeVar("T")


async def aside(work: Callable[[], T]) -> T:
    """Do `work` in a thread. It goes on to its end there if the caller is cancelled."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(how: Callable[[Any], None], what: Any) -> None:
        if not done.done():
            how(what)

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            outcome: tuple[Callable[[Any], None], Any] = (done.set_exception, error)
        else:
            outcome = (done.set_result, result)
        try:
            loop.call_soon_threadsafe(tell, *outcome)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass

    Thread(target=run, name="asyncstream disk", daemon=True).start()
    return await done
