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
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeVar
from weakref import finalize

from asyncstream.filesystem.folders import lasting, roomy
from asyncstream.validation import file_path, refuse

__all__ = (
    "JOURNAL_BYTES",
    "OpenFile",
    "close_when_gone",
    "database_path",
    "is_busy",
    "is_only_to_read",
    "looked_at",
    "looking_at",
    "quoted",
    "read_only",
    "transaction",
    "write_ahead",
)

T = TypeVar("T")

_PAUSE: Final = 0.005
"""Seconds between two attempts to begin the log."""

_READ_VERSION: Final = 19
"""The byte of a database that says how it is to be read."""

_LOGGED: Final = b"\2"
"""With a log, that is."""


JOURNAL_BYTES: Final = len("-journal")
"""By which the name of what SQLite keeps beside a database is longer than its own."""


def database_path(path: object, name: str = "path", beside: int = JOURNAL_BYTES) -> str:
    """
    `path` as text, which must be that of a file: connections come and go, and in memory each has its own. All
    of them are to that file, whatever folder the program goes to.

    Args:
        beside: by how many bytes names of files beside it are longer; 0: it is only read.

    Raises:
        PipelineError: if it is not; it calls it by `name`.
    """
    found = file_path(name, path, "a database file")
    if found == ":memory:" or found.startswith("file:"):
        raise refuse(name, "the path of a database file", path, "on a disk, and no URI")
    return lasting(roomy(name, found, beside))


def looking_at(
    path: str, *, timeout: float, isolation_level: Literal["DEFERRED"] | None = "DEFERRED"
) -> sqlite3.Connection:
    """A connection to read from, and from nothing if `path` is ":memory:"; the rest as `sqlite3.connect`."""
    if os.path.exists(f"{path}-wal") or is_only_to_read(path):
        return read_only(path, timeout=timeout, isolation_level=isolation_level)
    return sqlite3.connect(path, timeout=timeout, isolation_level=isolation_level)


def read_only(
    path: str, *, timeout: float, isolation_level: Literal["DEFERRED"] | None = "DEFERRED"
) -> sqlite3.Connection:
    """A connection that changes nothing, nor makes the file; the rest as `sqlite3.connect`."""
    only_to_read = is_only_to_read(path)
    if only_to_read:
        _check_its_log(path)
    return _opened(path, only_to_read and _lacks_its_log(path), timeout, isolation_level)


def _opened(
    path: str, unchanging: bool, timeout: float, isolation_level: Literal["DEFERRED"] | None
) -> sqlite3.Connection:
    uri = f"{Path(path).absolute().as_uri()}?{'immutable=1' if unchanging else 'mode=ro'}"
    return sqlite3.connect(uri, timeout=timeout, isolation_level=isolation_level, uri=True)


def looked_at(path: str, work: Callable[[sqlite3.Connection], T], *, timeout: float) -> T:
    """
    What `work` gives of a connection as by `looking_at`, outside of transactions. If the database is read as
    if nothing changed, and something does, it is read again.
    """
    while is_only_to_read(path):
        _check_its_log(path)
        before = _version(path)
        unchanging = _lacks_its_log(path)
        try:
            with closing(_opened(path, unchanging, timeout, None)) as connection:
                found = work(connection)
        except sqlite3.DatabaseError:
            if not unchanging or _version(path) == before:
                raise
        else:
            if not unchanging or _version(path) == before:
                return found
    with closing(looking_at(path, timeout=timeout, isolation_level=None)) as connection:
        return work(connection)


def _version(path: str) -> tuple[Any, ...]:
    """What is another one if somebody writes to a database that has no log, or begins one."""
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, os.path.exists(f"{path}-wal")


def _check_its_log(path: str) -> None:
    """
    Raises `sqlite3.OperationalError` if who may only read a database cannot read the log that lies beside it:
    SQLite says that the database cannot be opened.
    """
    log, index = f"{path}-wal", f"{path}-shm"
    try:
        is_left = os.path.getsize(log) > 0
    except OSError:
        return
    if is_left and not (os.access(log, os.R_OK) and os.access(index, os.R_OK)):
        error = sqlite3.OperationalError(
            f"the last changes to it are in {log}, which cannot be read without {index} and write access to "
            "both: have somebody open and close it once who may write there, or copy it and its log elsewhere"
        )
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error


def is_only_to_read(path: str) -> bool:
    """Whether there is a file of this name that this process may not write to, or nothing beside it."""
    folder = os.path.dirname(path) or os.curdir
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


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """What is done in this block is done as a whole, or not at all, and nobody else writes meanwhile."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


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
