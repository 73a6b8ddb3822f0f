"""
The rule of a circuit breaker that several share: it opens for all when the calls of all together fail too
often, and one process at a time tries the service again.

The record holds what is counted within the window, in slices of it, and how many calls failed in a row;
until when it is open; and who probes. Outcomes are told in blocks, and count when they are told. A row is one
of a single process, or goes on from block to block in the order in which they came.

Each change of state begins a new period, which has a number. A block counts only in the period in which its
calls began.

A probe is a lease: it belongs to the process that was given it, until another is, and another is given it
when the first has not shown itself for `LEASE` seconds. What a process tells of a probe that is no longer its
own is not heard. So there is never more than one, and a process that is killed holds it for that long.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any, Final, Literal, NamedTuple

from asyncstream.errors import PipelineError
from asyncstream.guards.breaker import SLICES
from asyncstream.guards.guard import EARLY
from asyncstream.guards.shared.records import Moment

__all__ = ("HEARTBEAT", "LEASE", "Block", "CircuitAnswer", "CircuitRequest", "CircuitRule", "exchange")

LEASE: Final = 0.75
"""Seconds after which a process that probes, and has not shown itself, has lost the probe."""

HEARTBEAT: Final = 0.25
"""Seconds after which it shows itself."""

DISPUTE: Final = 1.0
"""Seconds since the last exchange in which other settings are refused."""


@dataclass(frozen=True)
class CircuitRule:
    """
    What all who share the breaker must agree on, as of `Breaker`; times in seconds.
    """

    failure_ratio: float | None
    window: float
    min_calls: int
    failures: int | None
    open_for: float
    probes: int

    def settings(self) -> list[float | None]:
        """As it is written down."""
        return list(astuple(self))


@dataclass
class Block:
    """
    Outcomes of the calls of one process, since it last told of any.

    Attributes:
        calls, failures: how many.
        leading: failures before the first success.
        trailing: failures after the last success.
        longest: the longest row of failures, with what was told of it before.
    """

    calls: int = 0
    failures: int = 0
    leading: int = 0
    trailing: int = 0
    longest: int = 0

    def succeeded(self) -> None:
        """Count a call that has succeeded."""
        self.calls += 1
        self.trailing = 0

    def failed(self, row: int) -> None:
        """Count a call that has failed, as the last of so many in a row."""
        self.leading += self.failures == self.calls
        self.calls += 1
        self.failures += 1
        self.trailing += 1
        self.longest = max(self.longest, row)


@dataclass(frozen=True)
class CircuitRequest:
    """
    What a process tells and asks.

    Attributes:
        name: of the breaker, for errors.
        rule: what it goes by.
        process: tells the process from others.
        period: in which the calls of the block began.
        block: how calls have ended.
        probe: what has become of the probe that it was given; None: it was given none.
        wants: a call of it waits that could be the probe.
    """

    name: str
    rule: CircuitRule
    process: str
    period: int
    block: Block
    probe: Literal["running", "succeeded", "failed", "abandoned"] | None = None
    wants: bool = False


class CircuitAnswer(NamedTuple):
    """
    What it is told.

    Attributes:
        period: the number of the present period.
        is_open: whether the breaker has opened, and not closed since.
        until: when the first probe may begin, by its event loop's clock.
        probes: whether the probe is this process's.
    """

    period: int
    is_open: bool
    until: float
    probes: bool


def exchange(
    record: dict[str, Any], moment: Moment, request: CircuitRequest
) -> tuple[dict[str, Any], CircuitAnswer]:
    """
    Tell how calls went, and be told whether others may begin; raises `PipelineError` if others share the
    breaker and have other settings for it.
    """
    now, ahead = moment
    rule = request.rule
    if record.get("rule") != rule.settings():
        if record and 0 <= now - record["seen"] < DISPUTE:
            raise PipelineError(
                f"the shared breaker {request.name!r} has other settings for others (failure_ratio, window, "
                f"min_calls, failures, open_for, probes: {record['rule']}) than here ({rule.settings()}); "
                "give one of them another name="
            )
        record = _closed(rule, record.get("period", 0) + 1)
    else:
        record = dict(record)
    if record["open_until"] is None:
        if request.period == record["period"] and request.block.calls and _is_too_much(record, now, request):
            record = _opened(record, now, rule)
    else:
        # a clock that begins anew has left behind what is from its future
        record["open_until"] = min(record["open_until"], now + rule.open_for)
        record = _probed(record, now, request)
    record["seen"] = now
    until, prober = record["open_until"], record["prober"]
    return record, CircuitAnswer(
        record["period"],
        until is not None,
        0.0 if until is None else until - ahead,
        prober is not None and prober[0] == request.process,
    )


def _closed(rule: CircuitRule, period: int) -> dict[str, Any]:
    return {
        "rule": rule.settings(),
        "period": period,
        "slices": [],
        "row": 0,
        "open_until": None,
        "succeeded": 0,
        "prober": None,
    }


def _opened(record: dict[str, Any], now: float, rule: CircuitRule) -> dict[str, Any]:
    return _closed(rule, record["period"] + 1) | {"open_until": now + rule.open_for}


def _is_too_much(record: dict[str, Any], now: float, request: CircuitRequest) -> bool:
    """Count a block; whether the breaker must open."""
    rule, block = request.rule, request.block
    current = int(now // (rule.window / SLICES))
    slices = [list(one) for one in record["slices"] if current - SLICES < one[0] <= current]
    if not slices or slices[-1][0] != current:
        slices.append([current, 0, 0])
    slices[-1][1] += block.calls
    slices[-1][2] += block.failures
    row = record["row"] + block.leading
    has_succeeded = block.failures < block.calls
    record |= {"slices": slices, "row": block.trailing if has_succeeded else row}
    if not block.failures:
        return False
    if rule.failures is not None and max(row, block.longest) >= rule.failures:
        return True
    calls, failures = sum(one[1] for one in slices), sum(one[2] for one in slices)
    return (
        rule.failure_ratio is not None and calls >= rule.min_calls and failures >= rule.failure_ratio * calls
    )


def _probed(record: dict[str, Any], now: float, request: CircuitRequest) -> dict[str, Any]:
    """What becomes of an open breaker."""
    prober = record["prober"]
    if prober is not None and prober[0] == request.process:
        match request.probe:
            case "running":
                return record | {"prober": [request.process, now + LEASE]}
            case "failed":
                return _opened(record, now, request.rule)
            case "succeeded" if record["succeeded"] + 1 >= request.rule.probes:
                return _closed(request.rule, record["period"] + 1)
            case "succeeded":
                record["succeeded"] += 1
        prober = None  # a process that knows of no probe was given one by an answer that was lost
    is_free = prober is None or not now < prober[1] <= now + LEASE
    if is_free and request.wants and now >= record["open_until"] - EARLY:
        prober = [request.process, now + LEASE]
    return record | {"prober": prober}
