"""
Triggers: when a window's result is emitted, and whether its contents are kept.

A trigger is configuration; what it remembers of a window it keeps in state, through its context, which
is always that of one key and one window. Timers that it registers come back to it for the same window.
It is asked, too, about elements that are late but within the allowed lateness. Triggers that
are made of others are in `composite_triggers`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.shown import Shown
from asyncstream.state import ReducingDescriptor, ReducingState, ValueDescriptor
from asyncstream.validation import Duration, count, duration_ms, function, real_number
from asyncstream.windowing.trigger_context import TriggerContext
from asyncstream.windowing.windows import Window

__all__ = (
    "CONTINUE",
    "FIRE",
    "FIRE_AND_PURGE",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "ContinuousTrigger",
    "CountTrigger",
    "DeltaTrigger",
    "EventTimeTrigger",
    "NeverTrigger",
    "ProcessingTimeTrigger",
    "Ticks",
    "Trigger",
    "TriggerResult",
    "must_be_asked",
)


class TriggerResult(Enum):
    """
    What is to be done with a window.

    Attributes:
        fires: emit its result.
        purges: forget its contents; the window itself, and the trigger's state, live on.
    """

    CONTINUE = (False, False)
    FIRE = (True, False)
    PURGE = (False, True)
    FIRE_AND_PURGE = (True, True)

    def __init__(self, fires: bool, purges: bool) -> None:
        self.fires = fires
        self.purges = purges


# for what is asked about elements: to look a member up in its Enum takes longer than a call in 3.11
CONTINUE: Final = TriggerResult.CONTINUE
FIRE: Final = TriggerResult.FIRE
FIRE_AND_PURGE: Final = TriggerResult.FIRE_AND_PURGE


class Ticks(NamedTuple):
    """
    Firings of a window at the multiples of an interval, the last of which is the window's last millisecond.

    Attributes:
        interval_ms: from one to the next.
        event_time: whether they are of event time; else they are of processing time.
        state: under which name the next one of a key and window is kept.
        again: whether there are some again where a window that has fired at its end is to do so again, as it
            may be after a restore.
    """

    interval_ms: int
    event_time: bool
    state: str
    again: bool = True

    def first(self, time_ms: int, last_ms: int) -> int:
        """The first tick after `time_ms`, in a window that ends with `last_ms`."""
        # the multiple next to it towards 0, also for times before the epoch
        interval = self.interval_ms
        before = time_ms - time_ms % interval if time_ms >= 0 else time_ms + -time_ms % interval
        return self.after(before, last_ms)

    def after(self, tick: int, last_ms: int) -> int:
        """The tick after another one."""
        return min(tick + self.interval_ms, last_ms)


class Trigger(Shown):
    """
    Base of all triggers: never fires.

    A trigger is a setting, which all keys and windows of any number of steps and jobs share: what it is to
    remember belongs in `ctx.state`, which is of the key and the window, and never in an attribute of its own.

    Attributes:
        can_merge: whether it copes with windows that merge; sessions need that.
    """

    can_merge: bool = False

    def needs_each_element(self, event_time: bool) -> bool:
        """
        Whether it is to be asked about each element of a window.

        If not, it need not be asked about those that come before the window's end into a window that has
        contents: it would do nothing, or count them as `counter` says.

        Args:
            event_time: whether windows follow the elements' timestamps.
        """
        return True

    def counter(self) -> tuple[int, str] | None:
        """If it counts elements: about which one it must be asked, and the name of the state that counts."""
        return None

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, ctx: TriggerContext, /
    ) -> TriggerResult:
        """An element was added to the window."""
        return CONTINUE

    def on_event_time(self, timestamp: int, window: Window, ctx: TriggerContext, /) -> TriggerResult:
        """An event-time timer of the window fires; it may be the operator's own, for cleaning up."""
        return CONTINUE

    def on_processing_time(self, timestamp: int, window: Window, ctx: TriggerContext, /) -> TriggerResult:
        """A processing-time timer of the window fires."""
        return CONTINUE

    def on_merge(self, window: Window, ctx: TriggerContext, /) -> None:
        """Several windows became `window`: each of them is cleared, and then `on_element` asked."""

    def clear(self, window: Window, ctx: TriggerContext, /) -> None:
        """The window goes: delete its timers and state."""


