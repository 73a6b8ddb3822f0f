"""
Keeps event time going where there are no elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamps
from asyncstream.eventtime.strategy import kept_ms
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.spec import ClockUse, Spec
from asyncstream.operators.whereabouts import TimeReached
from asyncstream.state.schema import Schema

__all__ = ("AdvanceWhenQuiet", "AdvanceWhenQuietSpec")


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
        self._heard_ms = context.open_ms()
        context.wake_at(context.clock.now_ms() + self._quiet_ms)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self._heard_ms, self._at_heard = self.context.open_ms(), self._watermark
        self.out.process_batch(values, timestamps)

    def advance_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_TIMESTAMP:  # not in the snapshot: after a restore, the source says it again
            self._ended = True
        elif timestamp > self._watermark:
            self._watermark = self._at_heard = timestamp
        else:
            return
        super().advance_watermark(timestamp)

    def restore_watermark(self, timestamp: int) -> None:
        if timestamp > self._watermark:  # of a step that has been added since
            self._watermark = self._at_heard = timestamp
            super().restore_watermark(timestamp)

    def advance_clock(self, now_ms: int) -> None:
        if self._ended:
            return
        held_ms = self.context.held_ms()
        if self.context.is_held():
            self._heard_ms = now_ms - held_ms  # it is we who keep the stream quiet
        silent_ms = now_ms - held_ms - self._heard_ms
        if silent_ms < self._quiet_ms:
            self.context.wake_at(self._heard_ms + held_ms + self._quiet_ms)
            return
        self.context.wake_at(now_ms + self._quiet_ms)
        if self._at_heard > MIN_TIMESTAMP and self._at_heard + silent_ms > self._watermark:
            self._watermark = self._at_heard + silent_ms
            super().advance_watermark(self._watermark)

    def time_reached(self) -> TimeReached:
        return TimeReached(self._watermark, None)

    def snapshot(self) -> Any:
        return self._watermark

    def restore(self, state: Any) -> None:
        self._watermark = self._at_heard = kept_ms(state)


@dataclass(frozen=True)
class AdvanceWhenQuietSpec(Spec):
    """Keeps event time going where there are no elements, after a silence."""

    after_ms: int

    operator = AdvanceWhenQuiet
    keeps_only_watermarks = True
    clock = ClockUse.MAY_EMIT
    prolongs_event_time = True

    def build(self) -> AdvanceWhenQuiet:
        return AdvanceWhenQuiet(self.after_ms)

    @property
    def schema(self) -> Schema:
        return Schema(settings={"after_ms": self.after_ms})

    def keeps_origins(self, tag: str | None) -> bool:
        return True
