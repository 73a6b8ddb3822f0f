"""
PostgreSQL tables as sinks: `PostgresSink`, at once, or exactly once in a job with checkpoints (see `epochs`),
and `PostgresUpsertSink`, by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Literal, LiteralString

from asyncstream.connectors.base import CountingSink, TransactionalSink
from asyncstream.connectors.lines import column_names
from asyncstream.connectors.postgres.connection import NATIVE, joined
from asyncstream.connectors.postgres.epochs import Epochs
from asyncstream.connectors.postgres.watched import Connection
from asyncstream.connectors.postgres.writing import TableWriter, copy_rows
from asyncstream.connectors.rows import Default, RowWriter, why_unwritten
from asyncstream.elements import Timestamps
from asyncstream.errors import SinkError
from asyncstream.keyed.changes import UPDATE_BEFORE, Change, comes
from asyncstream.validation import choice, refuse

__all__ = ("PostgresSink", "PostgresUpsertSink")


class PostgresSink(CountingSink[Any], TransactionalSink[Any]):
    """
    Writes mappings and other records, such as dataclasses and the results of windows, as rows of a table: at
    once, or exactly once in a job with checkpoints. How values are written: `asyncstream.connectors.rows`;
    dates, times, decimals, UUIDs and bytes as they are, lists and objects as JSON. A point in time with a
    zone is written in UTC, which counts where the column has none.

    With checkpoints, rows are staged in `<table>__staged`, as blocks, and appear when the checkpoint is safe,
    together with its number, in one transaction. The database needs three more tables, `asyncstream_sinks`,
    `_commits` and `_voids`, which the sink makes. A value that does not fit its column, or breaks a check,
    fails in the write; one that breaks a unique or a foreign key fails when its checkpoint is committed.

    Args:
        url: the address of the database: `postgresql://user@host/database`, or as libpq's `key=value` pairs.
        table: the table, which must be there: `name` or `schema.name`.
        columns: the keys to write. An element must have all of them; others are left out.
        default: makes of a value of your own type one that can be written; raises `TypeError` for others.
        on_conflict: what to do with a row that breaks a unique key: "fail", or "ignore" the new row.
    """

    def __init__(
        self,
        url: str,
        table: str,
        *,
        columns: Sequence[str],
        default: Default | None = None,
        on_conflict: Literal["fail", "ignore"] = "fail",
    ) -> None:
        self._ignores = choice("on_conflict", on_conflict, ("fail", "ignore")) == "ignore"
        self._to = TableWriter(url, table, columns, default)
        self._epochs = Epochs(self._to.table, self._to.columns, self._ignores)
        self._has_epochs = False
        self._prepared: dict[int, int] = {}  # positions by epoch, of those not committed yet

    async def open(self) -> None:
        self._has_epochs = False
        await self._to.open(keeps=False)

    async def fence(self) -> None:
        writer = self.writer
        if writer is not None:
            async with self._to.briefly("write to") as connection:
                await self._epochs.fence(connection, writer)

    async def can_recover(self, position: int | None) -> None:
        async with self._to.briefly("read") as connection:
            await self._epochs.check(connection, position, self.writer)

    async def recover(self, position: int | None) -> None:
        self._has_epochs = True
        self._prepared.clear()
        await self._to.open(keeps=True)
        await self._to.transaction(lambda connection: self._epochs.recover(connection, position, self.writer))
        # what is staged need not reach the disk before it is prepared, which asks for it
        await self._to.do(lambda connection: connection.execute("SET synchronous_commit = off"))

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self._taken = 0
        rows = self._to.rows(values)

        async def put(connection: Connection) -> None:
            if self._has_epochs:
                await self._epochs.stage(connection, rows)
            elif self._ignores:
                await self._insert(connection, rows)
            else:
                copy = self._to.table.filled("COPY {table} ({columns}) FROM STDIN")
                await copy_rows(connection, copy, rows)
            self._taken = len(rows)

        await self._to.write(put, whole=False)

    async def _insert(self, connection: Connection, rows: Sequence[Sequence[Any]]) -> None:
        """
        Insert those whose keys are not there, one after the other; all or none. Cells are texts without a
        type, as they are in a copy: of a number's own type the server makes that of a column, and rounds.
        """
        from psycopg.adapt import PyFormat, Transformer
        from psycopg.sql import SQL, Placeholder

        transformer = Transformer(connection)

        def told(cell: Any) -> str | None:
            if cell is None or type(cell) is str:
                return cell
            dumped = transformer.get_dumper(cell, PyFormat.TEXT).dump(cell)
            return None if dumped is None else bytes(dumped).decode()

        places = SQL(", ").join([Placeholder()] * len(self._to.columns))
        insert = "INSERT INTO {table} ({columns}) VALUES ({places}) ON CONFLICT DO NOTHING"
        statement = self._to.table.filled(insert, places=places)
        async with connection.transaction(), connection.cursor() as cursor:
            await cursor.executemany(statement, [list(map(told, row)) for row in rows])

    async def prepare(self, epoch: int) -> int:
        position = await self._to.transaction(self._epochs.prepare)
        self._prepared[epoch] = position
        return position

    async def commit(self, epoch: int) -> None:
        position = self._prepared[epoch]
        lease = None if self.writer is None else self.writer.lease
        await self._to.transaction(lambda connection: self._epochs.commit(connection, position, lease))
        self._prepared = {later: kept for later, kept in self._prepared.items() if later > epoch}

    async def close(self) -> None:
        try:
            if self._has_epochs:
                with suppress(SinkError):  # the table was taken over, or cannot be written: that was said
                    await self._to.transaction(self._epochs.release)
        finally:
            await self._to.close()


class PostgresUpsertSink(CountingSink[Any]):
    """
    Writes records as rows of a table at once; a row whose key is there replaces the values of the columns.

    An element that is written a second time, after a crash, leaves the table as it is. So results that have a
    key, such as the counts of a window, are right in the end without being exactly once on the way, and can
    be seen before the next checkpoint.

    Elements may be `Change`s, as a change log has them: `-D` deletes the row of its key, of which the element
    need not have more than the key, and `-U` is passed over, for `+U` follows. Both rows of a replacement
    must have the same key.

    Args:
        url, table, columns: as for `PostgresSink`.
        key: the columns of a unique key of the table; among `columns`. An element in which one is null is
            refused, unless there is an index with `NULLS NOT DISTINCT`.
        default: as for `PostgresSink`.
    """

    def __init__(
        self,
        url: str,
        table: str,
        *,
        columns: Sequence[str],
        key: str | Sequence[str],
        default: Default | None = None,
    ) -> None:
        self._to = TableWriter(url, table, columns, default)
        self._key = column_names([key] if isinstance(key, str) else key, "key")
        missing = [name for name in self._key if name not in self._to.columns]
        if missing:
            raise refuse("key", "names that are among columns", key, f"missing there: {missing}")
        self._keys = RowWriter(self._key, default, NATIVE)
        self._takes_null = False  # there is an index to which nulls are equal
        self._add_words()

    def _add_words(self) -> None:
        """The words of statements for the key; also once it is known whether it may be null."""
        from psycopg.sql import SQL, Identifier

        rest = [name for name in self._to.columns if name not in self._key]
        values = SQL(", ").join(SQL("{0} = excluded.{0}").format(Identifier(name)) for name in rest)
        equal = "here.{0} IS NOT DISTINCT FROM gone.{0}" if self._takes_null else "here.{0} = gone.{0}"
        self._to.table.words.update(
            key=joined(self._key),
            same=SQL(" AND ").join(SQL(equal).format(Identifier(name)) for name in self._key),
            update=SQL("UPDATE SET {}").format(values) if rest else SQL("NOTHING"),
        )

    async def open(self) -> None:
        await self._to.open(keeps=True)
        await self._to.do(self._make_batch)

    async def _make_batch(self, connection: Connection) -> None:
        """
        A table for one batch: to copy rows and to insert them from there is the quickest way. It has no
        constraints, which a key alone, of a row that goes, might break.
        """
        await self._to.table.do(
            connection,
            "CREATE TEMPORARY TABLE {batch} ON COMMIT DELETE ROWS AS SELECT {columns}, "
            "0::bigint AS asyncstream_number, false AS asyncstream_goes FROM {table} WITH NO DATA",
        )
        query = (
            "SELECT coalesce(bool_or((to_jsonb(i)->>'indnullsnotdistinct')::bool), false) FROM pg_index AS i "
            "WHERE indrelid = to_regclass(%s)"
        )
        cursor = await connection.execute(query, (self._to.table.identifier.as_string(connection),))
        self._takes_null = await cursor.fetchone() == (True,)
        self._add_words()

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self._taken = 0
        coming, going = self._by_what_becomes(values)
        cells = self._to.rows(list(coming.values()))
        rows = [(number, *row) for number, row in zip(coming, cells, strict=True)]
        keys = self._keys.rows(list(going.values()), f"table {self._to.table.name!r}") if going else []
        gone = [(number, True, *key) for number, key in zip(going, keys, strict=True)]
        if not self._takes_null:
            self._refuse_null(values, rows, [1 + self._to.columns.index(name) for name in self._key])
            self._refuse_null(values, gone, range(2, 2 + len(self._key)))

        async def put(connection: Connection) -> None:
            table = self._to.table
            copy = table.filled("COPY {batch} (asyncstream_number, {columns}) FROM STDIN")
            await copy_rows(connection, copy, rows)
            if gone:
                copy = table.filled("COPY {batch} (asyncstream_number, asyncstream_goes, {key}) FROM STDIN")
                await copy_rows(connection, copy, gone)
                delete: LiteralString = "DELETE FROM {table} AS here USING {batch} AS gone "
                await table.do(connection, delete + "WHERE asyncstream_goes AND {same}")
            await table.do(
                connection,
                "INSERT INTO {table} ({columns}) SELECT {columns} FROM (SELECT DISTINCT ON ({key}) * "
                "FROM {batch} ORDER BY {key}, asyncstream_number DESC) AS last "
                "WHERE asyncstream_goes IS NULL ON CONFLICT ({key}) DO {update}",
            )

        await self._to.write(put, whole=True)
        self._taken = len(values)

    def _by_what_becomes(self, values: Sequence[Any]) -> tuple[dict[int, Any], dict[int, Any]]:
        """The rows that come and those that go, by their places among the elements."""
        if Change not in map(type, values):
            return dict(enumerate(values)), {}
        coming, going = dict[int, Any](), dict[int, Any]()
        for number, value in enumerate(values):
            if type(value) is not Change:
                coming[number] = value
            elif value.kind != UPDATE_BEFORE:
                try:
                    rows = coming if comes(value) else going
                except TypeError as error:
                    raise SinkError(why_unwritten(value, self._to.what, error)) from error
                rows[number] = value.value
        return coming, going

    def _refuse_null(self, values: Sequence[Any], rows: Sequence[Any], places: Iterable[int]) -> None:
        """Raise `SinkError` if a row has null in one of the places, which are those of its key."""
        for row in rows:
            if any(row[place] is None for place in places):
                # to the index they differ, and in a batch they would be one
                error = ValueError(f"its key, {' and '.join(self._key)}, is null")
                raise SinkError(why_unwritten(values[row[0]], self._to.what, error)) from error

    async def close(self) -> None:
        await self._to.close()
