"""
What is known of the health of a service: the state machine of a circuit breaker, for one process.

States. *Closed*: calls go through and their outcomes are counted, in slices of a sliding window. Too many
failures open it. *Open*: no call goes through, until `open_for` has passed. *Half open*: as many calls
as `probes` go through. When all of them have succeeded it closes; the first that fails opens it again.

Each change of state begins a new period (`period`), and an outcome counts only in the period in which
its call began: a straggler from before the breaker opened says nothing about the service now.

While it is not closed, calls wait (the stream pauses behind them) or are refused, as chosen. Those that
wait stand in a queue, and the one at its head is the probe.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import get_running_loop
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

from asyncstream.errors import describe_error
from asyncstream.guards.guard import EARLY
from asyncstream.guards.outcomes import is_programming_error, is_retryable
from asyncstream.guards.waiting import Queued, Waiting
from asyncstream.shown import Shown
from asyncstream.validation import Duration, count, duration_seconds, function, real_number, refuse

__all__ = ("SLICES", "Breaker", "CircuitState")

log = logging.getLogger("asyncstream.guards")

SLICES = 10
"""Into how many slices the window is cut: it slides in steps of a tenth."""


class CircuitState(Enum):
    """Where a circuit breaker stands; the value is what metrics show."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class Breaker(Shown, Queued):
    """
    What is known of the health of a service; guards of several functions may share it, in one event loop.

    Args:
        failure_ratio: opens when at least this part of the calls within the window failed; None: never.
        window: how far back calls count for the ratio.
        min_calls: fewer calls than this within the window give no ratio.
        failures: opens when this many calls in a row failed; None: never.
        open_for: how long no call goes through.
        probes: how many calls try the service after that.
        on: whether an error says that the service fails; None: any does that does not say
            `retryable = False` of itself, as the answer to a wrong request does, and is no TypeError and the
            like, which says nothing about a service.
    """

    def __init__(
        self,
        *,
        failure_ratio: float | None = 0.5,
        window: Duration = 10.0,
        min_calls: int = 10,
        failures: int | None = None,
        open_for: Duration = 10.0,
        probes: int = 1,
        on: Callable[[Exception], bool] | None = None,
    ) -> None:
        if failure_ratio is None and failures is None:
            raise refuse("circuit_breaker", "failure_ratio= or failures=", None)
        if failure_ratio is not None:
            real_number(
                "failure_ratio", failure_ratio, "a number above 0 and at most 1", lambda n: 0 < n <= 1
            )
        self._failure_ratio = failure_ratio
        self._slice_length = duration_seconds("window", window) / SLICES
        self._min_calls = count("min_calls", min_calls)
        self._failures = None if failures is None else count("failures", failures)
        self._open_for = duration_seconds("open_for", open_for)
        self._probes = count("probes", probes)
        self._on = is_retryable if on is None else function("on", on, "error")
        self.is_closed = True
        """Whether calls go through freely."""
        self._is_open = False
        """Whether it has opened and not closed since."""
        self.period = 0
        """How often the state has changed: calls that begin and end in different ones do not count."""
        self._row = 0
        self._slices: deque[list[int]] = deque(([0, 0] for _ in range(SLICES)), maxlen=SLICES)
        """[calls, failures] of each slice of the window, the oldest first."""
        self._slice_ends = 0.0
        self._open_until = 0.0
        self._used_in: asyncio.AbstractEventLoop | None = None
        self._probes_started = 0
        self._probes_succeeded = 0
        self._queue: Waiting[int, int] = Waiting()
        self._timer: asyncio.TimerHandle | None = None
        self.opened = 0
        """How many times it has opened."""
        self.waited = 0
        """How many calls had to wait."""
        self.refused = 0
        """How many calls were refused."""

    def __getstate__(self) -> dict[str, Any]:
        """Of one that is sent to another process, which has a loop and calls of its own: closed."""
        of_this_loop = dict.fromkeys(("_used_in", "_timer"))
        begun = {"is_closed": True, "_is_open": False, "_probes_started": 0, "_probes_succeeded": 0}
        return {**self.__dict__, **of_this_loop, **begun, "_queue": Waiting()}

    @property
    def state(self) -> CircuitState:
        """Where the breaker stands now."""
        if not self._is_open:
            return CircuitState.CLOSED
        return CircuitState.OPEN if self.remaining() > 0 else CircuitState.HALF_OPEN

    def remaining(self) -> float:
        """Seconds until a call may go through; 0 unless the breaker is open."""
        if not self._is_open or self._used_in is None:
            return 0.0
        remaining = self._open_until - self._used_in.time()
        return remaining if remaining > EARLY else 0.0

    def try_enter(self) -> bool:
        """Whether a call may begin now; if so, it belongs to the present period."""
        if self.is_closed:
            return True
        loop = get_running_loop()
        if loop is not self._used_in:
            self._go_on_in(loop)
        if self._queue or self._probes_started >= self._probes or self.remaining() > 0:
            return False
        self._probes_started += 1
        return True

    async def enter_at_once(self) -> int | None:
        """Begin a call if one may begin now; gives the period that it belongs to."""
        return self.period if self.try_enter() else None

    async def enter(self) -> int:
        """Begin a call as soon as that is allowed; gives the period that it belongs to."""
        if self.try_enter():
            return self.period
        self.waited += self._is_open
        place = self._queue.join(1)
        if self._queue.is_first(place):
            self._stop_timer()
        self._set_timer()
        try:
            return await self._queue.turn(place, self.abandoned)
        except BaseException:
            if self._queue.first() is None:
                self._stop_timer()
            raise

    def succeeded(self, period: int, now: float) -> None:
        """A call that began in this period has succeeded now, at this time of the event loop."""
        if period != self.period:
            return
        if not self._is_open:
            self._row = 0
            if now >= self._slice_ends:
                self._slide(now)
            self._slices[-1][0] += 1
            return
        self._probes_succeeded += 1
        if self._probes_succeeded == self._probes:
            self._close()

    def failed(self, period: int, now: float, error: Exception) -> None:
        """A call that began in this period has raised `error` now."""
        try:
            is_failure = self._on(error)
        except BaseException:
            self.abandoned(period)  # or the place of this call would stay taken
            raise
        if not is_failure and is_programming_error(error):
            self.abandoned(period)
        elif not is_failure:
            self.succeeded(period, now)
        elif period == self.period and (self._is_open or self._is_too_much(now)):
            if self.is_closed:
                log.warning(
                    "a circuit breaker has opened, and tries the service again in %g s; the last call: %s",
                    self._open_for,
                    describe_error(error),
                    extra={"error_type": type(error).__name__},
                )
            self._open(now)

    def abandoned(self, period: int | None) -> None:
        """A call that began in this period, or in none, has ended without telling anything of the service."""
        if period == self.period and self._is_open:
            self._probes_started -= 1
            self._set_timer()

    def _is_too_much(self, now: float) -> bool:
        """Count one more failure; whether the breaker must open."""
        self._row += 1
        if not 0 < self._slice_ends - now <= self._slice_length + EARLY:
            self._slide(now)
        current = self._slices[-1]
        current[0] += 1
        current[1] += 1
        if self._failures is not None and self._row >= self._failures:
            return True
        if self._failure_ratio is None:
            return False
        calls = sum(calls for calls, _ in self._slices)
        failures = sum(failures for _, failures in self._slices)
        return calls >= self._min_calls and failures >= self._failure_ratio * calls

    def _slide(self, now: float) -> None:
        """Move the window on to the slice that is now."""
        late = now - self._slice_ends
        if late < 0:  # another event loop has a clock of its own: what was counted by the one before is over
            late = SLICES * self._slice_length
        # after a rest as long as the window all slices are new
        for _ in range(min(SLICES, int(late // self._slice_length) + 1)):
            self._slices.append([0, 0])
        self._slice_ends = now + self._slice_length - late % self._slice_length

    def _go_on_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """It is open in another event loop than before, which may have a clock of its own."""
        before, self._used_in = self._used_in, loop
        self._open_until = min(self._open_until, loop.time() + self._open_for)
        if before is not None and before.is_closed():  # the calls that try the service have ended with it
            self.period += 1
            self._probes_started = self._probes_succeeded = 0

    def _open(self, now: float) -> None:
        self._used_in = get_running_loop()
        self._open_until = now + self._open_for
        self.is_closed, self._is_open = False, True
        self.period += 1
        self._probes_started = self._probes_succeeded = 0
        self._forget()
        self.opened += 1
        self._set_timer()

    def _close(self) -> None:
        log.info("a circuit breaker has closed again")
        self.is_closed, self._is_open = True, False
        self.period += 1
        self._row = 0
        self._let_all_in()

    def _forget(self) -> None:
        """Begin to count anew."""
        self._row = 0
        self._slices.extend([0, 0] for _ in range(SLICES))

    def _let_all_in(self) -> None:
        while self._queue.first() is not None:
            self._queue.let_in(self.period)

    def _set_timer(self) -> None:
        """Set the timer at which waiting calls may go on."""
        if self._timer is None and self._queue and self._probes_started < self._probes:
            loop = get_running_loop()
            self._timer = loop.call_at(self._open_until, self._let_probes_in)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _let_probes_in(self) -> None:
        self._timer = None
        if self._is_open and self.remaining() == 0:
            while self._probes_started < self._probes and self._queue.first() is not None:
                self._probes_started += 1
                self._queue.let_in(self.period)
        self._set_timer()
