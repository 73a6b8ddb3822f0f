"""
The part of an operator's contract that its timers keep.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.emitting import BufferedEmitter
from asyncstream.state import Cell
from asyncstream.state.rows import same
from asyncstream.state.timer_queue import OnTimer
from asyncstream.timers import TimerService

__all__ = ("ClockedOperator", "EventTimeOperator", "MayBeLate", "TimedOperator")

log = logging.getLogger("asyncstream.elements")


class MayBeLate(Operator):
    """Base of operators for which elements may come too late; those that nobody reads are counted."""

    _late_dropped = 0

    def _drop_late(self, tag: str, timestamp: int | None, count: int = 1) -> None:
        """So many elements that came too late, of which this is the timestamp, go nowhere."""
        if not self._late_dropped:
            log.warning(
                "step %r dropped an element with timestamp %s: it came too late. Further ones are only "
                "counted, as late_dropped; read .%s to have them, or let event time wait longer for what is "
                "out of order",
                self.context.name,
                timestamp,
                tag,
                extra={"step": self.context.name},
            )
        self._late_dropped += count


class TimedOperator(Operator):
    """
    Base of operators with timers, which they make in `open`.

    They pass a watermark on after all that it caused.
    """

    works_off = True

    _timers: TimerService

    def advance_watermark(self, timestamp: int) -> None:
        self.context.work_off(self._advancing(timestamp))

    def _advancing(self, timestamp: int) -> Iterator[None]:
        for _ in self._timers.advancing(timestamp):
            self._flush()
            yield
        self._flush()
        super().advance_watermark(timestamp)

    @abstractmethod
    def _flush(self) -> None:
        """Hand on the results so far."""

    def restore_watermark(self, timestamp: int) -> None:
        self._timers.restore_watermark(timestamp)
        super().restore_watermark(timestamp)

    def due_ms(self) -> int | None:
        return self._timers.event.earliest()


class ClockedOperator(Operator):
    """
    Base of operators that have timers of processing time, too. While there is no room for what comes of these
    they wait, but not beyond the end of event time, or of the input.
    """

    _emitter: BufferedEmitter
    _timers: TimerService

    def _new_timers(
        self, on_event_time: OnTimer, on_clock: OnTimer, namespace_of: Callable[[Any], Any] = same
    ) -> TimerService:
        """To be made in `open`."""
        return TimerService(
            on_event_time,
            on_clock,
            self.context.wake_at,
            self._emitter.has_room,
            self.context.wake_with_room,
            tables=self.tables,
            namespace_of=namespace_of,
            blame=self.blame,
        )

    def advance_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_TIMESTAMP:
            self._catch_up()
        super().advance_watermark(timestamp)

    def advance_clock(self, now_ms: int) -> None:
        self._timers.advance_clock(now_ms)
        self._flush()

    def end_input(self) -> None:
        self._catch_up()
        super().end_input()

    def metrics(self) -> dict[str, int]:
        return {**super().metrics(), **self._timers.metrics()}

    def _catch_up(self) -> None:
        """What waits for room comes now."""
        self._timers.catch_up(self.context.clock.now_ms() - 1)
        self._flush()

    def _flush(self) -> None:
        self._emitter.flush()


class EventTimeOperator(MayBeLate, TimedOperator):
    """Base of operators that keep elements until event time comes to them, or has passed them."""

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self.tables.declare_cell("late_dropped", Cell.of(self, "_late_dropped", "sum"))
        self._timers = TimerService(self._fire, self._fire, context.wake_at, tables=self.tables)

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
        else:
            self._drop_late(tag, timestamp)

    @abstractmethod
    def _fire(self, timestamp: int, key: Any, namespace: Any) -> None:
        """Event time has come to what was registered."""
