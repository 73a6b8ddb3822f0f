"""
What lookups in any kind of table share: what is asked, the answers to a batch of elements, and the rows that
a table does not have, which are asked for one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from asyncstream.elements import Timestamps
from asyncstream.guards.guard import Call, Guard
from asyncstream.operators.base import Operator, pairs
from asyncstream.operators.functions import AsyncFunction, has_timeout_hook
from asyncstream.operators.results import FirstKeys, is_coroutine, is_deferred, not_a_value
from asyncstream.operators.spec import KeyBy
from asyncstream.state import MISSING

__all__ = ("MISSED", "Answers", "Asked", "How", "Joined")

How: TypeAlias = Literal["left", "inner"]
"""Of an element without a row: it is given with None, or left out."""

MISSED: Final = "missed"
"""Tag of the output for elements whose row is not there."""


@dataclass(frozen=True)
class Joined:
    """
    What is asked, and what is made of the answer.

    Attributes:
        on: gives for an element the key of its row.
        into: makes one of an element and its row; None: a pair.
        how: what becomes of an element without a row.
        asks: such an element goes to `missed` instead.
    """

    on: KeyBy
    into: Callable[[Any, Any], Any] | None = None
    how: How = "left"
    asks: bool = False


class Answers:
    """
    Answers the elements of an operator.

    Args:
        operator: answers go to its outputs.
        joined: what is asked, and what is made of the answer.

    Attributes:
        missed: how many elements had no row.
    """

    def __init__(self, operator: Operator, joined: Joined) -> None:
        self.missed = 0
        self._operator = operator
        self._joined = joined
        self._key_by: Callable[[Any], Any] = FirstKeys(self, joined.on)
        self._into = None if joined.into is None else self._first_into

    def give(self, values: Sequence[Any], timestamps: Timestamps, row_of: Callable[[Any, Any], Any]) -> None:
        """
        Give each element with its row.

        Args:
            row_of: gives the row of a key, or else the other thing that it is given.
        """
        key_by, into = self._key_by, self._into
        asks, keeps = self._joined.asks, self._joined.how == "left"
        found: list[Any] = []
        found_at: list[int | None] = []
        missed: list[Any] = []
        missed_at: list[int | None] = []
        value, failure = None, None
        try:
            for value, timestamp in pairs(values, timestamps):
                row = row_of(key_by(value), MISSING)
                if row is MISSING:
                    self.missed += 1
                    if asks:
                        missed.append(value)
                        missed_at.append(timestamp)
                    if asks or not keeps:
                        continue
                    row = None
                found.append((value, row) if into is None else into(value, row))
                found_at.append(timestamp)
        except BaseException as error:
            failure = error
        if found:
            self._operator.out.process_batch(found, found_at)
        if missed:
            self._operator.side_output(MISSED).process_batch(missed, missed_at)
        if failure is not None:
            self._operator.fail_on(value, failure)

    def _first_into(self, value: Any, row: Any) -> Any:
        """What is made of the elements of a first batch, which are looked at."""
        into: Any = self._joined.into
        made = into(value, row)
        if is_deferred(made):
            raise not_a_value([made], "ask a service in an async_map behind the lookup")
        self._into = into
        return made


class Asked(Guard[Any, list[Any]]):
    """
    Asks for the row of an element; gives what is made of the two, in a list, which is empty without.

    Args:
        fn: gives the row of an element, or None.
        joined: what is made of it.
    """

    def __init__(self, fn: Call[Any, Any], joined: Joined) -> None:
        super().__init__(fn)
        self._joined = joined
        if isinstance(fn, AsyncFunction) and has_timeout_hook(fn):
            self.__dict__["timeout"] = lambda value: self._made(value, fn.timeout(value))

    def told_apart_by(self) -> tuple[object, ...]:
        """For `operators.fingerprint`."""
        joined = self._joined
        return () if joined.into is None and joined.how == "left" else (joined.into, joined.how)

    async def invoke(self, value: Any) -> list[Any]:
        return self._made(value, await self._call(value))

    def _made(self, value: Any, row: Any) -> list[Any]:
        if is_coroutine(row):  # it is refused where it comes out, and would not be seen in what is made of it
            return [row]
        if row is None and self._joined.how == "inner":
            return []
        into = self._joined.into
        return [(value, row) if into is None else into(value, row)]
