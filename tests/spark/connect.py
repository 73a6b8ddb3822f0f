"""
Single steps, a bounded job and a stream over Spark Connect, as a program of its own.

    python -m tests.spark.connect IN CHECKPOINT OUT
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncstream import PipelineError
from asyncstream.runtime.spark import enrich, enrich_column, need_java, once_in_database
from asyncstream.runtime.spark.pruning import pruned
from tests.spark.cluster import ROOT, event_columns
from tests.spark.contract import batches_of, on_spark
from tests.spark.job import Doubled, define, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = [row for batch in batches_of(3, count=3) for row in batch]


async def label(row: dict[str, Any]) -> str:
    return f"{row['key']}-{row['v']}"


def remote_session() -> SparkSession:
    """A client, and a server of its own, on any port."""
    from pyspark.sql import SparkSession

    need_java()
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    os.environ["SPARK_TESTING"] = "1"  # else PySpark insists on port 15002
    spark = SparkSession.builder.remote("local[2,3]").getOrCreate()
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    return spark


def written_in_parts(spark: SparkSession, source: Path, out: Path) -> str:
    """What ends a stream whose function writes two parts of a micro-batch under one number."""
    connect = partial(sqlite3.connect, out / "parts.db")
    with closing(connect()) as connection:
        connection.execute("CREATE TABLE parts (key, ts, v)")
    write = once_in_database(connect, "parts", query="parts")

    def write_parts(rows: DataFrame, number: int) -> None:
        write(rows.where("v % 2 = 0"), number)
        write(rows.where("v % 2 = 1"), number)

    rows = spark.readStream.schema(event_columns()).json(str(source))
    writer = rows.writeStream.option("checkpointLocation", str(out / "parts"))
    query = writer.foreachBatch(write_parts).start()
    try:
        query.processAllAvailable()
    except Exception as error:
        return str(error)
    finally:
        query.stop()
    return "nothing"


def main() -> None:
    from pyspark.sql.types import StringType

    source, checkpoint, out = map(Path, sys.argv[1:])
    spark = remote_session()
    rows = spark.createDataFrame([(row["key"], row["ts"], row["v"]) for row in ROWS], event_columns())
    labelled = rows.withColumn("label", enrich_column(label, StringType())("key", "v"))
    found: dict[str, Any] = {
        "enriched": [row.asDict() for row in enrich(rows, Doubled(), schema=event_columns()).collect()],
        "labels": [row.label for row in labelled.collect()],
        "bounded": [row.line for row in on_spark(spark, rows, define, key_groups=5)["lines"].collect()],
    }
    marked = spark.readStream.format("rate").load().withWatermark("timestamp", "1 second")
    try:
        on_spark(spark, marked.selectExpr("'k' AS key", "value AS ts", "value AS v"), define)
    except PipelineError as error:
        found["refused"] = str(error)
    lines = spark.read.schema("a int, b int, bad string").option("columnNameOfCorruptRecord", "bad")
    (out / "lines").write_text('{"a": 1, "b": "x"}')
    found["kept"] = pruned(lines.json(str(out / "lines")).limit(1), frozenset({"a", "bad"})).columns
    found["parts"] = written_in_parts(spark, source, out)
    (out / "found").write_text(json.dumps(found))
    run(spark, source, checkpoint, out)


if __name__ == "__main__":
    main()
