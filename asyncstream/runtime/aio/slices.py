"""
Long work on the event loop, in slices: other callbacks run in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

__all__ = ("in_slices",)

SLICE_SECONDS = 0.005
"""For how long nothing else runs, as far as slices are short."""


async def in_slices(work: Iterator[None]) -> Any:
    """Run through `work`, which yields between slices of about a millisecond; gives what it returns."""
    time = asyncio.get_running_loop().time
    until = time() + SLICE_SECONDS
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value
        if time() >= until:
            await asyncio.sleep(0)
            until = time() + SLICE_SECONDS
