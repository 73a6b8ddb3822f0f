"""
A cache in an SQLite file: for any number of processes of one machine, and for the next run.

What a hit costs decides how it is laid out. An answer is found by an integer, the first eight bytes of its
key, which is the row's own number: one search in one tree. The whole key stands in the row and is compared.
Reading is done in the event loop, because a thread to do it in costs ten times as much: in WAL mode readers
do not wait, and what is not in memory is one page of the disk away. To begin and end a transaction costs
a third of that, so all that is read in one pass of the event loop is read in one. Writing is done in a
thread.

Rejected: the order of use, to throw out what was not used for longest. A read would be a write then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Hashable, Iterable
from contextlib import suppress
from functools import partial
from struct import Struct
from typing import Any, Final, Literal
from weakref import finalize

from asyncstream.aside import DiskThread
from asyncstream.clock import SystemClock
from asyncstream.errors import DamagedCache, LeaseHeld, StateError, describe_error
from asyncstream.filesystem.sqlite import close_when_gone, database_path, is_busy, transaction, write_ahead
from asyncstream.guards.cache_store import CacheStore, Group
from asyncstream.lease import Lease, following
from asyncstream.validation import choice, refuse

__all__ = ("SqliteCache",)

log = logging.getLogger("asyncstream.cache")

_APPLICATION: Final = 0x61737463
"""SQLite's application id of a database that was made for a cache ("astc")."""

_PATIENCE: Final = 20.0
"""Seconds to wait while another process writes."""

_PAGES: Final = 16 * 1024
"""Kibibytes of the file that the reader keeps in memory."""

_SLACK: Final = 20
"""When there is no room, one in so many makes room at once, so that the next groups need not look."""

_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS answers ("
    "hash INTEGER PRIMARY KEY, key BLOB NOT NULL, written INTEGER NOT NULL, answer BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS answers_by_age ON answers (written)",
    "CREATE TABLE IF NOT EXISTS leases (key BLOB PRIMARY KEY, lease TEXT NOT NULL) WITHOUT ROWID",
)

_FIND: Final = "SELECT key, answer FROM answers WHERE hash = ?"

_HASH: Final = Struct(">q")
"""The number of a key's row: its first eight bytes."""

_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_examined: set[str] = set()
"""The files that this process has looked through from end to end."""


