"""
Windows that also fire by time before their end, each for all keys together: `panes` with ticks.

Theory. A key's first tick in a window follows from its first element there, and each tick sets the next, as
the continuous triggers do for `WindowOperator`. The operator knows when they do (`ContinuousTrigger.ticks`),
so none is asked. What is kept is the same, so each operator goes on with what another kind has kept.

The last millisecond of a window is its last tick. In event time that is the end at which it fires anyway, so
there is no timer for it, and nothing would tell whether it is before a tick of another window that comes just
then. `WindowOperator` does the plans in which one may (`WindowPlan.kept`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from asyncstream.operators.base import OperatorContext
from asyncstream.operators.timed import ClockedOperator
from asyncstream.state import MISSING, Table
from asyncstream.state.rows import Rows, run_through
from asyncstream.windowing.panes import PaneWindowOperator
from asyncstream.windowing.plan import WindowPlan
from asyncstream.windowing.windows import Span, max_timestamp

__all__ = ("TickingWindowOperator",)


class TickingWindowOperator(ClockedOperator, PaneWindowOperator):
    """
    Tumbling, sliding and cumulative windows with an aggregate, and ticks before their end.

    Emits besides at the ticks; those of the clock wait while there is no room.
    Snapshot holds: accumulators by window and key, and for each of these the next tick, with its timer.
    """

    def __init__(self, key_by: Callable[[Any], Any], plan: WindowPlan) -> None:
        super().__init__(key_by, plan)
        assert plan.ticks is not None
        self._ticks = plan.ticks
        self._next = self.tables.declare(Table(f"trigger/{self._ticks.state}", namespace_of=tuple))

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._timers = timers = self._new_timers(self._on_clock, self._on_clock, tuple)
        self._register = timers.event.register if self._ticks.event_time else timers.register_processing

    # ------------------------------------------------------------------ ticks

    def _begin(self, window: Span, key: Any, timestamp: int) -> None:
        if self._next.peek(window, key) is not MISSING:
            return  # it comes back to a window that is to fire again
        ticks, last_ms = self._ticks, max_timestamp(window)
        tick = ticks.first(timestamp if ticks.event_time else self.context.clock.now_ms(), last_ms)
        self._next.put(window, key, tick)
        if tick < last_ms or not ticks.event_time:
            self._register(tick, key, window)

    def _ticking_until(self, time_ms: float) -> Iterator[None]:
        """Has the ticks of event time up to this, in slices."""
        while (due := self._timers.event.take(time_ms)) is not None:
            for following, timers in self._tick(*due).items():
                self._timers.event.register_all(following, timers)
            yield

    def _on_clock(self, tick: int, key: Any, window: Span) -> None:
        if max_timestamp(window) > self._watermark:  # else it is due since a restore, as the next one shows
            for following in self._tick(tick, [(key, window)]):
                self._timers.register_processing(following, key, window)

    def _tick(self, tick: int, timers: list[tuple[Any, Span]]) -> dict[int, list[tuple[Any, Span]]]:
        """Fire windows of keys with a tick of theirs; gives the timers to be set, by the next tick."""
        ticks, panes = self._ticks, self._panes
        again: dict[int, list[tuple[Any, Span]]] = {}
        known: dict[Span, tuple[Rows, Rows, int, list[Any]]] = {}
        for timer in timers:
            key, window = timer
            at_hand = known.get(window)
            if at_hand is None:
                last_ms = max_timestamp(window)
                following = ticks.after(tick, last_ms)
                has_timer = following < last_ms or (tick < last_ms and not ticks.event_time)
                waiting = again.setdefault(following, []) if has_timer else []
                at_hand = known[window] = panes.young(window), self._next.rows(window), following, waiting
            held, nexts, following, waiting = at_hand
            if nexts.get(key) != tick and self._next.peek(window, key) != tick:
                continue  # another kind of operator has set it, for late elements
            nexts[key] = following
            waiting.append(timer)
            accumulator = held.get(key, MISSING)
            if accumulator is MISSING:
                accumulator = panes.merged(window, key)
            if accumulator is not MISSING:
                self._emit_one(window, key, accumulator)
        return again

    def _drop_ticks(self, window: Span) -> None:
        if not self._ticks.event_time:
            for key, tick in self._next.each(window):
                self._timers.processing.delete(tick, key, window)
        self._next.drop(window)

    # ------------------------------------------------------------------ time

    def due_ms(self) -> int | None:
        due = (super().due_ms(), self._timers.event.earliest())
        return min((when for when in due if when is not None), default=None)

    def _firing(self, watermark: float) -> Iterator[None]:
        yield from super()._firing(watermark)
        yield from self._ticking_until(watermark)

    def _firing_window(self, window: Span) -> Iterator[None]:
        yield from self._ticking_until(max_timestamp(window) - 1)
        if self._ticks.again or not self._lateness_ms:
            self._drop_ticks(window)
        yield from super()._firing_window(window)

    def _clean_up(self, place: Span, is_slice: bool) -> None:
        run_through(self._ticking_until(max_timestamp(place) - 1 + self._lateness_ms))
        super()._clean_up(place, is_slice)
        self._drop_ticks(place)
