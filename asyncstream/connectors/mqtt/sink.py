"""
A topic of MQTT as a sink.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from asyncstream.connectors.message_sink import MessageSink
from asyncstream.connectors.messages import Encode
from asyncstream.connectors.mqtt.address import address_of, check_tls
from asyncstream.connectors.mqtt.connection import Connection, MqttError, Refused
from asyncstream.connectors.mqtt.messages import MqttMessage, is_topic
from asyncstream.connectors.rows import Default
from asyncstream.validation import flag, function, refuse

if TYPE_CHECKING:
    import ssl

__all__ = ("MqttSink",)

_Message: TypeAlias = tuple[str, bytes, bool]
"""The topic, what it holds, and whether it is retained."""

_PART: Final = 10_000
"""Messages that are under way at a time: the protocol has numbers for 65,535."""

_OF_TOPIC: Final = ("Not authorized", "Topic name invalid")
_FULL: Final = "Quota exceeded"
"""What the broker says that is not over a message, in the words of the protocol."""


class MqttSink(MessageSink[_Message, Connection]):
    """
    Publishes elements with QoS 1, and waits until the broker has them: at least once.

    A job that goes on after a crash publishes again what it has since its last checkpoint; with `on_error=`
    it does so with what was sent together with a message that the broker refuses. An `MqttMessage` brings its
    topic along, and whether it is to be retained.

    Args:
        url: the address of the broker: as for `MqttSource`.
        topic: where elements go; or a function of an element that says it.
        encode: what messages hold: "json", "bytes", "text", or a function that makes bytes of an element.
        default: for JSON, makes of a value of your own type one that can be written.
        retain: the broker keeps the last message of each topic for those who come later.
        tls: as for `MqttSource`.
    """

    def __init__(
        self,
        url: str,
        topic: str | Callable[[Any], str],
        *,
        encode: Encode = "json",
        default: Default | None = None,
        retain: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._address = address_of(url)
        self._tls = check_tls(tls, self._address)
        self._fixed = topic if isinstance(topic, str) else None
        self._topic = None if isinstance(topic, str) else function("topic", topic, "element")
        if self._fixed is not None and not is_topic(self._fixed):
            raise refuse("topic", "one without wildcards and control characters, or a function", topic)
        where = "topics" if self._fixed is None else f"topic {self._fixed!r}"
        super().__init__(f"{where} of {self._address}", encode, default)
        self._retain = flag("retain", retain)

    async def open(self) -> None:
        self._client = Connection(self._address, self._tls)
        with self._naming():
            await self._client.open()

    def _message(self, value: Any) -> _Message:
        topic, payload, retain = self._fixed, value, self._retain
        if isinstance(value, MqttMessage):
            topic, payload, retain = value.topic or topic, value.value, value.retain or retain
        if self._topic is not None:
            topic = self._topic(value)
        if not is_topic(topic):
            raise TypeError(f"expected a topic without wildcards and control characters, got {topic!r}")
        return topic, self._encode(payload), retain

    async def _send(self, client: Connection, messages: Sequence[_Message]) -> None:
        for start in range(0, len(messages), _PART):
            await self._send_part(client, messages[start : start + _PART])

    async def _send_part(self, client: Connection, part: Sequence[_Message]) -> None:
        sent: list[tuple[int, str, int]] = []
        try:
            for message in part:
                topic, payload, _ = message
                sent.append((client.publish(*message), topic, len(payload)))
        finally:
            # also those before one that the client refuses: the job is told how many the broker has
            await self._answered(client, sent)

    async def _answered(self, client: Connection, sent: Sequence[tuple[int, str, int]]) -> None:
        """
        Wait until all is answered, as numbers are used again; count what the broker has.

        Args:
            sent: of each message its number, its topic and its bytes.
        """
        refusal: Refused | None = None
        for mid, topic, size in sent:
            try:
                await client.answered(mid, size)
                self._taken += refusal is None
            except Refused as error:
                if error.reason == _FULL or (error.reason in _OF_TOPIC and topic == self._fixed):
                    raise MqttError(str(error)) from error  # the next would fare no better
                refusal = refusal or error
        if refusal is not None:
            raise refusal

    def _is_over_message(self, error: BaseException) -> bool:
        return isinstance(error, Refused | ValueError)

    async def _disconnect(self, client: Connection) -> None:
        await client.close()
