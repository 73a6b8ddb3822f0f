"""
Records in a store that can compare and set, and no more: put a value in the place of one that is expected.

A process reads a record, computes what it is to be, and sets it only if it is still what was looked at;
else it reads again. One of those that try at the same moment succeeds, so there is always progress; how many
times the others try is bounded by how many there are.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import orjson

from asyncstream.errors import describe_error
from asyncstream.guards.shared.records import Change, Moment, RecordsAway

__all__ = ("ANSWER_WITHIN", "Compared")

T = TypeVar("T")

ANSWER_WITHIN: Final = 2.0
"""Seconds in which a store must answer."""

PAUSE: Final = 0.002
"""
Seconds to wait, at most, before another look; as long again with each that was in vain, up to ten times.
"""


class Compared(ABC):
    """Base of stores that compare and set."""

    errors: tuple[type[Exception], ...] = (OSError,)
    """What is raised when the store is not there."""

    @abstractmethod
    async def look(self, name: str) -> tuple[bytes | None, float]:
        """The value under a name, None if there is none; and the store's time, in seconds."""

    @abstractmethod
    async def swap(self, name: str, old: bytes | None, new: bytes) -> bool:
        """Set the value under a name to `new` if it is `old`; whether it was."""

    async def update(self, name: str, change: Change[T]) -> T:
        tries = 0
        while True:
            sent = get_running_loop().time()
            old, now = await self._answer(lambda: self.look(name))
            record, answer = change({} if old is None else orjson.loads(old), Moment(now, now - sent))
            new = orjson.dumps(record)
            if new == old or await self._answer(lambda: self.swap(name, old, new)):  # noqa: B023
                return answer
            tries += 1
            await asyncio.sleep(random.random() * PAUSE * min(tries, 10))

    async def _answer(self, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                return await ask()
        except Exception as error:
            if not isinstance(error, (*self.errors, TimeoutError)):
                raise
            raise RecordsAway(describe_error(error)) from error

    async def close(self) -> None:
        """Let go of connections."""
