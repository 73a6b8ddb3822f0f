"""
Subjects of a stream of JetStream as a sink: messages with ids, of which the server keeps one each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from asyncstream.aside import heed
from asyncstream.connectors.cancellation import answered_within
from asyncstream.connectors.client_options import Options
from asyncstream.connectors.message_sink import MessageSink
from asyncstream.connectors.messages import Encode
from asyncstream.connectors.nats.connection import (
    LOOK,
    asking,
    check,
    checked_options,
    checked_url,
    connect,
    leave,
    place_of,
)
from asyncstream.connectors.nats.names import checked_subject
from asyncstream.connectors.nats.publisher import Publisher
from asyncstream.connectors.rows import Default
from asyncstream.errors import SinkError
from asyncstream.validation import Fields

__all__ = ("NatsSink",)

_Message: TypeAlias = tuple[bytes, str | None]
"""What it holds, and its id as a header has it."""

_PATIENCE: Final = 30.0
"""Seconds in which the stream is to answer at least one of the messages that wait for it."""

_PART: Final = 1000
"""Messages that are under way at a time: a stream refuses one more when too many wait for it."""

_SEALED: Final = 10109
"""The server's code for a stream that takes nothing any more."""

_IN_PROCESS: Final = 10158
"""Its code for a message whose id is that of another one which a cluster is about to store, or to lose."""

_AGAIN: Final = 0.01
"""Seconds after which such a message is published again."""

_AS_IT_IS: Final = "!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""Characters of an id besides letters and digits; a header cannot hold all others, or loses them."""


class NatsSink(MessageSink[_Message, Publisher]):
    """
    Publishes elements to a subject of a stream, and waits until the stream has them.

    A job that goes on after a crash publishes again what it has since its last checkpoint; with `on_error=`
    it does so with what was sent together with a message that the stream refuses. With `id` the
    server leaves out a message whose id it remembers, so readers see each element once, as it comes. It does
    so for the stream's `duplicate_window`, two minutes unless it was made with another: best longer than from
    a checkpoint to the end of a restart.

    Args:
        url: the address of a server: `nats://user:password@host:4222`.
        subject: where elements go, without wildcards; a stream must take it.
        encode: what messages hold: "json", "bytes", "text", or a function that makes bytes of an element.
        default: for JSON, makes of a value of your own type one that can be written.
        id: what tells an element from others, and is the same when it is made again: a function of it, or the
            name of a field; in the header percent-encoded. None: what is published again is there again.
        client: options of `nats.connect`, such as `tls`, `user_credentials`, `nkeys_seed`.
    """

    def __init__(
        self,
        url: str,
        subject: str,
        *,
        encode: Encode = "json",
        default: Default | None = None,
        id: Callable[[Any], object] | Fields | None = None,
        client: Options | None = None,
    ) -> None:
        self._url = checked_url(url)
        self._options = checked_options(client)
        self._subject = checked_subject("subject", subject, wildcards=False)
        super().__init__(f"subject {subject!r} of {place_of(url)}", encode, default, id)

    async def open(self) -> None:
        from nats.js.errors import NotFoundError

        with self._naming():
            connection = await connect(self._url, self._options)
            self._client = Publisher(connection)
            await self._client.start()
            try:
                with asking(connection):
                    await connection.jetstream().find_stream_name_by_subject(self._subject)
            except NotFoundError as error:
                raise SinkError(f"no stream takes {self._what}: add one with this subject first") from error

    def _message(self, value: Any) -> _Message:
        id = self._id_of(value)
        return self._encode(value), None if id is None else quote(id, safe=_AS_IT_IS)

    async def _send(self, client: Publisher, messages: Sequence[_Message]) -> None:
        for start in range(0, len(messages), _PART):
            await self._send_part(client, messages[start : start + _PART])

    async def _send_part(self, client: Publisher, part: Sequence[_Message]) -> None:
        answers: list[asyncio.Future[None]] = []
        try:
            for data, id in part:
                answers.append(await client.publish(self._subject, data, id))
        finally:
            # also those before one that the client refuses: the job is told how many the stream has
            await self._answered(client, part, answers)

    async def _answered(
        self, client: Publisher, part: Sequence[_Message], answers: list[asyncio.Future[None]]
    ) -> None:
        """Wait until all is answered, and count what the stream has."""
        try:
            await _all_of(answers, client)
            for place, (data, id) in enumerate(part[: len(answers)]):
                async with answered_within(_PATIENCE):
                    while _is_in_process(answers[place].exception()):
                        await asyncio.sleep(_AGAIN)
                        answers[place] = await client.publish(self._subject, data, id)
                        await _all_of(answers[place : place + 1], client)
                answers[place].result()
                self._taken += 1
        finally:
            for answer in answers:
                answer.add_done_callback(heed)

    def _is_over_message(self, error: BaseException) -> bool:
        from nats.errors import MaxPayloadError
        from nats.js.errors import BadRequestError

        if isinstance(error, BadRequestError):
            return error.err_code != _SEALED
        return isinstance(error, MaxPayloadError)

    async def _disconnect(self, client: Publisher) -> None:
        await leave(client.connection)


async def _all_of(answers: Sequence[asyncio.Future[None]], client: Publisher) -> None:
    """
    Wait until all have come; raises as `check` if none comes any more, and `TimeoutError` if none has come
    for some time.
    """
    left, since = set(answers), 0.0
    while left := {answer for answer in left if not answer.done()}:
        check(client.connection)
        done, _ = await asyncio.wait(left, timeout=LOOK)
        since = 0.0 if done else since + LOOK
        if since >= _PATIENCE:
            raise TimeoutError(f"there was no answer within {_PATIENCE:g} s")


def _is_in_process(error: BaseException | None) -> bool:
    from nats.js.errors import APIError

    return isinstance(error, APIError) and error.err_code == _IN_PROCESS
