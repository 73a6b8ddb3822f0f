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
from typing import Any

from asyncstream.aside import done_aside
from asyncstream.checkpoint.directory import name_file
from asyncstream.checkpoint.journal_files import FolderFiles
from asyncstream.checkpoint.stores import CheckpointStore, Manifests, lost, manifests_by, missing, time_ms
from asyncstream.errors import CheckpointError, DamagedCheckpoint, LeaseLost, describe_error
from asyncstream.filesystem.folders import missing_folder
from asyncstream.filesystem.sqlite import (
    JOURNAL_BYTES,
    database_path,
    looking_at,
    quoted,
    transaction,
    write_ahead,
)
from asyncstream.lease import Holder, Lease, following
from asyncstream.shown import Shown
from asyncstream.validation import text

__all__ = ("SqliteStore",)

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
        table: the table of the manifests; made if it is not there. The others have its name with `_parts`
            and `_lease` behind it.
    """

    def __init__(self, path: str | os.PathLike[str], *, table: str = "asyncstream_checkpoints") -> None:
        self._path = database_path(path, beside=_UNFINISHED_BYTES + JOURNAL_BYTES)
        self._table = quoted(text("table", table))
        self._parts = quoted(f"{table}_parts")
        self._lease = quoted(f"{table}_lease")
        self._columns = {
            self._table: {"number": "INTEGER PRIMARY KEY", "data": "BLOB NOT NULL"},
            self._parts: {"name": "TEXT PRIMARY KEY", "data": "BLOB NOT NULL"},
            self._lease: {"one": "INTEGER PRIMARY KEY", "lease": "TEXT", "newest": "INTEGER NOT NULL"},
        }

    def __str__(self) -> str:
        return str(self._path)

    def journal_files(self) -> FolderFiles:
        """Where a journal of finished calls is kept: files whose names begin with the database's."""
        path = Path(self._path)
        return FolderFiles(path.parent, f"{path.name}-")

    # ------------------------------------------------------------------ the lease

    @done_aside
    def acquire(self, holder: Holder, seconds: float) -> Lease:
        with self._changing() as database:
            lease = following(self._row(database)[0], holder, seconds, time_ms(), str(self))
            self._write_lease(database, lease)
        return lease

    @done_aside
    def renew(self, lease: Lease, seconds: float) -> None:
        with self._changing(lease) as database:
            self._write_lease(database, lease.renewed(time_ms() + round(seconds * 1000)))

    @done_aside
    def release(self, lease: Lease) -> None:
        with suppress(LeaseLost), self._changing(lease) as database:
            self._write_lease(database, lease.given_back())

    @done_aside
    def holder(self) -> Lease | None:
        with self._looking() as database:
            return self._row(database)[0]

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

    @done_aside
    def put(self, lease: Lease, part: str, data: bytes) -> None:
        with self._changing(lease) as database:
            database.execute(f"INSERT OR REPLACE INTO {self._parts} VALUES (?, ?)", (part, data))

    @done_aside
    def commit(self, lease: Lease, number: int, manifest: bytes) -> None:
        with self._changing(lease) as database:
            database.execute(f"INSERT OR REPLACE INTO {self._table} VALUES (?, ?)", (number, manifest))
            database.execute(f"UPDATE {self._lease} SET newest = ?", (number,))

    @done_aside
    def numbers(self) -> list[int]:
        with self._looking() as database:
            found = {*self._every(database, self._table, "number")}
            newest = self._row(database)[1]  # which must be there: if not, `read` says that it is lost
            return sorted(found | {newest} if newest else found)

    @done_aside
    def parts(self) -> list[str]:
        with self._looking() as database:
            return self._every(database, self._parts, "name")

    def _every(self, database: sqlite3.Connection, table: str, column: str) -> list[Any]:
        found = database.execute(f"SELECT {column} FROM {table}") if self._has(database, table) else ()
        return [row[0] for row in found]

    @done_aside
    def read(self, what: int | str) -> bytes:
        with self._looking() as database:
            return self._read(database, what)

    @done_aside
    def manifests(self, numbers: Collection[int]) -> Manifests:
        with self._looking() as database:
            return manifests_by(partial(self._read, database), numbers)

    def _read(self, database: sqlite3.Connection, what: int | str) -> bytes:
        table, column = (self._table, "number") if isinstance(what, int) else (self._parts, "name")
        row = None
        with self._naming():
            if self._has(database, table):
                # damage may have made something else of it
                select = f"SELECT cast(data AS blob) FROM {table} WHERE {column} = ?"
                row = database.execute(select, (what,)).fetchone()
            if row is None:
                raise missing(what, self._row(database)[1], str(self))
        return row[0] or b""

    @done_aside
    def delete(self, lease: Lease, numbers: Collection[int], parts: Collection[str]) -> None:
        with self._changing(lease) as database:
            forget = f"DELETE FROM {self._table} WHERE number = ?"
            database.executemany(forget, [(number,) for number in numbers])
            if self._row(database)[1] in numbers:
                database.execute(f"UPDATE {self._lease} SET newest = 0")
            database.executemany(f"DELETE FROM {self._parts} WHERE name = ?", [(part,) for part in parts])

    # ------------------------------------------------------------------ the database

    @contextmanager
    def _looking(self) -> Iterator[sqlite3.Connection]:
        """To read; nothing is made."""
        path = self._path if os.path.exists(self._path) else ":memory:"
        with self._connected(path, looking_at) as database:
            yield database

    @contextmanager
    def _changing(self, lease: Lease | None = None) -> Iterator[sqlite3.Connection]:
        """To write, in one transaction, if this lease is the one that was given last."""
        if not os.path.exists(self._path):
            if lease is not None and missing_folder(self._path) is None:
                raise lost(lease, None, str(self))
            self._make_database()
        with self._connected(self._path) as database:
            write_ahead(database, timeout=_PATIENCE)
            database.execute("PRAGMA synchronous=FULL")
            with transaction(database):
                self._make_tables(database)
                current = self._row(database)[0]
                if lease is not None and not lease.is_same(current):
                    raise lost(lease, current, str(self))
                yield database

    def _make_database(self) -> None:
        """Make it under another name first: an empty file is then always a file that has lost something."""
        unfinished = f"{self._path}.{os.urandom(4).hex()}.unfinished"  # `_UNFINISHED_BYTES` longer
        try:
            with self._connected(unfinished) as database:
                database.execute(f"PRAGMA application_id={_APPLICATION}")
                self._make_tables(database)
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
        for table, columns in self._columns.items():
            if not self._has(database, table):
                made = ", ".join(f"{column} {kind}" for column, kind in columns.items())
                database.execute(f"CREATE TABLE {table} ({made})")
        newest = f"SELECT coalesce(max(number), 0) FROM {self._table}"
        database.execute(f"INSERT INTO {self._lease} VALUES (1, NULL, ({newest}))")

    def _has(self, database: sqlite3.Connection, table: str) -> bool:
        found = [name for _, name, *_ in database.execute(f"PRAGMA table_info({table})")]
        if found and found != [*self._columns[table]]:
            raise CheckpointError(
                f"{self._path}: the table {table} has the columns {', '.join(found)}, and is something "
                f"else's, such as another store's; give this one another table= than {self._table}"
            )
        return bool(found)

    @contextmanager
    def _connected(
        self, path: str, connect: Callable[..., sqlite3.Connection] = sqlite3.connect
    ) -> Iterator[sqlite3.Connection]:
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
                yield database

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Errors of SQLite's in this block are told of with the file, and as damage where they are that."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            is_damage = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT
            refusal = DamagedCheckpoint if is_damage else CheckpointError
            raise refusal(f"{self._path}: {describe_error(error)}") from error
