"""
What is to be killed does not end before it may, however quick the machine is, or slow the test: what comes
last waits for a file in the folder that the process was given.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

__all__ = ("let_end", "until_it_may_end")

_NAME = "may end"


def let_end(folder: Path) -> None:
    """Let the processes of a folder come to their end."""
    (folder / _NAME).touch()


async def until_it_may_end() -> None:
    """Wait, in a process whose first argument is its folder."""
    file = Path(sys.argv[1]) / _NAME
    while not file.exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)
