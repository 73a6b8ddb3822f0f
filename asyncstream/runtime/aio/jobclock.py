"""
The processing time of one job: what its clock shows, but never going backwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from asyncstream.clock import Clock, MovableClock, SystemClock

__all__ = ("JobClock",)

STEP_MS: Final = 1000
"""Milliseconds that a clock gains on the event loop at once when it was set forward; less is its own pace."""


class JobClock:
    """
    A `Clock` over another one.

    When that one is set back, or the job goes on from one whose clock was ahead, time goes on from where it
    was, at that clock's pace; so a timer of 0.3 s takes 0.3 s. When it is set forward, it is followed, less
    what it was behind. A clock moved by hand that is behind is waited for.

    Args:
        clock: what to follow; None: the event loop if it tells processing time, as that of
            `asyncstream.testing` does, else the system's clock.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._seen_ms = 0
        self._seen_at = 0.0  # in loop time
        self._ahead_ms = 0

    def begin(self) -> None:
        """Called in the job's event loop, before anything else."""
        self._loop = asyncio.get_running_loop()
        if self._clock is None:
            self._clock = self._loop if isinstance(self._loop, Clock) else SystemClock()
        self._base: Clock = self._clock
        self._by_hand = isinstance(self._base, MovableClock)
        # the machine's clock as it is: held after it was set back, it would hold every timer back
        self._read = self._base.machine_ms if isinstance(self._base, SystemClock) else self._base.now_ms
        self._seen_ms, self._seen_at = self._read(), self._loop.time()

    def now_ms(self) -> int:
        now_ms = self._read()
        if now_ms == self._seen_ms:  # as for most elements of a batch
            return now_ms + self._ahead_ms
        at = self._loop.time()
        if self._ahead_ms or now_ms < self._seen_ms:
            self._adapt(now_ms - self._seen_ms, 0 if self._by_hand else int((at - self._seen_at) * 1000))
        self._seen_ms, self._seen_at = now_ms, at
        return now_ms + self._ahead_ms

    def _adapt(self, gained_ms: int, passed_ms: int) -> None:
        """The clock has gained so much since it last moved, while so much loop time has passed."""
        if gained_ms < 0:
            self._ahead_ms += passed_ms - gained_ms
        elif self._by_hand or gained_ms - passed_ms > STEP_MS:
            self._ahead_ms = max(0, self._ahead_ms + passed_ms - gained_ms)

    def not_before(self, time_ms: int) -> None:
        """An earlier job has seen this time, in milliseconds since the epoch."""
        behind_ms = time_ms - self.now_ms()
        if behind_ms > 0:
            self._ahead_ms += behind_ms

    def on_move(self, told: Callable[[], None]) -> Callable[[], None] | None:
        """As `MovableClock.on_move`; None if the clock does not say when it is moved."""
        return self._base.on_move(told) if isinstance(self._base, MovableClock) else None
