"""
What each of several processes runs that share a limit: as many calls as it may make, until it is told to end.

It is imported by name in a process of its own, so it holds nothing of pytest.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from asyncstream.guards import SharedLimit, concurrency_limit, rate_limit

__all__ = ("hold_places", "use_rate")

CALLERS = 30


def use_rate(url: str, rate: int, begin: Any, seconds: float, starts: Any) -> None:
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

        async with guard:
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
