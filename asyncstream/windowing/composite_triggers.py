"""
Triggers made of other triggers: they change what one says, add a time-out, or ask one after the other.
"""

from __future__ import annotations

from typing import Any

from asyncstream.state import ValueDescriptor
from asyncstream.validation import Duration, duration_ms, flag, instance
from asyncstream.windowing.trigger_context import TriggerContext
from asyncstream.windowing.triggers import (
    CONTINUE,
    FIRE,
    FIRE_AND_PURGE,
    Trigger,
    TriggerResult,
    must_be_asked,
)
from asyncstream.windowing.windows import Window

__all__ = ("AfterWatermark", "ProcessingTimeoutTrigger", "PurgingTrigger")


class PurgingTrigger(Trigger):
    """
    Fires when `of` does, and forgets the contents each time: results do not accumulate.

    Args:
        of: the trigger that decides.
    """

    def __init__(self, of: Trigger) -> None:
        self.of: Trigger = instance("of", of, Trigger)
        self.can_merge = of.can_merge

    def needs_each_element(self, event_time: bool) -> bool:
        return must_be_asked(self.of, event_time)

    def counter(self) -> tuple[int, str] | None:
        return self.of.counter()

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        return _purging(self.of.on_element(value, timestamp, window, ctx))

    def on_event_time(self, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.of.on_event_time(timestamp, window, ctx))

    def on_processing_time(self, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.of.on_processing_time(timestamp, window, ctx))

    def on_merge(self, window: Window, ctx: TriggerContext) -> None:
        self.of.on_merge(window, ctx)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        self.of.clear(window, ctx)


class ProcessingTimeoutTrigger(Trigger):
    """
    Fires when `of` does, or once `interval` of processing time has passed without that.

    In windows of processing time a time-out takes the timer at their end away, as in Flink: with a
    `ProcessingTimeTrigger` inside, a window whose last firing it was stays in state until an element comes to
    it, unless `clear_on_timeout` is False.

    Args:
        interval: a `timedelta` or seconds; at least a millisecond.

    Attributes:
        of: the trigger that has its chance first.
        interval_ms: from the first element since the last firing (from the latest one with
            `reset_on_record`) to the time-out.
        reset_on_record: whether each element starts the interval anew.
        clear_on_timeout: whether `of` forgets what it knows when a timer fires.
    """

    def __init__(
        self, of: Trigger, interval: Duration, *, reset_on_record: bool = False, clear_on_timeout: bool = True
    ) -> None:
        self.of: Trigger = instance("of", of, Trigger)
        self.interval_ms = duration_ms("interval", interval)
        self.reset_on_record = flag("reset_on_record", reset_on_record)
        self.clear_on_timeout = flag("clear_on_timeout", clear_on_timeout)
        self._timeout = ValueDescriptor[int]("timeout")

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        result = self.of.on_element(value, timestamp, window, ctx.nested("of"))
        if result.fires:
            self.clear(window, ctx)
            return result
        timeout = ctx.state(self._timeout)
        set_for = timeout.get()
        if set_for is not None and self.reset_on_record:
            ctx.delete_processing_timer(set_for)
            set_for = None
        if set_for is None:
            set_for = ctx.now_ms + self.interval_ms
            timeout.set(set_for)
            ctx.register_processing_timer(set_for)
        return result

    def on_event_time(self, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return self._timed(self.of.on_event_time(timestamp, window, ctx.nested("of")), window, ctx)

    def on_processing_time(self, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return self._timed(self.of.on_processing_time(timestamp, window, ctx.nested("of")), window, ctx)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        timeout = ctx.state(self._timeout)
        set_for = timeout.get()
        if set_for is not None:
            ctx.delete_processing_timer(set_for)
            timeout.clear()
        self.of.clear(window, ctx.nested("of"))

    def _timed(self, result: TriggerResult, window: Window, ctx: TriggerContext) -> TriggerResult:
        if self.clear_on_timeout:
            self.clear(window, ctx)
        return FIRE_AND_PURGE if result.purges else FIRE


class AfterWatermark(Trigger):
    """
    Fires on time, when the watermark reaches the window's end, and besides as `early` and `late` say.

    After Beam's trigger of that name. Without `late`, every late element fires at once. It is for windows of
    event time: in those of processing time an `early` part that waits for the clock takes the timer at their
    end away when the watermark reaches it before, and they stay in state until an element comes to them.

    Attributes:
        early: asked about elements and timers before the window's end.
        late: asked about those after it, within the allowed lateness.
    """

    def __init__(self, *, early: Trigger | None = None, late: Trigger | None = None) -> None:
        self.early: Trigger | None = None if early is None else instance("early", early, Trigger)
        self.late: Trigger | None = None if late is None else instance("late", late, Trigger)
        self.can_merge = all(part.can_merge for part in (early, late) if part is not None)

    def needs_each_element(self, event_time: bool) -> bool:
        return not event_time or (self.early is not None and must_be_asked(self.early, event_time))

    def counter(self) -> tuple[int, str] | None:
        counted = None if self.early is None else self.early.counter()
        return None if counted is None else (counted[0], f"early/{counted[1]}")

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        if window.max_timestamp <= ctx.watermark:
            if self.late is None:
                return FIRE
            return self.late.on_element(value, timestamp, window, _late(ctx))
        ctx.register_event_timer(window.max_timestamp)
        if self.early is None:
            return CONTINUE
        return self.early.on_element(value, timestamp, window, _early(ctx))

    def on_event_time(self, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        if timestamp == window.max_timestamp:
            if self.early is not None:
                self.early.clear(window, _early(ctx))
            return FIRE
        part, inside = (self.early, _early) if timestamp < window.max_timestamp else (self.late, _late)
        return CONTINUE if part is None else part.on_event_time(timestamp, window, inside(ctx))

    def on_processing_time(self, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        part, inside = (self.late, _late) if window.max_timestamp <= ctx.watermark else (self.early, _early)
        return CONTINUE if part is None else part.on_processing_time(timestamp, window, inside(ctx))

    def on_merge(self, window: Window, ctx: TriggerContext) -> None:
        for part, inside in ((self.early, _early), (self.late, _late)):
            if part is not None:
                part.on_merge(window, inside(ctx))

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.delete_event_timer(window.max_timestamp)
        for part, inside in ((self.early, _early), (self.late, _late)):
            if part is not None:
                part.clear(window, inside(ctx))


def _early(ctx: TriggerContext) -> TriggerContext:
    return ctx.nested("early")


def _late(ctx: TriggerContext) -> TriggerContext:
    return ctx.nested("late", is_late=True)


def _purging(result: TriggerResult) -> TriggerResult:
    return FIRE_AND_PURGE if result.fires else result
