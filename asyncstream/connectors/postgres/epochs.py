"""
What a PostgreSQL sink with checkpoints keeps beside its table, and what it does with it in transactions.

Rows are *staged*: kept in a table of their own, `<table>__staged`, with the position of the epoch that they
belong to. To commit an epoch means to move its rows into the table and to write down its position, in one
transaction. So each row is either staged or moved, whatever happens in between, and who reads the table sees
committed results only. (`PREPARE TRANSACTION` would do without, but is off by default, and one that is
forgotten keeps its locks and keeps the database from being vacuumed.)

What is staged of a batch is a *block*, or several if it is large: the bytes of the `COPY` that brings the
rows in. To the server a block is one value to write, and the second and last `COPY` of the same bytes is all
that a commit costs. The first `COPY` is into a temporary table, which is empty again at once: it tells
whether the rows fit.

To go back, see `standing`, takes no log of rows: PostgreSQL notes in each row which transaction has inserted
it (`xmin`). `asyncstream_commits` holds the transaction of each position and how many rows it has inserted.
If fewer are found, they were changed since, and the sink refuses.

Whose table it is stands in `asyncstream_sinks`. All that makes something safe looks at it first and locks it.
What stages a block does not: what a process still stages that was stopped, and followed by another, has the
position of an epoch without an owner. The follower begins with a later one (`since`), and moves no rows from
before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, LiteralString

from asyncstream.connectors.postgres.connection import Table, columns_of, joined, make_batch, no_table
from asyncstream.connectors.postgres.watched import Connection
from asyncstream.connectors.postgres.writing import copy_blocks, copy_rows
from asyncstream.connectors.standing import Standing, taken_over
from asyncstream.connectors.writer import Writer
from asyncstream.errors import SinkError
from asyncstream.lease import Lease

if TYPE_CHECKING:
    from psycopg import AsyncCursor

__all__ = ("Epochs",)

_TABLES: Final[tuple[LiteralString, ...]] = (
    "CREATE TABLE IF NOT EXISTS {sinks} (name text PRIMARY KEY, moved bigint NOT NULL DEFAULT 0, "
    "floor bigint NOT NULL DEFAULT 0, last bigint NOT NULL DEFAULT 0, since bigint NOT NULL DEFAULT 0, "
    "lease text, fence bigint NOT NULL DEFAULT 0)",
    "CREATE TABLE IF NOT EXISTS {commits} (name text, position bigint, transaction xid8 NOT NULL, "
    "rows bigint NOT NULL, PRIMARY KEY (name, position))",
    "CREATE TABLE IF NOT EXISTS {voids} (name text, low bigint, high bigint)",
    "CREATE TABLE IF NOT EXISTS {staged} (position bigint NOT NULL, number bigint NOT NULL, "
    "columns text[] NOT NULL, rows bytea NOT NULL)",
    # not compressed: what it would save, the server's processor pays for
    "ALTER TABLE {staged} ALTER rows SET STORAGE EXTERNAL",
)

_PAGE: Final = 16
"""Blocks that are in memory at a time while an epoch is being committed."""

_NAME: Final = 63
"""Bytes that the server keeps of a name."""

_LOCK: Final = 0x6173796E63  # any number: that of who makes these tables


class Epochs:
    """
    What belongs to one table.

    Args:
        ignores: rows that break a unique key are left out.

    Attributes:
        position: that of the epoch that is being written.
    """

    def __init__(self, table: Table, columns: Sequence[str], ignores: bool) -> None:
        self._what = f"table {table.name!r}"
        self._table = table
        self._name = table.name
        self._columns = columns
        self._ignores = ignores
        self._lease: Lease | None = None
        self._keep = 1
        self._number = 0  # of the last block that was staged
        self.position = 0
        names = {name: table.shared(f"asyncstream_{name}") for name in ("sinks", "commits", "voids")}
        table.words.update(names, staged=table.beside("staged"))

    # ------------------------------------------------------------------ going on

    async def _find_name(self, connection: Connection) -> None:
        # earlier versions may have written down two
        self._name = await self._table.known_as(connection, "asyncstream_sinks", "name", "moved DESC, name")

    async def standing(self, connection: Connection, locked: bool = False) -> Standing:
        """How far the table is."""
        if not await columns_of(connection, self._table.shared("asyncstream_sinks")):
            return Standing()
        await self._find_name(connection)
        query = "SELECT moved, floor, last, lease, fence FROM {sinks} WHERE name = %s"
        found = await self._table.one(connection, query + (" FOR UPDATE" if locked else ""), self._name)
        if found is None:
            return Standing()
        moved, floor, last, lease, fence = found
        return Standing(moved, floor, last, None if lease is None else Lease.from_json(lease), fence)

    async def check(
        self, connection: Connection, position: int | None, writer: Writer | None, locked: bool = False
    ) -> Standing:
        """
        See whether the table can go to a position; changes nothing. Raises `SinkError` if it cannot, or
        another job writes to it.
        """
        if not await columns_of(connection, self._table.identifier):
            raise no_table(self._what)
        if len(self._name.rpartition(".")[2].encode()) >= _NAME:
            raise SinkError(
                f"{self._what} has too long a name for exactly once: the server cuts off after {_NAME} bytes "
                f"that of the table beside it, in which rows are staged; give it one of less than {_NAME}"
            )
        standing = await self.standing(connection, locked)
        is_void = False
        if standing.last:
            query = "SELECT 1 FROM {voids} WHERE name = %s AND low < %s AND %s <= high"
            target = position or 0
            is_void = await self._table.one(connection, query, self._name, target, target) is not None
        standing.check(position, is_void, writer, self._what)
        return standing

    async def fence(self, connection: Connection, writer: Writer) -> None:
        """Have jobs that `writer` follows in its store change nothing more; part of a transaction."""
        standing = await self.standing(connection, locked=True)
        if writer.fences(standing.lease, standing.fence):
            await self._note(connection, "fence = %s", writer.lease.number)

    async def recover(self, connection: Connection, position: int | None, writer: Writer | None) -> None:
        """Go to a position; part of a transaction. Raises as `check` does."""
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        made = (self._table.shared("asyncstream_voids"), self._table.beside("staged"))
        # who only writes may have no right to make tables, and has none to one that makes nothing
        if not all([await columns_of(connection, table) for table in made]):
            for statement in _TABLES:
                await self._table.do(connection, statement)
        await self._find_name(connection)
        # whoever has deleted that row begins anew, behind the positions that there were: what is known of
        # earlier rows is not of this line
        insert: LiteralString = (
            "INSERT INTO {sinks} (name, last) SELECT %s, coalesce(max(position), 0) FROM {commits} "
            "WHERE name = %s ON CONFLICT DO NOTHING"
        )
        if (await self._table.do(connection, insert, self._name, self._name)).rowcount:
            await self._table.do(connection, "DELETE FROM {commits} WHERE name = %s", self._name)
            await self._table.do(connection, "DELETE FROM {voids} WHERE name = %s", self._name)
        standing = await self.check(connection, position, writer, locked=True)
        target, moved = position or 0, standing.moved
        if standing.goes_back(position, writer):
            await self._take_back(connection, target)
            moved = target
        target = max(target, moved)
        lease = None
        if writer is not None:
            self._lease, self._keep = writer.lease, writer.keep
            lease = self._lease.to_text()
        await self._note(connection, "lease = %s, fence = 0", lease)
        await make_batch(connection, self._table, self._columns)
        # nothing: what the table takes no rows of, a view or a generated column say, would be staged for ever
        async with connection.transaction(force_rollback=True):  # what triggers have done over it, too
            await self._bring_in(connection, self._columns, [])
        await self.commit(connection, target)
        await self._table.do(connection, "DELETE FROM {staged}")
        self._number, self.position = 0, standing.last + 2
        await self._note(connection, "moved = %s, last = last + 1, since = %s", target, self.position)
        if standing.keeps(position, writer):
            await self._note(connection, "floor = %s", self.position)
        if standing.last > target:
            # with the one that a process may still be copying that was stopped
            bounds = (self._name, target, standing.last + 1)
            await self._table.do(connection, "INSERT INTO {voids} VALUES (%s, %s, %s)", *bounds)

    async def _take_back(self, connection: Connection, position: int) -> None:
        """Take out of the table what was moved into it behind `position`."""
        bounds = (self._name, position)
        behind = "FROM {commits} WHERE name = %s AND position > %s"
        count = "SELECT coalesce(sum(rows), 0)::bigint " + behind
        found = await self._table.one(connection, count, *bounds)
        delete = "DELETE FROM {table} WHERE xmin IN (SELECT transaction::xid " + behind + ")"
        cursor = await self._table.do(connection, delete, *bounds)
        if found is None or cursor.rowcount != found[0]:
            raise SinkError(
                f"{self._what} cannot go back to the checkpoint: rows that were written since have been "
                "changed or deleted by others"
            )
        await self._table.do(connection, "DELETE " + behind, *bounds)

    # ------------------------------------------------------------------ epochs

    async def stage(self, connection: Connection, rows: Iterable[Sequence[Any]]) -> None:
        """Stage rows of the epoch that is being written: all or, if one does not fit, none."""
        blocks = await copy_rows(connection, self._table.filled("COPY {batch} ({columns}) FROM STDIN"), rows)
        insert = self._table.filled("INSERT INTO {staged} VALUES (%s, %s, %s, %b)")
        async with nullcontext() if len(blocks) == 1 else connection.transaction():
            for block in blocks:
                self._number += 1
                values = (self.position, self._number, list(self._columns), block)
                await connection.execute(insert, values, prepare=True)

    async def prepare(self, connection: Connection) -> int:
        """
        End the epoch that is being written; part of a transaction, with which all that was staged is safe.
        Raises `SinkBroken` if the table is another job's by now.
        """
        await connection.execute("SET LOCAL synchronous_commit TO DEFAULT")
        await self._ours(connection, "last = %s", self.position)
        position, self.position = self.position, self.position + 1
        return position

    async def commit(self, connection: Connection, position: int, lease: Lease | None = None) -> None:
        """
        Move the staged rows up to `position` into the table, and write down until when it is whose; part of a
        transaction. Raises `SinkBroken` if the table is another job's by now.
        """
        since = await self._ours(connection, "moved = greatest(moved, %s)", position)
        if lease is not None:
            await self._note(connection, "lease = %s", lease.to_text())
        rows = await self._move(connection, since, position)
        await self._table.do(connection, "DELETE FROM {staged} WHERE position <= %s", position)
        if rows:
            query = "INSERT INTO {commits} VALUES (%s, %s, pg_current_xact_id(), %s)"
            await self._table.do(connection, query, self._name, position, rows)
            await self._forget(connection)

    async def _move(self, connection: Connection, first: int, last: int) -> int:
        """Copy what is staged from one position to another into the table; gives how many rows have come."""
        rows = 0
        query = self._table.filled(
            "SELECT columns, rows FROM {staged} WHERE position BETWEEN %s AND %s ORDER BY position, number"
        )
        staged = connection.cursor("asyncstream_blocks", binary=True)
        try:
            async with staged:
                await staged.execute(query, (first, last))
                while page := await staged.fetchmany(_PAGE):
                    for columns, blocks in groupby(page, key=itemgetter(0)):
                        rows += await self._bring_in(connection, columns, [block for _, block in blocks])
        finally:
            await staged.close()  # the client leaves it open if the connection breaks as it is closed
        return rows

    async def _bring_in(self, connection: Connection, columns: Sequence[str], blocks: list[bytes]) -> int:
        filled = partial(self._table.filled, columns=joined(columns))
        if not self._ignores:
            return await copy_blocks(connection, filled("COPY {table} ({columns}) FROM STDIN"), blocks)
        await copy_blocks(connection, filled("COPY {batch} ({columns}) FROM STDIN"), blocks)
        insert = "INSERT INTO {table} ({columns}) SELECT {columns} FROM {batch} ORDER BY ctid "
        cursor = await connection.execute(filled(insert + "ON CONFLICT DO NOTHING"))
        await self._table.do(connection, "TRUNCATE {batch}")
        return cursor.rowcount

    async def _forget(self, connection: Connection) -> None:
        """Forget how to go back behind the checkpoints that are kept."""
        name = self._name
        query = "SELECT position FROM {commits} WHERE name = %s ORDER BY position DESC OFFSET %s LIMIT 1"
        found = await self._table.one(connection, query, name, self._keep - 1)
        if found is None:  # there are fewer: it reaches back as far as before
            return
        await self._table.do(
            connection, "DELETE FROM {commits} WHERE name = %s AND position < %s", name, *found
        )
        await self._table.do(connection, "DELETE FROM {voids} WHERE name = %s AND high <= %s", name, *found)
        await self._note(connection, "floor = greatest(floor, %s)", *found)

    async def _ours(self, connection: Connection, assignment: LiteralString, value: int) -> int:
        """Write something down about the table if it is still this job's; gives where this one has begun."""
        cursor = await self._note(connection, assignment, value)
        since, text, fence = await cursor.fetchone() or (0, None, 0)
        last = None if text is None else Lease.from_json(text)
        if fence or not (last is None if self._lease is None else self._lease.is_same(last)):
            raise taken_over(self._what, None if fence else last)
        return int(since)

    async def _note(
        self, connection: Connection, assignment: LiteralString, *values: object
    ) -> AsyncCursor[tuple[Any, ...]]:
        """Write something down about the table; gives where its job has begun, whose it is, and a fence."""
        query = "UPDATE {sinks} SET " + assignment + " WHERE name = %s RETURNING since, lease, fence"
        return await self._table.do(connection, query, *values, self._name)

    async def release(self, connection: Connection) -> None:
        """Leave the table to the next job; raises `SinkBroken` if it is another one's by now."""
        if self._lease is not None:
            await self._ours(connection, "moved = greatest(moved, %s)", 0)
            await self._note(connection, "lease = %s", self._lease.given_back().to_text())
