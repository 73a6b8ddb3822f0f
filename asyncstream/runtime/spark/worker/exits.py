"""
Where elements leave a stage: an operator at the start of each route, which collects them by key group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamps
from asyncstream.operators.base import Operator, pairs
from asyncstream.runtime.spark.stages import Reach, Route
from asyncstream.runtime.spark.wire.batches import Leaving
from asyncstream.runtime.spark.wire.keys import KeyGroups

__all__ = ("Exit", "MarkingExit")


class Exit(Operator):
    """
    Collects what leaves on one route, by key group.

    Attributes:
        watermark: the one that holds for what arrives now; `NOW`: this micro-batch's own.
        count: how many elements have been collected since the last time.

    Args:
        places: the groups that each element without a key goes to.
    """

    def __init__(
        self, route: Route, groups: KeyGroups, wanted: bool, places: Sequence[int], watermark: int
    ) -> None:
        super().__init__()
        self.route = route
        self.watermark = watermark
        self.count = 0
        self.ended = False
        self.on_end: Callable[[], None] = lambda: None
        self._groups = groups
        self._wanted = wanted
        self._places = places
        self._held: dict[tuple[int, int | None], tuple[list[Any], list[int | None]]] = {}

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        if not self._wanted:
            return
        self.count += len(values)
        key_by, group_of, watermark = self.route.key_by, self._groups.of, self.watermark
        if key_by is None:
            all_values, all_timestamps = self._held.setdefault((watermark, None), ([], []))
            all_values.extend(values)
            all_timestamps.extend(repeat(None, len(values)) if timestamps is None else timestamps)
            return
        value = None
        try:
            for value, timestamp in pairs(values, timestamps):
                group = group_of(key_by(value))
                held = self._held.get((watermark, group))
                if held is None:
                    held = self._held[watermark, group] = ([], [])
                held[0].append(value)
                held[1].append(timestamp)
        except BaseException as error:  # of the user's key
            self.fail_on(value, error)

    def advance_watermark(self, timestamp: int) -> None:
        self.watermark = timestamp

    def restore_watermark(self, timestamp: int) -> None:
        self.watermark = timestamp

    def set_idle(self, idle: bool) -> None:
        """Spark's watermark waits for no operator."""

    def end_input(self) -> None:
        self.ended = True
        self.on_end()

    def take(self) -> list[Leaving]:
        """What has been collected since the last time."""
        held, self._held, self.count = self._held, {}, 0
        return [
            Leaving(self.route, watermark, groups, *lists)
            for (watermark, group), lists in held.items()
            if (groups := self._places_of(group))
        ]

    def _places_of(self, group: int | None) -> Sequence[int]:
        return self._places if group is None else (group,)


class MarkingExit(Exit):
    """
    An exit of a job that replays event time: marks each element with the watermark that held for it.

    The first elements of a partition have none before them. They are marked with the first that follows: the
    partition may be the last of many, and must not begin before the first one does. What timers emit while
    event time advances is marked with what is just before it, as if event time had moved in small steps.

    Attributes:
        advancing_to: where event time is being advanced to, while it is; at its end, where it came before.
    """

    def __init__(
        self, route: Route, groups: KeyGroups, wanted: bool, places: Sequence[int], watermark: int
    ) -> None:
        super().__init__(route, groups, wanted, places, MIN_TIMESTAMP)
        self.advancing_to: int | None = None
        self._marked: dict[int | None, tuple[list[Any], list[int | None], list[int]]] = {}

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        if not self._wanted:
            return
        self.count += len(values)
        key_by, group_of, until = self.route.key_by, self._groups.of, self.advancing_to
        value, group = None, None
        try:
            for value, timestamp in pairs(values, timestamps):
                if key_by is not None:
                    group = group_of(key_by(value))
                if until is not None and timestamp is not None and until > MIN_TIMESTAMP:
                    self.watermark = max(self.watermark, min(timestamp, until) - 1)
                held = self._marked.get(group)
                if held is None:
                    held = self._marked[group] = ([], [], [])
                held[0].append(value)
                held[1].append(timestamp)
                held[2].append(self.watermark)
        except BaseException as error:  # of the user's key
            self.fail_on(value, error)

    def advance_watermark(self, timestamp: int) -> None:
        if not self.watermark < timestamp < MAX_TIMESTAMP:
            return
        if self.watermark == MIN_TIMESTAMP:
            stamps = (stamp for _, times, _ in self._marked.values() for stamp in times if stamp is not None)
            first = min(timestamp, *(stamp - 1 for stamp in stamps), timestamp)
            for *_, marks in self._marked.values():
                marks[:] = [first] * len(marks)
        self.watermark = timestamp

    def take(self) -> list[Leaving]:
        marked, self._marked, self.count = self._marked, {}, 0
        return [
            Leaving(self.route, lists[2][0], groups, *lists)
            for group, lists in marked.items()
            if (groups := self._places_of(group))
        ]

    def last(self, key_groups: int) -> Iterator[Leaving]:
        """Tells those who read this how far event time has come, also where there are no more elements."""
        if self.route.key_by is not None:
            places: Sequence[int] = range(key_groups)
        else:
            places = () if self.route.reach is Reach.ONE else self._places
        if self._wanted and self.watermark > MIN_TIMESTAMP and places:
            yield Leaving(self.route, self.watermark, places, [], [], [])
