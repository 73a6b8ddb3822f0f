"""
A table of an SQLite database as a source, read in an order that its rows keep.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import Any, Final, TypeVar, overload

from asyncstream.aside import aside
from asyncstream.connectors.base import Source, SourceBatch
from asyncstream.connectors.looking import looking_at
from asyncstream.connectors.models import Unfit, reader
from asyncstream.connectors.sqlite.database import PATIENCE, AnyPath, Database, database_path, quoted
from asyncstream.errors import SourceError, describe_error
from asyncstream.validation import count, text

__all__ = ("SqliteSource",)

T = TypeVar("T")
U = TypeVar("U")


_BEFORE_ALL: Final = -(2**63)
"""Smaller than the `rowid` of any row but the very smallest there can be."""


class SqliteSource(Source[T]):
    """
    Reads the rows of a table as dicts, in the order of their `rowid`, up to the last one there is.

    Rows that are added meanwhile are read too. A position is a `rowid`, so rows must not be changed or get
    smaller ones. A table that has never had the row of a position is refused: it is another one, or was
    emptied and numbers its rows from 1 again (`AUTOINCREMENT` would not).

    Args:
        path: the database file.
        table: the table; not one made `WITHOUT ROWID`.
        model: a dataclass, NamedTuple, TypedDict or pydantic model of which each row is to become one; see
            `connectors.models`. A row that is none is a `SourceError`, after all before it were delivered.
        batch: how many rows one read brings at most.
    """

    @overload
    def __init__(
        self: SqliteSource[dict[str, Any]], path: AnyPath, table: str, *, batch: int = 1000
    ) -> None: ...
    @overload
    def __init__(
        self: SqliteSource[U], path: AnyPath, table: str, *, model: type[U], batch: int = 1000
    ) -> None: ...
    def __init__(self, path: AnyPath, table: str, *, model: Any = None, batch: int = 1000) -> None:
        self._path = database_path(path)
        self._model = None if model is None else reader(model, has_bools=False)
        self._table = text("table", table)
        self._batch = count("batch", batch)
        self._database: Database | None = None
        self._row = 0

    async def open(self) -> None:
        self._row = _BEFORE_ALL
        if not os.path.exists(self._path):  # noqa: ASYNC240 - as quick as opening it, which would make it
            raise SourceError(f"cannot read {self._path}: there is no such file")
        self._database = Database(self._path)

    async def read(self) -> SourceBatch[T] | None:
        if self._database is None:
            raise SourceError(f"the source of {self._path} is not open")
        query = f"SELECT rowid, * FROM {quoted(self._table)} WHERE rowid > ? ORDER BY rowid LIMIT ?"
        bounds = (self._row, self._batch)

        def select(connection: sqlite3.Connection) -> tuple[list[str], list[Any]]:
            cursor = connection.execute(query, bounds)
            return [column[0] for column in cursor.description[1:]], cursor.fetchall()

        try:
            columns, rows = await self._database.do(select)
        except sqlite3.Error as error:
            raise self._unreadable(error) from error
        if not rows:
            return None
        values: list[Any] = []
        for number, *cells in rows:
            value: Any = dict(zip(columns, cells, strict=True))
            if self._model is not None:
                try:
                    value = self._model(value)
                except Unfit as error:
                    if values:  # they are delivered first; the next read finds it again
                        break
                    place = f"row {number} of table {self._table!r} of {self._path}"
                    raise SourceError(f"{place}: {error}") from error
            values.append(value)
            self._row = number
        return SourceBatch(values)

    def position(self) -> int:
        return self._row

    async def can_seek(self, position: int) -> None:
        def look() -> int:
            with closing(looking_at(self._path, timeout=PATIENCE)) as connection:
                return self._largest(connection)

        if not os.path.exists(self._path):  # noqa: ASYNC240 - as quick as opening it, which would make it
            raise SourceError(f"cannot read {self._path}: there is no such file")
        try:
            self._check(position, await aside(look))
        except sqlite3.Error as error:
            raise self._unreadable(error) from error

    async def seek(self, position: int) -> None:
        if self._database is None:
            raise SourceError(f"the source of {self._path} is not open")
        try:
            self._check(position, await self._database.do(self._largest))
        except sqlite3.Error as error:
            raise self._unreadable(error) from error
        self._row = position

    def _largest(self, connection: sqlite3.Connection) -> int:
        """The largest `rowid` that the table is known to have had."""
        rows = connection.execute(f"SELECT max(rowid) FROM {quoted(self._table)}").fetchall()
        counts = "SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'"
        if connection.execute(counts).fetchone() is not None:
            query = "SELECT seq FROM sqlite_sequence WHERE name = ?"
            rows += connection.execute(query, (self._table,)).fetchall()
        return max((row[0] for row in rows if row[0] is not None), default=_BEFORE_ALL)

    def _check(self, position: int, largest: int) -> None:
        if largest < position:
            known = "no row" if largest == _BEFORE_ALL else f"none behind {largest}"
            place = f"row {position} of table {self._table!r} of {self._path}"
            raise SourceError(
                f"cannot go on behind {place}: it has {known}. "
                "Put the database back that was read, or begin at its start by another name for the source "
                "or restore='none'"
            )

    def _unreadable(self, error: sqlite3.Error) -> SourceError:
        text = describe_error(error)
        if "no such column: rowid" in text:
            text = (
                "it was made WITHOUT ROWID, so its rows have no order to go on in; read a copy without that"
            )
        return SourceError(f"cannot read table {self._table!r} of {self._path}: {text}")

    async def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            await database.close()