class SqliteCache(CacheStore):
    """
    Keeps answers in an SQLite database of their own.

    A file that is damaged is found when it is opened: all of it is looked through, once per process. What
    turns out to be damaged later is said in the log, and the cache goes on in memory.

    Args:
        path: the database file; made if it is not there.
        size: answers kept at most; those that were written longest ago make room.
        on_damage: what to do with a damaged file: "refuse" to begin; or "renew": rename it to
            `<path>.damaged`, say so in the log, and begin with an empty one.
    """

    finds_at_once = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        size: int = 1_000_000,
        on_damage: Literal["refuse", "renew"] = "refuse",
    ) -> None:
        super().__init__(size)
        self._path = database_path(path)
        self._renews = choice("on_damage", on_damage, ("refuse", "renew")) == "renew"
        self._disk: DiskThread | None = None
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._closing: finalize[..., Any] | None = None  # of both, if it is gone without having closed them
        self._count_at = 0  # at which number the answers are counted again

    def __str__(self) -> str:
        return self._path

    def __getstate__(self) -> dict[str, Any]:
        own = dict.fromkeys(("_disk", "_reader", "_writer", "_closing"))
        return {**super().__getstate__(), **own}

    # ------------------------------------------------------------------ the file

    def place(self) -> Hashable:
        return os.path.realpath(self._path)

    async def connect(self) -> None:
        await self.disconnect()  # if it was open in a loop that has ended
        self._disk = DiskThread()
        try:
            connections = await self._disk.make(self._connect, _close)
        except BaseException:
            self._disk.end()
            self._disk = None
            raise
        self._writer, self._reader = connections
        self._closing = close_when_gone(self, _close, connections)
        self._count_at = 0

    async def disconnect(self) -> None:
        if self._closing is not None:
            self._closing.detach()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        disk, self._disk = self._disk, None
        if disk is not None:
            writer, self._writer = self._writer, None
            closing = None if writer is None else disk.do(writer.close)
            disk.end()  # before the wait, which may be cancelled
            if closing is not None:
                await closing

    def _connect(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        """One to write by, and one to read by."""
        try:
            return self._open_file()
        except DamagedCache as damage:
            if not self._renews:
                raise
            log.error("%s; it is kept as %s.damaged, and the cache begins anew", damage, self._path)
            for ending in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    os.replace(self._path + ending, f"{self._path}.damaged{ending}")
            return self._open_file()

    def _open_file(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        try:
            writer = self._connection(_PATIENCE)
        except sqlite3.DatabaseError as error:
            raise self._refusal(error) from error
        try:
            self._examine(writer)
            write_ahead(writer, timeout=_PATIENCE)
            writer.execute("PRAGMA synchronous=NORMAL")  # a crash of the machine may cost the last answers
            with transaction(writer):
                for statement in _SCHEMA:
                    writer.execute(statement)
                writer.execute(f"PRAGMA application_id={_APPLICATION}")
            # it does not wait: what it cannot have at once counts as not there
            reader = self._connection(0)
            reader.execute("PRAGMA query_only=1")
            reader.execute(f"PRAGMA cache_size=-{_PAGES}")
        except sqlite3.DatabaseError as error:
            writer.close()
            raise self._refusal(error) from error
        except BaseException:
            writer.close()
            raise
        return writer, reader

    def _connection(self, patience: float) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=patience, isolation_level=None, check_same_thread=False)

    def _examine(self, database: sqlite3.Connection) -> None:
        """Refuse what is not whole, or none of ours."""
        # in this order: another process that makes the file in between has made both
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = database.execute("PRAGMA application_id").fetchone()
        if application != _APPLICATION and tables:
            raise refuse("path", "a database of a cache, or none yet", self._path)
        path = os.path.realpath(self._path)
        if path not in _examined:
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise self._damaged(" ".join(found.split()))
            _examined.add(path)

    def _damaged(self, found: object) -> DamagedCache:
        return DamagedCache(
            f"the cache {self._path} is damaged: {found}. Delete it, and what was answered is asked again; "
            "or say SqliteCache(path, on_damage='renew')"
        )

    def _refusal(self, error: sqlite3.DatabaseError) -> StateError:
        """What an error of SQLite means where the file is opened."""
        if _is_damage(error):
            return self._damaged(describe_error(error))
        is_away = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CANTOPEN
        advice = "; its folder must be there, and this process be able to write to both" if is_away else ""
        return StateError(f"the cache {self._path} cannot be opened: {describe_error(error)}{advice}")

    # ------------------------------------------------------------------ answers and leases

    def read_at_once(self, key: bytes) -> bytes | None:
        if self._reader is None:
            return None
        try:
            if not self._reader.in_transaction:
                self._reader.execute("BEGIN")
                asyncio.get_running_loop().call_soon(self._end_pass)
            row = self._reader.execute(_FIND, _HASH.unpack_from(key)).fetchone()
        except sqlite3.DatabaseError as error:
            if not (isinstance(error, sqlite3.OperationalError) and is_busy(error)):
                self._give_up(error)
            return None
        return row[1] if row is not None and row[0] == key else None

    def _end_pass(self) -> None:
        """What is read from now on is what is there from now on."""
        if self._reader is not None and self._reader.in_transaction:
            self._reader.execute("COMMIT")

    async def write(self, group: Group) -> Iterable[bool]:
        if self._reader is None or self._writer is None or self._disk is None:
            return [True] * len(group.wishes)
        try:
            return await self._disk.do(partial(self._write_group, self._writer, group))
        except sqlite3.DatabaseError as error:
            self._give_up(error)
            return [True] * len(group.wishes)

    def _give_up(self, error: sqlite3.DatabaseError) -> None:
        """Neither read nor write what is damaged, if it is; the connections are closed with the store."""
        if not _is_damage(error):
            raise error
        if self._reader is not None:
            _examined.discard(os.path.realpath(self._path))  # it is looked through before it is used again
            log.error("%s The cache goes on in memory", self._damaged(describe_error(error)))
            self._reader.close()
            self._reader = None

    def _write_group(self, database: sqlite3.Connection, group: Group) -> list[bool]:
        with transaction(database):
            self._put(database, group)
            for key in group.releases:
                self._take_back(database, key)
            return [self._grant(database, wish.key, wish.lease_ms) for wish in group.wishes]

    def _put(self, database: sqlite3.Connection, group: Group) -> None:
        gone = [(_hash(key),) for key, entry in group.entries.items() if entry is None]
        database.executemany("DELETE FROM answers WHERE hash = ?", gone)
        (newest,) = database.execute("SELECT coalesce(max(written), 0) FROM answers").fetchone()
        rows: list[tuple[Any, ...]] = []
        for key, entry in group.entries.items():
            if entry is not None:
                newest += 1
                rows.append((_hash(key), key, newest, entry[0]))
        if rows:
            database.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", rows)
            if newest >= self._count_at:
                self._make_room(database, newest)

    def _make_room(self, database: sqlite3.Connection, newest: int) -> None:
        """Count the answers, and delete the oldest that are too many."""
        (count,) = database.execute("SELECT count(*) FROM answers").fetchone()
        if count > self.size:
            excess = count - self.size + self.size // _SLACK
            database.execute(
                "DELETE FROM answers WHERE written <= "
                "(SELECT written FROM answers ORDER BY written LIMIT 1 OFFSET ?)",
                (excess - 1,),
            )
            count -= excess
        # each number is one answer more at most, whichever process has written it
        self._count_at = newest + self.size - count + 1

    def _grant(self, database: sqlite3.Connection, key: bytes, lease_ms: int) -> bool:
        now_ms = SystemClock().machine_ms()
        try:
            lease = following(self._lease(database, key), self.holder, lease_ms / 1000, now_ms, self._path)
        except LeaseHeld:
            return False
        database.execute("INSERT OR REPLACE INTO leases VALUES (?, ?)", (key, lease.to_json()))
        return True

    def _take_back(self, database: sqlite3.Connection, key: bytes) -> None:
        lease = self._lease(database, key)
        if lease is not None and lease.holder.token == self.holder.token:
            database.execute("DELETE FROM leases WHERE key = ?", (key,))

    def _lease(self, database: sqlite3.Connection, key: bytes) -> Lease | None:
        found = database.execute("SELECT lease FROM leases WHERE key = ?", (key,)).fetchone()
        try:
            return None if found is None else Lease.from_json(found[0])
        except ValueError:  # it counts as none
            return None


def _close(connections: tuple[sqlite3.Connection, ...]) -> None:
    for connection in connections:
        connection.close()


def _hash(key: bytes) -> int:
    found: int = _HASH.unpack_from(key)[0]
    return found


def _is_damage(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE
