"""
What the pipelines of `scenarios` look like, and plain models of what they give.

The models know nothing of the package: a loop over the events, a dict, and sorting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

__all__ = ("COUNT", "ORDERS", "PANES", "SIZE_MS", "Event", "Order", "Shape", "model")

Order: TypeAlias = Literal["ordered", "unordered", "event_time", "per_key"]
ORDERS: tuple[Order, ...] = ("ordered", "unordered", "event_time", "per_key")

SIZE_MS = 1000
"""Length of the tumbling windows, and gap of the sessions."""

PANES = 4
"""Sliding windows start so many times as often as one ends."""

COUNT = 3
"""Elements in a count window."""


class Event(NamedTuple):
    """
    Attributes:
        id: starts at 0, in the order of the input.
        key: what windows are kept for.
        at_ms: its event time.
        fate: what becomes of its call: it is "served", "fails" at every attempt, or "hangs".
    """

    id: int
    key: str
    at_ms: int
    fate: str


@dataclass(frozen=True)
class Shape:
    """
    What a pipeline looks like.

    Attributes:
        order: of the async step.
        windows: "none", "tumbling", "sliding", "session", "timers" (a process function), or "count".
        folded: windows fold their elements as they come, rather than to keep them.
        delay_ms: how far behind the watermark is.
        every_ms: event time between two watermarks.
        late: some events come late for their windows.
        lateness_ms: how late they may be.
        sources: how many; with two, events take turns.
        transactional: the sinks can take back; otherwise they hold everything at least once.
        aside: what fails, times out or is late has a sink of its own.
        second: what the windows give goes through another async step.
        flat: calls give a list of results.
        strict: a call that fails is not tried again, and the pipeline fails with it.
    """

    order: Order
    windows: str
    folded: bool
    delay_ms: int
    every_ms: int
    late: bool
    lateness_ms: int
    sources: int
    transactional: bool
    aside: bool
    second: bool
    flat: bool
    strict: bool


def model(shape: Shape, events: Sequence[Event]) -> dict[str, list[Any]]:
    """What each sink is to hold in the end."""
    fates = {"fails": "failed", "hangs": "timed out"}
    aside: list[Any] = [(fates[event.fate], event.id) for event in events if event.fate in fates]
    served = [event for event in events if event.fate == "served"]
    results: list[Any] = []
    if shape.windows == "none":
        results = [event.id for event in served]
    elif shape.late:
        results, late = _with_late_ones(shape, events)
        aside += [("late", event.id) for event in late if event.fate == "served"]
    else:
        by_key: dict[str, list[Event]] = defaultdict(list)
        for event in served:
            by_key[event.key].append(event)
        for key, ours in by_key.items():
            if shape.windows == "count":
                whole = len(ours) // COUNT * COUNT
                results += [(key, [e.id for e in ours[n : n + COUNT]]) for n in range(0, whole, COUNT)]
            elif shape.windows == "session":
                results += [(key, *session) for session in _sessions(ours)]
            else:
                slide_ms = SIZE_MS // PANES if shape.windows == "sliding" else SIZE_MS
                results += [(key, *window) for window in _aligned(ours, slide_ms)]
    return {"sink": results, "aside": aside} if shape.aside else {"sink": results + aside}


def _aligned(events: Iterable[Event], slide_ms: int) -> Iterator[tuple[int, int, list[int]]]:
    windows: dict[int, list[int]] = defaultdict(list)
    for event in events:
        newest_ms = event.at_ms // slide_ms * slide_ms
        for start_ms in range(newest_ms, event.at_ms - SIZE_MS, -slide_ms):
            windows[start_ms].append(event.id)
    for start_ms, ids in windows.items():
        yield start_ms, start_ms + SIZE_MS, sorted(ids)


def _with_late_ones(shape: Shape, events: Iterable[Event]) -> tuple[list[Any], list[Event]]:
    """Results of tumbling windows that fire again for who is not too late; and who is."""
    watermark = threshold = -1 - shape.delay_ms
    windows: dict[tuple[str, int], list[int]] = defaultdict(list)
    fired: set[tuple[str, int]] = set()
    results: list[Any] = []
    late: list[Event] = []

    def fire(window: tuple[str, int]) -> None:
        fired.add(window)
        key, end_ms = window
        results.append((key, end_ms - SIZE_MS, end_ms, sorted(windows[window])))

    for event in events:
        end_ms = (event.at_ms // SIZE_MS + 1) * SIZE_MS
        if end_ms - 1 + shape.lateness_ms <= watermark:
            late.append(event)
        elif event.fate == "served":
            windows[event.key, end_ms].append(event.id)
            if end_ms - 1 <= watermark:
                fire((event.key, end_ms))
        if event.at_ms >= threshold:
            threshold = event.at_ms + max(1, shape.every_ms)
            watermark = event.at_ms - shape.delay_ms - 1
            for window in windows.keys() - fired:
                if window[1] - 1 <= watermark:
                    fire(window)
    for window in windows.keys() - fired:
        fire(window)
    return results, late


def _sessions(events: Iterable[Event]) -> Iterator[tuple[int, int, list[int]]]:
    session: list[Event] = []
    for event in sorted(events, key=lambda event: event.at_ms):
        if session and event.at_ms > session[-1].at_ms + SIZE_MS:
            yield _session(session)
            session = []
        session.append(event)
    if session:
        yield _session(session)


def _session(events: list[Event]) -> tuple[int, int, list[int]]:
    return events[0].at_ms, events[-1].at_ms + SIZE_MS, sorted(event.id for event in events)
