"""
What a guard costs when it has nothing to do, and what a cache gains when it has much.

    python -m benchmarks.bench_guards

The first table is the price of one call through each guard, in microseconds of CPU time above that of the
bare function, the best of several rounds; beside it, what others ask for the same. An opened guard (in a
pipeline, or in `async with`) knows its event loop; one that is used like a plain function has to ask.

The second is the price of a hit in a cache with a store, from memory and from the file, after a restart.

The third is the throughput of an `async_map` of which nine in ten elements are known already, with and
without a cache.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import cycle
from pathlib import Path
from typing import Any

import aiolimiter
import anyio

from asyncstream import Pipeline
from asyncstream.guards import (
    Guard,
    adaptive_concurrency,
    cached,
    circuit_breaker,
    rate_limit,
    retry,
    single_flight,
)
from benchmarks.kit import compare, table

CALLS = 10_000
ROUNDS = 7
NEVER = 1_000_000_000

Function = Callable[[Any], Awaitable[Any]]


async def bare(value: Any) -> Any:
    return value


def ours() -> dict[str, tuple[Any, float | None]]:
    """Guards by name, each with its target in microseconds."""
    rarely = rate_limit(bare, rate=1000, per=1e-6)  # 1,000 calls take longer than its period
    return {
        "retry": (retry(bare), 0.5),
        "circuit_breaker": (circuit_breaker(bare), 0.5),
        "rate_limit": (rarely, 0.5),
        "cached, hit": (cached(bare), 0.5),
        "adaptive_concurrency": (adaptive_concurrency(bare), None),
        "retry(circuit_breaker(rate_limit))": (
            retry(circuit_breaker(rate_limit(bare, rate=1000, per=1e-6))),
            2.0,
        ),
        "cached(single_flight(retry(...))), hit": (
            cached(single_flight(retry(circuit_breaker(rate_limit(bare, rate=NEVER))))),
            2.0,
        ),
    }


def others() -> dict[str, Function]:
    """The same by other libraries, those that are installed."""
    limiter = aiolimiter.AsyncLimiter(NEVER, 1)
    capacity = anyio.CapacityLimiter(100)
    semaphore = asyncio.Semaphore(100)

    async def limited(value: Any) -> Any:
        async with limiter:
            return await bare(value)

    async def with_capacity(value: Any) -> Any:
        async with capacity:
            return await bare(value)

    async def with_semaphore(value: Any) -> Any:
        async with semaphore:
            return await bare(value)

    found: dict[str, Function] = {
        "aiolimiter.AsyncLimiter": limited,
        "anyio.CapacityLimiter": with_capacity,
        "asyncio.Semaphore": with_semaphore,
    }
    try:
        import stamina

        found["stamina.retry"] = stamina.retry(on=OSError)(bare)
    except ImportError:
        pass
    try:
        import tenacity

        found["tenacity.retry"] = tenacity.retry(stop=tenacity.stop_after_attempt(3))(bare)
    except ImportError:
        pass
    try:
        import async_lru

        found["async_lru.alru_cache, hit"] = async_lru.alru_cache(maxsize=10)(bare)
    except ImportError:
        pass
    return found


async def prices(functions: dict[str, Function]) -> dict[str, float]:
    """Microseconds of CPU time per call of each, the best of several rounds in which they take turns."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(ROUNDS):
        for name, function in functions.items():
            began = time.process_time()
            for _ in range(CALLS):
                await function(7)
            best[name] = min(best[name], (time.process_time() - began) / CALLS * 1e6)
    return best


async def compare_prices() -> bool:
    """Print the first table; whether all targets were met."""
    guards = ours()
    unopened = await prices({"bare": bare} | {name: guard for name, (guard, _) in guards.items()})
    async with AsyncExitStack() as stack:
        opened = {name: await stack.enter_async_context(guard) for name, (guard, _) in guards.items()}
        open_ = await prices({"bare": bare} | {name: guard.invoke for name, guard in opened.items()})
    theirs = await prices({"bare": bare} | others())

    print(f"one call, microseconds of CPU above a bare await ({open_['bare']:.2f})\n")
    rows: list[tuple[object, ...]] = []
    met = True
    for name, (_, target) in guards.items():
        price = open_[name] - open_["bare"]
        met = met and (target is None or price <= target)
        rows.append((name, f"{price:.2f}", f"{unopened[name] - unopened['bare']:.2f}", target or ""))
    rows += [(name, "", f"{one - theirs['bare']:.2f}", "") for name, one in theirs.items() if name != "bare"]
    print(table(("", "opened", "as a plain function", "target"), rows))
    return met


async def price_of_hits() -> bool:
    """Print what an answer costs that is kept in a file; whether the targets were met."""

    async def plane(number: int) -> dict[str, Any]:
        return {"tailnum": f"N{number}", "model": "737-824", "seats": 149}

    rows: list[tuple[object, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, size, target in (("memory", CALLS, 0.5), ("SQLite", 1, 10.0)):
            async with cached(plane, store=Path(folder) / "answers.db", size=size) as guarded:
                for number in range(CALLS):  # the first guard brings them into the file, the second has them
                    await guarded(number)
            async with cached(plane, store=Path(folder) / "answers.db", size=size) as guarded:
                numbers = cycle([7] if size > 1 else random.Random(7).sample(range(CALLS), CALLS))
                hit, invoke = float("inf"), guarded.invoke
                for _ in range(ROUNDS):
                    began = time.process_time()
                    for number, _ in zip(numbers, range(CALLS), strict=False):
                        await invoke(number)
                    hit = min(hit, (time.process_time() - began) / CALLS * 1e6)
                misses = guarded.metrics()["cache_misses"]
            rows.append((name, f"{hit:.2f}", target, misses))
    print("\none hit of a cache with a store, microseconds of CPU\n")
    print(table(("from", "µs", "target", "calls after a restart"), rows))
    return all(float(str(hit)) <= float(str(target)) and misses == 0 for _, hit, target, misses in rows)


async def service(value: int) -> int:
    await asyncio.sleep(0.005)
    return value


def enrich(lookup: Guard[int, int], elements: list[int]) -> int:
    """Send the elements through a pipeline with this lookup; how many came out."""
    results: list[int] = []
    pipeline = Pipeline()
    pipeline.source(elements).async_map(lookup, order="unordered", concurrency=100).to(results)
    asyncio.run(pipeline.run())
    return len(results)


def compare_throughput() -> bool:
    """Print the second table; whether the target was met."""
    dice = random.Random(7)
    elements = [dice.randrange(2_000) for _ in range(20_000)]  # each is new one time in ten
    plain, with_cache = "retry", "cached(single_flight(retry))"
    results = compare(
        {
            plain: lambda: enrich(retry(service), elements),
            with_cache: lambda: enrich(cached(single_flight(retry(service))), elements),
        },
        base=plain,
    )
    print(
        "\nasync_map, 100 at once, a service that takes 5 ms, nine in ten elements known (target: 5 times)\n"
    )
    rows = [
        (name, f"{one.per_second:,.0f}", f"{one.cpu_us:.1f}", f"{one.wall_ratio:.1f}")
        for name, one in results.items()
    ]
    print(table(("", "elements/s", "CPU µs each", "times"), rows))
    return results[with_cache].wall_ratio >= 5


def main(quick: bool = False) -> bool:
    # there is nothing to shorten: it takes seconds
    prices = asyncio.run(compare_prices())
    hits = asyncio.run(price_of_hits())
    gains = compare_throughput()
    return prices and hits and gains


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
