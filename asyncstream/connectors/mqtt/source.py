"""
Topics of MQTT as a source, by a session that the broker keeps.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from asyncstream.connectors.base import SourceBatch
from asyncstream.connectors.message_source import MessageSource
from asyncstream.connectors.messages import Decode, RejectedMessage, decoder, unreadable
from asyncstream.connectors.mqtt.address import address_of, check_tls
from asyncstream.connectors.mqtt.connection import Connection
from asyncstream.connectors.mqtt.messages import MqttMessage, is_filter
from asyncstream.errors import SourceError
from asyncstream.validation import Duration, choice, count, duration_seconds, flag, refuse, text

if TYPE_CHECKING:
    import ssl

    from paho.mqtt.client import MQTTMessage

__all__ = ("MqttSource",)

T = TypeVar("T")

_LOOK = 1.0
"""Seconds between two looks while nothing comes, ..."""

_ASK = 0.1
"""... and while nothing more is read, for all that may be unacknowledged is."""


class MqttSource(MessageSource[T, "MQTTMessage", Connection]):
    """
    Reads topics of MQTT, at least once; acknowledges a message when it is done with and a checkpoint is safe.

    The broker keeps a session for the client's id: what was not acknowledged when the job ended or died, and
    what has come since, it sends when the job is back. What was under way in the checkpoint comes a second
    time: nothing in MQTT tells such messages from new ones. What is acknowledged is gone, so a job that goes
    back to an older checkpoint than the last misses what came between. Without checkpoints, messages are
    acknowledged when the next are read. What was published with QoS 0 the broker does not keep. Elements
    have no timestamps.

    Args:
        url: the address of the broker, which must speak MQTT 5: `mqtt://user:password@host:1883`, or
            `mqtts://` for TLS.
        topics: what to subscribe to, with MQTT's wildcards; at least one. Of one that is left out later, a
            job that goes on reads what the broker has for it by then.
        client_id: the name of this job at the broker, the same after a restart and of no other client: a
            second client of this id ends the first one's connection.
        decode: what messages hold: "json", "bytes", "text", or a function that makes an element of the bytes.
        messages: elements are `MqttMessage`, with their topics, rather than values.
        session: for how long the broker keeps the session of a job that is away: a `timedelta` or seconds.
        if_forgotten: what to do if a job goes on from a checkpoint, and the broker has no session of it, so
            that messages may be lost: "refuse", or "go_on" with those that come. It shows when the job
            connects: to ask before would take the connection of a job that runs, so `dry_run` does not.
        on_malformed: what to do with a message that is no element: "fail" with `SourceError`, after all
            before it were delivered; or "reject": a `RejectedMessage` goes to the source's `rejected` output.
        unacknowledged: how many messages may be read and not acknowledged, 65,535 at most; then the source
            asks for checkpoints, and waits. As many may wait to be read.
        batch: how many messages one read brings at most.
        tls: with `mqtts://`, whom to trust, and who one is; None: the usual authorities.
    """

    hands_over = True
    needs_writer = True

    def __init__(
        self,
        url: str,
        *topics: str,
        client_id: str,
        decode: Decode = "json",
        messages: bool = False,
        session: Duration = timedelta(days=1),
        if_forgotten: Literal["refuse", "go_on"] = "refuse",
        on_malformed: Literal["fail", "reject"] = "fail",
        unacknowledged: int = 10_000,
        batch: int = 1000,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(on_malformed, ends=False, batch=batch)
        self._address = address_of(url)
        self._tls = check_tls(tls, self._address)
        self._topics = tuple(text("topics", topic) for topic in topics)
        if not self._topics:
            raise refuse("topics", "one or more topics", topics)
        for topic in self._topics:
            if not is_filter(topic):
                raise refuse("topics", "wildcards in place of whole levels, and # at the end", topic)
        self._what = f"{', '.join(map(repr, self._topics))} of {self._address}"
        self._client_id = text("client_id", client_id)
        self._decode = decoder(decode)
        self._with_topics = flag("messages", messages)
        self._session = max(1, round(duration_seconds("session", session)))
        self._refuses_gaps = choice("if_forgotten", if_forgotten, ("refuse", "go_on")) == "refuse"
        self._most = count("unacknowledged", unacknowledged)
        if self._most > 0xFFFF:
            raise refuse("unacknowledged", "65535 at most, which MQTT has numbers for", unacknowledged)
        self._begin(0)

    def _begin(self, run: int) -> None:
        self._run = run
        self._read = 0  # how many messages this run has read
        self._unacknowledged: deque[tuple[int, int]] = deque()  # which of them it was, and its number

    # ------------------------------------------------------------------ reading

    async def open(self) -> None:
        await super().open()
        self._begin(0 if self.writer is None else self.writer.lease.number)
        connection = self._opened()
        with self._naming():
            await connection.open()
            # one that is new, and not read: a job that is refused for it would be let in by it the next time
            connection.is_kept = connection.resumed or self.writer is None
            await connection.subscribe(self._topics)

    async def _connect(self) -> Connection:
        return Connection(self._address, self._tls, self._client_id, self._session, self._most)

    async def _disconnect(self, client: Connection) -> None:
        await client.close()

    async def _fetch(self) -> Sequence[MQTTMessage]:
        connection = self._opened()
        connection.is_kept = True
        while True:
            # a broker is to send no more than that; of a session that is resumed, some send all they have
            room = self._most - len(self._unacknowledged)
            if found := connection.take(min(self._batch, room)):
                return found
            if room:
                await connection.wait(_LOOK)
                continue
            if self.checkpoint_soon is not None:
                self.checkpoint_soon()
            await asyncio.sleep(_ASK)
            connection.check()

    async def read(self) -> SourceBatch[T] | None:
        if self.writer is None and self._unacknowledged:
            await self.acknowledge(self.position())
        return await super().read()

    def _element(self, message: MQTTMessage) -> Any:
        try:
            value = self._decode(bytes(message.payload))
        except Exception as error:
            return RejectedMessage(self._what, message.topic, message.payload, unreadable(error))
        return MqttMessage(value, message.topic, message.retain) if self._with_topics else value

    def _taken(self, messages: Sequence[MQTTMessage]) -> None:
        for message in messages:
            self._read += 1
            if message.qos:
                self._unacknowledged.append((self._read, message.mid))

    # ------------------------------------------------------------------ positions

    def position(self) -> dict[str, Any]:
        if self._client is not None:
            self._client.is_kept = True  # a job that goes on from here is to find it
        return {"run": self._run, "read": self._read, "topics": list(self._topics)}

    async def can_seek(self, position: dict[str, Any]) -> None:
        """Only a connection of this client could tell, which would end that of a job that runs."""

    async def seek(self, position: dict[str, Any]) -> None:
        self.started_over = True  # with what is not acknowledged, of which some may be before the position
        if self._refuses_gaps and not self._opened().resumed:
            raise SourceError(
                f"cannot go on with {self._what}: the broker has no session of client {self._client_id!r}, "
                "so messages since the checkpoint may be lost; if_forgotten='go_on' goes on with those that "
                "come"
            )
        # the session remembers them
        if left_out := [topic for topic in position["topics"] if topic not in self._topics]:
            with self._naming():
                await self._opened().unsubscribe(left_out)

    def acknowledges(self) -> bool:
        return self.writer is not None

    async def acknowledge(self, position: dict[str, Any]) -> None:
        if position["run"] != self._run:
            return  # all that an earlier run has not acknowledged was sent again
        done: list[int] = []
        while self._unacknowledged and self._unacknowledged[0][0] <= position["read"]:
            done.append(self._unacknowledged.popleft()[1])
        with self._naming("acknowledge messages of"):
            self._opened().acknowledge(done)
