"""
What sources on brokers share: from the messages that a request brings to a batch of elements, and what is to
become of those that are none.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

from asyncstream.connectors.base import Source, SourceBatch
from asyncstream.connectors.cancellation import Fetching
from asyncstream.connectors.messages import RejectedMessage
from asyncstream.errors import SourceError
from asyncstream.validation import choice, count, flag

__all__ = ("GONE", "MessageSource")

T = TypeVar("T")
M = TypeVar("M")

GONE: Final = object()
"""In place of an element: there is nothing in this message, which is passed over."""


class MessageSource(Source[T], Generic[T, M]):
    """
    A source that asks for messages, one request at a time.

    A message that is no element goes to `rejected`; or it fails the source, once all before it were
    delivered. A `read` that is cancelled has taken nothing: what its request brings is there for the next.
    """

    _what: str
    """Where messages come from, for errors."""

    def __init__(self, on_malformed: str, *, ends: bool, batch: int) -> None:
        self.rejects = choice("on_malformed", on_malformed, ("fail", "reject")) == "reject"
        self._ends = flag("ends", ends)
        self._batch = count("batch", batch)
        self._fetching: Fetching[Sequence[M]] = Fetching(self._fetch)
        self._failure: SourceError | None = None

    async def open(self) -> None:
        self._failure = None

    @abstractmethod
    def _opened(self) -> object:
        """What it reads through; raises what `_closed` gives if the source is not open."""

    def _closed(self) -> SourceError:
        """The error of a source that is not open, to be raised by the caller."""
        return SourceError(f"the source of {self._what} is not open")

    @abstractmethod
    async def _fetch(self) -> Sequence[M]:
        """More messages; waits for some; none at the end."""

    @abstractmethod
    def _element(self, message: M) -> Any:
        """What a message holds: an element, a `RejectedMessage`, or `GONE`."""

    def _time_ms(self, message: M) -> int | None:
        """The timestamp of a message, milliseconds since the epoch; None: there are none."""
        return None

    @abstractmethod
    def _taken(self, messages: Sequence[M]) -> None:
        """These are the pipeline's now: the position is behind them."""

    async def read(self) -> SourceBatch[T] | None:
        self._opened()
        if self._failure is not None:
            raise self._failure
        messages = await self._fetching.next()
        if not messages:
            return None
        values: list[Any] = []
        timestamps: list[int | None] = []
        rejected: list[RejectedMessage] = []
        for place, message in enumerate(messages):
            value = self._element(message)
            if value is GONE:
                continue
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

    async def close(self) -> None:
        await self._fetching.stop()
