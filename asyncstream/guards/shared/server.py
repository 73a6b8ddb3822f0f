"""
Records in the memory of one process, which serves them to others: for where there is no store that all can
reach, as on a cluster whose driver alone is known to every worker.

A connection begins with the server's challenge, to be answered by means of the secret, which itself
is never sent. Then each line asks one thing, and is answered by one line, all of them JSON::

    {"look": name}               ->  {"value": text or null, "now": seconds}
    {"swap": [name, old, new]}   ->  {"done": true or false}

What is sent is not encrypted: numbers, and the names of limits, units and hosts. The server begins with
nothing; so when it is started again, the rates of the last period are forgotten.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from contextlib import suppress
from hashlib import sha256
from threading import Thread
from typing import Any, Final, Self
from urllib.parse import urlsplit

import orjson

from asyncstream.errors import PipelineError
from asyncstream.guards.shared.records import Compared
from asyncstream.shown import Shown
from asyncstream.validation import count, refuse, text

__all__ = ("LimitServer", "ServedRecords", "address_of")

LINE: Final = 2**20
"""Bytes of a line, at most: a record is a few kilobytes."""

STRANGERS: Final = 100
"""Clients that have not answered the challenge, at a time: each takes an open file of the process."""

PATIENCE: Final = 10.0
"""Seconds for a client to answer the challenge, and for the server to start and to end."""


class LimitServer(Shown):
    """
    Serves limits from this process, in a thread of its own, until it is closed.

        with LimitServer(host=driver) as server:
            scope = SharedLimit(server.url)

    Args:
        host: the address to listen on, by which the others reach this process.
        port: 0: one that is free.

    Attributes:
        url: for `SharedLimit`; holds the secret by which others are known.
    """

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._host = text("host", host)
        if count("port", port, least=0) >= 65536:
            raise refuse("port", "a port, or 0", port)
        self._port = port
        self._secret = secrets.token_hex(16)
        self._values: dict[str, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._strangers: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}  # of these, as they came
        self.url = ""

    def start(self) -> None:
        """
        Begin to serve.

        Raises:
            PipelineError: if it does already, or cannot listen there.
        """
        if self._loop is not None:
            raise PipelineError("the LimitServer is started already")
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listening = socket.create_server((self._host, self._port), family=family)
        except OSError as error:
            raise PipelineError(f"a LimitServer cannot listen on {self._host}: {error}") from error
        port = self._port = listening.getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"limits://{self._secret}@{host}:{port}"
        self._loop = asyncio.new_event_loop()
        serving = self._serve(listening)
        self._thread = Thread(
            target=self._loop.run_until_complete, args=(serving,), name="asyncstream limits", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Serve no more; those who share the limits wait from then on. It can be started again, there."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(self._end.set)
            self._thread.join(PATIENCE)
            loop.close()
            self._end = asyncio.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def _serve(self, listening: socket.socket) -> None:
        server = await asyncio.start_server(self._come, sock=listening, limit=LINE)
        await self._end.wait()
        # those of the loop itself: whom it is just letting in it would forget if the server were closed now
        while coming := asyncio.all_tasks() - self._clients.keys() - {asyncio.current_task()}:
            await asyncio.wait(coming)
        server.close()
        for client, writer in self._clients.items():
            client.cancel()
            writer.close()  # here, for one that is cancelled before it has begun does nothing at all
        if self._clients:
            await asyncio.wait(self._clients, timeout=PATIENCE)

    def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = asyncio.get_running_loop().create_task(self._client(reader, writer))
        self._clients[client] = writer
        self._strangers[writer] = client
        client.add_done_callback(self._gone)
        if len(self._strangers) > STRANGERS:  # who knows the secret answers at once, and is not the oldest
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest).cancel()
            oldest.close()

    def _gone(self, client: asyncio.Task[None]) -> None:
        self._strangers.pop(self._clients.pop(client), None)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            challenge = secrets.token_hex(16)
            writer.write(challenge.encode() + b"\n")
            proof = _proof(self._secret, challenge) + b"\n"
            async with asyncio.timeout(PATIENCE):
                answer = await reader.readexactly(len(proof))
            if not hmac.compare_digest(answer, proof):
                return
            self._strangers.pop(writer, None)
            while line := await reader.readline():
                writer.write(orjson.dumps(self._answer(orjson.loads(line))) + b"\n")
                await writer.drain()
        except (OSError, ValueError, TypeError, EOFError, asyncio.CancelledError):
            pass  # it has gone, does not speak this, or is told that this is the end
        finally:
            writer.close()

    def _answer(self, asked: Any) -> dict[str, Any]:
        match asked:
            case {"look": str(name)}:
                return {"value": self._values.get(name), "now": asyncio.get_running_loop().time()}
            case {"swap": [str(name), str() | None as old, str(new)]}:
                done = self._values.get(name) == old
                if done:
                    self._values[name] = new
                return {"done": done}
        raise ValueError("not a request")


class ServedRecords(Compared):
    """Keeps records with a `LimitServer`, by its `url`."""

    errors = (OSError, ValueError, EOFError)

    def __init__(self, url: str) -> None:
        self._secret, self._host, self._port = address_of(url)
        self._turn = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def look(self, name: str) -> tuple[bytes | None, float]:
        found = await self._ask({"look": name})
        value = found["value"]
        return None if value is None else value.encode(), found["now"]

    async def swap(self, name: str, old: bytes | None, new: bytes) -> bool:
        found = await self._ask({"swap": [name, None if old is None else old.decode(), new.decode()]})
        return bool(found["done"])

    async def _ask(self, request: dict[str, Any]) -> Any:
        async with self._turn:
            try:
                if self._streams is None:
                    self._streams = await asyncio.open_connection(self._host, self._port, limit=LINE)
                    challenge = (await _line(self._streams[0])).decode().strip()
                    self._streams[1].write(_proof(self._secret, challenge) + b"\n")
                reader, writer = self._streams
                writer.write(orjson.dumps(request) + b"\n")
                return orjson.loads(await _line(reader))
            except BaseException:
                await self.close()  # or what is asked next would be given the answer to this
                raise

    async def close(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
            with suppress(OSError):
                await streams[1].wait_closed()


def address_of(url: str) -> tuple[str, str, int]:
    """
    The secret, the host and the port in the URL of a server; raises `PipelineError` if they are not there.
    """
    try:
        parts = urlsplit(url)
        secret, host, port = parts.username, parts.hostname, parts.port
    except ValueError:
        secret = host = port = None
    if not secret or not host or not port:
        raise refuse("url", "the url of a LimitServer, limits://secret@host:port", "another")
    return secret, host, port


def _proof(secret: str, challenge: str) -> bytes:
    return hmac.new(secret.encode(), challenge.encode(), sha256).hexdigest().encode()


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the server has ended the connection")
    return line
