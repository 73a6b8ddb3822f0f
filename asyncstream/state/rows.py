"""
The oldest generation of a table in memory, and what tables are made of.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sized
from itertools import chain, islice
from sys import getsizeof
from typing import Any, Final, TypeAlias

from asyncstream.state.weights import LEAST, ROWS, SPACES, Scale, ends

__all__ = (
    "AWAY",
    "GO_BYTES",
    "MISSING",
    "NO_ROWS",
    "SAMPLE",
    "SLICE",
    "Entry",
    "MemoryRows",
    "Rows",
    "about",
    "paced",
    "plain_namespace",
    "run_through",
    "same",
)

MISSING: Final[Any] = object()
"""What a lookup gives where there is nothing: None may be a value."""

SLICE: Final = 2_000
"""Rows that are merged or decoded in one go: about a millisecond."""

AWAY: Final = 500
"""Rows that are brought elsewhere, or from there, in one go: a few milliseconds."""

GO_BYTES: Final = 512 * 1024
"""About how many bytes of several rows are handled in one go, at most."""

SAMPLE: Final = 500
"""Namespaces, or rows, that are looked at to count them all."""

Rows: TypeAlias = dict[Any, Any]
"""Values by key, of one namespace."""

NO_ROWS: Final[Rows] = {}
"""Of a namespace that has none; to be read only."""

Entry: TypeAlias = tuple[Any, Any, Any]
"""Namespace, key and value of a row."""


def about(rows: Mapping[Any, Sized]) -> int:
    """About how many there are in all namespaces."""
    sample = list(islice(rows.values(), SAMPLE))
    return sum(map(len, sample)) * len(rows) // max(len(sample), 1)


def paced(count: int, size: int, most: int) -> int:
    """
    How many rows to handle in the next go, at `most`, when `count` of them came to `size` bytes; ten times as
    many at most, for few rows say little of those to come.
    """
    return max(1, min(most, 10 * count, count * GO_BYTES // max(size, 1)))


def run_through(work: Iterator[None]) -> None:
    """Do at once what comes in slices."""
    for _ in work:
        pass


def same(value: Any) -> Any:
    """Saves, or loads, what needs no change: a table of which all is so can be taken over at once."""
    return value


def plain_namespace(namespace: Any) -> Any:
    """
    A namespace as the codec keeps it: a window, being a tuple with names, as the equal plain tuple.

    So, too, the list that stands for one where a tuple could not be kept.

    Args:
        namespace: None, a number, or a window.
    """
    return tuple(namespace) if isinstance(namespace, tuple | list) else namespace


class MemoryRows:
    """
    The oldest generation of a table, in memory. Elsewhere there may be more rows than memory, and a lookup
    takes far longer than one in a dict: so a `DiskRows` can also be asked for many together.

    A row that is alone in its namespace and has no value (it is None), as that of a timer which shares its
    time with no other, is kept as its key: a dict for each would take four times the room.
    """

    __slots__ = ("_lone", "_rows")

    def __init__(self) -> None:
        self._rows: dict[Any, Rows] = {}
        self._lone: dict[Any, Any] = {}

    def __len__(self) -> int:
        """How many rows there are."""
        return sum(map(len, self._rows.values())) + len(self._lone)

    def get(self, namespace: Hashable, key: Hashable) -> Any:
        """The value, or `MISSING`."""
        rows = self._rows.get(namespace)
        if rows is None:
            rows = self.of(namespace)
        return rows.get(key, MISSING)

    def has(self, namespace: Hashable, key: Hashable) -> bool:
        """Whether there is such a row; may be asked in any thread."""
        return key in self.of(namespace)

    def remove(self, namespace: Hashable, key: Hashable) -> bool:
        """Have no such row; whether there was one."""
        rows = self.of(namespace)
        if rows.pop(key, MISSING) is MISSING:
            return False
        if not rows:
            self.drop(namespace)
        return True

    def drop(self, namespace: Hashable) -> None:
        """Have no such namespace."""
        if self._rows.pop(namespace, None) is None:
            self._lone.pop(namespace, None)

    def __contains__(self, namespace: Hashable) -> bool:
        """Whether the namespace has rows."""
        return namespace in self._rows or namespace in self._lone

    def of(self, namespace: Hashable) -> Rows:
        """The rows of a namespace, in order; to be read only."""
        rows = self._rows.get(namespace)
        if rows is not None:
            return rows
        key = self._lone.get(namespace, MISSING)
        return NO_ROWS if key is MISSING else {key: None}

    def namespaces(self) -> Iterable[Any]:
        """Those that have rows, in no order."""
        return chain(self._rows, self._lone) if self._lone else self._rows

    def adopt(self, namespace: Hashable, rows: Rows) -> None:
        """Have rows of a namespace that has none here; they are given away with this."""
        if len(rows) == 1 and next(iter(rows.values())) is None:
            (self._lone[namespace],) = rows
        else:
            self._rows[namespace] = rows

    def update(self, namespace: Hashable, rows: Iterable[tuple[Any, Any]]) -> None:
        """Put rows of a namespace."""
        present = self._rows.get(namespace)
        if present is not None:
            present.update(rows)
            return
        made = self.of(namespace) | dict(rows)
        if made:
            self._lone.pop(namespace, None)
            self.adopt(namespace, made)

    def load(self, groups: Iterable[tuple[Hashable, Iterable[tuple[Any, Any]]]]) -> None:
        """Put rows, given by namespace."""
        for namespace, rows in groups:
            self.update(namespace, rows)

    def entries(self) -> Iterator[Entry]:
        """All rows, those of one namespace together and in order; nothing may change meanwhile."""
        for namespace, rows in self._rows.items():
            for key, value in rows.items():
                yield namespace, key, value
        for namespace, key in self._lone.items():
            yield namespace, key, None

    def leaving(self) -> Iterator[Entry]:
        """As `entries`; each row is gone with this: to free all of them together takes long."""
        for namespace in list(self.namespaces()):
            rows = self.of(namespace)
            self.drop(namespace)
            for key in list(rows):
                yield namespace, key, rows.pop(key)

    def clear(self) -> None:
        """Have nothing."""
        self._rows.clear()
        self._lone.clear()

    def weight(self, scale: Scale) -> int:
        """About how many bytes of memory they take."""
        some = list(ends(self._rows.items(), SPACES))
        several = sum(
            scale.of(namespace) + getsizeof(rows) + scale.each(rows, max(ROWS // len(some), LEAST))
            for namespace, rows in some
        )
        whole = getsizeof(self._rows) + getsizeof(self._lone) + scale.each(self._lone)
        return whole + several * len(self._rows) // max(len(some), 1)
