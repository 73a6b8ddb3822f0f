"""
What triggers and window functions see of the window operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from asyncstream.clock import Clock
from asyncstream.errors import PipelineError
from asyncstream.operators.emitting import Emitter
from asyncstream.state import KeyedState, State, StateDescriptor, Tables
from asyncstream.timers import TimerService
from asyncstream.windowing.windows import Window, window_from

__all__ = ("FunctionContext", "TriggerScope")

S = TypeVar("S", bound=State)


class TriggerScope:
    """
    The `TriggerContext` of one operator, for whichever key and window its state's cursor is at.

    Attributes:
        states: the triggers' state, by key, with windows as namespaces.
        merged: during `on_merge`, the windows that have merged.
    """

    __slots__ = ("_clock", "_handles", "_nested", "_outer", "_prefix", "_timers", "merged", "states")

    def __init__(
        self,
        states: KeyedState,
        timers: TimerService,
        clock: Clock,
        prefix: str = "",
        outer: TriggerScope | None = None,
    ) -> None:
        self.states = states
        self.merged: Sequence[Window] = ()
        self._timers = timers
        self._clock = clock
        self._prefix = prefix
        self._outer = outer
        self._handles: dict[str, Any] = {}
        self._nested: dict[str, TriggerScope] = {}

    @property
    def watermark(self) -> int:
        return self._timers.watermark

    @property
    def now_ms(self) -> int:
        return self._clock.now_ms()

    def register_event_timer(self, timestamp: int) -> None:
        self._timers.event.register(timestamp, self.states.key, self.states.namespace)

    def delete_event_timer(self, timestamp: int) -> None:
        self._timers.event.delete(timestamp, self.states.key, self.states.namespace)

    def register_processing_timer(self, timestamp: int) -> None:
        self._timers.register_processing(timestamp, self.states.key, self.states.namespace)

    def delete_processing_timer(self, timestamp: int) -> None:
        self._timers.processing.delete(timestamp, self.states.key, self.states.namespace)

    def state(self, descriptor: StateDescriptor[S]) -> S:
        handle = self._handles.get(descriptor.name)
        if handle is None:
            named = replace(descriptor, name=self._prefix + descriptor.name)
            handle = self._handles[descriptor.name] = self.states.state(named)
        return handle

    def merge_state(self, descriptor: StateDescriptor[S]) -> S:
        handle = self.state(descriptor)
        outermost = self
        while outermost._outer is not None:
            outermost = outermost._outer
        handle.merge_namespaces(self.states.namespace, outermost.merged)
        return handle

    def nested(self, name: str) -> TriggerScope:
        scope = self._nested.get(name)
        if scope is None:
            prefix = f"{self._prefix}{name}/"
            scope = TriggerScope(self.states, self._timers, self._clock, prefix, self)
            self._nested[name] = scope
        return scope


class FunctionContext:
    """The `WindowContext` of one operator, for whichever key and window it was pointed at last."""

    __slots__ = ("_clock", "_merging", "_out", "_reached", "_states", "_window_states", "window")

    window: Window

    def __init__(
        self, out: Emitter[Any], reached: Callable[[], int], clock: Clock, merging: bool, tables: Tables
    ) -> None:
        """`reached` gives the event time reached; the state of the function is kept in `tables`."""
        self._states = KeyedState(clock, tables, "key")
        self._window_states = KeyedState(clock, tables, "window", window_from)
        self._out = out
        self._reached = reached
        self._clock = clock
        self._merging = merging

    def point_at(self, key: Any, window: Window) -> None:
        """Be about this key and window from now on."""
        self.window = window
        self._states.key = self._window_states.key = key
        self._window_states.namespace = window

    @property
    def watermark(self) -> int:
        return self._reached()

    @property
    def now_ms(self) -> int:
        return self._clock.now_ms()

    def side(self, tag: str, value: Any) -> None:
        self._out.aside(tag, value, self.window.max_timestamp)

    def key_state(self, descriptor: StateDescriptor[S]) -> S:
        return self._states.state(descriptor)

    def window_state(self, descriptor: StateDescriptor[S]) -> S:
        if self._merging:
            raise PipelineError("sessions have no window state: they merge, and it cannot; use key_state")
        return self._window_states.state(descriptor)
