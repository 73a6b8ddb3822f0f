"""
What an SQLite sink with checkpoints keeps beside its table, and what it does with it in transactions.

SQLite has no transaction that is prepared first and committed later, so rows are *staged*: they go into a
table of their own, `<table>__staged`, under numbers that only ever grow. A position is the largest number so
far. To commit means to move the rows up to a position into the table, and to write down that position, in one
transaction. So each row is either staged or moved, whatever happens in between, and moving once more moves
nothing. Who reads the table sees committed results only.

To SQLite `T` and `t` are one table, and so they are here: what is written down goes by the name that the
first sink of the table had.

The sink can go back to earlier checkpoints, see `standing`. `<table>__undo` holds, for as many of them as the
job keeps, which rows were added and what the ones were that they replaced. Tables made `WITHOUT ROWID`,
or with columns that hide it by all its names, have no undo.

Whose table it is stands in the row that says how far rows were moved, and every transaction looks at it
first: a process that was stopped and followed by another finds out before it changes anything. The number of
a follower that is still deciding where to go on from stands there, too: `fence`.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from asyncstream.connectors.sqlite.database import has_rowid, rowid_beside
from asyncstream.connectors.standing import Standing, taken_over
from asyncstream.connectors.writer import Writer
from asyncstream.errors import SinkError
from asyncstream.filesystem.sqlite import quoted
from asyncstream.lease import Lease

__all__ = ("Staging",)

_SINKS: Final = "asyncstream_sinks"
"""The table in which every sink of a database writes down how far it has moved its rows, and for whom."""

_COMMITS: Final = "asyncstream_commits"
"""The positions that the sinks can go back to."""

_VOIDS: Final = "asyncstream_voids"
"""Ranges of positions, without the first and with the last, that were taken back."""


_NUMBER: Final = "asyncstream_number"
"""The column of a staged row, before those of the table."""

_UNDO: Final = ("asyncstream_step", "asyncstream_position", "asyncstream_row", "asyncstream_was")
"""The columns of an undo, before those of the table."""


class Staging:
    """What belongs to one table: `what` it is called in messages, and with what to `insert`."""

    def __init__(self, what: str, table: str, columns: list[str], insert: str) -> None:
        self._what = what
        self._name = table
        self._table = quoted(table)
        self._columns = columns
        self._insert = insert
        self.table = quoted(f"{table}__staged")
        self._undo = quoted(f"{table}__undo")
        self._writer: Writer | None = None
        self._keep = 1
        self._can_undo = False

    def check_name(self, connection: sqlite3.Connection) -> None:
        """Raises `SinkError` if the table is one that is kept beside others', or for all of them."""
        is_kept = {_NUMBER, _UNDO[0]}.intersection(_columns_of(connection, self._table))
        if is_kept or self._name.lower() in (_SINKS, _COMMITS, _VOIDS):
            raise SinkError(f"{self._what} is one that sinks with checkpoints keep for others: give another")

    # ------------------------------------------------------------------ going on

    def check(self, connection: sqlite3.Connection, position: int | None, writer: Writer | None) -> None:
        """
        See whether the table can go to a position, None being the beginning; changes nothing. Raises
        `SinkError` if it cannot, or another process writes to it.
        """
        self._find_name(connection)
        for table, column, name in ((self.table, _NUMBER, "staged"), (self._undo, _UNDO[0], "undo")):
            columns = _columns_of(connection, table)
            if columns and columns[0] != column:
                raise SinkError(
                    f"{self._what} needs a table {self._name}__{name} beside it, and there is another one "
                    "called so: give one of the two another name"
                )
        is_void = self._is_void(connection, position or 0)
        self._standing(connection).check(position, is_void, writer, self._what)

    def fence(self, connection: sqlite3.Connection, writer: Writer) -> None:
        """Have jobs that `writer` follows in its store change nothing more; part of a transaction."""
        self._find_name(connection)
        standing = self._standing(connection)
        if writer.fences(standing.lease, standing.fence):
            self._make_fence(connection)
            connection.execute(
                f"UPDATE {_SINKS} SET fence = ? WHERE name = ?", (writer.lease.number, self._name)
            )

    def begin(self) -> None:
        """Another run begins: the table is not its own yet."""
        self._writer, self._keep = None, 1

    def recover(self, connection: sqlite3.Connection, position: int | None, writer: Writer | None) -> None:
        """Go to a position; part of a transaction. Raises as `check` does."""
        self.check(connection, position, writer)
        self._make(connection)
        target = position or 0
        standing = self._standing(connection)
        if standing.goes_back(position, writer):
            self._take_back(connection, target)
        target = max(target, self._standing(connection).moved)
        self._writer = writer
        lease = None if writer is None else writer.lease.to_text()
        connection.execute(f"UPDATE {_SINKS} SET lease = ?, fence = 0 WHERE name = ?", (lease, self._name))
        if writer is not None:
            self._keep = writer.keep
        self._log_changes(connection)
        before = self._columns_before(connection)
        for column in _without(self._columns, _columns_of(connection, self.table)):
            connection.execute(f"ALTER TABLE {self.table} ADD COLUMN {quoted(column)}")
        self._move(connection, target, before or self._columns)
        last, keeps = self._last(connection), standing.keeps(position, writer)
        if last > target or keeps:
            connection.execute(f"INSERT INTO {_VOIDS} VALUES (?, ?, ?)", (self._name, target, last))
            # the next position, though no row may come before it, is not one of those that are void
            connection.execute(
                "UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = ? COLLATE NOCASE",
                (f"{self._name}__staged",),
            )
        if keeps:
            connection.execute(f"UPDATE {_SINKS} SET floor = ? WHERE name = ?", (last + 1, self._name))
        connection.execute(f"DELETE FROM {self.table}")

    def _columns_before(self, connection: sqlite3.Connection) -> list[str]:
        """
        Those of what the run before has staged, whose code may have named others: what it did not have, the
        table gives its default.
        """
        staged = _columns_of(connection, self.table)[1:]
        for column in _without(staged, self._columns):
            query = f"SELECT 1 FROM {self.table} WHERE {quoted(column)} IS NOT NULL LIMIT 1"
            if connection.execute(query).fetchone() is None:  # of a run long ago
                staged.remove(column)
        return staged

    def _make(self, connection: sqlite3.Connection) -> None:
        for table, columns in (
            (_SINKS, "name TEXT PRIMARY KEY, moved INTEGER NOT NULL"),
            (_COMMITS, "name TEXT, position INTEGER, PRIMARY KEY (name, position)"),
            (_VOIDS, "name TEXT, low INTEGER, high INTEGER"),
            (self.table, f"{_NUMBER} INTEGER PRIMARY KEY AUTOINCREMENT, {_list(self._columns)}"),
        ):
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        if "lease" not in _columns_of(connection, _SINKS):  # of an earlier version, or just made
            connection.execute(f"ALTER TABLE {_SINKS} ADD COLUMN lease TEXT")
            connection.execute(f"ALTER TABLE {_SINKS} ADD COLUMN floor INTEGER NOT NULL DEFAULT 0")
            connection.execute(f"UPDATE {_SINKS} SET floor = moved")
        self._make_fence(connection)
        insert = f"INSERT OR IGNORE INTO {_SINKS} (name, moved) VALUES (?, 0)"
        if connection.execute(insert, (self._name,)).rowcount:
            # whoever has deleted that row begins anew: what is known of earlier rows is not of this line
            connection.execute(f"DELETE FROM {_COMMITS} WHERE name = ? COLLATE NOCASE", (self._name,))
            connection.execute(f"DROP TABLE IF EXISTS {self._undo}")

    def _make_fence(self, connection: sqlite3.Connection) -> None:
        if "fence" not in _columns_of(connection, _SINKS):
            connection.execute(f"ALTER TABLE {_SINKS} ADD COLUMN fence INTEGER NOT NULL DEFAULT 0")

    def _take_back(self, connection: sqlite3.Connection, position: int) -> None:
        """Take out of the table what was moved into it behind `position`."""
        names, rowid = _columns_of(connection, self._table), self._rowid(connection)
        columns = _list(names)
        places = "?, " * len(names)
        changes = connection.execute(
            f"SELECT * FROM {self._undo} WHERE asyncstream_position > ? ORDER BY asyncstream_step DESC",
            (position,),
        ).fetchall()
        for _, _, row, was, *values in changes:
            if was:
                connection.execute(
                    f"INSERT INTO {self._table} ({columns}, {rowid}) VALUES ({places}?)", (*values, row)
                )
            else:
                connection.execute(f"DELETE FROM {self._table} WHERE {rowid} = ?", (row,))
        connection.execute(f"DELETE FROM {self._undo} WHERE asyncstream_position > ?", (position,))
        connection.execute(f"DELETE FROM {_COMMITS} WHERE name = ? AND position > ?", (self._name, position))
        connection.execute(f"UPDATE {_SINKS} SET moved = ? WHERE name = ?", (position, self._name))

    # ------------------------------------------------------------------ epochs

    def check_ours(self, connection: sqlite3.Connection) -> None:
        """See, within a transaction, whether the table is still this job's; raises `SinkBroken` if not."""
        if self._writer is None:
            return
        query = f"SELECT lease, fence FROM {_SINKS} WHERE name = ?"
        text, fence = connection.execute(query, (self._name,)).fetchone() or (None, 0)
        last = None if text is None else Lease.from_json(text)
        if fence or not self._writer.lease.is_same(last):
            raise taken_over(self._what, None if fence else last)

    def release(self, connection: sqlite3.Connection) -> None:
        """Leave the table to the next job."""
        if self._writer is not None:
            self.check_ours(connection)
            self._sign(connection, self._writer.lease.given_back())

    def _sign(self, connection: sqlite3.Connection, lease: Lease) -> None:
        text = lease.to_text()
        connection.execute(f"UPDATE {_SINKS} SET lease = ? WHERE name = ?", (text, self._name))

    def position(self, connection: sqlite3.Connection) -> int:
        """
        That of all rows staged so far.

        Writes something: bringing this to the disk brings all before it there.
        """
        connection.execute(f"UPDATE {_SINKS} SET moved = moved WHERE name = ?", (self._name,))
        return self._last(connection)

    def commit(self, connection: sqlite3.Connection, position: int, writer: Writer | None) -> None:
        """Move the staged rows up to `position` into the table; write down until when it is a writer's."""
        if writer is not None:
            self._sign(connection, writer.lease)
        if position >= self._standing(connection).moved:
            self._move(connection, position, self._columns)

    def _move(self, connection: sqlite3.Connection, position: int, columns: list[str]) -> None:
        connection.execute(f"UPDATE {_SINKS} SET moved = ? WHERE name = ?", (position, self._name))
        named = _list(columns)
        connection.execute(
            f"{self._insert} INTO {self._table} ({named}) SELECT {named} FROM {self.table} "
            f"WHERE {_NUMBER} <= ? ORDER BY {_NUMBER}",
            (position,),
        )
        connection.execute(f"DELETE FROM {self.table} WHERE {_NUMBER} <= ?", (position,))
        connection.execute(f"INSERT OR IGNORE INTO {_COMMITS} VALUES (?, ?)", (self._name, position))
        self._forget(connection)

    def _forget(self, connection: sqlite3.Connection) -> None:
        """Forget how to go back behind the checkpoints that are kept."""
        keep = self._keep if self._can_undo else 1
        kept = connection.execute(
            f"SELECT position FROM {_COMMITS} WHERE name = ? ORDER BY position DESC LIMIT ?",
            (self._name, keep),
        ).fetchall()
        if len(kept) < keep:  # all there are: it reaches back as far as before
            return
        floor = max(kept[-1][0], self._standing(connection).floor)
        connection.execute(f"UPDATE {_SINKS} SET floor = ? WHERE name = ?", (floor, self._name))
        connection.execute(f"DELETE FROM {_COMMITS} WHERE name = ? AND position < ?", (self._name, floor))
        connection.execute(f"DELETE FROM {_VOIDS} WHERE name = ? AND high <= ?", (self._name, floor))
        connection.execute(f"DELETE FROM {self._undo} WHERE asyncstream_position <= ?", (floor,))

    # ------------------------------------------------------------------ the undo

    def _log_changes(self, connection: sqlite3.Connection) -> None:
        """From now on, this connection logs what it changes in the table."""
        columns = _columns_of(connection, self._table)
        if _columns_of(connection, self._undo) != self._undo_columns(connection):
            connection.execute(f"DROP TABLE IF EXISTS {self._undo}")
            defined = "".join(f", {quoted(column)}" for column in columns)
            connection.execute(
                f"CREATE TABLE {self._undo} (asyncstream_step INTEGER PRIMARY KEY, "
                f"asyncstream_position INTEGER, asyncstream_row INTEGER, asyncstream_was INTEGER{defined})"
            )
            connection.execute(
                f"CREATE INDEX {quoted(f'{self._name}__undo_positions')} ON {self._undo} "
                "(asyncstream_position)"
            )
            connection.execute(f"UPDATE {_SINKS} SET floor = moved WHERE name = ?", (self._name,))
        if self._may_replace(connection):
            connection.execute("PRAGMA recursive_triggers=ON")  # so that replaced rows come into the undo
        rowid = self._rowid(connection)
        self._can_undo = rowid is not None
        if rowid is None:
            return
        moved = f"(SELECT moved FROM {_SINKS} WHERE name = '{self._name.replace(chr(39), chr(39) * 2)}')"
        connection.execute(
            f"CREATE TEMP TRIGGER asyncstream_added AFTER INSERT ON main.{self._table} BEGIN "
            f"INSERT INTO {self._undo} (asyncstream_position, asyncstream_row, asyncstream_was) "
            f"VALUES ({moved}, NEW.{rowid}, 0); END"
        )
        old = "".join(f", OLD.{quoted(column)}" for column in columns)
        connection.execute(
            f"CREATE TEMP TRIGGER asyncstream_replaced BEFORE DELETE ON main.{self._table} BEGIN "
            f"INSERT INTO {self._undo} SELECT NULL, {moved}, OLD.{rowid}, 1{old}; END"
        )

    def _may_replace(self, connection: sqlite3.Connection) -> bool:
        """Whether a row may take the place of others: by how it is inserted, or as a constraint says."""
        query = (
            "SELECT sql FROM main.sqlite_master WHERE type IN ('table', 'view') AND name = ? COLLATE NOCASE"
        )
        (definition,) = connection.execute(query, (self._name,)).fetchone()
        return "REPLACE" in f"{self._insert} {definition}".upper()

    def _rowid(self, connection: sqlite3.Connection) -> str | None:
        """A name for the `rowid` of the table's rows; None if there is none to tell them apart by."""
        name = rowid_beside({row[1].lower() for row in _described(connection, self._table)})
        return name if name is not None and has_rowid(connection, self._table, name) else None

    def _undo_columns(self, connection: sqlite3.Connection) -> list[str]:
        """Those that the undo must have for the table as it is."""
        return [*_UNDO, *_columns_of(connection, self._table)]

    # ------------------------------------------------------------------ what is written down

    def _find_name(self, connection: sqlite3.Connection) -> None:
        """Go by the name under which the table is written down, whatever letters the user takes for it."""
        if _columns_of(connection, _SINKS):
            # earlier versions may have written down two
            query = (
                f"SELECT name FROM {_SINKS} WHERE name = ? COLLATE NOCASE ORDER BY moved DESC, name LIMIT 1"
            )
            (self._name,) = connection.execute(query, (self._name,)).fetchone() or (self._name,)

    def _standing(self, connection: sqlite3.Connection) -> Standing:
        query = f"SELECT * FROM {_SINKS} WHERE name = ?"
        columns = _columns_of(connection, _SINKS)
        found = connection.execute(query, (self._name,)).fetchone() if columns else None
        # of an earlier version, without some of the columns
        row = {} if found is None else dict(zip(columns, found, strict=True))
        moved, lease = row.get("moved", 0), row.get("lease")
        is_altered = _columns_of(connection, self._undo) != self._undo_columns(connection)
        floor = moved if is_altered else row.get("floor", moved)
        last = None if lease is None else Lease.from_json(lease)
        return Standing(moved, floor, self._last(connection), last, row.get("fence", 0))

    def _last(self, connection: sqlite3.Connection) -> int:
        """The largest number that any staged row has ever had."""
        if not _columns_of(connection, "sqlite_sequence"):
            return 0
        query = "SELECT seq FROM sqlite_sequence WHERE name = ? COLLATE NOCASE"
        found = connection.execute(query, (f"{self._name}__staged",)).fetchone()
        return 0 if found is None else int(found[0])

    def _is_void(self, connection: sqlite3.Connection, position: int) -> bool:
        if not _columns_of(connection, _VOIDS):
            return False
        query = f"SELECT 1 FROM {_VOIDS} WHERE name = ? AND low < ? AND ? <= high"
        return connection.execute(query, (self._name, position, position)).fetchone() is not None


def _list(columns: list[str]) -> str:
    return ", ".join(map(quoted, columns))


def _without(columns: list[str], others: list[str]) -> list[str]:
    """The columns that are not among others: to SQLite, `N` and `n` are one."""
    known = {column.encode().lower() for column in others}
    return [column for column in columns if column.encode().lower() not in known]


def _columns_of(connection: sqlite3.Connection, table: str) -> list[str]:
    """The names of a table's columns, without generated ones; none if there is no such table."""
    return [row[1] for row in _described(connection, table) if row[6] == 0]


def _described(connection: sqlite3.Connection, table: str) -> list[Any]:
    """What SQLite says of each column of a table; nothing if there is no such table."""
    return connection.execute(f"PRAGMA main.table_xinfo({table})").fetchall()
