"""
A connection to PostgreSQL: opened with the settings that sinks and sources count on, its errors told plainly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, LiteralString

from asyncstream.addresses import server_address
from asyncstream.connectors.messages import unreadable
from asyncstream.connectors.models import UnreadableRow
from asyncstream.connectors.postgres.watched import Connection, watched
from asyncstream.errors import AsyncStreamError, SinkError, describe_error
from asyncstream.validation import refuse

if TYPE_CHECKING:
    from psycopg import AsyncCursor, sql
    from psycopg.adapt import Dumper

__all__ = (
    "BATCH",
    "NATIVE",
    "Table",
    "checked_url",
    "columns_of",
    "connect",
    "follow_types",
    "joined",
    "make_batch",
    "naming",
    "no_table",
    "place_of",
    "rows_of",
)

NATIVE: Final = frozenset({bytes, bytearray, memoryview, date, datetime, time, timedelta, Decimal})
"""Types that the client writes as they are, besides numbers and texts; a UUID it writes without hyphens."""

BATCH: Final = ("pg_temp", "asyncstream_batch")
"""The schema and the name of a table for one batch of rows."""

_SETTINGS: Final = {
    # a process that is stopped within a transaction does not keep its locks: its follower waits longer
    "idle_in_transaction_session_timeout": "10s",
    "lock_timeout": "30s",
    # a commit that is cut off by what the database has as its own would be so at each start
    "statement_timeout": "0",
    # who has waited for a lock is to see what the one before has done, whatever the database has as its own
    "default_transaction_isolation": "read\\ committed",
}

_NO_LIMITS: Final = (
    "SELECT set_config(name, '0', false) FROM pg_settings "
    "WHERE name IN ('idle_session_timeout', 'transaction_timeout') AND source <> 'client'"
)
"""As those, for a session of one's own, of what not every server knows: nothing may be written for hours."""

_PATIENCE: Final = 5.0
"""Seconds that a pooler gets to give another session."""

_LOOKS: Final = 5
"""Times that it is looked whether a session was given to others, if there are any."""

_CLIENT: Final[dict[str, int | str]] = {
    "connect_timeout": 10,
    "application_name": "asyncstream",
    # of several hosts the one that is not a replica: sources, too, write down what they have read
    "target_session_attrs": "read-write",
    # a host that is gone, or has forgotten the connection, is found in two minutes, whatever is waited for
    "keepalives_idle": 60,
    "keepalives_interval": 15,
    "keepalives_count": 4,
}
"""Of the connection, unless the address says otherwise."""


def checked_url(url: object) -> str:
    """The address of a database, as libpq wants it; what is wrong with it is a `PipelineError`."""
    example = "postgresql://user@host/database"
    return server_address(url, "PostgreSQL", "postgres", "a PostgreSQL database", _parsed, example)


def _parsed(url: str) -> dict[str, Any]:
    from psycopg import conninfo

    found = conninfo.conninfo_to_dict(url)
    for port in str(found.get("port", "")).split(","):
        if port and not port.isdecimal():  # part of a password with a "/" in it, say, which errors would tell
            raise ValueError(url)
    return found


def place_of(url: str) -> str:
    """The database as messages name it, without a password."""
    found = _parsed(url)
    host, port = found.get("host", "localhost"), found.get("port", 5432)
    return f"PostgreSQL at {host}:{port}/{found.get('dbname', found.get('user', ''))}"


async def connect(url: str, *, keeps: bool = False) -> Connection:
    """
    A connection on which every statement is a transaction of its own, unless one is begun. If it `keeps` what
    is made for its session, such as a temporary table, this raises `OperationalError` behind a pooler that
    does not.
    """
    from psycopg import conninfo

    given = conninfo.conninfo_to_dict(url)
    options = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
    merged = {**_CLIENT, **given}
    merged["options"] = f"{options} {given.get('options', '')}".strip()
    merged["client_encoding"] = "utf-8"  # of the blocks that a sink stages, and another job may commit
    made = conninfo.make_conninfo("", **merged)
    connection = await watched(made)
    connection.adapters.register_dumper(datetime, _dumper_in_utc())
    try:
        if keeps:
            await _check_keeps(connection, made)
        if keeps or await _is_direct(connection):
            await connection.execute(_NO_LIMITS)
        else:  # nor has it what the client would prepare by itself: another session may not have that
            connection.prepare_threshold = None
    except BaseException:
        await connection.close()
        raise
    return connection


