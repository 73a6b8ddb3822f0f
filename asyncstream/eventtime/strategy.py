"""
When things happened, and how far event time has come.

A `WatermarkStrategy` is a setting; `generator()` makes the state machine that one run of a pipeline uses.
Generators look at elements only, never at a clock or at how elements were batched: the same input always
gives the same watermarks at the same places.

`every` (event time, not processing time) thins watermarks out: a new one is worth its price only when event
time has moved by that much. A stream too quiet for that moves event time by more with each element, so it
gets a watermark with each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.errors import safe_repr
from asyncstream.shown import Shown
from asyncstream.validation import Duration, duration_ms, function, instant_ms

__all__ = (
    "AscendingTimestamps",
    "BoundedOutOfOrderness",
    "IngestionTime",
    "NoWatermarks",
    "PunctuatedWatermarks",
    "WatermarkGenerator",
    "WatermarkStrategy",
    "kept_ms",
)


def kept_ms(kept: Any) -> int:
    """A time, as a snapshot has it; raises `TypeError` if it is none: a snapshot may be made by hand."""
    if type(kept) is not int:
        raise TypeError(f"expected a time, an int (milliseconds since the epoch), got {safe_repr(kept)}")
    return kept


class WatermarkGenerator(Shown, ABC):
    """
    Follows one stream and says when event time has advanced.

    Attributes:
        threshold: `on_element` need not be called for a timestamp below this one (milliseconds).
    """

    threshold: int = MIN_TIMESTAMP

    @abstractmethod
    def on_element(self, value: Any, timestamp: int, /) -> int | None:
        """The watermark that follows this element, or None."""

    def snapshot(self) -> Any:
        return None

    def restore(self, state: Any, /) -> None:
        """Take up what `snapshot` gave."""


class WatermarkStrategy(Shown, ABC):
    """
    How a stream's watermarks are found: a setting, which any number of steps and jobs may share. What is
    remembered while a stream runs belongs in the generator.
    """

    def __str__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in vars(self).items())
        return f"{type(self).__name__}({settings})"

    @abstractmethod
    def generator(self) -> WatermarkGenerator:
        """A fresh state machine for one run."""


@dataclass(frozen=True)
class BoundedOutOfOrderness(WatermarkStrategy):
    """
    An element comes at most `delay` after one with a larger timestamp.

    The watermark is the largest timestamp seen - `delay` - 1 ms, as in Flink's
    BoundedOutOfOrdernessWatermarks.

    Args:
        delay: a `timedelta` or seconds, at least 0.
        every: how far event time moves between two watermarks; a `timedelta` or seconds, at least 0.
    """

    delay: Duration
    every: Duration = timedelta(milliseconds=200)

    def __post_init__(self) -> None:
        duration_ms("delay", self.delay, zero=True)
        duration_ms("every", self.every, zero=True)

    def generator(self) -> WatermarkGenerator:
        return _Bounded(
            duration_ms("delay", self.delay, zero=True), duration_ms("every", self.every, zero=True)
        )


@dataclass(frozen=True)
class AscendingTimestamps(WatermarkStrategy):
    """
    Timestamps never go down.

    Args:
        every: as in `BoundedOutOfOrderness`.
    """

    every: Duration = timedelta(milliseconds=200)

    def __post_init__(self) -> None:
        duration_ms("every", self.every, zero=True)

    def generator(self) -> WatermarkGenerator:
        return _Bounded(0, duration_ms("every", self.every, zero=True))


@dataclass(frozen=True)
class PunctuatedWatermarks(WatermarkStrategy):
    """
    Some elements carry the watermark themselves.

    Args:
        watermark: given the element and its timestamp (milliseconds), the watermark (milliseconds) or None.
    """

    watermark: Callable[[Any, int], int | None]

    def __post_init__(self) -> None:
        function("watermark", self.watermark, "element", "timestamp")

    def generator(self) -> WatermarkGenerator:
        return _Punctuated(self.watermark)


@dataclass(frozen=True)
class IngestionTime(AscendingTimestamps):
    """
    An element's time is that of the clock at which it enters: `stream.event_time(IngestionTime())`.

    Event time goes on with the clock, also while no element comes, so nothing is late and no window waits for
    elements. A clock that is set back does not set event time back. The same input gets other times another
    time, and so do elements that are replayed after a crash; take the time at which things happened where it
    is known.

    Args:
        every: how far time moves between two watermarks; a `timedelta` or seconds, at least 0.
    """


@dataclass(frozen=True)
class NoWatermarks(WatermarkStrategy):
    """Elements have timestamps, but event time advances only at the end of input."""

    def generator(self) -> WatermarkGenerator:
        return _Punctuated(lambda value, timestamp: None)


class _Bounded(WatermarkGenerator):
    def __init__(self, delay_ms: int, every_ms: int) -> None:
        self._behind_ms = delay_ms + 1
        self._every_ms = max(every_ms, 1)

    def on_element(self, value: Any, timestamp: int) -> int | None:
        if timestamp < self.threshold:
            return None
        self.threshold = timestamp + self._every_ms
        return timestamp - self._behind_ms

    def snapshot(self) -> Any:
        return self.threshold

    def restore(self, state: Any) -> None:
        self.threshold = kept_ms(state)


class _Punctuated(WatermarkGenerator):
    def __init__(self, watermark: Callable[[Any, int], int | None]) -> None:
        self._watermark = watermark
        self._latest = MIN_TIMESTAMP

    def on_element(self, value: Any, timestamp: int) -> int | None:
        found = self._watermark(value, timestamp)
        if found is None:
            return None
        found = instant_ms(found)
        if found <= self._latest:
            return None
        self._latest = found
        return found

    def snapshot(self) -> Any:
        return self._latest

    def restore(self, state: Any) -> None:
        self._latest = kept_ms(state)
