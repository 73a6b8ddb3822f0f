"""
The rule of a rate that several share: in no stretch of `per` seconds do calls start whose weights add up to
more than `rate`, in all processes together.

The record holds the weights that were *used* within the last period, each with the latest moment at which
that may have been, and the *leases*: weight that a holder may use until a moment, and has not reported as
used. What is neither is free. A holder reports what it has used, and when, with each thing it asks for, so
weight comes back exactly one period after its use. A lease that runs out without word from its holder counts
as used when it ran out, for the holder may have used it up to then; and nothing is used of a lease that
has run out. So a holder that dies costs the others what it held unused, for the short time of its lease more
than a period.

Each holder that waits is given its part of the rate at once, if there is as much, so that it need not come
again soon; and a heavy call is not starved by light ones of other holders: what a holder needs that has
waited for longer is kept back from the others. Since when it waits, each tells itself: whoever has waited for
longest has nothing kept from it, so of several that need more than there is, one goes on.

Uses of about the same moment are one entry, with the latest of their moments, so the record is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from asyncstream.errors import PipelineError
from asyncstream.guards.guard import EARLY
from asyncstream.guards.shared.records import SLOWEST, Moment

__all__ = ("SETTLE", "RateAnswer", "RateRequest", "exchange", "lease_length")

LONGEST_LEASE: Final = 0.25
"""
Seconds for which weight is lent, at most, and as long again as an exchange takes; for short periods a quarter
of them.
"""

SETTLE: Final = 0.2
"""The part of a lease that is left when its holder comes again, by itself."""

GRAIN: Final = 200
"""Parts of a period: uses within the same one are an entry together."""

ALMOST: Final = 1e-9
"""Sums of weights that are not whole may be off by this much."""


@dataclass(frozen=True)
class RateRequest:
    """
    What a holder asks, times being those of its event loop.

    Attributes:
        name: of the limit, for errors.
        rate, per: the limit.
        lease: identifies the holder's lease.
        held: weight of the lease that it has not used.
        used: (when, weight) that it has used since it last asked; with `held` this makes up the lease.
        least: the weight that the first of its waiting calls needs; 0: none waits.
        wanted: the weight that it could use, what it holds included.
        since: since when it has waited without being lent anything.
        takes: how long its last exchange took, in seconds: what it is lent is of use when it hears of it.
    """

    name: str
    rate: int
    per: float
    lease: str
    held: float
    used: Sequence[tuple[float, float]]
    least: float
    wanted: float
    since: float = math.inf
    takes: float = 0.0


class RateAnswer(NamedTuple):
    """
    What it is told.

    Attributes:
        lost: what it held was not its any more: it had run out.
        granted: weight that it may use besides what it holds.
        until: until when it may use all that, by its event loop's clock.
        again: when it makes sense to ask again, by the same; now, if there is something left.
    """

    lost: bool
    granted: float
    until: float
    again: float


def exchange(
    record: dict[str, Any], moment: Moment, request: RateRequest
) -> tuple[dict[str, Any], RateAnswer]:
    """
    Report, and be lent more; raises `PipelineError` if others share the limit and have another rate for it.
    """
    now, ahead = moment
    rate, per = request.rate, request.per
    used, leases = _standing(record, now, request)
    own = leases.pop(request.lease, None)
    reported = sum(weight for _, weight in request.used)
    lost = request.held + reported > ALMOST and own is None
    held = 0.0 if lost else request.held
    if not lost:
        used += [[min(at + ahead, now), weight] for at, weight in request.used]
    used = _merged([entry for entry in used if entry[0] + per > now + EARLY], per)

    free = rate - held - sum(weight for _, weight in used) - sum(lease["held"] for lease in leases.values())
    waiting = [lease for lease in leases.values() if lease["least"]]
    since = own["since"] if own is not None and own["least"] else min(request.since + ahead, now)
    kept = sum(
        max(one["least"] - one["held"], 0) for one in waiting if one["since"] < since and one["least"] > 1
    )
    least = max(request.least - held, 0.0)
    more = max(request.wanted - held, least)
    part = max(math.ceil(rate / (1 + len(waiting))) - held, least)
    available = free - kept
    granted = max(min(more, part, available), 0.0) if available >= least - ALMOST else 0.0
    is_served = held + granted >= request.least - ALMOST

    until = now + lease_length(per) + min(request.takes, SLOWEST)
    if held + granted > ALMOST or not is_served:
        leases[request.lease] = {
            "held": held + granted,
            "until": until,
            "least": 0 if is_served and more - granted < ALMOST else request.least,
            "since": now if granted else since,
        }
    again = now
    if not is_served:
        # before what it waits for is forgotten, and lent to others
        again = min(_free_at(used, least - available, per, until), now + (1 - SETTLE) * lease_length(per))
    record = {"rate": rate, "per": per, "used": used, "leases": leases}
    return record, RateAnswer(lost, granted, until - ahead, again - ahead)


def lease_length(per: float) -> float:
    """Seconds for which weight is lent."""
    return min(LONGEST_LEASE, per / 4)


def _standing(
    record: dict[str, Any], now: float, request: RateRequest
) -> tuple[list[list[float]], dict[str, Any]]:
    """What was used, and the leases that go on; of what has run out the weight is used."""
    # a clock that begins anew has left behind what is from its future
    used = [[at, weight] for at, weight in record.get("used", ()) if at <= now]
    leases: dict[str, Any] = {}
    for name, lease in record.get("leases", {}).items():
        if lease["until"] > now + LONGEST_LEASE + SLOWEST:
            continue
        if lease["until"] > now:
            leases[name] = lease
        elif lease["held"]:
            used.append([lease["until"], lease["held"]])
    agreed = record.get("rate", request.rate), record.get("per", request.per)
    if agreed != (request.rate, request.per) and leases.keys() - {request.lease}:
        raise PipelineError(
            f"the shared limit {request.name!r} is {agreed[0]} in {agreed[1]:g} s for others, and "
            f"{request.rate} in {request.per:g} s here; give one of them another name="
        )
    return used, leases


def _merged(used: list[list[float]], per: float) -> list[list[float]]:
    """One entry for each grain of time, at the latest moment in it; in order."""
    grains: dict[int, list[float]] = {}
    for at, weight in used:
        grain = int(at // (per / GRAIN))
        found = grains.get(grain)
        grains[grain] = [at, weight] if found is None else [max(at, found[0]), weight + found[1]]
    return [grains[grain] for grain in sorted(grains)]


def _free_at(used: list[list[float]], lacking: float, per: float, otherwise: float) -> float:
    """When so much more will be free, of what has been used; `otherwise` if that is not enough."""
    for at, weight in used:
        lacking -= weight
        if lacking <= ALMOST:
            return at + per
    return otherwise
