"""
WebSockets as a source.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Literal, TypeAlias, Unpack, cast

import aiohttp

from asyncstream.connectors.cancellation import answered_within, stopped
from asyncstream.connectors.http.answers import refusal
from asyncstream.connectors.http.connection import (
    Arrival,
    ConnectedSource,
    ConnectionOptions,
    Decode,
    Interrupted,
    decoder,
)
from asyncstream.connectors.http.session import Socket
from asyncstream.connectors.http.urls import shown
from asyncstream.connectors.rows import JsonWriter
from asyncstream.errors import SourceError, describe_error
from asyncstream.validation import Duration, choice, count, duration_seconds, function, refuse, selector

__all__ = ("Messages", "WebSocketSource")

Messages: TypeAlias = Iterable[Any]
"""What is sent: text and bytes as they are, anything else as JSON."""

_ONE = (str, bytes, Mapping)
"""What is one message, and no list of them."""

_AS_JSON: Final = JsonWriter()
"""Makes what is sent of what is neither text nor bytes."""

_NORMAL = 1000
"""The code of a connection that is closed because its purpose is fulfilled."""


class WebSocketSource(ConnectedSource[Any]):
    """
    Reads the messages of a WebSocket.

        WebSocketSource("wss://feed.example.com", subscribe=[{"op": "subscribe", "channel": "trades"}])

    A WebSocket has no place to go on from. A service that numbers its messages, and can be asked for those
    behind a number, has one: `cursor=` finds it in an element, and `subscribe=` asks for what is behind it.
    Without the two, what comes while not connected is lost, and the pipeline says so in its guarantees.

    Args:
        url: ws, wss, http or https.
        subscribe: messages to send when the connection is made; or a function of the cursor that gives them,
            None standing for the beginning.
        cursor: where an element stands in the service's stream: a function, the name of a field, or names.
            What has none, such as the answer to what is sent first, is malformed; where it is None, one goes
            on behind the element before.
        decode: "json"; "text"; or a function of the message, which is str or bytes. What cannot be decoded is
            malformed.
        on_end: what it means if the service closes the connection in an orderly way (code 1000): "reconnect",
            or the "end" of input.
        heartbeat: how often to ping the service (a `timedelta` or seconds), so that a connection that is dead
            without a word is found; None: never.
        max_message_bytes: a larger message is an error.
        options: `headers`, `attempts`, `wait_initial`, `wait_max`, `timeout`, `on_malformed`, `buffer`,
            `client`: see `Connection`.

    Raises:
        PipelineError: if an argument is not as described.
    """

    def __init__(
        self,
        url: str,
        *,
        subscribe: Messages | Callable[[Any], Messages] = (),
        cursor: Callable[[Any], Any] | str | None = None,
        decode: Decode = "json",
        on_end: Literal["reconnect", "end"] = "reconnect",
        heartbeat: Duration | None = 30.0,
        max_message_bytes: int = 4 * 2**20,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__(url, ("ws", "wss", "http", "https"), options)
        if isinstance(subscribe, _ONE) or not (callable(subscribe) or isinstance(subscribe, Iterable)):
            raise refuse("subscribe", "a list of messages, or a function of the cursor", subscribe)
        self._subscribe = (
            function("subscribe", subscribe, "cursor") if callable(subscribe) else list(subscribe)
        )
        self._cursor = None if cursor is None else selector("cursor", cursor)
        if self._cursor is not None and not callable(subscribe):
            raise refuse(
                "subscribe", "with cursor=, a function of it that asks for what is behind", subscribe
            )
        self._decode = decoder(decode)
        self._ends = choice("on_end", on_end, ("reconnect", "end")) == "end"
        self._heartbeat = None if heartbeat is None else duration_seconds("heartbeat", heartbeat)
        self._limit = count("max_message_bytes", max_message_bytes)
        self._is_silent = False  # the service, so that the connection was given up

    def is_replayable(self) -> bool:
        return self._cursor is not None

    async def _arrivals(self, session: aiohttp.ClientSession, place: Any) -> AsyncGenerator[Arrival, None]:
        try:
            async with answered_within(self._timeout):
                connected = await session.ws_connect(
                    self._url,
                    headers=self._headers({}),
                    heartbeat=self._heartbeat,
                    autoping=False,
                    max_msg_size=self._limit,
                    timeout=aiohttp.ClientWSTimeout(ws_close=self._timeout),
                )
        except aiohttp.WSServerHandshakeError as error:
            raise refusal(error, self._url, "no WebSocket") from None
        socket = cast("Socket", connected)
        async with self._watched(socket):
            for message in self._messages(place):
                if isinstance(message, bytes):
                    await socket.send_bytes(message)
                else:
                    text = message if isinstance(message, str) else _AS_JSON.write(message).decode()
                    await socket.send_str(text)
            async for came in socket:
                socket.heard += 1
                if came.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                    value, place = self._value(came.data, place)
                    yield Arrival(value, place)
                elif came.type is aiohttp.WSMsgType.PING:
                    await socket.pong(came.data)
                elif came.type is aiohttp.WSMsgType.ERROR:
                    raise self._broken(came.data)
        if self._is_silent:
            raise Interrupted(shown(self._url), "nothing came, nor an answer to a ping")
        if not (self._ends and socket.close_code == _NORMAL):
            failure = socket.exception()
            reason = f"closed with code {socket.close_code}" if failure is None else type(failure).__name__
            raise Interrupted(shown(self._url), reason)

    def _messages(self, place: Any) -> Messages:
        """What is sent first, to ask for what is behind a place."""
        messages = self._subscribe(place) if callable(self._subscribe) else self._subscribe
        if isinstance(messages, _ONE) or not isinstance(messages, Iterable):
            # without what came: it may have a key
            raise TypeError(f"subscribe= is to give a list of messages, and gave a {type(messages).__name__}")
        return messages

    @asynccontextmanager
    async def _watched(self, socket: Socket) -> AsyncIterator[None]:
        """Watch a connection during this block, and close it then."""
        self._is_silent = False
        watch = asyncio.create_task(self._watch(socket), name="asyncstream heartbeat")
        try:
            yield
        finally:
            await stopped(watch)
            with suppress(TimeoutError):  # a service that is silent is not waited for
                async with asyncio.timeout(0 if self._is_silent else None):
                    await socket.close()

    async def _watch(self, socket: Socket) -> None:
        """
        Ping a service of which nothing comes, and give the connection up if that brings nothing either. Not
        while the buffer is full: the answer would be behind what is not read then, as the client's own
        heartbeat does not know.
        """
        is_pinged = False
        while self._heartbeat is not None:
            heard = socket.heard
            await asyncio.sleep(self._heartbeat / 2 if is_pinged else self._heartbeat)
            if heard != socket.heard or self._is_full():
                is_pinged = False
            elif is_pinged:
                self._is_silent = True
                await socket.close()
                return
            else:
                is_pinged = True
                await socket.ping()

    def _broken(self, error: BaseException) -> SourceError | Interrupted:
        """The error for what is no message."""
        if isinstance(error, aiohttp.WebSocketError) and error.code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG:
            # by another connection it would come again
            return SourceError(
                f"{shown(self._url)}: a message is larger than max_message_bytes={self._limit}"
            )
        return Interrupted(shown(self._url), describe_error(error))

    def _value(self, data: str | bytes, place: Any) -> tuple[Any, Any]:
        """What a message holds, and where one stands behind it who has stood at a place."""
        try:
            value = self._decode(data)
            found = None if self._cursor is None else self._cursor(value)
        except SourceError:
            raise
        except Exception as error:
            return self._malformed(data, error), place
        return value, place if found is None else found
