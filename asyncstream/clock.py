"""
Processing time. The only module that reads the time of day.

Operators never ask the machine for the time: they are given it (`advance_clock`) or read the `Clock`
they were opened with, so that a test moves time by hand.
"""

from __future__ import annotations

import time
from typing import Protocol

from asyncstream.errors import PipelineError

__all__ = ("Clock", "ManualClock", "SystemClock")


class Clock(Protocol):
    """Tells processing time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; never smaller than an answer given before."""


class SystemClock:
    """The machine's clock, held back from running backwards (NTP steps, leap seconds)."""

    def __init__(self) -> None:
        self._latest = 0

    def now_ms(self) -> int:
        now = time.time_ns() // 1_000_000
        if now > self._latest:
            self._latest = now
        return self._latest


class ManualClock:
    """A clock that stands still until `set_ms` moves it: for tests and for replays."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now = now_ms

    def now_ms(self) -> int:
        return self._now

    def set_ms(self, now_ms: int) -> None:
        """
        Move the clock to `now_ms`, milliseconds since the epoch.

        Raises:
            PipelineError: if that is in the past of this clock.
        """
        if now_ms < self._now:
            raise PipelineError(f"a clock does not run backwards: it shows {self._now}, got {now_ms}")
        self._now = now_ms
