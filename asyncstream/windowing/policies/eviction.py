"""
Eviction policies: which of the events held belong to the window that fires now.

After Storm's policies of the same names. A policy is told of every event (`track`) and of every firing
(`set_context`), and then judges events in order of arrival: all at once (`partition`), or the next (`evict`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from asyncstream.windowing.policies.events import Event, Policy

__all__ = (
    "CountEviction",
    "Decision",
    "EvictionPolicy",
    "Firing",
    "Partition",
    "TimeEviction",
    "WatermarkCountEviction",
    "WatermarkTimeEviction",
)


class Decision(Enum):
    """What becomes of one event when a window fires."""

    EXPIRE = "expire"
    """It is in no window any more: let it go."""
    PROCESS = "process"
    """It is in this window."""
    KEEP = "keep"
    """It is not in this window, but perhaps in a later one."""
    STOP = "stop"
    """Look no further: this event and those after it are kept."""


@dataclass(frozen=True, slots=True)
class Firing:
    """
    A trigger's decision that a window ends.

    Attributes:
        reference_ms: the window's end, milliseconds since the epoch, included in it.
        count: how many events there are up to that end; None if the slide is a count.
        slide_count: the slide, if it is a count of events.
        missing: how many events the last slide of a finite stream is short of `slide_count`.
    """

    reference_ms: int
    count: int | None = None
    slide_count: int = 0
    missing: int = 0


@dataclass(slots=True)
class Partition:
    """
    Events parted by a firing; all lists in order of arrival.

    Attributes:
        expired: those that leave.
        window: those in the window.
        held: those that stay: the window and what is kept for later. May be the list `window` itself.
    """

    expired: list[Event]
    window: list[Event]
    held: list[Event]


class EvictionPolicy(Policy, ABC):
    """
    Base of the eviction policies: the length of a window.

    Attributes:
        reads_time: whether events after the reference time are out of the window.
        compacts: whether events may expire between two firings.
        waits: whether nothing is decided before the first firing.
    """

    reads_time: ClassVar[bool] = True
    compacts: ClassVar[bool] = False
    waits: ClassVar[bool] = False

    _reference_ms: int | None = None

    def track(self, count: int = 1) -> None:
        """`count` events have arrived."""

    def set_context(self, firing: Firing) -> None:
        """The decisions that follow are about this firing."""
        self._reference_ms = firing.reference_ms

    def evict(self, timestamp_ms: int, now_ms: int) -> Decision:
        """Decide about the next event in order of arrival; `now_ms` is processing time."""
        reference = self._reference(now_ms)
        if reference is None:
            return Decision.STOP
        if self.reads_time and timestamp_ms > reference:
            return Decision.KEEP
        parts = self.partition((Event(None, timestamp_ms, 0),), now_ms)
        return Decision.EXPIRE if parts.expired else Decision.PROCESS if parts.window else Decision.KEEP

    @abstractmethod
    def partition(self, events: Sequence[Event], now_ms: int) -> Partition:
        """
        Decide about `events`, all that are held in order of arrival.

        Args:
            events: none is after the reference time, if this policy reads time: those are kept anyway.
            now_ms: processing time, milliseconds since the epoch.
        """

    def _reference(self, now_ms: int) -> int | None:
        """The end of the window that fires; before the first, the clock, or None."""
        return now_ms if self._reference_ms is None and not self.waits else self._reference_ms

    def reset(self) -> None:
        """The decisions begin again for the same firing."""


class CountEviction(EvictionPolicy):
    """
    The last `length` events to arrive; timestamps are not looked at.

    Args:
        length: of a window, in elements; at least 1.
    """

    reads_time = False
    compacts = True
    remembers = ("_count",)

    def __init__(self, length: int) -> None:
        self._length = length
        self._count = 0

    def track(self, count: int = 1) -> None:
        self._count += count

    def set_context(self, firing: Firing) -> None:
        self._count += firing.missing

    def partition(self, events: Sequence[Event], now_ms: int) -> Partition:
        expired = list(events[: max(0, self._count - self._length)])
        self._count -= len(expired)
        window = list(events[len(expired) :])
        return Partition(expired, window, window)


class TimeEviction(EvictionPolicy):
    """
    The events of the last `length_ms` milliseconds: start < timestamp <= end.

    Without a firing yet, the clock is the reference.

    Args:
        length_ms: of a window; at least 1.
    """

    compacts = True
    remembers = ("_reference_ms",)

    def __init__(self, length_ms: int) -> None:
        self._length_ms = length_ms

    def partition(self, events: Sequence[Event], now_ms: int) -> Partition:
        reference = self._reference(now_ms)
        if reference is None:
            return Partition([], [], list(events))
        start = reference - self._length_ms
        held = [event for event in events if event.timestamp > start]
        expired = [event for event in events if event.timestamp <= start] if len(held) < len(events) else []
        return Partition(expired, held, held)


class WatermarkTimeEviction(TimeEviction):
    """
    The same length in event time, where nothing is decided before the first watermark.

    Storm's policy also stops at the first event that is ahead of the end by more than the lag; see the
    table in `docs/coming-from.md` for why this one does not.

    Args:
        length_ms: of a window; at least 1.
    """

    compacts = False
    waits = True


class WatermarkCountEviction(EvictionPolicy):
    """
    The last `length` events to arrive among those at or before the reference time.

    `current` is how many events there are for this firing: those up to the window's end, or under a
    count slide those of the last firing and `slide_count` more. The oldest leave while `current` is
    above the length; then as many are processed as `current` says; the rest is kept. The reference time
    comes with each firing.

    Args:
        length: of a window, in elements; at least 1.
    """

    waits = True
    remembers = ("_current", "_processed")

    def __init__(self, length: int) -> None:
        self._length = length
        self._current = 0
        self._processed = 0

    def set_context(self, firing: Firing) -> None:
        super().set_context(firing)
        self._current = self._processed + firing.slide_count if firing.count is None else firing.count
        self._processed = 0

    def partition(self, events: Sequence[Event], now_ms: int) -> Partition:
        expired = list(events[: max(0, self._current - self._length)])
        self._current -= len(expired)
        held = list(events[len(expired) :])
        window = held[: max(0, min(self._current, self._length) - self._processed)]
        self._processed += len(window)
        return Partition(expired, window, held)

    def reset(self) -> None:
        self._processed = 0
