"""
Rows of a Parquet file, each with what a slow service answers about it, as a folder of Parquet by airline.

It may be killed at any moment: started again, it goes on from its last checkpoint, and each row is in the
result once. Rows that are no flights go aside, one by one.

    python -m examples.parquet_enrichment [FOLDER]

FOLDER is where flights.parquet is, made if it is not there, and where the results come; a temporary one if it
is left out. A URL such as "s3://bucket/flights" would do for the source and the sink (extra [fsspec]).
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["asyncstream[polars]"]
#
# [tool.uv.sources]
# asyncstream = { path = "..", editable = true }
# ///

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars

from asyncstream import JsonLinesSink, ParquetSink, ParquetSource, Pipeline
from asyncstream.guards import retry

FLIGHTS = 3000
AIRLINES = ("AA", "B6", "UA")
FIRST_DAY = date(2026, 1, 1)


@dataclass
class Flight:
    number: int
    day: date
    airline: str
    tailnum: str


def make_flights(path: Path) -> None:
    """Some flights; of every thousandth nobody knows the plane, so that row is none."""
    rows = [
        {
            "number": number,
            "day": FIRST_DAY + timedelta(days=number % 31),
            "airline": AIRLINES[number % 3],
            "tailnum": None if number % 1000 == 999 else f"N{number % 700}",
        }
        for number in range(FLIGHTS)
    ]
    polars.DataFrame(rows).write_parquet(path)


async def with_seats(flight: Flight) -> dict[str, Any]:
    """Stands for a call of a service."""
    await asyncio.sleep(0.005)
    return asdict(flight) | {"seats": 100 + int(flight.tailnum[1:]) % 150}


def enrichment(folder: Path) -> Pipeline:
    pipeline = Pipeline("flights")
    source = ParquetSource(folder / "flights.parquet", model=Flight, on_malformed="reject", batch=200)
    flights = pipeline.source(source, name="flights")
    enriched = flights.async_map(retry(with_seats, attempts=5), concurrency=100, name="seats")
    enriched.to(ParquetSink(folder / "enriched", partition_by="airline"), name="enriched")
    flights.rejected.to(JsonLinesSink(folder / "rejected.jsonl"), name="rejected")
    return pipeline


async def seats_by_airline(folder: Path) -> polars.DataFrame:
    """The result read again, and what a bounded job has found as a frame."""
    rows = Pipeline("read").source(ParquetSource(folder / "enriched", columns=["airline", "seats"]))
    frame = await rows.to_polars().run()
    return frame.group_by("airline").agg(polars.len().alias("flights"), polars.sum("seats")).sort("airline")


async def main(folder: Path) -> None:
    if not (folder / "flights.parquet").exists():
        make_flights(folder / "flights.parquet")
    await enrichment(folder).run(checkpoints=folder / "checkpoints")
    print(await seats_by_airline(folder))
    rejected = (folder / "rejected.jsonl").read_text().splitlines()
    print(f"{len(rejected)} rows are no flights, such as {rejected[0]}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(Path(sys.argv[1])))
    else:
        with TemporaryDirectory() as made:
            asyncio.run(main(Path(made)))
