"""
A table of PostgreSQL as a queue: the rows that transactions of a service leave in its *outbox*.

Theory of operation
-------------------
A row is free, then belongs to one consumer, and is deleted in the end::

    INSERT by the service ──claim──> a consumer's, with a number ──a checkpoint covers it──> deleted

Claims go by `FOR UPDATE SKIP LOCKED`, so consumers do not wait for each other, and a row that is committed
late, though its id is small, is not passed over, as it would be by a source that reads behind the largest id.
The numbers of claims come from one sequence and grow with each; the source's position is the last one that
was read. After a crash, rows of the consumer's behind this position are read again, in the same order; those
up to it are in the checkpoint, and are deleted when no older one is kept.

Two columns of the table hold the claims, `asyncstream_consumer` and `asyncstream_claim`; who is a consumer
stands in `asyncstream_consumers`, with its lease and when it was last heard of. One that is not heard of for
a while is taken for dead, and others take over its rows.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import Any, Final, Literal, LiteralString, TypedDict, TypeVar, Unpack, overload

from asyncstream.connectors.message_source import MessageSource
from asyncstream.connectors.messages import RejectedMessage
from asyncstream.connectors.models import Unfit, UnreadableRow, reader
from asyncstream.connectors.postgres.connection import (
    Table,
    checked_url,
    columns_of,
    connect,
    joined,
    naming,
    place_of,
    rows_of,
)
from asyncstream.connectors.postgres.watched import Connection
from asyncstream.connectors.writer import check_reader_follows
from asyncstream.errors import SourceError
from asyncstream.lease import Lease
from asyncstream.validation import Duration, duration_seconds, text

__all__ = ("PostgresOutbox",)

T = TypeVar("T")
U = TypeVar("U")

_OURS: Final = ("asyncstream_consumer", "asyncstream_claim")
"""The columns that hold the claims."""

_MAKE: Final[tuple[LiteralString, ...]] = (
    "CREATE TABLE IF NOT EXISTS {consumers} (source text, name text, lease text, seen timestamptz NOT NULL, "
    "PRIMARY KEY (source, name))",
    "CREATE SEQUENCE IF NOT EXISTS {claims}",
    "ALTER TABLE {table} ADD COLUMN asyncstream_consumer text, ADD COLUMN asyncstream_claim bigint",
    "CREATE INDEX ON {table} ({id}) WHERE asyncstream_claim IS NULL",
    "CREATE INDEX ON {table} (asyncstream_consumer, asyncstream_claim)",
)
"""What is made at the first use of a table, ..."""

_SHARED: Final = 2
"""... so many of them for all tables of the schema."""

_CLAIM: Final[LiteralString] = (
    "WITH free AS MATERIALIZED (SELECT ctid AS place, {id} AS id FROM {table} "
    "WHERE asyncstream_claim IS NULL ORDER BY {id} LIMIT %s FOR UPDATE SKIP LOCKED), "
    "numbered AS MATERIALIZED (SELECT place, id, "
    "nextval({sequence}) AS claim FROM (SELECT place, id FROM free ORDER BY id) AS f) "
    "UPDATE {table} AS o SET asyncstream_consumer = %s, asyncstream_claim = n.claim FROM numbered AS n "
    "WHERE o.ctid = n.place AND o.{id} = n.id RETURNING o.*"
)

_BY_PLACE: Final = (
    "SELECT set_config(name, 'off', true) "
    "FROM unnest(ARRAY['enable_seqscan', 'enable_hashjoin', 'enable_mergejoin']) AS name"
)
"""For a transaction: of a table that is filled and emptied the planner knows little, and may read it all."""

_TAKE_OVER: Final[LiteralString] = (
    "WITH dead AS (DELETE FROM {consumers} WHERE (source, name) IN (SELECT source, name FROM {consumers} "
    "WHERE source = %s AND name <> %s AND seen < now() - make_interval(secs => %s) FOR UPDATE SKIP LOCKED) "
    "RETURNING name), "
    "theirs AS MATERIALIZED (SELECT {id} AS id, nextval({sequence}) AS claim FROM (SELECT {id} FROM {table} "
    "WHERE asyncstream_consumer IN (SELECT name FROM dead) ORDER BY asyncstream_claim FOR UPDATE) AS f) "
    "UPDATE {table} AS o SET asyncstream_consumer = %s, asyncstream_claim = t.claim FROM theirs AS t "
    "WHERE o.{id} = t.id"
)

_LOCK: Final = 0x6F7574626F78
"""Any number: that of who makes these tables."""


class _Options(TypedDict, total=False):
    id: str
    consumer: str
    on_malformed: Literal["fail", "reject"]
    channel: str | None
    every: Duration
    dead_after: Duration
    ends: bool
    batch: int


class PostgresOutbox(MessageSource[T, dict[str, Any], "Connection"]):
    """
    Reads the rows of a table as dicts, and deletes them when all checkpoints that are kept cover them.

    Every row is read by one of the consumers of the table, whatever their number, in the order of its id as
    far as there is one consumer. A job that goes on after a crash neither misses a row nor reads one twice.
    Only what a consumer had that was away for longer than `dead_after` is read by others, and a second time
    if it was in a checkpoint of that consumer. Without checkpoints a row is deleted when the next are read.

    The source adds two columns and two indexes to the table at its first use.

    Args:
        url: the address of the database: `postgresql://user@host/database`, or as libpq's `key=value` pairs.
        table: the table: `name` or `schema.name`.
        id: the column by which rows are told apart and ordered; a unique key of the table.
        consumer: the name of this one among those that share the table, the same after a restart and of no
            other: of two that go by one name, the first ends when the second one begins.
        model: a dataclass, NamedTuple, TypedDict or pydantic model of which each row is to become one; see
            `connectors.models`.
        on_malformed: what to do with a row that is no `model`, or has a value that is nothing in Python, such
            as a date of 'infinity': "fail" with `SourceError`, after all before it were delivered; or
            "reject": a `RejectedMessage` goes to the source's `rejected` output.
        channel: look for rows as soon as there is a `NOTIFY` on this channel; best one of a trigger.
        every: how often to look without being told: a `timedelta` or seconds.
        dead_after: after which time a consumer that is not heard of is dead: a `timedelta` or seconds; more
            than a restart takes.
        ends: end when there are no more rows, rather than wait for more.
        batch: how many rows one read brings at most, however large: give a smaller number for rows of many
            kilobytes.
    """

    needs_writer = True

    @overload
    def __init__(
        self: PostgresOutbox[dict[str, Any]], url: str, table: str, **options: Unpack[_Options]
    ) -> None: ...
    @overload
    def __init__(
        self: PostgresOutbox[U], url: str, table: str, *, model: type[U], **options: Unpack[_Options]
    ) -> None: ...
    def __init__(
        self,
        url: str,
        table: str,
        *,
        model: Any = None,
        id: str = "id",
        consumer: str = "asyncstream",
        on_malformed: Literal["fail", "reject"] = "fail",
        channel: str | None = None,
        every: Duration = 1.0,
        dead_after: Duration = 60.0,
        ends: bool = False,
        batch: int = 1000,
    ) -> None:
        super().__init__(on_malformed, ends=ends, batch=batch)
        self._url = checked_url(url)
        self._table = Table(text("table", table))
        self._name = self._table.name  # by which it stands among the consumers
        self._what = f"table {table!r} of {place_of(url)}"
        self._id = text("id", id)
        from psycopg import sql

        claims = self._table.shared("asyncstream_claims")
        self._table.words.update(
            id=joined([self._id]),
            consumers=self._table.shared("asyncstream_consumers"),
            claims=claims,
            sequence=sql.Literal(claims.as_string()),
        )
        self._consumer = text("consumer", consumer)
        self._model = None if model is None else reader(model, is_table=True)
        self._channel = None if channel is None else text("channel", channel)
        self._every = duration_seconds("every", every)
        self._dead_after = duration_seconds("dead_after", dead_after)
        self._listening: Connection | None = None
        self._turn = asyncio.Lock()
        self._read = 0  # the last claim that was read
        self._asked = 0  # the last claim that was asked for
        self._has_claimed = True  # there may be rows that are claimed and were not asked for
        self._lease = ""
        self._is_new = True  # nothing is known of it: others may have taken over what it had
        self._look_for_dead = 0.0  # by the loop's time

    # ------------------------------------------------------------------ the beginning

    async def open(self) -> None:
        await super().open()
        self._read = self._asked = 0
        self._has_claimed = True
        # by chance: of two jobs without checkpoints, too, the one that was followed finds it out
        self._lease = os.urandom(8).hex() if self.writer is None else self.writer.lease.to_text()
        connection = self._opened()
        with self._naming():
            await self._make(connection)
            async with connection.transaction():
                await self._enter(connection)
            if self._channel is not None:
                self._listening = await connect(self._url, keeps=True)
                listen = self._table.filled("LISTEN {channel}", channel=joined([self._channel]))
                await self._listening.execute(listen)
        self._show_every(self._dead_after / 4, self._show)

    def _naming(self, doing: str = "read") -> AbstractContextManager[None]:
        return naming(SourceError, f"{doing} {self._what}")

    async def _connect(self) -> Connection:
        return await connect(self._url)

    async def _disconnect(self, client: Connection) -> None:
        await client.close()

    async def _make(self, connection: Connection) -> None:
        """Make what is not there yet."""
        there = await columns_of(connection, self._table.identifier)
        if self._id not in there:
            lacks = f"no column {self._id!r}; there are: {', '.join(there)}" if there else "no such table"
            raise SourceError(f"cannot read {self._what}: there is {lacks}")
        consumers = self._table.shared("asyncstream_consumers")
        if set(_OURS) <= set(there) and await columns_of(connection, consumers):
            return
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            is_new = _OURS[0] not in await columns_of(connection, self._table.identifier)
            for statement in _MAKE if is_new else _MAKE[:_SHARED]:
                await self._table.do(connection, statement)

    async def _enter(self, connection: Connection) -> None:
        """Write down that this is the consumer now."""
        self._name = await self._table.known_as(connection, "asyncstream_consumers", "source", "source")
        names = (self._name, self._consumer)
        query: LiteralString = "SELECT lease FROM {consumers} WHERE source = %s AND name = %s FOR UPDATE"
        found = await self._table.one(connection, query, *names)
        self._is_new = found is None
        last = "" if found is None else found[0] or ""
        if last.startswith("{") and self.writer is not None:  # not of a job without checkpoints
            what = f"consumer {self._consumer!r} of {self._what}"
            check_reader_follows(self.writer, Lease.from_json(last), what)
        await self._table.do(
            connection,
            "INSERT INTO {consumers} VALUES (%s, %s, %s, now()) ON CONFLICT (source, name) "
            "DO UPDATE SET lease = excluded.lease, seen = excluded.seen",
            *(*names, self._lease),
        )

    # ------------------------------------------------------------------ reading

    def _element(self, message: dict[str, Any]) -> Any:
        row = {name: cell for name, cell in message.items() if name not in _OURS}
        if isinstance(message, UnreadableRow):
            return RejectedMessage(self._what, row[self._id], row, message.reason)
        try:
            return row if self._model is None else self._model(row)
        except Unfit as error:
            return RejectedMessage(self._what, str(row[self._id]), row, str(error))

    def _taken(self, messages: Sequence[dict[str, Any]]) -> None:
        self._read = int(messages[-1][_OURS[1]])

    async def _fetch(self) -> list[dict[str, Any]]:
        """Rows that were not asked for yet; none at the end."""
        while True:
            async with self._work("read") as connection:
                rows = await self._claimed(connection) if self._has_claimed else []
                if not rows and not await self._take_over(connection):
                    rows = await self._claim(connection)
            if rows:
                self._asked = int(rows[-1][_OURS[1]])
                return rows
            if self._has_claimed:  # of a consumer that is dead
                continue
            if self._ends:
                return []
            await self._wait()

    async def _claimed(self, connection: Connection) -> list[dict[str, Any]]:
        """Rows that are this consumer's already."""
        query: LiteralString = (
            "SELECT * FROM {table} WHERE asyncstream_consumer = %s AND asyncstream_claim > %s "
            "ORDER BY asyncstream_claim LIMIT %s"
        )
        rows = await self._rows(connection, query, self._consumer, self._asked, self._batch)
        self._has_claimed = len(rows) == self._batch
        return rows

    async def _claim(self, connection: Connection) -> list[dict[str, Any]]:
        """Make free rows this consumer's."""
        await connection.execute(_BY_PLACE)
        rows = await self._rows(connection, _CLAIM, self._batch, self._consumer)
        return sorted(rows, key=lambda row: int(row[_OURS[1]]))

    async def _take_over(self, connection: Connection) -> bool:
        """Whether there were rows of consumers that are dead, which are this one's now."""
        now = asyncio.get_running_loop().time()
        if now < self._look_for_dead:
            return False
        self._look_for_dead = now + self._dead_after / 3
        values = (self._name, self._consumer, self._dead_after, self._consumer)
        self._has_claimed = (await self._table.do(connection, _TAKE_OVER, *values)).rowcount > 0
        return self._has_claimed

    async def _wait(self) -> None:
        """Until there may be something new."""
        if self._listening is None:
            await asyncio.sleep(self._every)
            return
        with self._naming("listen to"):
            async for _ in self._listening.notifies(timeout=self._every, stop_after=1):
                pass

    async def _show(self) -> None:
        """Be heard of, as by all that is done."""
        async with self._work("read"):
            pass

    # ------------------------------------------------------------------ positions

    def position(self) -> int:
        return self._read

    async def _check(self, client: Connection, position: int) -> None:
        """Refuse a position that this database has not had."""
        last = 0
        if await columns_of(client, self._table.shared("asyncstream_claims")):
            (last,) = await self._table.one(client, "SELECT last_value FROM {claims}") or (0,)
        if last < position:
            raise SourceError(
                f"cannot go on behind claim {position} of {self._what}, which has had fewer: is it the same "
                "database? Begin with what it holds by another name for the source, or restore='none'"
            )

    async def seek(self, position: int) -> None:
        async with self._work("read") as connection:
            await self._check(connection, position)
        self._read = self._asked = position
        self._has_claimed, self.started_over = True, self._is_new

    async def forget(self, position: int) -> None:
        query: LiteralString = (
            "DELETE FROM {table} WHERE asyncstream_consumer = %s AND asyncstream_claim <= %s"
        )
        async with self._work("delete from") as connection:
            await self._table.do(connection, query, self._consumer, position)

    async def _leave(self, client: Connection) -> None:
        listening, self._listening = self._listening, None
        try:
            if self.writer is not None:
                given_back = self.writer.lease.given_back().to_text()
                with suppress(SourceError), self._naming("write to"):  # that was said before
                    await self._note(client, "lease = %s", given_back)
        finally:
            for opened in (client, listening):
                if opened is not None:
                    await opened.close()

    # ------------------------------------------------------------------ the database

    @asynccontextmanager
    async def _work(self, doing: str) -> AsyncIterator[Connection]:
        """The connection, in a transaction, if this is still the consumer; one at a time."""
        with self._naming(doing):
            async with self._turn, self._opened().transaction():
                connection = self._opened()
                if not await self._note(connection, "seen = now()"):
                    raise SourceError(
                        f"consumer {self._consumer!r} of {self._what} was taken over: another job reads by "
                        "this name, and each is to have a consumer= of its own; or this one was not heard of "
                        "for too long"
                    )
                yield connection

    async def _note(self, connection: Connection, assignment: LiteralString, *values: object) -> bool:
        """Write something down about the consumer; whether this still is the one."""
        query = "UPDATE {consumers} SET " + assignment + " WHERE source = %s AND name = %s AND lease = %s"
        names = (self._name, self._consumer, self._lease)
        return (await self._table.do(connection, query, *values, *names)).rowcount == 1

    async def _rows(
        self, connection: Connection, statement: LiteralString, *values: object
    ) -> list[dict[str, Any]]:
        from psycopg.rows import dict_row

        async with connection.cursor(row_factory=dict_row) as cursor:
            # not prepared: the server refuses to go on with what was, once the table has another column
            await cursor.execute(self._table.filled(statement), values, prepare=False)
            return await rows_of(cursor)
