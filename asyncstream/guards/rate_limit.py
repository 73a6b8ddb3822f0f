"""
Rate limit: not more than so many calls in any stretch of time.

Two rules, both exact. *The window*: in no stretch of `per` seconds do calls start whose weights add up
to more than `rate`. A log of what started within the last `per` seconds decides that. *The spacing*, if
`burst` is less than `rate`: not more than `burst` at once, and then one each `per / rate` seconds, kept
as the one instant (`_paid_until`) up to which the calls so far have used up their share of time.

A token bucket alone, the usual choice, lets through up to twice the rate after a rest, which is exactly
when a service that counts per minute begins to answer 429.

Calls that must wait stand in a queue, first come first served: a heavy call at its head holds back light
ones behind it, or it would wait forever. One timer at most is set, for the head of the queue.

A process that does a part of the work has a part of every rate (`share_rates`): what its limiters allow
together with those of the others is the rate. They know nothing of each other, so a part that is not used is
lost.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import get_running_loop
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeVar
from weakref import WeakSet

from asyncstream.aside import in_its_loop
from asyncstream.errors import PipelineError
from asyncstream.guards.guard import (
    EARLY,
    Call,
    Guard,
    guards_in,
    loop_time,
    refuse_beside,
    usable_as_decorator,
)
from asyncstream.guards.shared import SharedLimit
from asyncstream.guards.shared.exchanging import STORE_AWAY, waits
from asyncstream.guards.shared.rate_limiter import SharedRateLimiter
from asyncstream.guards.waiting import Queued, Waiting
from asyncstream.shown import Shown
from asyncstream.validation import Duration, count, duration_seconds, function, overrides, real_number, refuse

__all__ = ("Limiter", "RateLimit", "RateLimiter", "divides_rate", "rate_limit", "share_rates")

In = TypeVar("In")
Out = TypeVar("Out")


class Limiter(Protocol):
    """What a rate-limited call asks for leave: a `RateLimiter`, an `aiolimiter.AsyncLimiter` or alike."""

    async def acquire(self, amount: float, /) -> Any:
        """Returns when a call of this weight may start."""


_limiters: WeakSet[RateLimiter] = WeakSet()
"""All of this process."""

_processes = 1
"""Of those that share every rate, this one included."""


def share_rates(processes: int) -> None:
    """
    Have every `RateLimiter` of this process, also those still to be made, allow its part of the rate.

    Args:
        processes: how many share it, this one included; 1: it has all of it, as in the beginning.
    """
    global _processes
    if processes != _processes:
        _processes = processes
        for limiter in _limiters:
            limiter.share()


class RateLimiter(Shown, Queued):
    """
    A rate that any number of calls, steps and pipelines of one event loop share.

    It remembers the calls of the last period: `rate` of them at most, if they weigh 1.
    On Spark it is divided among the tasks that run at once, as far as their number is known.

    Args:
        rate: the sum of weights that may start in any period.
        per: the period.
        burst: the sum of weights that may start at once; by default all of `rate`. For more at once than
            `rate`, give a longer period.
    """

    def __init__(self, rate: int, *, per: Duration = 1.0, burst: int | None = None) -> None:
        self.rate = count("rate", rate, advice="for fewer than one in a second give a longer per=")
        self.per = duration_seconds("per", per)
        self.burst = self.rate if burst is None else count("burst", burst)
        if self.burst > self.rate:
            raise refuse("burst", f"at most the rate, {rate}", burst, "give a longer period, with its rate")
        self._paid_until = 0.0
        self._log: deque[tuple[float, float]] = deque()  # (start, weight), the oldest first
        self._used = 0.0
        self._queue: Waiting[float, float] = Waiting()  # whose leave is the time from which it counts
        self._timer: asyncio.TimerHandle | None = None
        self.waited = 0
        """How many calls had to wait."""
        self.share()
        _limiters.add(self)

    def share(self) -> None:
        """Allow what the number of processes that share the rate leaves to this one; see `share_rates`."""
        parts = _processes
        # rounded down, or all together would be above it; where there is no whole call for each, it is
        # each one's turn more rarely
        self._most = max(self.rate // parts, 1)
        self._within = max(self.per, self.per * parts / self.rate)
        self._at_once = max(self.burst // parts, 1)
        self._spacing = 0.0 if self._at_once == self._most else self._within / self._most

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.share()
        _limiters.add(self)

    def try_acquire(self, amount: float = 1, now: float | None = None) -> bool:
        """
        Whether a call of this weight may start at this time of the event loop; if so it is counted.

        Raises:
            PipelineError: if the weight is more than may ever start at once.
        """
        if now is None:
            now = loop_time()
        # while all that is in the log fits, it does not matter what of it is too old to count
        used = self._used + amount
        if used <= self._most and amount > 0 and not self._spacing and not self._queue:
            self._used = used
            self._log.append((now, amount))
            return True
        if not 0 <= amount <= self.burst:
            raise PipelineError(f"a call of weight {amount} never fits a burst of {self.burst}")
        if amount > self._at_once or self._queue or self._free_at(amount, now) > now:
            return False
        self._count(amount, now)
        return True

    async def acquire(self, amount: float = 1) -> None:
        """Wait until a call of this weight may start."""
        if self.try_acquire(amount):
            return
        self.waited += 1
        most = self._at_once
        weights = [min(amount, most)]
        while amount > most:  # in pieces if it is more than this process's part of the rate
            amount -= most
            weights.append(min(amount, most))
        places = [self._queue.join(weight) for weight in weights]
        if self._timer is None or self._queue.is_first(places[0]):
            self._admit(0.0)
        try:
            for place in places:
                await place
        except BaseException:
            if in_its_loop(places[-1]):
                for place, weight in zip(places, weights, strict=True):
                    place.cancel()
                    if self._queue.left(place):
                        self._give_back(place.result(), weight)
                self._admit(0.0)  # the next may be lighter, or the queue may be empty
            raise

    def _free_at(self, amount: float, now: float) -> float:
        """When a call of this weight may start: not after `now` if it may start at once."""
        log = self._log
        if log and (log[0][0] > now + EARLY or self._paid_until > now + self._within + EARLY):
            self._forget_future(now)
        free_at = now
        if self._spacing:
            free_at = self._paid_until - (self._at_once - amount) * self._spacing
            if free_at <= now + EARLY:  # sums of parts of a second are not exact
                free_at = now
        if self._used + amount > self._most:
            while log and log[0][0] + self._within <= now:
                self._used -= log.popleft()[1]
        excess = self._used + amount - self._most
        for started, weight in log:
            if excess <= 0:
                break
            excess -= weight
            free_at = max(free_at, started + self._within)
        return free_at

    def _forget_future(self, now: float) -> None:
        """Another event loop has a clock of its own: what the one before counted means nothing to it."""
        kept = [entry for entry in self._log if entry[0] <= now]
        self._log.clear()
        self._log.extend(kept)
        self._used = sum(weight for _, weight in kept)
        self._paid_until = min(self._paid_until, now)

    def _count(self, amount: float, now: float) -> None:
        if amount:
            self._log.append((now, amount))
            self._used += amount
        if self._spacing:
            self._paid_until = max(self._paid_until, now) + amount * self._spacing

    def _give_back(self, counted_at: float, amount: float) -> None:
        """A call that was let in at this time was cancelled before it began."""
        if (counted_at, amount) in self._log:  # else it is too old to count
            self._log.remove((counted_at, amount))
            self._used -= amount
        if self._spacing:
            self._paid_until -= amount * self._spacing

    def _admit(self, due: float) -> None:
        """Start calls that may start, and set the timer for the next; `due` is what a timer was set for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = get_running_loop()
        now = loop.time()
        if now < due <= now + EARLY:
            now = due
        while (amount := self._queue.first()) is not None:
            free_at = self._free_at(amount, now)
            if free_at > now:
                self._timer = loop.call_at(free_at, self._admit, free_at)
                return
            self._count(amount, now)
            self._queue.let_in(now)


