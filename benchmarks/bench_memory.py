"""
Memory: what an element in flight costs, and that nothing grows with the length of the stream.

Each figure comes from a fresh process, so that none pays for, or lives on, what another one has left.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from asyncstream import Pipeline
from asyncstream.async_wait import AsyncWaitOperator, AsyncWaitSettings, OutputOrder
from asyncstream.operators.base import OperatorContext
from benchmarks.kit import Goal, goals, run, table
from benchmarks.workloads import Call, replies

__all__ = ("main",)

IN_FLIGHT = 10_000
CONCURRENCY = 200
SECONDS = 0.001
MEGABYTE = 1 << 20


# ------------------------------------------------------------------ bytes per element in flight


def suspended(who: str) -> float:
    """Bytes for each of many calls that wait, their own coroutine and future included."""

    async def measure() -> float:
        waiting = 0
        everyone = asyncio.Event()

        async def call(value: int) -> int:
            nonlocal waiting
            waiting += 1
            if waiting == IN_FLIGHT:
                everyone.set()
            answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            return await answer

        values = range(IN_FLIGHT)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        held = _HOLDERS[who](call, values)
        await everyone.wait()
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        await _end(held)
        return used / IN_FLIGHT

    return run(measure())


def _calls(call: Call, values: range) -> list[Coroutine[Any, Any, int]]:
    """The user's own: coroutines that wait for futures, and nothing around them."""
    coroutines = [call(value) for value in values]
    for coroutine in coroutines:
        coroutine.send(None)
    return coroutines


def _tasks(call: Call, values: range) -> list[asyncio.Task[int]]:
    return [asyncio.create_task(call(value)) for value in values]


def _operator(order: OutputOrder) -> Callable[[Call, range], AsyncWaitOperator]:
    def hold(call: Call, values: range) -> AsyncWaitOperator:
        operator = AsyncWaitOperator(
            AsyncWaitSettings(call, order=order, concurrency=IN_FLIGHT, timeout=3600.0)
        )
        operator.open(OperatorContext())
        operator.process_batch(values, None)
        return operator

    return hold


_HOLDERS: dict[str, Callable[[Call, range], Any]] = {
    "calls": _calls,
    "tasks": _tasks,
    "ordered": _operator(OutputOrder.ORDERED),
    "unordered": _operator(OutputOrder.UNORDERED),
    "event_time": _operator(OutputOrder.EVENT_TIME),
}


async def _end(held: Any) -> None:
    if isinstance(held, AsyncWaitOperator):
        await held.stop()
        return
    for one in held:
        one.close() if asyncio.iscoroutine(one) else one.cancel()


# ------------------------------------------------------------------ growth over a long stream


def growth(who: str, elements: int) -> float:
    """By how many megabytes the process peaks above where it started, over a stream of so many elements."""
    before = _peak()
    counted = run(_LONG_RUNS[who](elements))
    if counted != elements:
        raise AssertionError(f"{who}: {counted:,} results of {elements:,}")
    return (_peak() - before) / MEGABYTE


def _peak() -> int:
    """The most memory that this process has had in its hands, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # not ru_maxrss, which on Linux begins with the peak of the parent
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _pipeline(order: OutputOrder) -> Callable[[int], Coroutine[Any, Any, int]]:
    async def count(elements: int) -> int:
        counted = 0

        def seen(value: int) -> None:
            nonlocal counted
            counted += 1

        pipeline = Pipeline()
        call = replies(SECONDS)()
        pipeline.source(range(elements)).async_map(
            call, order=order, concurrency=CONCURRENCY, timeout=10.0
        ).to(seen)
        await pipeline.run()
        return counted

    return count


async def _gather(elements: int) -> int:
    call, semaphore = replies(SECONDS)(), asyncio.Semaphore(CONCURRENCY)

    async def one(value: int) -> int:
        async with semaphore:
            return await call(value)

    return len(await asyncio.gather(*map(one, range(elements))))


_LONG_RUNS: dict[str, Callable[[int], Coroutine[Any, Any, int]]] = {
    "ordered": _pipeline(OutputOrder.ORDERED),
    "unordered": _pipeline(OutputOrder.UNORDERED),
    "gather": _gather,
}


# ------------------------------------------------------------------ the tables


def main(quick: bool = False) -> None:
    elements = 20_000 if quick else 1_000_000
    own = _elsewhere("suspended", "calls")
    held = {who: _elsewhere("suspended", who) for who in _HOLDERS}
    print(f"#### Bytes for each of {IN_FLIGHT:,} elements in flight\n")
    rows = [(who, f"{used:,.0f}", f"{used - own:,.0f}") for who, used in held.items()]
    print(table(("", "in all", "beyond the call's own coroutine and future"), rows) + "\n")

    lengths = {"ordered": elements, "unordered": elements, "gather": elements // 10}
    grown = {who: _elsewhere("growth", who, length) for who, length in lengths.items()}
    print(f"#### Growth of the process, {CONCURRENCY} in flight\n")
    shown = [(who, f"{lengths[who]:,}", f"{megabytes:.1f}") for who, megabytes in grown.items()]
    print(table(("", "elements", "MB"), shown) + "\n")

    found = [
        Goal(f"bytes per element in flight, {who}", held[who] - own, 2048, at_most=True, form="{:,.0f}")
        for who in ("ordered", "unordered", "event_time")
    ]
    found += [
        Goal(f"growth over {lengths[who]:,} elements, {who}", grown[who], 5, at_most=True, form="{:.1f} MB")
        for who in ("ordered", "unordered")
    ]
    print(goals(found), flush=True)


def _elsewhere(function: str, *arguments: object) -> float:
    """What a function of this module gives in a fresh process."""
    code = f"from {__name__} import {function}; print({function}(*{arguments!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)
