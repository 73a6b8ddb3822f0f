"""
A table of an SQLite database as a source, read in an order that its rows keep: see `order`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar, overload

from asyncstream.aside import aside
from asyncstream.connectors.base import Source, SourceBatch
from asyncstream.connectors.lines import AnyPath
from asyncstream.connectors.models import Unfit, reader
from asyncstream.connectors.sqlite.database import PATIENCE, Database
from asyncstream.connectors.sqlite.order import ByColumn, ByRowid, RowOrder
from asyncstream.errors import SourceError, safe_repr, told_as
from asyncstream.filesystem.sqlite import database_path, is_only_to_read, looked_at
from asyncstream.validation import count, text

__all__ = ("SqliteSource",)

T = TypeVar("T")
U = TypeVar("U")


class _NoText(bytes):
    """A text that is not UTF-8, which SQLite takes from whoever writes it."""


def _text_or_bytes(data: bytes) -> str | _NoText:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _NoText(data)


class SqliteSource(Source[T]):
    """
    Reads the rows of a table as dicts, in the order of their `rowid` or of a column, up to the last one there
    is. Rows that are added meanwhile are read too.

    By `rowid`, a position is one, so rows must not be changed or get smaller ones. A table that has never had
    the row of a position is refused: it is another one, or was emptied and numbers its rows from 1 again
    (`AUTOINCREMENT` would not). One that was made anew and has grown past that row is not told from the old.

    By a column whose values grow, such as a counter or the time of a change, which need not be unique, a
    position is the last value with the rows that were given of it. A row whose value grows is read again, as
    it is then. Rows that come later with a smaller value than the last one are *not seen*: so of transactions
    that overlap, the one that took the smaller value should not commit last. Where a `rowid` is used again
    for the same value, that row is taken for the one before. A table without a value as large as that of the
    position is refused, as is one with a NULL in the column. Without an index that begins with the column a
    read looks at all rows; a warning says so.

    A database that may only be read, or lies in such a folder, is opened for each read.

    `VACUUM` gives the rows of a table without an `INTEGER PRIMARY KEY` other `rowid`s: a job that goes on
    from before it reads some of them twice, or not at all.

    Args:
        path: the database file.
        table: the table; one made `WITHOUT ROWID` only by a column.
        by: the column in whose order to read; None: by `rowid`. Texts are in the order of their bytes.
        model: a dataclass, NamedTuple, TypedDict or pydantic model of which each row is to become one; see
            `connectors.models`. A row that is none is a `SourceError`, after all before it were delivered; so
            is one with a text that is not UTF-8.
        batch: how many rows one read brings at most; fewer of large ones: about 4 MiB.
    """

    @overload
    def __init__(
        self: SqliteSource[dict[str, Any]],
        path: AnyPath,
        table: str,
        *,
        by: str | None = None,
        batch: int = 1000,
    ) -> None: ...
    @overload
    def __init__(
        self: SqliteSource[U],
        path: AnyPath,
        table: str,
        *,
        by: str | None = None,
        model: type[U],
        batch: int = 1000,
    ) -> None: ...
    def __init__(
        self, path: AnyPath, table: str, *, by: str | None = None, model: Any = None, batch: int = 1000
    ) -> None:
        self._path = database_path(path, beside=0)
        self._model = None if model is None else reader(model, has_bools=False, is_table=True)
        text("table", table)
        self._order: RowOrder = (
            ByRowid(table, self._path) if by is None else ByColumn(table, self._path, text("by", by))
        )
        self._batch = count("batch", batch)
        self._database: Database | None = None

    async def open(self) -> None:
        self._check_is_there()
        with self._naming():  # of what is no file
            self._database = Database(self._path)
        try:
            await self._do(self._order.open)
        except BaseException:
            await self.close()
            raise

    async def read(self) -> SourceBatch[T] | None:
        columns, rows = await self._do(self._selected)
        if not rows:
            return None
        values: list[Any] = []
        width = self._order.width
        for row in rows:
            value: Any = dict(zip(columns, row[width:], strict=True))
            if self._model is not None:
                try:
                    value = self._model(value)
                except Unfit as error:
                    if values:  # they are delivered first; the next read finds it again
                        break
                    raise SourceError(f"{self._order.label(row)} of {self._order.what}: {error}") from error
            values.append(value)
        self._order.pass_by(rows[: len(values)])
        return SourceBatch(values)

    def _selected(self, connection: sqlite3.Connection) -> tuple[list[str], list[Any]]:
        """The next rows; if there is one that cannot be read, those before it, or an error that names it."""
        try:
            return self._order.select(connection, self._batch)
        except sqlite3.OperationalError as error:
            if "decode to UTF-8" not in str(error):
                raise
        connection.text_factory = _text_or_bytes
        try:
            columns, rows = self._order.select(connection, self._batch)
        finally:
            connection.text_factory = str
        for place, row in enumerate(rows):
            cells = zip(columns, row[self._order.width :], strict=True)
            bad = [(name, bytes(cell)) for name, cell in cells if isinstance(cell, _NoText)]
            if bad and place:
                return columns, rows[:place]
            for name, data in bad:
                raise SourceError(
                    f"{self._order.label(row)} of {self._order.what}: column {name!r} holds a text that is "
                    f"not UTF-8, {safe_repr(data, 60)}"
                )
        return columns, rows

    def position(self) -> Any:
        return self._order.position()

    async def can_seek(self, position: Any) -> None:
        check = partial(self._order.check, position=position)
        self._check_is_there()
        with self._naming():
            await aside(partial(looked_at, self._path, check, timeout=PATIENCE))

    async def seek(self, position: Any) -> None:
        await self._do(partial(self._order.check, position=position))
        self._order.seek(position)

    async def _do(self, work: Callable[[sqlite3.Connection], U]) -> U:
        if self._database is None:
            raise SourceError(f"the source of {self._path} is not open")

        def do(connection: sqlite3.Connection) -> U:
            # a connection that is kept would leave, or want, a log in a folder of others'
            is_own = not is_only_to_read(self._path)
            return work(connection) if is_own else looked_at(self._path, work, timeout=PATIENCE)

        with self._naming():
            return await self._database.do(do)

    def _check_is_there(self) -> None:
        if not os.path.exists(self._path):  # as quick as opening it, which would make it
            raise SourceError(f"cannot read {self._path}: there is no such file")

    def _naming(self) -> AbstractContextManager[None]:
        return told_as(SourceError, f"read {self._order.what}", sqlite3.Error)

    async def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            await database.close()
