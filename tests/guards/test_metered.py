"""Budgets: what calls cost is reserved, settled and taken back, and a spent one makes calls wait."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asyncstream import Checkpoints, Job, MemoryStore, Pipeline
from asyncstream.clock import ManualClock
from asyncstream.errors import PipelineError
from asyncstream.guards import Budget, SharedLimit, metered, retry
from asyncstream.operators.call_context import KEEP
from asyncstream.testing.loop import VirtualTime, run_virtual
from tests.guards.services import Flaky, now_ms

pytestmark = pytest.mark.usefixtures("virtual_time")


@pytest.fixture
def scope(tmp_path: Path) -> SharedLimit:
    return SharedLimit(f"sqlite:///{tmp_path}/spent.db")


def paying(budget: Budget, estimate: float, actual: float, charged: list[float], takes: float = 0.1) -> Any:
    async def ask(value: int) -> float:
        await asyncio.sleep(takes)
        charged.append(actual)
        return actual

    return metered(ask, cost=estimate, actual=lambda value, answer: answer, budget=budget)


async def until_spent(guards: list[Any], calls: int, concurrency: int) -> None:
    """Make calls, so many of each guard at once, until the budget lets no more of them begin."""
    waiting = iter(range(calls))

    async def one_after_the_other(guard: Any) -> None:
        for number in waiting:
            await guard(number)

    tasks = [asyncio.create_task(one_after_the_other(guard)) for guard in guards for _ in range(concurrency)]
    await asyncio.wait(tasks, timeout=60)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("actual", [1.0, 1.5, 2.0, 0.5])
async def test_overspends_by_no_more_than_the_calls_in_flight(
    scope: SharedLimit, actual: float, is_shared: bool
) -> None:
    charged: list[float] = []
    budgets = [Budget(usd=50, scope=scope) for _ in range(2)] if is_shared else [Budget(usd=50)]
    guards = [paying(budget, 1.0, actual, charged) for budget in budgets]
    in_flight = 8 * len(guards)
    await until_spent(guards, 1000, 8)
    assert sum(charged) <= 50 + in_flight * max(actual - 1.0, 0)
    assert sum(charged) > 50 - 1.0  # all of it is used, also where estimates are too high
    for budget in budgets:
        await budget.close()


async def test_a_failed_call_costs_nothing_and_each_attempt_is_counted() -> None:
    budget = Budget(usd=3)
    assert await retry(metered(Flaky(2), cost=2.0, budget=budget))(7) == 7
    assert budget.spent == {"usd": 2.0}
    charging = Budget(usd=10)
    failing = metered(Flaky(1), cost=2.0, failed=lambda value, error: 0.5, budget=charging)
    with pytest.raises(OSError, match="down"):
        await failing(1)
    assert charging.spent == {"usd": 0.5}


async def test_a_cancelled_call_stays_counted_as_it_was_expected() -> None:
    budget = Budget(usd=3)
    call = asyncio.create_task(metered(Flaky(0, takes=10), cost=2.0, budget=budget)(1))
    await asyncio.sleep(1)
    call.cancel()
    await asyncio.wait({call})
    assert budget.spent == {"usd": 2.0}


async def test_several_units_by_a_function_of_the_element() -> None:
    budget = Budget(usd=1, tokens=100)
    cost = lambda words: {"usd": 0.01, "tokens": 2 * words}  # noqa: E731
    guard = metered(
        Flaky(0), cost=cost, actual=lambda words, answer: {"tokens": answer, "usd": 0.01}, budget=budget
    )
    await guard(40)
    assert budget.spent == {"usd": 0.01, "tokens": 40.0}
    assert guard.counters()["budget_used_percent"] == 40


async def test_a_spent_budget_goes_on_when_it_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "asyncstream.budget")
    budget = Budget(usd=2)
    service = Flaky(0)
    guard = metered(service, cost=1.0, budget=budget)
    calls = [asyncio.create_task(guard(number)) for number in range(5)]
    await asyncio.sleep(100)
    assert len(service.times) == 2
    assert budget.is_spent()
    assert [record.message for record in caplog.records] == [
        "the budget is spent (2 of 2 usd); 3 calls wait until it is raised"
    ]
    budget.raise_to(usd=4)
    await asyncio.sleep(1)
    assert len(service.times) == 4
    budget.raise_to(usd=5)
    await asyncio.gather(*calls)
    assert not budget.is_spent()


async def test_it_is_spent_only_when_no_call_runs_that_may_cost_less() -> None:
    budget = Budget(usd=1)
    guard = metered(Flaky(0, takes=10), cost=1.0, actual=lambda value, answer: answer, budget=budget)
    calls = [asyncio.create_task(guard(cost)) for cost in (0, 1, 1)]
    await asyncio.sleep(5)
    assert not budget.is_spent()
    await asyncio.sleep(20)
    assert [call.done() for call in calls] == [True, True, False]
    assert budget.is_spent()
    calls[2].cancel()
    await asyncio.wait(calls)
    assert not budget.is_spent()  # nobody waits


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_call_that_costs_less_goes_on_when_the_one_before_it_is_cancelled(
    scope: SharedLimit, is_shared: bool
) -> None:
    service = Flaky(0)
    async with metered(
        service, cost=lambda cost: cost, budget=Budget(usd=10, scope=scope if is_shared else None)
    ) as guard:
        await guard(5)
        dear, cheap = asyncio.create_task(guard(8)), asyncio.create_task(guard(2))
        await asyncio.sleep(60)
        assert len(service.times) == 1
        dear.cancel()
        await cheap


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_call_that_waits_goes_on_when_a_guard_with_the_same_budget_is_closed(
    scope: SharedLimit, is_shared: bool
) -> None:
    budget = Budget(usd=1, per=60, scope=scope if is_shared else None, clock=VirtualTime())
    async with metered(Flaky(0), cost=1.0, budget=budget) as guard:
        await guard(1)
        waiting = asyncio.create_task(metered(Flaky(0), cost=1.0, budget=budget)(2))
        await asyncio.sleep(1)
    async with asyncio.timeout(120):
        assert await waiting == 2
    await budget.close()


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_spent_budget_is_left_alone_when_nobody_waits_any_more(
    scope: SharedLimit, is_shared: bool
) -> None:
    async with metered(
        Flaky(0), cost=1.0, budget=Budget(usd=1, per=timedelta(days=1), scope=scope if is_shared else None)
    ) as guard:
        await guard(1)
        waiting = asyncio.create_task(guard(2))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.sleep(1)
        assert len(asyncio.all_tasks()) == 1


async def test_calls_hear_of_a_record_that_makes_no_sense(scope: SharedLimit) -> None:
    records = scope.records()
    await records.update("budget:default", lambda record, moment: ({"spent": 5}, None))
    await records.close()
    async with metered(Flaky(0), cost=1.0, budget=Budget(usd=10, scope=scope)) as guard:
        with pytest.raises(TypeError):
            await guard(1)


def test_a_new_period_begins_with_a_full_budget() -> None:
    async def main() -> list[int]:
        service = Flaky(0)
        guard = metered(service, cost=1.0, budget=Budget(calls=3, per=60, clock=clock))
        calls = [asyncio.create_task(guard(number)) for number in range(7)]
        for _ in range(4):
            await asyncio.sleep(30)
            clock.set_ms(clock.now_ms() + 30_000)
        await asyncio.sleep(1)
        await asyncio.gather(*calls)
        return [time // 1000 for time in service.times]

    clock = ManualClock(1_000_000 * 60_000)
    assert run_virtual(main()) == [0] * 3 + [60] * 3 + [120]


def test_what_was_spent_outlives_the_process(scope: SharedLimit) -> None:
    def life(budget: Budget, calls: int) -> int:
        async def main() -> int:
            service = Flaky(0)
            guard = metered(service, cost=1.0, budget=budget)
            async with guard:
                await until_spent([guard], calls, 3)
            return len(service.times)

        return run_virtual(main())

    assert life(Budget(usd=10, scope=scope), 6) == 6
    assert life(Budget(usd=10, scope=scope), 6) == 4
    assert life(Budget(usd=12, scope=scope), 6) == 2  # begun again with a larger one


def test_one_process_raises_it_for_all(scope: SharedLimit) -> None:
    async def main() -> int:
        guard = metered(Flaky(0), cost=1.0, budget=Budget(usd=1, scope=scope))
        other = metered(Flaky(0), cost=1.0, budget=Budget(usd=1, scope=scope))
        await guard(1)
        waiting = asyncio.create_task(guard(2))
        await asyncio.sleep(10)
        other.budget.raise_to(usd=3)  # type: ignore[attr-defined]
        began = now_ms()
        await other(3)
        await waiting
        return now_ms() - began

    assert run_virtual(main()) <= 1000


# ------------------------------------------------------------------ in a pipeline


def test_a_spent_budget_pauses_the_stream_checkpoints_and_says_so() -> None:
    async def main() -> None:
        budget, store = Budget(usd=5), MemoryStore()
        found: list[int] = []
        pipeline = Pipeline("spends")
        numbers = pipeline.source(range(12), name="numbers")
        asked = numbers.async_map(
            metered(Flaky(0, takes=0.1), cost=1.0, budget=budget), name="ask", concurrency=2
        )
        asked.to(found, name="found")
        async with pipeline.start(checkpoints=Checkpoints(store=store, every=3600)) as job:
            before = job.status().checkpoint
            await asyncio.sleep(60)
            assert found == list(range(5))
            status = job.status()
            assert before is not None
            assert status.checkpoint is not None
            assert status.checkpoint.number == before.number + 1
            step = status.step("ask")
            assert step.waiting["limit"] == 2
            assert "budget is spent" in str(step.stuck)
            budget.raise_to(usd=20)
            await job.wait()
        assert found == list(range(12))

    run_virtual(main())


@pytest.mark.parametrize("later", [0, 30])
def test_each_job_whose_calls_wait_for_a_budget_takes_a_checkpoint(later: float) -> None:
    async def main() -> None:
        budget = Budget(usd=5)
        ask = metered(Flaky(0, takes=0.1), cost=1.0, budget=budget)  # of both

        def started(name: str) -> Job:
            pipeline = Pipeline(name)
            pipeline.source(range(12), name="numbers").async_map(ask, name="ask", concurrency=2).discard()
            return pipeline.start(checkpoints=Checkpoints(store=MemoryStore(), every=3600))

        async with started("one") as one:
            await asyncio.sleep(later)
            async with started("two") as two:
                await asyncio.sleep(60)
                for job in (one, two):
                    status = job.status()
                    assert status.checkpoint is not None
                    assert status.checkpoint.number == 2
                    assert status.step("ask").waiting["limit"]
                budget.raise_to(usd=24)
                await asyncio.gather(one.wait(), two.wait())

    run_virtual(main())


async def test_a_job_whose_calls_do_not_wait_is_asked_for_no_checkpoint() -> None:
    asked: list[str] = []
    budget = Budget(usd=1)
    async with metered(Flaky(0), cost=1.0, budget=budget) as call:
        KEEP.set(frozenset({partial(asked.append, "gone")}))
        await call(1)
        KEEP.set(frozenset({partial(asked.append, "there")}))
        waiting = asyncio.create_task(call(2))
        await asyncio.sleep(1)
        waiting.cancel()
    assert asked == ["there"]


async def test_a_job_is_asked_for_one_checkpoint_however_many_calls_give_up_until_the_budget_is_raised() -> (
    None
):
    asked: list[float] = []
    budget, loop = Budget(usd=1), asyncio.get_running_loop()
    async with metered(Flaky(0), cost=1.0, budget=budget) as call:
        KEEP.set(frozenset({lambda: asked.append(loop.time())}))
        for more in (0, 1):
            budget.raise_to(usd=1 + more)
            await call(1)
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(call(2), 10)
    assert asked == [0, 30]


def test_a_job_whose_loop_has_ended_is_asked_for_no_checkpoint() -> None:
    asked: list[str] = []
    budget = Budget(usd=1)

    async def spend(who: str) -> None:
        KEEP.set(frozenset({partial(asked.append, who)}))
        guard = metered(Flaky(0), cost=1.0, budget=budget)
        await guard.open()
        await asyncio.wait([asyncio.create_task(guard(value)) for value in range(2)], timeout=1)

    for who in ("gone", "there"):
        run_virtual(spend(who))
    assert asked == ["gone", "there"]


def test_a_call_of_a_loop_that_is_closed_is_none_that_runs_in_the_next() -> None:
    budget = Budget(usd=2)
    guard = metered(Flaky(0, takes=1), cost=1.0, budget=budget)

    async def begin() -> Coroutine[Any, Any, Any]:
        call = guard.invoke(1)
        call.send(None)
        return call

    async def main(earlier: Coroutine[Any, Any, Any]) -> None:
        await guard(2)
        earlier.close()  # as when it is collected
        waiting = asyncio.create_task(guard(3))
        await asyncio.sleep(1)
        assert budget.is_spent()
        waiting.cancel()

    run_virtual(main(run_virtual(begin())))


def test_a_budget_goes_to_other_processes_only_if_they_share_it(scope: SharedLimit) -> None:
    again = pickle.loads(pickle.dumps(Budget(usd=3, per=60, scope=scope)))
    assert again.limits == {"usd": 3.0}
    with pytest.raises(PipelineError, match="scope="):
        pickle.dumps(Budget(usd=3))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Budget(),
        lambda: Budget(usd=-1),
        lambda: Budget(usd="much"),  # type: ignore[arg-type]
        lambda: Budget(usd=1, per=0),
        lambda: Budget(usd=1, scope="sqlite:///x"),  # type: ignore[arg-type]
        lambda: Budget(usd=1).raise_to(tokens=5),
        lambda: metered(Flaky(0), cost=1, budget=5),  # type: ignore[call-overload]
        lambda: metered(Flaky(0), cost=1, budget=Budget(usd=1, tokens=1)),
        lambda: metered(Flaky(0), cost={"token": 1}, budget=Budget(usd=1, tokens=1)),
        lambda: metered(Flaky(0), cost=1, actual=3, budget=Budget(usd=1)),  # type: ignore[call-overload]
    ],
)
def test_wrong_arguments_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(PipelineError):
        wrong()


def test_a_limit_may_be_raised_in_the_moment_in_which_the_loop_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = Budget(usd=1)

    async def main() -> asyncio.AbstractEventLoop:
        waiting = asyncio.ensure_future(budget.reserve({"usd": 2.0}))
        await asyncio.wait({waiting}, timeout=1)
        waiting.cancel()
        await budget.close()
        return asyncio.get_running_loop()

    loop = asyncio.run(main())
    with monkeypatch.context() as before:
        before.setattr(loop, "is_closed", lambda: False)
        budget.raise_to(usd=4)
    assert budget.limits == {"usd": 4}
