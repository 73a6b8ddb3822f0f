"""
A network between a client and a server that is at fault when a test says so: it is silent, it cuts, or what
the server says comes as something else.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.servers.process import HOST

__all__ = ("Proxy", "between")

_RESET = struct.pack("ii", 1, 0)
"""For SO_LINGER: a connection that is closed is reset, as of a process that was killed."""


class Proxy:
    """
    Passes on what comes, in its order.

    Attributes:
        port: where it takes connections.
        passes: while it does not, connections stay open, and new ones are taken, but nothing goes through.
        garbled: what comes in place of each piece of what the server says; None: what it says.
    """

    def __init__(self, to: int) -> None:
        self._to = to
        self.port = 0
        self.passes = asyncio.Event()
        self.passes.set()
        self._forgotten: set[asyncio.StreamReader] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self._read: set[asyncio.StreamReader] = set()
        self._budget: int | None = None
        self.garbled: bytes | None = None

    def forget(self) -> None:
        """What is sent on the connections that there are is lost, as if a firewall had forgotten them."""
        self._forgotten = set(self._read)

    def cut_after(self, count: int) -> None:
        """Reset all connections when so many more bytes have gone through, wherever that is."""
        self._budget = count

    def cut(self) -> None:
        """Reset all connections."""
        self._budget = None
        for writer in self._open:
            if writer.is_closing():
                continue
            end: socket.socket = writer.get_extra_info("socket")
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {writer}
        self._open.add(writer)
        try:
            await self.passes.wait()
            there, to = await asyncio.open_connection(HOST, self._to)
            ends.add(to)
            self._open |= ends
            await asyncio.wait(
                {
                    asyncio.ensure_future(self._pass(*one))
                    for one in ((reader, to, False), (there, writer, True))
                }
            )
        except (OSError, asyncio.CancelledError):  # the server is away, or the test is over
            pass
        finally:
            self._open -= ends
            for end in ends:
                end.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        try:
            self._read.add(reader)
            while data := await reader.read(2**16):
                await self.passes.wait()
                if reader in self._forgotten:
                    continue
                if answers and self.garbled is not None:
                    data = self.garbled
                cuts = self._budget is not None and len(data) >= self._budget
                data = data[: self._budget]
                writer.write(data)
                await writer.drain()
                if cuts:
                    self.cut()
                elif self._budget is not None:
                    self._budget -= len(data)
            writer.write_eof()
        except OSError:
            writer.close()


@asynccontextmanager
async def between(port: int) -> AsyncIterator[Proxy]:
    """A proxy before the server at this port, as long as it is used."""
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.connected, HOST, 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.passes.set()
        proxy.cut()
