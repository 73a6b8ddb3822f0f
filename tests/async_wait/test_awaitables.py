"""What an async step's function gives may be any awaitable, with whatever else the function does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any, Literal

import pytest

from asyncstream import AsyncFunction, Pipeline, Stream, UserFunctionError
from asyncstream.guards import batched, cached, rate_limit, retry, single_flight

FORGOTTEN: dict[str, Callable[[Stream[int]], Stream[Any]]] = {
    "map": lambda stream: stream.async_map(forgets),
    "skip": lambda stream: stream.async_map(forgets, on_error="skip"),
    "flat map": lambda stream: stream.async_flat_map(forget_each),
    "per key": lambda stream: stream.key_by(lambda value: value).async_map(forgets, order="per_key"),
    "guards": lambda stream: stream.async_map(retry(cached(forgets))),
    "batched": lambda stream: stream.async_map(batched(forget_each_of, size=3)),
}


async def forgets(value: int) -> Any:
    await asyncio.sleep(value % 2)
    return coroutine(value) if value == 5 else value


async def forget_each(value: int) -> list[Any]:
    return [value, await forgets(value)]


async def forget_each_of(values: list[int]) -> list[Any]:
    return [await forgets(value) for value in values]


@pytest.mark.parametrize("define", FORGOTTEN.values(), ids=FORGOTTEN)
@pytest.mark.usefixtures("virtual_time")
async def test_result_that_is_still_to_be_awaited_is_refused(
    define: Callable[[Stream[int]], Stream[Any]],
) -> None:
    found: list[Any] = []
    pipeline = Pipeline()
    define(pipeline.source(range(9), name="numbers")).to(found)
    with pytest.raises(UserFunctionError, match=r"an async function must return its result, got <coroutine"):
        await pipeline.run()
    assert all(type(value) is int for value in found)


@pytest.mark.usefixtures("virtual_time")
async def test_result_that_another_step_iterates_over_is_a_result() -> None:
    async def ask(value: int) -> Any:
        return (part for part in range(value))

    found: list[int] = []
    pipeline = Pipeline()
    pipeline.source([2, 1], name="numbers").async_map(ask).flat_map(lambda parts: parts).to(found)
    await pipeline.run()
    assert found == [0, 1, 0]


trace: ContextVar[int] = ContextVar("trace", default=0)


class Later:
    """An awaitable that is nothing else."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, Any, int]:
        yield from asyncio.sleep(0.001).__await__()
        return self.value


async def coroutine(value: int) -> int:
    await asyncio.sleep(0.001)
    return value


def future(value: int) -> asyncio.Future[int]:
    made: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.001, made.set_result, value)
    return made


WAYS: dict[str, Callable[[int], Any]] = {
    "future": future,
    "task": lambda value: asyncio.get_running_loop().create_task(coroutine(value)),
    "coroutine": coroutine,
    "awaitable": Later,
}


class Gives(AsyncFunction[int, int]):
    """Gives an awaitable of a kind, and leaves traces in its context: after three, each call gets its own."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.seen: list[int] = []

    def invoke(self, value: int) -> Any:
        self.seen.append(trace.get())
        trace.set(value)
        return WAYS[self.way](value)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("isolation", ["pool", "task"])
@pytest.mark.parametrize("order", ["ordered", "unordered"])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_function_may_give_any_awaitable(
    way: str, isolation: Literal["pool", "task"], order: Literal["ordered", "unordered"]
) -> None:
    found: list[int] = []
    function = Gives(way)
    pipeline = Pipeline()
    stream = pipeline.source(range(1, 51), name="in")
    stream.async_map(function, concurrency=2, isolation=isolation, order=order).to(found)
    await pipeline.run()
    assert sorted(found) == list(range(1, 51))
    assert set(function.seen) == {0}  # no call sees the traces of another


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("guard", [retry, cached, single_flight, lambda fn: rate_limit(fn, rate=10_000)])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_guarded_function_may_give_any_awaitable(way: str, guard: Callable[[Any], Any]) -> None:
    found: list[int] = []
    pipeline = Pipeline()
    pipeline.source(range(1, 51), name="in").async_map(guard(Gives(way)), concurrency=2).to(found)
    await pipeline.run()
    assert found == list(range(1, 51))
