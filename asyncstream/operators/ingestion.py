"""
Ingestion time: elements get the time of the clock at which they enter, and event time goes on with the clock.

Theory. No element can come with a time before now. So the watermark is one millisecond before the latest time
that was given or looked at, nothing is ever late, and event time does not wait for elements. A clock that is
set back does not set time back: it stands still until the clock has caught up, also after a restore.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamps
from asyncstream.eventtime import IngestionTime
from asyncstream.eventtime.strategy import kept_ms
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.origins import carried
from asyncstream.operators.spec import ClockUse, EventTime, Spec
from asyncstream.operators.whereabouts import TimeReached
from asyncstream.state.schema import Schema
from asyncstream.validation import duration_ms

__all__ = ("AssignIngestionTime", "IngestionTimeSpec")


class AssignIngestionTime(Operator):
    """
    Emits when: an element arrives, with the time of the clock; a watermark when that has gone on.

    Watermarks from upstream end here, except the last one, which says that the input has ended.
    Snapshot holds: the latest time.

    Args:
        every_ms: how far time moves between two watermarks, at least 1.
    """

    def __init__(self, every_ms: int) -> None:
        super().__init__()
        self._every_ms = every_ms
        self._latest_ms = self._watermark = MIN_TIMESTAMP
        self._ended = False

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        context.wake_at(context.clock.now_ms() + self._every_ms)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self._look(self.context.clock.now_ms())
        self.out.process_batch(values, carried([self._latest_ms] * len(values), timestamps, 0))

    def advance_clock(self, now_ms: int) -> None:
        if self._ended:
            return
        if not self.context.is_held():  # else windows would fire into a pipeline that has no room
            self._look(now_ms)
        self.context.wake_at(now_ms + self._every_ms)

    def _look(self, now_ms: int) -> None:
        if now_ms > self._latest_ms:
            self._latest_ms = now_ms
            if now_ms > self._watermark + self._every_ms:
                self._watermark = now_ms - 1
                super().advance_watermark(self._watermark)

    def advance_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_TIMESTAMP:  # not remembered: after a restore, the source says it again
            self._ended = True
            super().advance_watermark(timestamp)

    def restore_watermark(self, timestamp: int) -> None:
        """Watermarks from upstream end here."""

    def set_idle(self, idle: bool) -> None:
        """Who waits for this stream waits for the clock, not for its elements."""

    def time_reached(self) -> TimeReached:
        return TimeReached(self._watermark, idle=False)

    def snapshot(self) -> Any:
        return [self._latest_ms, self._watermark]

    def restore(self, state: Any) -> None:
        self._latest_ms, self._watermark = map(kept_ms, state)


@dataclass(frozen=True)
class IngestionTimeSpec(Spec):
    """Gives elements the time at which they enter."""

    strategy: IngestionTime

    operator = AssignIngestionTime
    keeps_only_watermarks = True
    clock = ClockUse.MAY_EMIT

    def build(self) -> AssignIngestionTime:
        return AssignIngestionTime(max(duration_ms("every", self.strategy.every, zero=True), 1))

    @property
    def schema(self) -> Schema:
        return Schema({"watermarks": "IngestionTime"})

    def keeps_origins(self, tag: str | None) -> bool:
        return True

    @property
    def event_time(self) -> EventTime:
        return EventTime(self.strategy)
