"""
What a policy window holds: events, in order of arrival, and which of them event time has reached.

A window manager that looks at all it holds whenever a window fires spends quadratic time on a backlog:
one watermark may fire fifty windows over half a million events. So the queue keeps two lists. `reached`
holds, in order of arrival, the events that the last reference time has passed; they are few, because
those that are too old leave. What lies ahead of it is sorted by time, on demand and at
nearly no cost when it is nearly sorted, so that each event is moved to `reached` once.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import chain, takewhile
from operator import attrgetter
from typing import Any, ClassVar, Final

from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.shown import shown_value

__all__ = ("Event", "EventQueue", "Policy")

_TIMESTAMP = attrgetter("timestamp")
_ORDER = attrgetter("order")

_FEW: Final = 20
"""So many times more events held than moved, and putting each in its place beats sorting them all."""


@dataclass(slots=True, eq=False)
class Event:
    """
    One element that a window manager holds.

    Attributes:
        value: the element.
        timestamp: its time, milliseconds since the epoch.
        order: its place in the order of arrival; starts at 1.
        window: number of the last window that it was in; 0: it has been in none.
    """

    value: Any
    timestamp: int
    order: int
    window: int = 0

    def fields(self) -> list[Any]:
        """What makes an equal one: [value, timestamp, order, window]."""
        return [self.value, self.timestamp, self.order, self.window]


class Policy:
    """
    Base of the policies, whose memory is the values of the attributes that it `remembers`.

    There are two of them for each key: to be shown, they hold no text, as what is `Shown` does.
    """

    remembers: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        held = vars(self)
        arguments = [name for name in signature(type(self)).parameters if f"_{name}" in held]
        inside = ", ".join(f"{name}={shown_value(name, held[f'_{name}'])}" for name in arguments)
        return f"{type(self).__name__}({inside})"

    def snapshot(self) -> Any:
        """What `restore` needs to go on from here: the value, or several in a list."""
        values = [getattr(self, name) for name in self.remembers]
        return values if len(values) > 1 else values[0] if values else None

    def restore(self, state: Any) -> None:
        """Take up the state that `snapshot` gave."""
        values = state if len(self.remembers) > 1 else [state]
        for name, value in zip(self.remembers, values, strict=False):
            setattr(self, name, value)


class EventQueue:
    """
    Events in order of arrival, parted by the last reference time.

    Attributes:
        reached: the events at or before it, in order of arrival.
    """

    def __init__(self) -> None:
        self.reached: list[Event] = []
        self._ahead: list[Event] = []  # beyond the reference
        self._first = 0  # those before it are gone
        self._fresh = 0  # those before it are in the order of time
        self._fresh_ms = MAX_TIMESTAMP  # lowest timestamp of the others
        self._reference_ms: int | None = None
        self._order = 0  # of the last event added

    def __len__(self) -> int:
        return len(self.reached) + len(self._ahead) - self._first

    def __iter__(self) -> Iterator[Event]:
        """All events in order of arrival."""
        return iter(sorted(self.reached + self._ahead[self._first :], key=_ORDER))

    def add(self, values: Sequence[Any], timestamps: Sequence[int]) -> None:
        """Take in elements that arrived in this order; at least one."""
        order = self._order + 1
        self._order += len(values)
        events = list(map(Event, values, timestamps, range(order, order + len(values))))
        earliest = min(timestamps)
        reference = self._reference_ms
        if reference is not None and earliest <= reference:
            self.reached += [event for event in events if event.timestamp <= reference]
            events = [event for event in events if event.timestamp > reference]
            earliest = min(map(_TIMESTAMP, events), default=MAX_TIMESTAMP)
        self._ahead += events
        self._fresh_ms = min(self._fresh_ms, earliest)

    def earliest(self) -> int | None:
        """The lowest timestamp beyond the reference time, milliseconds since the epoch."""
        if self._first == len(self._ahead):
            return None
        is_sorted = self._first < self._fresh
        return min(self._ahead[self._first].timestamp, self._fresh_ms) if is_sorted else self._fresh_ms

    def count_until(self, until_ms: int) -> int:
        """How many events there are with timestamp <= `until_ms`."""
        if self._reference_ms is not None and until_ms < self._reference_ms:
            return sum(event.timestamp <= until_ms for event in self.reached)
        return len(self.reached) + self._place(until_ms) - self._first

    def between(self, after_ms: int, until_ms: float) -> list[Event]:
        """The events with `after_ms` < timestamp <= `until_ms`, in order of arrival."""
        end = self._place(until_ms)
        found = self._ahead[self._place(after_ms) : end]
        found += [event for event in self.reached if after_ms < event.timestamp <= until_ms]
        found.sort(key=_ORDER)
        return found

    def reach(self, reference_ms: int) -> None:
        """Part the events by a new reference time."""
        if self._reference_ms is not None and reference_ms < self._reference_ms:
            self._have_ahead([*self._ahead[self._first :], *self.reached])
            self.reached = []
        self._reference_ms = reference_ms
        passed = self._place(reference_ms)
        self._move(self._ahead[self._first : passed])
        self._first = passed

    def reach_all(self) -> None:
        """Count all events as reached, whatever their time; those that come later are beyond again."""
        self._move(self._ahead[self._first :])
        self._have_ahead([])

    def drop_while(self, is_gone: Callable[[Event], bool]) -> list[Event]:
        """Remove events from the front, up to the first that is not gone; where time follows arrival."""
        ahead = map(self._ahead.__getitem__, range(self._first, len(self._ahead)))
        dropped = list(takewhile(is_gone, chain(self.reached, ahead)))
        self._first += max(0, len(dropped) - len(self.reached))
        del self.reached[: len(dropped)]
        if self._first > self._fresh:
            self._fresh_ms = min(map(_TIMESTAMP, self._ahead[self._first :]), default=MAX_TIMESTAMP)
        return dropped

    def clear(self) -> list[Event]:
        """Remove all events, and return them in order of arrival."""
        self.reach_all()
        events, self.reached = self.reached, []
        return events

    def snapshot(self) -> dict[str, Any]:
        """What `restore` needs: events as [value, timestamp, order, window], in order of arrival."""
        return {
            "events": [event.fields() for event in self],
            "reached": [event.order for event in self.reached],
            "reference": self._reference_ms,
            "order": self._order,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up the state that `snapshot` gave."""
        reached = set(state["reached"])
        events = [Event(*fields) for fields in state["events"]]
        self.reached = [event for event in events if event.order in reached]
        self._have_ahead([event for event in events if event.order not in reached])
        self._reference_ms = state["reference"]
        self._order = state["order"]

    def _have_ahead(self, events: list[Event]) -> None:
        """Have these, in whatever order, beyond the reference time."""
        self._ahead, self._first, self._fresh = events, 0, 0
        self._fresh_ms = min(map(_TIMESTAMP, events), default=MAX_TIMESTAMP)

    def _place(self, time_ms: float) -> int:
        """Where in `_ahead` the events later than `time_ms` begin."""
        is_sorted = self._fresh == len(self._ahead)
        if self._first > len(self._ahead) // 2 or not is_sorted:
            del self._ahead[: self._first]
            self._first = 0
        if not is_sorted:
            self._ahead.sort(key=_TIMESTAMP)
            self._fresh_ms = MAX_TIMESTAMP
        self._fresh = len(self._ahead)
        return bisect_right(self._ahead, time_ms, self._first, key=_TIMESTAMP)

    def _move(self, events: list[Event]) -> None:
        """Add events to `reached`, each in its place."""
        events.sort(key=_ORDER)
        if not events or not self.reached or self.reached[-1].order < events[0].order:
            self.reached += events
        elif len(events) * _FEW < len(self.reached):
            for event in events:
                insort(self.reached, event, key=_ORDER)
        else:
            self.reached += events
            self.reached.sort(key=_ORDER)
