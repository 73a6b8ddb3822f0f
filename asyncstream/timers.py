"""
Timers of a keyed operator, in event time and in processing time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.state.rows import run_through, same
from asyncstream.state.tables import Tables
from asyncstream.state.timer_queue import OnTimer, TimerQueue, timer_table

__all__ = ("TimerService", "reached")


class _NoRoom(Exception):
    """Ends a pass over timers; the one that has just fired is gone, the others stay."""


def _always() -> bool:
    return True


def reached(watermark: int) -> float:
    """How far event time has come: with the watermark at the end of time nothing lies ahead any more."""
    return watermark if watermark < MAX_TIMESTAMP else math.inf


class TimerService:
    """
    The event-time and processing-time timers of one operator, and the time as they know it.

    The tables bring no watermark: in a service just made it is before all time until a driver says by
    `restore_watermark` how far it had come, or the next one comes. A timer that was due when the state was
    kept waits for the next one.

    Attributes:
        watermark: the event time reached, milliseconds since the epoch. While event timers fire it is
            already the one they fire for.
        event: the event-time timers; register and delete them there.
        processing: the processing-time timers; register them through `register_processing`.
    """

    def __init__(
        self,
        on_event_time: OnTimer,
        on_processing_time: OnTimer,
        wake_at: Callable[[int], None],
        has_room: Callable[[], bool] = _always,
        wake_with_room: Callable[[], object] = _always,
        *,
        tables: Tables | None = None,
        namespace_of: Callable[[Any], Any] = same,
        blame: Callable[[object, BaseException], BaseException] = lambda timer, error: error,
    ) -> None:
        """
        Args:
            on_event_time: called for each event-time timer that fires.
            on_processing_time: called for each processing-time timer that fires.
            wake_at: asks for a call of `advance_clock` at that many milliseconds since the epoch.
            has_room: whether there is room for what another processing-time timer makes of it; asked before
                the first and after each.
            wake_with_room: asks for a call of `advance_clock` once there is.
            tables: where the timers are kept: "timers/event" and "timers/processing"; None: here.
            namespace_of: as for `timer_table`.
            blame: gives the error to raise where callbacks set a timer for ever.
        """
        self.watermark = MIN_TIMESTAMP
        kept = Tables() if tables is None else tables
        self.event, self.processing = (
            TimerQueue(kept.declare(timer_table(f"timers/{domain}", namespace_of)))
            for domain in ("event", "processing")
        )
        self._blame = blame
        kept.on_restored(self._rebuilding)
        self._on_event_time = on_event_time
        self._on_processing_time = on_processing_time
        self._wake = wake_at
        self._has_room = has_room
        self._wake_with_room = wake_with_room
        self._woken_ms: int | None = None
        self._is_held = False  # there is no room for what is due

    def register_processing(self, timestamp: int, key: Hashable, namespace: Hashable = None) -> None:
        """Have a processing-time timer at `timestamp`, milliseconds since the epoch."""
        self.processing.register(timestamp, key, namespace)
        if self._woken_ms is None or timestamp < self._woken_ms:
            self._woken_ms = timestamp
            self._wake(timestamp)

    def advance_watermark(self, timestamp: int) -> None:
        """Run through all of `advancing`."""
        run_through(self.advancing(timestamp))

    def advancing(self, timestamp: int) -> Iterator[None]:
        """
        Event time has reached `timestamp`: fires what is due, in slices; at the end of time that is all there
        is.
        """
        self.watermark = timestamp
        return self.event.advancing(reached(timestamp), self._on_event_time, self._blame)

    def restore_watermark(self, timestamp: int) -> None:
        """Event time had reached `timestamp` when the snapshot was taken: nothing fires."""
        self.watermark = timestamp

    def advance_clock(self, now_ms: int) -> None:
        """
        Processing time has reached `now_ms`: fire what is due, and ask to be woken for the rest.

        A timer for T is due at T. A driver that wants elements of millisecond T to count calls at T + 1.
        Where there is no room, timers wait: they fire in their order once there is.
        """
        self._is_held = False
        earliest = self.processing.earliest()
        if earliest is not None and earliest <= now_ms:
            try:
                if not self._has_room():
                    raise _NoRoom
                self.processing.advance(now_ms, self._fire_with_room, self._blame)
            except _NoRoom:
                earliest = self.processing.earliest()
                if earliest is not None and earliest <= now_ms:
                    self._woken_ms, self._is_held = earliest, True
                    self._wake_with_room()
                    return
        self._ask()

    def metrics(self) -> dict[str, int]:
        """How many timers there are of each domain."""
        return {"event_timers": len(self.event), "processing_timers": len(self.processing)}

    def catch_up(self, now_ms: int) -> None:
        """Nothing follows: if timers wait for room, fire what is due by `now_ms`."""
        if self._is_held:
            self._is_held = False
            self.processing.advance(now_ms, self._on_processing_time, self._blame)

    def _fire_with_room(self, timestamp: int, key: Any, namespace: Any) -> None:
        self._on_processing_time(timestamp, key, namespace)
        if not self._has_room():
            raise _NoRoom

    def _rebuilding(self) -> Iterator[None]:
        yield from self.event.rebuilding()
        yield from self.processing.rebuilding()
        self._ask()

    def _ask(self) -> None:
        self._woken_ms = self.processing.earliest()
        if self._woken_ms is not None:
            self._wake(self._woken_ms)
