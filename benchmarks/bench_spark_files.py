"""
Spark: rows per second of a stream of JSON Lines files, ours and Spark's own on the same files.

    python -m benchmarks spark_files      # needs the extra [spark]; a minute on two cores

    one after the other    each file has events of its own time; the names are in the reverse order
    side by side           all files have events of the same time, so that hardly two of a file are neighbours

Micro-batches of 100,000 rows, or of so many files. Ours come in the order of event time; those of Spark not.
Both are read to the end three times; the median of all micro-batches but those of the first time counts.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from asyncstream.runtime.spark import local_spark, stream_json_lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

ROWS = 400_000
FILES = 20
ROWS_PER_BATCH = 100_000
START_MS = 1_700_000_000_000


def write_files(folder: Path, count: int, *, side_by_side: bool) -> None:
    rng = random.Random(1)
    lines: list[list[bytes]] = [[] for _ in range(FILES)]
    for number in range(count):
        file = rng.randrange(FILES) if side_by_side else FILES - 1 - number * FILES // count
        event = {"key": f"k{number % 1000}", "ts": START_MS + number, "v": number, "text": "some more text"}
        lines[file].append(orjson.dumps(event) + b"\n")
    for file, mine in enumerate(lines):
        (folder / f"{file:03}.jsonl").write_bytes(b"".join(mine))


def columns() -> StructType:
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    kinds = {"key": StringType(), "ts": LongType(), "v": LongType(), "text": StringType()}
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def batch_rates(df: DataFrame) -> list[float]:
    """Rows a second of each micro-batch, to the end of what is there."""
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = df.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        progress = [each for each in query.recentProgress if each["numInputRows"]]
    return [1000 * each["numInputRows"] / each["durationMs"]["triggerExecution"] for each in progress]


def compare(made: dict[str, DataFrame]) -> None:
    found: dict[str, list[float]] = {name: [] for name in made}
    for turn in range(3):
        for name, df in made.items():
            rates = batch_rates(df)
            if turn:
                found[name] += rates
    rows = {name: statistics.median(rates) for name, rates in found.items()}
    for name, rate in rows.items():
        print(f"  {name:<16}{rate:>12,.0f}   {rate / rows['Spark']:.2f} of Spark's own")


def main(*, quick: bool = False) -> None:
    spark = local_spark(2)
    spark.sparkContext.setLogLevel("OFF")
    count = ROWS // 4 if quick else ROWS
    files_per_batch = max(1, FILES * ROWS_PER_BATCH // count)
    for side_by_side in (False, True):
        with tempfile.TemporaryDirectory() as name:
            write_files(Path(name), count, side_by_side=side_by_side)
            spark_reader = spark.readStream.schema(columns()).option("maxFilesPerTrigger", files_per_batch)
            print(f"{FILES} files {'side by side' if side_by_side else 'one after the other'}, rows/s")
            ours = stream_json_lines(
                spark, name, schema=columns(), time="ts", max_rows_per_trigger=ROWS_PER_BATCH
            )
            compare({"ours": ours, "Spark": spark_reader.json(name)})
    spark.stop()


if __name__ == "__main__":
    main()
