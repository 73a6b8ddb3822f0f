"""
Places for calls that processes share: what they are by the rule of `shared.places`, and how a process
keeps to it.

Theory. The process has leased so many places, and starts calls of its own accord as long as fewer run and the
lease is good. It exchanges with the store: when a call waits; and now and then while calls run, to show that
it lives, to tell how calls went, and to give back what it does not need. When places are scarce it gives back
at once what comes free above its part.

While the store is away, calls start until the lease has run out, and then wait. Those that run go on, and
count again with the next exchange.
"""

from __future__ import annotations

import math
from asyncio import get_running_loop
from functools import partial
from typing import Any, Final

from asyncstream.aside import can_go_on, running_loop
from asyncstream.guards.guard import loop_time
from asyncstream.guards.shared import SharedLimit
from asyncstream.guards.shared.exchanging import Exchanging
from asyncstream.guards.shared.places import HEARTBEAT, PlacesAnswer, PlacesRequest, PlacesRule, exchange
from asyncstream.guards.waiting import Waiting
from asyncstream.lease import Holder, enter, leave
from asyncstream.shown import Shown
from asyncstream.validation import Duration, count, duration_seconds, instance, real_number, refuse

__all__ = ("SharedConcurrency", "first_limit")

POLL: Final = 0.03
"""Seconds between two looks for a place, while there is none."""


