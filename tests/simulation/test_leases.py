"""
Stories of processes that share a rate, places, a breaker's probe or a budget: what one of them leases is
never used beyond the limit, and never lost. And they can fail: with a bug in the rules one soon does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from asyncstream.guards import Budget, SharedConcurrency, SharedRateLimiter
from asyncstream.guards import budget as budgets_module
from asyncstream.guards.shared import (
    breaker,
    budgets,
    circuits,
    concurrency,
    places,
    rate_limiter,
)
from asyncstream.guards.shared.records import Compared, Moment, RecordsAway
from tests.simulation.leases import STORIES
from tests.simulation.processes import StoryFailed
from tests.simulation.scenarios import swept

SEEDS = {"rate": 20, "places": 8, "probe": 20, "budget": 20}
WITHIN = 100
"""Seeds."""

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("kind", STORIES)
def test_what_is_leased_is_used_once_and_comes_back(kind: str) -> None:
    for seed in swept(range(SEEDS[kind])):
        STORIES[kind](seed)


Patch = Callable[[pytest.MonkeyPatch], None]


def with_rule(patch: pytest.MonkeyPatch, user: Any, change: Callable[..., Any]) -> None:
    """Put `change` in the place of the rule that a process goes by; it is given the rule, too."""
    whole = user.exchange
    patch.setattr(user, "exchange", lambda record, moment, request: change(whole, record, moment, request))


def with_answer(patch: pytest.MonkeyPatch, user: Any, **later: float) -> None:
    """Tell processes more than the rule does."""

    def change(rule: Any, record: Any, moment: Any, request: Any) -> Any:
        record, answer = rule(record, moment, request)
        return record, answer._replace(**{name: getattr(answer, name) + by for name, by in later.items()})

    with_rule(patch, user, change)


def held(record: dict[str, Any], what: str, until: Callable[[float], float]) -> dict[str, Any]:
    """A record whose leases run until another time."""
    leases = {name: one | {"until": until(one["until"])} for name, one in record.get(what, {}).items()}
    return record | {what: leases}


def what_others_have_changed_meanwhile_is_overwritten(patch: pytest.MonkeyPatch) -> None:
    async def update(store: Any, name: str, change: Any) -> Any:
        class Twice:
            def __init__(self) -> None:
                self.made: Any = None

            def __call__(self, record: Any, moment: Moment) -> Any:
                self.made = self.made or change(record, moment)
                return self.made

        return await whole(store, name, Twice())

    whole = Compared.update
    patch.setattr(Compared, "update", update)


# ------------------------------------------------------------------ a rate


def what_a_lease_held_is_free_when_it_runs_out(patch: pytest.MonkeyPatch) -> None:
    def change(rule: Any, record: Any, moment: Any, request: Any) -> Any:
        leases = {name: one for name, one in record.get("leases", {}).items() if one["until"] > moment.now}
        return rule(record | {"leases": leases}, moment, request)

    with_rule(patch, rate_limiter, change)


def a_lease_is_used_after_its_end(patch: pytest.MonkeyPatch) -> None:
    with_answer(patch, rate_limiter, until=0.5)


def what_a_killed_process_held_is_never_free(patch: pytest.MonkeyPatch) -> None:
    for user, what in ((rate_limiter, "leases"), (concurrency, "holders")):

        def change(rule: Any, record: Any, moment: Any, request: Any, what: str = what) -> Any:
            return rule(held(record, what, lambda until: max(until, moment.now + 0.1)), moment, request)

        with_rule(patch, user, change)
    patch.setattr(circuits, "LEASE", 1000.0)


def what_is_not_used_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    def change(rule: Any, record: Any, moment: Any, request: Any) -> Any:
        own = record.get("leases", {}).get(request.lease)
        record, answer = rule(record, moment, request)
        if own is not None and not request.wanted:
            used = sum(weight for _, weight in request.used)
            kept = own | {"held": max(own["held"] - used, 0), "until": moment.now + 0.2}
            record = record | {"leases": record["leases"] | {request.lease: kept}}
        return held(record, "leases", lambda until: max(until, moment.now + 0.2)), answer

    with_rule(patch, rate_limiter, change)


def what_is_used_counts_twice(patch: pytest.MonkeyPatch) -> None:
    def use(limiter: Any, lease: Any, amount: float, now: float, once: Any = SharedRateLimiter._use) -> None:
        once(limiter, lease, amount, now)
        once(limiter, lease, amount, now)

    patch.setattr(SharedRateLimiter, "_use", use)


def the_clocks_of_a_process_and_the_store_are_taken_for_one(patch: pytest.MonkeyPatch) -> None:
    def change(rule: Any, record: Any, moment: Any, request: Any) -> Any:
        return rule(record, Moment(moment.now), request)

    with_rule(patch, rate_limiter, change)


def calls_begin_while_the_store_is_away(patch: pytest.MonkeyPatch) -> None:
    def away(limiter: Any, error: Any, whole: Any = SharedRateLimiter._note_away) -> None:
        whole(limiter, error)
        limiter._lease.left, limiter._lease.until = limiter.rate, asyncio.get_running_loop().time() + 0.1

    patch.setattr(SharedRateLimiter, "_note_away", away)


# ------------------------------------------------------------------ places


def a_place_is_taken_from_one_that_shows_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(places, "LEASE", 0.1)
    patch.setattr(places, "GRACE", 0.0)


def a_process_does_not_show_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(concurrency, "HEARTBEAT", 10.0)
    patch.setattr(places, "GRACE", 0.0)


def calls_begin_when_places_are_lost(patch: pytest.MonkeyPatch) -> None:
    with_answer(patch, concurrency, until=10.0)


def a_place_is_given_back_twice(patch: pytest.MonkeyPatch) -> None:
    def release(limit: SharedConcurrency, once: Any = SharedConcurrency.release) -> None:
        limit.in_flight = max(limit.in_flight - 1, 1)
        once(limit)

    patch.setattr(SharedConcurrency, "release", release)


def a_process_keeps_what_others_wait_for(patch: pytest.MonkeyPatch) -> None:
    def change(rule: Any, record: Any, moment: Any, request: Any) -> Any:
        content = {name: one | {"wanted": one["places"]} for name, one in record.get("holders", {}).items()}
        return rule(record | {"holders": content}, moment, request)

    with_rule(patch, concurrency, change)


def calls_begin_on_places_that_the_store_takes_for_given_back(patch: pytest.MonkeyPatch) -> None:
    def change(rule: Any, record: Any, moment: Any, request: Any) -> Any:
        return rule(record, moment, replace(request, held=request.running))

    with_rule(patch, concurrency, change)


# ------------------------------------------------------------------ a probe


def all_may_probe(patch: pytest.MonkeyPatch) -> None:
    def change(rule: Any, record: Any, moment: Any, request: Any) -> Any:
        prober = record.get("prober")
        if prober is not None and prober[0] != request.process:
            record = record | {"prober": None}
        return rule(record, moment, request)

    with_rule(patch, breaker, change)


def a_probe_is_not_renewed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(breaker, "HEARTBEAT", 10.0)


def what_is_told_of_a_lost_probe_is_heard(patch: pytest.MonkeyPatch) -> None:
    def change(rule: Any, record: Any, moment: Any, request: Any) -> Any:
        if request.probe is not None and record.get("prober"):
            record = record | {"prober": [request.process, moment.now + 0.1]}
        return rule(record, moment, request)

    with_rule(patch, breaker, change)


# ------------------------------------------------------------------ a budget


def with_record(patch: pytest.MonkeyPatch, change: Callable[..., Any]) -> None:
    whole = budgets.exchange
    patch.setattr(budgets_module, "exchange", lambda record, request: change(whole, record, request))


def what_was_not_answered_is_asked_anew(patch: pytest.MonkeyPatch) -> None:
    async def exchange(budget: Any, *args: Any, whole: Any = Budget._exchange) -> Any:
        try:
            return await whole(budget, *args)
        except RecordsAway:
            budget._asked = None
            raise

    patch.setattr(Budget, "_exchange", exchange)


def what_is_asked_again_is_done_again(patch: pytest.MonkeyPatch) -> None:
    with_record(patch, lambda rule, record, request: rule(record | {"seen": {}}, request))


def what_was_let_in_counts_in_the_period_of_the_answer(patch: pytest.MonkeyPatch) -> None:
    def change(rule: Any, record: Any, request: Any) -> Any:
        record, answer = rule(record, request)
        return record, answer._replace(period=record["period"])

    with_record(patch, change)


def what_a_call_did_cost_is_lost(patch: pytest.MonkeyPatch) -> None:
    def settle(budget: Any, reserved: Any, actual: Any, whole: Any = Budget.settle) -> None:
        whole(budget, reserved, None)

    patch.setattr(Budget, "settle", settle)


def what_was_not_spent_is_refunded_twice(patch: pytest.MonkeyPatch) -> None:
    def settle(budget: Any, reserved: Any, actual: Any, whole: Any = Budget.settle) -> None:
        whole(budget, reserved, actual)
        if actual == {}:
            budget._running += 1
            whole(budget, reserved, actual)

    patch.setattr(Budget, "settle", settle)


def calls_are_let_in_for_which_there_is_no_room(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(budgets, "_fits", lambda cost, spent, limits: spent.get("usd", 0.0) <= limits["usd"])


def what_is_under_way_is_forgotten_when_a_process_leaves(patch: pytest.MonkeyPatch) -> None:
    async def close(budget: Any, whole: Any = Budget.close) -> None:
        await budget._background.stop()
        budget._asked = None
        await whole(budget)

    patch.setattr(Budget, "close", close)


@pytest.mark.parametrize(
    ("kind", "put_in", "first"),  # the seed to begin with: one by which it was caught
    [
        ("rate", what_others_have_changed_meanwhile_is_overwritten, 0),
        ("rate", what_a_lease_held_is_free_when_it_runs_out, 0),
        ("rate", a_lease_is_used_after_its_end, 3),
        ("rate", what_a_killed_process_held_is_never_free, 0),
        ("rate", what_is_not_used_is_not_given_back, 0),
        ("rate", what_is_used_counts_twice, 3),
        ("rate", the_clocks_of_a_process_and_the_store_are_taken_for_one, 0),
        ("rate", calls_begin_while_the_store_is_away, 0),
        ("places", what_others_have_changed_meanwhile_is_overwritten, 0),
        ("places", what_a_killed_process_held_is_never_free, 12),
        ("places", a_place_is_taken_from_one_that_shows_itself, 0),
        ("places", a_process_does_not_show_itself, 0),
        ("places", calls_begin_when_places_are_lost, 4),
        ("places", a_place_is_given_back_twice, 4),
        ("places", a_process_keeps_what_others_wait_for, 0),
        ("places", calls_begin_on_places_that_the_store_takes_for_given_back, 768),
        ("probe", what_a_killed_process_held_is_never_free, 5),
        ("probe", all_may_probe, 2),
        ("probe", a_probe_is_not_renewed, 3),
        ("probe", what_is_told_of_a_lost_probe_is_heard, 41),
        ("budget", what_others_have_changed_meanwhile_is_overwritten, 0),
        ("budget", what_was_not_answered_is_asked_anew, 15),
        ("budget", what_is_asked_again_is_done_again, 22),
        ("budget", what_was_let_in_counts_in_the_period_of_the_answer, 15),
        ("budget", what_a_call_did_cost_is_lost, 2),
        ("budget", what_was_not_spent_is_refunded_twice, 0),
        ("budget", calls_are_let_in_for_which_there_is_no_room, 0),
        ("budget", what_is_under_way_is_forgotten_when_a_process_leaves, 5),
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_bug_is_caught_when(kind: str, put_in: Patch, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch)
    with pytest.raises(StoryFailed):
        tell_all(kind, first)


def tell_all(kind: str, first: int) -> None:
    for seed in swept(range(first, first + WITHIN)):
        STORIES[kind](seed)
