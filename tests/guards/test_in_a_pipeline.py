"""Guards in an async step: whatever the order and whatever fails, each element comes out once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import pytest

from asyncstream import FailedCall, Pipeline, RetriesExhausted
from asyncstream.guards import (
    adaptive_concurrency,
    batched,
    cached,
    circuit_breaker,
    rate_limit,
    retry,
    single_flight,
)

Order = Literal["ordered", "unordered", "event_time", "per_key"]
Service = Callable[[int], Any]

NESTS: dict[str, Callable[[Service], Any]] = {
    "paced": lambda service: retry(
        circuit_breaker(
            adaptive_concurrency(rate_limit(service, rate=50, per=0.1), most=20), failures=5, open_for=0.2
        ),
        attempts=4,
        wait_initial=0.02,
    ),
    "remembering": lambda service: cached(single_flight(retry(service, attempts=3)), ttl=0.2, stale_for=0.2),
    "batching": lambda service: retry(batched(together(service), size=7, wait=0.01), attempts=2),
}


def together(service: Service) -> Callable[[list[int]], Any]:
    async def call(values: list[int]) -> Any:
        return await asyncio.gather(*map(service, values), return_exceptions=True)

    return call


@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time", "per_key"])
@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
@pytest.mark.usefixtures("virtual_time")
async def test_each_element_comes_out_once(order: Order, nest: Callable[[Service], Any]) -> None:
    dice = random.Random(order)
    elements = [*range(100), *range(100)]
    done: list[int] = []
    failed: list[FailedCall] = []
    timed_out: list[FailedCall] = []

    async def service(value: int) -> int:
        await asyncio.sleep(dice.random() / 10)
        if dice.random() < 0.4:
            raise OSError(value)
        return value

    pipeline = Pipeline()
    source: Any = pipeline.source(elements)
    if order == "per_key":
        source = source.key_by(lambda value: value % 13)
    results = source.async_map(
        nest(service), order=order, concurrency=30, timeout=0.6, on_error="route", on_timeout="route"
    )
    results.to(done)
    results.failed.to(failed)
    results.timed_out.to(timed_out)
    await pipeline.run()

    assert sorted(done + [call.value for call in failed + timed_out]) == sorted(elements)
    if order == "ordered" and not failed and not timed_out:
        assert done == elements
    for call in failed:
        assert isinstance(call.error, RetriesExhausted)
        assert call.attempts == call.error.attempts > 1


@pytest.mark.usefixtures("virtual_time")
async def test_elements_of_a_batch_that_fails_have_each_their_own_attempts() -> None:
    errors = iter([OSError("down"), ValueError("wrong")])

    async def ask(values: list[str]) -> list[str]:
        raise next(errors)

    async def elements() -> AsyncIterator[str]:
        yield "tried twice"
        await asyncio.sleep(0.1)
        yield "tried once"

    failed: list[FailedCall] = []
    pipeline = Pipeline("batches")
    guarded = retry(batched(ask, size=2, wait=0.05), on=OSError, wait_initial=0.05, wait_jitter=0)
    asked = pipeline.source(elements()).async_map(guarded, on_error="route")
    asked.discard()
    asked.failed.to(failed)
    await pipeline.run()
    assert {call.value: call.attempts for call in failed} == {"tried twice": 2, "tried once": 1}
