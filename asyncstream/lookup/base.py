"""
What lookups in any kind of table share: the answers to a batch of elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from asyncstream.elements import Timestamps
from asyncstream.lookup.rows import MISSED, Joined
from asyncstream.operators.base import Operator, pairs
from asyncstream.operators.results import FirstKeys
from asyncstream.state import MISSING

__all__ = ("Answers",)


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

    def give(self, values: Sequence[Any], timestamps: Timestamps, row_of: Callable[[Any, Any], Any]) -> None:
        """
        Give each element with its row.

        Args:
            row_of: gives the row of a key, or else the other thing that it is given.
        """
        key_by, into = self._key_by, self._joined.into
        asks, keeps = self._joined.asks, self._joined.how == "left"
        found: list[Any] = []
        found_at: list[int | None] = []
        missed: list[Any] = []
        missed_at: list[int | None] = []
        value = None
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
            self._pass_on(found, found_at, missed, missed_at)
            self._operator.fail_on(value, error)
        self._pass_on(found, found_at, missed, missed_at)

    def _pass_on(
        self,
        found: list[Any],
        found_at: list[int | None],
        missed: list[Any],
        missed_at: list[int | None],
    ) -> None:
        if found:
            self._operator.out.process_batch(found, found_at)
        if missed:
            self._operator.side_output(MISSED).process_batch(missed, missed_at)