class SharedConcurrency(Shown, Exchanging):
    """
    How many calls may run at once, of all who share it, in any process.

    A process that dies gives its places up within a second. One that hangs for longer, its event loop
    blocked, gives them up too, though its calls may go on afterwards: seconds for one on the same machine,
    about a second for one elsewhere.

    Args:
        most: the limit; or, with `least`, what it stays below.
        least: the limit moves between this and `most`, as an `AdaptiveLimit` by "aimd" does.
        start: the limit to begin with; by default the geometric middle.
        latency, decrease: as of `AdaptiveLimit`.
        scope: with whom it is shared.

    Attributes:
        in_flight: how many calls of this process run.
        waited: how many had to wait.
        cuts: how often this process had the limit fall because of overload.
        away: whether the store is away.
    """

    _kind = "places"
    _meanwhile = "calls wait when the lease has run out"

    def __init__(
        self,
        most: int,
        *,
        scope: SharedLimit,
        least: int | None = None,
        start: int | None = None,
        latency: Duration | None = None,
        decrease: float = 0.7,
    ) -> None:
        instance("scope", scope, SharedLimit)
        least = count("most", most) if least is None else count("least", least)
        begin = first_limit(least, count("most", most, least=least), start)
        real_number("decrease", decrease, "a number between 0 and 1", lambda n: 0 < n < 1)
        self._options = {"least": least, "start": start, "latency": latency, "decrease": decrease}
        self._latency = math.inf if latency is None else duration_seconds("latency", latency)
        self.rule = PlacesRule(least, most, float(begin), decrease)
        self.scope = scope
        self.waited = 0
        self.cuts = 0
        self._limit = begin
        self._detach()

    def _detach(self) -> None:
        super()._detach()
        self._holder: Holder | None = None
        self._places = 0
        self._counted = 0  # what the store counts as ours: calls that it found too many run on
        self._until = 0.0
        self._is_scarce = False
        self._peak = 0  # the most that have run since the last exchange
        self._answers = 0
        self._overload = -math.inf  # when the last call began that has met an overloaded service
        self._queue: Waiting[None, int] = Waiting()
        self._heartbeat = 0.0
        self.life: object = object()
        """Of the event loop in which calls run: those of one that has ended do not count in another."""
        self.in_flight = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"most": self.rule.most, "scope": self.scope, **self._options}

    @property
    def limit(self) -> int:
        """How many calls of all may run at once, as far as is known here."""
        return self._limit

    def try_acquire(self) -> bool:
        """Whether a call may start now; if so it is counted."""
        if self._queue or not self._has_place() or get_running_loop() is not self._loop:
            return False
        self._count()
        return True

    async def acquire(self) -> None:
        """Wait until a call may start."""
        if self.try_acquire():
            return
        if get_running_loop() is not self._loop:
            self._leave()  # its calls have ended with the loop
            self._attach()
        self._as_holder()
        self.waited += 1
        place = self._queue.join(1)
        self._serve()
        await self._queue.turn(place, lambda _: self.release())

    def release(self, life: object = None) -> None:
        """A call has ended, which has begun in this `life`, or in that of now."""
        if life not in (None, self.life) or running_loop() is not self._loop:
            return
        self.in_flight -= 1
        self._admit()
        if self._queue or self._gives_back():
            self._serve()

    def answered(self, began: float, now: float) -> None:
        """A call has had a good answer; it began and ended at these times of the event loop."""
        if now - began > self._latency:
            self.overloaded(began, now)
        else:
            self._answers += 1

    def overloaded(self, began: float, now: float) -> None:
        """A call has met an overloaded service."""
        self._overload = max(self._overload, began)  # one cut for all that began before it

    def cancelled(self, began: float, now: float) -> None:
        """A call was cancelled: by a timeout, perhaps, if it took long."""
        if now - began > self._latency:
            self.overloaded(began, now)

    async def close(self) -> None:
        """Give back what is leased."""
        try:
            await super().close()
        finally:
            if self._exchanging is None:  # else for calls that go on
                self._leave()

    async def _take_leave(self) -> None:
        if self._holder is None or self._is_asked():
            return
        self._places = self._counted = 0
        request = PlacesRequest(self.scope.name, self.rule, self._holder, running=0, held=0, wanted=0)
        self._leave()  # a call that comes meanwhile is another holder's: the store may hear of it before this
        await self._update(partial(exchange, request=request))

    def _is_asked(self) -> bool:
        return self.in_flight > 0 or super()._is_asked()

    # ------------------------------------------------------------------ the process's part

    def _as_holder(self) -> Holder:
        """Who this process is to the store, which it is until its limit is closed."""
        if self._holder is None:
            self._holder = Holder.here(0)
            enter(self._holder, can_go_on(get_running_loop()))
        return self._holder

    def _leave(self) -> None:
        holder, self._holder = self._holder, None
        if holder is not None:
            leave(holder)

    def _has_place(self) -> bool:
        return self.in_flight < self._places and loop_time() < self._until

    def _count(self) -> None:
        self.in_flight += 1
        self._peak = max(self._peak, self.in_flight)

    def _admit(self) -> None:
        """Start the calls that may start."""
        while self._queue and self._queue.first() is not None and self._has_place():
            self._count()
            self._queue.let_in(None)

    def _gives_back(self) -> bool:
        """Whether it has places that others wait for, and no call needs."""
        return self._is_scarce and self.in_flight < self._counted

    def _due(self, now: float) -> float | None:
        self._admit()
        if self._queue or self._gives_back():
            return self._again
        if self.in_flight or self._counted:
            return max(self._heartbeat, self._again)
        return None

    def _rest(self) -> None:
        super()._rest()
        self._heartbeat = 0.0

    async def _exchange(self) -> None:
        """
        Show that this process lives, and be told how many places it has; raises `RecordsAway` if the store
        does not answer.
        """
        gives_back = self._gives_back()
        wanted = self.in_flight + self.waiting()
        held = self.in_flight
        if not self._is_scarce:
            wanted = max(wanted, self._peak)
            held = max(held, min(wanted, self._places))
        self._places = min(self._places, held)  # until there is an answer, no more than the store hears of
        self._peak = self.in_flight
        answers, overload = self._answers, self._overload
        self._answers, self._overload = 0, -math.inf
        request = PlacesRequest(
            self.scope.name,
            self.rule,
            self._as_holder(),
            self.in_flight,
            held,
            wanted,
            answers,
            overload,
            self._takes or 0.0,
        )
        answer: PlacesAnswer = await self._update(partial(exchange, request=request))
        self._places, self._counted, self._until = answer.places, max(held, answer.places), answer.until
        self._is_scarce, self._limit = answer.scarce, answer.limit
        self.cuts += answer.cuts
        self.away, now = False, loop_time()
        self._heartbeat = now + HEARTBEAT
        # who has been given what it wants asks for more when it wants more
        self._again = now if self._places >= wanted and not gives_back else now + POLL


def first_limit(least: int, most: int, start: int | None) -> int:
    """The limit to begin with, between these two; None: their geometric middle."""
    begin = round(math.sqrt(least * most)) if start is None else count("start", start)
    if not least <= begin <= most:
        raise refuse("start", f"a number between {least} and {most}", start)
    return begin
