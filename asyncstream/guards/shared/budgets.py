"""
The rule of a budget that may be shared: what calls have cost, and what those that run are expected to cost,
is never more than the limit when another one is let in.

A call is let in with an estimate, which counts as spent from then on. When it has ended, the estimate is
replaced by what it did cost, or taken back. So what is spent in the end can exceed the limit by no more than
the calls that were running when the last one was let in cost above their estimates; and a process that is cut
off leaves the estimates of its calls behind, which may have been charged.

With a period, spending begins anew with each one, counted from the epoch: days are those of UTC. A call
counts in the period in which it was let in. Numbers of periods of another length mean nothing, so a record
belongs to one: that of who began it, for what was spent outlives him. Limits may differ: each client is let
in by its own.

A change that may have been made without an answer is asked for again under the same number, and is then not
made twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from asyncstream.errors import PipelineError

__all__ = ("BudgetAnswer", "BudgetRequest", "Cost", "exchange")

Cost: TypeAlias = Mapping[str, float]
"""What a call costs, by unit."""

REMEMBERED: Final = 100
"""Clients whose last request is remembered."""

ALMOST: Final = 1e-9
"""The part of a limit by which sums of costs that are not whole may be off."""


@dataclass(frozen=True)
class BudgetRequest:
    """
    What a client tells and asks.

    Attributes:
        name: of the budget, for errors.
        client: identifies it.
        number: of the request, by which one that is asked again is known.
        now_ms: milliseconds since the epoch.
        per_ms: the period, None: there is but one.
        limits: by unit.
        settled: by period, what is to be added to what was spent in it, which may be less than nothing.
        asked: the estimates of the calls that wait, in order.
        raised: limits that are to hold from now on, if they are higher than those that do.
    """

    name: str
    client: str
    number: int
    now_ms: int
    per_ms: int | None
    limits: Cost
    settled: Mapping[int, Cost] = field(default_factory=dict)
    asked: Sequence[Cost] = ()
    raised: Cost = field(default_factory=dict)


class BudgetAnswer(NamedTuple):
    """
    What it is told.

    Attributes:
        admitted: how many of those that it asked for may begin, from the first on.
        period: in which they count.
        spent: by unit, in the present period.
    """

    admitted: int
    period: int
    spent: Cost
    limits: Cost


def exchange(record: dict[str, Any], request: BudgetRequest) -> tuple[dict[str, Any], BudgetAnswer]:
    """
    Settle calls that have ended, and let in as many as there is room for; raises `PipelineError` if the
    record is of a budget with another period.
    """
    if record.get("per_ms", request.per_ms) != request.per_ms:
        raise PipelineError(
            f"the shared budget {request.name!r} is {_per(record['per_ms'])} where what was spent is kept, "
            f"and {_per(request.per_ms)} here; give one of them another name="
        )
    period = 0 if request.per_ms is None else request.now_ms // request.per_ms
    spent: dict[str, float] = dict(record.get("spent", {}))
    if period > record.get("period", period):
        spent = {}
    else:
        period = record.get("period", period)  # the clock of another process is ahead
    raised: dict[str, float] = dict(record.get("raised", {}))
    for unit, limit in request.raised.items():
        raised[unit] = max(limit, raised.get(unit, limit))
    limits = {unit: max(limit, raised.get(unit, limit)) for unit, limit in request.limits.items()}
    seen: dict[str, Sequence[int]] = dict(record.get("seen", {}))
    number, admitted, *then = seen.pop(request.client, (-1, 0))
    # what was let in by an exchange whose answer was lost counts in the period of that exchange
    counts_in = then[0] if number == request.number and then else period
    if number != request.number:
        for unit, change in request.settled.get(period, {}).items():
            spent[unit] = spent.get(unit, 0.0) + change
        admitted = 0
        for cost in request.asked:
            if not _fits(cost, spent, limits):
                break
            for unit, amount in cost.items():
                spent[unit] = spent.get(unit, 0.0) + amount
            admitted += 1
    seen[request.client] = [request.number, admitted, counts_in]
    for client in list(seen)[:-REMEMBERED]:
        del seen[client]
    record = {"per_ms": request.per_ms, "period": period, "spent": spent, "raised": raised, "seen": seen}
    return record, BudgetAnswer(admitted, counts_in, spent, limits)


def _per(per_ms: int | None) -> str:
    return "for all time (per=None)" if per_ms is None else f"for each {per_ms / 1000:g} s"


def _fits(cost: Cost, spent: Cost, limits: Cost) -> bool:
    """Whether there is room for it; what is spent already does not stop what costs nothing of it."""
    return all(
        not amount or spent.get(unit, 0.0) + amount <= limits[unit] * (1 + ALMOST)
        for unit, amount in cost.items()
    )
