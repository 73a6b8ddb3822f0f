"""
What each of several processes runs that share a limit: as many calls as it may make, until it is told to end.

It is imported by name in a process of its own, so it holds nothing of pytest.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

from asyncstream.guards import SharedLimit, circuit_breaker, concurrency_limit, rate_limit

__all__ = ("FAILS", "HANGS", "Lateness", "call_often", "hold_places", "use_rate")

CALLERS = 30

TICK = 0.01
"""Seconds between two looks at the clock; a loop that is late by no more has not stood still."""

FAILS, HANGS = 1, 2
"""What calls of a service do, if not 0."""


class Lateness:
    """
    How late the machine has been, in seconds: what real time is measured by here can be no more exact.

    Several processes note it together, each while it is a context around what it measures.

    Attributes:
        worst: the longest that a loop which had something to do has stood still.
        lost: for how long the one that stood still most has, in all.
    """

    def __init__(self, context: Any) -> None:
        self._worst, self._lost = context.Value("d"), context.Value("d")

    @property
    def worst(self) -> float:
        return float(self._worst.value)

    @property
    def lost(self) -> float:
        return float(self._lost.value)

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._look())

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _look(self) -> None:
        lost, before = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            late, before = now - before - TICK, now
            lost += late if late > TICK else 0.0
            for noted, found in ((self._worst, late), (self._lost, lost)):
                with noted.get_lock():
                    noted.value = max(noted.value, found)


def use_rate(url: str, rate: int, begin: Any, seconds: float, starts: Any, late: Lateness) -> None:
    """Say when each call began, as one list at the end; `begin` is a barrier."""
    begin.wait(60)
    until = time.monotonic() + seconds
    times: list[float] = []

    async def call(value: int) -> None:
        times.append(time.monotonic())

    async def main() -> None:
        guard = rate_limit(call, rate=rate, scope=SharedLimit(url))

        async def one_after_the_other() -> None:
            while True:
                await guard(0)

        async with late, guard:
            callers = [asyncio.create_task(one_after_the_other()) for _ in range(CALLERS)]
            await asyncio.wait(callers, timeout=until - time.monotonic())
            for caller in callers:
                caller.cancel()
            await asyncio.wait(callers)

    asyncio.run(main())
    starts.put(times)


def hold_places(url: str, most: int, begin: Any) -> None:
    """Take all places, and keep them."""

    async def call(value: int) -> None:
        if value == most - 1:
            begin.wait(60)
        await asyncio.sleep(600)

    async def main() -> None:
        guard = concurrency_limit(call, most=most, scope=SharedLimit(url))
        await asyncio.gather(*(guard(number) for number in range(most)))

    asyncio.run(main())


def call_often(
    url: str, number: int, mode: Any, begin: Any, open_for: float, calls: Any, late: Lateness
) -> None:
    """
    Call a service every 20 ms, for a minute, through a breaker. Each call says (number, when, mode), and does
    as the mode says.
    """
    begin.wait(60)

    async def call(value: int) -> None:
        found = mode.value
        calls.put((number, time.monotonic(), found))
        if found == HANGS:
            await asyncio.sleep(600)
        if found == FAILS:
            raise OSError("down")

    async def main() -> None:
        guard = circuit_breaker(call, min_calls=30, window=2.0, open_for=open_for, scope=SharedLimit(url))
        async with asyncio.timeout(60), late, guard:
            while True:
                with suppress(OSError):
                    await guard(0)
                await asyncio.sleep(0.02)

    asyncio.run(main())
