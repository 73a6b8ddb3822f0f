"""
What sinks on brokers share: from a batch of elements to messages, and what tells these apart. The sources are
in `message_source`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from asyncstream.connectors.base import CountingSink
from asyncstream.connectors.cancellation import carried_through
from asyncstream.connectors.messages import Encode, encoder
from asyncstream.connectors.rows import Default, why_unwritten
from asyncstream.elements import Timestamps
from asyncstream.errors import SinkError, over_elements, told_as
from asyncstream.state.keys import equals_itself
from asyncstream.validation import Fields, selector

__all__ = ("MessageSink",)

M = TypeVar("M")
C = TypeVar("C")


class MessageSink(CountingSink[Any], Generic[M, C]):
    """
    A sink that makes a message M of each element, and waits until the broker has them, through a client C.

    A batch that is being sent comes to its end though the write is cancelled (`carried_through`): the job is
    told how many the broker has.

    Args:
        what: where messages go, for errors.
        encode: what a message holds: "json", "bytes", "text", or a function that makes bytes of an element.
        default: for JSON, makes of a value of the user's own type one that can be written.
        id: what tells an element from others: a function of it, or the name of a field; None: nothing does.
    """

    def __init__(
        self,
        what: str,
        encode: Encode,
        default: Default | None,
        id: Callable[[Any], object] | Fields | None = None,
    ) -> None:
        self._what = what
        self._encode = encoder(encode, default)
        self._id = None if id is None else selector("id", id)
        self._client: C | None = None

    def _naming(self) -> AbstractContextManager[None]:
        """
        What the client raises in this block, whatever it is, comes out as a `SinkError` that says so: over an
        answer that it cannot read a client may raise anything.
        """
        return told_as(SinkError, f"write to {self._what}", Exception)

    @abstractmethod
    def _message(self, value: Any) -> M:
        """The message of an element; may raise anything."""

    @abstractmethod
    async def _send(self, client: C, messages: Sequence[M]) -> None:
        """Send messages, and count in `_taken` those that the broker has."""

    @abstractmethod
    def _is_over_message(self, error: BaseException) -> bool:
        """Whether what the client raises in `_send` is over one message, of which others can be taken."""

    @abstractmethod
    async def _disconnect(self, client: C) -> object:
        """Close what it writes through."""

    def _id_of(self, value: Any) -> str | None:
        """
        What tells an element from others; None: the sink has no ids. Raises `ValueError` for an element
        without, for which NaN stands, too: all of these would pass for one.
        """
        if self._id is None:
            return None
        found = self._id(value)
        if found is None or found == "" or not equals_itself(found):
            raise ValueError(f"it has no id=, but {found!r}")
        return str(found)

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self._taken = 0
        if self._client is None:
            raise SinkError(f"the sink of {self._what} is not open")
        messages = [self._prepared(value) for value in values]
        with over_elements(self._is_over_message), self._naming():
            await carried_through(self._send(self._client, messages))

    def _prepared(self, value: Any) -> M:
        try:
            return self._message(value)
        except Exception as error:
            raise SinkError(why_unwritten(value, self._what, error)) from error

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await self._disconnect(client)
