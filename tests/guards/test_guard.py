"""What holds for every guard: it is an async function around another."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from anyio import CapacityLimiter

from asyncstream import guards
from asyncstream.connectors.http import HttpLookup
from asyncstream.errors import CallTimeout, PipelineError
from asyncstream.guards import (
    AdaptiveLimit,
    Breaker,
    Budget,
    Guard,
    RateLimiter,
    SharedLimit,
    adaptive_concurrency,
    batched,
    cached,
    circuit_breaker,
    concurrency_limit,
    in_threads,
    metered,
    rate_limit,
    retry,
    single_flight,
)
from asyncstream.guards.guard import Background
from asyncstream.guards.in_threads import InThreads
from asyncstream.operators.functions import AsyncFunction, has_timeout_hook
from asyncstream.validation import is_async_function
from tests.guards.services import Flaky

pytestmark = pytest.mark.usefixtures("virtual_time")

GUARDS: dict[str, Callable[[Any], Guard[Any, Any]]] = {
    "retry": retry(),
    "rate_limit": rate_limit(rate=5),
    "circuit_breaker": circuit_breaker(),
    "cached": cached(),
    "single_flight": single_flight(),
    "adaptive_concurrency": adaptive_concurrency(),
}
each_guard = pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS)


class Client(AsyncFunction[int, int]):
    def __init__(self) -> None:
        self.log: list[str] = []

    async def open(self) -> None:
        self.log.append("open")

    async def invoke(self, value: int) -> int:
        self.log.append(f"invoke {value}")
        return value * 2

    def timeout(self, value: int) -> int:
        return -value

    async def close(self) -> None:
        self.log.append("close")


class Plain(AsyncFunction[int, int]):
    async def invoke(self, value: int) -> int:
        return value * 2


@each_guard
async def test_guard_opens_calls_and_closes_the_function_inside(guard: Any) -> None:
    client = Client()

    async with guard(client) as guarded:
        assert await guarded.invoke(3) == 6
        assert await guarded(4) == 8
    assert client.log == ["open", "invoke 3", "invoke 4", "close"]


@each_guard
def test_guard_keeps_the_timeout_hook_of_the_function_inside(guard: Any) -> None:
    guarded = guard(guard(Client()))
    assert has_timeout_hook(guarded)
    assert guarded.timeout(5) == -5


def test_timeout_hook_of_a_guard_itself_is_the_one_that_counts() -> None:
    class Told(Guard[int, int]):
        async def invoke(self, value: int) -> int:
            return await self._call(value)

        def timeout(self, value: int) -> int:
            return super().timeout(value) if value else 7

    assert Told(Client()).timeout(0) == retry(Told(Client())).timeout(0) == 7


@each_guard
def test_guard_has_no_timeout_hook_where_there_is_none_inside(guard: Any) -> None:
    for inner in (Plain(), Flaky(0)):
        guarded = guard(inner)
        assert not has_timeout_hook(guarded)
        with pytest.raises(CallTimeout):
            guarded.timeout(5)


@each_guard
def test_guard_is_an_async_function_of_both_kinds(guard: Any) -> None:
    guarded = guard(Flaky(0))
    assert is_async_function(guarded)
    assert isinstance(guarded, AsyncFunction)


@pytest.mark.parametrize(
    "guarded",
    [
        retry(Plain()),
        rate_limit(Plain(), rate=1),
        circuit_breaker(Plain()),
        cached(Plain()),
        single_flight(Plain()),
        adaptive_concurrency(Plain()),
    ],
)
async def test_guard_can_be_sent_to_another_process_before_it_is_open(guarded: Guard[int, int]) -> None:
    guarded = pickle.loads(pickle.dumps(guarded))

    async def main() -> int:
        return int(await guarded(4))

    assert (await main()) == 8


@each_guard
async def test_guard_serves_in_one_event_loop_after_another(guard: Any) -> None:
    guarded = guard(Flaky(0))

    async def main() -> list[int]:
        return [await guarded(value) for value in range(5)]

    assert (await main()) == await main() == [0, 1, 2, 3, 4]


SHARED: dict[str, Callable[[], Any]] = {
    "rate": lambda: rate_limit(limiter=RateLimiter(5)),
    "breaker": lambda: circuit_breaker(breaker=Breaker()),
    "limit": lambda: concurrency_limit(limit=AdaptiveLimit()),
    "adaptive": lambda: adaptive_concurrency(limit=AdaptiveLimit()),
    "budget": lambda: metered(cost=1, budget=Budget(usd=5)),
    "threads": lambda: in_threads_of(CapacityLimiter(2)),
}


def in_threads_of(limiter: CapacityLimiter) -> Callable[[object], InThreads[int, int]]:
    return lambda _: in_threads(abs, threads=limiter)


@pytest.mark.parametrize("make", SHARED.values(), ids=SHARED)
async def test_what_calls_wait_for_together_serves_one_event_loop_at_a_time(make: Callable[[], Any]) -> None:
    """Those of another loop would wait for ever: nothing wakes them there."""
    guard = make()
    first, second, third = guard(Flaky(0)), guard(Flaky(0)), guard(Flaky(0))

    async def elsewhere() -> int:
        async with third:
            return int(await third(7))

    async with first, second:
        with pytest.raises(PipelineError, match="is in use in two event loops at once"):
            await asyncio.to_thread(asyncio.run, elsewhere())
        assert (await first(5), await second(6)) == (5, 6)
    assert await asyncio.to_thread(asyncio.run, elsewhere()) == 7


async def test_function_is_guarded_by_a_decorator() -> None:
    @cached(ttl=5)
    @retry(attempts=3)
    async def double(value: int) -> int:
        return value * 2

    async def main() -> int:
        return await double(4)

    assert (await main()) == 8


async def test_metrics_are_those_of_the_whole_nest() -> None:
    nest = cached(single_flight(retry(retry(circuit_breaker(rate_limit(Flaky(1), rate=9))))))

    async def main() -> dict[str, int]:
        await nest(1)
        return nest.metrics()

    metrics = await main()
    assert metrics["retries"] == 1
    assert metrics["cache_misses"] == 1
    assert {"coalesced", "rate_limited", "circuit_state"} <= metrics.keys()


GAUGES = {
    "rate_limit": {"limited"},
    "circuit_breaker": {"limited", "circuit_state"},
    "adaptive_concurrency": {"limited", "concurrency_limit"},
}


async def echo(values: list[int]) -> list[int]:
    return values


@pytest.mark.parametrize("name", [*GUARDS, "batched"])
def test_guard_declares_what_only_grows_and_the_rest_are_gauges(name: str) -> None:
    guarded: Guard[Any, Any] = batched(echo, size=1) if name == "batched" else GUARDS[name](Flaky(0))
    assert set(guarded.metrics()) - set(guarded.counter_names()) == GAUGES.get(name, set())
    assert set(guarded.counter_names()) <= guarded.metrics().keys()


def test_counters_are_those_of_the_whole_nest_each_once_and_of_the_function_inside() -> None:
    class Counting(Plain):
        def metrics(self) -> dict[str, int]:
            return {"asked": 3, "open_sockets": 1}

        def counter_names(self) -> tuple[str, ...]:
            return ("asked",)

    names = retry(circuit_breaker(retry(Counting()))).counter_names()
    assert len(set(names)) == len(names)
    assert {"retries", "circuit_opened", "asked"} <= set(names)
    assert not {"circuit_state", "open_sockets"} & set(names)


def test_lookup_counts_its_requests_and_what_its_guards_count() -> None:
    lookup = HttpLookup(str, rate=5, attempts=3)
    assert set(lookup.counter_names()) == {"requests", "rate_limited", *retry(Plain()).counter_names()}
    assert set(lookup.counter_names()) <= lookup.metrics().keys()


def test_what_a_guard_inside_has_is_refused() -> None:
    """A call would wait for the place that it has itself."""
    limit, breaker = AdaptiveLimit(most=1), Breaker()
    for guard in (concurrency_limit(limit=limit), adaptive_concurrency(limit=limit)):
        inside = retry(guard(Plain()), attempts=2)
        for outside in (concurrency_limit, adaptive_concurrency):
            with pytest.raises(
                PipelineError, match="limit: expected one that no guard inside of this one has"
            ):
                outside(inside, limit=limit)
    with pytest.raises(PipelineError, match="breaker: expected one that no guard inside"):
        circuit_breaker(retry(circuit_breaker(Plain(), breaker=breaker)), breaker=breaker)
    concurrency_limit(concurrency_limit(Plain(), limit=limit), limit=AdaptiveLimit(most=1))


async def test_gauges_of_guards_in_a_nest_are_not_added_up() -> None:
    budgets = Budget(usd=10), Budget(tokens=4)
    inside = metered(circuit_breaker(Plain(), failures=1), cost=1, budget=budgets[0])
    limited = concurrency_limit(metered(inside, cost=1, budget=budgets[1]), most=7)
    guarded = concurrency_limit(circuit_breaker(limited, failures=1), most=5)
    await guarded(1)
    shown = {"circuit_state": 0, "budget_used_percent": 25, "concurrency_limit": 5, "limited": 0}
    assert shown.items() <= guarded.metrics().items()
    breakers: list[Any] = [guarded.inner, inside.inner]
    for part in breakers:
        part.breaker.failed(0, asyncio.get_running_loop().time(), OSError())
    assert guarded.metrics()["circuit_state"] == 2


def test_what_a_guard_inside_shares_with_the_same_processes_is_refused() -> None:
    def scope(name: str) -> SharedLimit:
        return SharedLimit("sqlite:///limits.db", name=name)

    with pytest.raises(PipelineError, match="limit: expected one that no guard inside of this one has"):
        concurrency_limit(adaptive_concurrency(Plain(), most=3, scope=scope("a")), most=3, scope=scope("a"))
    with pytest.raises(PipelineError, match="breaker: expected one that no guard inside of this one has"):
        circuit_breaker(retry(circuit_breaker(Plain(), scope=scope("a"))), scope=scope("a"))
    concurrency_limit(concurrency_limit(Plain(), most=3, scope=scope("b")), most=3, scope=scope("a"))
    concurrency_limit(circuit_breaker(Plain(), scope=scope("a")), most=3, scope=scope("a"))


def test_limiter_of_others_and_a_guard_that_declares_nothing_have_no_counters() -> None:
    class Turnstile:
        async def acquire(self, weight: float = 1) -> None:
            pass

    class Undeclared(Guard[int, int]):
        def counters(self) -> dict[str, int]:
            return {"turns": 5}

    assert rate_limit(Plain(), limiter=Turnstile()).counter_names() == ()
    assert Undeclared(Plain()).counter_names() == ()
    assert Undeclared(Plain()).metrics() == {"turns": 5}


def test_timeout_hook_of_a_batch_function_is_asked_with_a_batch() -> None:
    class Many(AsyncFunction[list[int], list[int]]):
        async def invoke(self, value: list[int]) -> list[int]:
            return value

        def timeout(self, value: list[int]) -> list[int]:
            return [-one for one in value]

    assert batched(Many()).timeout(5) == -5


async def test_background_tasks_end_when_they_are_stopped() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(1)  # an end that takes time
            ended.append(True)

    background = Background()
    background.start(work())
    background.start(work())
    await asyncio.sleep(1)
    await background.stop()
    assert len(ended) == 2


@pytest.mark.parametrize("name", ["retry", "cached", "single_flight", "rate_limit", "adaptive_concurrency"])
def test_guard_is_called_what_people_write(name: str) -> None:
    guard: Any = getattr(guards, name)
    assert guard.__name__ == guard.__qualname__ == name
    assert str(inspect.signature(guard)).startswith("(fn: ")
    assert pickle.loads(pickle.dumps(guard)) is guard


async def plain(value: int) -> int:
    return value


def test_guards_are_shown_as_they_are_nested() -> None:
    assert (
        repr(guards.cached(guards.single_flight(guards.retry(plain))))
        == "cached(single_flight(retry(plain)))"
    )
