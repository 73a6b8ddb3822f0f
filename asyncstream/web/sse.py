"""
Server-sent events from a feed: what a browser's `EventSource` reads, with `Last-Event-ID`.

Each event has an id that says up to where the client has read. One that was cut off sends it along when it
comes back, and hears what it has missed, as far as that is still kept; if something is not, an event of type
`missed` says so first. Comments keep proxies from taking a quiet stream for a dead one, also that of a client
that wants nothing of all that comes; they say how far it has read, too, and so does the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, TypeVar

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
"""Seconds between two looks for one client: a fast stream is sent in parts, not one by one."""

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
    Answer a request with the events of a feed, until it ends or the client is gone; HEAD without any.

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
    if scope["method"] == "HEAD":  # of which there is an end
        await send({"type": "http.response.body", "body": b""})
        return

    # an id without data is remembered all the same: who is cut off before the first event misses nothing
    opening = b"retry: %d\nid: %s\n\n" % (RETRY_MS, feed.mark(start).encode())
    if is_lost:
        opening += event(orjson.dumps({"after": remembered}), kind="missed")
    writing = asyncio.ensure_future(_write(send, opening, feed, _Events(feed, render, kind, start)))
    gone = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({writing, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_tasks({writing, gone}, CANCEL_PATIENCE)
    if writing.done() and not writing.cancelled():
        writing.result()


async def _write(send: Send, opening: bytes, feed: Feed[T], events: _Events[T]) -> None:
    """Send what opens the stream, and all events, until the feed ends."""
    body, time = opening, asyncio.get_running_loop().time
    while True:
        body += events.next_piece()
        is_behind = events.read < feed.newest
        is_last = feed.ended and not is_behind
        if is_last:  # else one that wanted nothing of the last events would come back for them for ever
            body += _read_up_to(feed, events)
        if body:
            await send({"type": "http.response.body", "body": body, "more_body": not is_last})
            quiet_at = time() + HEARTBEAT
        if is_last:
            return
        body = b""
        if is_behind:
            continue
        await asyncio.sleep(GATHER)
        try:
            async with asyncio.timeout_at(quiet_at):
                await feed.news(events.read)
        except TimeoutError:
            body = b": quiet\n" + _read_up_to(feed, events)


def _read_up_to(feed: Feed[T], events: _Events[T]) -> bytes:
    """What tells a client how far it has read, also of what it did not want."""
    return b"id: %s\n\n" % feed.mark(events.read).encode()


class _Events(Generic[T]):
    """
    The events for one client, in the order of the feed.

    Args:
        feed, render, kind: as for `stream_feed`.
        read: number of the item that the client has read last.

    Attributes:
        read: the same, or the last that it has been given since.
    """

    def __init__(
        self, feed: Feed[T], render: Callable[[T], bytes | None], kind: str | None, read: int
    ) -> None:
        self._feed = feed
        self._render = render
        self._kind = kind
        self._has_warned = False
        self.read = read

    def next_piece(self) -> bytes:
        """Some of the events that follow, and first how many of them are gone; nothing after the last."""
        items = self._feed.after(self.read)
        first = self._feed.newest - len(items) + 1
        parts = [_missed(first - self.read - 1)] if first > self.read + 1 else []
        size = 0
        for self.read, item in enumerate(items, first):
            try:
                data = self._render(item)
            except Exception as error:  # to end here would be to end here again when the client is back
                self._warn(error)
                parts.append(_missed(1, id=self._feed.mark(self.read)))
                continue
            if data is not None:
                parts.append(event(data, id=self._feed.mark(self.read), kind=self._kind))
                size += len(data)
                if size >= PIECE:
                    break
        return b"".join(parts)

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("an event is not sent: %s", describe_error(error), exc_info=error)


def _missed(events: int, *, id: str | None = None) -> bytes:
    """What tells a client that it has missed so many."""
    return event(b'{"events":%d}' % events, id=id, kind="missed")