class RateLimit(Guard[In, Out]):
    """
    Starts calls no faster than a rate; those above it wait, first come first served.

    Args:
        fn: the async function that it wraps.
        rate: as of `RateLimiter`, for a rate of this guard alone.
        per, burst: as of `RateLimiter`.
        scope: with whom the rate is shared, in other processes and on other hosts, as `SharedRateLimiter`;
            then without `burst`.
        limiter: a rate shared with others, instead.
        weight: of each call: a number, or a function of the element.
    """

    together: ClassVar = {STORE_AWAY: max}

    def __init__(
        self,
        fn: Call[In, Out],
        *,
        rate: int | None = None,
        per: Duration = 1.0,
        burst: int | None = None,
        scope: SharedLimit | None = None,
        limiter: Limiter | None = None,
        weight: float | Callable[[In], float] = 1,
    ) -> None:
        super().__init__(fn)
        if (rate is None) == (limiter is None):
            raise refuse("rate_limit", "either rate= or limiter=", (rate, limiter))
        if limiter is not None:
            refuse_beside("limiter", RateLimit, per=per, burst=burst)
        if scope is not None and (rate is None or burst is not None):
            raise refuse("scope", "rate= to go with it, and no burst=", scope)
        if rate is not None:
            limiter = (
                SharedRateLimiter(rate, per=per, scope=scope)
                if scope is not None
                else RateLimiter(rate, per=per, burst=burst)
            )
        if limiter is None or isinstance(limiter, type) or not hasattr(limiter, "acquire"):
            raise refuse("limiter", "a RateLimiter or an aiolimiter.AsyncLimiter", limiter)
        overrides("limiter", limiter, Limiter)
        self.limiter: Limiter = limiter
        self._ours = limiter if isinstance(limiter, RateLimiter | SharedRateLimiter) else None
        self.shares = self._ours
        self.counted = () if self._ours is None else ("rate_limited",)
        # that of others is only asked to wait, which does not suspend where there is room
        self._try = None if self._ours is None else self._ours.try_acquire
        self._weight = function("weight", weight, "element") if callable(weight) else None
        expected = "a number of at least 0, or a function of the element"
        self._fixed_weight = (
            1.0 if callable(weight) else real_number("weight", weight, expected, lambda n: 0 <= n < math.inf)
        )
        most = math.inf
        if self._ours is not None:
            most = self._ours.burst if isinstance(self._ours, RateLimiter) else self._ours.rate
        if self._fixed_weight > most:
            raise refuse("weight", f"at most {most}, which is all that may start at once", weight)

    async def invoke(self, value: In) -> Out:
        weight = self._fixed_weight if self._weight is None else self._weight(value)
        if self._try is None or not self._try(weight, self._time()):
            await self.limiter.acquire(weight)
        return await self._call(value)

    def counters(self) -> dict[str, int]:
        return {} if self._ours is None else {"rate_limited": self._ours.waited, **waits(self._ours)}


rate_limit = usable_as_decorator(RateLimit)


def divides_rate(fn: object) -> bool:
    """Whether processes that call `fn` have parts of a rate: one that is limited, but in no scope of many."""
    return any(isinstance(one, RateLimit) and isinstance(one.limiter, RateLimiter) for one in guards_in(fn))
