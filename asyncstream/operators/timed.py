"""
The part of an operator's contract that its timers keep.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import Any

from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.state import Cell
from asyncstream.timers import TimerService

__all__ = ("EventTimeOperator", "TimedOperator", "warn_of_late")

log = logging.getLogger("asyncstream.elements")


def warn_of_late(step: str, tag: str, timestamp: int | None) -> None:
    """Say of the first late element that a step drops what will only be counted of the others."""
    log.warning(
        "step %r dropped an element with timestamp %s: it came too late. Further ones are only counted, as "
        "late_dropped; read .%s to have them, or let event time wait longer for what is out of order",
        step,
        timestamp,
        tag,
        extra={"step": step},
    )


class TimedOperator(Operator):
    """Base of operators with timers, which they make in `open`."""

    _timers: TimerService

    def restore_watermark(self, timestamp: int) -> None:
        self._timers.restore_watermark(timestamp)
        super().restore_watermark(timestamp)

    def due_ms(self) -> int | None:
        return self._timers.event.earliest()


class EventTimeOperator(TimedOperator):
    """
    Base of operators that keep elements until event time comes to them, or has passed them.

    They pass a watermark on after all that it caused.
    """

    _late_dropped = 0

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self.tables.declare_cell("late_dropped", Cell.of(self, "_late_dropped", "sum"))
        self._timers = TimerService(self._fire, self._fire, context.wake_at, tables=self.tables)

    def advance_watermark(self, timestamp: int) -> None:
        self._timers.advance_watermark(timestamp)
        self._flush()
        super().advance_watermark(timestamp)

    def metrics(self) -> dict[str, int]:
        return {
            **super().metrics(),
            "event_timers": len(self._timers.event),
            "late_dropped": self._late_dropped,
        }

    def _leave_out(self, tag: str, value: Any, timestamp: int | None) -> None:
        """An element came too late: it goes to this side output, or is counted if nothing reads that."""
        if tag in self.side:
            self.side[tag].process(value, timestamp)
            return
        if not self._late_dropped:
            warn_of_late(self.context.name, tag, timestamp)
        self._late_dropped += 1

    @abstractmethod
    def _fire(self, timestamp: int, key: Any, namespace: Any) -> None:
        """Event time has come to what was registered."""

    @abstractmethod
    def _flush(self) -> None:
        """Hand on the results so far."""
