"""
A connection to a broker of MQTT 5.

The client's network is a thread of its own. What it says is handed to the event loop; what it receives goes
into a queue, and where that is full, the thread waits, and with it the broker. Not while an answer about
topics is waited for, though: ahead of it comes what the broker has sent already, of a session that is resumed
what was not acknowledged.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Condition
from typing import TYPE_CHECKING, Any, Final

from asyncstream.aside import aside, heed, wait_at_most
from asyncstream.connectors.cancellation import answered_within
from asyncstream.connectors.mqtt.address import Address
from asyncstream.errors import describe_error

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage
    from paho.mqtt.properties import Properties
    from paho.mqtt.subscribeoptions import SubscribeOptions

__all__ = ("Connection", "MqttError", "Refused")

_PATIENCE: Final = 10.0
"""Seconds that a connection may take, and that nothing may come while an answer is waited for."""

_SLOWEST: Final = 100_000
"""
Bytes a second that a network gets through at least: a large packet is given so much more time. One that takes
longer than a minute or so would be given up by either side, which hears nothing else meanwhile.
"""

_KEEPALIVE: Final = 60
"""Seconds of silence after which either side looks whether the other one is there."""

_FOLLOWED: Final = frozenset({0x80, 0x8E})
"""Of what connections end: "session taken over", or no reason, as some brokers give none for that."""


class MqttError(Exception):
    """What the broker or the connection says, in words."""


class Refused(MqttError):
    """
    What the broker says of a packet that it does not take.

    Attributes:
        reason: why, in the words of the protocol.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the broker says: {reason}")
        self.reason = reason


