"""
What guards ask of a place where processes share what they know.

A *record* is a small value of plain JSON under a name. It is changed as a whole: a function is given what
there is, and the store's time, and gives what there is to be from then on. No other change comes in
between. The function has no other effect, for it may be called again.

So the rules of a rate, of places, of a budget, of a breaker are plain functions of a record and a time
(`shared.rates`, `shared.places`), written once and tested in straight lines, whichever store keeps the
record.

A store that can put a value in the place of one that is expected, and no more, is a `Compared`. A process
reads a record, computes what it is to be, and sets it only if it is still what was looked at; else it reads
again. One of those that try at the same moment succeeds, so there is always progress; how many times the
others try is bounded by how many there are.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import orjson

from asyncstream.aside import heeding
from asyncstream.errors import describe_error

__all__ = ("ANSWER_WITHIN", "SLOWEST", "Change", "Compared", "Moment", "Records", "RecordsAway")

T = TypeVar("T")

ANSWER_WITHIN: Final = 2.0
"""Seconds in which a store must answer."""

SLOWEST: Final = 2 * ANSWER_WITHIN
"""Seconds that a change may take where it takes two questions; if it is tried again it takes longer."""

PAUSE: Final = 0.002
"""
Seconds to wait, at most, before another look; as long again with each that was in vain, up to ten times.
"""


class Moment(NamedTuple):
    """
    When a change is made.

    Attributes:
        now: seconds, by the clock that all who share the store go by.
        ahead: seconds by which that clock is ahead of the event loop's. Where it cannot be known exactly, an
            instant of the loop's clock comes out a little late, and one of the store's a little early: what
            has been used counts for longer than it must, and what is lent is given back sooner.
    """

    now: float
    ahead: float = 0.0


Change: TypeAlias = Callable[[dict[str, Any], Moment], tuple[dict[str, Any], T]]
"""Gives, for a record (empty: there is none yet), the record that is to be, and an answer for the caller."""


class RecordsAway(Exception):
    """Raised when a store cannot be reached, or does not answer in time: the change may have been made."""


class Records(Protocol):
    """A store of records. It belongs to one event loop."""

    async def update(self, name: str, change: Change[T]) -> T:
        """
        Change a record, as one step.

        Raises:
            RecordsAway: if the store does not answer; the change has perhaps been made.
        """

    async def close(self) -> None:
        """Let go of files and connections."""


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
                return await heeding(ask())
        except Exception as error:
            if not isinstance(error, (*self.errors, TimeoutError)):
                raise
            raise RecordsAway(describe_error(error)) from error

    async def close(self) -> None:
        """Let go of connections."""
