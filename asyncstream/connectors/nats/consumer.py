"""
A stream of JetStream read through a durable consumer, which members of a group share.

Theory of operation
-------------------
The server hands each message to one member and waits for its acknowledgement for a while (`ack_wait`); then
it hands it out again. A message is acknowledged when no checkpoint is kept that does not hold it. Until then
the server is told, well within that time, that work on it is in progress; also of one that waits here to be
read.

A position is what is *held*: the numbers of messages that were read and are not acknowledged, as ranges; and
when the stream was made, for in another one of its name they are the numbers of other messages. So when the
server hands out such a message again, after a crash or because no consumer was heard of in time, it is known,
and not read a second time. In a stream that was put back from a backup the numbers may be of others, too: so
it goes with when the stream took the newest one. What is handed out again comes in the order in which
`ack_wait` went by, which is not always that of the stream: the server counts from the last that it has heard
of each message.

The server is answered on a subject that came with the message. Those of a consumer differ in what they say of
the message, and only its number counts for the server. So the position has one of them along, and who goes on
can answer for what is held, though it was handed out to the run before.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from asyncstream.connectors.client_options import Options
from asyncstream.connectors.messages import Decode
from asyncstream.connectors.nats.connection import asking, heard
from asyncstream.connectors.nats.names import checked_name, checked_subject
from asyncstream.connectors.nats.source import NatsSource, ns_of, number_of, reply_to
from asyncstream.errors import SourceError
from asyncstream.validation import Duration, choice, duration_seconds

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js.api import ConsumerInfo, StreamInfo

__all__ = ("NatsConsumerSource", "Numbers")

T = TypeVar("T")

_PART: Final = 500
"""Messages that the server is told of in one go; then others have their turn in this process."""


class Numbers:
    """A set of whole numbers, small where they follow each other; of ranges, the first and last of each."""

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        self._firsts = [first for first, _ in ranges]
        self._lasts = [last for _, last in ranges]

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._firsts, number) - 1
        return place >= 0 and number <= self._lasts[place]

    def add(self, number: int) -> None:
        """Add a number that is not in it."""
        place = bisect_left(self._firsts, number)
        joins_before = place > 0 and self._lasts[place - 1] == number - 1
        joins_behind = place < len(self._firsts) and self._firsts[place] == number + 1
        if joins_before and joins_behind:
            self._lasts[place - 1] = self._lasts.pop(place)
            del self._firsts[place]
        elif joins_before:
            self._lasts[place - 1] = number
        elif joins_behind:
            self._firsts[place] = number
        else:
            self._firsts.insert(place, number)
            self._lasts.insert(place, number)

    def __iter__(self) -> Iterator[int]:
        """In order, as they were when it began."""
        for first, last in self.ranges():
            yield from range(first, last + 1)

    def __len__(self) -> int:
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def without(self, others: Numbers) -> Numbers:
        """Those that are not among others."""
        left: list[list[int]] = []
        for first, last in self.ranges():
            place = bisect_left(others._lasts, first)
            while place < len(others._firsts) and others._firsts[place] <= last:
                if first < others._firsts[place]:
                    left.append([first, others._firsts[place] - 1])
                first = others._lasts[place] + 1
                place += 1
            if first <= last:
                left.append([first, last])
        return Numbers(left)

    def ranges(self) -> list[list[int]]:
        """First and last of each range, in order."""
        return [list(pair) for pair in zip(self._firsts, self._lasts, strict=True)]


class NatsConsumerSource(NatsSource[T]):
    """
    Reads a stream through a durable pull consumer; acknowledges a message when a checkpoint holds it.

    A job that goes on after a crash neither misses a message nor reads one twice. Other jobs may read through
    the same consumer: each message goes to one of them. What a job had that was away for longer than
    `ack_wait` goes to others, and is read twice if it was in a checkpoint of that job. Without checkpoints,
    messages are acknowledged when the next ones are read. After a crash, what had been read and is in no
    checkpoint comes again, perhaps in another order. A consumer that is gone is not gone on with.

    Args:
        url, stream, decode, on_malformed, ends, batch, client: as for `NatsStreamSource`.
        durable: the name of the consumer; made if it is not there. One that is there must be pulled from, and
            its messages be acknowledged one by one; best without `max_ack_pending`, for all messages since
            the oldest checkpoint that is kept are pending, and without `max_deliver`, for the server gives up
            a message that was handed out so many times, to jobs that have crashed.
        subject: of a consumer that is made: messages of these subjects only; None: all.
        start: where a consumer that is made begins: at the "first" message, or with the "next" one.
        ack_wait: of a consumer that is made: after which time the server hands out a message again: a
            `timedelta` or seconds; more than a restart takes.
    """

    needs_writer = True

    def __init__(
        self,
        url: str,
        stream: str,
        *,
        durable: str,
        subject: str | None = None,
        decode: Decode = "json",
        start: Literal["first", "next"] = "first",
        ack_wait: Duration = 60.0,
        on_malformed: Literal["fail", "reject"] = "fail",
        ends: bool = False,
        batch: int = 1000,
        client: Options | None = None,
    ) -> None:
        super().__init__(url, stream, decode, on_malformed, ends, batch, client)
        self._durable = checked_name("durable", durable)
        self._subject = None if subject is None else checked_subject("subject", subject, wildcards=True)
        self._from_first = choice("start", start, ("first", "next")) == "first"
        self._ack_wait = duration_seconds("ack_wait", ack_wait)
        self._forget_all()

    def _forget_all(self) -> None:
        self._held = Numbers()
        self._here = Numbers()  # of these, those that were handed out to this run
        self._reply = ""  # where one of them was to be acknowledged
        self._newest: tuple[int, int | None] = (0, None)  # number, and when the stream took it

    def _start(self, about: StreamInfo) -> None:
        self._forget_all()

    async def open(self) -> None:
        await super().open()
        with self._naming(), asking(self._opened()):
            wait = (await self._consumer()).config.ack_wait or self._ack_wait
        self._show_every(wait / 3, self._show)

    async def _consumer(self) -> ConsumerInfo:
        """The consumer, which is made if it is not there."""
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
        from nats.js.errors import NotFoundError

        try:
            found: ConsumerInfo = await self._js.consumer_info(self._stream, self._durable)
        except NotFoundError:
            config = ConsumerConfig(
                durable_name=self._durable,
                deliver_policy=DeliverPolicy.ALL if self._from_first else DeliverPolicy.NEW,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=self._ack_wait,
                filter_subject=self._subject,
                max_ack_pending=-1,
            )
            return await self._js.add_consumer(self._stream, config)
        if found.config.ack_policy != AckPolicy.EXPLICIT or found.config.deliver_subject:
            raise SourceError(
                f"consumer {self._durable!r} of {self._what} is not one to pull from and to acknowledge "
                "messages of one by one: give another name, or delete it"
            )
        return found

    async def _begin(self) -> str:
        return self._durable

    async def _show(self) -> None:
        """Tell the server that work is in progress on what is held, and on what waits to be read."""
        waiting = [] if self._pull is None else [message.reply for message in self._pull.waiting]
        await self._say(b"+WPI", chain(self._replies(self._held), waiting))

    def _replies(self, numbers: Iterable[int]) -> Iterator[str]:
        """Where to acknowledge messages that are held."""
        return (reply_to(number, self._reply) for number in numbers)

    async def _say(self, what: bytes, replies: Iterable[str]) -> None:
        """Answer messages, and see that the server has heard it."""
        connection = self._opened()
        with self._naming("acknowledge messages of"):
            for place, reply in enumerate(replies, 1):
                await connection.publish(reply, what)
                if place % _PART == 0:
                    await asyncio.sleep(0)
            await heard(connection)

    # ------------------------------------------------------------------ reading

    async def _new_of(self, messages: Sequence[Msg]) -> Sequence[Msg]:
        new: dict[int, Msg] = {}  # one may be handed out again while it waits to be read
        for message in messages:
            number = number_of(message)
            if number in self._held:
                self._mark_here(number, message)
            else:
                new[number] = message
        return list(new.values())

    def _mark_here(self, number: int, message: Msg) -> None:
        """This one is held, and was handed out to this run."""
        self._reply = message.reply
        if number not in self._here:
            self._here.add(number)

    async def _is_through(self) -> bool:
        found = await self._js.consumer_info(self._stream, self._durable)
        here = len(self._here)
        if here < len(self._held) and self.checkpoint_soon is not None:
            self.checkpoint_soon()  # until what an earlier run had is acknowledged, or known to be
        return not found.num_pending and (found.num_ack_pending or 0) <= here

    def _taken(self, messages: Sequence[Msg]) -> None:
        for message in messages:
            number = number_of(message)
            self._held.add(number)
            self._mark_here(number, message)
            if number > self._newest[0]:
                self._newest = (number, ns_of(message))

    # ------------------------------------------------------------------ positions

    def position(self) -> dict[str, Any]:
        return {
            "held": self._held.ranges(),
            "newest": list(self._newest),
            "made_ms": self._made_ms,
            "reply": self._reply,
        }

    async def _check(self, client: Client, position: dict[str, Any]) -> None:
        """Refuse a position that this stream has not had, or whose consumer is gone."""
        from nats.js.errors import NotFoundError

        try:
            await client.jetstream().consumer_info(self._stream, self._durable)
        except NotFoundError as error:
            raise SourceError(
                f"cannot go on with consumer {self._durable!r} of {self._what}: it is not there any more, "
                "nor what it knew of messages that were not read or not acknowledged. Make it again, to "
                "begin where that one was; or begin anew, by another name for the source or restore='none'"
            ) from error
        ranges = position["held"]
        newest, taken_ns = position["newest"]
        last = ranges[-1][1] if ranges else 0
        reason = self._lacks(await self._about(client), last, position["made_ms"])
        if reason is not None:
            raise SourceError(f"cannot go on behind message {last} of {self._what}: {reason}")
        if newest == last:  # else it is held no more
            await self._check_same(client, newest, taken_ns)

    async def seek(self, position: dict[str, Any]) -> None:
        self.started_over = True  # what was not read may come before what was read since then
        await super().seek(position)
        self._held, self._newest = Numbers(position["held"]), tuple(position["newest"])
        self._reply = position["reply"]

    async def forget(self, position: dict[str, Any]) -> None:
        done = self._held.without(self._held.without(Numbers(position["held"])))
        if done:
            await self._say(b"+ACK", self._replies(done))
        self._held, self._here = self._held.without(done), self._here.without(done)
