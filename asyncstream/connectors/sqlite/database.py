"""
A connection to an SQLite database that does not hold up the event loop.

The database works in a thread of its own, so the event loop does not wait for the disk.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Container
from functools import partial
from traceback import clear_frames
from typing import TypeVar

from asyncstream.aside import DiskThread, heed
from asyncstream.filesystem.sqlite import OpenFile, close_when_gone, is_busy

__all__ = ("PATIENCE", "Database", "has_rowid", "rowid_beside")

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds to wait while another connection writes."""

_LOOK = 0.2
"""Seconds between two looks whether a transaction that waits for another connection has been called off."""


class Database:
    """
    A connection that one thread uses.

    Attributes:
        file: that it has open.
    """

    def __init__(self, path: str) -> None:
        self._thread = DiskThread()
        self._connection = sqlite3.connect(
            path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
        )
        self.file = OpenFile(path)
        self._closing = close_when_gone(self, self._connection.close)

    async def do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """
        Do `work` in the thread. It goes on to its end there if the caller is cancelled.

        Args:
            work: what to do. It gives no cursor: one that ends resets its statement, which the thread may
                have begun to run again by then, and SQLite refuses what it gets in the middle of that.
        """
        return await self._thread.do(partial(self._do, work))

    async def commit(self, work: Callable[[sqlite3.Connection], T], safe: bool) -> tuple[T, bool]:
        """
        Do `work` in the thread, as a transaction.

        If the caller is cancelled it is either called off, and leaves nothing behind, or it has begun to
        commit: then it is waited for.

        Args:
            work: what to do.
            safe: it is to be on the disk when this returns.

        Returns:
            What `work` gives; and whether the caller was cancelled too late.
        """
        fate = threading.Lock()  # taken by the thread to commit, or by a cancellation to call it off

        def whole(connection: sqlite3.Connection) -> T:
            connection.execute(f"PRAGMA synchronous={'FULL' if safe else 'NORMAL'}")
            self._begin(connection, fate)
            try:
                result = work(connection)
                if not fate.acquire(blocking=False):
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
                if fate.acquire(blocking=False):
                    doing.add_done_callback(heed)
                    raise
                was_cancelled = True
        return doing.result(), was_cancelled

    def _begin(self, connection: sqlite3.Connection, fate: threading.Lock) -> None:
        """Begin to write when no other connection does any more, unless it is called off before."""
        until = time.monotonic() + PATIENCE
        connection.execute(f"PRAGMA busy_timeout={int(_LOOK * 1000)}")
        try:
            while True:
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    return
                except sqlite3.OperationalError as error:
                    if not is_busy(error) or fate.locked() or time.monotonic() > until:
                        raise
        finally:
            connection.execute(f"PRAGMA busy_timeout={int(PATIENCE * 1000)}")

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            result = work(self._connection)
        except sqlite3.Error as error:
            # a cursor that failed over a row holds a lock on the database as long as the error is kept
            clear_frames(error.__traceback__)
            raise
        assert not isinstance(result, sqlite3.Cursor), "a cursor ends in the thread that has made it"
        return result

    async def close(self) -> None:
        self._closing.detach()
        closing = self._thread.do(self._connection.close)
        self._thread.end()
        await closing


def rowid_beside(columns: Container[str]) -> str | None:
    """A name for the `rowid` that none of these columns, in small letters, hides; None: they hide it."""
    return next((name for name in ("rowid", "_rowid_", "oid") if name not in columns), None)


def has_rowid(connection: sqlite3.Connection, table: str, name: str) -> bool:
    """Whether a table, quoted, has its `rowid` by this name; one that was made without has not."""
    try:
        connection.execute(f"SELECT r.{name} FROM {table} AS r LIMIT 0")
    except sqlite3.OperationalError as error:
        if "no such column" not in str(error):
            raise
        return False
    return True
