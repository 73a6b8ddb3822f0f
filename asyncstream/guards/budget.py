"""
A budget: how much calls may cost, in any units, until it is raised or a new period begins.

By itself it is kept in memory and calls are let in at once. With a scope it is a record that all who share it
change together, and that outlives them (`shared.budgets`): a call waits for an exchange with the store, and
all that wait, or have ended, at the same time go in one. While the store is away no call begins; what has
ended is told when it is back. Calls that wait for a budget in memory are let in by exchanges, too, with a
record that nobody else has.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from asyncio import get_running_loop
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from asyncstream.aside import running_loop
from asyncstream.clock import Clock, SystemClock, checked_clock
from asyncstream.errors import PipelineError
from asyncstream.guards.shared import RecordsAway, SharedLimit
from asyncstream.guards.shared.budgets import BudgetAnswer, BudgetRequest, Cost, exchange
from asyncstream.guards.shared.exchanging import Exchanging
from asyncstream.guards.waiting import Waiting
from asyncstream.operators.call_context import KEEP
from asyncstream.shown import Shown
from asyncstream.validation import Duration, duration_ms, instance, real_number, refuse

__all__ = ("Budget", "Reservation", "costs")

log = logging.getLogger("asyncstream.budget")

POLL: Final = 0.5
"""Seconds between two looks whether a spent budget has been raised by others, or a period has begun."""


class Reservation(NamedTuple):
    """
    What a call that has been let in is expected to cost, by unit, and the period in which that counts; and of
    which client of the record it is, for calls of an event loop that is closed may be ended later.
    """

    cost: Cost
    period: int
    client: str


class Budget(Shown, Exchanging):
    """
    What calls may cost together; any number of `metered` functions share it.

        Budget(usd=20, tokens=2_000_000, per=timedelta(days=1), scope=SharedLimit("sqlite:///spent.db"))

    When it is spent, calls wait: the stream pauses, a checkpoint is taken if there are any, the log and the
    job's status say so, and it goes on when the budget is raised (`raise_to`, by any process that shares it,
    or a restart with a larger one) or the next period begins. A call that costs more than is left waits, too,
    and those behind it.

    Args:
        per: limits are for each such period, counted from the epoch: days are those of UTC. None: for all
            time.
        scope: with whom it is shared; what has been spent then also outlives the process. Its name tells it
            from other budgets in the same store, and calls by one of that name with another `per` raise
            `PipelineError`. None: it is this process's, and begins anew with it.
        clock: tells the time of day.
        limits: by unit, of which there may be any: `usd=20`, `tokens=2_000_000`, `gpt_large_tokens=10_000`.

    Attributes:
        waited: how many calls were waiting when it was found spent, each time.
        away: whether the store is away.
    """

    _kind = "budget"
    _meanwhile = "calls wait for it"
    _log = log
    scope: SharedLimit | None  # type: ignore[assignment]  # without one nothing is asked of a store

    def __init__(
        self,
        *,
        per: Duration | None = None,
        scope: SharedLimit | None = None,
        clock: Clock | None = None,
        **limits: float,
    ) -> None:
        if not limits:
            raise refuse("budget", "a limit, e.g. usd=20", None)
        self._own = {unit: _amount(unit, limit) for unit, limit in limits.items()}
        self._per_ms = None if per is None else duration_ms("per", per)
        if scope is not None:
            instance("scope", scope, SharedLimit)
        self.scope = scope
        self._clock = checked_clock(clock) or SystemClock()
        self.waited = 0
        self._spent: Cost = {}
        self._limits: Cost = dict(self._own)
        self._record: dict[str, Any] = {}
        self._raised: dict[str, float] = {}
        self._detach()

    def _detach(self) -> None:
        super()._detach()
        self._keeps: Counter[Callable[[], None]] = Counter()
        """What asks for a checkpoint of the jobs whose calls wait, and how many of each do."""
        self._asked_to_keep: WeakSet[Callable[[], None]] = WeakSet()
        self._client = secrets.token_hex(8)
        self._number = 0
        self._queue: Waiting[Reservation, Cost] = Waiting()
        self._settled: dict[int, dict[str, float]] = {}
        self._asked: tuple[BudgetRequest, list[tuple[asyncio.Future[Reservation], Cost]]] | None = None
        """What the store was told and asked, for which calls, and has not answered."""
        self._running = 0
        self._said = False

    def __getstate__(self) -> dict[str, Any]:
        if self.scope is None:
            raise PipelineError("a Budget goes to other processes only with scope=, by which they share it")
        per = None if self._per_ms is None else self._per_ms / 1000
        return {"per": per, "scope": self.scope, "clock": self._clock, **self._own}

    # ------------------------------------------------------------------ what users ask

    @property
    def spent(self) -> dict[str, float]:
        """What calls have cost in this period, by unit, with what those that run may; as last seen."""
        return {unit: self._spent.get(unit, 0.0) for unit in self._own}

    @property
    def limits(self) -> dict[str, float]:
        """The limits that hold, by unit; as last seen."""
        return dict(self._limits)

    def raise_to(self, **limits: float) -> None:
        """
        Let more be spent: calls that wait go on. With a scope this is told to all who share it, at once or,
        if this process has made no call yet, with its first; it holds until a larger one does.

        Raises:
            PipelineError: if the budget has no limit for a unit.
        """
        for unit, limit in limits.items():
            if unit not in self._own:
                raise refuse("raise_to", f"one of {', '.join(self._own)}", unit)
            self._raised[unit] = max(_amount(unit, limit), self._raised.get(unit, 0.0))
            self._limits = {**self._limits, unit: max(self._raised[unit], self._limits[unit])}
        if self._loop is not None:
            with suppress(RuntimeError):  # it is closed, and may have been since any look at it
                self._loop.call_soon_threadsafe(self._serve)

    def is_spent(self) -> bool:
        """Whether calls wait for it, and none runs that might cost less than expected."""
        return self._said and self.waiting() > 0

    # ------------------------------------------------------------------ what calls ask

    def try_reserve(self, cost: Cost) -> Reservation | None:
        """Let a call in now, if there is room, and this can be known without asking a store."""
        if get_running_loop() is not self._loop:
            self._attach()
        if self.scope is not None or (self._queue and self._queue.first() is not None):
            return None
        answer = self._exchange_here([cost])
        if not answer.admitted:
            return None
        self._running += 1
        self._said = False
        return Reservation(cost, answer.period, self._client)

    async def reserve(self, cost: Cost) -> Reservation:
        """Wait until there is room for a call of this cost."""
        found = self.try_reserve(cost)
        if found is not None:
            return found
        place = self._queue.join(cost)
        self._serve()
        with self._waiting_for(KEEP.get()):
            try:
                return await self._queue.turn(place, lambda reserved: self.settle(reserved, {}))
            except BaseException:
                self._serve()  # those behind may cost less
                raise

    @contextmanager
    def _waiting_for(self, asks: frozenset[Callable[[], None]]) -> Iterator[None]:
        """A call waits, of jobs that are asked for a checkpoint by these."""
        keeps = self._keeps
        if self._said:  # it was spent before these jobs came to it
            for keep in asks:
                self._ask_for_checkpoint(keep)
        keeps.update(asks)
        try:
            yield
        finally:
            for keep in asks:
                keeps[keep] -= 1
                if not keeps[keep]:
                    del keeps[keep]

    def _ask_for_checkpoint(self, keep: Callable[[], None]) -> None:
        """Once each time that it is spent, however many calls of the job give up meanwhile."""
        if keep not in self._asked_to_keep:
            self._asked_to_keep.add(keep)
            keep()

    def settle(self, reserved: Reservation, actual: Cost | None) -> None:
        """A call has ended, and this is what it did cost; None: as was expected."""
        if reserved.client == self._client:
            self._running -= 1
        if actual is not None:
            owed = self._settled.setdefault(reserved.period, {})
            for unit in self._own:
                change = actual.get(unit, 0.0) - reserved.cost.get(unit, 0.0)
                if change:
                    owed[unit] = owed.get(unit, 0.0) + change
        if self.scope is not None or (self._queue and self._queue.first() is not None):
            self._serve()
        elif self._settled:
            self._exchange_here([])

    async def _take_leave(self) -> None:
        while self._asked is not None or self._settled or self._raised:
            await self._ask([])

    def _leave_untold(self, error: RecordsAway) -> None:
        self._log.warning(
            "%r is away; what calls have cost is counted as it was expected: %s", self.scope, error
        )

    # ------------------------------------------------------------------ exchanges

    def _request(self, asked: list[Cost]) -> BudgetRequest:
        settled, self._settled = self._settled, {}
        raised, self._raised = self._raised, {}
        self._number += 1
        now_ms = self._clock.now_ms()
        name = "" if self.scope is None else self.scope.name
        return BudgetRequest(
            name, self._client, self._number, now_ms, self._per_ms, self._own, settled, asked, raised
        )

    def _note(self, answer: BudgetAnswer) -> None:
        self._spent, self._limits = answer.spent, answer.limits

    def _exchange_here(self, asked: list[Cost]) -> BudgetAnswer:
        self._record, answer = exchange(self._record, self._request(asked))
        self._note(answer)
        return answer

    def _let_in(self, asked: list[tuple[asyncio.Future[Reservation], Cost]], answer: BudgetAnswer) -> None:
        for place, cost in asked[: answer.admitted]:
            self._running += 1
            reserved = Reservation(cost, answer.period, self._client)
            if place.done():  # cancelled while it was asked for
                self.settle(reserved, {})
            elif self._queue.first() is not None:  # this one: who has come since is behind it
                self._queue.let_in(reserved)
        if answer.admitted:
            self._said = False
        self._say_if_spent()

    def _say_if_spent(self) -> None:
        """When calls wait and none runs, nothing changes of itself: say so, and have it kept."""
        if self._said or self._running or not self.waiting() or self.away:
            return
        self._said = True
        self.waited += self.waiting()
        spent, limits = self.spent, self._limits
        used = ", ".join(f"{spent[unit]:g} of {limit:g} {unit}" for unit, limit in limits.items())
        until = "" if self._per_ms is None else ", or the next period begins"
        log.warning(
            "the budget is spent (%s); %d calls wait until it is raised%s",
            used,
            self.waiting(),
            until,
            extra={"spent": dict(self._spent), "limits": dict(self._limits), "waiting": self.waiting()},
        )
        self._asked_to_keep.clear()
        for keep in list(self._keeps):
            self._ask_for_checkpoint(keep)

    def _serve(self) -> None:
        """See to it that what waits, or has ended, is told to the store."""
        if running_loop() is self._loop:
            if not self.away:
                self._again = 0.0
            super()._serve()

    def _due(self, now: float) -> float | None:
        is_asked = self._queue.first() is not None
        is_idle = not (is_asked or self._settled or self._raised or self._asked)
        return None if is_idle or self._again == math.inf else self._again

    async def _exchange(self) -> None:
        looks = self.scope is not None or self._per_ms is not None
        was_away, self._again = self.away, get_running_loop().time() + POLL if looks else math.inf
        answer = await self._ask([one for one in self._queue if not one[0].done()])
        if answer.admitted or was_away:
            self._again = 0.0

    async def _ask(self, waiting: list[tuple[asyncio.Future[Reservation], Cost]]) -> BudgetAnswer:
        """
        Tell the store what has ended, and ask for calls that wait. What was not answered is asked again as it
        was: whether it has been done is not known before. Raises `RecordsAway` if the store does not answer.
        """
        if self._asked is None:
            self._asked = self._request([cost for _, cost in waiting]), waiting
        request, waiting = self._asked
        if self.scope is None:
            self._record, answer = exchange(self._record, request)
        else:
            answer = await self._update(lambda record, moment: exchange(record, request))
        self._asked, self.away = None, False
        self._note(answer)
        self._let_in(waiting, answer)
        return answer

    def _fail(self, error: Exception) -> None:
        self._asked = None
        super()._fail(error)


def _amount(unit: str, limit: object) -> float:
    return real_number(unit, limit, "a number of at least 0", lambda number: 0 <= number < float("inf"))


def costs(budget: Budget, what: str, found: Any) -> Cost:
    """What a call costs, by unit, of what the user's function gave: a number, if there is but one unit."""
    units = budget.limits
    if isinstance(found, Mapping):
        if not found.keys() <= units.keys():
            raise refuse(what, f"costs in {', '.join(units)}", dict(found))
        return {unit: _amount(f"{what}[{unit!r}]", amount) for unit, amount in found.items()}
    if len(units) > 1:
        raise refuse(what, f"a mapping of {', '.join(units)} to numbers", found)
    return {next(iter(units)): _amount(what, found)}
