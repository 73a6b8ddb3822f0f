"""
Opens SQLite databases: to look at them, and so that one writes while others read.

A job that was killed leaves changes in a log beside its database. An ordinary connection moves them into the
database when it is closed; one that may only read leaves both alone. Without a log there is nothing to move,
and an ordinary connection also takes away the empty log that it makes, which the other one would leave.

Who may only read a database, or its folder, or is on a disk that is read-only, makes no log there: it could
not be made, or its owner could not write to it. So one that wants a log, and has none, is read as if nothing
changed, without locks: what another user writes in that very moment may look like damage. All others are
opened as everywhere: they may be read-only here, and written to by another user, by another machine, or
outside of a container.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal
from weakref import finalize

from asyncstream.filesystem.folders import lasting
from asyncstream.validation import file_path, refuse

__all__ = (
    "OpenFile",
    "close_when_gone",
    "database_path",
    "is_busy",
    "looking_at",
    "quoted",
    "read_only",
    "write_ahead",
)

_PAUSE: Final = 0.005
"""Seconds between two attempts to begin the log."""

_READ_VERSION: Final = 19
"""The byte of a database that says how it is to be read."""

_LOGGED: Final = b"\2"
"""With a log, that is."""


def database_path(path: object, name: str = "path") -> str:
    """
    `path` as text, which must be that of a file: connections come and go, and in memory each has its own. All
    of them are to that file, whatever folder the program goes to.

    Raises:
        PipelineError: if it is not; it calls it by `name`.
    """
    found = file_path(name, path, "a database file")
    if found == ":memory:" or found.startswith("file:"):
        raise refuse(name, "the path of a database file", path, "on a disk, and no URI")
    return lasting(found)


def looking_at(
    path: str, *, timeout: float, isolation_level: Literal["DEFERRED"] | None = "DEFERRED"
) -> sqlite3.Connection:
    """A connection to read from, and from nothing if `path` is ":memory:"; the rest as `sqlite3.connect`."""
    if os.path.exists(f"{path}-wal") or _is_only_to_read(path):
        return read_only(path, timeout=timeout, isolation_level=isolation_level)
    return sqlite3.connect(path, timeout=timeout, isolation_level=isolation_level)


def read_only(
    path: str, *, timeout: float, isolation_level: Literal["DEFERRED"] | None = "DEFERRED"
) -> sqlite3.Connection:
    """A connection that changes nothing, nor makes the file; the rest as `sqlite3.connect`."""
    changes = "immutable=1" if _is_only_to_read(path) and _lacks_its_log(path) else "mode=ro"
    uri = f"{Path(path).absolute().as_uri()}?{changes}"
    return sqlite3.connect(uri, timeout=timeout, isolation_level=isolation_level, uri=True)


def _is_only_to_read(path: str) -> bool:
    """Whether there is a file of this name that this process may not write to, or nothing beside it."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.exists(path) and not (os.access(path, os.W_OK) and os.access(folder, os.W_OK)):
        return True
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except (OSError, AttributeError):  # Windows does not say
        return False


def _lacks_its_log(path: str) -> bool:
    """Whether a database wants a log, as its header says, and nobody has one open, or has left one."""
    try:
        with open(path, "rb") as file:
            wants_log = file.read(_READ_VERSION + 1)[_READ_VERSION:] == _LOGGED
        left = os.path.getsize(f"{path}-wal") if os.path.exists(f"{path}-wal") else 0
    except OSError:  # SQLite has the same to say
        return False
    return wants_log and not left and not os.path.exists(f"{path}-shm")


def close_when_gone(owner: object, close: Callable[..., object], *what: object) -> finalize[..., Any]:
    """
    Have connections closed by `close(*what)` if their owner is gone without having closed them: it was left
    in an event loop that has ended, say. In a cycle `__del__` could come after theirs, which complain of what
    is open. Not at the end of the program, where that would wait for a thread, which may hang in the file.

    Returns:
        What is to be detached, or called, when the owner closes them.
    """
    closing = finalize(owner, close, *what)
    closing.atexit = False
    return closing


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
