"""
The inbox of an async step, in columns: what is accepted costs no object of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import repeat, starmap
from typing import Any, NamedTuple

from asyncstream.async_wait.entries import MARKED, Known
from asyncstream.operators.journey import Journey
from asyncstream.operators.origins import Origin

__all__ = ("Columns", "Inbox")


class Columns(NamedTuple):
    """Elements in columns; a timestamp for each, and an origin, where these are tracked."""

    values: list[Any]
    timestamps: list[int | None]
    origins: list[Origin | None]


class Inbox:
    """
    Holds elements, and control elements among them, from acceptance until they are taken.

    Attributes:
        values: the elements; None of control elements.
        stamps: the timestamp of each, or what stands in its place (`entries`).
        origins: where each comes from, where that is tracked.
        marks: for each that is not simply to be called: how many had been accepted before it.
    """

    __slots__ = ("_accepted", "marks", "origins", "stamps", "values")

    def __init__(self) -> None:
        self.values: deque[Any] = deque()
        self.stamps: deque[Any] = deque()
        self.origins: deque[Origin | None] = deque()
        self.marks: deque[int] = deque()
        self._accepted = 0

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[tuple[Any, Any, Origin | None]]:
        return zip(self.values, self.stamps, self.origins, strict=True)

    def add(self, value: Any, stamp: Any, origin: Origin | None = None) -> None:
        """Accept one, whatever it is."""
        if stamp.__class__ in MARKED:
            self.marks.append(self._accepted)
        self._accepted += 1
        self.values.append(value)
        self.stamps.append(stamp)
        self.origins.append(origin)

    def add_elements(
        self,
        values: Iterable[Any],
        timestamps: Iterable[int | None] | None,
        origins: Iterable[Origin | None] | None,
    ) -> None:
        """Accept elements that are simply to be called; None in place of a column: there is nothing in it."""
        before = len(self.values)
        self.values.extend(values)
        count = len(self.values) - before
        self._accepted += count
        self.stamps.extend(repeat(None, count) if timestamps is None else timestamps)
        self.origins.extend(repeat(None, count) if origins is None else origins)

    def follow(self, journey: Journey, elements: int) -> None:
        """The first of so many elements that were accepted last goes on with a journey."""
        self.stamps[-elements] = Known(self.stamps[-elements], journey)
        self.marks.append(self._accepted - elements)

    def unmarked(self) -> int:
        """How many elements in front are simply to be called."""
        waiting = len(self.values)
        return min(waiting, self.marks[0] + waiting - self._accepted) if self.marks else waiting

    def take(self, count: int) -> Columns:
        """Remove so many that are simply to be called."""
        return Columns(_taken(self.values, count), _taken(self.stamps, count), _taken(self.origins, count))

    def put_back(self, taken: Columns) -> None:
        """Put those in front again that were taken last; each has an origin, or None for one."""
        self.values.extendleft(reversed(taken.values))
        self.stamps.extendleft(reversed(taken.timestamps))
        self.origins.extendleft(reversed(taken.origins))


def _taken(column: deque[Any], count: int) -> list[Any]:
    if count < len(column):
        return list(starmap(column.popleft, repeat((), count)))
    taken = list(column)
    column.clear()
    return taken
