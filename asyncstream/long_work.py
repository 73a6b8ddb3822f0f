"""
Long work on large state: on the event loop in slices, between which other callbacks run, without the garbage
collector, and leaving no memory behind.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

__all__ = ("give_back", "in_slices", "is_frozen", "without_collector")

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

FEW = 10_000
"""Objects that the collector walks over in a millisecond."""

MADE_A_SECOND = 2_000_000
"""Objects that Python makes, about."""

LITTLE = 8
"""So many times an object that was made is one that is counted: to make one takes ten times as long."""


def is_frozen() -> bool:
    """
    Whether the program has kept objects from the collector already, and is to give them back.

    To find out, all of them are counted.
    """
    return gc.get_freeze_count() > FROZEN_AT_START


class _Aging:
    """
    Makes objects old for the collector, which a moment in which they are frozen does.

    Where the program has frozen others, unfreezing would undo that. Whether it has is found by counting them,
    which holds the event loop, and is the longer the more there are. So of many it is asked again only when
    so many objects have been made that this is little beside making them.

    Attributes:
        frozen: how many there were when it was last asked, but for the interpreter's own.
    """

    def __init__(self) -> None:
        self.frozen = 0
        self._made = 0

    def age(self, made: int) -> None:
        """Have all that is there old, if that is worth it, for `made` objects have just been made."""
        self._made += made
        if made < FEW or self._made * LITTLE < self.frozen:
            return
        self._made = 0
        self.frozen = gc.get_freeze_count() - FROZEN_AT_START
        if self.frozen <= 0:
            gc.freeze()
            gc.unfreeze()


aging = _Aging()


def give_back() -> None:
    """
    Have the C library give back to the system what it keeps of freed memory; takes milliseconds.

    glibc keeps some tens of megabytes once as much has been freed that was in large pieces.
    """
    try:
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)
    except (ImportError, AttributeError, OSError, TypeError):  # a Python without libffi; another C library
        pass


@contextmanager
def without_collector(*, all_stays: bool = False) -> Iterator[None]:
    """
    What makes many objects in this block, none of which is garbage, does not set off the garbage collector.

    Its walk over all that is alive would hold the event loop for a tenth of a second, again and again.

    Args:
        all_stays: what is made lives long. If it is much, it counts as old at once; else the collector would
            walk over all of it right after the block, since it is new.
    """
    was_on = gc.isenabled()
    gc.disable()
    before, began = gc.get_count()[0], perf_counter()
    try:
        yield
    finally:
        if all_stays:
            # the collector's own count leaves out as many as have been let go meanwhile
            aging.age(max(gc.get_count()[0] - before, int((perf_counter() - began) * MADE_A_SECOND)))
        if was_on:
            gc.enable()
