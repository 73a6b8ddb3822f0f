"""The async wait in a running job: memory is bounded, draining loses nothing, failures are raised once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from asyncstream import Pipeline
from asyncstream.errors import UserFunctionError

pytestmark = pytest.mark.usefixtures("virtual_time")

ORDERS = ["ordered", "unordered", "event_time", "per_key"]


def enrich(stream: Any, function: Any, order: str, **options: Any) -> Any:
    if order == "per_key":
        stream = stream.key_by(lambda value: value % 17)
    return stream.async_map(function, order=order, name="enrich", **options)


@pytest.mark.parametrize("order", ORDERS)
async def test_memory_is_bounded_with_ten_million_elements_and_a_slow_service(order: str) -> None:
    pulled = 0

    def elements() -> Iterator[int]:
        nonlocal pulled
        for number in range(10_000_000):
            pulled += 1
            yield number

    async def slow(value: int) -> int:
        await asyncio.sleep(1)
        return value

    results: list[int] = []
    pipeline = Pipeline()
    source = pipeline.source(elements(), name="elements")
    enrich(source, slow, order, concurrency=10, buffer=50).to(results, name="results")
    async with pipeline.start() as job:
        for _ in range(100):
            await asyncio.sleep(3)
            metrics = job.metrics()["enrich"]
            assert metrics["running"] <= 10
            assert metrics["held"] <= 50
            assert metrics["waiting"] <= 1024 + 1000, "the limit of an inbox, and one batch"
            assert pulled <= len(results) + 50 + 1024 + 2 * 1000
        assert len(results) > 1000
        if order == "ordered":
            assert results == list(range(len(results)))
        await job.stop()


@pytest.mark.parametrize("delay", [0.0, 1.0])
async def test_a_flat_map_may_return_one_list_again_and_again(delay: float) -> None:
    last: list[int] = []

    async def last_two(value: int) -> list[int]:
        if delay:
            await asyncio.sleep(delay / value)  # the last one is there first
        last.append(value)
        del last[:-2]
        return last

    results: list[int] = []
    pipeline = Pipeline()
    pipeline.source([1, 2, 3]).async_flat_map(last_two, order="ordered").to(results)
    await pipeline.run()
    assert results == ([2, 1, 3, 2, 3] if delay else [1, 1, 2, 2, 3])


@pytest.mark.parametrize("order", ORDERS)
async def test_memory_is_bounded_with_a_fast_service_and_a_slow_sink(order: str) -> None:
    pulled = 0

    def elements() -> Iterator[int]:
        nonlocal pulled
        for number in range(10_000_000):
            pulled += 1
            yield number

    async def fast(value: int) -> int:
        return value

    async def slow(value: int) -> int:
        await asyncio.sleep(1)
        return value

    results: list[int] = []
    pipeline = Pipeline()
    first = enrich(pipeline.source(elements()), fast, order, concurrency=10, buffer=50)
    first.async_map(slow, concurrency=10, buffer=10, name="slow").to(results)
    async with pipeline.start() as job:
        for _ in range(20):
            await asyncio.sleep(3)
            assert job.metrics()["enrich"]["held"] <= 50
            assert job.metrics()["slow"]["waiting"] <= 1024 + 50
            assert pulled <= len(results) + 2 * 1024 + 60 + 2 * 1000
        await job.stop()


@pytest.mark.parametrize("order", ORDERS)
async def test_drain_gives_every_result_of_what_was_accepted(order: str) -> None:
    """In Beam's wrapper none came out, in Arroyo's not all."""

    async def call(value: int) -> int:
        await asyncio.sleep(value % 5)
        return value

    results: list[int] = []
    pipeline = Pipeline()
    enrich(pipeline.submissions(), call, order, concurrency=3).to(results)
    async with pipeline.start() as job:
        for number in range(100):
            await job.submit(number)
        await job.drain()
        assert sorted(results) == list(range(100))


@pytest.mark.parametrize("order", ORDERS)
async def test_stop_and_start_again_gives_every_result_once(order: str) -> None:
    async def call(value: int) -> int:
        await asyncio.sleep(value % 5)
        return value

    results: list[int] = []
    snapshot: Any = None
    for seconds in (1, 2, 3, 5, None):
        pipeline = Pipeline()
        source = pipeline.source(list(range(200)), name="source")
        enrich(source, call, order, concurrency=3).to(results, name="results")
        async with pipeline.start(snapshot=snapshot) as job:
            if seconds is None:
                await job.wait()
            else:
                await asyncio.sleep(seconds)
                snapshot = await job.stop()
    assert sorted(results) == list(range(200))
    if order == "ordered":
        assert results == sorted(results)


class Odd(BaseException):
    """Not an Exception."""


@pytest.mark.parametrize("error", [LookupError("none"), asyncio.CancelledError(), Odd()], ids=repr)
@pytest.mark.parametrize("suspends", [False, True])
async def test_failure_of_a_call_is_raised_once_and_names_step_and_element(
    error: BaseException, suspends: bool
) -> None:
    """PyFlink hangs on a CancelledError; streamz logs the error and goes on without the element."""

    async def call(value: int) -> int:
        if suspends:
            await asyncio.sleep(1)
        if value == 7:
            raise error
        return value

    pipeline = Pipeline()
    results: list[int] = []
    pipeline.source(range(100)).async_map(call, name="enrich").to(results)
    with pytest.raises(UserFunctionError) as raised:
        await pipeline.run()
    assert (raised.value.step, raised.value.element) == ("enrich", 7)
    assert raised.value.__cause__ is error
    assert results == list(range(len(results)))
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("error", [LookupError("none"), asyncio.CancelledError(), Odd()], ids=repr)
async def test_failure_of_a_plain_step_behind_it_fails_the_job_too(error: BaseException) -> None:
    async def call(value: int) -> int:
        return value

    def check(value: int) -> int:
        if value == 7:
            raise error
        return value

    pipeline = Pipeline()
    results: list[int] = []
    pipeline.source(range(100)).async_map(call).map(check, name="check").to(results)
    with pytest.raises(UserFunctionError) as raised:
        await pipeline.run()
    assert (raised.value.step, raised.value.element) == ("check", 7)
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("order", ORDERS)
async def test_steps_behind_a_call_see_nothing_of_its_context(order: str) -> None:
    """They saw the variables of whichever call had ended first since the turn before."""
    tenant: ContextVar[int | None] = ContextVar("tenant", default=None)
    seen = []

    async def leave_behind(value: int) -> int:
        tenant.set(value)
        await asyncio.sleep(0.01 * value)
        return value

    def look(value: int) -> int:
        seen.append(tenant.get())
        return value

    pipeline = Pipeline()
    enriched = enrich(pipeline.source(range(8)), leave_behind, order)
    enriched.map(look).discard()
    await pipeline.run()
    assert seen == [None] * 8