def _dumper_in_utc() -> type[Dumper]:
    """
    Writes a point in time as one of UTC: of another zone, the server leaves out the offset where the column
    has none, which makes another point in time of it.
    """
    from psycopg.adapt import Dumper

    class InUtc(Dumper):
        def dump(self, obj: datetime) -> bytes:
            if obj.tzinfo is not None and obj.tzinfo is not UTC:
                with suppress(OverflowError):  # at the ends of the calendar
                    obj = obj.astimezone(UTC)
            return str(obj).encode()

    return InUtc


async def _check_keeps(connection: Connection, conninfo: str) -> None:
    """
    Raises `OperationalError` if the session is given to others between two transactions: settings and tables
    of this job would be theirs.
    """
    from psycopg import OperationalError

    if await _is_direct(connection):
        return
    pid = await _served_by(connection)
    with suppress(TimeoutError):  # no session is left for another one: this one is kept
        async with asyncio.timeout(_PATIENCE):
            try:
                other = await watched(conninfo)
            except OperationalError:  # nor is a connection, of which a user may have so many
                return
            try:
                async with other.transaction():
                    # the session that was given back last is that of who comes next: the other one, or others
                    is_theirs = await _served_by(other) == pid
                    if is_theirs or any([await _served_by(connection) != pid for _ in range(_LOOKS)]):
                        raise OperationalError(
                            "a pooler gives each transaction to another session, as PgBouncer does with "
                            "pool_mode=transaction: give the address of the server, or of a pool of sessions"
                        )
            finally:
                await other.close()


async def _is_direct(connection: Connection) -> bool:
    """Whether no pooler is in between, which makes up numbers."""
    return await _served_by(connection) == connection.info.backend_pid


async def _served_by(connection: Connection) -> int:
    """The number of the process that serves it now."""
    cursor = await connection.execute("SELECT pg_backend_pid()", prepare=False)
    found = await cursor.fetchone()
    return 0 if found is None else int(found[0])


async def columns_of(connection: Connection, table: sql.Identifier) -> list[str]:
    """The columns of a table; none if there is no table of this name."""
    query = (
        "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 "
        "AND NOT attisdropped ORDER BY attnum"
    )
    cursor = await connection.execute(query, (table.as_string(connection),))
    return [name for (name,) in await cursor.fetchall()]


async def make_batch(connection: Connection, table: Table, columns: Sequence[str]) -> None:
    """
    Make the table `BATCH`, with some of the columns of another, their types and checks. It is gone with the
    connection, and what is in it with the transaction.
    """
    from psycopg.sql import SQL, Identifier

    batch = Identifier(*BATCH)
    create = SQL("CREATE TEMPORARY TABLE {} (LIKE {} INCLUDING CONSTRAINTS) ON COMMIT DELETE ROWS")
    await connection.execute(create.format(batch, table.identifier))
    names = await columns_of(connection, batch)
    drops = [SQL("DROP COLUMN {}").format(Identifier(name)) for name in names if name not in columns]
    if drops:
        await connection.execute(SQL("ALTER TABLE {} {}").format(batch, SQL(", ").join(drops)))


async def follow_types(connection: Connection, table: Table) -> bool:
    """Whether columns of a table have other types than when `BATCH` was made, which has these from now on."""
    from psycopg.sql import SQL, Identifier

    query = (
        "SELECT was.attname, format_type(now.atttypid, now.atttypmod) FROM pg_attribute AS was "
        "JOIN pg_attribute AS now USING (attname) WHERE was.attrelid = to_regclass(%s) "
        "AND now.attrelid = to_regclass(%s) AND now.attnum > 0 AND NOT now.attisdropped "
        "AND (was.atttypid, was.atttypmod) <> (now.atttypid, now.atttypmod)"
    )
    batch = Identifier(*BATCH)
    names = [name.as_string(connection) for name in (batch, table.identifier)]
    changed = await (await connection.execute(query, names, prepare=False)).fetchall()
    if changed:
        change = SQL("ALTER COLUMN {} TYPE {} USING NULL")
        changes = [change.format(Identifier(name), SQL(type_)) for name, type_ in changed]
        await connection.execute(SQL("ALTER TABLE {} {}").format(batch, SQL(", ").join(changes)))
    return bool(changed)


def no_table(what: str) -> SinkError:
    """The error of a sink without a table, to be raised by the caller."""
    return SinkError(f"there is no {what}: create it, with columns of the types you want")


