"""
A write-ahead inbox: what was submitted, on the disk until a checkpoint covers it.

Theory of operation
-------------------
Elements are numbered as they are accepted, from 1 on and without a gap. Three numbers say how far it is::

    1 ......... forgotten ......... read ......... newest
    gone, but their     done or in a      not read by the
    ids are known       checkpoint        pipeline yet

The source's position is *read*. *Forgotten* follows the oldest checkpoint that is kept, so that a job can go
on from any of them. An identifier stays for as long as the element does, and a while longer: so the same one
is accepted once, also by the next process.

**What accepted means.** The rows of an `accept` are one transaction in SQLite's write-ahead log, which is
brought to the disk by `fsync` before the call returns (`synchronous=FULL`). What was accepted is there after
the process was killed at any moment, and after the machine has lost its power, as far as the disk has done
what it said. A transaction that did not return is there as a whole, or not at all.

**Who may write.** A job writes down its lease when it opens the inbox, and each transaction looks at whose
inbox it is. A process that was stopped, and followed by another, finds out before it says that an element was
accepted.

Nothing here awaits: all of it runs in one thread, which belongs to `connectors.durable`. With each row that
SQLite is asked for or given, this thread lets go of the interpreter, and may wait for five milliseconds until
a busy event loop gives it back. So a group of elements is one statement, and an answer is one row.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple
from zlib import crc32

from asyncstream.clock import Clock, SystemClock, checked_clock
from asyncstream.codec import Codec
from asyncstream.codec import codec as values_codec
from asyncstream.connectors.lines import AnyPath
from asyncstream.connectors.tally import Tally
from asyncstream.connectors.writer import Writer, check_reader_follows
from asyncstream.errors import SourceError, describe_error
from asyncstream.filesystem.sqlite import (
    OpenFile,
    close_when_gone,
    database_path,
    looking_at,
    transaction,
    write_ahead,
)
from asyncstream.lease import Lease
from asyncstream.validation import Duration, duration_ms

__all__ = ("Inbox", "InboxBroken", "InboxFile", "InboxState", "Submitted", "check_inbox")

_PATIENCE = 20.0
"""Seconds to wait while another connection writes."""

_PART: Final = 200
"""Rows that are forgotten in one go: what is submitted meanwhile waits for two or three milliseconds."""

_BETWEEN: Final = "\n"
"""Is in no id."""

_PASSING: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL})
"""What may be different in a moment, and leaves the database as it was."""


class InboxBroken(SourceError):
    """Raised when the inbox takes no more: it was taken over, or what the disk has of it is uncertain."""


class Inbox:
    """
    Where `pipeline.submissions(inbox=...)` keeps what it accepts, until a checkpoint covers it.

    Args:
        path: an SQLite database, made if it is not there; best one of its own. One job at a time uses it.
        remember: for how long, at least, the id of an element is remembered after it was accepted: a
            `timedelta` or seconds. Never shorter than the element itself is kept.
        codec: how elements become bytes: "json", or "pickle", which runs what the bytes say when it is read;
            or a `Codec`.
        types: classes that the elements are made of; see `Checkpoints.types`.
        clock: what ids are remembered by; the system's by default.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        remember: Duration = timedelta(days=1),
        codec: Literal["json", "pickle"] | Codec = "json",
        types: Iterable[type] = (),
        clock: Clock | None = None,
    ) -> None:
        self.path: Final = database_path(path)
        self.remember_ms: Final = duration_ms("remember", remember)
        self.codec: Final = values_codec(codec, types)
        self.clock: Final = checked_clock(clock) or SystemClock()

    def __repr__(self) -> str:
        return f"Inbox({self.path!r})"

    def submitted(self, value: Any, id: str | None) -> Submitted:
        """An element as it is kept; raises `CodecError` if it cannot be."""
        data = self.codec.encode(value)
        # of this very type, as the database gives it back: an enum's member is a str, too
        return Submitted(data, None if id is None else str.__str__(id))


class Submitted(NamedTuple):
    """One element on its way into the inbox, as bytes; by its `id` it is told from others, if it has one."""

    data: bytes
    id: str | None


