"""The rule of a shared breaker: when it opens for all, and that one process at a time tries the service."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.errors import PipelineError
from asyncstream.guards.shared.circuits import (
    LEASE,
    Block,
    CircuitAnswer,
    CircuitRequest,
    CircuitRule,
    exchange,
)
from asyncstream.guards.shared.records import Moment

RULE = CircuitRule(failure_ratio=0.5, window=10.0, min_calls=4, failures=3, open_for=2.0, probes=1)


def block(outcomes: str, row: int = 0) -> Block:
    """Of calls that succeeded (+) and failed (-), `row` failures having gone before."""
    told = Block()
    for outcome in outcomes:
        row = row + 1 if outcome == "-" else 0
        if outcome == "+":
            told.succeeded()
        else:
            told.failed(row)
    return told


def ask(
    record: dict[str, Any], now: float, process: str = "a", outcomes: str = "", **more: Any
) -> tuple[dict[str, Any], CircuitAnswer]:
    told = more.pop("block", None) or block(outcomes)
    fields: dict[str, Any] = {"rule": RULE, "period": record.get("period", 0)} | more
    return exchange(record, Moment(now), CircuitRequest("b", process=process, block=told, **fields))


def opened(now: float = 100.0, rule: CircuitRule = RULE) -> dict[str, Any]:
    record, _ = ask({}, now, rule=rule)
    record, answer = ask(record, now, outcomes="---", rule=rule)
    assert answer.is_open
    return record


TELLING = st.lists(
    st.tuples(st.integers(0, 2), st.text("+-", max_size=4), st.sampled_from([0.0, 0.4, 3.0, 30.0])),
    max_size=30,
)


@given(
    TELLING,
    st.sampled_from([None, 0.3, 0.5, 1.0]),
    st.sampled_from([None, 2, 4]),
    st.integers(1, 6),
)
def test_opens_exactly_when_all_together_have_failed_too_often(
    telling: list[tuple[int, str, float]], ratio: float | None, failures: int | None, min_calls: int
) -> None:
    rule = replace(RULE, failure_ratio=ratio, failures=failures, min_calls=min_calls)
    now = 100.0
    record, _ = ask({}, now, rule=rule)
    told: list[tuple[int, str]] = []
    own: dict[int, str] = {0: "", 1: "", 2: ""}
    for who, outcomes, later in telling:
        now += later
        row = len(own[who]) - len(own[who].rstrip("-"))
        record, answer = ask(record, now, str(who), rule=rule, block=block(outcomes, row))
        own[who] += outcomes
        told.append((int(now), outcomes))
        counted = "".join(some for second, some in told if second > int(now) - 10)
        is_too_much = "-" in outcomes and ratio is not None and len(counted) >= min_calls
        is_too_much = is_too_much and counted.count("-") >= (ratio or 0) * len(counted)
        if failures is not None and outcomes:
            # a row that ends in this block, or goes through it
            before = "".join(some for _, some in told[:-1])
            tails = [before[len(before.rstrip("-")) :], own[who][: -len(outcomes)]]
            tails[1] = tails[1][len(tails[1].rstrip("-")) :]
            rows = [max(map(len, (tail + outcomes).split("+"))) for tail in tails if "-" in outcomes]
            is_too_much = is_too_much or max(rows, default=0) >= failures
        assert answer.is_open == is_too_much
        if is_too_much:
            assert answer.until == now + rule.open_for
            return


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),  # who
        st.floats(0, 1.0),  # how much later
        st.sampled_from(["ask", "show", "succeed", "fail", "abandon", "die"]),
    ),
    max_size=80,
)


@given(STEPS, st.integers(1, 3))
def test_there_are_never_two_probes_and_a_killed_one_does_not_hold_it_for_ever(
    steps: list[tuple[int, float, str]], probes: int
) -> None:
    rule = replace(RULE, probes=probes)
    now, made, record = 100.0, 4, opened(rule=rule)
    until = 102.0
    names = [str(number) for number in range(4)]
    believing: set[str] = set()  # who was given the probe, and does not know better
    prober, shown, in_a_row = "", 0.0, 0  # who has it, and when it was last heard of
    told = {"show": "running", "succeed": "succeeded", "fail": "failed", "abandon": "abandoned"}
    for who, later, what in steps:
        now += later
        name = names[who]
        if what == "die":  # it tells no more; its place is taken by another process
            made += 1
            names[who] = str(made)
        if what == "die" or (what != "ask") != (name in believing):
            continue
        period = record["period"]
        record, answer = ask(record, now, name, rule=rule, probe=told.get(what), wants=what == "ask")
        if what == "ask":
            if answer.probes:
                assert now >= until - 1e-5
                assert not prober or now >= shown + LEASE - 1e-9
                prober, shown = name, now
                believing.add(name)
            continue
        assert answer.probes == (what == "show" and name == prober)
        if answer.probes:
            shown = now
            continue
        believing.discard(name)
        if name != prober:
            assert record["period"] == period  # it is not heard
            continue
        prober = ""
        if what == "fail":
            until, in_a_row = now + rule.open_for, 0
        in_a_row += what == "succeed"
        assert answer.is_open == (in_a_row < probes)
        if not answer.is_open:
            return
    record, answer = ask(record, max(now, until) + LEASE, "another", rule=rule, wants=True)
    assert answer.probes


def test_a_probe_that_was_lost_is_not_heard() -> None:
    record = opened()
    record, answer = ask(record, 102.0, "a", wants=True)
    assert answer.probes
    record, answer = ask(record, 102.1, "b", wants=True)
    assert not answer.probes
    record, answer = ask(record, 102.0 + LEASE, "b", wants=True)
    assert answer.probes
    record, answer = ask(record, 103.0, "a", probe="succeeded")
    assert answer.is_open
    record, answer = ask(record, 103.0, "b", probe="succeeded")
    assert not answer.is_open


def test_a_probe_that_is_late_is_heard_where_nobody_else_wants_it() -> None:
    record, answer = ask(opened(), 102.0, "a", wants=True)
    assert answer.probes
    record, _ = ask(record, 103.0, "b")
    record, answer = ask(record, 103.1, "a", probe="running")
    assert answer.probes
    record, _ = ask(record, 104.0, "b")
    record, answer = ask(record, 104.1, "a", probe="succeeded")
    assert not answer.is_open


def test_stragglers_of_the_period_before_do_not_count() -> None:
    record, _ = ask(opened(), 102.0, "a", wants=True)
    record, answer = ask(record, 102.1, "a", probe="succeeded")
    assert not answer.is_open
    record, answer = ask(record, 102.2, "b", outcomes="-----", period=1)
    assert not answer.is_open
    assert ask(record, 102.3, "b", outcomes="---")[1].is_open


def test_a_clock_that_began_anew_does_not_keep_it_open() -> None:
    record, answer = ask(opened(1_000_000.0), 3.0, "b", wants=True)
    assert answer.until == 5.0
    assert ask(record, 5.0, "b", wants=True)[1].probes


def test_times_are_told_by_the_clock_of_the_loop() -> None:
    request = CircuitRequest("b", RULE, "a", 1, block("---"))
    record, _ = ask({}, 100.0)
    assert exchange(record, Moment(100.0, ahead=90.0), request)[1].until == 12.0


def test_other_settings_are_refused_while_others_go_by_the_first() -> None:
    record, _ = ask({}, 5.0)
    with pytest.raises(PipelineError, match="other settings"):
        ask(record, 5.9, "b", rule=replace(RULE, probes=2))
    record, answer = ask(record, 6.0, "b", rule=replace(RULE, probes=2))
    assert answer.period == 2
