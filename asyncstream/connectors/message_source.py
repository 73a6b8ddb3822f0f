"""
What sources on brokers share: from the messages that a request brings to a batch of elements, and what is to
become of those that are none.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from typing import Any, Final, Generic, TypeVar

from asyncstream.connectors.base import Source, SourceBatch
from asyncstream.connectors.cancellation import now_and_then, stopped
from asyncstream.connectors.messages import RejectedMessage
from asyncstream.errors import SourceError, told_as
from asyncstream.validation import choice, count, flag

__all__ = ("OLDER", "MessageSource")

T = TypeVar("T")
M = TypeVar("M")
C = TypeVar("C")

OLDER: Final = (
    "is it the same stream? With one from a backup, go on from a checkpoint of before that (restore=), or "
    "begin with what it holds by another name for the source or restore='none'"
)
"""What is said of a stream that has not come to a position, and what to do."""


class MessageSource(Source[T], Generic[T, M, C]):
    """
    A source that asks for messages M, one request at a time, through a client C.

    A message that is no element goes to `rejected`; or it fails the source, once all before it were
    delivered. A `read` that is cancelled has taken nothing: what its request brings is there for the next.
    Where a server waits to hear what is done (`needs_writer`), and there are no checkpoints, all that was
    given is done when it is read on.
    """

    _what: str
    """Where messages come from, for errors."""

    def __init__(self, on_malformed: str, *, ends: bool, batch: int) -> None:
        self.rejects = choice("on_malformed", on_malformed, ("fail", "reject")) == "reject"
        self._ends = flag("ends", ends)
        self._batch = count("batch", batch)
        self._fetching: asyncio.Task[Sequence[M]] | None = None
        self._failure: SourceError | None = None
        self._client: C | None = None
        self._alive: asyncio.Task[None] | None = None

    @abstractmethod
    async def _connect(self) -> C:
        """Something to read through."""

    @abstractmethod
    async def _disconnect(self, client: C) -> object:
        """Close what `_connect` gave."""

    def _naming(self, doing: str = "read") -> AbstractContextManager[None]:
        """
        What the client raises in this block, whatever it is, comes out as a `SourceError` that says what was
        being done.
        """
        return told_as(SourceError, f"{doing} {self._what}", Exception)

    async def open(self) -> None:
        self._failure = None
        with self._naming():
            self._client = await self._connect()

    async def can_seek(self, position: Any) -> None:
        with self._naming():
            client = await self._connect()
            try:
                await self._check(client, position)
            finally:
                await self._disconnect(client)

    async def seek(self, position: Any) -> None:
        with self._naming():
            await self._check(self._opened(), position)

    async def _check(self, client: C, position: Any) -> None:
        """Raises `SourceError` if a client finds that there is no going on from a position."""

    def _opened(self) -> C:
        """What it reads through."""
        if self._client is None:
            raise SourceError(f"the source of {self._what} is not open")
        return self._client

    def _show_every(self, seconds: float, show: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Have the server hear of this source, also while nobody reads."""
        self._alive = asyncio.ensure_future(now_and_then(seconds, show))

    async def _leave(self, client: C) -> None:
        """Close what it has read through."""
        await self._disconnect(client)

    @abstractmethod
    async def _fetch(self) -> Sequence[M]:
        """More messages; waits for some; none at the end."""

    @abstractmethod
    def _element(self, message: M) -> Any:
        """What a message holds: an element, or a `RejectedMessage`."""

    def _time_ms(self, message: M) -> int | None:
        """The timestamp of a message, milliseconds since the epoch; None: there are none."""
        return None

    @abstractmethod
    def _taken(self, messages: Sequence[M]) -> None:
        """These are the pipeline's now: the position is behind them."""

    async def read(self) -> SourceBatch[T] | None:
        self._opened()
        if self.needs_writer and self.writer is None:
            await self.forget(self.position())
        if self._failure is not None:
            raise self._failure
        messages = await self._fetched()
        if not messages:
            return None
        values: list[Any] = []
        timestamps: list[int | None] = []
        rejected: list[RejectedMessage] = []
        for place, message in enumerate(messages):
            value = self._element(message)
            if not isinstance(value, RejectedMessage):
                values.append(value)
                timestamps.append(self._time_ms(message))
            elif self.rejects:
                rejected.append(value)
            else:
                self._failure = value.error()
                if not values:
                    raise self._failure
                messages = messages[:place]  # they are delivered first
                break
        self._taken(messages)
        return SourceBatch(values, timestamps, rejected)

    async def _fetched(self) -> Sequence[M]:
        """What a request brings; if this is cancelled, it goes on, and that is there for the next call."""
        fetching = self._fetching = self._fetching or asyncio.ensure_future(self._fetch())
        await asyncio.wait({fetching})
        self._fetching = None
        with self._naming():
            return fetching.result()

    async def close(self) -> None:
        fetching, self._fetching = self._fetching, None
        client, self._client = self._client, None
        async with AsyncExitStack() as closing:  # each, though this is cancelled over another
            if client is not None:
                closing.push_async_callback(self._leave, client)
            closing.push_async_callback(stopped, fetching)
            await stopped(self._alive)
