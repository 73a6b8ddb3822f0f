"""
An `AsyncFunction` that several steps, guards or jobs use at once: opened by the first, closed by the last.

Each level holds the one inside it: a step its function, a guard the function that it guards, and an
`async with` of the user's what it opens. So it does not matter at which level a function is shared.

A session, a cache, calls in flight that are shared: all of that is meant to be used by many. What one of them
must not do is close it while the others make calls. It belongs to one event loop, as a session does.
"""

from __future__ import annotations

import asyncio
from typing import Protocol
from weakref import ref

from asyncstream.errors import PipelineError

__all__ = ("InOneLoop", "Shared", "hold", "release")


class Shared(Protocol):
    """What is opened before its first use and closed after the last: an `AsyncFunction`."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class InOneLoop:
    """
    What calls of several guards wait for together: who waits is woken in its own event loop only, so it is
    held by those of one loop at a time. There is nothing to open.
    """

    async def open(self) -> None:
        """Nothing is opened."""

    async def close(self) -> None:
        """Nothing is closed."""


class _Hold:
    """
    How an async function is held.

    Attributes:
        function: when it is gone, with a job that was never closed, it is held no more.
        loop: which needs not be there for this, nor keep the job.
        turn: it is opened and closed by one at a time.
        holders: how many have asked for it and not let go.
        is_begun: it was asked to open, perhaps in vain, and has not been closed since.
        is_open: it has opened.
    """

    def __init__(self, function: Shared, loop: asyncio.AbstractEventLoop) -> None:
        place = id(function)
        self.function = ref(function, lambda _: _held.pop(place, None))
        self.loop = ref(loop)
        self.turn = asyncio.Lock()
        self.holders = 0
        self.is_begun = self.is_open = False


_held: dict[int, _Hold] = {}
"""By identity: functions compare as their classes like."""


async def hold(function: Shared) -> None:
    """
    Open it, unless it is open. Each caller must `release` it, also if this raises.

    Raises:
        PipelineError: if a job in another event loop holds it.
    """
    loop = asyncio.get_running_loop()
    mine = _Hold(function, loop)
    held = _held.setdefault(id(function), mine)  # in one step: a job in another thread may begin
    holding = held.loop()
    if holding is None or holding.is_closed():  # it ended with the job in it
        held = _held[id(function)] = mine
    elif holding is not loop:
        raise PipelineError(
            f"one {type(function).__name__} is in use in two event loops at once; make one for each"
        )
    held.holders += 1
    async with held.turn:
        if not held.is_open:
            if held.is_begun:  # in vain, by one who has not let go yet
                held.is_begun = False
                await function.close()
            held.is_begun = True
            await function.open()
            held.is_open = True


async def release(function: Shared) -> None:
    """Close it, unless others hold it."""
    held = _held.get(id(function))
    if held is None or held.loop() is not asyncio.get_running_loop():
        return  # it was refused
    held.holders -= 1
    async with held.turn:
        if held.holders:
            return
        is_begun, held.is_begun, held.is_open = held.is_begun, False, False
        try:
            if is_begun:  # else another one has closed it
                await function.close()
        finally:
            # else it has been asked for meanwhile, and is opened again
            if not held.holders and _held.get(id(function)) is held:
                del _held[id(function)]
