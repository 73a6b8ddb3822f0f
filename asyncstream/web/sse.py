"""
Server-sent events from a feed: what a browser's `EventSource` reads, with `Last-Event-ID`.

Each event has an id that says up to where the client has read. One that was cut off sends it along when it
comes back, and hears what it has missed, as far as that is still kept; if something is not, an event of type
`missed` says so first. Comments keep proxies from taking a quiet stream for a dead one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

import orjson

from asyncstream.async_wait.tasks import CANCEL_PATIENCE, end_tasks
from asyncstream.errors import describe_error
from asyncstream.web.asgi import Receive, Scope, Send, disconnected, header
from asyncstream.web.feed import Feed

__all__ = ("HEADERS", "PIECE", "event", "stream_feed")

log = logging.getLogger("asyncstream.web")

T = TypeVar("T")

HEARTBEAT = 15.0
"""Seconds of silence after which a comment is sent; many proxies cut a connection after 30."""

GATHER = 0.02
"""Seconds between two sends to one client: a fast stream is sent in parts, not one by one."""

PIECE = 64 * 1024
"""Bytes, and one event more, that are made ready for a client: a slow one has no copy of all that is kept."""

RETRY_MS = 2000
"""Milliseconds after which a client that was cut off is to come back."""

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would keep events back until there are many
)


def event(data: bytes, *, id: str | None = None, kind: str | None = None) -> bytes:
    """
    One event as it is sent.

    Args:
        data: what it carries, in UTF-8; of several lines each becomes one of the event.
        id: what the client is to remember.
        kind: its type; None: "message".
    """
    lines = b"\n".join(b"data: " + line for line in data.splitlines() or (b"",))
    name = b"" if kind is None else b"event: %s\n" % kind.encode()
    mark = b"" if id is None else b"id: %s\n" % id.encode()
    return b"%s%s%s\n\n" % (mark, name, lines)


async def stream_feed(
    scope: Scope,
    receive: Receive,
    send: Send,
    feed: Feed[T],
    render: Callable[[T], bytes | None],
    *,
    since: int | None = None,
    kind: str | None = None,
) -> None:
    """
    Answer a request with the events of a feed, until it ends or the client is gone.

    Args:
        scope, receive, send: the request.
        feed: what to send.
        render: gives the data of an event; None: this client is not to hear of it. Of an item over which it
            fails the client is told that it has missed one.
        since: number of the item after which to begin for a client that remembers nothing; None: the newest.
        kind: the type of the events; None: "message".
    """
    start = feed.newest if since is None else since
    is_lost = False
    remembered = header(scope, "last-event-id")
    if remembered:
        known = feed.number_of(remembered)
        is_lost = known is None
        start = feed.oldest - 1 if known is None else known
    await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})

    async def write() -> None:
        read = start
        # an id without data is remembered all the same: who is cut off before the first event misses nothing
        begin = b"retry: %d\nid: %s\n\n" % (RETRY_MS, feed.mark(read).encode())
        parts = [begin, event(orjson.dumps({"after": remembered}), kind="missed") if is_lost else b""]
        is_told = False
        while True:
            items = feed.after(read)
            first = feed.newest - len(items) + 1
            if first > read + 1:
                parts.append(event(b'{"events":%d}' % (first - read - 1), kind="missed"))
            size = 0
            for read, item in enumerate(items, first):
                try:
                    data = render(item)
                except Exception as error:  # to end here would be to end here again when the client is back
                    if not is_told:
                        is_told = True
                        log.warning("an event is not sent: %s", describe_error(error), exc_info=error)
                    parts.append(event(b'{"events":1}', id=feed.mark(read), kind="missed"))
                    continue
                if data is not None:
                    parts.append(event(data, id=feed.mark(read), kind=kind))
                    size += len(data)
                    if size >= PIECE:
                        break
            is_behind = read < feed.newest
            is_last = feed.ended and not is_behind
            body = b"".join(parts)
            if body or is_last:
                await send({"type": "http.response.body", "body": body, "more_body": not is_last})
            if is_last:
                return
            parts = []
            if is_behind:
                continue
            if body:
                await asyncio.sleep(GATHER)
            try:
                async with asyncio.timeout(HEARTBEAT):
                    await feed.news(read)
            except TimeoutError:
                parts.append(b": quiet\n\n")

    writing = asyncio.ensure_future(write())
    gone = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({writing, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_tasks({writing, gone}, CANCEL_PATIENCE)
    if writing.done() and not writing.cancelled():
        writing.result()