class Connection:
    """
    One connection, which is not made again when it breaks.

    Args:
        address: of the broker.
        tls: see `check_tls`.
        client_id: the name of this client at the broker; "": the broker keeps no session of it.
        session: seconds for which the broker keeps what is not acknowledged when the connection is gone.
        limit: how many messages may be here that were not taken yet, 65,535 at most.

    Attributes:
        arrived: messages that were not taken yet; with those of QoS 1 to be acknowledged in their order.
        resumed: the broker has kept a session of this client.
        is_kept: the broker keeps the session when this is closed.
    """

    def __init__(
        self,
        address: Address,
        tls: ssl.SSLContext | None,
        client_id: str = "",
        session: int = 0,
        limit: int = 1,
    ) -> None:
        self._address = address
        self._tls = tls
        self._id = client_id
        self._session = session
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._client: Client | None = None
        self._opened: asyncio.Future[bool] = self._loop.create_future()
        self._answers: dict[int | None, asyncio.Future[str]] = {}
        self._early: dict[int | None, str] = {}  # answers quicker than the question was written down
        self._broken = ""
        self._most_bytes: int | None = None  # of a packet, that the broker takes
        self._room = Condition()
        self._subscribed = False
        self._subscriptions: list[tuple[str, SubscribeOptions]] = []
        self._came = 0  # messages, so far
        self._unheard = False  # acknowledgements that the broker may not have read
        self._closed = False
        self._changed = asyncio.Event()
        self.arrived: deque[MQTTMessage] = deque()
        self.resumed = False
        self.is_kept = True

    # ------------------------------------------------------------------ the client's thread

    def _tell(self, what: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed, and may have been since any look at it
            self._loop.call_soon_threadsafe(what, *arguments)

    def _on_connect(self, client: Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        most = getattr(properties, "MaximumPacketSize", None)
        # the client itself sends 20, whatever the broker takes, which may end the connection over it
        under_way = getattr(properties, "ReceiveMaximum", client._max_inflight_messages)
        client._max_inflight_messages = min(client._max_inflight_messages, under_way)
        failure = str(reason) if reason.is_failure else ""
        self._tell(self._set_opened, failure, flags.session_present, most)

    def _on_disconnect(self, client: Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        why = str(reason)
        if self._id and reason.value in _FOLLOWED:
            why += f"; a second client with client_id={self._id!r} ends the first one's, give each its own"
        self._tell(self._set_broken, why)

    def _on_message(self, client: Client, data: Any, message: MQTTMessage) -> None:
        client._ping_t = 0  # the broker is there: its answer to a ping may be behind all that is to be read
        with self._room:
            # of QoS 1 the broker sends about as much as may wait; of QoS 0 all that it has
            while len(self.arrived) >= self._limit and self._subscribed and not self._closed:
                if not self._room.wait(client.keepalive / 3 or None) and not self._closed:
                    _show(client)
            self.arrived.append(message)
            self._came += 1
            if len(self.arrived) == 1:
                self._tell(self._changed.set)

    def _on_answer(self, client: Client, data: Any, mid: int, reasons: Any, properties: Any) -> None:
        given = reasons if isinstance(reasons, list) else [reasons]
        failed = (str(reason) for reason in given if reason.is_failure)
        self._tell(self._set_answer, mid, next(failed, ""))

    # ------------------------------------------------------------------ the event loop

    def _set_opened(self, failure: str, resumed: bool, most: int | None) -> None:
        self.resumed, self._most_bytes = resumed, most
        if failure:
            self._set_broken(f"the broker says: {failure}")
        elif not self._opened.done():
            self._opened.set_result(True)

    def _set_broken(self, reason: str) -> None:
        self._broken = self._broken or f"the connection is broken: {reason}"
        self._changed.set()
        if not self._opened.done():
            self._opened.set_exception(MqttError(self._broken))
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(MqttError(self._broken))

    def _set_answer(self, mid: int, failure: str) -> None:
        answer = self._answers.pop(mid, None)
        if answer is None:
            self._early[mid] = failure
        elif not answer.done():
            answer.set_result(failure)

    async def open(self) -> None:
        """Raises `MqttError` if there is no connection to be had."""
        from paho.mqtt.client import Client, MQTTv5
        from paho.mqtt.enums import CallbackAPIVersion

        client = self._client = Client(
            CallbackAPIVersion.VERSION2,
            self._id,
            protocol=MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = client.on_subscribe = client.on_unsubscribe = self._on_answer
        client.connect_timeout = _PATIENCE
        if self._tls is not None:
            client.tls_set_context(self._tls)
        if self._address.user is not None:
            client.username_pw_set(self._address.user, self._address.password)
        wishes = _properties("CONNECT", SessionExpiryInterval=self._session, ReceiveMaximum=self._limit)

        def connect() -> None:
            host, port = self._address.host, self._address.port
            client.connect(host, port, _KEEPALIVE, clean_start=not self._session, properties=wishes)
            with self._room:
                if not self._closed:
                    client.loop_start()
                    return
            client.disconnect()  # nobody has waited for it

        try:
            await aside(connect)
            async with answered_within(_PATIENCE):
                await self._opened
        except (OSError, ValueError, TimeoutError) as error:
            raise MqttError(describe_error(error)) from error

    async def answered(self, mid: int | None, size: int = 0) -> None:
        """
        The broker has answered the packet of this number, which has about so many bytes; raises `Refused` if
        it does not take that.

        A packet has no number where the client's thread has lost the connection; why, it is about to say.
        """
        self.check()
        failure = self._early.pop(mid, None)
        if failure is None:
            answer = self._answers[mid] = self._loop.create_future()
            answer.add_done_callback(heed)
            failure = await self._in_time(answer, _PATIENCE + size / _SLOWEST)
        if failure:
            raise Refused(failure)

    async def _in_time(self, answer: asyncio.Future[str], seconds: float) -> str:
        """What an answer says; messages that come ahead of it may take any time."""
        while True:
            came = self._came
            try:
                async with answered_within(seconds):
                    return await asyncio.shield(answer)
            except TimeoutError:
                if came == self._came:
                    raise

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Have the messages of these come, with QoS 1; those that are retained if they are new to it."""
        from paho.mqtt.subscribeoptions import SubscribeOptions

        options = SubscribeOptions(qos=1, retainAsPublished=True, retainHandling=1)
        self._subscriptions = [(topic, options) for topic in topics]
        await self._subscribe()
        self._subscribed = True

    async def _subscribe(self) -> None:
        _, mid = self._connected().subscribe(self._subscriptions)
        await self.answered(mid)

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        """Have no more messages of these come than the broker has for this client already."""
        with self._room:
            self._subscribed = False  # the answer is behind all that the broker has sent
            self._room.notify()
        _, mid = self._connected().unsubscribe(list(topics))
        await self.answered(mid)
        self._subscribed = True

    def publish(self, topic: str, payload: bytes, retain: bool) -> int:
        """
        Send a message with QoS 1; gives its number, for `answered`. Raises `ValueError` if it is larger than
        the protocol or the broker allows, which would end the connection.
        """
        size = _packet_bytes(topic, payload)
        if self._most_bytes is not None and size > self._most_bytes:
            raise ValueError(
                f"a packet of {size} bytes is larger than the broker takes, {self._most_bytes} at most"
            )
        return self._connected().publish(topic, payload, qos=1, retain=retain).mid

    async def wait(self, seconds: float) -> None:
        """Until a message has come, or for so long; raises `MqttError` if none comes any more."""
        if not self.arrived:
            self.check()
        self._changed.clear()
        if not self.arrived and not self._broken:
            await wait_at_most(self._changed, seconds)

    def check(self) -> None:
        """Raises `MqttError` if the connection is broken."""
        if self._broken:
            raise MqttError(self._broken)

    def take(self, count: int) -> list[MQTTMessage]:
        """What has come, at most so many."""
        with self._room:
            found = [self.arrived.popleft() for _ in range(min(count, len(self.arrived)))]
            self._room.notify()
        return found

    def acknowledge(self, mids: Sequence[int]) -> None:
        """Tell the broker that messages are done with, in the order in which they came."""
        client = self._connected()
        for mid in mids:
            client.ack(mid, 1)
            self._unheard = True

    def _connected(self) -> Client:
        if self._client is None or self._broken:
            raise MqttError(self._broken or "the connection is not open")
        return self._client

    async def close(self) -> None:
        """Leave in an orderly way; what was not acknowledged is sent again, and nothing else is."""
        with self._room:
            self._closed = True
            self._room.notify()
        try:
            if self._unheard:
                self._unheard = False
                # the broker reads each connection for itself, so one that is behind could take up the next
                # connection of this client before it has read what this one said; an answer comes after that
                with suppress(MqttError, TimeoutError):
                    await self._subscribe()
        finally:
            client, self._client = self._client, None
            if client is not None:
                # or the broker is to forget the session at once
                farewell = None if self.is_kept else _properties("DISCONNECT", SessionExpiryInterval=0)
                await aside(partial(_leave, client, farewell))
        if self._opened.done():
            heed(self._opened)


def _leave(client: Client, farewell: Properties | None) -> None:
    client.disconnect(properties=farewell)
    client.loop_stop()
    # with the last reference the client closes its sockets
    client.on_connect = client.on_disconnect = client.on_message = None
    client.on_publish = client.on_subscribe = client.on_unsubscribe = None


def _properties(packet: str, **values: int) -> Properties:
    """What is told along with a packet of this kind."""
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties = Properties(getattr(PacketTypes, packet))  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


def _show(client: Client) -> None:
    """
    Be heard of by the broker while the client's thread reads nothing: it would take the client for dead.
    That the connection is broken is for that thread to find when it reads on. `loop_write` would say so here,
    within a callback, and wait for the end of that for ever.
    """
    from paho.mqtt.enums import MessageType

    client._send_simple_command(MessageType.PINGREQ)
    client._packet_write()


def _packet_bytes(topic: str, payload: bytes) -> int:
    """The size of the packet of a message with QoS 1 and without properties."""
    # with the topic's length, the number, and that there are no properties
    rest = 2 + len(topic.encode()) + 2 + 1 + len(payload)
    return 1 + max(1, -(-rest.bit_length() // 7)) + rest
