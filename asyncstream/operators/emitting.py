"""
The `out` of user functions, as every keyed operator with user code needs one.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeVar

from asyncstream.errors import PipelineError
from asyncstream.operators.base import Operator

__all__ = ("BURST", "BufferedEmitter", "Emitter")

Out = TypeVar("Out", contravariant=True)


BURST: Final = 250
"""
Results that `BufferedEmitter.extend` holds at most before it hands them on, so that a burst does not pile up.

Each may be some objects: fewer than make Python's collector look at all that is new, 700 in 3.11.
"""


class Emitter(Protocol[Out]):
    """The `out` of user functions: `out(value)` emits one result."""

    def __call__(self, value: Out) -> None: ...


class BufferedEmitter:
    """
    What user functions emit, until it is handed on in batches: before anything else leaves the operator.

    Functions are given its method `emit` as their `out`: Python calls a method in half the time that it takes
    to call an object that has `__call__`.

    Args:
        operator: what results leave.

    Attributes:
        timestamp: what the next results carry, milliseconds since the epoch, or None.
    """

    __slots__ = ("_aside", "_operator", "_timestamps", "_values", "timestamp")

    def __init__(self, operator: Operator) -> None:
        self.timestamp: int | None = None
        self._operator = operator
        self._values: list[Any] = []
        self._timestamps: list[int | None] = []
        self._aside: list[tuple[int, str, Any, int | None]] = []
        """What goes aside, each with the number of results that go before it."""

    def emit(self, value: Any) -> None:
        """Emit one result, with the present `timestamp`."""
        self._values.append(value)
        self._timestamps.append(self.timestamp)

    def extend(self, values: list[Any], timestamp: int | None) -> None:
        """Emit several results that carry the same timestamp."""
        self._values += values
        self._timestamps += [timestamp] * len(values)
        self.relieve()

    def aside(self, tag: str, value: Any, timestamp: int | None) -> None:
        """
        Send `value` to the side output `tag`, after what was emitted before it.

        Raises:
            PipelineError: if nothing reads that output, so that the value would be lost.
        """
        if tag not in self._operator.side:
            raise PipelineError(
                f"nothing reads the side output {tag!r}; read it with .side({tag!r}).to(...), "
                f"or say that it is not needed with .side({tag!r}).discard()"
            )
        self._aside.append((len(self._values), tag, value, timestamp))

    def flush(self) -> None:
        """Hand on what was collected, in its order."""
        if not self._values and not self._aside:
            return
        values, timestamps, aside = self._values, self._timestamps, self._aside
        self._values, self._timestamps, self._aside = [], [], []
        start = 0
        for place, tag, value, timestamp in aside:
            if place > start:
                self._operator.out.process_batch(values[start:place], timestamps[start:place])
                start = place
            self._operator.side_output(tag).process(value, timestamp)
        if start < len(values):
            if start:
                values, timestamps = values[start:], timestamps[start:]
            self._operator.out.process_batch(values, timestamps)

    def relieve(self) -> None:
        """Hand on what was collected if it is much."""
        if len(self._values) + len(self._aside) >= BURST:
            self.flush()

    def has_room(self) -> bool:
        """Whether the operator may emit what the clock makes it emit, beside what was collected."""
        self.relieve()
        return self._operator.context.has_room()

    def mark(self) -> tuple[int, int]:
        """How much is collected now, for `take_back`."""
        return len(self._values), len(self._aside)

    def take_back(self, mark: tuple[int, int]) -> None:
        """Forget what was emitted, or sent aside, since `mark`, if nothing was handed on."""
        del self._values[mark[0] :], self._timestamps[mark[0] :], self._aside[mark[1] :]