@contextmanager
def naming(kind: type[AsyncStreamError], doing: str) -> Iterator[None]:
    """What the server or the client says comes out as an error of this kind, with what was being done."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        parts = (error.diag.message_primary, error.diag.message_detail, error.diag.message_hint)
        said = "; ".join(part for part in parts if part) or " ".join(describe_error(error).split())
        raise kind(f"cannot {doing}: {said}") from error
    except (OSError, UnicodeEncodeError) as error:  # of half a character, which has no encoding
        raise kind(f"cannot {doing}: {error}") from error


async def rows_of(cursor: AsyncCursor[dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows that a cursor has; one with a date of 'infinity', say, is an `UnreadableRow` of texts."""
    try:
        return await cursor.fetchall()
    except Exception:  # over a value: the rows are here
        return [await _row_of(cursor, place) for place in range(cursor.rowcount)]


async def _row_of(cursor: AsyncCursor[dict[str, Any]], place: int) -> dict[str, Any]:
    await cursor.scroll(place, mode="absolute")  # the client stays at one that it cannot read
    try:
        return await cursor.fetchone() or {}
    except Exception as error:
        found = cursor.pgresult
        if found is None:
            raise
        row: dict[str, str | None] = {}
        for number, column in enumerate(cursor.description or ()):
            cell = found.get_value(place, number)
            row[column.name] = None if cell is None else cell.decode()
        return UnreadableRow(row, unreadable(error))


def joined(columns: Sequence[str]) -> sql.Composed:
    """The names of columns, with commas between them."""
    from psycopg.sql import SQL, Identifier

    return SQL(", ").join(map(Identifier, columns))


class Table:
    """
    A table, and those that belong to it, in the same schema.

    Args:
        name: as the user writes it: `table` or `schema.table`.

    Attributes:
        words: what stands for words in braces, in statements: `{table}` for the table, `{batch}` for `BATCH`,
            and what is added.
    """

    def __init__(self, name: str) -> None:
        from psycopg.sql import Identifier

        self.name: Final = name
        *schema, self._own = name.split(".")
        self._schema = schema
        if len(schema) > 1 or not all(name.split(".")):
            raise refuse("table", "the name of a table, or schema.table", name)
        self.words: dict[str, sql.Composable] = {"table": self.identifier, "batch": Identifier(*BATCH)}

    @property
    def identifier(self) -> sql.Identifier:
        return self.shared(self._own)

    def filled(self, statement: LiteralString, **more: sql.Composable) -> sql.Composed:
        """A statement with its `words` in it, and `more`, which come before these."""
        from psycopg.sql import SQL

        return SQL(statement).format(**{**self.words, **more})

    async def do(
        self, connection: Connection, statement: LiteralString, *values: object
    ) -> AsyncCursor[tuple[Any, ...]]:
        """Execute a statement, as `filled`."""
        return await connection.execute(self.filled(statement), values or None)

    async def one(
        self, connection: Connection, statement: LiteralString, *values: object
    ) -> tuple[Any, ...] | None:
        """The first row that a statement gives, as `filled`; None: it gives none."""
        return await (await self.do(connection, statement, *values)).fetchone()

    def beside(self, suffix: str) -> sql.Identifier:
        """The name of a table that belongs to this one."""
        return self.shared(f"{self._own}__{suffix}")

    def shared(self, name: str) -> sql.Identifier:
        """The name of a table of the same schema, such as those that all sinks share."""
        from psycopg import sql

        return sql.Identifier(*self._schema, name)

    async def known_as(
        self, connection: Connection, shared: str, column: LiteralString, order: LiteralString
    ) -> str:
        """
        By what name this table stands in the first row, in an order, of a shared one that names it in a
        column; the user's if there is none. To the server it is the same with its schema and without, where
        the session finds no other table by its mere name.
        """
        from psycopg.sql import SQL, Identifier

        query = SQL(
            "SELECT {column} FROM {shared}, "
            "(SELECT to_regclass(%s) AS own, to_regclass(%s) AS plain) AS found "
            "WHERE {column} = %s OR {column} = %s AND coalesce(plain, own) = own "
            "OR {column} = (SELECT nspname FROM pg_namespace AS n JOIN pg_class AS c "
            "ON c.relnamespace = n.oid WHERE c.oid = own) || '.' || %s "
            "ORDER BY {order} LIMIT 1"
        ).format(column=SQL(column), shared=self.shared(shared), order=SQL(order))
        places = [name.as_string(connection) for name in (self.identifier, Identifier(self._own))]
        values = (*places, self.name, self._own, self._own)
        found = await (await connection.execute(query, values)).fetchone()
        return self.name if found is None else str(found[0])
