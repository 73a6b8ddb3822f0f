"""
A stream of JetStream read as a log: by any number of jobs, each with a position of its own.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from asyncstream.connectors.client_options import Options
from asyncstream.connectors.message_source import OLDER, MessageSource
from asyncstream.connectors.messages import Decode, RejectedMessage, decoder, unreadable
from asyncstream.connectors.nats.connection import (
    PAUSE,
    Pull,
    asking,
    checked_options,
    checked_url,
    connect,
    leave,
    place_of,
)
from asyncstream.connectors.nats.names import checked_name, checked_subject
from asyncstream.errors import SourceError
from asyncstream.validation import choice

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext
    from nats.js.api import StreamInfo

__all__ = ("NatsSource", "NatsStreamSource", "ns_of", "number_of", "reply_to")

T = TypeVar("T")

_CLOSE: Final = 1e-5
"""Seconds by which the time of a message may differ, which the client rounds, and be that of the same one."""


_LOOK: Final = 1.0
"""Seconds for an answer that is good to have: who has no right to it is given none."""


class NatsSource(MessageSource[T, "Msg", "Client"], Generic[T]):
    """What sources of NATS share: the connection, and how messages become elements."""

    def __init__(
        self,
        url: str,
        stream: str,
        decode: Decode,
        on_malformed: str,
        ends: bool,
        batch: int,
        client: Options | None,
    ) -> None:
        self._url = checked_url(url)
        self._options = checked_options(client)
        self._stream = checked_name("stream", stream)
        self._what = f"stream {stream!r} of {place_of(url)}"
        self._decode = decoder(decode)
        super().__init__(on_malformed, ends=ends, batch=batch)
        self._pull: Pull | None = None
        self._made_ms: int | None = None  # when the stream was made that is read

    async def open(self) -> None:
        await super().open()
        self._pull = None
        with self._naming():
            about = await self._about(self._opened())
        self._made_ms = _made_ms_of(about)
        self._start(about)

    async def _connect(self) -> Client:
        return await connect(self._url, self._options)

    async def _disconnect(self, client: Client) -> None:
        await leave(client)

    @abstractmethod
    def _start(self, about: StreamInfo) -> None:
        """Be where one without a position is in a stream; `about` tells of it."""

    @property
    def _js(self) -> JetStreamContext:
        return self._opened().jetstream()

    async def _about(self, client: Client) -> StreamInfo:
        from nats.js.errors import NotFoundError

        try:
            with asking(client):
                return await client.jetstream().stream_info(self._stream)
        except NotFoundError as error:
            raise SourceError(f"there is no {self._what}") from error

    def _lacks(self, about: StreamInfo, number: int, made_ms: int | None) -> str | None:
        """
        Why the stream is not the one of a position; None: it is.

        Args:
            about: the stream.
            number: of the last message that the position knows of.
            made_ms: when its stream was made; None: the client did not know.
        """
        if about.state.last_seq < number:
            return f"its last one is {about.state.last_seq}: {OLDER}"
        now_ms = _made_ms_of(about)
        if made_ms is not None and now_ms is not None and made_ms != now_ms:
            return (
                "the stream was made anew since, and its numbers are those of other messages; begin with "
                "what it holds by another name for the source, or restore='none'"
            )
        return None

    async def _check_same(self, client: Client, number: int, taken_ns: int | None) -> None:
        """
        Refuse a stream that went back to before a position, and has gone on since.

        Args:
            client: to ask with.
            number: of the last message that the position knows of.
            taken_ns: when its stream took it; None: that is not known.
        """
        from nats.errors import Error

        if taken_ns is None:
            return
        try:
            found: Any = await client.jetstream(timeout=_LOOK).get_msg(self._stream, number)
        except Error:  # it was deleted since, or there is no right to look: that tells nothing
            return
        time = getattr(found, "time", None)  # which earlier clients do not tell
        if time is not None and abs(time.timestamp() - taken_ns / 1e9) > _CLOSE:
            raise SourceError(
                f"cannot go on behind message {number} of {self._what}: another one has that number: {OLDER}"
            )

    @abstractmethod
    async def _begin(self) -> str:
        """See to it that there is a consumer: its name."""

    async def _fetch(self) -> Sequence[Msg]:
        while True:
            if self._pull is None:
                name = await self._begin()
                pull = Pull(self._opened(), self._js._prefix, self._stream, name, self._batch)
                await pull.start()
                self._pull = pull
            messages = await self._pull.take(waits=not self._ends)
            if not messages:
                if await self._is_through():
                    return []
                await asyncio.sleep(PAUSE)
            if new := await self._new_of(messages):
                return new

    async def _is_through(self) -> bool:
        """Whether nothing more comes, if nothing has come."""
        return True

    @abstractmethod
    async def _new_of(self, messages: Sequence[Msg]) -> Sequence[Msg]:
        """Those that are to be read."""

    def _element(self, message: Msg) -> Any:
        try:
            return self._decode(message.data)
        except Exception as error:
            id = f"{message.subject} {number_of(message)}"
            return RejectedMessage(self._what, id, message.data, unreadable(error))

    def _time_ms(self, message: Msg) -> int:
        return ns_of(message) // 1_000_000


class NatsStreamSource(NatsSource[T]):
    """
    Reads a stream from a position on; in a job with checkpoints it is the checkpoint's, so each message is
    read once.

    Nothing is acknowledged, and others may read the same stream. Messages must stay until they are read: a
    stream that has lost some behind the position is refused. Timestamps are when the stream took a message.

    Args:
        url: the address of a server: `nats://user:password@host:4222`.
        stream: the name of the stream, which must be there.
        subject: read messages of these subjects only, with NATS's wildcards; None: of all.
        decode: what messages hold: "json", "bytes", "text", or a function that makes an element of the bytes.
        start: where to begin without a position: at the "first" message, or with the "next" one that comes.
        on_malformed: what to do with a message that is no element: "fail" with `SourceError`, after all
            before it were delivered; or "reject": a `RejectedMessage` goes to the source's `rejected` output.
        if_trimmed: what to do if messages behind the position are gone, from the stream's beginning on, at
            the start or while it reads: "refuse", or "go_on" with those there are. While it reads, with
            `subject`, only if messages of these subjects wait: else those that are gone are of others.
        ends: end when there are no more messages, rather than wait for more.
        batch: how many messages one read brings at most.
        client: options of `nats.connect`, such as `tls`, `user_credentials`, `nkeys_seed`.
    """

    def __init__(
        self,
        url: str,
        stream: str,
        *,
        subject: str | None = None,
        decode: Decode = "json",
        start: Literal["first", "next"] = "first",
        on_malformed: Literal["fail", "reject"] = "fail",
        if_trimmed: Literal["refuse", "go_on"] = "refuse",
        ends: bool = False,
        batch: int = 1000,
        client: Options | None = None,
    ) -> None:
        super().__init__(url, stream, decode, on_malformed, ends, batch, client)
        self._subject = None if subject is None else checked_subject("subject", subject, wildcards=True)
        self._from_first = choice("start", start, ("first", "next")) == "first"
        self._refuses_gaps = choice("if_trimmed", if_trimmed, ("refuse", "go_on")) == "refuse"
        self._read = 0
        self._taken_ns: int | None = None  # when the stream took that one
        self._waiting = 0  # how many messages are known to be behind the last one

    def _start(self, about: StreamInfo) -> None:
        self._waiting, self._taken_ns = 0, None
        self._read = max(about.state.first_seq - 1, 0) if self._from_first else about.state.last_seq

    async def _begin(self) -> str:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._read + 1,
            ack_policy=AckPolicy.NONE,
            filter_subject=self._subject,
            inactive_threshold=60 * 60,  # of a job that is held for so long it is made again by a restart
            mem_storage=True,
        )
        with asking(self._opened()):
            return (await self._js.add_consumer(self._stream, config)).name

    def _taken(self, messages: Sequence[Msg]) -> None:
        self._read, self._waiting = _place_of(messages[-1])
        self._taken_ns = ns_of(messages[-1])

    def position(self) -> dict[str, int | None]:
        return {"read": self._read, "taken_ns": self._taken_ns, "made_ms": self._made_ms}

    async def _new_of(self, messages: Sequence[Msg]) -> Sequence[Msg]:
        last, waiting = self._read, self._waiting
        for message in messages:
            number, behind = _place_of(message)
            # those between are of other subjects, or were deleted, or are gone
            if number != last + 1 and (self._subject is None or waiting):
                self._compare(await self._about(self._opened()), last, self._made_ms)
                break
            last, waiting = number, behind
        return messages

    def _compare(self, about: StreamInfo, number: int, made_ms: int | None) -> None:
        """Refuse a position that this stream has not had, or behind which messages are gone."""
        first = about.state.first_seq
        reason = self._lacks(about, number, made_ms)
        if reason is None and self._refuses_gaps and first > number + 1:
            reason = f"those up to {first - 1} are gone; if_trimmed='go_on' goes on with the others"
        if reason is not None:
            raise SourceError(f"cannot go on behind message {number} of {self._what}: {reason}")

    async def _check(self, client: Client, position: dict[str, Any]) -> None:
        self._compare(await self._about(client), position["read"], position["made_ms"])
        await self._check_same(client, position["read"], position["taken_ns"])

    async def seek(self, position: dict[str, Any]) -> None:
        await super().seek(position)
        self._read, self._waiting, self._pull = position["read"], 0, None
        self._taken_ns = position["taken_ns"]


def number_of(message: Msg) -> int:
    """The number of a message in its stream."""
    return int(_tokens(message.reply)[-4])


def reply_to(number: int, reply: str) -> str:
    """Where to acknowledge a message of this number, as `reply` is where to acknowledge another."""
    tokens = reply.split(".")
    tokens[len(_tokens(reply)) - 4] = str(number)
    return ".".join(tokens)


def ns_of(message: Msg) -> int:
    """When its stream took a message, nanoseconds since the epoch."""
    return int(_tokens(message.reply)[-2])


def _made_ms_of(about: StreamInfo) -> int | None:
    made: Any = about.created  # a text, of earlier clients
    found = datetime.fromisoformat(made) if isinstance(made, str) else made
    return None if found is None else int(found.timestamp() * 1000)


def _place_of(message: Msg) -> tuple[int, int]:
    """The number of a message in its stream, and how many were to be read behind it when it was sent."""
    tokens = _tokens(message.reply)
    return int(tokens[-4]), int(tokens[-1])


def _tokens(reply: str) -> list[str]:
    """
    What the subject for the acknowledgement says: `$JS.ACK.[domain.account.]stream.consumer.delivered.`
    `number in the stream.number for the consumer.time.pending[.token]`.
    """
    tokens = reply.split(".")
    return tokens if len(tokens) < 12 else tokens[:11]
