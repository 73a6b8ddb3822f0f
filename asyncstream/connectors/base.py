"""
What the runtime asks of a source and of a sink.

Both are pulled: the runtime awaits `read` when the pipeline has room, and `write` with what has come
since the last one. One call is under way at a time, and a batch is a list, so that the price of an
`await` is paid per batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from asyncstream.elements import Timestamps

__all__ = ("Sink", "Source", "SourceBatch")

T = TypeVar("T")


class SourceBatch(NamedTuple, Generic[T]):
    """
    What one `read` of a source brought.

    Attributes:
        values: elements in order.
        timestamps: one for each, milliseconds since the epoch, if the outside system has them.
        rejected: what could not be read as an element; goes to the source's `rejected` output.
    """

    values: Sequence[T]
    timestamps: Timestamps = None
    rejected: Sequence[Any] = ()


class Source(ABC, Generic[T]):
    """Where elements come from."""

    async def open(self) -> None:
        """Called once, before the first `read`."""

    @abstractmethod
    async def read(self) -> SourceBatch[T] | None:
        """
        The next batch; waits while there is none; None at the end of input.

        May be cancelled while it waits, and must not have taken anything then.
        """

    def position(self) -> Any:
        """
        Where to go on after the batch that the last `read` returned, or None if the source cannot.

        Made of values that the codec keeps; `seek` takes it.
        """
        return None

    async def seek(self, position: Any) -> None:
        """Go on from `position`; called after `open`, before the first `read`."""

    async def close(self) -> None:
        """Called once, at the end, also after a failure."""


class Sink(ABC, Generic[T]):
    """Where results go."""

    async def open(self) -> None:
        """Called once, before the first `write`."""

    @abstractmethod
    async def write(self, values: Sequence[T], timestamps: Timestamps) -> None:
        """Take these elements, in order. The pipeline waits while this does (backpressure)."""

    async def flush(self) -> None:
        """Called at the end of input, after the last `write`."""

    async def close(self) -> None:
        """Called once, at the end, also after a failure."""
