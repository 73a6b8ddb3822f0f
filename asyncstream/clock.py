"""
Processing time. The only module that reads the time of day.

Operators never ask the machine for the time: they are given it (`advance_clock`) or read the `Clock`
they were opened with, so that a test moves time by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, runtime_checkable

from asyncstream.errors import PipelineError
from asyncstream.shown import Shown
from asyncstream.validation import refuse

__all__ = (
    "Clock",
    "ManualClock",
    "MovableClock",
    "SystemClock",
    "checked_clock",
    "epoch_seconds",
    "monotonic_seconds",
)

epoch_seconds: Final[Callable[[], float]] = time.time
"""What the machine's clock shows, which may have been set back; for those who ask for every element."""

monotonic_seconds: Final[Callable[[], float]] = time.monotonic
"""The time that event loops of asyncio go by."""


@runtime_checkable
class Clock(Protocol):
    """Tells processing time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; never smaller than an answer given before."""


def checked_clock(clock: Clock | None) -> Clock | None:
    """`clock`, which must be one, or None for the machine's."""
    if clock is not None and not callable(getattr(clock, "now_ms", None)):
        raise refuse("clock", "a Clock", clock, "e.g. SystemClock()")
    return clock


@runtime_checkable
class MovableClock(Clock, Protocol):
    """A clock that stands still until it is moved, and tells its listeners, which need not poll it."""

    def on_move(self, told: Callable[[], None]) -> Callable[[], None]:
        """Have `told` called whenever the clock has been moved; gives a function that ends that."""


class SystemClock(Shown):
    """
    The machine's clock, held back from running backwards (NTP steps, leap seconds, a wrong time that is put
    right). When that was set back, this one goes at half its pace until the machine's has caught up: standing
    still, it would hold up for hours what waits for a time.
    """

    def __init__(self) -> None:
        self._latest = 0
        self._latest_at = 0.0  # by the monotonic clock

    def now_ms(self) -> int:
        now = self.machine_ms()
        if now == self._latest:  # as for most elements of a batch
            return now
        at = monotonic_seconds()
        if now < self._latest:
            now = max(now, self._latest + int((at - self._latest_at) * 500))
        if now > self._latest:
            self._latest, self._latest_at = now, at
        return self._latest

    def machine_ms(self) -> int:
        """What the machine's clock shows, which may have been set back."""
        return time.time_ns() // 1_000_000


class ManualClock(Shown):
    """
    A clock that stands still until `set_ms` moves it: for tests and for replays.

    A job that is started with it fires what is due as soon as it is moved, in the next passes of the event
    loop. In a test under `asyncstream.testing.loop.run_virtual`, which takes no real time::

        clock = ManualClock()
        async with pipeline.start(clock=clock) as job:
            await job.submit("a")
            await asyncio.sleep(1)  # of virtual time: the element has arrived
            clock.set_ms(61_000)
            await asyncio.sleep(1)  # timers up to 60.999 s have fired, and their results are written

    Args:
        now_ms: the time to begin with, milliseconds since the epoch.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = _whole(now_ms)
        self._told: dict[int, Callable[[], None]] = {}
        self._number = 0

    def now_ms(self) -> int:
        return self._now_ms

    def set_ms(self, now_ms: int) -> None:
        """
        Move the clock to `now_ms`, milliseconds since the epoch.

        Raises:
            PipelineError: if that is in the past of this clock.
        """
        if _whole(now_ms) < self._now_ms:
            raise PipelineError(f"a clock does not run backwards: it shows {self._now_ms}, got {now_ms}")
        self._now_ms = now_ms
        for told in list(self._told.values()):
            told()

    def on_move(self, told: Callable[[], None]) -> Callable[[], None]:
        """Have `told` called whenever the clock has been moved; gives a function that ends that."""
        self._number += 1
        self._told[self._number] = told
        return partial(self._forget, self._number)

    def _forget(self, number: int) -> None:
        self._told.pop(number, None)


def _whole(now_ms: object) -> int:
    if isinstance(now_ms, bool) or not isinstance(now_ms, int):
        raise refuse("now_ms", "whole milliseconds since the epoch", now_ms)
    return now_ms
