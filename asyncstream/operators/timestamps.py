"""
Gives elements their event time, and the stream its watermarks and idleness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Final

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamps
from asyncstream.eventtime import (
    AscendingTimestamps,
    BoundedOutOfOrderness,
    NoWatermarks,
    WatermarkStrategy,
    warn_of_unit,
)
from asyncstream.eventtime.strategy import kept_ms
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.failures import FAILED, Failures, OnError, failure_counters, routed_to
from asyncstream.operators.fields import fields_read
from asyncstream.operators.origins import carried
from asyncstream.operators.results import is_deferred, not_a_value
from asyncstream.operators.spec import ClockUse, EventTime, Spec
from asyncstream.operators.split_times import SplitTimes
from asyncstream.operators.whereabouts import TimeReached
from asyncstream.state.schema import Schema, described
from asyncstream.validation import instant_ms

__all__ = ("AssignEventTime", "EventTimeSpec")

_BY_TIME: Final = (AscendingTimestamps, BoundedOutOfOrderness, NoWatermarks)
"""Strategies that look at timestamps, and not at elements; a subclass may do otherwise."""


class AssignEventTime(Operator):
    """
    Emits when: an element arrives, with the timestamp found; a watermark when the strategy gives one.

    Watermarks from upstream end here, except the last one, which says that the input has ended. Of a source
    with splits (`follow_splits`) each has its own watermark, and the smallest is the stream's.
    Snapshot holds: how far the generator and the watermark have come, and whether the stream is idle; and the
        same of each split.

    Args:
        timestamp: an element's event time: milliseconds since the epoch or an aware `datetime`.
        strategy, idle_after_ms, max_drift_ms: as of `EventTime`.
        on_error: what becomes of an element whose event time cannot be told; it has none of its own then,
            and moves no watermark.
    """

    follows_splits: ClassVar[bool] = True

    def __init__(
        self,
        timestamp: Callable[[Any], int | datetime],
        strategy: WatermarkStrategy,
        idle_after_ms: int | None = None,
        on_error: OnError = "fail",
        max_drift_ms: int | None = None,
    ) -> None:
        super().__init__()
        self._failures = Failures(self, on_error)
        self._timestamp = timestamp
        self._strategy = strategy
        self._generator = strategy.generator()
        self._watermark = MIN_TIMESTAMP
        self._told_ms: int | None = None
        self._idle_after_ms = idle_after_ms
        self._max_drift_ms = max_drift_ms
        self._splits: SplitTimes | None = None
        self._hold: Callable[[frozenset[str]], None] | None = None
        self._kept_splits: dict[str, Any] = {}
        self._idle = False
        self._heard_ms = 0
        self._knows_unit = False

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        if self._idle_after_ms is not None:
            self._heard_ms = context.open_ms()
            context.wake_at(context.clock.now_ms() + self._idle_after_ms)

    # ------------------------------------------------------------------ splits

    def follow_splits(self, hold: Callable[[frozenset[str]], None]) -> None:
        """
        Before the first element: they are of splits, each of which `enter_split` tells of.

        Args:
            hold: told of all splits that are to wait for the others, each time that changes.
        """
        self._splits = SplitTimes(self._strategy, self._idle_after_ms, self._max_drift_ms)
        self._splits.restore(self._kept_splits)
        self._splits.assign((), self.context.open_ms())  # the source tells of the first that it has
        self._hold = hold

    def assign_splits(self, names: Sequence[str]) -> None:
        """These are the splits from now on."""
        if self._splits is None:
            return
        self._splits.assign(names, self.context.open_ms())
        if self._idle_after_ms is not None:
            self.context.wake_at(self.context.clock.now_ms() + self._idle_after_ms)
        self._follow_slowest()

    def enter_split(self, name: str) -> None:
        """The elements that come next are of this split."""
        if self._splits is not None:
            self._generator = self._splits.enter(name, self.context.open_ms())

    def _follow_slowest(self) -> None:
        """Splits have moved, turned idle, or come or gone: say what that makes of the stream."""
        if self._splits is None:
            return
        watermark = self._splits.watermark()
        if watermark > self._watermark:
            self._watermark = watermark
            super().advance_watermark(watermark)
        if self._splits.is_idle is not self._idle:
            self._idle = not self._idle
            super().set_idle(self._idle)
        if self._splits.align(self.context.open_ms()) and self._hold is not None:
            self._hold(self._splits.ahead)

    # ------------------------------------------------------------------ elements

    def _first_timestamp(self, value: Any) -> int | datetime:
        """The timestamp of `value`; the first one is looked at, for its unit."""
        stamp = self._timestamp(value)
        if not self._knows_unit:
            self._knows_unit = True
            if type(stamp) is int:
                warn_of_unit(self.context.name, stamp)
        return stamp

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        if self._idle_after_ms is not None or self._idle:  # as it was before a restart, with another setting
            self._heard()
        generator, splits = self._generator, self._splits
        extract = self._timestamp if self._knows_unit else self._first_timestamp
        stamps: list[int | None] = []
        start = 0  # where the elements begin that have a stamp and have not been passed on
        try:
            for value in values:
                try:
                    stamp = extract(value)
                    if type(stamp) is not int:
                        stamp = _instant(stamp)
                    watermark = None
                    if stamp >= generator.threshold:
                        if stamp > MAX_TIMESTAMP:
                            _instant(stamp)
                        watermark = generator.on_element(value, stamp)
                    elif stamp < MIN_TIMESTAMP:
                        _instant(stamp)
                except BaseException as error:
                    end = start + len(stamps)
                    passed, stamps = stamps, []
                    if passed:
                        self.out.process_batch(values[start:end], carried(passed, timestamps, start))
                    start = end + 1
                    self._failures.take(value, timestamps[end] if timestamps else None, error)
                    continue
                stamps.append(stamp)
                if watermark is not None and splits is not None:
                    watermark = splits.advance(watermark)
                if watermark is not None and watermark > self._watermark:
                    end = start + len(stamps)
                    passed, stamps = stamps, []
                    self.out.process_batch(values[start:end], carried(passed, timestamps, start))
                    start = end
                    self._watermark = watermark
                    super().advance_watermark(watermark)
        finally:
            # also after a failure: the elements before the failed one have been accepted
            if stamps:
                rest = values[start : start + len(stamps)]
                self.out.process_batch(rest, carried(stamps, timestamps, start))
        if self._max_drift_ms is not None:
            self._follow_slowest()

    def resume(self) -> None:
        told_ms, self._told_ms = self._told_ms, None
        if told_ms is None:
            super().resume()
            return
        if told_ms > MIN_TIMESTAMP:
            Operator.restore_watermark(self, told_ms)
        super().advance_watermark(self._watermark)

    def advance_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_TIMESTAMP:  # not remembered: after a restore, the source says it again
            super().advance_watermark(timestamp)

    def restore_watermark(self, timestamp: int) -> None:
        """Watermarks from upstream end here."""

    def _heard(self) -> None:
        self._heard_ms = self.context.open_ms()
        if self._idle:
            self._idle = False
            super().set_idle(False)
            if self._idle_after_ms is not None:
                self.context.wake_at(self.context.clock.now_ms() + self._idle_after_ms)

    def advance_clock(self, now_ms: int) -> None:
        held_ms = self.context.held_ms()
        if self._splits is not None:
            due_ms = self._splits.look(now_ms - held_ms, self.context.is_held())
            self._follow_slowest()
            if due_ms is not None:
                self.context.wake_at(due_ms + held_ms)
            return
        if self._idle_after_ms is None or self._idle:
            return
        if self.context.is_held():
            # it is we who keep the stream quiet: were it idle, what it holds back would come late
            self._heard_ms = now_ms - held_ms
        due_ms = self._heard_ms + held_ms + self._idle_after_ms
        if now_ms < due_ms:
            # the alarm was set for an older element: one alarm serves all of them
            self.context.wake_at(due_ms)
        else:
            self._idle = True
            super().set_idle(True)

    def time_reached(self) -> TimeReached:
        return TimeReached(self._watermark, self._idle)

    def metrics(self) -> dict[str, int]:
        return self._failures.metrics()

    def snapshot(self) -> Any:
        of_splits = self._kept_splits if self._splits is None else self._splits.snapshot()
        splits = [of_splits] if of_splits else []
        return [self._generator.snapshot(), self._watermark, self._idle, *splits]

    def restore(self, state: Any) -> None:
        # idle too: those downstream remember that this stream is, and must hear when it is back
        generator, watermark, self._idle, *more = state
        self._watermark = kept_ms(watermark)
        self._kept_splits = more[0] if more else {}
        self._told_ms = kept_ms(more[1]) if len(more) > 1 else None
        self._knows_unit = True  # the first one was another run's
        self._generator.restore(generator)


def _instant(stamp: object) -> int:
    try:
        return instant_ms(stamp)
    except TypeError:
        if is_deferred(stamp):
            raise not_a_value([stamp], "find the timestamp in an async_map before event_time") from None
        raise


@dataclass(frozen=True)
class EventTimeSpec(Spec):
    """Gives elements their event time, and the stream its watermarks."""

    timestamp: Callable[[Any], int | datetime]
    gives: EventTime
    on_error: OnError

    operator = AssignEventTime
    frames = 3
    keeps_only_watermarks = True

    def build(self) -> AssignEventTime:
        gives = self.gives
        return AssignEventTime(
            self.timestamp, gives.strategy, gives.idle_after_ms, self.on_error, gives.max_drift_ms
        )

    @property
    def required(self) -> tuple[str, ...]:
        return routed_to(self.on_error)

    @property
    def schema(self) -> Schema:
        strategy, idle_after_ms = self.gives.strategy, self.gives.idle_after_ms
        settings = {"watermarks": described(strategy), "idle_after_ms": idle_after_ms}
        return Schema({"watermarks": type(strategy).__name__}, settings=settings)

    @property
    def counters(self) -> tuple[str, ...]:
        return failure_counters(self.on_error)

    @property
    def reads(self) -> frozenset[str] | None:
        return fields_read([self.timestamp]) if type(self.gives.strategy) in _BY_TIME else None

    def keeps_origins(self, tag: str | None) -> bool:
        return tag != FAILED

    @property
    def clock(self) -> ClockUse:
        return ClockUse.NONE if self.gives.idle_after_ms is None else ClockUse.MAY_EMIT

    @property
    def event_time(self) -> EventTime:
        return self.gives

    def with_watermarks(self, strategy: WatermarkStrategy) -> EventTimeSpec:
        return replace(self, gives=EventTime(strategy))
