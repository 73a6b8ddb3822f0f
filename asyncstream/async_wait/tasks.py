"""
Ends tasks that run the user's code, and does not wait for ever for one that will not end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

__all__ = ("CANCEL_PATIENCE", "end_tasks")

CANCEL_PATIENCE = 10
"""Seconds, and cancellations, that a task gets to end."""


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """
    Cancel `tasks` and wait until they have ended.

    Returns:
        Those that ignored every cancellation, one each second for `CANCEL_PATIENCE` seconds.
    """
    running = set(tasks)
    for _ in range(CANCEL_PATIENCE):
        if not running:
            break
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=1)
    return running
