"""
Gives elements their event time, and the stream its watermarks and idleness; keeps event time going where
there are no elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from asyncstream.arguments import instant_ms
from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamps
from asyncstream.eventtime import WatermarkStrategy
from asyncstream.operators.base import Operator, OperatorContext

__all__ = ("AdvanceWhenQuiet", "AssignEventTime")


class AssignEventTime(Operator):
    """
    Emits when: an element arrives, with the timestamp found; a watermark when the strategy gives one.

    Watermarks from upstream end here, except the last one, which says that the input has ended.
    Snapshot holds: how far the generator and the watermark have come, and whether the stream is idle.

    Args:
        timestamp: an element's event time: milliseconds since the epoch or an aware `datetime`.
        strategy: how watermarks are found.
        idle_after_ms: without an element for this long in processing time, the stream is idle and
            holds back nobody; None: never.
    """

    def __init__(
        self,
        timestamp: Callable[[Any], int | datetime],
        strategy: WatermarkStrategy,
        idle_after_ms: int | None = None,
    ) -> None:
        super().__init__()
        self.timestamp = timestamp
        self.strategy = strategy
        self._generator = strategy.generator()
        self._watermark = MIN_TIMESTAMP
        self._idle_after_ms = idle_after_ms
        self._idle = False
        self._heard_ms = 0

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        if self._idle_after_ms is not None:
            self._heard_ms = context.clock.now_ms()
            context.wake_at(self._heard_ms + self._idle_after_ms)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        if self._idle_after_ms is not None:
            self._heard()
        generator, extract = self._generator, self.timestamp
        stamps: list[int] = []
        passed = 0
        try:
            for value in values:
                try:
                    stamp = extract(value)
                    if type(stamp) is not int:
                        stamp = instant_ms(stamp)
                    quiet = stamp < generator.threshold
                    watermark = None if quiet else generator.on_element(value, stamp)
                except BaseException as error:
                    raise self.blame(value, error) from error
                stamps.append(stamp)
                if watermark is not None and watermark > self._watermark:
                    start, passed = passed, len(stamps)
                    self.out.process_batch(values[start:passed], stamps[start:])
                    self._watermark = watermark
                    super().advance_watermark(watermark)
        finally:
            # also after a failure: the elements before the failed one have been accepted
            if passed < len(stamps):
                self.out.process_batch(values[passed : len(stamps)], stamps[passed:])

    def advance_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_TIMESTAMP:  # not remembered: after a restore, the source says it again
            super().advance_watermark(timestamp)

    def _heard(self) -> None:
        self._heard_ms = self.context.clock.now_ms()
        if self._idle:
            self._idle = False
            super().set_idle(False)
            self.context.wake_at(self._heard_ms + (self._idle_after_ms or 0))

    def advance_clock(self, now_ms: int) -> None:
        if self._idle_after_ms is None or self._idle:
            return
        if self.context.is_held():
            # it is we who keep the stream quiet: were it idle, what it holds back would come late
            self._heard_ms = now_ms
        due_ms = self._heard_ms + self._idle_after_ms
        if now_ms < due_ms:
            # the alarm was set for an older element: one alarm serves all of them
            self.context.wake_at(due_ms)
        else:
            self._idle = True
            super().set_idle(True)

    def snapshot(self) -> Any:
        return [self._generator.snapshot(), self._watermark, self._idle]

    def restore(self, state: Any) -> None:
        # idle too: those downstream remember that this stream is, and must hear when it is back
        generator, self._watermark, self._idle = state
        self._generator.restore(generator)

    def resume(self) -> None:
        if self._watermark > MIN_TIMESTAMP:
            super().advance_watermark(self._watermark)


class AdvanceWhenQuiet(Operator):
    """
    Emits when: an element or a watermark arrives; and while no element does, watermarks of its own.

    After `quiet_ms` of processing time without an element, event time goes on from the last watermark as the
    clock does, so that windows close and timers fire on a stream that has fallen silent. An element that
    comes after such a watermark is late for it; the same input may then give other results another time.
    Snapshot holds: the watermark that was passed on.

    Args:
        quiet_ms: how long a silence is waited out.
    """

    def __init__(self, quiet_ms: int) -> None:
        super().__init__()
        self._quiet_ms = quiet_ms
        self._watermark = MIN_TIMESTAMP
        self._at_heard = MIN_TIMESTAMP  # the watermark when the last element came
        self._heard_ms = 0
        self._ended = False

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._heard_ms = context.clock.now_ms()
        context.wake_at(self._heard_ms + self._quiet_ms)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self._heard_ms, self._at_heard = self.context.clock.now_ms(), self._watermark
        self.out.process_batch(values, timestamps)

    def advance_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_TIMESTAMP:  # not in the snapshot: after a restore, the source says it again
            self._ended = True
        elif timestamp > self._watermark:
            self._watermark = self._at_heard = timestamp
        else:
            return
        super().advance_watermark(timestamp)

    def advance_clock(self, now_ms: int) -> None:
        if self._ended:
            return
        if self.context.is_held():
            self._heard_ms = now_ms  # it is we who keep the stream quiet
        silent_ms = now_ms - self._heard_ms
        if silent_ms < self._quiet_ms:
            self.context.wake_at(self._heard_ms + self._quiet_ms)
            return
        self.context.wake_at(now_ms + self._quiet_ms)
        if self._at_heard > MIN_TIMESTAMP and self._at_heard + silent_ms > self._watermark:
            self._watermark = self._at_heard + silent_ms
            super().advance_watermark(self._watermark)

    def snapshot(self) -> Any:
        return self._watermark

    def restore(self, state: Any) -> None:
        self._watermark = self._at_heard = state

    def resume(self) -> None:
        if self._watermark > MIN_TIMESTAMP:
            super().advance_watermark(self._watermark)
