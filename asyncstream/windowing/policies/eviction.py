"""
Eviction policies: which of the events held belong to the window that fires now.

After Storm's policies of the same names. A policy is told of every event (`track`) and of every firing
(`set_context`), and then judges events in order of arrival (`evict`). `partition` judges many at once;
where a policy overrides it, it is the same rule without a call for each event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from asyncstream.windowing.policies.events import Event

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


class EvictionPolicy:
    """
    Base of the eviction policies: the length of a window.

    Attributes:
        reads_time: whether events after the reference time are out of the window.
        compacts: whether events may expire between two firings.
    """

    reads_time: ClassVar[bool] = True
    compacts: ClassVar[bool] = False

    def track(self, count: int = 1) -> None:
        """`count` events have arrived."""

    def set_context(self, firing: Firing) -> None:
        """The decisions that follow are about this firing."""

    def evict(self, timestamp_ms: int, now_ms: int) -> Decision:
        """Decide about the next event in order of arrival; `now_ms` is processing time."""
        raise TypeError(f"{type(self).__name__} does not override evict")

    def partition(self, events: Sequence[Event], now_ms: int) -> Partition:
        """
        Decide about `events`, all that are held in order of arrival.

        Args:
            events: none is after the reference time, if this policy reads time: those are kept anyway.
            now_ms: processing time, milliseconds since the epoch.
        """
        expired: list[Event] = []
        window: list[Event] = []
        held: list[Event] = []
        for position, event in enumerate(events):
            decision = self.evict(event.timestamp, now_ms)
            if decision is Decision.EXPIRE:
                expired.append(event)
                continue
            if decision is Decision.STOP:
                held += events[position:]
                break
            held.append(event)
            if decision is Decision.PROCESS:
                window.append(event)
        return Partition(expired, window, held)

    def reset(self) -> None:
        """The decisions begin again for the same firing."""

    def snapshot(self) -> Any:
        """What `restore` needs to go on from here."""
        return None

    def restore(self, state: Any) -> None:
        """Take up the state that `snapshot` gave."""


class CountEviction(EvictionPolicy):
    """
    The last `length` events to arrive; timestamps are not looked at.

    Args:
        length: of a window, in elements; at least 1.
    """

    reads_time = False
    compacts = True

    def __init__(self, length: int) -> None:
        self._length = length
        self._count = 0

    def track(self, count: int = 1) -> None:
        self._count += count

    def set_context(self, firing: Firing) -> None:
        self._count += firing.missing

    def evict(self, timestamp_ms: int, now_ms: int) -> Decision:
        if self._count > self._length:
            self._count -= 1
            return Decision.EXPIRE
        return Decision.PROCESS

    def partition(self, events: Sequence[Event], now_ms: int) -> Partition:
        expired = list(events[: max(0, self._count - self._length)])
        self._count -= len(expired)
        window = list(events[len(expired) :])
        return Partition(expired, window, window)

    def snapshot(self) -> int:
        return self._count

    def restore(self, state: int) -> None:
        self._count = state


class TimeEviction(EvictionPolicy):
    """
    The events of the last `length_ms` milliseconds: start < timestamp <= end.

    Without a firing yet, the clock is the reference.

    Args:
        length_ms: of a window; at least 1.
    """

    compacts = True

    def __init__(self, length_ms: int) -> None:
        self._length_ms = length_ms
        self._reference_ms: int | None = None

    def set_context(self, firing: Firing) -> None:
        self._reference_ms = firing.reference_ms

    def evict(self, timestamp_ms: int, now_ms: int) -> Decision:
        reference = now_ms if self._reference_ms is None else self._reference_ms
        if reference - timestamp_ms >= self._length_ms:
            return Decision.EXPIRE
        return Decision.KEEP if timestamp_ms > reference else Decision.PROCESS

    def partition(self, events: Sequence[Event], now_ms: int) -> Partition:
        reference = now_ms if self._reference_ms is None else self._reference_ms
        start = reference - self._length_ms
        held = [event for event in events if event.timestamp > start]
        expired = [event for event in events if event.timestamp <= start] if len(held) < len(events) else []
        return Partition(expired, held, held)

    def snapshot(self) -> int | None:
        return self._reference_ms

    def restore(self, state: int | None) -> None:
        self._reference_ms = state


class WatermarkTimeEviction(TimeEviction):
    """
    The same length in event time, where nothing is decided before the first watermark.

    Storm's policy also stops at the first event that is ahead of the end by more than the lag; see the
    table in the package for why this one does not.

    Args:
        length_ms: of a window; at least 1.
    """

    compacts = False

    def evict(self, timestamp_ms: int, now_ms: int) -> Decision:
        if self._reference_ms is None:
            return Decision.STOP
        return super().evict(timestamp_ms, now_ms)

    def partition(self, events: Sequence[Event], now_ms: int) -> Partition:
        if self._reference_ms is None:
            return Partition([], [], list(events))
        return super().partition(events, now_ms)


class WatermarkCountEviction(EvictionPolicy):
    """
    The last `length` events to arrive among those at or before the reference time.

    `current` is how many events there are for this firing: those up to the window's end, or under a
    count slide those of the last firing and `slide_count` more. The oldest leave while `current` is
    above the length; then as many are processed as `current` says; the rest is kept.

    Args:
        length: of a window, in elements; at least 1.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._reference_ms: int | None = None
        self._current = 0
        self._processed = 0

    def set_context(self, firing: Firing) -> None:
        self._reference_ms = firing.reference_ms
        self._current = self._processed + firing.slide_count if firing.count is None else firing.count
        self._processed = 0

    def evict(self, timestamp_ms: int, now_ms: int) -> Decision:
        if self._reference_ms is None:
            return Decision.STOP
        if timestamp_ms > self._reference_ms:
            return Decision.KEEP
        if self._current > self._length:
            self._current -= 1
            return Decision.EXPIRE
        if self._processed < self._current:
            self._processed += 1
            return Decision.PROCESS
        return Decision.KEEP

    def partition(self, events: Sequence[Event], now_ms: int) -> Partition:
        if self._reference_ms is None:
            return Partition([], [], list(events))
        expired = list(events[: max(0, self._current - self._length)])
        self._current -= len(expired)
        held = list(events[len(expired) :])
        window = held[: max(0, min(self._current, self._length) - self._processed)]
        self._processed += len(window)
        return Partition(expired, window, held)

    def reset(self) -> None:
        self._processed = 0

    def snapshot(self) -> list[int]:
        """[current, processed]; the reference time comes with the next firing."""
        return [self._current, self._processed]

    def restore(self, state: list[int]) -> None:
        self._current, self._processed = state
