"""
Who competes: the same job done by this package, by hand, and by other libraries if they are installed.

Each takes the elements, the call and how many calls may run at once, and gives the list of the results.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

from asyncstream import Pipeline
from asyncstream.async_wait import AsyncWaitOperator, AsyncWaitSettings, OutputOrder
from asyncstream.elements import Timestamps
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.flow import Gate
from benchmarks.kit import Result, compare, run
from benchmarks.workloads import Call, Work

__all__ = (
    "Contender",
    "asyncstream",
    "gathered",
    "operator_alone",
    "ordered_peers",
    "race",
    "tasks_ordered",
    "tasks_unordered",
    "unordered_peers",
    "window_of_tasks",
    "workers_ordered",
    "workers_unordered",
)

Contender: TypeAlias = Callable[[Sequence[int], Call, int], Awaitable[list[int]]]

FEED = 1000
"""Elements per batch into the bare operator, as a source would bring them."""


def race(
    entries: Mapping[str, tuple[Contender, int]], work: Work, concurrency: int, *, base: str, turns: int
) -> dict[str, Result]:
    """
    Let contenders do the same work, and check that nothing got lost, doubled or, where it matters, moved.

    Args:
        entries: contender and number of elements, by name; one whose name says "unordered" may answer in
            any order.
        work: makes the call.
        concurrency: calls at once.
        base: the name of the one that the others are compared with.
        turns: that count.
    """

    def entry(name: str, contender: Contender, elements: int) -> Callable[[], tuple[str, int, list[int]]]:
        async def answer() -> list[int]:
            return await contender(range(elements), work(), concurrency)

        return lambda: (name, elements, run(answer()))

    return compare(
        {name: entry(name, contender, elements) for name, (contender, elements) in entries.items()},
        base=base,
        turns=turns,
        count=_checked,
    )


def _checked(outcome: tuple[str, int, list[int]]) -> int:
    name, elements, answers = outcome
    if "unordered" in name:
        answers = sorted(answers)
    if answers != list(range(elements)):
        raise AssertionError(f"{name}: wrong results, or in the wrong order")
    return elements


# ------------------------------------------------------------------ ours


def asyncstream(
    order: Literal["ordered", "unordered"] = "ordered", *, timeout: float | None = 10.0
) -> Contender:
    """A whole pipeline: source, async step with a timeout, sink."""

    async def contender(values: Sequence[int], call: Call, concurrency: int) -> list[int]:
        results: list[int] = []
        pipeline = Pipeline()
        pipeline.source(values).async_map(call, order=order, concurrency=concurrency, timeout=timeout).to(
            results
        )
        await pipeline.run()
        return results

    return contender


class _End(Operator):
    """Keeps what arrives, and says when the input has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[Any] = []
        self.ended = asyncio.Event()

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self.results += values

    def end_input(self) -> None:
        self.ended.set()


def operator_alone(order: OutputOrder = OutputOrder.ORDERED, *, timeout: float | None = 10.0) -> Contender:
    """The async step by itself, fed with lists: what of a pipeline's price is this operator's."""

    async def contender(values: Sequence[int], call: Call, concurrency: int) -> list[int]:
        operator = AsyncWaitOperator(
            AsyncWaitSettings(call, order=order, concurrency=concurrency, timeout=timeout)
        )
        room = asyncio.Event()
        gate = Gate(room.set)
        operator.out = end = _End()
        operator.gates = (gate,)
        operator.open(OperatorContext())
        for start in range(0, len(values), FEED):
            operator.process_batch(values[start : start + FEED], None)
            await asyncio.sleep(0)
            while not gate.is_open():
                room.clear()
                await room.wait()
        operator.end_input()
        await end.ended.wait()
        await operator.stop()
        return end.results

    return contender


# ------------------------------------------------------------------ by hand


async def tasks_ordered(values: Sequence[int], call: Call, concurrency: int) -> list[int]:
    """A semaphore and a task per element, whose results are taken in order."""
    semaphore = asyncio.Semaphore(concurrency)

    async def one(value: int) -> int:
        try:
            return await call(value)
        finally:
            semaphore.release()

    tasks: deque[asyncio.Task[int]] = deque()
    results = []
    for value in values:
        await semaphore.acquire()
        tasks.append(asyncio.create_task(one(value)))
        while tasks and tasks[0].done():
            results.append(tasks.popleft().result())
    while tasks:
        results.append(await tasks.popleft())
    return results


async def tasks_unordered(values: Sequence[int], call: Call, concurrency: int) -> list[int]:
    """A semaphore, and a task group with a task per element."""
    semaphore = asyncio.Semaphore(concurrency)
    results = []

    async def one(value: int) -> None:
        try:
            results.append(await call(value))
        finally:
            semaphore.release()

    async with asyncio.TaskGroup() as group:
        for value in values:
            await semaphore.acquire()
            group.create_task(one(value))
    return results


async def window_of_tasks(values: Sequence[int], call: Call, concurrency: int) -> list[int]:
    """A task per element; the oldest is awaited before another one starts."""
    tasks: deque[asyncio.Task[int]] = deque()
    results = []
    for value in values:
        if len(tasks) == concurrency:
            results.append(await tasks.popleft())
        tasks.append(asyncio.create_task(call(value)))
    while tasks:
        results.append(await tasks.popleft())
    return results


async def gathered(values: Sequence[int], call: Call, concurrency: int) -> list[int]:
    """What most people write first: gather over everything, with a semaphore inside."""
    semaphore = asyncio.Semaphore(concurrency)

    async def one(value: int) -> int:
        async with semaphore:
            return await call(value)

    return await asyncio.gather(*map(one, values))


async def workers_unordered(values: Sequence[int], call: Call, concurrency: int) -> list[int]:
    """Workers that share one iterator: nothing in asyncio costs less."""
    source = iter(values)
    results = []

    async def worker() -> None:
        for value in source:
            results.append(await call(value))

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())
    return results


async def workers_ordered(values: Sequence[int], call: Call, concurrency: int) -> list[int]:
    """Workers that put each result in its place of a list that is as long as the input."""
    source = iter(enumerate(values))
    results = [0] * len(values)

    async def worker() -> None:
        for place, value in source:
            results[place] = await call(value)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())
    return results


# ------------------------------------------------------------------ other libraries


def ordered_peers() -> dict[str, Contender]:
    """Other libraries that keep the order, as far as they are installed."""
    return _peers(ordered=True)


def unordered_peers() -> dict[str, Contender]:
    """Other libraries that give results as they come, as far as they are installed."""
    return _peers(ordered=False)


def _peers(*, ordered: bool) -> dict[str, Contender]:
    suffix = "" if ordered else ", unordered"
    known = {"streamable": _streamable, "aiostream": _aiostream}
    return {f"{name}{suffix}": make(ordered) for name, make in known.items() if find_spec(name)}


def _streamable(ordered: bool) -> Contender:
    stream: Any = import_module("streamable").stream

    async def contender(values: Sequence[int], call: Call, concurrency: int) -> list[int]:
        answers = stream(values).map(call, concurrency=concurrency, as_completed=not ordered)
        return [answer async for answer in answers]

    return contender


def _aiostream(ordered: bool) -> Contender:
    stream: Any = import_module("aiostream").stream

    async def contender(values: Sequence[int], call: Call, concurrency: int) -> list[int]:
        source = stream.iterate(values)
        async with stream.map(source, call, ordered=ordered, task_limit=concurrency).stream() as answers:
            return [answer async for answer in answers]

    return contender
