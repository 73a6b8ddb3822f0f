"""
One element for each key: the first or the last, by arrival or by event time.

What is known of a key decides which operator does it:

    FirstSeen      the first to come; later ones are dropped, without another look
    EarliestOf     the earliest in event time; waits for the watermark, for an earlier one may still come
    Replaced       the one that is kept so far, emitted at once, and replaced by a better one

After Flink's deduplication in SQL. Elements that live for a time are forgotten by the clock, not by event
time, as keyed state is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import merge
from itertools import islice
from operator import ge, itemgetter, lt
from typing import Any, Literal, TypeAlias

from asyncstream.elements import Timestamps
from asyncstream.eventtime import check_timestamp
from asyncstream.keyed.base import LATE, KeyedStep, TimedStep
from asyncstream.keyed.changes import INSERT, UPDATE_AFTER, UPDATE_BEFORE, ChangeLog, is_same, new_change
from asyncstream.operators.base import Operator, OperatorContext, pairs
from asyncstream.operators.results import FirstKeys
from asyncstream.operators.spec import KeyBy, KeyedSpec
from asyncstream.state import MISSING, SLICE, Table, TimeToLive, ValueDescriptor
from asyncstream.state.keys import SOUND, check_key
from asyncstream.state.schema import Schema, described

__all__ = ("By", "DeduplicateSpec", "EarliestOf", "FirstSeen", "Keep", "Replaced")

Keep: TypeAlias = Literal["first", "last"]
"""Which of the elements of a key is kept."""

By: TypeAlias = Literal["arrival", "event_time"]
"""What comes first: what arrived first, or what happened first."""

_check = partial(check_timestamp, "deduplication by event time")


class FirstSeen(Operator):
    """
    Passes on the first element of each key; `within` counts from that, and later ones do not renew it.

    Keys are remembered with the time at which they were seen, which is never changed. So they grow old in the
    order in which they came, and a queue in this order says which are to be forgotten: as many with each
    batch as it may bring, twice over, so that there is no pause after a silence. One that is still there
    when its time is over does not count.
    Snapshot holds: when each key was seen.
    """

    def __init__(self, key_by: KeyBy, within: TimeToLive | None, log: ChangeLog | None) -> None:
        super().__init__()
        self._key_by: Callable[[Any], Any] = FirstKeys(self, key_by)
        self._within_ms = None if within is None else within.duration_ms
        self._log = log
        self._seen = self.tables.declare(Table("seen"))
        self._ages: deque[tuple[int, Any]] = deque()
        self.tables.on_restored(self._rebuilding)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        key_by, seen, within_ms = self._key_by, self._seen, self._within_ms
        now_ms = self.context.clock.now_ms()
        horizon_ms = -math.inf if within_ms is None else now_ms - within_ms
        self._forget(horizon_ms, 2 * len(values))
        known, has_older = seen.rows(), seen.has_older
        passed: list[Any] = []
        passed_at: list[int | None] = []
        new: list[tuple[int, Any]] = []
        value = None
        try:
            for value, timestamp in pairs(values, timestamps):
                key = key_by(value)
                seen_ms = known.get(key)
                if seen_ms is None and has_older and (seen_ms := seen.peek(None, key)) is MISSING:
                    seen_ms = None
                if seen_ms is None or seen_ms <= horizon_ms:
                    if type(key) not in SOUND:
                        check_key(key)
                    known[key] = now_ms
                    new.append((now_ms, key))
                    passed.append(value)
                    passed_at.append(timestamp)
        except BaseException as error:
            self._pass_on(passed, passed_at)
            self.fail_on(value, error)
        if within_ms is not None:
            self._ages += new
        self._pass_on(passed, passed_at)

    def _rebuilding(self) -> Iterator[None]:
        self._ages.clear()
        if self._within_ms is None:
            return
        rest, age = self._seen.unordered(), itemgetter(0)
        runs: list[list[tuple[int, Any]]] = []
        while some := sorted(((seen_ms, key) for _, key, seen_ms in islice(rest, SLICE)), key=age):
            runs.append(some)
            yield
        merged = merge(*runs, key=age)
        while some := list(islice(merged, SLICE)):
            self._ages += some
            yield

    def metrics(self) -> dict[str, int]:
        return {"state_entries": len(self._seen)}

    def _forget(self, horizon_ms: float, most: int) -> None:
        """Let go of some keys whose time is over."""
        ages, seen = self._ages, self._seen
        while ages and ages[0][0] <= horizon_ms and most:
            most -= 1
            seen_ms, key = ages.popleft()
            if seen.peek(None, key) == seen_ms:  # it has not been seen again since
                seen.remove(None, key)

    def _pass_on(self, values: list[Any], timestamps: list[int | None]) -> None:
        if values:
            if self._log is not None:
                kind = INSERT if self._log.insert else UPDATE_AFTER
                values = [new_change((kind, value, None)) for value in values]
            self.out.process_batch(values, timestamps)


class EarliestOf(TimedStep):
    """
    Emits the earliest element of each key, of equal ones the first to come, when the watermark reaches it.

    Elements behind the watermark are too late. `within` counts from the emission; an element that waits does
    not expire.
    Snapshot holds: elements that wait, with their timers; the keys that are done.
    """

    def __init__(self, key_by: KeyBy, within: TimeToLive | None) -> None:
        super().__init__(key_by)
        self._within = within

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._waiting = self._state.state(ValueDescriptor[Any]("waiting"))
        self._done = self._state.state(ValueDescriptor[bool]("done", ttl=self._within))

    def _take(self, value: Any, timestamp: int | None) -> None:
        at_ms = _check(timestamp)
        if self._done.get():
            return
        if at_ms < self._timers.watermark:
            self._leave_out(LATE, value, timestamp)
            return
        waiting = self._waiting.get()
        if waiting is not None:
            if waiting[0] <= at_ms:
                return
            self._timers.event.delete(waiting[0], self._state.key)
        self._waiting.set((at_ms, value))
        self._timers.event.register(at_ms, self._state.key)

    def _on_timer(self, timestamp: int, key: Any) -> None:
        waiting = self._waiting.get()
        if waiting is not None:
            self._waiting.clear()
            self._done.set(True)
            self._out.emit(waiting[1])


class Replaced(KeyedStep):
    """
    Emits an element at once if it is, so far, the one to keep of its key; it replaces the one before.

    By event time the first is replaced by an earlier one, the last by one that is not earlier. By arrival the
    last is replaced by each; the same one again is no news, except in a change log of which elements expire:
    its readers learn that the row lives on.
    Snapshot holds: the element that is kept, by key.
    """

    def __init__(
        self, key_by: KeyBy, keep: Keep, by: By, within: TimeToLive | None, log: ChangeLog | None
    ) -> None:
        super().__init__(key_by)
        self._within = within
        self._log = log
        self._wins: Callable[[Any, Any], bool] | None = None
        if by == "event_time":
            self._wins = lt if keep == "first" else ge
        self._remembers = log is None or log.insert or log.update_before or self._wins is not None
        self._repeats = log is not None and within is not None

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._kept = self._state.state(ValueDescriptor[Any]("kept", ttl=self._within))

    def _take(self, value: Any, timestamp: int | None) -> None:
        old = None
        if self._remembers:
            new_at = timestamp if self._wins is None else _check(timestamp)
            kept = self._kept.get()
            if kept is not None:
                if self._wins is not None and not self._wins(new_at, kept[0]):
                    return
                old = kept
            self._kept.set((new_at, value))
            if old is not None and not self._repeats and self._is_same(old, new_at, value):
                return
        self._emit(old, value)

    def _is_same(self, old: Any, at: int | None, value: Any) -> bool:
        if self._wins is None:
            return is_same(old[1], value)
        return self._log is None and old[0] == at and is_same(old[1], value)

    def _emit(self, old: Any, value: Any) -> None:
        emit, log = self._out.emit, self._log
        if log is None:
            emit(value)
        elif old is None and log.insert:
            emit(new_change((INSERT, value, None)))
        else:
            if old is not None and log.update_before:
                emit(new_change((UPDATE_BEFORE, old[1], None)))
            emit(new_change((UPDATE_AFTER, value, None)))


@dataclass(frozen=True)
class DeduplicateSpec(KeyedSpec):
    """
    Keeps one element of each key.

    Attributes:
        key_by: gives the key of an element.
        keep: which.
        by: what its place is.
        within: how long a key is remembered; None: for ever.
        log: emit a change log; None: elements.
    """

    keep: Keep = "first"
    by: By = "arrival"
    within: TimeToLive | None = None
    log: ChangeLog | None = None

    def build(self) -> Operator:
        if self.operator is FirstSeen:
            return FirstSeen(self.key_by, self.within, self.log)
        if self.operator is EarliestOf:
            return EarliestOf(self.key_by, self.within)
        return Replaced(self.key_by, self.keep, self.by, self.within, self.log)

    @property
    def operator(self) -> type[Operator]:
        if self.keep == "first" and self.by == "arrival":
            return FirstSeen
        if self.keep == "first" and self.log is None:
            return EarliestOf
        return Replaced

    @property
    def schema(self) -> Schema:
        form = {"keeps": self.operator.__name__, "keep": self.keep, "by": self.by}
        return Schema(form=form, settings={"within": described(self.within)})

    @property
    def counters(self) -> tuple[str, ...]:
        return ("late_dropped",) if self.operator is EarliestOf else ()
