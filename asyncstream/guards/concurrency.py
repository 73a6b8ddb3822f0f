"""
Concurrency limits: not more than so many calls at once, or as many as the service can take, found out by
trying.

A step has a `concurrency` of its own. These are for a limit that several steps have together, or several
processes; those above it stand in a queue, first come first served.

Theory of the adaptive one. A service that is given more than it can do answers later, or says so (429, 503).
The limit grows while all is well and it is used to the full, and falls when it is not. *AIMD*, as TCP does:
one more for each limit's worth of good answers, and a fixed part of it at a sign of overload. *Gradient*,
after Netflix's concurrency-limits: the limit follows the ratio of the usual to the recent latency, with some
room for a queue, and so falls before the service complains.

Calls that were under way when the limit fell know nothing of it: a sign of overload from a call that
began before the last cut does not cut again. That makes one cut per round trip, however many calls fail.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import get_running_loop
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeVar

from asyncstream.guards.guard import Call, Guard, guards_in, refuse_beside, usable_as_decorator
from asyncstream.guards.nests import take_place
from asyncstream.guards.outcomes import is_overload
from asyncstream.guards.retry import Retry
from asyncstream.guards.shared import SharedLimit
from asyncstream.guards.shared.concurrency import SharedConcurrency, first_limit
from asyncstream.guards.shared.exchanging import STORE_AWAY, waits
from asyncstream.guards.waiting import Queued, Waiting
from asyncstream.shown import Shown
from asyncstream.validation import Duration, choice, count, duration_seconds, function, real_number, refuse

__all__ = (
    "AdaptiveConcurrency",
    "AdaptiveLimit",
    "ConcurrencyLimit",
    "LimitedGuard",
    "adaptive_concurrency",
    "concurrency_limit",
)

In = TypeVar("In")
Out = TypeVar("Out")


def _additive(limit: float, latency: float, now: float) -> float:
    """One more for each limit's worth of good answers."""
    return limit + 1 / limit


class _Gradient:
    """
    Towards `limit * 1.5 * usual / recent + sqrt(limit)`, half of the way with each limit's worth of answers.

    Recent latency is an average over one limit's worth of answers, the usual one the lowest that it has
    been lately. A service that always has a queue would have its queue taken for usual in the end, so
    now and then the limit is halved to see the latency without.
    """

    TOLERANCE = 1.5
    FEWEST = 8
    """Answers at least that an average is made of."""
    REMEMBERED = 60.0
    """Seconds until the usual latency is found out anew."""

    def __init__(self) -> None:
        self._recent = 0.0
        self._usual = math.inf
        self._known_until = -math.inf

    def after(self, limit: float, latency: float, now: float) -> float:
        if now >= self._known_until:
            first = self._known_until == -math.inf
            self._known_until = now + self.REMEMBERED
            self._recent = self._usual = latency
            return limit if first else limit / 2
        self._recent += (latency - self._recent) / max(limit, self.FEWEST)
        self._usual = min(self._usual, self._recent)
        # no latency at all is as good as it gets, and no round more than halves the limit
        ratio = 1.0 if self._recent <= 0 else self.TOLERANCE * self._usual / self._recent
        aim = limit * min(1.0, max(0.5, ratio)) + math.sqrt(limit)
        return limit + (aim - limit) / (2 * limit)


