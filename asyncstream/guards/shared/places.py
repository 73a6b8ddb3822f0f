"""
The rule of places that several share: never more calls run at once than a limit says, in all processes.

The record says how many places each holder has, how many it wants, and until when it must have shown itself
again. A holder that shows itself is given what it wants, of what the others do not have. When some have less
than they want, none is given more than an equal part, and a place that comes free goes to the one that has
waited for longest without any: a holder with calls that run is told to start no others instead of those that
end, until it is down to its part.

A holder that does not show itself in time, or whose process is seen to be dead (on the same machine), has its
places taken from it. One that lives on this machine and is merely late gets a while longer: its calls run.

The limit may move (`least` < `most`), by the rule of `guards.concurrency`: each limit's worth of good answers
raises it by one, as long as at least half of it is used; a call that met an overloaded service, and had begun
after the last cut, cuts it.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any, Final, NamedTuple

from asyncstream.errors import PipelineError
from asyncstream.guards.shared.records import SLOWEST, Moment
from asyncstream.lease import Holder, presence

__all__ = ("HEARTBEAT", "LEASE", "PlacesAnswer", "PlacesRequest", "PlacesRule", "exchange")

LEASE: Final = 0.75
"""Seconds until a holder must have shown itself again."""

HEARTBEAT: Final = 0.25
"""Seconds after which it does."""

GRACE: Final = 5.0
"""Seconds more for one that is late, and is seen to live."""


@dataclass(frozen=True)
class PlacesRule:
    """
    What all who share the places must agree on.

    Attributes:
        least, most: the limit stays between these.
        start: the limit to begin with.
        decrease: what part of it is left after a cut.
    """

    least: int
    most: int
    start: float
    decrease: float

    def settings(self) -> list[float]:
        """As it is written down."""
        return list(astuple(self))


@dataclass(frozen=True)
class PlacesRequest:
    """
    What a holder tells and asks, times being those of its event loop.

    Attributes:
        name: of the limit, for errors.
        rule: the limit.
        holder: who it is.
        running: its calls that run.
        held: how many may run before it has the answer.
        wanted: how many it could have running, those that run included.
        answers: how many good answers it has had since it last asked.
        overload: when the last of the calls began that have met an overloaded service since then, if any has.
        takes: how long its last exchange took, in seconds: the lease is to be good when it hears of it.
    """

    name: str
    rule: PlacesRule
    holder: Holder
    running: int
    held: int
    wanted: int
    answers: int = 0
    overload: float = -math.inf
    takes: float = 0.0


class PlacesAnswer(NamedTuple):
    """
    What it is told.

    Attributes:
        places: how many calls it may have running.
        until: until when it may start calls without asking again, by its event loop's clock.
        scarce: others have fewer than they want.
        limit: of all together.
        cuts: how often the limit was cut now.
    """

    places: int
    until: float
    scarce: bool
    limit: int
    cuts: int


def exchange(
    record: dict[str, Any], moment: Moment, request: PlacesRequest
) -> tuple[dict[str, Any], PlacesAnswer]:
    """
    Show oneself, and be told how many calls may run; raises `PipelineError` if others share the limit and
    have another rule for it.
    """
    now, ahead = moment
    holders = {
        token: one
        for token, one in record.get("holders", {}).items()
        # a clock that begins anew has left behind what is from its future
        if now - GRACE < one["until"] <= now + LEASE + SLOWEST
    }
    own = holders.pop(request.holder.token, None)
    limit = _limit(record, holders, moment, request)
    allowed = int(limit.value)
    if request.wanted > allowed - _places(holders) or _is_scarce(holders):
        holders = _present(holders, now)
    scarce = _is_scarce(holders)
    since = own["since"] if own is not None and not own["places"] else now
    free = max(allowed - _places(holders), 0)
    if scarce:
        free = _equal_part(holders, since, free, allowed)
    target = min(request.wanted, free)
    until = now + LEASE + min(request.takes, SLOWEST)
    held = request.running if own is None else max(request.running, min(request.held, own["places"]))
    if request.wanted:
        holders[request.holder.token] = {
            "places": max(held, target),
            "running": request.running,
            "wanted": request.wanted,
            "since": since,
            "until": until,
            "who": [request.holder.host, request.holder.pid, request.holder.started, request.holder.realm],
        }
    record = {
        "rule": request.rule.settings(),
        "limit": limit.value,
        "cut_at": limit.cut_at,
        "holders": holders,
    }
    return record, PlacesAnswer(target, until - ahead, scarce, allowed, limit.cuts)


class _Limit(NamedTuple):
    """
    How many places there are, of which the record keeps fractions.

    Attributes:
        cut_at: when it was cut last, by the store's clock.
        cuts: how often it was cut now.
    """

    value: float
    cut_at: float
    cuts: int


def _limit(record: dict[str, Any], others: dict[str, Any], moment: Moment, request: PlacesRequest) -> _Limit:
    """
    The limit, moved by what a holder tells; raises `PipelineError` if others share the limit and have another
    rule for it.
    """
    now, ahead = moment
    rule = request.rule
    value, cut_at = record.get("limit", rule.start), min(record.get("cut_at", 0.0), now)
    if record.get("rule", rule.settings()) != rule.settings():
        if _present(others, now):
            raise PipelineError(
                f"the shared limit {request.name!r} has other settings for others (least, most, start, "
                f"decrease: {record['rule']}) than here ({rule.settings()}); give one of them another name="
            )
        value, cut_at = rule.start, 0.0
    if 2 * (request.running + sum(one["running"] for one in others.values())) >= value:
        value = min(rule.most, value + request.answers / value)
    if is_cut := request.overload + ahead >= cut_at:
        value, cut_at = max(rule.least, value * rule.decrease), now
    return _Limit(value, cut_at, int(is_cut))


def _equal_part(others: dict[str, Any], since: float, free: int, allowed: int) -> int:
    """What one of those that want places may have at most, behind those that have waited for longer."""
    ahead = len([one for one in others.values() if not one["places"] and one["since"] < since])
    return min(max(free - ahead, 0), max(allowed // (1 + len(others)), 1))


def _places(holders: dict[str, Any]) -> int:
    """How many they have together."""
    return sum(one["places"] for one in holders.values())


def _is_scarce(holders: dict[str, Any]) -> bool:
    return any(one["places"] < one["wanted"] for one in holders.values())


def _present(holders: dict[str, Any], now: float) -> dict[str, Any]:
    """Those that have shown themselves, or are seen to live."""
    found = {}
    for token, one in holders.items():
        host, pid, started, realm = one["who"]
        seen = presence(Holder(host, pid, started, realm, token, 0))
        if seen == "alive" or (seen == "unknown" and one["until"] > now):
            found[token] = one
    return found
