"""
Ends tasks that run the user's code, and does not wait for ever for one that will not end.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from asyncstream.aside import heed, in_its_loop

__all__ = ("CANCEL_PATIENCE", "end_tasks", "within")

CANCEL_PATIENCE = 10.0
"""Seconds that what is cancelled or closed gets to end."""

LAST_PATIENCE = 1.0
"""Seconds that something gets to heed its cancellation when it has had all of its time already."""

T = TypeVar("T")


async def end_tasks(
    tasks: Iterable[asyncio.Task[Any]], patience: float = CANCEL_PATIENCE
) -> set[asyncio.Task[Any]]:
    """
    Cancel `tasks` and wait until they have ended; gives those that ignored every cancellation, one each
    second for `patience` seconds.
    """
    running = set(tasks)
    for second in range(math.ceil(patience)):
        if not running:
            break
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=min(1.0, patience - second))
    return running


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """
    Await `work` in a task of its own, and leave it alone if it will not end; raises `TimeoutError` if it took
    longer than `seconds`, whether it heeded its cancellation then or not.
    """
    task = asyncio.create_task(work)
    task.add_done_callback(heed)  # nobody may be there to hear it: an exit goes up through the loop
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            return task.result()
    finally:
        if not task.done() and in_its_loop(task):
            await end_tasks({task}, LAST_PATIENCE)
    raise TimeoutError(f"it did not end within {seconds:g} s")
