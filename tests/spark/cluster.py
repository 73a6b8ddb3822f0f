"""
A small Spark on this machine, and a stream whose micro-batches are known beforehand.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from asyncstream.runtime.spark import SparkPlan

ROOT = Path(__file__).parents[2]


def session(
    master: str = "local[2,3]", *, python: str = sys.executable, log: str = "OFF", **settings: str
) -> SparkSession:
    """A session of two cores, whose tasks are tried again; `python` is that of its workers."""
    from asyncstream.runtime.spark import local_spark

    os.environ["PYSPARK_PYTHON"] = python
    os.environ["PYTHONPATH"] = str(ROOT)  # workers import the tests' own functions
    own: dict[str, Any] = {"spark__master": master, "spark__sql__streaming__pollingDelay": "1ms"}
    if python == sys.executable:
        own["spark__python__daemon__module"] = "tests.spark.daemon"
    spark = local_spark(2, name="tests", **(own | settings))
    spark.sparkContext.setLogLevel(log)
    return spark


def columns(**kinds: DataType) -> StructType:
    """A schema of nullable columns."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def event_columns() -> StructType:
    """key, ts, v: the rows of most tests."""
    from pyspark.sql import types

    return columns(key=types.StringType(), ts=types.LongType(), v=types.LongType())


def frame(spark: SparkSession, rows: Sequence[Mapping[str, Any]], partitions: int = 2) -> DataFrame:
    """The rows as a bounded DataFrame, in order over its partitions."""
    context = spark.sparkContext
    data = context.parallelize([(row["key"], row["ts"], row["v"]) for row in rows], partitions)
    return spark.createDataFrame(data, event_columns())


def stream(spark: SparkSession, folder: Path, batches: Sequence[Sequence[Mapping[str, Any]]]) -> DataFrame:
    """A stream whose micro-batches are these."""
    write_batches(folder, batches)
    reader = spark.readStream.schema(event_columns()).option("maxFilesPerTrigger", 1)
    return reader.json(str(folder))


def write_batches(folder: Path, batches: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """One file each, which Spark reads in the order of their modification."""
    folder.mkdir()
    for number, rows in enumerate(batches):
        path = folder / f"{number:05}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_000_000 + number, 1_000_000 + number))


def write_more(folder: Path, batches: list[Any], first: int) -> None:
    """Further files in the folder of a stream, behind the first ones."""
    write_batches(folder.parent / f"from {first}", batches)
    for number, path in enumerate(sorted((folder.parent / f"from {first}").iterdir()), start=first):
        moved = path.rename(folder / f"{number:05}.json")
        os.utime(moved, (1_000_000 + number, 1_000_000 + number))


def run_stream(plan: SparkPlan, checkpoint: Path) -> dict[str, list[str]]:
    """Run a stream over all there is; its outputs have a single column."""
    found: dict[str, list[str]] = {name: [] for name in plan}

    def write(outputs: Mapping[str, DataFrame], number: int) -> None:
        for name, rows in outputs.items():
            found[name] += [row[0] for row in rows.collect()]

    run_to_the_end(plan.write_stream(write), checkpoint)
    return found


def run_to_the_end(writer: Any, checkpoint: Path, seconds: int = 300) -> None:
    """Have a stream written, from its checkpoint on, until there is nothing more."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        if not query.awaitTermination(seconds):
            raise TimeoutError("the stream did not end")
    finally:
        query.stop()


def written(out: Path) -> list[str]:
    """What the micro-batches of a program have written into this folder."""
    return [line for path in sorted(out.glob("[0-9]*.json")) for line in json.loads(path.read_text())]


def batches_in(checkpoint: Path) -> list[list[dict[str, Any]]]:
    """
    The rows of each micro-batch, by what the checkpoint says of files and offsets.

    After a crash Spark may put files into one micro-batch that were in two before, which moves watermarks.
    """
    files: dict[str, int] = {}
    for path in (checkpoint / "sources" / "0").iterdir():
        if not path.name.startswith("."):
            for line in path.read_text().splitlines()[1:]:
                entry = json.loads(line)
                files[unquote(urlparse(entry["path"]).path)] = entry["batchId"]
    offsets = sorted(int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdigit())
    batches, last = [], -1
    for number in offsets:
        offset = json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[2])["logOffset"]
        paths = sorted(path for path, entry in files.items() if last < entry <= offset)
        rows = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
        if rows:
            batches.append(rows)
        last = offset
    return batches
