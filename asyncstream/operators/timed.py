"""
The part of an operator's contract that its timers keep.
"""

from __future__ import annotations

from asyncstream.operators.base import Operator
from asyncstream.timers import TimerService

__all__ = ("TimedOperator",)


class TimedOperator(Operator):
    """Base of operators with timers, which they make in `open`."""

    _timers: TimerService

    def restore_watermark(self, timestamp: int) -> None:
        self._timers.restore_watermark(timestamp)
        super().restore_watermark(timestamp)

    def due_ms(self) -> int | None:
        return self._timers.event.earliest()
