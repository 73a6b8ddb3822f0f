"""
What the keyed operators of this package share: one element after the other, each with the state of its key.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

from asyncstream.elements import Timestamps
from asyncstream.operators.base import Operator, OperatorContext, pairs
from asyncstream.operators.process import Emitter
from asyncstream.operators.results import FirstKeys
from asyncstream.operators.timed import TimedOperator
from asyncstream.state import Cell, KeyedState
from asyncstream.state.timer_queue import Timer
from asyncstream.timers import TimerService

__all__ = ("LATE", "KeyedStep", "TimedStep")

LATE: Final = "late"
"""Tag of the output for elements that came too late."""


class KeyedStep(Operator):
    """
    Base of operators that look at one element at a time, with what they remember of its key.

    They emit for an element, at once, with its timestamp, and complete with their input.
    """

    def __init__(self, key_by: Callable[[Any], Any]) -> None:
        super().__init__()
        self._key_by: Callable[[Any], Any] = FirstKeys(self, key_by)
        self._out: Emitter[Any] = Emitter(self)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._state = KeyedState(context.clock, self.tables)

    def snapshot(self) -> Any:
        self._state.purge()
        return super().snapshot()

    def metrics(self) -> dict[str, int]:
        return {"state_entries": len(self._state)}

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        key_by, state, out, take = self._key_by, self._state, self._out, self._take
        value = None
        try:
            for value, timestamp in pairs(values, timestamps):
                state.key = key_by(value)
                out.timestamp = timestamp
                take(value, timestamp)
        except BaseException as error:
            out.flush()
            raise self.blame(value, error) from error
        out.flush()

    @abstractmethod
    def _take(self, value: Any, timestamp: int | None) -> None:
        """Do with an element, of the key that is current, what is to be done."""


class TimedStep(TimedOperator, KeyedStep):
    """
    Base of such operators that also wait for event time; what is too late goes to `late`, or is counted.

    What they emit for a timer carries its time. They pass a watermark on after all that it caused.
    """

    def __init__(self, key_by: Callable[[Any], Any]) -> None:
        super().__init__(key_by)
        self._late_dropped = 0
        self.tables.declare_cell("late_dropped", Cell.of(self, "_late_dropped", "sum"))

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._timers = TimerService(self._fire, self._fire, context.wake_at, tables=self.tables)

    def advance_watermark(self, timestamp: int) -> None:
        self._timers.advance_watermark(timestamp)
        self._out.flush()
        super().advance_watermark(timestamp)

    def metrics(self) -> dict[str, int]:
        return {
            **super().metrics(),
            "event_timers": len(self._timers.event),
            "late_dropped": self._late_dropped,
        }

    def _leave_out(self, value: Any, timestamp: int | None) -> None:
        """An element that came too late."""
        if LATE in self.side:
            self._out.aside(LATE, value, timestamp)
        else:
            self._late_dropped += 1

    def _fire(self, timestamp: int, key: Any, namespace: Any) -> None:
        self._state.key, self._out.timestamp = key, timestamp
        try:
            self._on_timer(timestamp, key)
        except BaseException as error:
            self._out.flush()
            raise self.blame(Timer(timestamp, key, None), error) from error

    @abstractmethod
    def _on_timer(self, timestamp: int, key: Any) -> None:
        """Event time has come to what was registered for the key, which is current."""
