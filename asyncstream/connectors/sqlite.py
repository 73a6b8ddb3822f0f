"""
SQLite: a table as a source, read in the order of its rows, and as a sink.

The database works in threads, one call at a time, so the event loop does not wait for the disk.

What the sink does with checkpoints is in `staging`.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from operator import itemgetter
from typing import Any, Final, Literal, TypeVar, overload

from asyncstream.aside import aside
from asyncstream.connectors.base import Source, SourceBatch, TransactionalSink
from asyncstream.connectors.lines import column_names
from asyncstream.connectors.looking import looking_at
from asyncstream.connectors.models import Unfit, reader
from asyncstream.connectors.rows import Default, RowWriter, why_unwritten
from asyncstream.connectors.staging import Staging, quoted
from asyncstream.elements import Timestamps
from asyncstream.errors import SinkBroken, SinkError, SourceError, describe_error
from asyncstream.validation import choice, count, refuse, text

__all__ = ("SqliteSink", "SqliteSource")

T = TypeVar("T")
U = TypeVar("U")

AnyPath = str | os.PathLike[str]

_PATIENCE = 30.0
"""Seconds to wait while another connection writes."""

_LOOK = 0.2
"""Seconds between two looks whether a transaction that waits for another connection has been called off."""

_NATIVE = frozenset({bytes, bytearray, memoryview})
"""Types that SQLite stores as they are, besides numbers and texts."""


class _Database:
    """A connection that any thread may use, one at a time."""

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(
            path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
        )

    async def do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` in a thread. It goes on to its end there if the caller is cancelled."""
        return await asyncio.to_thread(self._do, work)

    async def commit(self, work: Callable[[sqlite3.Connection], T], safe: bool) -> tuple[T, bool]:
        """
        Do `work` in a thread, as a transaction.

        If the caller is cancelled it is either called off, and leaves nothing behind, or it has begun to
        commit: then it is waited for.

        Args:
            work: what to do.
            safe: it is to be on the disk when this returns.

        Returns:
            What `work` gives; and whether the caller was cancelled too late.
        """
        fate = _Fate()

        def whole(connection: sqlite3.Connection) -> T:
            connection.execute(f"PRAGMA synchronous={'FULL' if safe else 'NORMAL'}")
            self._begin(connection, fate)
            try:
                result = work(connection)
                if not fate.decide("commit"):
                    raise sqlite3.OperationalError("called off")
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            return result

        doing = asyncio.ensure_future(self.do(whole))
        was_cancelled = False
        while not doing.done():
            try:
                await asyncio.wait({doing})
            except asyncio.CancelledError:
                if fate.decide("call off"):
                    doing.add_done_callback(lambda done: done.cancelled() or done.exception())
                    raise
                was_cancelled = True
        return doing.result(), was_cancelled

    def _begin(self, connection: sqlite3.Connection, fate: _Fate) -> None:
        """Begin to write when no other connection does any more, unless it is called off before."""
        until = time.monotonic() + _PATIENCE
        connection.execute(f"PRAGMA busy_timeout={int(_LOOK * 1000)}")
        try:
            while True:
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    return
                except sqlite3.OperationalError as error:
                    is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                    if not is_busy or fate.is_off() or time.monotonic() > until:
                        raise
        finally:
            connection.execute(f"PRAGMA busy_timeout={int(_PATIENCE * 1000)}")

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            return work(self._connection)

    async def close(self) -> None:
        await self.do(lambda connection: connection.close())


