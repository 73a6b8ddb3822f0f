"""The rule of a budget: nothing is let in above the limit, and what has been asked for is done once."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.errors import PipelineError
from asyncstream.guards import Budget, LimitServer, SharedLimit, metered
from asyncstream.guards.shared.budgets import BudgetAnswer, BudgetRequest, exchange
from tests.guards.services import Flaky

DAY = 86_400_000


def ask(
    record: dict[str, Any], number: int, *asked: float, client: str = "a", now_ms: int = 0, **more: Any
) -> tuple[dict[str, Any], BudgetAnswer]:
    per_ms = more.pop("per_ms", None)
    limits = more.pop("limits", {"usd": 10.0})
    costs = [{"usd": cost} for cost in asked]
    return exchange(record, BudgetRequest("b", client, number, now_ms, per_ms, limits, asked=costs, **more))


def test_calls_are_let_in_as_long_as_there_is_room_and_in_order() -> None:
    record, answer = ask({}, 1, 4.0, 4.0, 4.0, 1.0)
    assert (answer.admitted, answer.spent) == (2, {"usd": 8.0})  # the small one does not overtake
    record, answer = ask(record, 2, 4.0, settled={0: {"usd": -3.0}})
    assert (answer.admitted, answer.spent) == (1, {"usd": 9.0})


def test_what_is_asked_for_again_is_not_done_twice() -> None:
    record, first = ask({}, 1, 4.0, settled={0: {"usd": 1.0}})
    again, second = ask(record, 1, 4.0, settled={0: {"usd": 1.0}})
    assert (first, record) == (second, again)


def test_what_was_let_in_without_an_answer_counts_in_the_period_in_which_it_was() -> None:
    record, first = ask({}, 1, 4.0, now_ms=DAY - 1, per_ms=DAY)
    record, _ = ask(record, 1, 9.0, client="b", now_ms=DAY, per_ms=DAY)
    record, again = ask(record, 1, 4.0, now_ms=DAY, per_ms=DAY)
    assert (again.admitted, again.period) == (first.admitted, first.period)
    assert ask(record, 2, now_ms=DAY, per_ms=DAY)[1].spent == {"usd": 9.0}


def test_a_period_begins_with_nothing_spent_and_settles_what_is_of_it() -> None:
    record, _ = ask({}, 1, 9.0, now_ms=DAY - 1, per_ms=DAY)
    record, answer = ask(record, 2, 9.0, now_ms=DAY, per_ms=DAY, settled={0: {"usd": 50.0}})
    assert (answer.admitted, answer.period, answer.spent) == (1, 1, {"usd": 9.0})
    _, answer = ask(record, 1, 9.0, client="with a clock that is behind", now_ms=DAY - 1, per_ms=DAY)
    assert (answer.admitted, answer.period) == (0, 1)


def test_a_raised_limit_holds_for_all() -> None:
    record, _ = ask({}, 1, 10.0)
    record, answer = ask(record, 1, 5.0, client="b", raised={"usd": 15.0})
    assert answer.admitted == 1
    assert ask(record, 2)[1].limits == {"usd": 15.0}


@pytest.mark.parametrize("pers", [(DAY, 3_600_000), (3_600_000, DAY), (None, DAY), (DAY, None)], ids=str)
def test_a_period_of_another_length_is_refused_with_both(pers: tuple[int | None, int | None]) -> None:
    words = {DAY: "for each 86400 s", 3_600_000: "for each 3600 s", None: "for all time"}
    record, _ = ask({}, 1, 4.0, per_ms=pers[0])
    before = copy.deepcopy(record)
    both = f"'b' is {words[pers[0]]} .*, and {words[pers[1]]} .*here; give one of them another name="
    with pytest.raises(PipelineError, match=both):
        ask(record, 1, 4.0, client="b", per_ms=pers[1])
    assert record == before


def test_a_record_that_says_nothing_of_its_period_is_gone_on_with() -> None:
    record, _ = ask({}, 1, 4.0, per_ms=DAY)
    del record["per_ms"]
    assert ask(record, 1, 4.0, client="b", per_ms=DAY)[1].spent == {"usd": 8.0}


async def test_calls_of_a_budget_with_a_period_of_another_length_are_refused() -> None:
    with LimitServer() as server:
        scope = SharedLimit(server.url, name="models")
        daily = metered(Flaky(0), cost=1, budget=Budget(usd=5, per=DAY / 1000, scope=scope))
        async with (
            asyncio.timeout(60),
            daily,
            metered(Flaky(0), cost=1, budget=Budget(usd=5, scope=scope)) as other,
        ):
            await daily(1)
            with pytest.raises(PipelineError, match="the shared budget 'models' is for each 86400 s"):
                await other(1)
            await daily(1)


def test_every_unit_must_have_room() -> None:
    request = BudgetRequest(
        "b", "a", 1, 0, None, {"usd": 1.0, "tokens": 100}, asked=[{"usd": 0.1, "tokens": 101}]
    )
    assert exchange({}, request)[1].admitted == 0


@given(
    st.lists(st.tuples(st.floats(0.1, 3), st.floats(0.5, 1.5), st.integers(1, 6)), min_size=1, max_size=60)
)
def test_no_more_is_overspent_than_the_calls_that_ran_cost_above_their_estimates(
    calls: list[tuple[float, float, int]],
) -> None:
    record: dict[str, Any] = {}
    running: list[tuple[float, float]] = []
    spent, allowed, number = 0.0, 10.0, 0
    for estimate, off, most in calls:
        number += 1
        record, answer = ask(record, number, estimate)
        if not answer.admitted:
            break
        running.append((estimate, estimate * off))
        allowed = 10.0 + sum(max(actual - expected, 0.0) for expected, actual in running)
        while len(running) >= most:
            expected, actual = running.pop(0)
            spent += actual
            number += 1
            record, _ = ask(record, number, settled={0: {"usd": actual - expected}})
    assert spent + sum(actual for _, actual in running) <= allowed + 1e-6


async def test_while_the_store_is_away_no_call_begins() -> None:
    with LimitServer() as server:
        service = Flaky(0)
        guard = metered(service, cost=1.0, budget=Budget(usd=100, scope=SharedLimit(server.url)))
        async with asyncio.timeout(60), guard:
            await asyncio.gather(*(guard(number) for number in range(20)))
            await asyncio.to_thread(server.close)
            call = asyncio.create_task(guard(0))
            await asyncio.wait({call}, timeout=0.4)
            assert not call.done()
            assert guard.counters()["limit_store_away"] == 1
            server.start()
            await call
    assert len(service.times) == 21


async def test_what_a_call_did_cost_is_told_though_no_other_follows() -> None:
    with LimitServer() as server:
        scope = SharedLimit(server.url)
        one = metered(Flaky(0), cost=10, actual=lambda value, found: 1, budget=Budget(usd=100, scope=scope))
        other = metered(Flaky(0), cost=0, budget=(seen := Budget(usd=100, scope=scope)))
        async with asyncio.timeout(60), one, other:
            await one(0)
            await other(0)
            while seen.spent["usd"] != 1:
                await other(0)
