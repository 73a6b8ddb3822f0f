"""
Records in an SQLite database: for the processes of one machine.

Each change is a transaction of its own, begun with the lock on the whole database, so it waits its turn and
is never made twice. The time is that by which event loops go, which on one machine is the same clock for all:
it never jumps, and begins anew when the machine does, which the rules expect (what is from the future is
forgotten). It is read while the lock is held, so no change finds one before it in its future.

What is written survives the process, not always the machine: no caller waits for the disk.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import orjson

from asyncstream.aside import DiskThread
from asyncstream.clock import monotonic_seconds
from asyncstream.errors import describe_error
from asyncstream.filesystem.sqlite import close_when_gone, transaction, write_ahead
from asyncstream.guards.shared.records import Change, Moment, RecordsAway

__all__ = ("SqliteRecords",)

T = TypeVar("T")

_PATIENCE: Final = 2.0
"""Seconds to wait while another process writes."""

_TABLE: Final = "CREATE TABLE IF NOT EXISTS asyncstream_shared (name TEXT PRIMARY KEY, value BLOB NOT NULL)"

_READ: Final = "SELECT value FROM asyncstream_shared WHERE name = ?"

_WRITE: Final = "INSERT OR REPLACE INTO asyncstream_shared VALUES (?, ?)"


class SqliteRecords:
    """Keeps records in one table of a database file, which is made if it is not there."""

    def __init__(self, path: str) -> None:
        self._thread = DiskThread()
        self._database = _Database(path, asyncio.get_running_loop())

    async def update(self, name: str, change: Change[T]) -> T:
        return await self._thread.do(partial(self._database.update, name, change))

    async def close(self) -> None:
        closing = self._thread.do(self._database.disconnect)
        self._thread.end()
        await closing


class _Database:
    """A connection, which belongs to the thread that does the work, and goes with it."""

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self._path = path
        self._loop = loop
        # another's time, as uvloop's, may stand still between two passes of the loop
        self._now = loop.time if isinstance(loop, asyncio.BaseEventLoop) else monotonic_seconds
        self._connection: sqlite3.Connection | None = None
        self._close: Callable[[], object] = lambda: None

    def update(self, name: str, change: Change[T]) -> T:
        """As `Records.update`."""
        try:
            database = self._connected()
            with transaction(database):
                row = database.execute(_READ, (name,)).fetchone()
                record = {} if row is None else orjson.loads(row[0])
                now = self._now()
                record, answer = change(record, Moment(now, max(0.0, now - self._loop.time())))
                database.execute(_WRITE, (name, orjson.dumps(record)))
        except (sqlite3.Error, OSError, orjson.JSONDecodeError) as error:
            self.disconnect()  # the file may have been replaced
            raise RecordsAway(f"{self._path}: {describe_error(error)}") from error
        return answer

    def disconnect(self) -> None:
        """Let go of the file; the next update takes it up again."""
        self._connection = None
        self._close()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(
                self._path,
                isolation_level=None,
                timeout=_PATIENCE,
                check_same_thread=False,  # it may go in another one, when no work has come
            )
            try:
                write_ahead(connection, timeout=_PATIENCE)
                connection.execute("PRAGMA synchronous=NORMAL")
                connection.execute(_TABLE)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self._close = close_when_gone(self, connection.close)
        return self._connection
