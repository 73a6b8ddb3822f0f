"""
Long work on large state: on the event loop in slices, between which other callbacks run, and without the
garbage collector.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ("in_slices", "is_frozen", "without_collector")

SLICE_SECONDS = 0.005
"""For how long nothing else runs, as far as slices are short."""


URGENT_SECONDS = 0.1
"""The same, for work that falls behind otherwise."""

URGENT_SLICES = 20
"""Of such work at least, also where the machine is so busy that little of it is done in that time."""


def _never() -> bool:
    return False


async def in_slices(work: Iterator[None], is_urgent: Callable[[], bool] = _never) -> Any:
    """
    Run through `work`, which yields between slices of about a millisecond; gives what it returns.

    Args:
        is_urgent: whether the others have to wait longer; asked before each of their turns.
    """
    time = asyncio.get_running_loop().time
    until, least = time() + SLICE_SECONDS, 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value
        least -= 1
        if time() >= until and least <= 0:
            await asyncio.sleep(0)
            urgent = is_urgent()
            until = time() + (URGENT_SECONDS if urgent else SLICE_SECONDS)
            least = URGENT_SLICES if urgent else 0


FROZEN_AT_START = gc.get_freeze_count()
"""Objects that the interpreter itself keeps from the collector."""


def is_frozen() -> bool:
    """Whether the program has kept objects from the collector already, and is to give them back."""
    return gc.get_freeze_count() > FROZEN_AT_START


@contextmanager
def without_collector(*, all_stays: bool = False) -> Iterator[None]:
    """
    What makes many objects in this block, none of which is garbage, does not set off the garbage collector.

    Its walk over all that is alive would hold the event loop for a tenth of a second, again and again.

    Args:
        all_stays: what is made lives long. It counts as old at once; else the collector would walk over all
            of it right after the block, since it is new.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if all_stays and not is_frozen():  # else unfreezing would undo another's
            gc.freeze()
            gc.unfreeze()
        if was_on:
            gc.enable()
