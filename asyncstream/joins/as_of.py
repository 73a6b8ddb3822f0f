"""
The temporal join: each element of a stream with the version of another that is valid at its time.

Versions of a key follow each other: one is valid from its own time until that of the next. Which one is
valid at the time of an event is certain when the watermark has come there: all versions up to it are known.
So events wait for the watermark, and come out in the order of their times, before it is passed on. Of two
versions of the same time the one that came last is valid. Behind the watermark one version is kept for each
key: the one that the next event may need.

An event is late if its time is below the watermark: the version that was valid then may be gone. A late
version is taken in, for the events to come; what was emitted is not corrected.

In processing time (`LatestOperator`) an event is joined as it comes, with the version that came last.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from asyncstream.elements import Timestamps
from asyncstream.joins.timed import LEFT, RIGHT, Fronts, TimedJoin, add, check_timestamp
from asyncstream.operators.base import Operator, pairs
from asyncstream.operators.ports import MultiInput
from asyncstream.operators.results import FirstKeys
from asyncstream.operators.spec import KeyBy, Spec
from asyncstream.state import MISSING, Table
from asyncstream.state.schema import Schema
from asyncstream.windowing.base import LATE

__all__ = ("AsOfOperator", "AsOfSpec", "LatestOperator")

_VERSIONS: Final = "versions"


@dataclass(frozen=True)
class AsOfSpec(Spec):
    """
    Joins each element of a stream with the version of another that is valid.

    Attributes:
        key_of: for the events and the versions, what gives the key of an element.
        latest: the version that came last, instead of that of the event's time.
    """

    key_of: tuple[KeyBy, KeyBy]
    latest: bool

    def build(self) -> Operator:
        return self.operator(self.key_of)

    @property
    def operator(self) -> type[AsOfOperator] | type[LatestOperator]:
        return LatestOperator if self.latest else AsOfOperator

    @property
    def keys(self) -> tuple[KeyBy | None, ...]:
        return self.key_of

    @property
    def table_port(self) -> int | None:
        return RIGHT if self.latest else None

    @property
    def schema(self) -> Schema:
        return Schema({"join": "latest" if self.latest else "as of"})

    @property
    def counters(self) -> tuple[str, ...]:
        return () if self.latest else ("late_dropped",)


class AsOfOperator(TimedJoin):
    """
    Joins events with the versions valid at their times; see the module.

    Emits when the watermark has come to an event's time, a tuple (event, version or None) with the event's
    timestamp. Completes when both inputs have ended. Late events go to the output "late", or are counted.
    Snapshot holds: events that wait, with a timer for each of their times, and versions.
    """

    def __init__(self, key_of: Sequence[KeyBy]) -> None:
        super().__init__(self._process_events, self._process_versions)
        self._key_of_event: KeyBy = FirstKeys(self, key_of[LEFT], "_key_of_event")
        self._key_of_version: KeyBy = FirstKeys(self, key_of[RIGHT], "_key_of_version")
        self._events = self.tables.declare(Table("events"))
        self._versions = self.tables.declare(Table(_VERSIONS))
        self._fronts = Fronts(self.tables, self._events), Fronts(self.tables, self._versions)

    def _process_events(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        values, stamps, refused = self._in_time(LATE, values, timestamps)
        key_by, events, register = self._key_of_event, self._events, self._timers.event.register
        value = None
        try:
            for value, timestamp in zip(values, stamps, strict=True):
                key = key_by(value)
                waiting = events.get(None, key)
                if waiting is MISSING:
                    waiting = [[], []]
                    events.put(None, key, waiting)
                add(waiting, timestamp, value)
                register(timestamp, key, LEFT)
        except BaseException as error:
            self.fail_on(value, error)
        if refused is not None:
            raise refused

    def _process_versions(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        key_by, watermark, value = self._key_of_version, self._timers.watermark, None
        try:
            for value, timestamp in pairs(values, timestamps):
                at_ms = check_timestamp(timestamp)
                self._take_in(key_by(value), at_ms, value, watermark)
        except BaseException as error:
            self.fail_on(value, error)

    def _take_in(self, key: Any, timestamp: int, value: Any, watermark: int) -> None:
        """Have one more version, in the place of one of its time."""
        versions = self._versions.get(None, key)
        if versions is MISSING:
            self._versions.put(None, key, [[timestamp], [value]])
            return
        times = versions[0]
        place = bisect_left(times, timestamp)
        if times[place : place + 1] == [timestamp]:
            versions[1][place] = value
            return
        add(versions, timestamp, value)
        self._forget(key, versions, watermark)

    def _fire(self, timestamp: int, key: Any, namespace: Any) -> None:
        if namespace == RIGHT:
            self._forget(key, self._versions.get(None, key), timestamp)
            return
        versions = self._versions.peek(None, key)
        waiting = self._events.get(None, key)
        fronts = self._fronts[LEFT]
        first = fronts.get(key, 0)
        due = bisect_right(waiting[0], timestamp, first)
        place = 0 if versions is MISSING else bisect_right(versions[0], timestamp)
        version = versions[1][place - 1] if place else None
        for at_ms, value in zip(waiting[0][first:due], waiting[1][first:due], strict=True):
            self._emit((value, version), at_ms)
        if due < len(waiting[0]):
            fronts.go(key, waiting, due)
            return
        fronts.pop(key, None)
        self._events.remove(None, key)

    def _forget(self, key: Any, versions: Any, timestamp: int) -> None:
        """Keep the version that is valid at this time, and those after it."""
        times = versions[0]
        after = max(bisect_right(times, timestamp), 1)
        if after < len(times):
            self._timers.event.register(times[after], key, RIGHT)
        if after > 1:
            self._fronts[RIGHT].go(key, versions, after - 1)


class LatestOperator(MultiInput):
    """
    Joins events with the versions that came last.

    Emits with each event, a tuple (event, version or None) with the event's timestamp. Completes when both
    inputs have ended. Snapshot holds: the last version of each key.
    """

    def __init__(self, key_of: Sequence[KeyBy]) -> None:
        super().__init__(self._process_events, self._process_versions, holds_back=True)
        self._key_of_event: KeyBy = FirstKeys(self, key_of[LEFT], "_key_of_event")
        self._key_of_version: KeyBy = FirstKeys(self, key_of[RIGHT], "_key_of_version")
        self._versions = self.tables.declare(Table(_VERSIONS))

    def _process_events(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        key_by, peek = self._key_of_event, self._versions.peek
        results: list[Any] = []
        value = None
        try:
            for value in values:
                version = peek(None, key_by(value))
                results.append((value, None if version is MISSING else version))
        except BaseException as error:
            self.out.process_batch(results, None if timestamps is None else timestamps[: len(results)])
            self.fail_on(value, error)
        self.out.process_batch(results, timestamps)

    def _process_versions(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        key_by, put = self._key_of_version, self._versions.put
        value = None
        try:
            for value in values:
                put(None, key_by(value), value)
        except BaseException as error:
            self.fail_on(value, error)
