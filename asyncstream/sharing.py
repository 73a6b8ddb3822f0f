"""
An `AsyncFunction` that several steps, guards or jobs use at once: opened by the first, closed by the last.

Each level holds the one inside it: a step its function, a guard the function that it guards, and an
`async with` of the user's what it opens. So it does not matter at which level a function is shared.

A session, a cache, calls in flight that are shared: all of that is meant to be used by many. What one of them
must not do is close it while the others make calls. It belongs to one event loop, as a session does. So does
a limit that calls wait for, which has nothing to open.
"""

from __future__ import annotations

import asyncio
import os
from typing import Protocol, runtime_checkable
from weakref import ref

from asyncstream.errors import PipelineError

__all__ = ("Shared", "hold", "release")


@runtime_checkable
class Shared(Protocol):
    """What is opened before its first use and closed after the last: an `AsyncFunction`."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class _Hold:
    """
    How an async function is held.

    Attributes:
        function: when it is gone, with a job that was never closed, it is held no more.
        loop: which needs not be there for this, nor keep the job.
        process: the number of that in which it runs; one that is forked from it has a copy of both.
        turn: it is opened and closed by one at a time.
        holders: how many have asked for it and not let go.
        is_begun: it was asked to open, perhaps in vain, and has not been closed since.
        is_open: it has opened.
    """

    def __init__(self, function: object, loop: asyncio.AbstractEventLoop) -> None:
        place = id(function)
        self.function = ref(function, lambda _: _held.pop(place, None))
        self.loop = ref(loop)
        self.process = os.getpid()
        self.turn = asyncio.Lock()
        self.holders = 0
        self.is_begun = self.is_open = False


_held: dict[int, _Hold] = {}
"""By identity: functions compare as their classes like."""


async def hold(function: object) -> None:
    """
    Open it, unless it is open, or there is nothing to open: that calls wait for it together is enough, for
    who waits is woken in one event loop only. Each caller must `release` it, also if this raises.

    Raises:
        PipelineError: if a job in another event loop holds it, or in the process that this was forked from.
    """
    loop = asyncio.get_running_loop()
    mine = _Hold(function, loop)
    held = _held.setdefault(id(function), mine)  # in one step: a job in another thread may begin
    holding = held.loop()
    if holding is None or holding.is_closed():  # it ended with the job in it
        held = _held[id(function)] = mine
    elif holding is not loop:
        users = "two event loops at once"
        if held.process != mine.process:
            users = f"process {held.process}, from which this one was forked"
        raise PipelineError(f"one {type(function).__name__} is in use in {users}; make one for each")
    held.holders += 1
    async with held.turn:
        if not held.is_open:
            if isinstance(function, Shared):
                if held.is_begun:  # in vain, by one who has not let go yet
                    held.is_begun = False
                    await function.close()
                held.is_begun = True
                await function.open()
            held.is_open = True


async def release(function: object) -> None:
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
            if is_begun and isinstance(function, Shared):  # else another one has closed it
                await function.close()
        finally:
            # else it has been asked for meanwhile, and is opened again
            if not held.holders and _held.get(id(function)) is held:
                del _held[id(function)]
