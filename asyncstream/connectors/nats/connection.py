"""
A connection to NATS; and a pull, which asks for messages before they are needed.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from asyncstream.addresses import server_address
from asyncstream.aside import heed, wait_at_most
from asyncstream.connectors.cancellation import answered_within
from asyncstream.connectors.client_options import Options, passed_through
from asyncstream.errors import SourceError

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

__all__ = (
    "LOOK",
    "PAUSE",
    "Pull",
    "asking",
    "check",
    "checked_options",
    "checked_url",
    "connect",
    "heard",
    "leave",
    "place_of",
)

_EXPIRES: Final = 30.0
"""Seconds after which the server forgets what it was asked for, and is asked again."""

LOOK: Final = 1.0
"""Seconds between two looks whether the connection is still there, while nothing comes."""

PAUSE: Final = 0.1
"""Seconds after which the server is asked again that has said that nothing comes of a request."""

_PINGS: Final[float] = 20.0
"""Seconds between two pings, of which the third finds a connection broken if none was answered."""

_ANSWER: Final = 10.0
"""Seconds in which the server is to say that it has heard all."""

_NEVER: Final = 10**9
"""Seconds after which the client gives up by itself."""

_FAREWELL: Final = 1.0
"""Seconds that a connection may take to be closed in an orderly way."""

_OURS: Final = frozenset(
    {"allow_reconnect", "error_cb", "max_reconnect_attempts", "name", "reconnect_time_wait", "servers"}
)


_refused: Final[WeakKeyDictionary[Client, str]] = WeakKeyDictionary()
"""Of clients that lack a right, what the server has said of it; who asked is given no answer."""

_DISPENSABLE: Final = re.compile(r"\.(?:stream\.msg|direct)\.get\.")
"""In what it says of a right that one can do without: to look at a message."""


def checked_url(url: object) -> str:
    """The address of a server; what is wrong with it is a `PipelineError`."""
    return server_address(url, "NATS", "nats", "a NATS server", _parsed, "nats://localhost:4222")


def _parsed(url: str) -> None:
    import nats  # noqa: F401

    parts = urlsplit(url)
    if parts.scheme not in ("nats", "tls", "ws", "wss") or not parts.hostname or parts.port == 0:
        raise ValueError(url)


def place_of(url: str) -> str:
    """The server as messages name it, without a password."""
    parts = urlsplit(url)
    return f"NATS at {parts.hostname}:{parts.port or 4222}"


def checked_options(options: Options | None) -> dict[str, Any]:
    """What is to be passed through to the client; what is wrong with it is a `PipelineError`."""
    from nats.aio.client import Client

    return passed_through(options, Client.connect, "nats.connect", _OURS)


async def connect(url: str, options: Options) -> Client:
    """
    A connection that is not made again when it breaks: what was under way is uncertain then, and a restart of
    the job goes on from a checkpoint.
    """
    from nats.aio.client import Client

    async def note(error: Exception) -> None:
        """What goes wrong is told where it is waited for, but for a right that is missing."""
        said = str(error).lower()
        if "permissions violation" in said and not _DISPENSABLE.search(said):
            _refused.setdefault(client, said)

    client = Client()
    try:
        await client.connect(
            url,
            **{"ping_interval": _PINGS, "reconnect_time_wait": 0.1, **options},
            allow_reconnect=False,
            max_reconnect_attempts=1,
            error_cb=note,
            name="asyncstream",
        )
    except BaseException:
        if _private(client, "transport") is not None:
            await leave(client)
        raise
    return client


def check(client: Client) -> None:
    """Raises `OSError` if there is nothing to wait for: a right is missing, or the connection is broken."""
    if client in _refused:
        raise PermissionError(_refused[client])
    if not client.is_connected:
        raise ConnectionError("the connection is broken")


@contextmanager
def asking(client: Client) -> Iterator[None]:
    """A request in this block that is not answered, for a right is missing, says so."""
    try:
        yield
    except TimeoutError:
        check(client)
        raise


async def heard(client: Client) -> None:
    """
    Wait until the server has heard all that it was told; raises as `check`. Who waits no longer leaves the
    question open: the client would fail over an answer to one that it has given up, and read nothing more.
    """
    asked = asyncio.ensure_future(client.flush(_NEVER))
    asked.add_done_callback(heed)
    async with answered_within(_ANSWER):
        await asyncio.shield(asked)
    check(client)


async def leave(client: Client) -> None:
    """
    Close a connection, for good: of one that breaks over what was still to be sent the client leaves tasks
    running, and of one that it could not make the socket.
    """
    from nats.errors import Error

    tasks = [_private(client, f"{name}_task") for name in ("reading", "flusher", "ping_interval")]
    subscriptions = (_private(client, "subs") or {}).values()
    tasks += [_private(subscription, "wait_for_msgs_task") for subscription in subscriptions]
    tasks += _private(client, "pongs") or ()  # answers that are waited for
    try:
        with suppress(Error, OSError):  # all that matters was answered before
            async with asyncio.timeout(_FAREWELL):
                await client.close()
    finally:
        for task in tasks:
            if task is not None:
                task.cancel()
                task.add_done_callback(heed)
        writer = _private(_private(client, "transport"), "io_writer")  # none of a WebSocket
        if writer is not None:
            writer.transport.abort()


def _private(part: object, name: str) -> Any:
    """What the client does not give out; None where a version of it has no such thing."""
    return getattr(part, f"_{name}", None)


class Pull:
    """
    Messages of a consumer: the server sends as many as it is asked for, and is asked before they are needed.
    At most `batch` are taken at once; twice as many may be here.

    Attributes:
        waiting: messages that were not taken yet.
    """

    def __init__(self, connection: Client, prefix: str, stream: str, consumer: str, batch: int) -> None:
        self._connection = connection
        self._next = f"{prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._batch = batch
        self.waiting: deque[Msg] = deque()
        self._asked = 0  # of these requests, so many messages have not come yet
        self._ended = False  # the server has said of a request that nothing more comes of it
        self._broken = ""
        self._changed = asyncio.Event()
        self._inbox = ""

    async def start(self) -> None:
        self._inbox = self._connection.new_inbox()
        await self._connection.subscribe(self._inbox, cb=self._arrived)

    async def _arrived(self, message: Msg) -> None:
        status = None if message.headers is None else message.headers.get("Status")
        if message.reply or status is None:
            self._asked -= 1
            self.waiting.append(message)
            if len(self.waiting) == 1:
                self._changed.set()
            return
        description = (message.headers or {}).get("Description", "")
        if status == "503":  # of a consumer that was deleted while nothing was asked of it
            self._broken = "nobody answers: the consumer was deleted, or JetStream is not there"
        elif "MaxRequest" in description:
            self._broken = (
                f"the server says: {description}. The consumer allows less than {self._batch} messages, "
                f"or {_EXPIRES:g} s, in a request: give batch=, or change what it allows (max_batch, "
                "max_expires)"
            )
        elif status not in ("404", "408", "409") or "Deleted" in description:
            self._broken = f"the server says: {description or status}"
        self._asked, self._ended = 0, True
        self._changed.set()

    async def _ask(self, waits: bool) -> None:
        if self._asked > self._batch // 2:
            return
        count = self._batch - self._asked
        request: dict[str, Any] = {"batch": count, "no_wait": True}
        if waits:
            request = {"batch": count, "expires": int(_EXPIRES * 1e9)}
        self._asked += count
        self._ended = False
        await self._connection.publish(self._next, json.dumps(request).encode(), self._inbox)

    async def take(self, waits: bool) -> list[Msg]:
        """What there is, at most a batch; if it `waits`, something, and otherwise perhaps nothing."""
        while True:
            check(self._connection)  # also while there is something: what is not acknowledged comes for ever
            await self._ask(waits)
            if not self.waiting:
                self._changed.clear()
                await wait_at_most(self._changed, LOOK)
            if self.waiting:
                return [self.waiting.popleft() for _ in range(min(self._batch, len(self.waiting)))]
            if self._broken:
                raise SourceError(self._broken)
            if self._ended and not waits:
                return []
            if self._ended:  # by too many that ask, say: who asks again at once is told so at once
                await asyncio.sleep(PAUSE)