class EventTimeTrigger(Trigger):
    """Fires when the watermark reaches the window's end, and again for each late element after that."""

    can_merge = True

    def needs_each_element(self, event_time: bool) -> bool:
        return not event_time

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        last = window.max_timestamp
        if last <= ctx.watermark and last < MAX_TIMESTAMP:  # nothing is late for a window without an end
            return FIRE
        ctx.register_event_timer(last)
        return CONTINUE

    def on_event_time(self, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return FIRE if timestamp == window.max_timestamp else CONTINUE

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.delete_event_timer(window.max_timestamp)


class ProcessingTimeTrigger(Trigger):
    """Fires when the clock reaches the window's end."""

    can_merge = True

    def needs_each_element(self, event_time: bool) -> bool:
        return event_time

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        ctx.register_processing_timer(window.max_timestamp)
        return CONTINUE

    def on_processing_time(self, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return FIRE

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.delete_processing_timer(window.max_timestamp)


class NeverTrigger(Trigger):
    """Never fires."""

    can_merge = True

    def needs_each_element(self, event_time: bool) -> bool:
        return False


class CountTrigger(Trigger):
    """
    Fires at every `n`-th element of a window. What is left at the window's end is not emitted.

    Args:
        n: at least 1.
    """

    can_merge = True

    def __init__(self, n: int) -> None:
        self.n = count("n", n)
        self._count = ReducingDescriptor[int]("count", lambda a, b: a + b)

    def needs_each_element(self, event_time: bool) -> bool:
        return self.n == 1

    def counter(self) -> tuple[int, str] | None:
        return self.n, self._count.name

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        counted: ReducingState[int] = ctx.state(self._count)
        if counted.add(1) < self.n:
            return CONTINUE
        counted.clear()
        return FIRE

    def on_merge(self, window: Window, ctx: TriggerContext) -> None:
        ctx.merge_state(self._count)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.state(self._count).clear()


class ContinuousTrigger(Trigger):
    """A tick at every multiple of `interval`, kept in state so that windows that merge keep the earliest."""

    can_merge = True
    _event_time: ClassVar[bool]

    def __init__(self, interval: Duration) -> None:
        self.interval_ms = duration_ms("interval", interval)
        self._tick = ReducingDescriptor[int]("tick", min)

    def ticks(self) -> Ticks:
        """When it fires once a window has an element."""
        return Ticks(self.interval_ms, self._event_time, self._tick.name)

    def on_merge(self, window: Window, ctx: TriggerContext) -> None:
        tick: ReducingState[int] = ctx.merge_state(self._tick)
        if (next_tick := tick.get()) is not None:
            self._set(tick, next_tick, ctx)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        tick: ReducingState[int] = ctx.state(self._tick)
        if (next_tick := tick.get()) is not None:
            delete = ctx.delete_event_timer if self._event_time else ctx.delete_processing_timer
            delete(next_tick)
            tick.clear()

    def _set(self, tick: ReducingState[int], next_tick: int, ctx: TriggerContext) -> None:
        tick.clear()
        tick.add(next_tick)
        register = ctx.register_event_timer if self._event_time else ctx.register_processing_timer
        register(next_tick)


class ContinuousEventTimeTrigger(ContinuousTrigger):
    """
    Fires at every multiple of `interval` that the watermark passes, and at the window's end.

    On a global window, whose end is the end of time, there is a tick to fire at once more when the final
    watermark comes; then the end of time itself is next.

    Args:
        interval: a `timedelta` or seconds; at least a millisecond.
    """

    _event_time = True

    def needs_each_element(self, event_time: bool) -> bool:
        return not event_time

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        last = window.max_timestamp
        if last <= ctx.watermark:
            return FIRE
        ctx.register_event_timer(last)
        tick: ReducingState[int] = ctx.state(self._tick)
        # when time had ended, earlier versions set the next tick to where it ends
        if tick.get() in (None, MAX_TIMESTAMP):
            if timestamp is None:
                # from before all time a global window would tick for ever before it got to the present
                timestamp = ctx.watermark if last == MAX_TIMESTAMP else MIN_TIMESTAMP
                if last - timestamp > MAX_TIMESTAMP:
                    return CONTINUE
            self._set(tick, self.ticks().first(timestamp, last), ctx)
        return CONTINUE

    def on_event_time(self, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        last = window.max_timestamp
        if timestamp == last:
            return FIRE
        tick: ReducingState[int] = ctx.state(self._tick)
        if tick.get() != timestamp:
            return CONTINUE
        if last == MAX_TIMESTAMP == ctx.watermark:
            tick.clear()  # from here to the end of a global window they would never be through
        else:
            self._set(tick, self.ticks().after(timestamp, last), ctx)
        return FIRE


class ContinuousProcessingTimeTrigger(ContinuousTrigger):
    """
    Fires at every multiple of `interval` that the clock passes while the window has an end to come, and once
    that has; then at the next multiple after late elements.

    Args:
        interval: a `timedelta` or seconds; at least a millisecond.
    """

    _event_time = False

    def needs_each_element(self, event_time: bool) -> bool:
        return False

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        tick: ReducingState[int] = ctx.state(self._tick)
        next_tick, last = tick.get(), window.max_timestamp
        has_ended = last <= ctx.watermark and last < ctx.now_ms  # whichever of them it follows
        # the tick of the end, which fires at once if it comes so late, is not for the late part of a trigger
        has_ticked = ctx.is_late if next_tick is None else not ctx.has_processing_timer(next_tick)
        if next_tick is None or (has_ended and has_ticked):
            until = MAX_TIMESTAMP if has_ended and has_ticked else last
            self._set(tick, self.ticks().first(ctx.now_ms, until), ctx)
        return CONTINUE

    def on_processing_time(self, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        tick: ReducingState[int] = ctx.state(self._tick)
        if tick.get() != timestamp:
            return CONTINUE
        if timestamp < window.max_timestamp:  # the end is the last tick: one after it would be due at once
            self._set(tick, self.ticks().after(timestamp, window.max_timestamp), ctx)
        return FIRE


class DeltaTrigger(Trigger):
    """
    Fires when an element is more than `threshold` away from the one at the last firing.

    Attributes:
        delta: called with that element and the new one, gives their distance.
        threshold: exactly this far does not fire.
    """

    def __init__(self, delta: Callable[[Any, Any], float], threshold: float) -> None:
        self.delta = function("delta", delta, "last", "element")
        real_number("threshold", threshold, "a number", lambda n: n == n)
        self.threshold = threshold
        self._last = ValueDescriptor[Any]("last")

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        last = ctx.state(self._last)
        held = last.get()
        if held is None:
            last.set((value,))  # in a tuple: None is a value like any other
        elif self.delta(held[0], value) > self.threshold:
            last.set((value,))
            return FIRE
        return CONTINUE

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.state(self._last).clear()


def must_be_asked(trigger: Trigger, event_time: bool) -> bool:
    """`Trigger.needs_each_element`; a subclass that does otherwise than its base may need each."""
    for kind in type(trigger).__mro__:
        if "needs_each_element" in vars(kind):
            return trigger.needs_each_element(event_time)
        if not vars(kind).keys().isdisjoint(_ASKED):
            break
    return True


_ASKED: Final = ("on_element", "on_event_time", "on_processing_time", "clear")
