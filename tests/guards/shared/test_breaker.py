"""A breaker that several share, as several processes would: each with a guard and a count of its own."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from asyncstream.errors import CircuitOpen, PipelineError
from asyncstream.guards import Breaker, LimitServer, SharedBreaker, SharedLimit, circuit_breaker
from asyncstream.testing.loop import run_virtual
from tests.guards.services import Flaky, now_ms


async def fail(guarded: Any, times: int) -> None:
    for _ in range(times):
        with pytest.raises(OSError, match="down"):
            await guarded(0)


def state(guarded: Any) -> str:
    name: str = guarded.breaker.state.name
    return name


async def is_refused(guarded: Any) -> bool:
    try:
        await guarded(0)
    except CircuitOpen:
        return True
    return False


def test_failures_of_all_count_together_and_open_it_for_all(scope: SharedLimit) -> None:
    async def main() -> None:
        guards = [circuit_breaker(Flaky(9), min_calls=6, scope=scope, when_open="refuse") for _ in range(3)]
        for guarded in guards:  # none of them alone has as many
            await fail(guarded, 2)
            await asyncio.sleep(0.3)
        assert [await is_refused(guarded) for guarded in guards] == [True] * 3
        assert [state(guarded) for guarded in guards] == ["OPEN"] * 3

    run_virtual(main())


def test_failures_in_a_row_may_be_of_several(scope: SharedLimit) -> None:
    async def main() -> None:
        one, other = (
            circuit_breaker(Flaky(9), failures=4, failure_ratio=None, scope=scope, when_open="refuse")
            for _ in range(2)
        )
        for guarded in (one, other):
            await fail(guarded, 2)
            await asyncio.sleep(0.3)
        assert await is_refused(one)

    run_virtual(main())


def test_one_that_fails_alone_does_not_open_it_where_the_others_are_well(scope: SharedLimit) -> None:
    async def main() -> None:
        well = circuit_breaker(Flaky(0), min_calls=5, scope=scope)
        ill = circuit_breaker(Flaky(99), min_calls=5, scope=scope)
        for number in range(50):
            await well(number)
        await asyncio.sleep(0.3)
        await fail(ill, 40)
        assert state(ill) == state(well) == "CLOSED"
        await fail(ill, 15)
        await asyncio.sleep(0.3)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(well(0), 1)
        assert state(ill) == state(well) == "OPEN"

    run_virtual(main())


def test_those_that_make_calls_hear_of_it_within_a_quarter_of_a_second(scope: SharedLimit) -> None:
    async def main() -> int:
        busy = circuit_breaker(Flaky(0, takes=0.01), failures=3, scope=scope, when_open="refuse")
        ill = circuit_breaker(Flaky(9), failures=3, scope=scope, when_open="refuse")
        await asyncio.sleep(1)

        async def until_refused() -> int:
            while not await is_refused(busy):
                pass
            return now_ms()

        calls = asyncio.create_task(until_refused())
        await asyncio.sleep(1)
        await fail(ill, 3)
        assert await is_refused(ill)
        return await calls

    assert run_virtual(main()) <= 2_270


def test_one_process_probes_and_closes_it_for_all(scope: SharedLimit) -> None:
    async def main() -> None:
        service = Flaky(3, takes=0.05)
        guards = [circuit_breaker(service, failures=3, open_for=2, scope=scope) for _ in range(3)]
        await fail(guards[0], 3)
        opened = now_ms()
        await asyncio.sleep(0.1)
        service.takes, service.most_running = 1.5, 0  # longer than a lease, so it is renewed
        calls = [asyncio.create_task(guarded(1)) for guarded in guards for _ in range(3)]
        await asyncio.sleep(3.3)
        assert service.most_running == 1
        await asyncio.gather(*calls)
        assert 2_000 <= service.times[3] - opened < 2_100
        begun = [time - service.times[3] for time in service.times[4:]]
        assert len(begun) == 8
        assert all(1_500 <= time < 1_700 for time in begun)
        assert [state(guarded) for guarded in guards] == ["CLOSED"] * 3

    run_virtual(main())


def test_a_probe_that_fails_opens_it_again_for_all(scope: SharedLimit) -> None:
    async def main() -> list[int]:
        service = Flaky(4)
        guards = [circuit_breaker(service, failures=3, open_for=2, scope=scope) for _ in range(2)]
        await fail(guards[0], 3)
        await asyncio.sleep(0.1)
        await asyncio.gather(*(guarded(1) for guarded in guards), return_exceptions=True)
        return service.times

    times = run_virtual(main())
    assert len(times) == 5
    assert 2_000 <= times[3] < 2_150
    assert 4_000 <= times[4] < 4_300


def test_each_probe_of_several_comes_after_the_other(scope: SharedLimit) -> None:
    async def main() -> list[int]:
        service = Flaky(1)
        guards = [circuit_breaker(service, failures=1, open_for=1, probes=3, scope=scope) for _ in range(2)]
        await fail(guards[0], 1)
        await asyncio.sleep(0.1)
        service.takes = 1.0
        await asyncio.gather(*(guarded(number) for guarded in guards for number in range(3)))
        return [round(time, -3) for time in service.times]

    assert run_virtual(main()) == [0, 1000, 2000, 3000, 4000, 4000, 4000]


def test_a_probe_that_is_cancelled_or_whose_process_dies_goes_to_another(scope: SharedLimit) -> None:
    async def main() -> tuple[int, int]:
        service = Flaky(1)
        guards = [circuit_breaker(service, failures=1, open_for=1, scope=scope) for _ in range(3)]
        await fail(guards[0], 1)
        service.takes = 100
        first = asyncio.create_task(guards[0](0))
        await asyncio.sleep(1.2)
        assert len(service.times) == 2
        of_the_first = asyncio.all_tasks() - {asyncio.current_task(), first}
        assert of_the_first
        second = asyncio.create_task(guards[1](0))
        await asyncio.sleep(0.3)
        service.takes = 0
        second.cancel()
        third = asyncio.create_task(guards[2](0))
        for task in of_the_first:
            task.cancel()  # it shows itself no more, as a killed one
        died = now_ms()
        await third
        ended = now_ms()
        first.cancel()
        await asyncio.wait({first, second})
        return died, ended

    died, ended = run_virtual(main())
    assert ended - died <= 900


def test_cancelled_probe_is_given_back_at_once(scope: SharedLimit) -> None:
    async def main() -> int:
        service = Flaky(1)
        one, other = (circuit_breaker(service, failures=1, open_for=1, scope=scope) for _ in range(2))
        await fail(one, 1)
        service.takes = 100
        probe = asyncio.create_task(one(0))
        await asyncio.sleep(1.2)
        waiting = asyncio.create_task(other(0))
        await asyncio.sleep(0.3)
        service.takes = 0
        probe.cancel()
        await waiting
        return now_ms()

    assert run_virtual(main()) <= 1_650


def test_refusing_guards_let_one_probe_through(scope: SharedLimit) -> None:
    async def main() -> None:
        service = Flaky(1)
        one, other = (
            circuit_breaker(service, failures=1, open_for=1, scope=scope, when_open="refuse")
            for _ in range(2)
        )
        await fail(one, 1)
        assert await is_refused(one)
        assert await is_refused(other)
        await asyncio.sleep(1.1)
        service.takes = 1
        probe = asyncio.create_task(one(0))
        await asyncio.sleep(0.2)
        assert await is_refused(one)
        assert await is_refused(other)
        await probe
        await asyncio.sleep(0.2)
        assert not await is_refused(other)
        assert other.metrics()["circuit_refused"] == 2

    run_virtual(main())


def test_an_idle_guard_leaves_the_store_alone_and_asks_before_its_next_call(scope: SharedLimit) -> None:
    async def main() -> None:
        idle = circuit_breaker(Flaky(0), failures=1, scope=scope, when_open="refuse")
        await idle(0)
        await asyncio.sleep(1)
        assert len(asyncio.all_tasks()) == 1
        await fail(circuit_breaker(Flaky(1), failures=1, scope=scope), 1)
        await asyncio.sleep(0.3)
        assert await is_refused(idle)

    run_virtual(main())


def test_closing_tells_the_rest_and_it_can_be_used_again(scope: SharedLimit) -> None:
    guarded = circuit_breaker(Flaky(9), failures=4, scope=scope, when_open="refuse")

    async def main() -> None:
        async with guarded:
            await fail(guarded, 2)

    run_virtual(main())
    run_virtual(main())

    async def again() -> None:
        assert await is_refused(guarded)

    run_virtual(again())


async def test_every_store_keeps_a_breaker(any_scope: SharedLimit) -> None:
    service = Flaky(2)
    guards = [
        circuit_breaker(service, failures=2, open_for=0.3, scope=any_scope, when_open="wait")
        for _ in range(2)
    ]
    async with asyncio.timeout(60), guards[0], guards[1]:
        await fail(guards[0], 2)
        opened = now_ms()
        await asyncio.sleep(0.1)
        service.takes = 0.1
        await asyncio.gather(*(guarded(0) for guarded in guards for _ in range(3)))
    assert service.times[2] - opened >= 280
    assert service.times[3] - service.times[2] >= 95


# ------------------------------------------------------------------ without the store


async def test_while_the_store_is_away_each_goes_by_its_own_counts(
    server: LimitServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "asyncstream.limits")
    service = Flaky(0)
    guarded, other = (
        circuit_breaker(service, failures=3, open_for=0.4, scope=SharedLimit(server.url), when_open="refuse")
        for _ in range(2)
    )
    async with asyncio.timeout(60), guarded, other:
        await guarded(0)
        await asyncio.to_thread(server.close)
        service.failures = 3
        await fail(guarded, 3)
        assert await is_refused(guarded)  # it has opened by itself
        assert state(guarded) == "OPEN"
        assert guarded.counters()["limit_store_away"] == 1
        assert not await is_refused(other)  # for itself alone
        await asyncio.sleep(0.45)
        service.takes = 0.1
        probe = asyncio.create_task(guarded(1))
        await asyncio.sleep(0.05)
        assert await is_refused(guarded)
        await probe
        assert state(guarded) == "CLOSED"
        service.takes = 0
        server.start()
        while guarded.counters()["limit_store_away"] or other.counters()["limit_store_away"]:
            await asyncio.gather(guarded(0), other(0))
            await asyncio.sleep(0.02)
        service.failures = 999
        await fail(guarded, 3)
        for _ in range(2):  # it is one again: of itself, the other has not failed often enough
            await asyncio.gather(other(0), return_exceptions=True)
            await asyncio.sleep(0.3)
        assert state(other) != "CLOSED"
    assert len([record for record in caplog.records if "own count" in record.message]) == 2


async def test_one_that_has_opened_by_itself_goes_by_the_store_when_that_is_back(server: LimitServer) -> None:
    scope = SharedLimit(server.url)
    guarded = circuit_breaker(Flaky(1), failures=1, open_for=100, scope=scope, when_open="refuse")
    await asyncio.to_thread(server.close)
    async with asyncio.timeout(60), guarded:
        await fail(guarded, 1)
        assert await is_refused(guarded)
        assert guarded.counters()["limit_store_away"] == 1
        server.start()
        refused = True
        while refused:
            await asyncio.sleep(0.02)
            refused = await is_refused(guarded)
        assert guarded.counters()["limit_store_away"] == 0


async def test_a_breaker_that_was_open_stays_so_when_the_store_goes_away(server: LimitServer) -> None:
    service = Flaky(1)
    guarded = circuit_breaker(service, failures=1, open_for=0.4, scope=SharedLimit(server.url))
    async with asyncio.timeout(60), guarded:
        await fail(guarded, 1)
        service.takes = 0.1
        calls = [asyncio.create_task(guarded(0)) for _ in range(3)]
        await asyncio.sleep(0.1)
        await asyncio.to_thread(server.close)
        await asyncio.wait(calls)
    assert service.times[1] - service.times[0] >= 390
    assert service.times[2] - service.times[1] >= 95  # one call tries it, and then come the others


# ------------------------------------------------------------------ arguments


def test_other_settings_under_the_same_name_are_refused(scope: SharedLimit) -> None:
    async def main() -> None:
        await circuit_breaker(Flaky(0), failures=3, scope=scope)(0)
        with pytest.raises(PipelineError, match="other settings"):
            await circuit_breaker(Flaky(0), failures=4, scope=scope)(0)

    run_virtual(main())


def test_a_breaker_goes_to_other_processes(scope: SharedLimit) -> None:
    breaker = SharedBreaker(failures=7, scope=scope)
    again = pickle.loads(pickle.dumps(breaker))
    assert (again.rule, again.scope.url) == (breaker.rule, scope.url)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: circuit_breaker(Flaky(0), scope="sqlite:///x.db"),  # type: ignore[call-overload]
        lambda: circuit_breaker(Flaky(0), scope=SharedLimit("sqlite:///x.db"), breaker=Breaker()),
        lambda: circuit_breaker(Flaky(0), scope=SharedLimit("sqlite:///x.db"), probes=0),
        lambda: circuit_breaker(Flaky(0), breaker="breaker"),  # type: ignore[call-overload]
    ],
)
def test_wrong_arguments_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(PipelineError):
        wrong()
