"""
A circuit breaker that processes share: what it is by the rule of `shared.circuits`, and how a process keeps
to it.

Theory. What a process knows of the record is good for `TELL` seconds: so long calls go through without a word
to the store, and are counted. Then it tells how they ended, and hears how things stand. When there is nothing
to tell, what it knows grows *stale*, and the next call asks first. So no call begins by what was known longer
ago than that, and an idle process costs the store nothing.

The process counts for itself too, as a `Breaker`. When its own calls fail too often it tells at once, and its
calls wait for the answer: the record decides whether that is too much for all.

While the breaker is open a process asks when a call waits and the time has come, and may be given the probe,
which it has to renew. If another has it, it asks again every `POLL` seconds.

While the store is away the process is a `Breaker` of its own, by what it has counted: closed or open as it
was last known to be. What it had to tell is dropped (it has perhaps been heard), and when the store is back
the record decides again.
"""

from __future__ import annotations

import secrets
from asyncio import get_running_loop
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

from asyncstream.guards.breaker import SLICES, Breaker
from asyncstream.guards.guard import EARLY
from asyncstream.guards.shared import RecordsAway, SharedLimit
from asyncstream.guards.shared.circuits import (
    HEARTBEAT,
    Block,
    CircuitAnswer,
    CircuitRequest,
    CircuitRule,
    exchange,
)
from asyncstream.guards.shared.exchanging import Exchanging
from asyncstream.guards.waiting import Waiting
from asyncstream.validation import Duration, duration_seconds, instance

__all__ = ("SharedBreaker",)

TELL: Final = 0.25
"""Seconds between two exchanges while calls end; a tenth of the window if that is shorter."""

POLL: Final = 0.1
"""Seconds between two looks while another process probes."""

SOONEST: Final = 0.01
"""Seconds between two exchanges, at least, while nothing has changed."""


