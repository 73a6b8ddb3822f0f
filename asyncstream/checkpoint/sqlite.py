"""
Checkpoints in an SQLite database, in WAL mode, every write brought to the disk.

The lease is a row, and every transaction that writes begins with a look at it. So there is no moment between
the look and the write in which another could take over: a process that was stopped finds out. One that is
stopped within a transaction holds SQLite's lock, which cannot be broken: others then say that the database is
locked.

The row also holds the largest number of a manifest. A page that was lost with rows on it leaves no other
trace: so it is seen that something is missing, and not taken for an empty store.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from asyncstream.aside import aside
from asyncstream.checkpoint.directory import name_file
from asyncstream.checkpoint.journal_files import FolderFiles
from asyncstream.checkpoint.stores import CheckpointStore, Manifests, lost, manifests_by, missing, time_ms
from asyncstream.errors import CheckpointError, DamagedCheckpoint, describe_error
from asyncstream.filesystem.sqlite import JOURNAL_BYTES, database_path, looking_at, quoted, write_ahead
from asyncstream.lease import Holder, Lease, following
from asyncstream.shown import Shown
from asyncstream.validation import text

__all__ = ("SqliteStore",)

T = TypeVar("T")

_APPLICATION = 0x61737472
"""SQLite's application id of a database that was made for checkpoints ("astr")."""

_UNFINISHED_BYTES = len(".01234567.unfinished")
"""By which the name of a database that is being made is longer than the one that it gets."""

_PATIENCE = 20.0
"""Seconds to wait while another connection writes."""


