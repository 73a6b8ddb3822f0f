"""
The demo: `make demo`, or `python -m examples.flights --month 7`.

Starts the slow service in a process of its own, sends a month of real flights through the pipeline, and
checks all that comes out of it against what polars computes from the tables.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asyncstream import FailedCall, Pipeline
from examples.flights.analysis import Findings, analyse
from examples.flights.answer import accumulate, direct_answer
from examples.flights.answer_windows import Flights, flight_names, hour_rows, rotation_rows, silence_rows
from examples.flights.data import Row, load_flights
from examples.flights.enrichment import enriched_flights
from examples.flights.joins import direct_versions, embedded, missing
from examples.flights.report import Progress, print_plan, print_report

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


async def run(month: int, days: int = 31) -> list[str]:
    """Run the demo for the first `days` of one month (1 to 12); says what went wrong, if anything."""
    flights = load_flights(month, days)
    enriched: list[Row] = []
    given_up: list[FailedCall] = []
    async with service() as api:
        pipeline = Pipeline("flights")
        enrichment = enriched_flights(pipeline, flights, api, given_up)
        enrichment.flights.to(enriched, name="enriched")
        found = analyse(enrichment.flights)
        print_plan(pipeline.describe())
        began = time.perf_counter()
        async with pipeline.start() as job, Progress(job, len(flights), "enriched"):
            await job.wait()
        seconds = time.perf_counter() - began
        metrics = job.metrics()
    answer = accumulate(enriched)
    joined = await asyncio.to_thread(embedded, flights)
    agrees = {
        "delays by airline and weather": answer == direct_answer(month, days),
        **compare(found, Flights(month, days)),
        f"weather and plane as of departure; {missing(joined)}": joined == direct_versions(month, days),
    }
    print_report(
        events=len(flights),
        results=len(enriched),
        seconds=seconds,
        lookups={name: lookup.metrics() for name, lookup in enrichment.lookups.items()},
        steps=metrics,
        given_up=given_up,
        answer=answer,
        found=found,
        agrees=agrees,
    )
    wrong = [f"the answers differ: {question}" for question, agree in agrees.items() if not agree]
    if given_up:  # then answers differ, too
        last = given_up[-1].error
        return [f"the service did not answer for {len(given_up):,} flights ({last}): is the machine busy?"]
    return wrong


def compare(found: Findings, tables: Flights) -> dict[str, bool]:
    """Which findings of the pipeline are what the tables say."""
    return {
        "delays by carrier and hour": hour_rows(found.hours) == tables.hours(),
        "flights too late for their hour": flight_names(found.late) == tables.late(),
        "rotations of each plane": rotation_rows(found.rotations) == tables.rotations(),
        "planes not seen for days": silence_rows(found.silences) == tables.silences(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description="The demo.")
    parser.add_argument(
        "--month", type=int, default=7, choices=range(1, 13), metavar="1-12", help="of 2013; default: 7"
    )
    parser.add_argument(
        "--days",
        type=int,
        default=31,
        choices=range(1, 32),
        metavar="1-31",
        help="only the first so many days of it",
    )
    chosen = parser.parse_args()
    if wrong := asyncio.run(run(chosen.month, chosen.days)):
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
