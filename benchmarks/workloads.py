"""
What the async calls in the benchmarks do: answer at once, or wait as one waits for a reply on a socket.

A workload is a function that makes the call, inside the loop that will run it. All calls give back their
element, so every run is checked for completeness and order.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

__all__ = ("Call", "Replies", "Work", "immediate", "replies", "sleeping", "some")

Call: TypeAlias = Callable[[int], Coroutine[Any, Any, int]]
Work: TypeAlias = Callable[[], Call]

SLACK = 0.0002
"""Seconds by which a reply may come early, so that those of one moment come together."""


class Replies:
    """
    Futures that are completed a fixed time after they were made, by one timer for all of them.

    So do replies come from sockets: the loop wakes up once, and finds several. A timer for each call
    (`asyncio.sleep`) would cost more than most of what is compared here.

    Args:
        seconds: how long a reply takes.
    """

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._due: deque[tuple[float, asyncio.Future[None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def next(self) -> asyncio.Future[None]:
        future = self._loop.create_future()
        when = self._loop.time() + self._seconds
        self._due.append((when, future))
        if self._timer is None:
            self._timer = self._loop.call_at(when, self._arrive)
        return future

    def _arrive(self) -> None:
        now = self._loop.time() + SLACK
        due = self._due
        while due and due[0][0] <= now:
            _, future = due.popleft()
            if not future.done():
                future.set_result(None)
        self._timer = self._loop.call_at(due[0][0], self._arrive) if due else None


def immediate() -> Call:
    """Answers without suspending: a cache hit."""

    async def call(value: int) -> int:
        return value

    return call


def replies(seconds: float) -> Work:
    """Every call waits for a reply."""

    def make() -> Call:
        reply = Replies(seconds).next

        async def call(value: int) -> int:
            await reply()
            return value

        return call

    return make


def sleeping(seconds: float) -> Work:
    """Every call waits on a timer of its own."""

    def make() -> Call:
        async def call(value: int) -> int:
            await asyncio.sleep(seconds)
            return value

        return call

    return make


def some(share: float, seconds: float, *, others: float = 0.0) -> Work:
    """
    A share of the calls, drawn at random, waits for one time, and the others for another.

    Drawn, because every hundredth of a hundred at once would always be the same one.

    Args:
        share: from 0 to 1.
        seconds: how long the drawn ones wait.
        others: how long the others wait; 0: they answer at once.
    """
    draw = random.Random(7)
    drawn = [draw.random() < share for _ in range(1 << 16)]

    def make() -> Call:
        long = Replies(seconds).next
        short = Replies(others).next if others else None

        async def call(value: int) -> int:
            if drawn[value & 0xFFFF]:
                await long()
            elif short is not None:
                await short()
            return value

        return call

    return make
