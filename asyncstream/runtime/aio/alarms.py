"""
Processing-time wake-ups of all operators of a job, on one timer of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncstream.clock import Clock
from asyncstream.operators.base import Operator

__all__ = ("Alarms",)


class Alarms:
    """
    Calls `advance_clock` on operators that asked to be woken.

    An alarm for millisecond t goes off when the clock has passed t, so that what still happens within
    that millisecond comes before it (as in Flink).

    Args:
        clock: processing time.
        failed: told of an exception that an operator raised.
    """

    def __init__(self, clock: Clock, failed: Callable[[BaseException], None]) -> None:
        self._clock = clock
        self._failed = failed
        self._due_ms: dict[Operator, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def wake(self, operator: Operator, at_ms: int) -> None:
        """Wake `operator` once the clock has passed `at_ms`, or at an earlier time already asked for."""
        if at_ms < self._due_ms.get(operator, at_ms + 1):
            self._due_ms[operator] = at_ms
            if self._timer is None or at_ms < self._timer_ms:
                self._set()

    def cancel(self) -> None:
        """Wake nobody any more."""
        self._due_ms.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = min(self._due_ms.values())
        wait_ms = max(0, self._timer_ms + 1 - self._clock.now_ms())
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._ring)

    def _ring(self) -> None:
        self._timer = None
        passed_ms = self._clock.now_ms() - 1
        due = [operator for operator, at_ms in self._due_ms.items() if at_ms <= passed_ms]
        for operator in due:
            del self._due_ms[operator]
        try:
            for operator in due:
                operator.advance_clock(passed_ms)
        except Exception as error:
            self._failed(error)
            return
        if self._due_ms and self._timer is None:
            self._set()
