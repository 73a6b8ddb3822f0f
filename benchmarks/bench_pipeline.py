"""
A whole pipeline, from a list to a list: source, map, async step, filter, sink.

    source ─▶ map ─▶ async_map (a cache hit) ─▶ filter ─▶ list
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from asyncstream import Pipeline
from benchmarks.kit import Goal, compare, goals, results, run

__all__ = ("main",)

CONCURRENCY = 100
BASE = "tasks by hand"


def tag(value: int) -> tuple[int, str]:
    return value, "event"


async def enrich(event: tuple[int, str]) -> tuple[int, str, bool]:
    return *event, event[0] % 2 == 0


def is_even(event: tuple[int, str, bool]) -> bool:
    return event[2]


Events = list[tuple[int, str, bool]]
Contender = Callable[[list[int]], Awaitable[Events]]


def pipeline(order: Literal["ordered", "unordered"]) -> Contender:
    async def contender(values: list[int]) -> Events:
        found: Events = []
        plan = Pipeline()
        tagged = plan.source(values).map(tag)
        tagged.async_map(enrich, order=order, concurrency=CONCURRENCY, timeout=10.0).filter(is_even).to(found)
        await plan.run()
        return found

    return contender


async def one_at_a_time(values: list[int]) -> Events:
    """A loop that awaits each call: as fast as Python is, and one call at a time."""
    found = []
    for value in values:
        event = await enrich(tag(value))
        if is_even(event):
            found.append(event)
    return found


async def tasks_by_hand(values: list[int]) -> Events:
    """A task per element, the oldest awaited first."""
    tasks: deque[asyncio.Task[tuple[int, str, bool]]] = deque()
    found = []

    async def take() -> None:
        event = await tasks.popleft()
        if is_even(event):
            found.append(event)

    for value in values:
        if len(tasks) == CONCURRENCY:
            await take()
        tasks.append(asyncio.create_task(enrich(tag(value))))
    while tasks:
        await take()
    return found


async def streamable(values: list[int]) -> Events:
    stream: Any = import_module("streamable").stream
    events = stream(values).map(tag).map(enrich, concurrency=CONCURRENCY).filter(is_even)
    return [event async for event in events]


async def aiostream(values: list[int]) -> Events:
    stream: Any = import_module("aiostream").stream
    tagged = stream.map(stream.iterate(values), tag)
    events = stream.filter(stream.map(tagged, enrich, task_limit=CONCURRENCY), is_even)
    async with events.stream() as kept:
        return [event async for event in kept]


def main(quick: bool = False) -> None:
    many = 100_000 if quick else 1_000_000
    contenders: dict[str, tuple[Contender, int]] = {
        BASE: (tasks_by_hand, many // 10),
        "one at a time": (one_at_a_time, many),
        "asyncstream": (pipeline("ordered"), many),
        "asyncstream, unordered": (pipeline("unordered"), many),
    }
    peers: tuple[tuple[Contender, str], ...] = ((streamable, "streamable"), (aiostream, "aiostream"))
    for peer, library in peers:
        if find_spec(library):
            contenders[library] = peer, many // 50
    measured = compare(
        {name: _variant(name, *entry) for name, entry in contenders.items()},
        base=BASE,
        turns=1 if quick else 5,
        count=_checked,
    )
    print(results("From a list through map, async_map and filter to a list", measured, base=BASE))
    found = [
        Goal(
            f"whole pipeline, {name}: elements per CPU second",
            1 / measured[name].cpu_us,
            1.5,
            form="{:.2f} M",
        )
        for name in ("asyncstream", "asyncstream, unordered")
    ]
    print(goals(found), flush=True)


def _variant(name: str, contender: Contender, elements: int) -> Callable[[], tuple[int, bool, Events]]:
    async def answer() -> Events:
        return await contender(values)

    values = list(range(elements))
    return lambda: (elements, "unordered" in name, run(answer()))


def _checked(outcome: tuple[int, bool, Events]) -> int:
    elements, unordered, events = outcome
    found = [value for value, _, _ in events]
    if (sorted(found) if unordered else found) != list(range(0, elements, 2)):
        raise AssertionError("wrong results, or in the wrong order")
    return elements
