"""
In what order a source reads the rows of an SQLite table, and how it knows which of them it has given.

By `rowid` a position is the last one, as new rows get larger ones. The values of a column need not be unique,
and a row may come to the last value at any time, with whatever key: one that is inserted in the same
second, or whose time is set anew. So a position by a column is its last value, and the keys of all rows that
were given of it. A read looks in this order, in one state of the table, until it has enough:

1. rows of the last value behind the last key: they are found in the index, however many have the value;
2. rows of the last value before it, of which those that were given are left out;
3. rows of larger values.

Only when nothing is left of a value are larger ones read, and the keys of it forgotten.

A read has enough with so many rows, or once they take up some `READ_BYTES`: to look at the size of every row
would take as long as to read it, so one of a few is looked at and stands for them.
"""

from __future__ import annotations

import logging
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from sys import getsizeof
from typing import Any, Final

from asyncstream.connectors.sqlite.database import has_rowid, rowid_beside
from asyncstream.errors import SourceError, safe_repr
from asyncstream.filesystem.sqlite import quoted

__all__ = ("READ_BYTES", "ByColumn", "ByRowid", "RowOrder")

_log = logging.getLogger("asyncstream.connectors.sqlite")

READ_BYTES: Final = 4 << 20
"""Bytes of rows with which a read has enough."""

_FEW: Final = 32
"""Rows of which one is looked at."""

_BEFORE_ALL: Final = -(2**63)
"""Smaller than the `rowid` of any row but the very smallest there can be."""

_COLLATION: Final = " COLLATE BINARY"
"""However a column is compared by itself: its values are the same for SQLite as for Python, this way."""

_ELSEWHERE: Final = "begin at its start by another name for the source or restore='none'"


class RowOrder(ABC):
    """
    An order of the rows of a table, and a place in it; `open` comes first.

    Attributes:
        width: how many of a selected row's cells stand before its columns, to know its place.
    """

    width: int

    def __init__(self, table: str, path: str) -> None:
        self._name = table
        self._table = quoted(table)
        self.what = f"table {table!r} of {path}"

    @abstractmethod
    def open(self, connection: sqlite3.Connection) -> None:
        """Begin before all rows. Raises `SourceError` if the table cannot be read in this order."""

    @abstractmethod
    def select(self, connection: sqlite3.Connection, most: int) -> tuple[list[str], list[Any]]:
        """
        The names of the columns, and the next rows, at most so many and fewer of large ones, each with
        `width` cells before.
        """

    @abstractmethod
    def pass_by(self, rows: Sequence[Any]) -> None:
        """The first ones of the rows that were selected last, at least one, were given."""

    @abstractmethod
    def label(self, row: Any) -> str:
        """Which row it is, for messages."""

    @abstractmethod
    def position(self) -> Any:
        """The place behind the rows that were given."""

    @abstractmethod
    def check(self, connection: sqlite3.Connection, position: Any) -> None:
        """Raises `SourceError` if the table is not one in which that is a place; changes nothing."""

    @abstractmethod
    def seek(self, position: Any) -> None:
        """Go to a place that was checked."""

    def _refuse_view(self, connection: sqlite3.Connection) -> None:
        query = "SELECT 1 FROM sqlite_master WHERE type = 'view' AND name = ? COLLATE NOCASE"
        if connection.execute(query, (self._name,)).fetchone() is not None:
            raise SourceError(
                f"cannot read {self.what}: it is a view, whose rows have neither a rowid nor a key to tell "
                "them apart; read the table that it is of"
            )

    def _columns(self, connection: sqlite3.Connection) -> list[Any]:
        """What `PRAGMA table_xinfo` says of each column; nothing if there is no such table."""
        return connection.execute(f"PRAGMA table_xinfo({self._table})").fetchall()

    def _rowid(self, connection: sqlite3.Connection, names: Container[str]) -> str | None:
        """
        A name for the `rowid`; None if the table was made without.

        Args:
            connection: to the database.
            names: of the columns, in small letters, any of which would hide it.
        """
        name = rowid_beside(names)
        if name is None:
            raise SourceError(f"cannot read {self.what}: its columns rowid, _rowid_ and oid hide its rowid")
        return name if has_rowid(connection, self._table, name) else None

    def _none_behind(self, place: str, known: str) -> SourceError:
        return SourceError(
            f"cannot go on behind {place} of {self.what}: it has {known}. "
            f"Put the database back that was read, or {_ELSEWHERE}"
        )


