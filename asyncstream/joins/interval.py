"""
The interval join: pairs of elements of one key whose times are within bounds of each other.

Theory, after Flink's IntervalJoinOperator. Left l and right r are a pair if

    l.time + lower <= r.time <= l.time + upper

An element that is not late is buffered, and joined at once with what is buffered of the other side: so a pair
comes when its second element does, and results are not in the order of time. A buffered element goes when the
watermark *reaches* the last time at which a partner may be accepted: left, its time + max(upper, 0); right,
its time - min(lower, 0). An element whose time is the watermark's is accepted all the same, so a pair exactly
on the bound is lost if the watermark came in between; that is as in Flink, and as recorded.

That is exact, and a timer for each element would cost as much as the join. An element at its last time can
only meet one that comes at the watermark's own time, and that one looks for times above its bound, not at it.
So elements may stay a while after their time. Each that comes takes the place of what may go from its buffer:
one in use holds little more than it must (of many elements up to twice as many, see `Fronts`), and most
searches end at its front. One timer for each buffer takes away what gathers where none come; these are due at
multiples of a `step_ms`, so that many share a bucket of the queue. Only where it shows is there a timer for
the first element of a buffer, and after that for the next: where elements without a partner are emitted, and
where an element goes at its own time, so that another of that time may find it or not.

With `how` other than "inner", an element that goes and has had no partner is emitted with None in the place
of one. Its own time may be far behind the watermark by then, and late for every step that follows. So such a
result carries the time at which it went, which is when it became certain.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias, cast

from asyncstream.elements import MAX_TIMESTAMP, Timestamps
from asyncstream.joins.timed import LEFT, RIGHT, Buffer, Fronts, TimedJoin
from asyncstream.operators.emitting import BURST
from asyncstream.operators.results import FirstKeys
from asyncstream.operators.spec import KeyBy, Spec
from asyncstream.state import MISSING, Cell, Table
from asyncstream.state.schema import Schema
from asyncstream.timers import reached

__all__ = ("LATE_LEFT", "LATE_RIGHT", "How", "IntervalJoinOperator", "IntervalJoinSpec", "emits_alone")

How: TypeAlias = Literal["inner", "left", "right", "full"]
"""Of which sides elements without a partner are emitted: of none, of the left, of the right, of both."""

LATE_LEFT: Final = "late_left"
LATE_RIGHT: Final = "late_right"
"""Tags of the side outputs for elements that came too late."""

_STEPS: Final = 16
"""How many steps of timers the time has for which elements are kept: one of them is what they stay longer."""

_LONGEST_STEP_MS: Final = 1_000
"""Of such a step: the more timers are due at once, the longer the event loop waits for them."""

_NOTHING: Final[Buffer] = [[], []]
"""The buffer of a key that has none; to be read only."""


def emits_alone(how: How, side: int) -> bool:
    """Whether elements of this side (0: left) are emitted that have no partner."""
    return how == "full" or how == ("right" if side else "left")


class _Side:
    """
    One of the two inputs.

    Attributes:
        number: `LEFT` or `RIGHT`.
        lower_ms, upper_ms: what a partner's time may be, less an own element's.
        keeps_ms: how long after its own time an element may get a partner.
        emits_alone: an element that had none is emitted.
        is_exact: each element goes when event time comes to that, not a while later.
        step_ms: if not, its timers are due at multiples of this, at least 1.
    """

    def __init__(self, number: int, key_by: KeyBy, bounds: tuple[int, int], how: How) -> None:
        self.number = number
        self.key_by: KeyBy = FirstKeys(self, key_by, "key_by")
        self.lower_ms, self.upper_ms = bounds
        self.keeps_ms = max(self.upper_ms, 0)
        self.emits_alone = emits_alone(how, number)
        self.is_exact = self.emits_alone or not self.keeps_ms
        self.step_ms = 1 if self.is_exact else max(1, min(self.keeps_ms // _STEPS, _LONGEST_STEP_MS))
        self.late = (LATE_LEFT, LATE_RIGHT)[number]
        self.table = Table(("left", "right")[number])


class IntervalJoinOperator(TimedJoin):
    """
    Joins elements of one key whose times are within bounds; see the module.

    Emits when the second element of a pair comes, a tuple (left, right) with the later of their timestamps;
    elements without a partner when they cannot get one any more. Completes when both inputs have ended.
    Elements that are late go to the side outputs "late_left" and "late_right", or are counted.
    Snapshot holds: the elements that may get another partner, and a timer for each buffer.
    """

    def __init__(self, key_of: Sequence[KeyBy], lower_ms: int, upper_ms: int, how: How = "inner") -> None:
        super().__init__(partial(self._process, LEFT), partial(self._process, RIGHT))
        self._left = _Side(LEFT, key_of[LEFT], (lower_ms, upper_ms), how)
        self._right = _Side(RIGHT, key_of[RIGHT], (-upper_ms, -lower_ms), how)
        self._marks = how != "inner"
        self._buffered = 0
        self.tables.declare_cell("buffered", Cell.of(self, "_buffered", "sum"))
        for side in (self._left, self._right):
            self.tables.declare(side.table)
        self._fronts = Fronts(self.tables, self._left.table), Fronts(self.tables, self._right.table)

    def metrics(self) -> dict[str, int]:
        return {**super().metrics(), "buffered": self._buffered}

    def _process(self, number: int, values: Sequence[Any], timestamps: Timestamps) -> None:
        side, other = (self._left, self._right) if number == LEFT else (self._right, self._left)
        values, stamps, refused = self._in_time(side.late, values, timestamps)
        try:
            self._join(side, other, values, stamps)
        finally:
            self._flush()
        if refused is not None:
            raise refused

    def _join(self, side: _Side, other: _Side, values: Sequence[Any], timestamps: Sequence[int]) -> None:
        """Buffer the elements of one side, each joined with what is buffered of the other."""
        mine, theirs = side.table.rows(), other.table.rows()
        key_by, marks, is_left, is_exact = side.key_by, self._marks, side is self._left, side.is_exact
        watermark, lower_ms, upper_ms = self._timers.watermark, side.lower_ms, side.upper_ms
        at_watermark_ms, ends_ms = lower_ms + (other.keeps_ms > 0), min(upper_ms, 0)
        gone_ms = -math.inf if is_exact else reached(watermark) - side.keeps_ms
        results, stamps, gone = self._results, self._stamps, 0
        my_fronts, their_fronts, few = self._fronts[side.number], self._fronts[other.number], Fronts.few
        value = None
        try:
            for value, timestamp in zip(values, timestamps, strict=True):
                key = key_by(value)
                buffer = mine.get(key)
                if buffer is None:
                    buffer = self._buffer(side, key, timestamp)
                times = buffer[0]
                if times and times[0] <= gone_ms:
                    place = bisect_right(times, gone_ms)
                    gone += place
                    if len(times) > few:
                        gone -= my_fronts.get(key, 0)
                        my_fronts.go(key, buffer, place)
                    else:
                        del times[:place], buffer[1][:place]
                        if marks:
                            del buffer[2][:place]
                place = len(times)
                if not place or timestamp >= times[-1]:
                    times.append(timestamp)
                    buffer[1].append(value)
                else:
                    place = bisect_right(times, timestamp)
                    times.insert(place, timestamp)
                    buffer[1].insert(place, value)
                    if is_exact and place == my_fronts.get(key, 0):
                        self._wait(side, key, timestamp)
                found = theirs.get(key)
                if found is None:
                    found = self._found(other, key)
                times = found[0]
                count = 0
                if times:
                    # the ends first: most often all that is buffered is within bounds, and not later
                    partners, last_ms = found[1], times[-1]
                    least_ms = timestamp + (lower_ms if timestamp > watermark else at_watermark_ms)
                    start = their_fronts.get(key, 0) if their_fronts else 0
                    if times[start] < least_ms:
                        start = bisect_left(times, least_ms, start)
                    if last_ms <= timestamp + ends_ms:
                        if start:
                            partners = partners[start:]
                        count = len(partners)
                        stamps += [timestamp] * count
                    else:
                        end = bisect_right(times, timestamp + upper_ms, start)
                        partners = partners[start:end]
                        count = len(partners)
                        later = bisect_right(times, timestamp, start, max(start, end))
                        stamps += [timestamp] * (later - start)
                        stamps += times[later:end]
                if count:
                    # a loop: for a few partners a comprehension or zip takes twice as long
                    if is_left:
                        for partner in partners:
                            results.append((value, partner))
                    else:
                        for partner in partners:
                            results.append((partner, value))
                    if len(results) >= BURST:
                        self._flush()
                        results, stamps = self._results, self._stamps
                if marks:
                    buffer[2].insert(place, count > 0)
                    if count:
                        found[2][start : start + count] = [True] * count
        except BaseException as error:
            self.fail_on(value, error)
        self._buffered += len(values) - gone

    def _buffer(self, side: _Side, key: Any, timestamp: int) -> Buffer:
        """The buffer of a key that is not young; a new one, with a timer for its first element."""
        buffer: Any = side.table.take(None, key)
        if buffer is MISSING:
            buffer = [[], [], []] if self._marks else [[], []]
            side.table.put(None, key, buffer)
            self._wait(side, key, timestamp)
        return cast(Buffer, buffer)

    def _found(self, side: _Side, key: Any) -> Buffer:
        """What the other side has of a key of which nothing is young, to be read; or to be marked."""
        found: Any = (side.table.take if self._marks else side.table.peek)(None, key)
        return _NOTHING if found is MISSING else cast(Buffer, found)

    def _wait(self, side: _Side, key: Any, timestamp: int) -> None:
        """Have a timer for when an element of this time goes, or a while later."""
        due_ms = timestamp + side.keeps_ms
        due_ms += -due_ms % side.step_ms
        self._timers.event.register(min(due_ms, MAX_TIMESTAMP), key, side.number)

    def snapshot(self) -> Any:
        for side in (self._left, self._right):
            if not side.is_exact:
                for key in list(side.table.whole()):
                    self._let_go(side, key, self._timers.watermark)
        return super().snapshot()

    def _fire(self, timestamp: int, key: Any, namespace: Any) -> None:
        side = self._right if namespace else self._left
        # what is emitted comes in the order of time, so no more of this key yet
        times = self._let_go(side, key, timestamp if side.is_exact else self._timers.watermark)
        if times:
            # a buffer that has been in use is looked at half as often
            first = self._fronts[side.number].get(key, 0)
            self._wait(side, key, times[first] if side.is_exact else times[-1] + side.keeps_ms)

    def _let_go(self, side: _Side, key: Any, watermark: int) -> list[int]:
        """
        Forget what cannot get a partner any more at this watermark; the times of what stays of the key, if
        anything does, behind its front.
        """
        buffer = side.table.get(None, key)
        if buffer is MISSING:
            return []
        times: list[int] = buffer[0]
        fronts = self._fronts[side.number]
        first = fronts.get(key, 0)
        gone = bisect_right(times, reached(watermark) - side.keeps_ms, first)
        if side.emits_alone:
            for place in range(first, gone):
                if not buffer[2][place]:
                    value = buffer[1][place]
                    # not by its own time: a run before may have kept it for longer
                    self._emit((value, None) if side is self._left else (None, value), watermark)
        self._buffered -= gone - first
        if gone == len(times):
            fronts.pop(key, None)
            side.table.remove(None, key)
            return []
        if gone:
            fronts.go(key, buffer, gone)
        return times


@dataclass(frozen=True)
class IntervalJoinSpec(Spec):
    """
    Joins two streams by key and by time.

    Attributes:
        key_of: for the left and the right input, what gives the key of an element.
        lower_ms, upper_ms: what a right element's time may be, both inclusive, less the left one's; if lower
            is above upper, there are no pairs.
        how: what becomes of elements without a partner.
    """

    key_of: tuple[KeyBy, KeyBy]
    lower_ms: int
    upper_ms: int
    how: How

    operator = IntervalJoinOperator
    counters = ("late_dropped",)

    def build(self) -> IntervalJoinOperator:
        return IntervalJoinOperator(self.key_of, self.lower_ms, self.upper_ms, self.how)

    @property
    def keys(self) -> tuple[KeyBy | None, ...]:
        return self.key_of

    @property
    def schema(self) -> Schema:
        bounds = {"lower_ms": self.lower_ms, "upper_ms": self.upper_ms, "how": self.how}
        return Schema({"join": "interval", "marks_partners": self.how != "inner"}, {}, bounds)
