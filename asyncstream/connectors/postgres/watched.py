"""
Sees to it that no wait for PostgreSQL is without an end, though a statement may take as long as it takes.

A host that is gone without a word, a firewall that has forgotten the connection, a server that is stopped: to
the client all of them look like a statement that takes long. So after a while of silence the server is asked,
over another connection, what it does on this one. If it waits for the client, or does not answer there
either, the two wait for each other, and the connection is cut. If it answers that it lets nobody in, or does
not tell, the statement may be at work, and the server is asked again later. A host that is gone meanwhile is
found by the keepalives of TCP (see `connect`).
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    import psycopg
    from psycopg import Error

__all__ = ("Connection", "watched")

Connection: TypeAlias = "psycopg.AsyncConnection[tuple[Any, ...]]"

_SILENCE: Final = 30.0
"""Seconds without an answer after which the server is asked what it does."""

_ASKED: Final = 30.0
"""Seconds that it gets to say so."""

_UNDER_WAY: Final = 1.0
"""Seconds that an answer may still be under way, when the server waits for what comes next."""

_LOOK: Final = "SELECT wait_event_type IS DISTINCT FROM 'Client' FROM pg_stat_activity WHERE pid = %s"


async def watched(conninfo: str) -> Connection:
    """
    A connection on which every statement is a transaction of its own, unless one is begun. It raises
    `OperationalError` where the server is silent, and is not at work on what it was asked.
    """
    from psycopg import AsyncConnection

    connection = await AsyncConnection.connect(conninfo, autocommit=True)
    watch = _Watch(connection, conninfo)
    try:
        # by itself: between the two may be a pooler, which makes up numbers
        found = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
    except BaseException:
        await connection.close()
        raise
    watch.pid = 0 if found is None else found[0]
    return connection


class _Watch:
    """
    Comes between a connection and what all its calls wait in.

    Attributes:
        pid: of the process that serves it; 0 until that is known.
    """

    def __init__(self, connection: Connection, conninfo: str) -> None:
        self.pid = 0
        self._connection = connection
        self._conninfo = conninfo
        self._wait = connection.wait
        self._later: asyncio.TimerHandle
        self._looking: asyncio.Task[None] | None = None
        self._is_cut = False
        connection.wait = self.wait  # type: ignore[method-assign]

    async def wait(self, *arguments: Any, **options: Any) -> Any:
        from psycopg import OperationalError

        self._later = asyncio.get_running_loop().call_later(_SILENCE, self._suspect)
        try:
            return await self._wait(*arguments, **options)
        except OperationalError as error:
            if self._is_cut:
                raise OperationalError(
                    f"the server has not answered for {_SILENCE:g} s, and is not at work on what it was "
                    "asked, or cannot be reached: is it stopped, or the network to it cut?"
                ) from error
            raise
        finally:
            self._later.cancel()
            looking, self._looking = self._looking, None
            if looking is not None:
                looking.cancel()

    def _suspect(self) -> None:
        from psycopg.pq import TransactionStatus

        # else it is waited for a notification, which may take any time
        if self._connection.pgconn.transaction_status == TransactionStatus.ACTIVE:
            self._looking = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        if await self._is_at_work():
            self._later = asyncio.get_running_loop().call_later(_SILENCE, self._suspect)
            return
        await asyncio.sleep(_UNDER_WAY)
        # end the wait as the end of the connection would
        self._is_cut = True
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.pgconn.socket)) as ours:
            ours.shutdown(socket.SHUT_RDWR)

    async def _is_at_work(self) -> bool:
        """Whether the server is doing something for this connection, or may be, and does not tell."""
        from psycopg import AsyncConnection, Error

        try:
            async with asyncio.timeout(_ASKED):
                other = await AsyncConnection.connect(self._conninfo, autocommit=True)
                try:
                    found = await (await other.execute(_LOOK, (self.pid,))).fetchone()
                finally:
                    await other.close()
        except Error as error:
            return _is_answer(error)
        except OSError:
            return False
        return found is not None and bool(found[0])


def _is_answer(error: Error) -> bool:
    """
    Whether the server has said so: it has too many connections, is being started, or does not let the role
    look. Of a login that is refused, only the message is known, in which two blanks follow the server's
    "FATAL:", in whatever language.
    """
    return error.sqlstate is not None or ":  " in str(error)
