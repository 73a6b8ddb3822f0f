"""
A rate that processes share: what it is by the rule of `shared.rates`, and how a process keeps to it.

Theory. Calls start with weight that is leased from the store, in blocks. While there is some, a call costs
what it costs with a limiter of one process, and does not suspend. What it uses is noted, with the moment, and
goes back to the store with the next exchange, of which one at a time is under way: when a call waits; or,
when none does, shortly before the lease runs out. What was not used goes back, too, and is there for others:
also when a call waits, to which it is not enough, or two processes could hold what each other's call needs.

Weight that a call was granted and has not begun with counts as held: the call looks at the time when it
begins, and if the lease has run out meanwhile (the loop was held up) it asks anew. So the moment that is
noted is the one at which the call starts.

If an exchange fails, the change may have been made or not. Then the lease is *left*: what is known to be had
of it is used until it runs out, and not reported (the store counts all of it as used), and the next exchange
is about a new one. Until that succeeds calls wait.

Each exchange says how long the last one took, and is lent to for so much longer: else what a slow store lends
would have run out before the process hears of it, and no call would ever start.
"""

from __future__ import annotations

import math
import secrets
from asyncio import get_running_loop
from functools import partial
from typing import Any

from asyncstream.aside import in_its_loop
from asyncstream.errors import PipelineError
from asyncstream.guards.guard import loop_time
from asyncstream.guards.shared import SharedLimit
from asyncstream.guards.shared.exchanging import Exchanging
from asyncstream.guards.shared.rates import SETTLE, RateAnswer, RateRequest, exchange, lease_length
from asyncstream.guards.waiting import Waiting
from asyncstream.shown import Shown
from asyncstream.validation import Duration, count, duration_seconds, instance

__all__ = ("SharedRateLimiter",)


class _Lease:
    """
    Weight that may be used for a while.

    Attributes:
        left: weight that has not been granted.
        granted: weight of calls that have been let in and have not begun.
        used: (when, weight) of those that have begun since the last exchange.
        until: when it runs out, in loop time.
        is_reported: what is used of it is reported.
    """

    __slots__ = ("granted", "id", "is_reported", "left", "until", "used")

    def __init__(self, name: str | None = None) -> None:
        self.id = name or secrets.token_hex(8)
        self.left = self.granted = 0.0
        self.used: list[tuple[float, float]] = []
        self.until = 0.0
        self.is_reported = True

    def take_back(self, amount: float) -> None:
        """A call that has been let in does not begin."""
        self.granted -= amount
        self.left += amount


class SharedRateLimiter(Shown, Exchanging):
    """
    A rate that all share who give the same scope, in any process.

    In no stretch of `per` seconds do calls start whose weights add up to more than `rate`. It may be given as
    `limiter=` to `rate_limit`, or as `rate=` to `HttpLookup`.

    Args:
        rate: the sum of weights that may start in any period.
        per: the period; ten times as long as the store takes to answer, or less than the rate is reached.
        scope: with whom it is shared.

    Attributes:
        waited: how many calls had to wait.
        away: whether the store is away.
    """

    _kind = "rate"
    _meanwhile = "calls wait for it when what was leased is used"

    def __init__(self, rate: int, *, per: Duration = 1.0, scope: SharedLimit) -> None:
        self.rate = count("rate", rate, advice="for fewer than one in a second give a longer per=")
        self.per = duration_seconds("per", per)
        instance("scope", scope, SharedLimit)
        self.scope = scope
        self.waited = 0
        self._detach()

    def _detach(self) -> None:
        super()._detach()
        self._lease = _Lease()
        self._queue: Waiting[_Lease, float] = Waiting()
        self._recent = 0.0  # weight used since the last exchange: what may be wanted until the next
        self._since = math.inf  # when calls began to wait without being lent anything

    def __getstate__(self) -> dict[str, Any]:
        return {"rate": self.rate, "per": self.per, "scope": self.scope}

    def try_acquire(self, amount: float = 1, now: float | None = None) -> bool:
        """
        Whether a call of this weight may start at this time of the event loop; if so it is counted.

        Raises:
            PipelineError: if the weight is more than may ever start at once.
        """
        if not 0 <= amount <= self.rate:
            raise PipelineError(f"a call of weight {amount} never fits a rate of {self.rate}")
        lease = self._lease
        if self._queue or amount > lease.left:
            return False
        now = loop_time() if now is None else now
        if now >= lease.until or get_running_loop() is not self._loop:
            return False
        lease.left -= amount
        self._use(lease, amount, now)
        return True

    async def acquire(self, amount: float = 1) -> None:
        """Wait until a call of this weight may start."""
        if self.try_acquire(amount):
            return
        loop = get_running_loop()
        if loop is not self._loop:
            self._attach()
        self.waited += 1
        is_first = True
        while True:
            place = self._queue.join(amount, in_front=not is_first)
            is_first = False
            self._serve()
            try:
                lease = await self._queue.turn(place, lambda lease: lease.take_back(amount))
            except BaseException:
                if in_its_loop(place):
                    self._admit()
                raise
            lease.granted -= amount
            now = loop.time()
            if now < lease.until:
                self._use(lease, amount, now)
                return

    async def _take_leave(self) -> None:
        """Give back what is leased and not used."""
        lease, self._lease = self._lease, _Lease()
        if lease.is_reported and lease.until > loop_time():
            request = RateRequest(
                self.scope.name, self.rate, self.per, lease.id, 0.0, tuple(lease.used), 0.0, 0.0
            )
            await self._update(partial(exchange, request=request))

    # ------------------------------------------------------------------ the process's part

    def _use(self, lease: _Lease, amount: float, now: float) -> None:
        self._recent += amount
        if lease.is_reported:
            lease.used.append((now, amount))

    def _admit(self) -> None:
        """Start the calls that may start."""
        lease = self._lease
        while (amount := self._queue.first()) is not None:
            if amount > lease.left or loop_time() >= lease.until:
                break
            lease.left -= amount
            lease.granted += amount
            self._queue.let_in(lease)

    def _due(self, now: float) -> float | None:
        self._admit()
        if self._queue:
            return self._again
        lease = self._lease
        if lease.is_reported and (lease.left or lease.granted or lease.used):
            return lease.until - SETTLE * lease_length(self.per) - (self._takes or 0.0)
        return None

    async def _exchange(self) -> None:
        """
        Tell the store what has been used, and be lent what the calls that wait need, if any does; raises
        `RecordsAway` if it does not answer.
        """
        lease = self._lease if self._lease.is_reported else _Lease()
        waiting = [amount for place, amount in self._queue if not place.done()]
        self._since = min(self._since, loop_time()) if waiting else math.inf
        lease.left = 0.0  # all of it goes back
        held = lease.granted
        # of the first, no more than must be, for it may come too late to be used
        needed = waiting[:1] if self._takes is None else waiting
        wanted = held + sum(needed) + self._recent if waiting else 0.0
        self._recent = 0.0
        reported = len(lease.used)
        request = RateRequest(
            self.scope.name,
            self.rate,
            self.per,
            lease.id,
            held,
            tuple(lease.used),
            waiting[0] if waiting else 0.0,
            wanted,
            self._since,
            self._takes or 0.0,
        )
        try:
            answer: RateAnswer = await self._update(partial(exchange, request=request))
        except BaseException:
            self._lease.is_reported = False
            self._lease.used.clear()
            raise
        if answer.lost:
            lease = _Lease(lease.id)
        else:
            del lease.used[:reported]
        if answer.granted:
            self._since = math.inf
        lease.left += answer.granted
        lease.until = answer.until
        self._lease = lease
        self.away, self._again = False, answer.again
