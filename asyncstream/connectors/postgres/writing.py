"""
What the sinks of PostgreSQL share: the connection, how rows are written, and the errors.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from asyncstream.connectors.cancellation import carried_through
from asyncstream.connectors.lines import column_names
from asyncstream.connectors.postgres.connection import (
    NATIVE,
    Table,
    checked_url,
    columns_of,
    connect,
    follow_types,
    joined,
    naming,
    no_table,
    place_of,
)
from asyncstream.connectors.postgres.watched import Connection
from asyncstream.connectors.rows import Default, RowWriter
from asyncstream.errors import SinkError, over_elements
from asyncstream.validation import text

if TYPE_CHECKING:
    from psycopg.sql import Composed

__all__ = ("TableWriter", "copy_blocks", "copy_rows")

T = TypeVar("T")

_OF_SERVER: Final = re.compile("08|0A|2[04568BD]|3[BDF]|4[02]|5[3578]|72|F0|HV|XX")
"""
What SQLSTATE begins with that is not over rows, but of the connection, tables, rights, locks, transactions,
and what the server has. All others are of data, constraints and triggers, which may give codes of their own.
"""

_TRIES: Final = 10
"""Times that a transaction is begun which the server takes back in favour of others; the next mostly ends."""

_BLOCK: Final = 2**24
"""Bytes of rows after which a block ends: of one as large as a gigabyte the server knows no value."""

_CHECKS_POLICY: Final = "ExecWithCheckOptions"
"""The function of the server that finds that a row breaks a policy, which has the code of a right."""


class TableWriter:
    """What sinks of PostgreSQL share: the connection, the rows, the errors."""

    def __init__(self, url: str, table: str, columns: Sequence[str], default: Default | None) -> None:
        self._url = checked_url(url)
        self.table: Final = Table(text("table", table))
        self.what: Final = f"table {table!r} of {place_of(self._url)}"
        self.columns: Final = column_names(columns)
        self.table.words["columns"] = joined(self.columns)
        self._rows = RowWriter(self.columns, default, NATIVE)
        self._connection: Connection | None = None

    def rows(self, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """The cells of each of some results; raises `SinkError` if one cannot be written."""
        return self._rows.rows(values, f"table {self.table.name!r}")

    async def open(self, *, keeps: bool) -> None:
        """Connect, and see whether table and columns are there; `keeps` as of `connect`."""
        with naming(SinkError, f"connect to {self.what}"):
            self._connection = await connect(self._url, keeps=keeps)
            there = await columns_of(self._connection, self.table.identifier)
            if not there:
                raise no_table(self.what)
            for column in self.columns:
                if column not in there:
                    raise SinkError(f"{self.what} has no column {column!r}; there are: {', '.join(there)}")

    @asynccontextmanager
    async def briefly(self, doing: str) -> AsyncIterator[Connection]:
        """A connection for a moment, within a transaction."""
        with naming(SinkError, f"{doing} {self.what}"):
            connection = await connect(self._url)
            try:
                async with connection.transaction():
                    yield connection
            finally:
                await connection.close()

    async def do(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        """
        Do something with the connection. It comes to its end though the caller is cancelled, or the
        connection is closed: it would not be certain what the server has done. It is done again where the
        server has taken it back in favour of others, for a deadlock say.
        """
        connection = self._connection
        if connection is None:
            raise SinkError(f"the sink of {self.what} is not open")

        async def whole() -> T:
            with naming(SinkError, f"write to {self.what}"):
                try:
                    return await _in_the_end(work, connection)
                except asyncio.CancelledError:
                    await connection.close()
                    raise

        return await carried_through(whole())

    async def transaction(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        """Do something as a transaction; see `do`."""

        async def whole(connection: Connection) -> T:
            async with connection.transaction():
                return await work(connection)

        return await self.do(whole)

    async def write(self, work: Callable[[Connection], Coroutine[Any, Any, None]], *, whole: bool) -> None:
        """
        Write elements, as a `whole` transaction or not; see `do`. Raises `SinkBroken` where it is not over
        them that the server does not take them.
        """
        from psycopg import DataError

        write = self.transaction if whole else self.do
        with over_elements(_is_over_rows):
            try:
                await write(work)
            except SinkError as error:
                is_over_type = isinstance(error.__cause__, DataError)
                if not is_over_type or not await self.do(lambda to: follow_types(to, self.table)):
                    raise
                await write(work)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


async def _in_the_end(work: Callable[[Connection], Coroutine[Any, Any, T]], connection: Connection) -> T:
    from psycopg.errors import DeadlockDetected, SerializationFailure

    for _ in range(_TRIES - 1):
        with suppress(DeadlockDetected, SerializationFailure):
            return await work(connection)
    return await work(connection)


def _is_over_rows(error: BaseException) -> bool:
    """Whether it is said of what is written: not of the table, a right, a lock, or the connection."""
    from psycopg import DataError, Error

    if not isinstance(error, Error):
        return not isinstance(error, OSError)
    if error.sqlstate is None:
        return isinstance(error, DataError)
    is_of_server = _OF_SERVER.match(error.sqlstate) is not None
    return not is_of_server or error.diag.source_function == _CHECKS_POLICY


async def copy_rows(
    connection: Connection, statement: Composed, rows: Iterable[Sequence[Any]]
) -> list[bytes]:
    """Copy rows, all or none; gives the bytes that were sent, in blocks of whole rows, for `copy_blocks`."""
    blocks = [bytearray()]
    async with connection.cursor() as cursor, cursor.copy(statement) as copying:
        for row in rows:
            # what `write_row` does, but for a coroutine for each row
            if part := copying.formatter.write_row(row):
                if len(blocks[-1]) >= _BLOCK:
                    blocks.append(bytearray())
                blocks[-1] += part
                await copying.write(part)
        blocks[-1] += (part := copying.formatter.end())
        await copying.write(part)
    return list(map(bytes, blocks))


async def copy_blocks(connection: Connection, statement: Composed, blocks: Iterable[bytes]) -> int:
    """Copy what `copy_rows` gave, all or none; gives how many rows the server has taken."""
    async with connection.cursor() as cursor:
        async with cursor.copy(statement) as copying:
            for block in blocks:
                await copying.write(block)
        return cursor.rowcount
