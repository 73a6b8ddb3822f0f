"""
Server-sent events as a source: the client's half of the protocol of the HTML standard.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, Unpack

import aiohttp

from asyncstream.connectors.cancellation import answered_within
from asyncstream.connectors.http.answers import harmless, told
from asyncstream.connectors.http.connection import (
    NOTHING,
    Arrival,
    ConnectedSource,
    ConnectionOptions,
    Decode,
    Interrupted,
    decoder,
)
from asyncstream.connectors.http.urls import shown
from asyncstream.connectors.json_values import loads
from asyncstream.connectors.lines import BOM
from asyncstream.errors import SourceError
from asyncstream.validation import Duration, choice, count, duration_seconds, flag

__all__ = ("EventParser", "ServerSentEvent", "SseSource")

log = logging.getLogger("asyncstream.sources")


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """
    One event.

    Attributes:
        data: its lines, without the last line end.
        event: its type; "message" if it has none.
        id: its own, or the last one before it; "": there was none.
    """

    data: str
    event: str = "message"
    id: str = ""


class EventParser:
    """
    Makes events of what comes, however that is cut into pieces.

    Args:
        last_id: of the event before the first.
        limit: bytes that an event may have.

    Attributes:
        last_id: to go on behind; also of what had an id and no data, which is no event.
        retry_ms: how long the server wants to be left alone when the connection breaks, if it has said.
    """

    def __init__(self, last_id: str = "", limit: int = 2**20) -> None:
        self._limit = limit
        self._rest = bytearray()  # of the line whose end has not come
        self._is_first = True
        self._is_within = False
        self._data: list[str] = []
        self._size = 0
        self._event = ""
        self._id = self.last_id = last_id
        self.retry_ms: int | None = None

    def feed(self, piece: bytes) -> Iterator[ServerSentEvent]:
        """
        The events that end in this piece; raises `ValueError` if one is too large. Bytes that are not UTF-8
        are in them as `surrogateescape` has it.
        """
        # a line that comes in many pieces is not looked at again with each
        has_end = b"\n" in piece or b"\r" in piece or self._rest.endswith(b"\r")
        self._rest += piece
        if has_end:
            if self._is_first:
                self._rest, self._is_first = self._rest.removeprefix(BOM), False
            *lines, rest = _LINE_END.split(self._rest)
            self._rest = bytearray(rest)
            for line in lines:
                yield from self._line(line.decode(errors=_ESCAPED))
        self._check(len(self._rest))

    def end(self) -> Iterator[ServerSentEvent]:
        """The events that end as nothing more comes: with a carriage return that no line feed follows."""
        if self._rest.endswith(b"\r"):
            yield from self.feed(b"\n")

    def is_within_event(self) -> bool:
        """Whether the end of an event is still to come, and not just that of a comment."""
        return self._is_within or bool(self._rest and not self._rest.startswith(b":"))

    def _check(self, more: int) -> None:
        if self._size + more > self._limit:
            raise ValueError(f"an event is larger than max_event_bytes={self._limit}")

    def _line(self, line: str) -> Iterator[ServerSentEvent]:
        if not line:
            self.last_id = self._id
            if self._data:
                yield ServerSentEvent("\n".join(self._data), self._event or "message", self._id)
            self._data, self._event, self._size, self._is_within = [], "", 0, False
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        self._is_within = self._is_within or name in ("data", "event", "id")
        if name == "data":
            size = len(value) + 1  # with its line end, or lines without anything would be none
            self._check(size)
            self._size += size
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and len(value) <= _LONGEST_ID and not _NOT_IN_ID.search(value):
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit() and len(value) <= _RETRY_DIGITS:
            self.retry_ms = int(value)


_LINE_END: Final = re.compile(rb"\r\n|\n|\r(?!\Z)")
"""Not a carriage return that comes last, for a line feed may follow."""

_ESCAPED: Final = "surrogateescape"

_NOT_IN_ID: Final = re.compile("[\0-\x08\n-\x1f\x7f\ud800-\udfff]")
"""What no id has that is to be remembered: the standard's NUL, and what no header can bring back."""

_LONGEST_ID: Final = 2000
"""Characters of such an id: in UTF-8 as much as most servers take of a header; a longer one they refuse."""

_RETRY_DIGITS: Final = 9
"""Of a number of milliseconds that a server may ask for; a longer one is none."""


def _missed(data: str) -> str | None:
    """Which events are missed, as `asyncstream.web.events` says it; None: it does not."""
    try:
        said = loads(data)
    except ValueError:
        return None
    match said:
        case {"events": int(number), **more} if not more:
            return f"{number} elements"
        case {"after": str(id), **more} if not more:
            return f"the elements behind {id!r}"
    return None


