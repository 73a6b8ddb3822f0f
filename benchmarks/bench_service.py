"""
The FastAPI example over HTTP: how long a post takes until it is answered with 202, at a steady rate.

The service is a process of its own and this one is its clients, so two cores are in use. Each order is on the
disk before it is answered, then rated, written to a file, counted in windows and streamed. Of latencies the
least of several runs is taken, for neighbours only add to them.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory

import aiohttp

from benchmarks.kit import Goal, goals, run, table

__all__ = ("main",)

RATES = (250, 500, 1000)
"""Posts a second."""

KEEP_ALIVE = 2
"""Seconds that a client keeps a connection: fewer than the server, or a post might meet one that closes."""


@asynccontextmanager
async def example() -> AsyncIterator[str]:
    """The example in a process of its own: its address."""
    with TemporaryDirectory() as state:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "examples.fastapi_service"),
            env={**os.environ, "STATE": state, "PORT": "0"},
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        while not (found := re.search(rb"running on (\S+)", line := await process.stderr.readline())):
            assert line, "the example did not come up"
        rest = asyncio.create_task(process.stderr.read())
        try:
            yield found[1].decode()
        finally:
            process.terminate()
            await process.wait()
            await rest


async def latencies(rate: int, seconds: float) -> tuple[float, float, float]:
    """Median, 99th percentile and maximum, in ms, from the moment at which a post was due."""
    taken: list[float] = []

    async def post(number: int, due: float) -> None:
        new = {
            "id": f"order {number}",
            "customer": f"c{number % 50}",
            "cents": number,
            "at_ms": 10**12 + number,
        }
        async with session.post(f"{url}/orders", json=new) as reply:
            assert (reply.status, await reply.json()) == (202, {"new": True})
        taken.append((time.perf_counter() - due) * 1000)

    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE)
    async with example() as url, aiohttp.ClientSession(connector=connector) as session:
        for number in range(200):
            await post(-1 - number, 0.0)
        taken.clear()
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(int(rate * seconds)):
                due = began + number / rate
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                group.create_task(post(number, due))
    cuts = statistics.quantiles(taken, n=100)
    return cuts[49], cuts[98], max(taken)


def main(quick: bool = False) -> None:
    rows, p99 = [], 0.0
    for rate in RATES:
        turns = [run(latencies(rate, 1 if quick else 5)) for _ in range(1 if quick else 5)]
        median, p99, longest = (min(turn[place] for turn in turns) for place in range(3))
        rows.append((f"{rate:,}", f"{median:.1f}", f"{p99:.1f}", f"{longest:.1f}"))
    print("#### Posts to the FastAPI example\n")
    print(table(("posts a second", "median, ms", "p99, ms", "longest, ms"), rows), "\n")
    print(goals([Goal(f"p99 at {RATES[-1]:,} a second, ms", p99, 50, at_most=True, form="{:.1f}")]))


if __name__ == "__main__":
    main()
