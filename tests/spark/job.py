"""
A stream as a program of its own, to be killed.

    python tests/spark/job.py MASTER IN CHECKPOINT OUT [ZIP PYTHON]

What the pipeline calls is defined here, in `__main__`. If there is a zip of the package, and a Python for the
workers that does not have it, it is first tried what happens without the zip.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncstream import AsyncFunction, KeyedContext, KeyedProcessFunction, Stream
from asyncstream.state import ListDescriptor, ListState
from asyncstream.windowing import Count, Sum, TumblingWindows
from tests.spark.cluster import event_columns, frame, session
from tests.spark.contract import on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]


@dataclass(frozen=True)
class Shop:
    """A key. Each driver has a class of this name, and state goes from one driver to the next."""

    name: str


class Doubled(AsyncFunction[Row, Row]):
    """Slow enough for a kill to find calls under way."""

    async def open(self) -> None:
        self.factor = 2

    async def invoke(self, value: Row) -> Row:
        await asyncio.sleep(0.02)
        return value | {"v": value["v"] * self.factor}


class Silence(KeyedProcessFunction[Row, Row]):
    """Tells what came for a key once event time has passed the next round second."""

    def open(self, ctx: KeyedContext) -> None:
        self.seen: ListState[int] = ctx.state(ListDescriptor("seen"))

    def process_element(self, value: Row, ctx: KeyedContext, out: Any) -> None:
        self.seen.add(value["v"])
        ctx.register_event_timer(ctx.timestamp - ctx.timestamp % 1000 + 1000)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Any) -> None:
        out({"key": ctx.key, "ts": timestamp, "seen": list(self.seen.get())})
        self.seen.clear()


def define(timed: Stream[Row]) -> dict[str, Stream[Any]]:
    """Calls, and behind them windows and timers."""
    doubled = timed.async_map(Doubled(), concurrency=8)
    sums = (
        doubled.key_by(lambda row: Shop(row["key"]))
        .window(TumblingWindows(1))
        .allowed_lateness(1)
        .aggregate(n=Count(), total=Sum("v"))
    )
    silences = doubled.key_by(lambda row: row["key"][0]).process(Silence())
    return {"sums": sums, "late": sums.late, "silences": silences}


def run(spark: SparkSession, source: Path, checkpoint: Path, out: Path) -> None:
    """What a micro-batch gives replaces what was written under its number before."""
    rows = spark.readStream.schema(event_columns()).option("maxFilesPerTrigger", 1).json(str(source))

    def write(outputs: Mapping[str, Any], number: int) -> None:
        lines = [row.line for row in outputs["lines"].collect()]
        unfinished = out / f"{number:05}.unfinished"
        unfinished.write_text(json.dumps(lines))
        unfinished.rename(out / f"{number:05}.json")

    writer = on_spark(spark, rows, define, key_groups=5).write_stream(write)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    (out / "done").touch()


def main() -> None:
    master, *paths = sys.argv[1:5]
    source, checkpoint, out = map(Path, paths)
    if len(sys.argv) == 5:
        spark = session(master, log="WARN")
    else:
        package, python = sys.argv[5:]
        executors_path = {"spark__executorEnv__PYTHONPATH": ""}  # not the one of this process
        spark = session(master, python=python, log="WARN", **executors_path)
        try:
            on_spark(spark, frame(spark, []), define)["lines"].collect()
        except Exception as error:
            (out / "without").write_text(str(error))
        spark.sparkContext.addPyFile(package)
    run(spark, source, checkpoint, out)


if __name__ == "__main__":
    main()
