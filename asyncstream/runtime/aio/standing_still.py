"""
Looks at a job, from any thread, while it stands still: in its event loop, between two callbacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from asyncstream.aside import running_loop
from asyncstream.runtime.aio.run import Run

__all__ = ("standing_still",)

T = TypeVar("T")

LOOP_SECONDS = 1.0
"""
Seconds that the loop gets to come to it; one that takes longer is blocked, and nothing moves either, or the
machine is busy.
"""

TRIES = 10
"""How often it is tried to look while something moves, before its error is raised."""


def standing_still(run: Run, look: Callable[[], T]) -> T:
    """
    What `look` gives, which only reads, in a moment in which nothing of the run moves; it is called again if
    it was not come to in time.
    """
    loop: asyncio.AbstractEventLoop | None = getattr(run, "loop", None)  # none before it is opened
    if loop is None or running_loop() is loop or not loop.is_running():
        return look()
    found: Future[T] = Future()

    def look_there() -> None:
        if found.set_running_or_notify_cancel():
            try:
                found.set_result(look())
            except BaseException as error:
                found.set_exception(error)

    try:
        loop.call_soon_threadsafe(look_there)
        return found.result(LOOP_SECONDS)
    except (RuntimeError, TimeoutError):  # closed since, or blocked
        found.cancel()
    for _ in range(TRIES):
        with suppress(RuntimeError):  # it was not blocked, but slow: what is looked at grows meanwhile
            return look()
    return look()