class SharedBreaker(Breaker, Exchanging):
    """
    One breaker of all who share it, in any process.

    The outcomes of all count together. It opens for all when it opens: processes that make calls hear of it
    within 0.25 s (a tenth of the window, if that is shorter) and the time that the store takes to answer,
    which is two seconds at most; one that has made no calls meanwhile asks before the next. After `open_for`
    one process at a time tries the service, with one call; `probes` such calls must succeed, one after the
    other, and then it closes for all. A process that is killed while it tries holds the others up for 0.75 s.

    While the store is away, each process goes on by what it has counted itself, as a `Breaker` does: a
    breaker that was open stays so until its time is up and a call of this process has succeeded, one that was
    closed opens when enough of the calls of this process fail. This is said in the log once, and
    `limit_store_away` is 1.

    Args:
        scope: with whom it is shared.
        failure_ratio, window, open_for, on: as of `Breaker`.
        min_calls: as of `Breaker`, of all processes together.
        failures: as of `Breaker`: in a row of one process, or of all in the order in which they tell.
        probes: as of `Breaker`; one at a time.

    Attributes:
        away: whether the store is away.
    """

    _kind = "circuit"
    _meanwhile = "each process goes by its own count of failures"

    def __init__(
        self,
        *,
        scope: SharedLimit,
        failure_ratio: float | None = 0.5,
        window: Duration = 10.0,
        min_calls: int = 10,
        failures: int | None = None,
        open_for: Duration = 10.0,
        probes: int = 1,
        on: Callable[[Exception], bool] | None = None,
    ) -> None:
        options: dict[str, Any] = {
            "failure_ratio": failure_ratio,
            "window": window,
            "min_calls": min_calls,
            "failures": failures,
            "open_for": open_for,
            "probes": probes,
            "on": on,
        }
        super().__init__(**options)
        instance("scope", scope, SharedLimit)
        self.scope = scope
        self._options = options | {"scope": scope}
        seconds = duration_seconds("window", window)
        ratio = None if failure_ratio is None else float(failure_ratio)
        self.rule = CircuitRule(ratio, seconds, min_calls, failures, self._open_for, probes)
        self.is_closed = False  # the first call asks
        self._tell_every = max(min(TELL, seconds / SLICES), SOONEST)
        self._process = secrets.token_hex(8)
        self._shared_period = 0
        """The number of the period in the record."""
        self._block = Block()
        self._is_tripped = False
        """The own calls fail too often, and the store has not been told."""
        self._probe: Literal["running", "succeeded", "failed", "abandoned"] | None = None
        self._hasty: Waiting[int | None, int] = Waiting()
        """Calls that wait for the store's answer, and for no more."""
        self._told = 0.0
        self._detach()

    def __getstate__(self) -> dict[str, Any]:
        return self._options

    def try_enter(self) -> bool:
        if self.is_closed:
            return True
        return self.away and super().try_enter()

    async def enter_at_once(self) -> int | None:
        if self.try_enter():
            return self.period
        now = get_running_loop().time()
        others_probe = self._is_open and (self._probe is not None or now < self._again)
        if self.away:
            self._serve()
            return None
        if others_probe or self.remaining() > 0:
            return None
        place = self._hasty.join(1)
        self._serve()
        return await self._hasty.turn(place, self.abandoned)

    def succeeded(self, period: int, now: float) -> None:
        if period != self.period:
            return
        if self._is_open and not self.away:
            self._end_probe("succeeded")
            return
        if not self._is_open:
            self._block.succeeded()
            self._tell()
        super().succeeded(period, now)

    def abandoned(self, period: int | None) -> None:
        if self.away:
            super().abandoned(period)
        elif period == self.period and self._is_open:
            self._end_probe("abandoned")

    async def _take_leave(self) -> None:
        """Tell what has not been told, and give a probe back."""
        if self._probe == "running":
            self._probe = "abandoned"
        try:
            if not self.away and (self._block.calls or self._probe is not None):
                await self._update(partial(exchange, request=self._request(wants=False)))
        finally:
            self._probe = None

    # ------------------------------------------------------------------ the process's part

    def _is_too_much(self, now: float) -> bool:
        is_tripped = super()._is_too_much(now)
        self._block.failed(self._row)
        self._tell()
        return is_tripped

    def _open(self, now: float) -> None:
        if self.away:
            super()._open(now)
        elif self._is_open:
            self._end_probe("failed")
        else:
            self.is_closed, self._is_tripped = False, True
            self._serve()

    def _set_timer(self) -> None:
        if self.away:
            super()._set_timer()
        self._serve()

    def _end_probe(self, how: Literal["succeeded", "failed", "abandoned"]) -> None:
        self._probe = how
        self._serve()

    def _tell(self) -> None:
        """See to it that the block is told in time."""
        if self._exchanging is None:
            self._serve()

    def _serve(self) -> None:
        """See to it that exchanges are made."""
        if get_running_loop() is not self._loop:
            self._attach()
            self._told = 0.0
            if self._probe == "running":  # the loop has ended, and the call with it
                self._probe = "abandoned"
        super()._serve()

    def _is_asked(self) -> bool:
        return bool(self._queue.number() or self._hasty.number())

    def _due(self, now: float) -> float | None:
        is_asked = self._is_asked()
        if self.away:
            return self._again if is_asked or self._is_open or self._block.calls else None
        if self._is_tripped or self._probe not in (None, "running"):
            return self._told
        if self._probe == "running":
            return self._told + HEARTBEAT
        if self._is_open:
            return max(self._open_until, self._again) if is_asked else None
        if is_asked:
            return self._told
        told = self._told + self._tell_every
        if self._block.calls:
            return told
        # with nothing to tell, what is known grows stale
        return told if self.is_closed and now < told - EARLY else None

    async def _exchange(self) -> None:
        is_tripped = self._is_tripped
        request = self._request(wants=self._is_asked())
        try:
            answer = await self._update(partial(exchange, request=request))
        except RecordsAway:
            self._is_tripped = self._is_tripped or is_tripped
            raise
        now = self._told = get_running_loop().time()
        self._again = now + (POLL if now >= answer.until else SOONEST)
        self._learn(request, answer)

    def _rest(self) -> None:
        if not self.away:
            self.is_closed = False

    def _request(self, *, wants: bool) -> CircuitRequest:
        block, self._block = self._block, Block()
        request = CircuitRequest(
            self.scope.name, self.rule, self._process, self._shared_period, block, self._probe, wants
        )
        if self._is_tripped:
            self._forget()  # it is for the record to say whether that was too much
            self._is_tripped = False
        return request

    def _learn(self, request: CircuitRequest, answer: CircuitAnswer) -> None:
        """Go by the record."""
        self._stop_timer()
        was_away, self.away = self.away, False
        changed = answer.period != self._shared_period
        self._shared_period = answer.period
        if request.probe != "running" or not answer.probes:
            self._probe = None
        if changed:
            self._block, self._is_tripped = Block(), False
        if answer.is_open:
            if changed or not self._is_open:
                super()._open(get_running_loop().time())
            elif was_away or not answer.probes:
                self.period += 1  # what probes now is not the probe of all
            self._open_until = answer.until
            if answer.probes and self._probe is None:
                self._let_probe_in()
        elif self._is_open:
            super()._close()
        else:
            if changed:
                self.period += 1
                self._forget()
            self.is_closed = not self._is_tripped
            if self.is_closed:
                self._let_all_in()
        self._answer_hasty()

    def _let_probe_in(self) -> None:
        for waiting in (self._queue, self._hasty):
            if waiting.first() is not None:
                waiting.let_in(self.period)
                self._probe = "running"
                return
        self._probe = "abandoned"  # its call was cancelled meanwhile

    def _answer_hasty(self) -> None:
        while not self._is_tripped and self._hasty.first() is not None:
            self._hasty.let_in(self.period if self.try_enter() else None)

    def _note_away(self, error: RecordsAway) -> None:
        """Go by what was last known, and what is counted here."""
        Exchanging._note_away(self, error)
        now = get_running_loop().time()
        probe, self._probe = self._probe, None
        tripped, self._is_tripped = self._is_tripped, False
        if probe is not None:
            self._probes_started = 1
        if probe == "succeeded":
            super().succeeded(self.period, now)
        elif probe == "abandoned":
            super().abandoned(self.period)
        elif probe == "failed" or tripped:
            super()._open(now)
        if not self._is_open:
            self.is_closed = True
            self._let_all_in()
        self._answer_hasty()
        super()._set_timer()

    def _fail(self, error: Exception) -> None:
        Exchanging._fail(self, error)
        self._hasty.fail(error)