class SqliteStore(CheckpointStore, Shown):
    """
    Keeps checkpoints in three tables of an SQLite database.

    Args:
        path: the database file; made if it is not there.
        table: the table of the manifests; made if it is not there. The others are named after it.
    """

    def __init__(self, path: str | os.PathLike[str], *, table: str = "asyncstream_checkpoints") -> None:
        self._path = database_path(path, beside=_UNFINISHED_BYTES + JOURNAL_BYTES)
        self._table = quoted(text("table", table))
        self._parts = quoted(f"{table}_parts")
        self._lease = quoted(f"{table}_lease")

    def __str__(self) -> str:
        return str(self._path)

    def journal_files(self) -> FolderFiles:
        """Where a journal of finished calls is kept: files whose names begin with the database's."""
        path = Path(self._path)
        return FolderFiles(path.parent, f"{path.name}-")

    # ------------------------------------------------------------------ the lease

    async def acquire(self, holder: Holder, seconds: float) -> Lease:
        def work(database: sqlite3.Connection) -> Lease:
            lease = following(self._row(database)[0], holder, seconds, time_ms(), str(self))
            self._write_lease(database, lease)
            return lease

        return await self._change(None, work)

    async def renew(self, lease: Lease, seconds: float) -> None:
        def work(database: sqlite3.Connection) -> None:
            self._write_lease(database, lease.renewed(time_ms() + round(seconds * 1000)))

        await self._change(lease, work)

    async def release(self, lease: Lease) -> None:
        def work(database: sqlite3.Connection) -> None:
            current = self._row(database)[0]
            if current is not None and current.number == lease.number:
                self._write_lease(database, lease.given_back())

        await self._change(None, work)

    async def holder(self) -> Lease | None:
        return await self._look(lambda database: self._row(database)[0])

    def _row(self, database: sqlite3.Connection) -> tuple[Lease | None, int]:
        """The lease that was given last, and the largest number of a manifest, 0 for none."""
        if not self._has(database, self._lease):
            return None, 0
        try:
            found, newest = database.execute(f"SELECT lease, newest FROM {self._lease}").fetchone()
            return None if found is None else Lease.from_json(found), int(newest)
        except (TypeError, ValueError) as error:
            raise DamagedCheckpoint(
                f"{self._path} is damaged: its lease cannot be read; put a backup in its place"
            ) from error

    def _write_lease(self, database: sqlite3.Connection, lease: Lease) -> None:
        database.execute(f"UPDATE {self._lease} SET lease = ?", (lease.to_json(),))

    # ------------------------------------------------------------------ parts and manifests

    async def put(self, lease: Lease, part: str, data: bytes) -> None:
        statement = f"INSERT OR REPLACE INTO {self._parts} VALUES (?, ?)"
        await self._change(lease, lambda database: database.execute(statement, (part, data)))

    async def commit(self, lease: Lease, number: int, manifest: bytes) -> None:
        def work(database: sqlite3.Connection) -> None:
            database.execute(f"INSERT OR REPLACE INTO {self._table} VALUES (?, ?)", (number, manifest))
            database.execute(f"UPDATE {self._lease} SET newest = ?", (number,))

        await self._change(lease, work)

    async def numbers(self) -> list[int]:
        def work(database: sqlite3.Connection) -> list[int]:
            found = {*self._every(database, self._table, "number")}
            newest = self._row(database)[1]  # which must be there: if not, `read` says that it is lost
            return sorted(found | {newest} if newest else found)

        return await self._look(work)

    async def parts(self) -> list[str]:
        return await self._look(lambda database: self._every(database, self._parts, "name"))

    def _every(self, database: sqlite3.Connection, table: str, column: str) -> list[Any]:
        found = database.execute(f"SELECT {column} FROM {table}") if self._has(database, table) else ()
        return [row[0] for row in found]

    async def read(self, what: int | str) -> bytes:
        return await self._look(lambda database: self._read(database, what))

    async def manifests(self, numbers: Collection[int]) -> Manifests:
        def read(database: sqlite3.Connection, number: int) -> bytes:
            with self._naming():
                return self._read(database, number)

        return await self._look(lambda database: manifests_by(partial(read, database), numbers))

    def _read(self, database: sqlite3.Connection, what: int | str) -> bytes:
        table, column = (self._table, "number") if isinstance(what, int) else (self._parts, "name")
        row = None
        if self._has(database, table):
            # damage may have made something else of it
            select = f"SELECT cast(data AS blob) FROM {table} WHERE {column} = ?"
            row = database.execute(select, (what,)).fetchone()
        if row is None:
            raise missing(what, self._row(database)[1], str(self))
        return row[0] or b""

    async def delete(self, lease: Lease, numbers: Collection[int], parts: Collection[str]) -> None:
        def work(database: sqlite3.Connection) -> None:
            forget = f"DELETE FROM {self._table} WHERE number = ?"
            database.executemany(forget, [(number,) for number in numbers])
            if self._row(database)[1] in numbers:
                database.execute(f"UPDATE {self._lease} SET newest = 0")
            database.executemany(f"DELETE FROM {self._parts} WHERE name = ?", [(part,) for part in parts])

        await self._change(lease, work)

    # ------------------------------------------------------------------ the database

    async def _look(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Read; nothing is made."""
        return await aside(
            lambda: self._connected(
                self._path if os.path.exists(self._path) else ":memory:", work, looking_at
            )
        )

    async def _change(self, lease: Lease | None, work: Callable[[sqlite3.Connection], T]) -> T:
        """Write, in one transaction, if this lease is the one that was given last."""

        def change(database: sqlite3.Connection) -> T:
            write_ahead(database, timeout=_PATIENCE)
            database.execute("PRAGMA synchronous=FULL")
            database.execute("BEGIN IMMEDIATE")
            try:
                self._make_tables(database)
                if lease is not None:
                    current = self._row(database)[0]
                    if current is None or current.number != lease.number:
                        raise lost(lease, current, str(self))
                result = work(database)
                database.execute("COMMIT")
            finally:
                if database.in_transaction:
                    database.execute("ROLLBACK")
            return result

        def with_database() -> T:
            if not os.path.exists(self._path):
                self._make_database()
            return self._connected(self._path, change)

        return await aside(with_database)

    def _make_database(self) -> None:
        """Make it under another name first: an empty file is then always a file that has lost something."""
        unfinished = f"{self._path}.{os.urandom(4).hex()}.unfinished"  # `_UNFINISHED_BYTES` longer

        def work(database: sqlite3.Connection) -> None:
            database.execute(f"PRAGMA application_id={_APPLICATION}")
            self._make_tables(database)

        try:
            self._connected(unfinished, work)
            with suppress(FileExistsError):  # another process was faster
                name_file(unfinished, Path(self._path))
        except OSError as error:
            raise CheckpointError(f"{self._path}: {describe_error(error)}") from error
        finally:
            with suppress(OSError):  # a read-only disk says so even of what is not there
                os.unlink(unfinished)

    def _make_tables(self, database: sqlite3.Connection) -> None:
        if self._has(database, self._lease):
            return
        for table, columns in (
            (self._table, "number INTEGER PRIMARY KEY, data BLOB NOT NULL"),
            (self._parts, "name TEXT PRIMARY KEY, data BLOB NOT NULL"),
            (self._lease, "one INTEGER PRIMARY KEY, lease TEXT, newest INTEGER NOT NULL"),
        ):
            database.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        newest = f"SELECT coalesce(max(number), 0) FROM {self._table}"
        database.execute(f"INSERT INTO {self._lease} VALUES (1, NULL, ({newest}))")

    @staticmethod
    def _has(database: sqlite3.Connection, table: str) -> bool:
        return database.execute(f"PRAGMA table_info({table})").fetchone() is not None

    def _connected(
        self,
        path: str,
        work: Callable[[sqlite3.Connection], T],
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect,
    ) -> T:
        # a connection each time: it may be another thread, and what is wrong with the file shows at once
        with self._naming():
            if path == self._path and not os.path.getsize(path):
                raise DamagedCheckpoint(
                    f"{path} is empty: delete it if nothing was ever in it, to start from the beginning"
                )
            with closing(connect(path, isolation_level=None, timeout=_PATIENCE)) as database:
                is_ours = database.execute("PRAGMA application_id").fetchone() == (_APPLICATION,)
                if is_ours and not database.execute("SELECT 1 FROM sqlite_master").fetchone():
                    raise DamagedCheckpoint(f"{path} has lost its tables")
                return work(database)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Errors of SQLite's in this block are told of with the file, and as damage where they are that."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            is_damage = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT
            refusal = DamagedCheckpoint if is_damage else CheckpointError
            raise refusal(f"{self._path}: {describe_error(error)}") from error
