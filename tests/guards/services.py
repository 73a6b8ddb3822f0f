"""Services to be guarded, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from asyncstream.testing.loop import VirtualTimeLoop, run_virtual
from tests.closing_loops import close_amid


def now_ms() -> int:
    """The event loop's time in whole milliseconds."""
    return round(asyncio.get_running_loop().time() * 1000)


class Flaky:
    """Fails so many times, then gives back what it is given; `times` (ms) tells when it was called."""

    def __init__(self, failures: int, error: Exception | None = None, takes: float = 0.0) -> None:
        self.failures = failures
        self.error = error or OSError("down")
        self.takes = takes
        self.times: list[int] = []
        self.running = 0
        self.most_running = 0

    async def __call__(self, value: Any) -> Any:
        self.times.append(now_ms())
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if self.takes:
                await asyncio.sleep(self.takes)
        finally:
            self.running -= 1
        if self.failures > 0:
            self.failures -= 1
            raise self.error
        return value


def close_the_loop_in_mid_call(guarded: Any, again: Callable[[], Awaitable[None]]) -> None:
    """Close the event loop in the middle of a call, have the guard opened in another, and closed there."""
    calling = guarded(1)

    async def begin() -> asyncio.Task[Any]:
        await guarded.open()
        task: asyncio.Task[Any] = asyncio.ensure_future(calling)
        await asyncio.sleep(1)
        return task

    async def go_on() -> None:
        async with guarded, asyncio.timeout(200):
            await again()

    left = close_amid(VirtualTimeLoop(), begin())
    run_virtual(go_on())
    assert not left.done()
    calling.close()  # here, and not when it is collected
