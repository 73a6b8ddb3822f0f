"""
The demo: `make demo`, or `python -m examples.flights --month 7`.

Starts the slow service in a process of its own, sends a month of real flights through the pipeline, and
checks the answer against the one that polars computes from the tables.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asyncstream import FailedCall, Pipeline
from examples.flights.answer import accumulate, direct_answer
from examples.flights.data import Row, load_flights
from examples.flights.enrichment import enriched_flights
from examples.flights.report import Progress, print_report

__all__ = ("main", "run")


@asynccontextmanager
async def service(*options: str) -> AsyncIterator[str]:
    """Run the service in a process of its own; gives its address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "examples.flights.api", *options, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        port = int(await asyncio.wait_for(process.stdout.readline(), 30))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def run(month: int) -> bool:
    """Run the demo for one month (1 to 12); says whether the answers agree."""
    flights = load_flights(month)
    enriched: list[Row] = []
    given_up: list[FailedCall] = []
    async with service() as api:
        pipeline = Pipeline("flights")
        enrichment = enriched_flights(pipeline, flights, api, given_up)
        enrichment.flights.to(enriched, name="enriched")
        print(pipeline.describe(), end="\n\n")
        began = time.perf_counter()
        async with pipeline.start() as job, Progress(job, len(flights), "enriched"):
            await job.wait()
        seconds = time.perf_counter() - began
        metrics = job.metrics()
    answer = accumulate(enriched)

    agrees = not given_up and answer == direct_answer(month)
    print_report(
        events=len(flights),
        results=len(enriched),
        seconds=seconds,
        lookups={name: lookup.metrics() for name, lookup in enrichment.lookups.items()},
        steps=metrics,
        given_up=given_up,
        answer=answer,
        agrees=agrees,
    )
    return agrees


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description="The demo.")
    parser.add_argument("--month", type=int, default=7, choices=range(1, 13), help="of 2013; default: 7")
    if not asyncio.run(run(parser.parse_args().month)):
        raise SystemExit("the answers differ")


if __name__ == "__main__":
    main()
