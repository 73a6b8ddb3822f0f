"""What joins give, in nested loops over all that has come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP


class Step(NamedTuple):
    """
    An element, or a watermark of an input.

    Attributes:
        side: 0: left, 1: right.
        key: whose element; None: a watermark.
        at_ms: the time of either.
        number: tells elements apart.
    """

    side: int
    key: str | None
    at_ms: int
    number: int


class Seen(NamedTuple):
    """An element that was not late, with the watermark it met and how many steps were before it."""

    step: Step
    watermark: int
    place: int


def watermarks(steps: Sequence[Step]) -> Iterator[tuple[Step, int]]:
    """Each step, with the watermark of both inputs behind it."""
    marks = [MIN_TIMESTAMP, MIN_TIMESTAMP]
    for step in steps:
        if step.key is None:
            marks[step.side] = max(marks[step.side], step.at_ms)
        yield step, min(marks)


def interval_join(
    steps: Sequence[Step], lower_ms: int, upper_ms: int, how: str
) -> tuple[list[Any], list[Any]]:
    """Results with their timestamps, sorted; and the elements that were late."""
    keeps = (max(upper_ms, 0), max(-lower_ms, 0))
    history: list[int] = []
    seen: list[Seen] = []
    late: list[Seen] = []
    for place, (step, watermark) in enumerate(watermarks(steps)):
        history.append(watermark)
        if step.key is not None:
            (late if step.at_ms < watermark else seen).append(Seen(step, watermark, place))

    def is_there(one: Seen, until: int) -> bool:
        """Whether an element has not been let go before this step: no later watermark has reached its end."""
        after = [mark for mark in history[one.place : until] if mark > one.watermark]
        return not after or after[-1] < one.step.at_ms + keeps[one.step.side]

    results: list[Any] = []
    matched: set[Seen] = set()
    for left in seen:
        for right in seen:
            if left.step.side or not right.step.side or left.step.key != right.step.key:
                continue
            if lower_ms <= right.step.at_ms - left.step.at_ms <= upper_ms:
                first, second = sorted((left, right), key=lambda one: one.place)
                if is_there(first, second.place):
                    later = max(left.step.at_ms, right.step.at_ms)
                    results.append(((tuple(left.step), tuple(right.step)), later))
                    matched |= {left, right}
    for one in seen:
        alone = ("left", "right")[one.step.side]
        if one not in matched and how in (alone, "full"):
            pair = (None, tuple(one.step)) if one.step.side else (tuple(one.step), None)
            results.append((pair, min(one.step.at_ms + keeps[one.step.side], MAX_TIMESTAMP)))
    return sorted(results, key=repr), [tuple(one.step) for one in late]


def as_of(steps: Sequence[Step]) -> tuple[list[Any], list[Any]]:
    """
    Results with their timestamps, sorted; and the events that were late.

    An event sees the versions that come before the watermark rises to, or past, its time.
    """
    events: list[Step] = []
    results: list[Any] = []
    late: list[Any] = []
    reached = MIN_TIMESTAMP
    versions: list[Step] = []

    def answer(until: int) -> None:
        for event in [one for one in events if one.at_ms <= until]:
            events.remove(event)
            valid = [one for one in versions if one.key == event.key and one.at_ms <= event.at_ms]
            best = max(valid, key=lambda one: (one.at_ms, versions.index(one)), default=None)
            results.append(((tuple(event), None if best is None else tuple(best)), event.at_ms))

    for step, watermark in watermarks(steps):
        if watermark > reached:
            reached = watermark
            answer(watermark)
        if step.key is None:
            continue
        if step.side:
            versions.append(step)
        elif step.at_ms < reached:
            late.append(tuple(step))
        else:
            events.append(step)
    answer(MAX_TIMESTAMP)
    return sorted(results, key=repr), late


def window_join(steps: Sequence[Step], size_ms: int, how: str) -> tuple[list[Any], list[Any]]:
    """Results of tumbling windows with their timestamps, sorted; and the elements that were late."""
    cells: dict[Any, tuple[list[Any], list[Any]]] = {}
    late: list[Any] = []
    for step, watermark in watermarks(steps):
        start = step.at_ms // size_ms * size_ms
        if step.key is None:
            continue
        if start + size_ms - 1 > watermark:
            cells.setdefault((step.key, start), ([], []))[step.side].append(tuple(step))
        else:
            late.append(tuple(step))
    results: list[Any] = []
    for (key, start), (left, right) in cells.items():
        end = start + size_ms
        if how == "groups":
            results.append(((key, start, end, left, right), end - 1))
            continue
        rights = right or ([None] if how in ("left", "full") else [])
        lefts = left or ([None] if how in ("right", "full") else [])
        results += [((one, other), end - 1) for one in lefts for other in rights]
    return sorted(results, key=repr), late
