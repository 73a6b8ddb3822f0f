"""Closes an event loop amid what runs in it, as where a program is interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ("close_amid",)

T = TypeVar("T")


def close_amid(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, T]) -> T:
    """
    Run `main`, and close the loop with the tasks that are left, of which asyncio says nothing; gives what
    `main` does.
    """
    found = loop.run_until_complete(main)
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    return found
