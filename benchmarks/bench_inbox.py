"""
What durable acceptance costs: how many `submit`s a second are safe on the disk, and how long each one takes.

The inbox and the checkpoints, one each second, are on the disk that the system's temporary files are on. Each
element has an id. Of latencies the least of several runs is taken, for neighbours only add to them.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from asyncstream import Checkpoints, DirectoryStore, Inbox, Job, Pipeline
from benchmarks.bench_checkpoints import event
from benchmarks.kit import Goal, compare, goals, results, run, table

__all__ = ("main",)

CLIENTS = 500
RATE = 1000


class Shop:
    """A pipeline that takes events in, with an inbox or without; a fresh one each time."""

    def __init__(self, durable: bool) -> None:
        self.durable = durable

    async def serve(self, clients: Callable[[Job], Awaitable[None]]) -> None:
        """Run it for as long as the clients go on."""
        with TemporaryDirectory() as name:
            folder, pipeline = Path(name), Pipeline()
            inbox = Inbox(folder / "inbox.sqlite") if self.durable else None
            pipeline.submissions(inbox=inbox, limit=5000, name="in").discard()
            checkpoints = Checkpoints(store=DirectoryStore(folder / "kept"), every=1)
            async with pipeline.start(checkpoints=checkpoints) as job:
                await clients(job)

    def submit(self, job: Job, number: int) -> Coroutine[Any, Any, bool]:
        return job.submit(event(number), id=f"order {number:08}" if self.durable else None)


def accepted(durable: bool, count: int) -> int:
    """All at once: 500 clients, each with one event after the other."""
    shop = Shop(durable)

    async def clients(job: Job) -> None:
        numbers = iter(range(count))

        async def client() -> None:
            for number in numbers:
                assert await shop.submit(job, number)

        await asyncio.gather(*(client() for _ in range(CLIENTS)))

    run(shop.serve(clients))
    return count


def latencies(durable: bool, seconds: float) -> tuple[float, float, float]:
    """Median, 99th percentile and maximum, in ms, of events that come at a steady rate, waiting or not."""
    shop = Shop(durable)
    taken: list[float] = []

    async def clients(job: Job) -> None:
        async def client(number: int) -> None:
            began = time.perf_counter()
            assert await shop.submit(job, number)
            taken.append((time.perf_counter() - began) * 1000)

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(int(RATE * seconds)):
                ahead = number / RATE - (time.perf_counter() - began)
                await asyncio.sleep(max(0.0, ahead))
                group.create_task(client(number))

    run(shop.serve(clients))
    cuts = statistics.quantiles(taken, n=100)
    return cuts[49], cuts[98], max(taken)


def main(quick: bool = False) -> None:
    count = 5_000 if quick else 50_000
    measured = compare(
        {"in memory": lambda: accepted(False, count), "in an inbox": lambda: accepted(True, count)},
        base="in memory",
        turns=1 if quick else 5,
    )
    print(results(f"{CLIENTS} clients, as quick as they can", measured, base="in memory"))
    rows, p99 = [], 0.0
    for name, durable in (("in memory", False), ("in an inbox", True)):
        turns = [latencies(durable, 1 if quick else 5) for _ in range(1 if quick else 5)]
        median, p99, longest = (min(turn[place] for turn in turns) for place in range(3))
        rows.append((name, f"{median:.2f}", f"{p99:.2f}", f"{longest:.1f}"))
    print(f"#### {RATE:,} events a second\n")
    print(table(("", "median, ms", "p99, ms", "longest, ms"), rows), "\n")
    reached = [
        Goal("durable accepts a second", measured["in an inbox"].per_second, 5000, form="{:,.0f}"),
        Goal(f"p99 at {RATE:,} a second, ms", p99, 50, at_most=True, form="{:.1f}"),
    ]
    print(goals(reached))


if __name__ == "__main__":
    main()