class AdaptiveLimit(Shown, Queued):
    """
    How many calls may run at once; guards of several functions may share it, in one event loop.

    Args:
        least: the limit stays at or above this; at least 1.
        most: the limit stays at or below this; give it the step's concurrency.
        start: the limit to begin with; by default the geometric middle.
        method: "aimd" or "gradient".
        latency: answers slower than this are a sign of overload; None: only errors are.
        decrease: what part of the limit is left after a sign of overload.
    """

    def __init__(
        self,
        *,
        least: int = 1,
        most: int = 100,
        start: int | None = None,
        method: Literal["aimd", "gradient"] = "aimd",
        latency: Duration | None = None,
        decrease: float = 0.7,
    ) -> None:
        self.least = count("least", least)
        self.most = count("most", most, least=least)
        self._limit = float(first_limit(least, most, start))
        real_number("decrease", decrease, "a number between 0 and 1", lambda n: 0 < n < 1)
        is_additive = choice("method", method, ("aimd", "gradient")) == "aimd"
        self._after = _additive if is_additive else _Gradient().after
        self._latency = math.inf if latency is None else duration_seconds("latency", latency)
        self._decrease = decrease
        self._cut_at = -math.inf
        self._queue: Waiting[None, int] = Waiting()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.life: object = object()
        """Of the event loop in which calls run: those of one that was closed do not count in another."""
        self.in_flight = 0
        """How many calls run."""
        self.waited = 0
        """How many calls had to wait."""
        self.cuts = 0
        """How often the limit fell because of overload."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loop": None}

    def begin(self) -> None:
        """Count the calls of the event loop that runs; those of one that was closed have ended with it."""
        before, self._loop = self._loop, get_running_loop()
        if before is not None and before.is_closed():
            self.life, self.in_flight = object(), 0

    @property
    def limit(self) -> int:
        """How many calls may run at once, now."""
        return int(self._limit)

    def try_acquire(self) -> bool:
        """Whether a call may start now; if so it is counted."""
        if self._queue or self.in_flight + 1 > self._limit:
            return False
        self.in_flight += 1
        return True

    async def acquire(self) -> None:
        """Wait until a call may start."""
        if self.try_acquire():
            return
        self.waited += 1
        place = self._queue.join(1)
        if self._queue.is_first(place):
            self._admit()
        await self._queue.turn(place, lambda _: self.release())

    def answered(self, began: float, now: float) -> None:
        """A call has had a good answer; it began and ended at these times of the event loop."""
        latency = now - began
        if latency > self._latency:
            self.overloaded(began, now)
        elif 2 * self.in_flight >= self._limit:
            # a limit that is not used says nothing of whether more would be well
            self._limit = min(self.most, max(self.least, self._after(self._limit, latency, now)))

    def overloaded(self, began: float, now: float) -> None:
        """A call has met an overloaded service."""
        if began >= self._cut_at or self._cut_at > now:  # the latter by the clock of another event loop
            self._cut_at = now
            self._limit = max(self.least, self._limit * self._decrease)
            self.cuts += 1

    def cancelled(self, began: float, now: float) -> None:
        """A call was cancelled: by a timeout, perhaps, if it took long."""
        if now - began > self._latency:
            self.overloaded(began, now)

    def release(self, life: object = None) -> None:
        """A call has ended, which has begun in this `life`, or in that of now: start those that may start."""
        if life in (None, self.life):
            self.in_flight -= 1
            self._admit()

    def _admit(self) -> None:
        while self._queue and self.in_flight + 1 <= self._limit and self._queue.first() is not None:
            self.in_flight += 1
            self._queue.let_in(None)


class LimitedGuard(Guard[In, Out]):
    """Base of the guards that go by a limit."""

    limit: AdaptiveLimit | SharedConcurrency
    together: ClassVar = {"concurrency_limit": min, STORE_AWAY: max}
    keeps_place = True

    def _go_by(self, limit: object) -> None:
        if not isinstance(limit, AdaptiveLimit | SharedConcurrency):
            raise refuse("limit", "an AdaptiveLimit or a SharedConcurrency", limit)
        self.limit = self.shares = limit
        take_place("limit", self)

    async def open(self) -> None:
        await super().open()
        self._begin()

    def _begin(self) -> None:
        if isinstance(self.limit, AdaptiveLimit):
            self.limit.begin()

    def counters(self) -> dict[str, int]:
        limit = self.limit
        return {"concurrency_limit": limit.limit, "concurrency_waited": limit.waited, **waits(limit)}


class ConcurrencyLimit(LimitedGuard[In, Out]):
    """
    Runs no more than so many calls at once; the others wait, first come first served.

    Args:
        fn: the async function that it wraps.
        most: how many calls.
        scope: with whom the limit is shared, in other processes and on other hosts.
        limit: one shared with other guards of this process, instead: an `AdaptiveLimit` or a
            `SharedConcurrency`.
    """

    counted = ("concurrency_waited",)

    def __init__(
        self,
        fn: Call[In, Out],
        *,
        most: int | None = None,
        scope: SharedLimit | None = None,
        limit: AdaptiveLimit | SharedConcurrency | None = None,
    ) -> None:
        super().__init__(fn)
        if (most is None) == (limit is None):
            raise refuse("concurrency_limit", "either most= or limit=", (most, limit))
        if scope is not None and most is None:
            raise refuse("scope", "most= to go with it", scope)
        if most is not None:
            count("most", most)
            limit = (
                AdaptiveLimit(least=most, most=most)
                if scope is None
                else SharedConcurrency(most, scope=scope)
            )
        self._go_by(limit)

    async def invoke(self, value: In) -> Out:
        limit = self.limit
        if self._open_in is None:  # not opened, and perhaps in another event loop than before
            self._begin()
        if not limit.try_acquire():
            await limit.acquire()
        life = limit.life
        try:
            return await self._call(value)
        finally:
            limit.release(life)


concurrency_limit = usable_as_decorator(ConcurrencyLimit)


class AdaptiveConcurrency(LimitedGuard[In, Out]):
    """
    Runs as many calls at once as the service can take.

    Belongs inside `retry`, where it sees every attempt and gives its place away while an element waits
    for its next. Outside of one it is told of each failed attempt, but the waits count as latency.

    Args:
        fn: the async function that it wraps.
        least, most, start, method, latency, decrease: as of `AdaptiveLimit`.
        limit: one shared with others, instead of one made of the rest of the arguments, which are those
            of `AdaptiveLimit`.
        scope: with whom the limit, and what is found out about it, is shared, in other processes and on other
            hosts; only by "aimd".
        overload: whether an error is a sign of overload; None: a status of 429 or 503, or a timeout.
    """

    counted = ("concurrency_cuts", "concurrency_waited")

    def __init__(
        self,
        fn: Call[In, Out],
        *,
        least: int = 1,
        most: int = 100,
        start: int | None = None,
        method: Literal["aimd", "gradient"] = "aimd",
        latency: Duration | None = None,
        decrease: float = 0.7,
        overload: Callable[[Any], bool] | None = None,
        limit: AdaptiveLimit | SharedConcurrency | None = None,
        scope: SharedLimit | None = None,
    ) -> None:
        super().__init__(fn)
        options: dict[str, Any] = {
            "least": least,
            "most": most,
            "start": start,
            "latency": latency,
            "decrease": decrease,
        }
        if limit is not None:
            refuse_beside("limit", AdaptiveConcurrency, method=method, **options)
        if scope is not None:
            if limit is not None or method != "aimd":
                raise refuse("scope", "no limit=, and method='aimd'", scope)
            limit = SharedConcurrency(scope=scope, **options)
        self._go_by(AdaptiveLimit(method=method, **options) if limit is None else limit)
        self._overload = is_overload if overload is None else function("overload", overload, "outcome")
        for guard in guards_in(fn):
            if isinstance(guard, Retry):
                guard.told.add(self)

    async def invoke(self, value: In) -> Out:
        limit = self.limit
        if self._open_in is None:  # not opened, and perhaps in another event loop than before
            self._begin()
        if not limit.try_acquire():
            await limit.acquire()
        life, began = limit.life, self._time()
        try:
            result = await self._call(value)
        except Exception as error:
            # another error is no sign of overload, and its latency none of health
            if self._overload(error):
                limit.overloaded(began, self._time())
            raise
        except BaseException:
            limit.cancelled(began, self._time())
            raise
        else:
            limit.answered(began, self._time())
            return result
        finally:
            limit.release(life)

    def attempt_failed(self, failure: object, began: float) -> None:
        """An attempt that a retry inside makes again has failed; it began at this time of the event loop."""
        if self._overload(failure):
            self.limit.overloaded(began, self._time())

    def counters(self) -> dict[str, int]:
        return {**super().counters(), "concurrency_cuts": self.limit.cuts}


adaptive_concurrency = usable_as_decorator(AdaptiveConcurrency)
