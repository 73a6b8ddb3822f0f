"""
What triggers see of the window operator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from asyncstream.clock import Clock
from asyncstream.state import KeyedState, State, StateDescriptor
from asyncstream.timers import TimerService
from asyncstream.windowing.windows import Window

__all__ = ("TriggerContext",)

S = TypeVar("S", bound=State)


class TriggerContext:
    """
    What a trigger may ask for, all of it about the current key and window. Times are in milliseconds.

    Attributes:
        states: where the state of triggers is, by key, with windows as namespaces; at the current ones.
        merged: during `on_merge`, the windows that have merged.
        is_late: the trigger decides about late elements alone.
    """

    __slots__ = ("_clock", "_handles", "_nested", "_prefix", "_timers", "is_late", "merged", "states")

    def __init__(
        self, states: KeyedState, timers: TimerService, clock: Clock, prefix: str = "", is_late: bool = False
    ) -> None:
        self.states = states
        self.is_late = is_late
        self.merged: list[Window] = []
        self._timers = timers
        self._clock = clock
        self._prefix = prefix
        self._handles: dict[str, tuple[Any, Any]] = {}
        self._nested: dict[str, TriggerContext] = {}

    @property
    def watermark(self) -> int:
        """The event time reached."""
        return self._timers.watermark

    @property
    def now_ms(self) -> int:
        """Processing time."""
        return self._clock.now_ms()

    def register_event_timer(self, timestamp: int) -> None:
        """Have `on_event_time` called once the watermark reaches `timestamp`."""
        self._timers.event.register(timestamp, self.states.key, self.states.namespace)

    def delete_event_timer(self, timestamp: int) -> None:
        """Have no such timer."""
        self._timers.event.delete(timestamp, self.states.key, self.states.namespace)

    def register_processing_timer(self, timestamp: int) -> None:
        """Have `on_processing_time` called once the clock reaches `timestamp`."""
        self._timers.register_processing(timestamp, self.states.key, self.states.namespace)

    def has_processing_timer(self, timestamp: int) -> bool:
        """Whether there is such a timer, which has not fired."""
        return self._timers.processing.has(timestamp, self.states.key, self.states.namespace)

    def delete_processing_timer(self, timestamp: int) -> None:
        """Have no such timer."""
        self._timers.processing.delete(timestamp, self.states.key, self.states.namespace)

    def state(self, descriptor: StateDescriptor[S]) -> S:
        """The handle of a piece of state."""
        handle: S
        handle, known = self._handles.get(descriptor.name, (None, None))
        if known is not descriptor and known != descriptor:
            handle = self.states.state(replace(descriptor, name=self._prefix + descriptor.name))
            self._handles[descriptor.name] = (handle, descriptor)
        return handle

    def merge_state(self, descriptor: StateDescriptor[S]) -> S:
        """In `on_merge`: move the state of the merged windows into this one's, and give its handle."""
        handle = self.state(descriptor)
        handle.merge_namespaces(self.states.namespace, self.merged)
        return handle

    def nested(self, name: str, *, is_late: bool = False) -> TriggerContext:
        """The context for a trigger inside this one, whose state is kept apart under `name`."""
        context = self._nested.get(name)
        if context is None:
            prefix, is_late = f"{self._prefix}{name}/", is_late or self.is_late
            context = TriggerContext(self.states, self._timers, self._clock, prefix, is_late)
            context.merged = self.merged
            self._nested[name] = context
        return context
