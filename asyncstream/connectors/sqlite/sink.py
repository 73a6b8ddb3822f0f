"""
A table of an SQLite database as a sink. What it does with checkpoints is in `staging`.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any, Literal, TypeVar

from asyncstream.aside import aside
from asyncstream.connectors.base import CountingSink, TransactionalSink
from asyncstream.connectors.lines import AnyPath, column_names
from asyncstream.connectors.rows import Default, RowWriter, why_unwritten
from asyncstream.connectors.sqlite.database import PATIENCE, Database
from asyncstream.connectors.sqlite.staging import Staging
from asyncstream.elements import Timestamps
from asyncstream.errors import SinkBroken, SinkError, describe_error, over_elements, told_as
from asyncstream.filesystem.folders import missing_folder
from asyncstream.filesystem.sqlite import database_path, looking_at, quoted, transaction, write_ahead
from asyncstream.validation import choice, refuse, text

__all__ = ("SqliteSink",)

T = TypeVar("T")

_NATIVE = frozenset({bytes, bytearray, memoryview})
"""Types that SQLite stores as they are, besides numbers and texts."""


class SqliteSink(CountingSink[Any], TransactionalSink[Any]):
    """
    Writes mappings and other records, such as dataclasses and the results of windows, as rows of a table: at
    once, or exactly once in a job with checkpoints. How values are written: `asyncstream.connectors.rows`.

    A job that goes back to an earlier checkpoint takes back the rows that came since; what triggers of the
    table have changed, there or elsewhere, stays. It knows the rows by their `rowid`: no job is to go back
    behind a `VACUUM` of a table without `INTEGER PRIMARY KEY`, which gives them others.

    Args:
        path: the database file; made if it is not there.
        table: the table; made with these columns, of no type, if it is not there.
        columns: the keys to write. An element must have all of them; others are left out. Of a window's
            result: `key`, `start`, `end`, the names of its aggregates.
        default: makes of a value of your own type one that can be written; raises `TypeError` for others.
        on_conflict: what to do with a row that breaks a constraint of the table, its primary key say: "fail",
            "ignore" the new row, or "replace" the old one. In a job with checkpoints it fails when its
            checkpoint is committed, which ends the job, whatever `on_error=` says, until that is mended.
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
        self._path = database_path(path)
        self._table = text("table", table)
        self._columns = names = column_names(columns)
        # of letters in ASCII, small and capital ones are the same to it, and it would write one of two values
        if len({name.encode("utf-8", "surrogatepass").lower() for name in names}) < len(names):
            raise refuse("columns", "names that differ by more than small and capital letters", columns)
        self._rows = RowWriter(names, default, _NATIVE)
        self._insert = "INSERT"
        if choice("on_conflict", on_conflict, ("fail", "ignore", "replace")) != "fail":
            self._insert += f" OR {on_conflict.upper()}"
        what = f"table {table!r} of {self._path}"
        self._staging = Staging(what, table, names, self._insert)
        self._database: Database | None = None
        self._has_epochs = False
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
            opened = sqlite3.connect(self._path, timeout=PATIENCE, isolation_level=None)
            with closing(opened) as connection, transaction(connection):
                self._staging.fence(connection, writer)

        with told_as(SinkError, f"write to {self._path}", sqlite3.Error):
            await aside(put_up)

    async def can_recover(self, position: int | None) -> None:
        def look() -> None:
            # what is not there yet is as good as empty
            path = self._path if os.path.exists(self._path) else ":memory:"
            with closing(looking_at(path, timeout=PATIENCE)) as connection:
                self._staging.check(connection, position, self.writer)

        with told_as(SinkError, f"read {self._path}", sqlite3.Error):
            await aside(look)

    async def recover(self, position: int | None) -> None:
        self._has_epochs = True
        self._staging.begin()
        self._prepared.clear()

        def work(connection: sqlite3.Connection) -> None:
            self._make(connection)
            self._staging.recover(connection, position, self.writer)

        await self._connect(work)

    async def _connect(self, work: Callable[[sqlite3.Connection], None]) -> None:
        if (folder := missing_folder(self._path)) is not None:
            raise SinkError(f"cannot open {self._path}: there is no directory {folder}")
        with told_as(SinkError, f"open {self._path}", sqlite3.Error):
            self._database = Database(self._path)
            await self._database.do(self._set_up)
        await self._transaction(work)

    def _set_up(self, connection: sqlite3.Connection) -> None:
        write_ahead(connection, timeout=PATIENCE)
        # nothing that is made safe from now on lies behind what an earlier process may have failed to write
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _make(self, connection: sqlite3.Connection) -> None:
        self._staging.check_name(connection)
        connection.execute(f"CREATE TABLE IF NOT EXISTS {quoted(self._table)} ({self._names()})")

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self._taken = 0
        rows = self._rows.rows(values, f"table {self._table!r}")
        insert, table = self._insert, quoted(self._table)
        if self._has_epochs:
            insert, table = "INSERT", self._staging.table
        places = ", ".join("?" * len(self._columns))
        statement = f"{insert} INTO {table} ({self._names()}) VALUES ({places})"

        def add(connection: sqlite3.Connection) -> None:
            try:
                connection.executemany(statement, rows)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
                    # which it says of a statement, too, that cannot be: then it cannot be explained either
                    connection.execute(f"EXPLAIN {statement}", rows[0])
                    raise sqlite3.DataError(str(error)) from error
                raise

        # staged rows need not reach the disk before they are prepared
        try:
            with over_elements(_is_over_rows):
                await self._transaction(add, safe=not self._has_epochs, taken=len(rows))
        except (OverflowError, UnicodeEncodeError) as error:
            unfit = (value for value, row in zip(values, rows, strict=True) if not all(map(_fits, row)))
            bad = next(unfit, values[0])
            raise SinkError(why_unwritten(bad, f"table {self._table!r}", error)) from error

    async def prepare(self, epoch: int) -> int:
        position = await self._transaction(self._staging.position)
        self._prepared[epoch] = position
        return position

    async def commit(self, epoch: int) -> None:
        position = self._prepared[epoch]
        await self._transaction(lambda connection: self._staging.commit(connection, position, self.writer))
        self._prepared = {later: kept for later, kept in self._prepared.items() if later > epoch}

    async def close(self) -> None:
        try:
            if self._has_epochs:
                with suppress(SinkError):  # the table was taken over, or cannot be written: that was said
                    await self._transaction(self._staging.release)
        finally:
            database, self._database = self._database, None
            if database is not None:
                await database.close()

    async def _transaction(
        self, work: Callable[[sqlite3.Connection], T], *, safe: bool = True, taken: int = 0
    ) -> T:
        if self._database is None:
            raise SinkError(f"the sink of {self._path} is not open")

        database = self._database

        def whole(connection: sqlite3.Connection) -> T:
            if database.file.is_moved():
                raise SinkBroken(f"{self._path} was moved or replaced by another file while it was written")
            if self._has_epochs:
                self._staging.check_ours(connection)
            return work(connection)

        try:
            result, was_cancelled = await database.commit(whole, safe)
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


def _is_over_rows(error: BaseException) -> bool:
    """Whether SQLite says so of what is written: not of a lock, the disk or the file."""
    return isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | sqlite3.ProgrammingError)


def _fits(cell: Any) -> bool:
    """Whether SQLite has it: its integers have 64 bits, its texts no half characters."""
    if type(cell) is str:
        return cell.isascii() or not any("\ud800" <= character <= "\udfff" for character in cell)
    return type(cell) is not int or -(2**63) <= cell < 2**63
