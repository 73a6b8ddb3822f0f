"""
Publishes to JetStream, many messages at a time, each with an answer of its own.

The client's own `publish_async` hears of no message that a stream refuses, and has places for 4,000, of which
it never gets back that of a message that it refuses itself.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from asyncstream.errors import describe_error

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

__all__ = ("Publisher",)

_ID: Final = "Nats-Msg-Id"

_AROUND_ID: Final = len(f"NATS/1.0\r\n{_ID}: \r\n\r\n")
"""Bytes of the headers besides the id, which count as part of the message."""


class Publisher:
    """
    What is published through one connection, and answered.

    Attributes:
        connection: where it goes.
    """

    def __init__(self, connection: Client) -> None:
        self.connection: Final = connection
        self._inbox = connection.new_inbox()
        self._count = 0
        self._answers: dict[str, asyncio.Future[None]] = {}  # by the subjects to which they come

    async def start(self) -> None:
        """Hear of answers."""
        await self.connection.subscribe(f"{self._inbox}.*", cb=self._arrived)

    async def publish(self, subject: str, data: bytes, id: str | None) -> asyncio.Future[None]:
        """
        Send a message; gives a future that is done when a stream has it, or raises what it says. Raises
        `MaxPayloadError` for a message that is larger than the server takes, which would end the connection.
        """
        from nats.errors import MaxPayloadError

        headers = None if id is None else {_ID: id}
        if id is not None and _AROUND_ID + len(id.encode()) + len(data) > self.connection.max_payload:
            raise MaxPayloadError
        self._count += 1
        reply = f"{self._inbox}.{self._count}"
        answer = self._answers[reply] = asyncio.get_running_loop().create_future()
        try:
            await self.connection.publish(subject, data, reply, headers)
        except BaseException:
            del self._answers[reply]
            raise
        return answer

    async def _arrived(self, message: Msg) -> None:
        answer = self._answers.pop(message.subject, None)
        if answer is None or answer.done():
            return
        error = _refusal(message)
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)


def _refusal(message: Msg) -> Exception | None:
    """What an answer says against what was published; None: a stream has it."""
    from nats.js.errors import APIError, Error, NoStreamResponseError

    if message.headers and message.headers.get("Status") == "503":
        return NoStreamResponseError()
    try:
        said: dict[str, Any] = json.loads(message.data)
        if "error" in said:
            APIError.from_error(said["error"])
    except Error as error:
        return error
    except (ValueError, TypeError) as error:
        return Error(f"something else than a stream has answered: {describe_error(error)}")
    return None
