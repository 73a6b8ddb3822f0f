"""
The demo both ways: the second half of `make demo`, or `python -m examples.flights.on_spark --month 7`.

One definition runs embedded, and then as a stream on a Spark of this machine. A stream on Spark has no end:
when all flights have been read, what it remembers becomes a checkpoint, from which the embedded engine goes
on and closes the windows that are open. Both answers must be the same, and what polars computes from the
tables.

What depends on flights being late, the corrected figures by the hour, is left to the first half: it asks for
a second watermark, and a stream on Spark has one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import orjson

from asyncstream import FailedCall, Pipeline, Stream
from asyncstream.checkpoint import Checkpoints, MemoryStore
from asyncstream.runtime.spark import local_spark, stream_json_lines
from asyncstream.windowing import WindowResult
from examples.flights import joins
from examples.flights.analysis import PATIENCE, Silences, rotations
from examples.flights.answer import accumulate, direct_answer
from examples.flights.answer_windows import Flights, rotation_rows, silence_rows
from examples.flights.data import Row, load_flights
from examples.flights.enrichment import enriched_flights

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ("main",)

PER_MICRO_BATCH = 5_000
"""Flights that are read at a time."""

TEXT, NUMBER, FRACTION = "string", "bigint", "double"

FLIGHT = {
    **dict.fromkeys(("airline", "carrier", "tailnum", "origin", "dest"), TEXT),
    **dict.fromkeys(("flight", "distance", "dep_delay", "scheduled_ms", "departed_ms", "arrived_ms"), NUMBER),
}

ENRICHED = FLIGHT | {
    "plane": dict.fromkeys(("tailnum", "manufacturer", "model"), TEXT)
    | dict.fromkeys(("year", "engines", "seats"), NUMBER),
    "airport": dict.fromkeys(("code", "name", "zone"), TEXT)
    | dict.fromkeys(("lat", "lon"), FRACTION)
    | {"altitude_ft": NUMBER},
    "weather": {"origin": TEXT, "hour_ms": NUMBER}
    | dict.fromkeys(("temp_f", "wind_mph", "rain_inch", "visibility_miles"), FRACTION),
}

ROTATION = {
    "key": TEXT,
    "start_ms": NUMBER,
    "end_ms": NUMBER,
    "value": dict.fromkeys(("legs", "miles", "seats", "first_ms", "last_ms"), NUMBER),
}

SILENCE = {"tailnum": TEXT, "since_ms": NUMBER, "until_ms": NUMBER}

OUTPUTS: dict[str, dict[str, Any]] = {
    "enriched": ENRICHED,
    "planes": ROTATION,
    "missed": SILENCE,
    "given up": {"error": TEXT},
}

Found = dict[str, list[Any]]


def define(pipeline: Pipeline, flights: Iterable[Row], api: str) -> Found:
    """The pipeline; gives what its sinks fill when it runs embedded."""
    found: Found = {name: [] for name in OUTPUTS}
    given_up: list[FailedCall] = found["given up"]
    enriched = enriched_flights(pipeline, flights, api, given_up).flights
    enriched.to(found["enriched"], name="enriched")
    departures = enriched.filter(lambda flight: flight["departed_ms"] is not None, name="departures")
    rotations(departures).to(found["planes"], name="planes")
    silences: Stream[Any] = departures.key_by(lambda flight: flight["tailnum"]).process(
        Silences(PATIENCE), name="silences"
    )
    silences.to(found["missed"], name="missed")
    return found


def embedded(flights: list[Row], api: str, checkpoints: Checkpoints | None = None) -> Found:
    pipeline = Pipeline("flights")
    found = define(pipeline, flights, api)
    pipeline.run_blocking(checkpoints=checkpoints)
    return found


def on_spark(spark: SparkSession, flights: list[Row], api: str) -> Found:
    pipeline = Pipeline("flights")
    define(pipeline, [], api)
    found: Found = {name: [] for name in OUTPUTS}

    def collect(outputs: Mapping[str, DataFrame], number: int) -> None:
        for name, rows in outputs.items():
            found[name] += [row.asDict(recursive=True) for row in rows.collect()]

    with TemporaryDirectory() as folder:
        plan = pipeline.on_spark(
            spark,
            inputs={"reports": stream_of(spark, flights, Path(folder, "reports"))},
            outputs={name: schema_of(columns) for name, columns in OUTPUTS.items()},
        )
        place = str(Path(folder, "checkpoint"))
        writer = plan.write_stream(collect).option("checkpointLocation", place)
        writer.trigger(availableNow=True).start().awaitTermination()
        remembered = Checkpoints(store=MemoryStore())
        plan.save_checkpoint(place, remembered)
    for name, rest in embedded([], api, remembered).items():
        found[name] += rest
    found["planes"] = [
        row if isinstance(row, WindowResult) else WindowResult(**row) for row in found["planes"]
    ]
    return found


def stream_of(spark: SparkSession, flights: list[Row], folder: Path) -> DataFrame:
    """The flights as a stream, in the order in which they are reported."""
    folder.mkdir()
    Path(folder, "reported.jsonl").write_bytes(b"".join(orjson.dumps(flight) + b"\n" for flight in flights))
    return stream_json_lines(spark, folder, schema=schema_of(FLIGHT), max_rows_per_trigger=PER_MICRO_BATCH)


def schema_of(columns: Mapping[str, Any]) -> StructType:
    from pyspark.sql import types

    kinds = {TEXT: types.StringType(), NUMBER: types.LongType(), FRACTION: types.DoubleType()}
    return types.StructType(
        [
            types.StructField(name, schema_of(kind) if isinstance(kind, Mapping) else kinds[kind])
            for name, kind in columns.items()
        ]
    )


def answers(found: Found) -> dict[str, Any]:
    """What is compared."""
    missed = (row if isinstance(row, dict) else row._asdict() for row in found["missed"])
    # a plane that came back is told of twice, and across planes Spark keeps no order: the last word goes last
    told = sorted(missed, key=lambda row: row["until_ms"] or 0)
    return {
        "delays by airline and weather": accumulate(found["enriched"]),
        "rotations of each plane": rotation_rows(found["planes"]),
        "planes not seen for days": silence_rows(
            {(row["tailnum"], row["since_ms"]): row["until_ms"] for row in told}
        ),
    }


@contextmanager
def service() -> Iterator[str]:
    """Run the service in a process of its own; gives its address."""
    command = [sys.executable, "-m", "examples.flights.api"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.flights.on_spark", description="Both ways.")
    parser.add_argument("--month", type=int, default=7, choices=range(1, 13), metavar="1-12")
    parser.add_argument("--days", type=int, default=31, choices=range(1, 32), metavar="1-31")
    chosen = parser.parse_args()
    flights = load_flights(chosen.month, chosen.days)
    print(f"The same pipeline both ways, with {len(flights):,} flights")
    spark = local_spark(quiet=True)
    found = {}
    with service() as api:
        for way, run in (("embedded", embedded), ("on Spark", lambda *of: on_spark(spark, *of))):
            began = time.perf_counter()
            found[way] = answers(run(flights, api))
            seconds = time.perf_counter() - began
            print(f"{way}: {seconds:.1f} s, {len(flights) / seconds:,.0f} flights/s")
    as_of = "weather and plane as of departure"
    found["embedded"][as_of] = joins.embedded(flights)
    found["on Spark"][as_of] = joins.on_spark(spark, flights)
    spark.stop()
    tables = Flights(chosen.month, chosen.days)
    right = {
        "delays by airline and weather": direct_answer(chosen.month, chosen.days),
        "rotations of each plane": tables.rotations(),
        "planes not seen for days": tables.silences(),
        as_of: joins.direct_versions(chosen.month, chosen.days),
    }
    for question, answer in right.items():
        agree = found["embedded"][question] == found["on Spark"][question]
        print(f"{'equal' if agree else 'NOT EQUAL'} both ways: {question}")
        print(f"{'equal' if found['on Spark'][question] == answer else 'NOT EQUAL'} to polars: {question}")
    if not found["embedded"] == found["on Spark"] == right:
        raise SystemExit("the answers differ")


if __name__ == "__main__":
    main()
