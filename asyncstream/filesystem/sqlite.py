"""
Opens SQLite databases: to look at them, and so that one writes while others read.

A job that was killed leaves changes in a log beside its database. An ordinary connection moves them into the
database when it is closed; one that may only read leaves both alone. Without a log there is nothing to move,
and an ordinary connection also takes away the empty log that it makes, which the other one would leave.

On a disk that is read-only no log can be made, so a database that wants one cannot be opened there unless
SQLite is told that nothing changes, and takes no locks. Others are opened as everywhere: the disk may be
read-only here, and written to by another machine, or outside of a container.
"""

from __future__ import annotations

import os
import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import Final, Literal

from asyncstream.validation import file_path, refuse

__all__ = ("OpenFile", "database_path", "is_busy", "looking_at", "quoted", "read_only", "write_ahead")

_PAUSE: Final = 0.005
"""Seconds between two attempts to begin the log."""


def database_path(path: object) -> str:
    """
    `path` as text, which must be that of a file: connections come and go, and in memory each has its own.

    Raises:
        PipelineError: if it is not.
    """
    found = file_path("path", path, "a database file")
    if found == ":memory:" or found.startswith("file:"):
        raise refuse("path", "the path of a database file", path, "on a disk, and no URI")
    return found


def looking_at(
    path: str, *, timeout: float, isolation_level: Literal["DEFERRED"] | None = "DEFERRED"
) -> sqlite3.Connection:
    """A connection to read from, and from nothing if `path` is ":memory:"; the rest as `sqlite3.connect`."""
    if os.path.exists(f"{path}-wal") or _is_on_read_only_disk(path):
        return read_only(path, timeout=timeout, isolation_level=isolation_level)
    return sqlite3.connect(path, timeout=timeout, isolation_level=isolation_level)


def read_only(
    path: str, *, timeout: float, isolation_level: Literal["DEFERRED"] | None = "DEFERRED"
) -> sqlite3.Connection:
    """A connection that changes nothing, nor makes the file; the rest as `sqlite3.connect`."""
    uri = Path(path).absolute().as_uri()
    connect = partial(sqlite3.connect, timeout=timeout, isolation_level=isolation_level, uri=True)
    database = connect(f"{uri}?mode=ro")
    if _is_on_read_only_disk(path):
        try:
            database.execute("PRAGMA schema_version")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_CANTOPEN and not os.path.exists(f"{path}-wal"):
                database.close()
                return connect(f"{uri}?immutable=1")
    return database


def _is_on_read_only_disk(path: str) -> bool:
    """Whether there is a file of this name on a disk that is read-only for this process."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except (OSError, AttributeError):  # Windows does not say
        return False


def quoted(name: str) -> str:
    """The name of a table or a column, as SQL wants it."""
    return '"' + name.replace('"', '""') + '"'


def write_ahead(connection: sqlite3.Connection, *, timeout: float) -> None:
    """
    Write changes to a log beside the database, where nobody who reads waits for them.

    The first connection to a new database begins the log. If two do so at once, SQLite refuses one of them
    without waiting, whatever its time-out, since each could wait for the other; here it waits.

    Args:
        connection: one that is in no transaction.
        timeout: seconds to wait for other connections.

    Raises:
        sqlite3.OperationalError: if others are still at it then.
    """
    until = time.monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > until:
                raise
            time.sleep(_PAUSE)
        else:
            return


class OpenFile:
    """
    The file that a connection has opened just now.

    Args:
        path: that was given to it.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)  # the program may go to another folder
        self._identity = _identity(self._path)

    def is_moved(self) -> bool:
        """Whether it is no more the one of its name: what is written to it is lost."""
        return _identity(self._path) != self._identity


def _identity(path: str) -> tuple[int, int] | None:
    """What tells the file of this name from any other; None: there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Whether it says that other connections stand in the way."""
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