class _Filling:
    """
    The rows of one read.

    Attributes:
        rows: that it has.
        room: how many more it may have.
    """

    def __init__(self, most: int) -> None:
        self.rows: list[Any] = []
        self.room = most
        self._bytes = 0

    def take(self, found: Iterator[Any]) -> None:
        """Have rows of these, until there is no room."""
        few = 1  # the first may be large
        while self.room and (some := list(islice(found, min(few, self.room)))):
            self.rows += some
            size = sum(map(getsizeof, some[0]))
            self._bytes += len(some) * size
            self.room = self.room - len(some) if self._bytes < READ_BYTES else 0
            few = min(_FEW, 1 + (READ_BYTES - self._bytes) // size)


class ByRowid(RowOrder):
    """In the order of the `rowid`."""

    width = 1
    _row = 0
    _key = "rowid"

    def open(self, connection: sqlite3.Connection) -> None:
        self._refuse_view(connection)
        self._key = self._find_key(connection)
        self._row = _BEFORE_ALL

    def _find_key(self, connection: sqlite3.Connection) -> str:
        key = self._rowid(connection, {row[1].lower() for row in self._columns(connection)})
        if key is None:
            raise SourceError(
                f"cannot read {self.what}: it was made WITHOUT ROWID, so its rows have no order to go on in; "
                "say by= which column gives them one"
            )
        return key

    def select(self, connection: sqlite3.Connection, most: int) -> tuple[list[str], list[Any]]:
        key = self._key
        query = f"SELECT {key}, * FROM {self._table} WHERE {key} > ? ORDER BY {key} LIMIT ?"
        cursor = connection.execute(query, (self._row, most))
        read = _Filling(most)
        read.take(cursor)
        return [column[0] for column in cursor.description[1:]], read.rows

    def pass_by(self, rows: Sequence[Any]) -> None:
        self._row = rows[-1][0]

    def label(self, row: Any) -> str:
        return f"row {row[0]}"

    def position(self) -> int:
        return self._row

    def check(self, connection: sqlite3.Connection, position: Any) -> None:
        if not isinstance(position, int):
            was = f"in the order of column {position.get('by') if isinstance(position, dict) else 'rowid'!r}"
            raise SourceError(
                f"cannot go on in the order of rowid in {self.what}: it was read {was}. "
                f"Read it in that order again, or {_ELSEWHERE}"
            )
        largest = self._largest(connection)
        if largest < position:
            known = "no row" if largest == _BEFORE_ALL else f"none behind {largest}"
            raise self._none_behind(f"row {position}", known)

    def _largest(self, connection: sqlite3.Connection) -> int:
        """The largest `rowid` that the table is known to have had."""
        rows = connection.execute(f"SELECT max({self._find_key(connection)}) FROM {self._table}").fetchall()
        counts = "SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'"
        if connection.execute(counts).fetchone() is not None:
            query = "SELECT seq FROM sqlite_sequence WHERE name = ? COLLATE NOCASE"
            rows += connection.execute(query, (self._name,)).fetchall()
        return max((row[0] for row in rows if row[0] is not None), default=_BEFORE_ALL)

    def seek(self, position: Any) -> None:
        self._row = position


@dataclass(frozen=True, slots=True)
class _Shape:
    """
    How the table is made.

    Attributes:
        by: the column to read by, as SQL.
        keys: what tells apart rows of one value, as SQL: the `rowid`, or the primary key.
        is_indexed: rows of a value are found without looking at all of them.
    """

    by: str
    keys: list[str]
    is_indexed: bool


class ByColumn(RowOrder):
    """In the order of a column, and of the key among rows of one value."""

    def __init__(self, table: str, path: str, by: str) -> None:
        super().__init__(table, path)
        self._by = by
        self._shape = _Shape("", [], is_indexed=False)
        self._value: Any = None
        self._last: Any = None  # the largest key that was given of the value; None: nothing was given yet
        self._given: dict[Any, None] = {}  # all keys that were, in their order

    def open(self, connection: sqlite3.Connection) -> None:
        self._value, self._last, self._given = None, None, {}
        self._shape = shape = self._look(connection)
        self.width = 2 + len(shape.keys)
        if not shape.is_indexed:
            _log.warning(
                "%s is read in the order of column %r, which has no index that begins with it and is of the "
                "collation BINARY: each read looks at all rows. CREATE INDEX ... ON %s (%s)",
                self.what,
                self._by,
                self._table,
                quoted(self._by),
            )
        self._refuse_nulls(connection)

    # ------------------------------------------------------------------ the table

    def _look(self, connection: sqlite3.Connection) -> _Shape:
        self._refuse_view(connection)
        columns = self._columns(connection)
        names = {row[1].lower(): row[1] for row in columns if row[6] != 1}
        by = names.get(self._by.lower())
        if not names:
            raise SourceError(f"cannot read {self.what}: no such table")
        if by is None:
            raise SourceError(
                f"cannot read {self.what} by column {self._by!r}: it has only {', '.join(names.values())}; "
                "without by= rows are read in the order of their rowid"
            )
        primary = [row[1] for row in sorted(columns, key=lambda row: int(row[5])) if row[5]]
        rowid = self._rowid(connection, names.keys())
        keys = [rowid] if rowid is not None else primary
        indexes = connection.execute(f"PRAGMA index_list({self._table})").fetchall()
        is_rowid = primary == [by] and all(origin != "pk" for _, _, _, origin, _ in indexes)
        is_indexed = is_rowid or any(
            self._first(connection, name) == (by, "BINARY")
            for _, name, _, _, is_partial in indexes
            if not is_partial
        )
        return _Shape(
            f"r.{quoted(by)}",
            # the column itself tells rows of one value apart only if it alone is the key
            [f"r.{key if key == rowid else quoted(key)}" for key in keys if key != by or len(keys) == 1],
            is_indexed,
        )

    def _first(self, connection: sqlite3.Connection, index: str) -> tuple[str, str]:
        """The first column of an index, and its collation."""
        row = connection.execute(f"PRAGMA index_xinfo({quoted(index)})").fetchone()
        return row[2], row[4]

    def _refuse_nulls(self, connection: sqlite3.Connection) -> None:
        by, keys = self._shape.by, ", ".join(self._shape.keys)
        query = f"SELECT {keys} FROM {self._table} AS r WHERE {by} IS NULL LIMIT 1"
        row = connection.execute(query).fetchone()
        if row is not None:
            raise SourceError(
                f"cannot read {self.what} by column {self._by!r}: it is NULL in row {safe_repr(_key(row))}, "
                "which has no place in its order. Give such rows a value, and declare the column NOT NULL"
            )

    # ------------------------------------------------------------------ reading

    def select(self, connection: sqlite3.Connection, most: int) -> tuple[list[str], list[Any]]:
        connection.execute("BEGIN")
        try:
            self._refuse_nulls(connection)
            return self._next(connection, most)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _next(self, connection: sqlite3.Connection, most: int) -> tuple[list[str], list[Any]]:
        by, keys = f"{self._shape.by}{_COLLATION}", ", ".join(self._shape.keys)
        places = ", ".join("?" * len(self._shape.keys))

        def query(condition: str, *, is_behind: bool = False) -> str:
            return (
                f"SELECT {is_behind:d}, {by}, {keys}, r.* FROM {self._table} AS r {condition} "
                f"ORDER BY {by}, {keys}"
            )

        read = _Filling(most)
        larger, bounds = "", []
        if self._last is not None:
            larger, bounds = f"WHERE {by} > ?", [self._value]
            place = [self._value, *_cells(self._last)]
            here = f"WHERE {by} = ? AND ({keys})"
            read.take(connection.execute(f"{query(f'{here} > ({places})')} LIMIT ?", [*place, most]))
            if read.room:
                before = connection.execute(query(f"{here} < ({places})", is_behind=True), place)
                read.take(row for row in before if _key(row[2 : self.width]) not in self._given)
        cursor = connection.execute(f"{query(larger)} LIMIT ?", [*bounds, read.room])
        read.take(cursor)
        return [column[0] for column in cursor.description[self.width :]], read.rows

    def pass_by(self, rows: Sequence[Any]) -> None:
        for is_behind, value, *rest in rows:
            key = _key(rest[: self.width - 2])
            if self._last is None or value != self._value:
                self._value, self._given = value, {}
            self._given[key] = None
            if not is_behind:
                self._last = key

    def label(self, row: Any) -> str:
        return f"row {safe_repr(_key(row[2 : self.width]))} ({self._by} {safe_repr(row[1])})"

    # ------------------------------------------------------------------ positions

    def position(self) -> dict[str, Any]:
        return {"by": self._by, "value": self._value, "last": self._last, "given": list(self._given)}

    def check(self, connection: sqlite3.Connection, position: Any) -> None:
        was = position.get("by") if isinstance(position, dict) else None
        if was != self._by:
            order = "rowid" if was is None else f"column {was!r}"
            raise SourceError(
                f"cannot go on in the order of column {self._by!r} in {self.what}: it was read in the order "
                f"of {order}. Read it in that order again, or {_ELSEWHERE}"
            )
        by, value = f"{self._look(connection).by}{_COLLATION}", position["value"]
        if position["last"] is None:
            return
        query = f"SELECT 1 FROM {self._table} AS r WHERE {by} >= ? LIMIT 1"
        if connection.execute(query, (value,)).fetchone() is None:
            query = f"SELECT {by} FROM {self._table} AS r ORDER BY {by} DESC LIMIT 1"
            largest = connection.execute(query).fetchone()
            known = "no row" if largest is None else f"none behind {safe_repr(largest[0])}"
            raise self._none_behind(f"{self._by} {safe_repr(value)}", known)

    def seek(self, position: Any) -> None:
        self._value, last = position["value"], position["last"]
        self._last = None if last is None else _key(_cells(last))
        self._given = {_key(_cells(key)): None for key in position["given"]}


def _key(cells: Sequence[Any]) -> Any:
    """The cells of a key as one value: the only one, or a tuple."""
    return cells[0] if len(cells) == 1 else tuple(cells)


def _cells(key: Any) -> Sequence[Any]:
    """The cells of a key, which a codec may have made a list."""
    return key if isinstance(key, tuple | list) else (key,)
