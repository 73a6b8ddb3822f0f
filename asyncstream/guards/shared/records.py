"""
What guards ask of a place where processes share what they know.

A *record* is a small value of plain JSON under a name. It is changed as a whole: a function is given what
there is, and the store's time, and gives what there is to be from then on. No other change comes in
between. The function has no other effect, for it may be called again.

So the rules of a rate, of places, of a budget, of a breaker are plain functions of a record and a time
(`shared.rates`, `shared.places`), written once and tested in straight lines, whichever store keeps the
record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

__all__ = ("Change", "Moment", "Records", "RecordsAway")

T = TypeVar("T")


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
