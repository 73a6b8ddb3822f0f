"""
What the keyed operators of this package share: one element after the other, each with the state of its key.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

from asyncstream.elements import Timestamps
from asyncstream.operators.base import Operator, OperatorContext, pairs
from asyncstream.operators.emitting import BufferedEmitter
from asyncstream.operators.results import FirstKeys
from asyncstream.operators.timed import EventTimeOperator
from asyncstream.state import KeyedState
from asyncstream.state.timer_queue import Timer

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
        self._out = BufferedEmitter(self)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._state = KeyedState(context.clock, self.tables)

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
            self.fail_on(value, error)
        out.flush()

    @abstractmethod
    def _take(self, value: Any, timestamp: int | None) -> None:
        """Do with an element, of the key that is current, what is to be done."""


class TimedStep(EventTimeOperator, KeyedStep):
    """Base of such operators that also wait for event time. What they emit for a timer carries its time."""

    def _flush(self) -> None:
        self._out.flush()

    def _fire(self, timestamp: int, key: Any, namespace: Any) -> None:
        self._state.key, self._out.timestamp = key, timestamp
        try:
            self._on_timer(timestamp, key)
        except BaseException as error:
            self._out.flush()
            self.fail_on(Timer(timestamp, key, None), error)

    @abstractmethod
    def _on_timer(self, timestamp: int, key: Any) -> None:
        """Event time has come to what was registered for the key, which is current."""
