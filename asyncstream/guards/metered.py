"""
Metered calls: each is let in by a budget, with what it is expected to cost, and settled with what it did
cost.

What a call that is cancelled has cost cannot be known: it stays counted as it was expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, TypeAlias, TypeVar

from asyncstream.guards.budget import Budget, costs
from asyncstream.guards.guard import Call, Guard, usable_as_decorator
from asyncstream.guards.nests import take_place
from asyncstream.guards.shared.exchanging import STORE_AWAY, waits
from asyncstream.validation import function, instance

__all__ = ("Amounts", "Metered", "metered")

In = TypeVar("In")
Out = TypeVar("Out")

Amounts: TypeAlias = float | Mapping[str, float]
"""What a call costs: a number, of a budget with one unit, or numbers by unit; of one left out, nothing."""


class Metered(Guard[In, Out]):
    """
    Makes calls as long as a budget lasts; those above it wait, first come first served.

        metered(ask, cost=lambda prompt: len(prompt) / 4, actual=lambda prompt, reply: reply["tokens"],
                budget=Budget(tokens=1_000_000, per=timedelta(days=1)))

    A call that fails costs nothing, for providers do not charge for it; give `failed` if yours does. Belongs
    inside `retry`, so that each attempt is counted, and outside of `rate_limit`.

    Args:
        fn: the async function that it wraps.
        cost: what a call is expected to cost: a number, numbers by unit, or a function of the element that
            gives either.
        budget: which.
        actual: function of the element and the answer that gives what it did cost; None: what was expected.
        failed: function of the element and the error that gives what a failed call did cost; None: nothing.
    """

    counted = ("budget_waited",)
    together: ClassVar = {"budget_spent": max, "budget_used_percent": max, STORE_AWAY: max}
    keeps_place = True

    def __init__(
        self,
        fn: Call[In, Out],
        *,
        cost: Amounts | Callable[[In], Amounts],
        budget: Budget,
        actual: Callable[[In, Out], Amounts] | None = None,
        failed: Callable[[In, Exception], Amounts] | None = None,
    ) -> None:
        super().__init__(fn)
        instance("budget", budget, Budget)
        self.budget = self.shares = budget
        # a budget has units, which may be asked for one after the other
        take_place("budget", self, twice=True)
        self._cost = function("cost", cost, "element") if callable(cost) else None
        self._fixed = {} if callable(cost) else costs(budget, "cost", cost)
        self._actual = None if actual is None else function("actual", actual, "element", "answer")
        self._of_failed = None if failed is None else function("failed", failed, "element", "error")

    async def invoke(self, value: In) -> Out:
        budget = self.budget
        cost = self._fixed if self._cost is None else costs(budget, "cost", self._cost(value))
        reserved = budget.try_reserve(cost) or await budget.reserve(cost)
        actual: Mapping[str, float] | None = None
        try:
            try:
                result = await self._call(value)
            except Exception as error:
                of = self._of_failed
                actual = {} if of is None else costs(budget, "failed", of(value, error))
                raise
            if self._actual is not None:
                actual = costs(budget, "actual", self._actual(value, result))
            return result
        finally:
            budget.settle(reserved, actual)

    def counters(self) -> dict[str, int]:
        budget, limits = self.budget, self.budget.limits
        used = [spent / limits[unit] if limits[unit] else 1.0 for unit, spent in budget.spent.items()]
        return {
            "budget_waited": budget.waited,
            "budget_spent": int(budget.is_spent()),
            "budget_used_percent": round(100 * max(used)),
            **waits(budget),
        }


metered = usable_as_decorator(Metered)