class _Fate:
    """Whether a transaction commits or is called off: whichever is asked for first, in whatever thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._decided = ""

    def decide(self, what: str) -> bool:
        """Whether it is this, from now on."""
        with self._lock:
            self._decided = self._decided or what
            return self._decided == what

    def is_off(self) -> bool:
        return self._decided == "call off"


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
        self._path = _path(path)
        self._model = None if model is None else reader(model, has_bools=False)
        self._table = text("table", table)
        self._batch = count("batch", batch)
        self._database: _Database | None = None
        self._row = 0

    async def open(self) -> None:
        self._row = _BEFORE_ALL
        if not os.path.exists(self._path):  # noqa: ASYNC240 - as quick as opening it, which would make it
            raise SourceError(f"cannot read {self._path}: there is no such file")
        self._database = _Database(self._path)

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
            with closing(looking_at(self._path, timeout=_PATIENCE)) as connection:
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


class SqliteSink(TransactionalSink[Any]):
    """
    Writes mappings and other records, such as dataclasses and the results of windows, as rows of a table: at
    once, or exactly once in a job with checkpoints. How values are written: `asyncstream.connectors.rows`.

    Args:
        path: the database file; made if it is not there.
        table: the table; made with these columns, of no type, if it is not there.
        columns: the keys to write. An element must have all of them; others are left out. Of a window's
            result: `key`, `start`, `end`, the names of its aggregates.
        default: makes of a value of your own type one that can be written; raises `TypeError` for others.
        on_conflict: what to do with a row that breaks a constraint of the table, its primary key say: "fail",
            "ignore" the new row, or "replace" the old one.
    """

    def __init__(
        self,
        path: AnyPath,
        table: str,
        *,
        columns: Sequence[str],
        default: Default | None = None,
        on_conflict: Literal["fail", "ignore", "replace"] = "fail",
    ) -> None:
        self._path = _path(path)
        self._table = text("table", table)
        self._columns = names = column_names(columns)
        self._rows = RowWriter(names, default, _NATIVE)
        self._insert = "INSERT"
        if choice("on_conflict", on_conflict, ("fail", "ignore", "replace")) != "fail":
            self._insert += f" OR {on_conflict.upper()}"
        what = f"table {table!r} of {self._path}"
        self._staging = Staging(what, table, names, self._insert)
        self._database: _Database | None = None
        self._has_epochs = False
        self._taken = 0
        self._prepared: dict[int, int] = {}  # positions by epoch, of those not committed yet

    async def open(self) -> None:
        self._has_epochs = False
        await self._connect(self._make)

    async def fence(self) -> None:
        writer = self.writer
        if writer is None:
            return

        def put_up() -> None:
            if not os.path.exists(self._path):
                return
            with closing(sqlite3.connect(self._path, timeout=_PATIENCE, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                self._staging.fence(connection, writer)
                connection.execute("COMMIT")

        try:
            await aside(put_up)
        except sqlite3.Error as error:
            raise SinkError(f"cannot write to {self._path}: {describe_error(error)}") from error

    async def can_recover(self, position: int | None) -> None:
        def look() -> None:
            # what is not there yet is as good as empty
            path = self._path if os.path.exists(self._path) else ":memory:"
            with closing(looking_at(path, timeout=_PATIENCE)) as connection:
                self._staging.check(connection, position, self.writer)

        try:
            await aside(look)
        except sqlite3.Error as error:
            raise SinkError(f"cannot read {self._path}: {describe_error(error)}") from error

    async def recover(self, position: int | None) -> None:
        self._has_epochs = True
        self._staging.begin()
        self._prepared.clear()

        def work(connection: sqlite3.Connection) -> None:
            self._make(connection)
            self._staging.recover(connection, position, self.writer)

        await self._connect(work)

    async def _connect(self, work: Callable[[sqlite3.Connection], None]) -> None:
        try:
            self._database = _Database(self._path)
            await self._database.do(self._set_up)
        except sqlite3.Error as error:
            raise SinkError(f"cannot open {self._path}: {describe_error(error)}") from error
        await self._transaction(work)

    def _set_up(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        # nothing that is made safe from now on lies behind what an earlier process may have failed to write
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if self._has_epochs and "REPLACE" in self._insert:
            connection.execute("PRAGMA recursive_triggers=ON")  # so that replaced rows come into the undo

    def _make(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"CREATE TABLE IF NOT EXISTS {quoted(self._table)} ({self._names()})")

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        rows = [self._row(value) for value in values]
        insert, table = self._insert, quoted(self._table)
        if self._has_epochs:
            insert, table = "INSERT", self._staging.table
        places = ", ".join("?" * len(self._columns))
        statement = f"{insert} INTO {table} ({self._names()}) VALUES ({places})"
        # staged rows need not reach the disk before they are prepared
        self._taken = 0
        try:
            await self._transaction(
                lambda connection: connection.executemany(statement, rows),
                safe=not self._has_epochs,
                taken=len(rows),
            )
        except OverflowError as error:  # SQLite's integers have 64 bits
            widest = max(zip(map(_widest, rows), values, strict=True), key=itemgetter(0))[1]
            raise SinkError(why_unwritten(widest, f"table {self._table!r}", error)) from error

    def taken(self) -> int:
        return self._taken

    def _row(self, value: Any) -> list[Any]:
        try:
            return self._rows.row(value)
        except Exception as error:
            raise SinkError(why_unwritten(value, f"table {self._table!r}", error)) from error

    async def prepare(self, epoch: int) -> int:
        position = await self._transaction(self._staging.position)
        self._prepared[epoch] = position
        return position

    async def commit(self, epoch: int) -> None:
        position = self._prepared[epoch]
        await self._transaction(lambda connection: self._staging.commit(connection, position))
        self._prepared = {later: kept for later, kept in self._prepared.items() if later > epoch}

    async def close(self) -> None:
        if self._database is not None and self._has_epochs:
            with suppress(SinkError):  # the table was taken over, or cannot be written: that was said before
                await self._transaction(self._staging.release)
        database, self._database = self._database, None
        if database is not None:
            await database.close()

    async def _transaction(
        self, work: Callable[[sqlite3.Connection], T], *, safe: bool = True, taken: int = 0
    ) -> T:
        if self._database is None:
            raise SinkError(f"the sink of {self._path} is not open")

        def whole(connection: sqlite3.Connection) -> T:
            if self._has_epochs:
                self._staging.check_ours(connection)
            return work(connection)

        try:
            result, was_cancelled = await self._database.commit(whole, safe)
        except sqlite3.Error as error:
            # what the disk did not take may be gone, and with it what was written since without being synced
            is_io = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR
            raise (SinkBroken if is_io else SinkError)(
                f"cannot write to table {self._table!r} of {self._path}: {describe_error(error)}"
            ) from error
        self._taken = taken
        if was_cancelled:
            raise asyncio.CancelledError
        return result

    def _names(self) -> str:
        return ", ".join(map(quoted, self._columns))


def _widest(row: Sequence[Any]) -> int:
    return max((abs(cell) for cell in row if type(cell) is int), default=0)


def _path(path: object) -> str:
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise refuse("path", "the path of a database file", path)
    return str(os.fspath(path))
