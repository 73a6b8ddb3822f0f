"""
Processing-time wake-ups of all operators of a job, on one timer of the event loop.

The event loop and the clock go apart: a wall clock is set, a machine sleeps, a test moves its clock by hand.
So the timer never waits longer than `RECHECK` before the clock is looked at again, and a clock that says when
it is moved needs no timer.

An operator whose results find no room downstream asks to be woken when there is room. Until then what is due
stays with it, in its timers, which are bounded by its keys and not by how long downstream takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from asyncstream.aside import running_loop
from asyncstream.clock import Clock, MovableClock
from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.runtime.aio.jobclock import JobClock

__all__ = ("Wakeups", "Woken")

RECHECK: Final = 1.0
"""Seconds after which a clock that goes by itself is looked at again: it may have been set forward."""


class Woken(Protocol):
    """An operator, or who has it work."""

    def advance_clock(self, now_ms: int) -> None:
        """See `Operator.advance_clock`."""


class Wakeups:
    """
    Calls `advance_clock` on operators that asked to be woken.

    A wake-up for millisecond t goes off when the clock has passed t, so that what still happens within
    that millisecond comes before it (as in Flink).

    Args:
        clock: processing time.
        failed: told of whatever an operator raised.
    """

    def __init__(self, clock: Clock, failed: Callable[[BaseException], None]) -> None:
        self._clock = clock
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._due_ms: dict[Woken, int] = {}
        self._need_room: set[Woken] = set()
        self._timer: asyncio.Handle | None = None
        self._timer_ms = 0
        self._cancelled = False
        self._unhear: Callable[[], object] | None = None
        if isinstance(clock, JobClock | MovableClock):
            self._unhear = clock.on_move(self._moved)

    def wake(self, operator: Woken, at_ms: int) -> None:
        """Wake `operator` once the clock has passed `at_ms`, or at an earlier time already asked for."""
        if self._cancelled:
            return
        if at_ms < self._due_ms.get(operator, at_ms + 1):
            self._due_ms[operator] = at_ms
            if self._timer is None or at_ms < self._timer_ms:
                self._set()

    def wake_with_room(self, operator: Woken) -> None:
        """Wake `operator` once `has_room` is called for it."""
        self._need_room.add(operator)

    def has_room(self, operator: Woken) -> None:
        """There is room again for what `operator` emits."""
        if operator in self._need_room:
            self._need_room.discard(operator)
            self.wake(operator, MIN_TIMESTAMP)

    def cancel(self) -> None:
        """Wake no operator any more."""
        self._cancelled = True
        self._due_ms.clear()
        self._need_room.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unhear is not None:
            self._unhear()
            self._unhear = None

    def _moved(self) -> None:
        """The clock has been moved, perhaps by another thread."""
        if running_loop() is self._loop:
            self._set()
            return
        with suppress(RuntimeError):  # the loop is closed, and may have been since any look at it
            self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._due_ms:
            return
        self._timer_ms = min(self._due_ms.values())
        wait_ms = max(0, self._timer_ms + 1 - self._clock.now_ms())
        if self._unhear is None:
            self._timer = self._loop.call_later(min(wait_ms / 1000, RECHECK), self._ring)
        elif not wait_ms:
            self._timer = self._loop.call_soon(self._ring)

    def _ring(self) -> None:
        self._timer = None
        passed_ms = self._clock.now_ms() - 1
        due = [operator for operator, at_ms in self._due_ms.items() if at_ms <= passed_ms]
        for operator in due:
            del self._due_ms[operator]
        try:
            for operator in due:
                operator.advance_clock(passed_ms)
        except BaseException as error:  # there is no caller to be told, whatever it is
            self._failed(error)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return
        if self._due_ms and self._timer is None:
            self._set()