class SseSource(ConnectedSource[Any]):
    """
    Reads server-sent events.

        pipeline.source(SseSource("https://stream.wikimedia.org/v2/stream/recentchange", decode="json"))

    Its position is the id of the last event, which is sent as `Last-Event-ID` after a broken connection and
    by a job that goes on; the server then begins behind that one, if it keeps its events. An event without an
    id of its own that came after one with an id comes again. The answer 204 is the end of input.

    Args:
        url: http or https.
        decode: "json": elements are the decoded data; "text": the data; a function of the `ServerSentEvent`;
            None: the event itself. What cannot be decoded is malformed. With "json" and "text", what
            `asyncstream.web.events` says of elements that it has not kept (`missed`) is no element, but a
            warning in the log.
        replays: the server keeps its events and heeds `Last-Event-ID`. False: what comes while not connected
            is lost, and the pipeline says so in its guarantees.
        on_end: what the end of an answer is: "reconnect", as the standard has it, or "end" of input. An
            answer of no length that ends within an event was cut off.
        idle_timeout: how long without a byte (a `timedelta` or seconds) until the connection counts as
            broken; None: any time.
        max_event_bytes: a larger event is an error.
        options: `headers`, `attempts`, `wait_initial`, `wait_max`, `timeout`, `on_malformed`, `buffer`,
            `client`: see `Connection`.

    Raises:
        PipelineError: if an argument is not as described.
    """

    def __init__(
        self,
        url: str,
        *,
        decode: Decode | None = None,
        replays: bool = True,
        on_end: Literal["reconnect", "end"] = "reconnect",
        idle_timeout: Duration | None = None,
        max_event_bytes: int = 2**20,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__(url, ("http", "https"), options)
        self._decode: Any = None if decode is None else decoder(decode)
        self._takes_data = decode in ("json", "text")
        self._replays = flag("replays", replays)
        self._ends = choice("on_end", on_end, ("reconnect", "end")) == "end"
        self._idle_timeout = None if idle_timeout is None else duration_seconds("idle_timeout", idle_timeout)
        self._limit = count("max_event_bytes", max_event_bytes)

    def is_replayable(self) -> bool:
        return bool(self._replays)

    async def _arrivals(self, session: aiohttp.ClientSession, place: Any) -> AsyncGenerator[Arrival, None]:
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store", "Accept-Encoding": "identity"}
        if place is not None:
            headers["Last-Event-ID"] = place
        response = await self._answer(session, self._url, headers)
        try:
            if response.status == 204:
                return
            if response.content_type != "text/event-stream":
                raise SourceError(
                    f"{shown(self._url)} answers with {response.content_type!r} instead of text/event-stream"
                )
            encoding = response.headers.get("Content-Encoding", "").strip().lower()
            if encoding not in ("", "identity"):
                raise SourceError(
                    f"{shown(self._url)} answers with events compressed as {encoding[:50]!r}, which was not "
                    "asked for: have the service, or the proxy before it, leave them as they are"
                )
            parser = EventParser(place or "", self._limit)
            has_ended = False
            while not has_ended:
                has_ended = not (piece := await self._piece(response, parser))
                try:
                    for event in parser.end() if has_ended else parser.feed(piece):
                        place = event.id or None
                        yield Arrival(self._value(event), place)
                except ValueError as error:
                    raise SourceError(f"{shown(self._url)}: {error}") from error
                if place != (parser.last_id or None):
                    place = parser.last_id or None
                    yield Arrival(NOTHING, place)
        finally:
            response.close()
        has_end = (
            response.headers.get("Content-Length") is not None or "Transfer-Encoding" in response.headers
        )
        if not has_end and parser.is_within_event():
            raise Interrupted(shown(self._url), "the answer was cut off within an event", parser.retry_ms)
        if not self._ends:
            raise Interrupted(shown(self._url), retry_ms=parser.retry_ms)

    async def _piece(self, response: aiohttp.ClientResponse, parser: EventParser) -> bytes:
        try:
            async with answered_within(self._idle_timeout):
                return await response.content.readany()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Interrupted(shown(self._url), told(error), parser.retry_ms) from harmless(error)

    def _value(self, event: ServerSentEvent) -> Any:
        kind, data = event.event.encode(errors=_ESCAPED), event.data.encode(errors=_ESCAPED)
        try:
            kind.decode()
            data.decode()
        except UnicodeDecodeError as error:
            return self._malformed(data, error, event.id)
        if self._decode is None:
            return event
        try:
            if not self._takes_data:
                return self._decode(event)
            if event.event == "missed" and (missed := _missed(event.data)) is not None:
                log.warning("%s has not kept all: %s are missed", shown(self._url), missed)
                return NOTHING
            return self._decode(event.data)
        except Exception as error:
            return self._malformed(event.data, error, event.id)
