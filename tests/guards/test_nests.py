"""Nests of guards that share what calls have a place in: those that could wait for each other are refused."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.connectors.http import HttpLookup
from asyncstream.errors import PipelineError
from asyncstream.guards import (
    AdaptiveLimit,
    Breaker,
    Budget,
    ConcurrencyLimit,
    SharedBreaker,
    SharedConcurrency,
    SharedLimit,
    adaptive_concurrency,
    circuit_breaker,
    concurrency_limit,
    metered,
    rate_limit,
    retry,
)
from asyncstream.testing.loop import run_virtual
from tests.forks import forked

Wrap = Callable[[Any], Any]

FOR_EVER = "wait for each other for ever; nest these guards in one order"


async def ask(value: int) -> int:
    return value


def local(folder: Path) -> list[Wrap]:
    limit, breaker, budget = AdaptiveLimit(most=1), Breaker(), Budget(usd=1)
    return [
        lambda fn: concurrency_limit(fn, limit=limit),
        lambda fn: circuit_breaker(fn, breaker=breaker),
        lambda fn: metered(fn, cost=1, budget=budget),
    ]


def shared(folder: Path) -> list[Wrap]:
    """Each guard with an object of its own, of the same scope."""

    def scope() -> SharedLimit:
        return SharedLimit(f"sqlite:///{folder}/limits.db", name="n")

    return [
        lambda fn: adaptive_concurrency(fn, limit=SharedConcurrency(1, scope=scope())),
        lambda fn: circuit_breaker(fn, breaker=SharedBreaker(scope=scope())),
        lambda fn: metered(fn, cost=1, budget=Budget(usd=1, scope=scope())),
    ]


@pytest.mark.parametrize("make", [local, shared])
@pytest.mark.parametrize("pair", list(permutations(range(3), 2)), ids=str)
def test_two_that_are_nested_in_opposite_orders_are_refused(
    make: Callable[[Path], list[Wrap]], pair: tuple[int, int], tmp_path: Path
) -> None:
    wraps = make(tmp_path)
    outer, inner = (wraps[number] for number in pair)
    first = outer(retry(rate_limit(inner(ask), rate=5)))
    also = outer(inner(ask))  # in the same order
    half = outer(ask)
    with pytest.raises(PipelineError, match=FOR_EVER):
        inner(retry(half))
    del first, also
    gc.collect()
    inner(outer(ask))  # nothing contradicts it any more


def test_what_closes_a_circle_of_any_length_is_refused(tmp_path: Path) -> None:
    limits = [AdaptiveLimit(most=1) for _ in range(5)]
    wraps: list[Wrap] = [partial(concurrency_limit, limit=limit) for limit in limits]
    kept = [outer(inner(ask)) for outer, inner in pairwise(wraps)]
    with pytest.raises(PipelineError, match=FOR_EVER):
        wraps[-1](wraps[0](ask))
    kept.append(wraps[0](wraps[-1](ask)))


def test_a_breaker_that_refuses_calls_is_waited_for_by_nobody() -> None:
    limit, breaker = AdaptiveLimit(most=1), Breaker()
    first = circuit_breaker(concurrency_limit(ask, limit=limit), breaker=breaker)
    second = concurrency_limit(circuit_breaker(ask, breaker=breaker, when_open="refuse"), limit=limit)
    assert first.takers is not second.takers


def test_what_a_lookup_has_around_its_requests_is_inside_of_what_is_around_it() -> None:
    limit, breaker = AdaptiveLimit(most=1), Breaker()
    lookup = HttpLookup("http://host/{}", breaker=breaker)
    with pytest.raises(PipelineError, match="breaker: expected one that no guard inside of this one has"):
        circuit_breaker(lookup, breaker=breaker)
    first = concurrency_limit(lookup, limit=limit)
    with pytest.raises(PipelineError, match=FOR_EVER):
        circuit_breaker(concurrency_limit(ask, limit=limit), breaker=breaker)
    assert first.inner is lookup


def test_units_of_a_budget_may_be_asked_for_one_after_the_other() -> None:
    budget = Budget(usd=1, tokens=10)
    inside = metered(ask, cost={"tokens": 3}, budget=budget)
    assert asyncio.run(metered(inside, cost={"usd": 1}, budget=budget)(4)) == 4


def test_a_copy_stands_for_itself() -> None:
    limit, breaker = AdaptiveLimit(most=1), Breaker()
    first: Any = circuit_breaker(concurrency_limit(ask, limit=limit), breaker=breaker)
    for again in (pickle.loads(pickle.dumps(first)), copy.deepcopy(first)):
        assert not again.takers
        concurrency_limit(circuit_breaker(ask, breaker=again.breaker), limit=again.inner.limit)


def test_one_that_is_made_in_a_thread_does_not_hold_up_a_process_that_is_forked_meanwhile() -> None:
    is_amid, may_go_on = threading.Event(), threading.Event()

    class Slow(ConcurrencyLimit[int, int]):
        @property
        def waits_for_place(self) -> bool:  # type: ignore[override]
            is_amid.set()
            return may_go_on.wait(20)

    def check() -> None:
        concurrency_limit(ask, limit=outer)

    outer = AdaptiveLimit(most=1)
    kept = concurrency_limit(ask, limit=outer)
    inside = Slow(ask, limit=AdaptiveLimit(most=1))
    thread = threading.Thread(target=partial(concurrency_limit, inside, limit=outer))
    thread.start()
    assert is_amid.wait(20)
    try:
        assert forked(check) == 7
    finally:
        may_go_on.set()
        thread.join()
    assert kept.takers


NESTS = st.lists(st.permutations(range(3)).flatmap(lambda order: st.just(order) | st.just(order[:2])))


@given(NESTS)
def test_calls_of_nests_that_are_not_refused_all_come_to_an_end(nests: list[list[int]]) -> None:
    """The breaker is open: one call tries the service, and all others wait for it."""
    down = True

    async def slow(value: int) -> int:
        await asyncio.sleep(1)
        if down:
            raise OSError("down")
        return value

    async def main() -> None:
        nonlocal down
        limits = AdaptiveLimit(most=1), AdaptiveLimit(most=1)
        breaker = Breaker(failures=1, open_for=5)
        wraps: list[Wrap] = [
            lambda fn: concurrency_limit(fn, limit=limits[0]),
            lambda fn: circuit_breaker(fn, breaker=breaker),
            lambda fn: concurrency_limit(fn, limit=limits[1]),
        ]
        made = []
        for nest in nests:
            guarded: Any = slow
            try:
                for number in nest:
                    guarded = wraps[number](guarded)
            except PipelineError:
                continue
            made.append(guarded)
        with pytest.raises(OSError, match="down"):
            await wraps[1](slow)(0)
        down = False
        async with asyncio.timeout(100):
            assert await asyncio.gather(*(each(2) for each in made for _ in range(3))) == [2] * 3 * len(made)

    run_virtual(main())
