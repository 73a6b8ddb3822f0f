"""
The window operator for any assigner, trigger, evictor and function.

Theory, after Flink's WindowOperator. A *cell* is the contents of one window of one key: an accumulator,
a list of elements, or with an evictor a list of (element, timestamp). Each element is put into the cells of
its windows, each time the trigger is asked, and the clean-up timer registered. In event time that is for the
last millisecond + the allowed lateness, from which on the window is late.

Most triggers do nothing about a further element of a window that has not ended, or only count it, and say so
(`Trigger.needs_each_element`, `Trigger.counter`). With them, where windows lie on a grid, the cells of a key
stand in a *row*, one for each window of the slice (`assigners`): the next element of the key in that slice is
added along the row, and no more is done. A row is forgotten when one of its cells is removed, replaced or
frozen.

Sessions have a `MergingWindowSet` for each key, and the cell goes by the state window that it names.
Timers of a window that has merged away find nothing and do nothing. Windows may reach beyond the ends of
time: what ends after it is complete with the final watermark, and its results carry the last timestamp.

The order of results is the order of timers: by time, then by registration. The operators in `panes` and
`sessions` give the same results in the same order, where the plan is one of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamps
from asyncstream.errors import safe_repr
from asyncstream.operators.base import OperatorContext, pairs
from asyncstream.operators.timed import ClockedOperator, TimedOperator
from asyncstream.state import MISSING, Cell, KeyedState, Table
from asyncstream.state.rows import NO_ROWS, Rows
from asyncstream.state.timer_queue import Timer
from asyncstream.timers import reached
from asyncstream.windowing.aggregates import Elements, in_place, joined
from asyncstream.windowing.assigners import sliced
from asyncstream.windowing.base import WindowStep, check_timestamp
from asyncstream.windowing.merging import MergingWindowSet
from asyncstream.windowing.pane_store import SliceRows
from asyncstream.windowing.plan import RULES, WindowPlan
from asyncstream.windowing.trigger_context import TriggerContext
from asyncstream.windowing.triggers import CONTINUE, TriggerResult, must_be_asked
from asyncstream.windowing.windows import GLOBAL_WINDOW, Window, new_result, window_from

__all__ = ("WindowOperator",)

Adding: TypeAlias = Generator[None, Iterable[tuple[Any, Any]], None]
"""Takes (value, timestamp) of some elements each time."""


class WindowOperator(ClockedOperator, TimedOperator, WindowStep):
    """
    Groups the elements of each key by windows.

    Emits when the trigger fires, with the window's last millisecond as timestamp. Passes a watermark on
    after the results that it caused. Completes with its input, and fires the processing-time windows that
    are open then; in event time the final watermark has done so. Elements too late for all their windows go
    to the side output "late", or are counted as `late_dropped` if that has no reader; those that fall between
    windows are counted as `outside_windows`.
    Snapshot holds: contents, timers, and the state of trigger and function.

    Args:
        key_by: gives the key of an element.
        plan: windows, trigger, evictor and function.
    """

    keeps = "contents"

    def __init__(self, key_by: Callable[[Any], Any], plan: WindowPlan) -> None:
        super().__init__(key_by, plan)
        self._assigner = plan.assigner
        self._slicing = sliced(plan.assigner)
        self._trigger = plan.effective_trigger
        self._asks_each = must_be_asked(self._trigger, plan.assigner.event_time)
        self._counter = self._trigger.counter()
        self._event_time = plan.assigner.event_time
        self._anchor_ms: int | None = None
        self._rows = SliceRows()
        self._adding: Adding | None = None
        folding = plan.folding if isinstance(plan.folding, Elements) else in_place(plan.folding)
        self._folding = folding
        self._aggregate = None if plan.aggregate is None else in_place(plan.aggregate)
        self._contents = self.tables.declare(
            Table("contents", save=folding.save, load=folding.load, namespace_of=window_from)
        )
        self.tables.on_cut(self._forget_rows)
        self.tables.on_restored(self._restored)
        self._merging = self.tables.declare(Table("merging", save=_saved_sessions, load=_loaded_sessions))
        self.tables.declare_cell("anchor_ms", Cell.of(self, "_anchor_ms", RULES["anchor_ms"]))

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        on_event_time, on_clock = (partial(self._on_timer, event_time=is_event) for is_event in (True, False))
        self._timers = timers = self._new_timers(on_event_time, on_clock, window_from)
        self._register = timers.event.register if self._event_time else timers.register_processing
        self._states = KeyedState(context.clock, self.tables, "trigger", window_from)
        self._scope = TriggerContext(self._states, timers, context.clock)

    def process(self, value: Any, timestamp: int | None) -> None:
        self._add_all(((value, timestamp),))

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        if values:
            self._add_all(pairs(values, timestamps))

    def advance_watermark(self, timestamp: int) -> None:
        self._adding = None
        self._rows.forget_until(timestamp)
        super().advance_watermark(timestamp)

    def restore_watermark(self, timestamp: int) -> None:
        self._adding = None
        super().restore_watermark(timestamp)

    def advance_clock(self, now_ms: int) -> None:
        self._adding = None
        if not self._event_time:
            self._rows.forget_until(now_ms)
        super().advance_clock(now_ms)

    def end_input(self) -> None:
        if self._plan.closes_with_input:
            self._catch_up()
            self._close_windows()
        super().end_input()

    def _forget_rows(self) -> None:
        self._adding = None
        self._rows.clear()

    def _restored(self) -> None:
        self._forget_rows()
        if self._anchor_ms is not None:
            self._anchor(self._anchor_ms)

    def _count_open(self) -> int:
        return len(self._contents)

    def _reached(self) -> int:
        return self._timers.watermark

    def _anchor(self, now_ms: int) -> None:
        self._anchor_ms = now_ms
        self._assigner = self._plan.assigner.anchored(now_ms)
        self._slicing = sliced(self._assigner)

    # Elements

    def _add_all(self, elements: Iterable[tuple[Any, Any]]) -> None:
        if self._adding is None:
            if self._anchor_ms is None:
                self._anchor(self.context.clock.now_ms())
            self._adding = self._added()
            next(self._adding)
        self._adding.send(elements)
        self._emitter.flush()

    def _added(self) -> Adding:
        """
        The loop over elements. It rests behind each batch, with the slice and the rows of the last element at
        hand, so that one that comes alone costs little more than one of many. After whatever else may have
        changed rows, event time among it, another loop is begun.
        """
        add_each, event_time, slicing = self._folding.add_each, self._event_time, self._slicing
        with_times = self._plan.evictor is not None
        most = 0 if self._counter is None else self._counter[0] - 1
        watermark = reached(self._timers.watermark)
        start, end, rows, has_rows = 0, 0, {}, False
        windows: Sequence[Any] = ()
        counts: list[Rows] = []
        value: Any = None
        while True:
            elements = yield
            key_by = self._key_by
            try:
                for value, timestamp in elements:
                    key = key_by(value)
                    time_ms = timestamp if event_time and type(timestamp) is int else self._time_of(timestamp)
                    if not start <= time_ms < end:
                        if event_time:
                            check_timestamp(time_ms)
                        if slicing is None:
                            windows = self._assigner.assign(value, time_ms)
                        else:
                            start, end = slicing.slice_at(time_ms)
                            windows = [window_from(window) for window in slicing.windows_of(start)]
                            is_past = not windows or (event_time and end - 1 <= watermark)
                            has_rows = not (self._asks_each or is_past)
                            rows = self._rows.of((start, end)) if has_rows else {}
                            counts = self._counts(windows) if has_rows else []
                    row = rows.get(key)
                    if row is not None:
                        for count in counts:
                            if count.get(key, 0) >= most:
                                break
                        else:
                            for count in counts:
                                count[key] = count.get(key, 0) + 1
                            add_each(row, (value, timestamp) if with_times else value)
                            continue
                    self._add(key, value, timestamp, time_ms, windows)
                    if has_rows:
                        cells = self._contents.young
                        row = [cells.get(window, NO_ROWS).get(key) for window in windows]
                        if all(cell is not None for cell in row):
                            rows[key] = row
                        counts = self._counts(windows)
            except BaseException as error:
                self._adding = None
                self.fail_on(value, _no_windows(windows, error) or error)

    def _counts(self, windows: Sequence[Window]) -> list[Rows]:
        """By window what the trigger has counted, by key; nothing if it has not been asked yet."""
        name = "" if self._counter is None else f"trigger/{self._counter[1]}"
        return [self.tables[name].rows(window) for window in windows] if name in self.tables else []

    def _time_of(self, timestamp: Any) -> int:
        """The time in which the windows are, of an element."""
        if type(timestamp) is int:
            if not MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP:
                check_timestamp(timestamp)
        elif timestamp is not None or self._assigner.needs_timestamp:
            check_timestamp(timestamp)
        if self._event_time:
            return self._untimed() if timestamp is None else timestamp
        return self.context.clock.now_ms()

    def _add(
        self, key: Any, value: Any, timestamp: int | None, time_ms: int, assigned_to: Iterable[Any]
    ) -> None:
        """Put an element into the windows that it was assigned to, and ask the trigger."""
        self._states.key = key
        contents, watermark, placed = self._contents, reached(self._timers.watermark), False
        element = value if self._plan.evictor is None else (value, timestamp)
        for assigned in assigned_to:
            if self._assigner.merging:
                window, place = self._join(key, assigned)
            else:
                window = place = assigned
            cleanup_ms = self._cleanup_ms(window)
            if self._event_time and cleanup_ms <= watermark:
                if not self._assigner.merging:
                    continue
                if not self._has_contents(place, key):  # else it is due, or a run before kept it for longer
                    self._retire(key, window)
                    continue
            placed = True
            accumulator = contents.get(place, key)
            is_new = accumulator is MISSING
            accumulator = self._folding.add(self._folding.create() if is_new else accumulator, element)
            if is_new:
                contents.put(place, key, accumulator)
            self._states.namespace = window
            result = self._trigger.on_element(value, timestamp, window, self._scope)
            if result is not CONTINUE:
                self._follow(result, key, window, place)
            if window is not GLOBAL_WINDOW:  # which lasts as long as time does
                self._register(cleanup_ms, key, window)
        if not placed:
            self._leave_out(value, timestamp, time_ms)

    def _join(self, key: Any, assigned: Any) -> tuple[Window, Window]:
        """The session that an element goes into, and its state window."""
        windows = self._merging.get(None, key)
        if windows is MISSING:
            windows = MergingWindowSet()
            self._merging.put(None, key, windows)
        window, merged, state_windows = windows.add(assigned)
        if merged:
            self._merge(key, window, merged, state_windows)
        return window, windows.state_window(window)

    def _merge(self, key: Any, window: Any, merged: Sequence[Any], state_windows: list[Any]) -> None:
        states, scope, trigger, event = self._states, self._scope, self._trigger, self._timers.event
        last_ms = window.max_timestamp
        is_due = last_ms <= scope.watermark and any(event.has(old.max_timestamp, key, old) for old in merged)
        states.namespace = window
        scope.merged[:] = merged
        trigger.on_merge(window, scope)
        if is_due:  # since a restore: triggers take it that what ends by now has fired
            event.register(last_ms, key, window)
        for old in merged:
            states.namespace = old
            trigger.clear(old, scope)
            cleanup_ms = self._cleanup_ms(old)
            (self._timers.event if self._event_time else self._timers.processing).delete(cleanup_ms, key, old)
        if len(state_windows) > 1:
            self._merge_contents(key, state_windows)

    def _merge_contents(self, key: Any, state_windows: list[Any]) -> None:
        """Bring the contents of several sessions together at the place of the first of them."""
        contents = self._contents
        held = [found for place in state_windows if (found := contents.get(place, key)) is not MISSING]
        for place in state_windows:
            contents.remove(place, key)
        if held:
            contents.put(state_windows[0], key, joined(self._folding, held))

    # Time

    def _close_windows(self) -> None:
        """
        Let the windows of processing time go, in the order of their ends, after one last firing each.

        The clock does not run on to their ends: a trigger that ticks would show the same contents with every
        tick that was still to come. So it is asked about the timers that are set now, until it fires once.
        """
        timers: dict[tuple[Any, Window], list[int]] = {}
        ends: list[Timer] = []
        for timer in self._timers.processing:
            timers.setdefault((timer.key, timer.namespace), []).append(timer.timestamp)
            if timer.timestamp == self._cleanup_ms(timer.namespace):
                ends.append(timer)
        for end in ends:
            for timestamp in timers[end.key, end.namespace]:
                fires = self._on_timer(timestamp, end.key, end.namespace, event_time=False)
                if timestamp == end.timestamp:
                    break  # with which it has gone
                if fires:
                    self._let_go(end)
                    break
        self._timers.processing.clear()

    def _let_go(self, end: Timer) -> None:
        place = self._place(end.key, end.namespace)
        if place is None:
            return
        try:
            self._clean_up(end.key, end.namespace, place)
        except BaseException as error:
            self.fail_on(end, error)

    def _place(self, key: Any, window: Window) -> Window | None:
        """Where the contents of a window are; None if it has merged into another, or gone as sessions do."""
        if not self._assigner.merging:
            return window
        windows = self._merging.peek(None, key)
        return None if windows is MISSING else windows.state_window(window)

    def _on_timer(self, timestamp: int, key: Any, window: Window, *, event_time: bool) -> bool:
        """Ask the trigger about a timer; whether it fires the window."""
        place = self._place(key, window)
        if place is None:
            return False  # the window that it has merged into has timers of its own
        self._states.key, self._states.namespace = key, window
        ask = self._trigger.on_event_time if event_time else self._trigger.on_processing_time
        is_over = event_time and self._event_time and timestamp == self._cleanup_ms(window) + 1
        try:
            result = CONTINUE if is_over else ask(timestamp, window, self._scope)
            if result is not CONTINUE:
                self._follow(result, key, window, place)
            if event_time == self._event_time:
                self._age(timestamp, key, window, place)
            if self._event_time and result.fires and not (event_time and timestamp >= window.max_timestamp):
                self._have_end(key, window, place)
            return result.fires
        except BaseException as error:
            self.fail_on(Timer(timestamp, key, window), error)

    def _age(self, timestamp: int, key: Any, window: Window, place: Window) -> None:
        """Let a window go that is late; its timers may have been set for another allowed lateness."""
        cleanup_ms = self._cleanup_ms(window)
        if timestamp == cleanup_ms or (timestamp > cleanup_ms and self._is_there(key, window, place)):
            self._clean_up(key, window, place)
        elif window.max_timestamp <= timestamp < cleanup_ms and window is not GLOBAL_WINDOW:
            self._register(cleanup_ms, key, window)

    def _is_there(self, key: Any, window: Window, place: Window) -> bool:
        """Whether anything is kept of a window, which may have gone, or have lost its contents before."""
        if self._assigner.merging or self._has_contents(place, key):
            return True
        states = (one for one in self.tables.every() if one.name.startswith(("trigger/", "window/")))
        return any(one.peek(window, key) is not MISSING for one in states)

    def _have_end(self, key: Any, window: Window, place: Window) -> None:
        """
        Have a window go though its trigger, as it fired early, has deleted the timer for that, which was its
        own as well: a millisecond later, when the trigger is not asked any more.
        """
        cleanup_ms = self._cleanup_ms(window)
        is_left = window is not GLOBAL_WINDOW and self._has_contents(place, key)
        if is_left and not self._timers.event.has(cleanup_ms, key, window):
            self._register(cleanup_ms + 1, key, window)

    def _cleanup_ms(self, window: Window) -> int:
        return window.max_timestamp + self._lateness_ms

    def _clean_up(self, key: Any, window: Window, place: Window) -> None:
        self._contents.remove(place, key)
        self._trigger.clear(window, self._scope)
        self._clear_window(key, window)
        if self._assigner.merging:
            self._retire(key, window)

    def _retire(self, key: Any, window: Any) -> None:
        windows = self._merging.get(None, key)
        windows.retire(window)
        if not windows:
            self._merging.remove(None, key)

    # Results

    def _follow(self, result: TriggerResult, key: Any, window: Window, place: Window) -> None:
        """Do what the trigger says."""
        if type(result) is not TriggerResult:  # as one without a `return` gives
            raise TypeError(
                f"a trigger answers a TriggerResult, such as FIRE or CONTINUE; got {safe_repr(result)}"
            )
        if result.fires and (accumulator := self._contents.peek(place, key)) is not MISSING:
            self._fire(key, window, place, accumulator)
        if result.purges:
            self._contents.remove(place, key)
            self._rows.forget(key)

    def _has_contents(self, place: Window, key: Any) -> bool:
        return self._contents.peek(place, key) is not MISSING

    def _fire(self, key: Any, window: Window, place: Window, accumulator: Any) -> None:
        self._emitter.timestamp = min(window.max_timestamp, MAX_TIMESTAMP)
        evictor = self._plan.evictor
        if evictor is None:
            self._emit(key, window, self._folding.result(accumulator))
            return
        elements = evictor.before(self._contents.get(place, key), window)
        self._emit(key, window, self._result_of(elements))
        elements = evictor.after(elements, window)
        self._rows.forget(key)
        if elements:
            self._contents.put(place, key, list(elements))
        else:
            self._contents.remove(place, key)

    def _result_of(self, elements: Iterable[tuple[Any, Any]]) -> Any:
        """What elements come to that an evictor has left."""
        values, aggregate = [value for value, _ in elements], self._aggregate
        return (
            values if aggregate is None else aggregate.result(aggregate.add_all(aggregate.create(), values))
        )

    def _emit(self, key: Any, window: Window, contents: Any) -> None:
        if self._plan.process is None:
            self._emitter.emit(new_result((key, window.start_ms, window.end_ms, contents)))
        else:
            self._process_window(key, window, contents)
        self._emitter.relieve()


def _saved_sessions(windows: MergingWindowSet) -> list[Any]:
    return [[tuple(window), tuple(state_window)] for window, state_window in windows]


def _loaded_sessions(kept: Any) -> MergingWindowSet:
    return MergingWindowSet((window_from(one), window_from(other)) for one, other in kept)  # type: ignore[misc]


def _no_windows(assigned: object, error: BaseException) -> TypeError | None:
    """The error for what an assigner of the user's has answered, if that is no list of windows."""
    is_list = isinstance(assigned, Iterable) and all(isinstance(window, Window) for window in assigned)
    if is_list or not isinstance(error, AttributeError | TypeError):
        return None
    return TypeError(
        "an assigner answers a list of windows, such as [TimeWindow(start_ms, end_ms)]; got "
        f"{safe_repr(assigned)}"
    )
