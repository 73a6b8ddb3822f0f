"""
The window operator for any assigner, trigger, evictor and function.

Theory, after Flink's WindowOperator. A *cell* is the contents of one window of one key: an accumulator,
a list of elements, or with an evictor a list of (element, timestamp). Contents exist from the first
element until a purge or the window's clean-up.

Each element, for each of its windows: put it into the cell, ask the trigger, register the clean-up timer.
Each timer that fires: ask the trigger; if it was the clean-up timer, let the window go. In event time a
window is cleaned up when the watermark reaches its last millisecond + the allowed lateness, and from then
on it is late. Without lateness that is one timer with the trigger's.

Sessions have a `MergingWindowSet` for each key, and the cell goes by the state window that it names.
Timers of a window that has merged away find nothing and do nothing.

Windows may reach beyond the ends of time, where no element can be. What ends after time does is complete
with the final watermark, with which everything is; its results carry the last timestamp there is.

The order of results is the order of timers: by time, then by registration. The fast operators in
`disjoint`, `sliding` and `sessions` give the same results in the same order, and take and give the same
snapshots:

* contents: (key, window, accumulator) of each cell, windows as plain tuples;
* merging: (key, window, state window) of each open session;
* timers: as `TimerService.snapshot` gives them, with plain windows as namespaces;
* trigger, key, window: keyed state of triggers and of the function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamps
from asyncstream.errors import safe_repr
from asyncstream.operators.base import Operator, OperatorContext, pairs
from asyncstream.operators.exclusive import give_back, take
from asyncstream.operators.process import Emitter
from asyncstream.operators.results import FirstKeys, Kinds, not_a_value
from asyncstream.state import Frozen, KeyedState, detached, freeze, freeze_items
from asyncstream.timers import Timer, TimerService, reached
from asyncstream.windowing.contexts import FunctionContext, TriggerScope
from asyncstream.windowing.merging import MergingWindowSet
from asyncstream.windowing.plan import SNAPSHOT, WindowPlan
from asyncstream.windowing.triggers import TriggerResult
from asyncstream.windowing.windows import GLOBAL_WINDOW, Window, WindowResult, window_from

__all__ = ("LATE", "WindowOperator", "check_timestamp")

LATE = "late"
"""Tag of the side output for elements that came too late for all their windows."""


def check_timestamp(timestamp: int | None) -> None:
    """
    Refuse what cannot be placed in time.

    Raises:
        ValueError: if `timestamp` is None, or lies before or after all time.
        TypeError: if it is something else than an int.
    """
    if timestamp is None:
        raise ValueError("a window in event time needs a timestamp; assign timestamps before it")
    if type(timestamp) is not int:
        raise TypeError(f"expected an int as timestamp (milliseconds), got {safe_repr(timestamp)}")
    if not MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP:
        raise ValueError(f"expected a timestamp of 64 bits (milliseconds), got {timestamp}")


_NOTHING: Any = object()


class WindowOperator(Operator):
    """
    Groups the elements of each key by windows.

    Emits when the trigger fires, with the window's last millisecond as timestamp. Passes a watermark on
    after the results that it caused. Completes with its input, and fires the processing-time windows that
    are open then; in event time the final watermark has done so. Elements too late for all their windows go
    to the side output "late", or are counted as `late_dropped` if nobody reads that; those that fall between
    windows are counted as `outside_windows`.
    Snapshot holds: contents, timers, and the state of trigger and function.
    """

    layout = SNAPSHOT

    _new_sessions: type[MergingWindowSet] = MergingWindowSet

    def __init__(self, key_by: Callable[[Any], Any], plan: WindowPlan) -> None:
        """
        Args:
            key_by: gives the key of an element; keys are hashable and compare by value.
            plan: what to do; its process function belongs to this operator alone.
        """
        super().__init__()
        self._key_by: Callable[[Any], Any] = FirstKeys(self, key_by)
        self._plan = plan
        self._assigner = plan.assigner
        self._trigger = plan.effective_trigger
        self._event_time = plan.assigner.event_time
        self._closes_with_input = plan.closes_with_input
        self._keeps_elements = plan.aggregate is None or plan.evictor is not None
        self._lateness_ms = plan.allowed_lateness_ms if self._event_time else 0
        self._emitter: Emitter[Any] = Emitter(self)
        self._kinds = Kinds()
        self._contents: dict[tuple[Any, Window], Any] = {}
        self._sessions: dict[Any, MergingWindowSet] = {}
        self._anchor_ms: int | None = None
        self._late_dropped = 0
        self._outside_windows = 0

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        if self._plan.process is not None:
            take(self, self._plan.process)
        clock, merging = context.clock, self._plan.assigner.merging
        self._timers = TimerService(
            self._on_event_time,
            self._on_processing_time,
            context.wake_at,
            self._has_room,
            context.wake_with_room,
        )
        self._scope = TriggerScope(KeyedState(clock), self._timers, clock)
        self._states = self._scope.states
        self._function_context = FunctionContext(self._emitter, self._timers, clock, merging)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        if self._anchor_ms is None and values:
            self._anchor(self.context.clock.now_ms())
        value = None
        try:
            for value, timestamp in pairs(values, timestamps):
                self._process(value, timestamp)
        except BaseException as error:
            self._emitter.flush()
            raise self.blame(value, error) from error
        self._emitter.flush()

    def advance_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_TIMESTAMP:
            self._timers.catch_up(self.context.clock.now_ms() - 1)
        self._timers.advance_watermark(timestamp)
        self._emitter.flush()
        super().advance_watermark(timestamp)

    def restore_watermark(self, timestamp: int) -> None:
        self._timers.restore_watermark(timestamp)
        super().restore_watermark(timestamp)

    def advance_clock(self, now_ms: int) -> None:
        self._timers.advance_clock(now_ms)
        self._emitter.flush()

    def end_input(self) -> None:
        self._timers.catch_up(self.context.clock.now_ms() - 1)
        if self._closes_with_input:
            self._close_windows()
            self._emitter.flush()
        super().end_input()

    def snapshot(self) -> Any:
        save = self._saving[0]
        return {
            "contents": [[key, window, save(held)] for key, window, held in self._panes()],
            "timers": {domain: list(timers) for domain, timers in self._timers_by_domain().items()},
            **self._small_parts(),
        }

    def capture(self) -> Frozen[Any]:
        """The large parts are copied as they are; what a snapshot does to them is left for later."""
        save = self._saving[0]
        contents, rest = freeze_items(self._panes()), freeze(self._small_parts())
        timers = {domain: freeze_items(kept) for domain, kept in self._timers_by_domain().items()}
        parts = [contents, rest, *timers.values()]
        if any(part.is_live for part in parts):
            return super().capture()

        def thaw() -> Any:
            return {
                "contents": [[key, window, save(held)] for key, window, held in contents.thaw()],
                "timers": {domain: list(kept.thaw()) for domain, kept in timers.items()},
                **rest.thaw(),
            }

        return Frozen(thaw, sum(part.size for part in parts))

    def _panes(self) -> Iterator[list[Any]]:
        return ([key, [*window], held] for (key, window), held in self._contents.items())

    def _timers_by_domain(self) -> dict[str, Iterator[list[Any]]]:
        queues = {"event": self._timers.event, "processing": self._timers.processing}
        return {
            domain: ([timestamp, key, [*window]] for timestamp, key, window in queue)
            for domain, queue in queues.items()
        }

    def _small_parts(self) -> dict[str, Any]:
        return {
            "merging": [
                [key, list(window), list(state_window)]
                for key, windows in self._sessions.items()
                for window, state_window in windows
            ],
            "trigger": self._states.snapshot(),
            "key": self._function_context.key_states.snapshot(),
            "window": self._function_context.window_states.snapshot(),
            "anchor_ms": self._anchor_ms,
            "late_dropped": self._late_dropped,
            "outside_windows": self._outside_windows,
        }

    def due_ms(self) -> int | None:
        return self._timers.event.earliest()

    def restore(self, state: Any) -> None:
        load = self._saving[1]
        self._contents = {(key, window_from(window)): load(held) for key, window, held in state["contents"]}
        sessions: dict[Any, list[Any]] = {}
        for key, window, state_window in state["merging"]:
            sessions.setdefault(key, []).append((window_from(window), window_from(state_window)))
        self._sessions = {key: self._new_sessions(pairs) for key, pairs in sessions.items()}
        self._timers.restore(
            {
                domain: [(timestamp, key, window_from(window)) for timestamp, key, window in kept]
                for domain, kept in state["timers"].items()
            }
        )
        self._states.restore(state["trigger"])
        self._function_context.key_states.restore(state["key"])
        self._function_context.window_states.restore(state["window"])
        self._late_dropped = state["late_dropped"]
        self._outside_windows = state["outside_windows"]
        if state["anchor_ms"] is not None:
            self._anchor(state["anchor_ms"])

    def close(self) -> None:
        if self._plan.process is not None:
            give_back(self, self._plan.process)

    def metrics(self) -> dict[str, int]:
        return {
            "windows_open": len(self._contents),
            "event_timers": len(self._timers.event),
            "processing_timers": len(self._timers.processing),
            "late_dropped": self._late_dropped,
            "outside_windows": self._outside_windows,
        }

    @property
    def _saving(self) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        """What turns contents into plain values for a snapshot, and back."""
        aggregate = self._plan.aggregate
        if aggregate is None or self._keeps_elements:
            return detached, detached
        return aggregate.save, aggregate.load

    def _anchor(self, now_ms: int) -> None:
        self._anchor_ms = now_ms
        self._assigner = self._plan.assigner.anchored(now_ms)

    # Elements

    def _process(self, value: Any, timestamp: int | None) -> None:
        self._states.key = key = self._key_by(value)
        if type(timestamp) is int:
            if not MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP:
                check_timestamp(timestamp)
        elif timestamp is not None or self._assigner.needs_timestamp:
            check_timestamp(timestamp)
        if self._event_time:
            time_ms = MIN_TIMESTAMP if timestamp is None else timestamp
        else:
            time_ms = self.context.clock.now_ms()
        contents, watermark, placed = self._contents, reached(self._timers.watermark), False
        for assigned in self._assigner.assign(value, time_ms):
            if self._assigner.merging:
                window, place = self._join(key, assigned)
            else:
                window = place = assigned
            cleanup_ms = self._cleanup_ms(window)
            if self._event_time and cleanup_ms <= watermark:
                if self._assigner.merging:
                    self._retire(key, window)
                continue
            placed = True
            cell = (key, place)
            contents[cell] = self._added(contents.get(cell, _NOTHING), value, timestamp)
            self._states.namespace = window
            result = self._trigger.on_element(value, timestamp, window, self._scope)
            if result is not TriggerResult.CONTINUE:
                self._follow(result, key, window, cell)
            if window is not GLOBAL_WINDOW:  # which lasts as long as time does
                self._register(cleanup_ms, key, window)
        if not placed:
            self._leave_out(value, timestamp, time_ms)

    def _added(self, held: Any, value: Any, timestamp: int | None) -> Any:
        """The contents of a cell with one more element."""
        aggregate = self._plan.aggregate
        if self._keeps_elements:
            if held is _NOTHING:
                held = []
            held.append(value if self._plan.evictor is None else (value, timestamp))
            return held
        return aggregate.add(aggregate.create() if held is _NOTHING else held, value)  # type: ignore[union-attr]

    def _join(self, key: Any, assigned: Any) -> tuple[Window, Window]:
        """The session that an element goes into, and its state window."""
        windows = self._sessions.get(key)
        if windows is None:
            windows = self._sessions[key] = self._new_sessions()
        window, merged, state_windows = windows.add(assigned)
        if merged:
            self._merge(key, window, merged, state_windows)
        return window, windows.state_window(window)  # type: ignore[return-value]

    def _merge(self, key: Any, window: Any, merged: Sequence[Any], state_windows: list[Any]) -> None:
        states, scope, trigger = self._states, self._scope, self._trigger
        states.namespace = window
        scope.merged = merged
        trigger.on_merge(window, scope)
        for old in merged:
            states.namespace = old
            trigger.clear(old, scope)
            cleanup_ms = self._cleanup_ms(old)
            (self._timers.event if self._event_time else self._timers.processing).delete(cleanup_ms, key, old)
        if len(state_windows) > 1:
            self._merge_contents(key, window, state_windows)

    def _merge_contents(self, key: Any, window: Any, state_windows: list[Any]) -> None:
        """Bring the contents of several sessions together at the place of the biggest of them."""
        contents = self._contents
        held = [(place, contents.pop((key, place))) for place in state_windows if (key, place) in contents]
        if not held:
            return
        place, target = held[0]
        if self._keeps_elements:
            place, target = max(held, key=lambda pair: len(pair[1]))
            for other, elements in held:
                if other is not place:
                    target.extend(elements)
        else:
            for _, other in held[1:]:
                target = self._plan.aggregate.merge(target, other)  # type: ignore[union-attr]
        contents[key, place] = target
        self._sessions[key].move(window, place)

    def _leave_out(self, value: Any, timestamp: int | None, time_ms: int) -> None:
        """An element that is in no window: too late for all of its own, or between two."""
        if not self._event_time or time_ms + self._lateness_ms > reached(self._timers.watermark):
            self._outside_windows += 1
        elif LATE in self.side:
            self._emitter.aside(LATE, value, timestamp)
        else:
            self._late_dropped += 1

    # Time

    def _has_room(self) -> bool:
        self._emitter.relieve()
        return self.context.has_room()

    def _on_event_time(self, timestamp: int, key: Any, window: Window) -> None:
        self._on_timer(timestamp, key, window, True)

    def _on_processing_time(self, timestamp: int, key: Any, window: Window) -> None:
        self._on_timer(timestamp, key, window, False)

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
                fires = self._on_timer(timestamp, end.key, end.namespace, False)
                if timestamp == end.timestamp:
                    break  # with which it has gone
                if fires:
                    self._let_go(end)
                    break
        self._timers.processing.clear()

    def _let_go(self, end: Timer) -> None:
        cell = self._cell(end.key, end.namespace)
        if cell is None:
            return
        try:
            self._clean_up(end.key, end.namespace, cell)
        except BaseException as error:
            self._emitter.flush()
            raise self.blame(end, error) from error

    def _cell(self, key: Any, window: Window) -> tuple[Any, Window] | None:
        """Where the contents of a window are; None if it has merged into another, or gone as sessions do."""
        if not self._assigner.merging:
            return (key, window)
        windows = self._sessions.get(key)
        state_window = None if windows is None else windows.state_window(window)  # type: ignore[arg-type]
        return None if state_window is None else (key, state_window)

    def _on_timer(self, timestamp: int, key: Any, window: Window, event_time: bool) -> bool:
        """Ask the trigger about a timer; whether it fires the window."""
        cell = self._cell(key, window)
        if cell is None:
            return False  # the window that it has merged into has timers of its own
        self._states.key, self._states.namespace = key, window
        ask = self._trigger.on_event_time if event_time else self._trigger.on_processing_time
        try:
            result = ask(timestamp, window, self._scope)
            if result is not TriggerResult.CONTINUE:
                self._follow(result, key, window, cell)
            if event_time == self._event_time:
                self._age(timestamp, key, window, cell)
            return result.fires
        except BaseException as error:
            self._emitter.flush()
            raise self.blame(Timer(timestamp, key, window), error) from error

    def _age(self, timestamp: int, key: Any, window: Window, cell: tuple[Any, Window]) -> None:
        """Let a window go that is late; its timers may have been set for another allowed lateness."""
        cleanup_ms = self._cleanup_ms(window)
        if timestamp == cleanup_ms or (timestamp > cleanup_ms and cell in self._contents):
            self._clean_up(key, window, cell)
        elif timestamp == window.max_timestamp and window is not GLOBAL_WINDOW:
            self._register(cleanup_ms, key, window)

    def _cleanup_ms(self, window: Window) -> int:
        return window.max_timestamp + self._lateness_ms

    def _register(self, cleanup_ms: int, key: Any, window: Window) -> None:
        if self._event_time:
            self._timers.event.register(cleanup_ms, key, window)
        else:
            self._timers.register_processing(cleanup_ms, key, window)

    def _clean_up(self, key: Any, window: Window, cell: tuple[Any, Window]) -> None:
        self._contents.pop(cell, None)
        self._trigger.clear(window, self._scope)
        if self._plan.process is not None:
            self._function_context.point_at(key, window)
            self._plan.process.clear(key, self._function_context)
        if self._assigner.merging:
            self._retire(key, window)

    def _retire(self, key: Any, window: Any) -> None:
        windows = self._sessions[key]
        windows.retire(window)
        if not windows:
            del self._sessions[key]

    # Results

    def _follow(self, result: TriggerResult, key: Any, window: Window, cell: tuple[Any, Window]) -> None:
        """Do what the trigger says."""
        if result.fires and cell in self._contents:
            self._fire(key, window, cell)
        if result.purges:
            self._contents.pop(cell, None)

    def _fire(self, key: Any, window: Window, cell: tuple[Any, Window]) -> None:
        self._emitter.timestamp = min(window.max_timestamp, MAX_TIMESTAMP)
        held, evictor = self._contents[cell], self._plan.evictor
        if evictor is None:
            self._emit(key, window, held)
            return
        elements = evictor.before(held, window)
        self._emit(key, window, elements)
        elements = evictor.after(elements, window)
        if elements:
            self._contents[cell] = list(elements)
        else:
            del self._contents[cell]

    def _emit(self, key: Any, window: Window, held: Any) -> None:
        aggregate, process = self._plan.aggregate, self._plan.process
        if self._plan.evictor is not None:
            held = [value for value, _ in held]
            if aggregate is not None:
                accumulator = aggregate.create()
                for value in held:
                    accumulator = aggregate.add(accumulator, value)
                held = aggregate.result(accumulator)
        elif aggregate is not None:
            held = aggregate.result(held)
        else:
            held = list(held)
        if process is None:
            self._emitter(WindowResult(key, window.start_ms, window.end_ms, held))
        else:
            self._function_context.point_at(key, window)
            run: Callable[..., object] = process.process
            result = run(key, held, self._function_context, self._emitter)
            if result is not None and self._kinds.first_deferred([result]) is not None:
                raise not_a_value([result], "emit with out(...), and await in an async_map before or after")