class InboxFile:
    """
    The database of an inbox.

    Attributes:
        state: how far it is, as of the last call.
    """

    def __init__(self, inbox: Inbox, writer: Writer | None) -> None:
        self._inbox = inbox
        self._writer = writer
        self._token = os.urandom(8).hex()
        _look_at(inbox)  # first: to open it may change it
        with self._naming_errors("open"):
            # used by one thread after the other, at most one at a time
            self._database = sqlite3.connect(
                inbox.path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
            )
            self._closing = close_when_gone(self, self._database.close)
            self._file = OpenFile(inbox.path)
            self._tally = Tally(inbox.path)
            try:
                self._set_up()
            except BaseException:
                self._database.close()
                raise

    def _set_up(self) -> None:
        execute = self._database.execute
        write_ahead(self._database, timeout=_PATIENCE)
        execute("PRAGMA synchronous=FULL")
        # nothing that is made safe from now on lies behind what an earlier process may have failed to write
        execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with transaction(self._database):
            for statement in _TABLES:
                execute(statement)
            execute("INSERT OR IGNORE INTO inbox VALUES (1, ?, 0, 0, NULL, NULL)", (os.urandom(8).hex(),))
            execute("INSERT OR REPLACE INTO codec VALUES (1, ?)", (self._inbox.codec.name,))
            self.state = InboxState(*execute(_STATE).fetchone())
            if self._writer is not None:
                self.state.check_follows(self._writer, self._inbox.path)
            lease = self._writer and self._writer.lease.to_text()
            execute("UPDATE inbox SET token = ?, lease = coalesce(?, lease)", (self._token, lease))

    # ------------------------------------------------------------------ accepting

    def accept(self, elements: Sequence[Submitted]) -> list[bool]:
        """
        Keep elements. When this returns they are safe.

        Returns:
            For each whether it is new; False: one with its id was accepted before. New ones are numbered in
            order, behind `newest`.

        Raises:
            InboxBroken: if it takes no more; whether it has these is uncertain.
            SourceError: if it does not have these, and may take others.
        """
        firsts: dict[str | int, int] = {}  # the place of the first element of each id; those without by place
        given: list[object] = []
        for place, (data, id) in enumerate(elements):
            if firsts.setdefault(id or place, place) == place:
                given += (place, id, data, _check_of(data, id))
        accept = _ACCEPT.format(", ".join(["(?, ?, ?, ?)"] * len(firsts)))
        newest = self.state.newest
        with self._naming_errors("write to"):
            made = self._database.execute(accept, (*given, newest, self._inbox.clock.now_ms(), self._token))
            if made.rowcount == len(firsts):
                is_new = set(firsts.values())
            else:
                token, ids = self._database.execute(_ACCEPTED, (_BETWEEN, newest)).fetchone()
                if token != self._token:
                    raise self._taken_over()
                new_ids = set() if ids is None else set(ids.split(_BETWEEN))
                is_new = {place for id, place in firsts.items() if id == place or id in new_ids}
        if self._file.is_moved():
            raise InboxBroken(f"{self._inbox.path} was moved, deleted or replaced: nothing more is accepted")
        self.state = self.state._replace(newest=newest + len(is_new))
        self._tally.write(self.state.identity, self.state.newest)
        return [place in is_new for place in range(len(elements))]

    def rows(self, after: int, until: int, limit: int) -> list[tuple[int, Any]]:
        """Elements with their numbers, in order; raises `CodecError` if one cannot be read any more."""
        columns = "number, value, id, sum"
        query = f"SELECT {columns} FROM accepted WHERE number > ? AND number <= ? ORDER BY number LIMIT ?"
        with self._naming_errors("read"):
            found = self._database.execute(query, (after, until, limit)).fetchall()
        numbers = [number for number, *_ in found]
        if numbers != list(range(after + 1, after + 1 + len(numbers))) or not numbers:
            raise InboxBroken(f"{self._inbox.path} has lost elements behind number {after}")
        for number, data, id, check in found:
            if check != _check_of(data, id):
                raise InboxBroken(
                    f"{self._inbox.path} is damaged: the bytes of element {number} are not those that were "
                    "accepted. Put the file back from before, or begin with another inbox"
                )
        return [(number, self._inbox.codec.decode(data)) for number, data, *_ in found]

    # ------------------------------------------------------------------ forgetting

    def forget(self, until: int, writer: Writer | None = None) -> bool:
        """
        Forget some of the elements up to the one with this number, and of the ids that are due; write down
        until when `writer`, which is the job that opened it, has its lease.

        Returns:
            Whether there is more to forget.
        """
        forgotten = self.state.forgotten
        part = min(until, forgotten + _PART)
        now_ms = self._inbox.clock.now_ms()
        due_ms = now_ms - self._inbox.remember_ms
        with self._naming_errors("write to"), self._transaction():
            execute = self._database.execute
            bounds = (forgotten, part)
            execute("DELETE FROM accepted WHERE number > ? AND number <= ? AND id IS NULL", bounds)
            execute("UPDATE accepted SET value = NULL WHERE number > ? AND number <= ?", bounds)
            execute(_SET_BACK, (now_ms, part, _PART, now_ms))
            last, many, first_to_stay = execute(_OLDEST, (due_ms, part, _PART)).fetchone()
            if many:
                stays_from = last + 1 if first_to_stay is None else first_to_stay
                execute("DELETE FROM accepted WHERE number < ?", (stays_from,))
            lease = writer and writer.lease.to_text()
            execute("UPDATE inbox SET forgotten = ?, lease = coalesce(?, lease)", (part, lease))
        self.state = self.state._replace(forgotten=part)
        return part < until or (many == _PART and first_to_stay is None)

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Let another job use it."""
        try:
            with self._naming_errors("write to"):
                _, in_log, moved = self._database.execute("PRAGMA wal_checkpoint").fetchone()
                with self._transaction():
                    self._tally.close(all_is_safe=in_log == moved)
                    if self._writer is not None:
                        lease = self._writer.lease.given_back().to_text()
                        self._database.execute("UPDATE inbox SET token = NULL, lease = ?", (lease,))
        except SourceError:  # taken over, or broken: that was said before
            self._tally.close(all_is_safe=False)
        finally:
            self._closing.detach()
            self._database.close()

    # ------------------------------------------------------------------ the database

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """As `transaction`, while the inbox is ours."""
        with transaction(self._database):
            if self._database.execute("SELECT token FROM inbox").fetchone() != (self._token,):
                raise self._taken_over()
            yield

    def _taken_over(self) -> InboxBroken:
        (lease,) = self._database.execute("SELECT lease FROM inbox").fetchone()
        follower = "another job" if lease is None else str(Lease.from_json(lease).holder)
        return InboxBroken(f"{self._inbox.path} was taken over by {follower}: this one accepts nothing more")

    @contextmanager
    def _naming_errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            is_passing = getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING
            kind = SourceError if is_passing else InboxBroken
            raise kind(f"cannot {doing} {self._inbox.path}: {describe_error(error)}") from error


class InboxState(NamedTuple):
    """
    How far an inbox is.

    Attributes:
        identity: tells this inbox from another one under the same name.
        newest: the number of the last element that was accepted; 0: none was.
        forgotten: the number up to which elements are gone.
        lease: of the job that used it last, as JSON; None: no job did.
    """

    identity: str
    newest: int
    forgotten: int
    lease: str | None

    def check_position(self, position: dict[str, Any], path: str) -> None:
        """Refuse, with a `SourceError`, a position that one cannot go on from."""
        read = position["read"]
        if position["inbox"] != self.identity:
            raise _cannot_go_on(path, read, "it is another one")
        if read > self.newest:
            raise _cannot_go_on(path, read, f"the last one that it knows of is number {self.newest}")
        if read < self.forgotten:
            raise _cannot_go_on(path, read, f"those up to number {self.forgotten} are forgotten")

    def check_tally(self, path: str) -> None:
        """Refuse, with a `SourceError`, a database that knows of fewer elements than it has accepted."""
        tally = Tally(path)
        accepted = tally.read(self.identity)
        if accepted > self.newest:
            raise SourceError(
                f"{path} has lost elements that were accepted, {self.newest + 1} to {accepted}: its log, "
                f"{path}-wal, is damaged or not the one it was. Put both back as they were; or delete "
                f"{tally.path}, to go on without these"
            )

    def check_follows(self, writer: Writer, path: str) -> None:
        """Refuse, with a `SourceError`, a job that may not take over from the one that used it last."""
        last = None if self.lease is None else Lease.from_json(self.lease)
        check_reader_follows(writer, last, path, InboxBroken)


def _check_of(data: Any, id: str | None) -> int:
    """What tells whether these are the bytes of an element as it was accepted."""
    if type(data) is not bytes or not (id is None or type(id) is str):
        return -1
    return crc32(data, 0 if id is None else crc32(id.encode("utf-8", "surrogatepass")))


def check_inbox(inbox: Inbox, position: dict[str, Any], writer: Writer | None) -> None:
    """See whether a job could go on behind `position`. Changes nothing. Raises `SourceError` if not."""
    state = _look_at(inbox)
    if state is None:
        raise _cannot_go_on(inbox.path, position["read"], "it is not there")
    state.check_position(position, inbox.path)
    if writer is not None:
        state.check_follows(writer, inbox.path)


def _look_at(inbox: Inbox) -> InboxState | None:
    """
    How far an inbox is; None: there is none. Raises `SourceError` if it has lost elements, or has some that
    another codec wrote.
    """
    path = inbox.path
    state = codec = None
    if os.path.exists(path):
        try:
            with closing(looking_at(path, timeout=_PATIENCE)) as database:
                tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
                if "inbox" in tables:
                    state = InboxState(*database.execute(_STATE).fetchone())
                if "codec" in tables:  # else it is of an earlier version of this package
                    (codec,) = database.execute("SELECT name FROM codec").fetchone()
        except (sqlite3.Error, TypeError) as error:
            raise SourceError(f"cannot read {path}: {describe_error(error)}") from error
    if state is not None:
        state.check_tally(path)
        if state.newest > state.forgotten and codec not in (None, inbox.codec.name):
            raise SourceError(
                f"{path} holds elements that codec={codec!r} wrote, and is now read with "
                f"{inbox.codec.name!r}: leave the codec as it was; or, when all of them are processed, begin "
                "with another inbox, and another name for the source"
            )
    return state


def _cannot_go_on(path: str, read: int, why: str) -> SourceError:
    return SourceError(
        f"cannot go on behind element {read} of the inbox {path}: {why}. Put the inbox back that the "
        "checkpoint was taken with, or begin with what this one holds: restore='none', or another name for "
        "the source"
    )


_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS accepted "
    "(number INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, id TEXT UNIQUE, value BLOB, sum INTEGER)",
    "CREATE TABLE IF NOT EXISTS inbox (one INTEGER PRIMARY KEY, identity TEXT NOT NULL, "
    "newest INTEGER NOT NULL, forgotten INTEGER NOT NULL, lease TEXT, token TEXT)",
    "CREATE TABLE IF NOT EXISTS codec (one INTEGER PRIMARY KEY, name TEXT NOT NULL)",
    "CREATE TRIGGER IF NOT EXISTS newest AFTER INSERT ON accepted "
    "BEGIN UPDATE inbox SET newest = new.number; END",
)

_ACCEPT: Final = (
    "INSERT INTO accepted (number, at_ms, id, value, sum) "
    "WITH given (place, id, value, sum) AS (VALUES {}), asked (newest, now_ms, token) AS (VALUES (?, ?, ?)) "
    "SELECT asked.newest + row_number() OVER (ORDER BY place), now_ms, given.id, given.value, given.sum "
    "FROM given, asked, inbox WHERE inbox.token = asked.token "
    "AND NOT EXISTS (SELECT 1 FROM accepted AS before WHERE before.id = given.id)"
)
"""A transaction of its own: numbers and adds what is new, if the inbox is still ours."""

_ACCEPTED: Final = "SELECT token, (SELECT group_concat(id, ?) FROM accepted WHERE number > ?) FROM inbox"
"""Whose inbox it is, and the ids behind a number."""

_STATE: Final = "SELECT identity, newest, forgotten, lease FROM inbox"

_SET_BACK: Final = (
    "UPDATE accepted SET at_ms = ? WHERE number IN "
    "(SELECT number FROM accepted WHERE number <= ? ORDER BY number LIMIT ?) AND at_ms > ?"
)
"""The clock was ahead when these of the oldest rows came: until it were there again, they would keep all."""

_OLDEST: Final = (
    "SELECT max(number), count(*), min(CASE WHEN at_ms >= ? THEN number END) "
    "FROM (SELECT number, at_ms FROM accepted WHERE number <= ? ORDER BY number LIMIT ?)"
)
"""The last of the oldest rows, how many they are, and the first of them whose id is still remembered."""
