"""
Spark: rows per second through `enrich` and through windows, and what others do in the same session.

    python -m benchmarks spark            # needs the extra [spark]; some three minutes on two cores

Enrichment, with an async function that never waits, so that only the machinery is measured:

    enrich            this package, inside mapInArrow
    gather            what is written today: mapInPandas, and a task per row in asyncio.gather for each batch
    without Spark     the very code of a task of `enrich`, in this process, on one core

Windows: a stream of micro-batches of 100,000 rows, tumbling windows with count and sum for each key; the same
in Spark SQL. The first two batches, in which the JVM warms up, do not count; the median of the others does.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from asyncstream import BoundedOutOfOrderness, Pipeline, Stream
from asyncstream.plan import Output as StepOutput
from asyncstream.runtime.spark import enrich, local_spark
from asyncstream.runtime.spark.assembly import Terms
from asyncstream.runtime.spark.cut import cut
from asyncstream.runtime.spark.tasks import Output, StageTask, run_stage
from asyncstream.windowing import Count, Sum, TumblingWindows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

CORES = 2
ROWS = 2_000_000
ROWS_PER_BATCH = 100_000
WARM_UP = 2
WINDOW = 10


async def at_once(row: dict[str, Any]) -> dict[str, Any]:
    return row


def gather_each_batch(batches: Iterator[Any]) -> Iterator[Any]:
    import pandas as pd

    async def all_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return await asyncio.gather(*(at_once(row) for row in rows))

    for batch in batches:
        yield pd.DataFrame(asyncio.run(all_of(batch.to_dict("records"))))


def one_column() -> StructType:
    from pyspark.sql.types import LongType, StructField, StructType

    return StructType([StructField("id", LongType())])


def enrichment(spark: SparkSession, count: int) -> None:
    rows = spark.range(0, count, 1, CORES)
    per_core = {
        "enrich": rate(count, lambda: drain(enrich(rows, at_once, schema=one_column()))) / CORES,
        "gather": rate(count, lambda: drain(rows.mapInPandas(gather_each_batch, one_column()))) / CORES,
        "without Spark": rate(count, lambda: without_spark(count)),
    }
    print(f"enrichment, {count:,} rows, rows/s and core")
    for name, found in per_core.items():
        print(f"  {name:<16}{found:>12,.0f}   {found / per_core['enrich']:.2f} of enrich")


def drain(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


def without_spark(count: int) -> None:
    import pyarrow as pa

    pipeline = Pipeline()
    pipeline.source([]).async_map(at_once).to([], name="out")
    (stage,) = cut(pipeline._graph, streaming=False)
    source = tuple(route.number for route in stage.entries if route.output == StepOutput("source"))
    route = stage.exits[0].number
    task = StageTask(
        "without Spark",
        stage,
        Terms(1, frozenset({route}), streaming=False),
        source=source,
        output=Output("out", route, one_column()),
    )
    numbers = range(0, count, 10_000)
    batches = (pa.record_batch({"id": pa.array(range(first, first + 10_000))}) for first in numbers)
    assert sum(batch.num_rows for batch in run_stage(task, batches)) == count


def rate(count: int, run: Callable[[], None]) -> float:
    """Rows a second, the best of three after one to warm up."""
    run()
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return count / min(seconds)


def source(spark: SparkSession, keys: int) -> DataFrame:
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH)
    reader = reader.option("numPartitions", CORES).option("advanceMillisPerBatch", 5_000)
    return reader.load().selectExpr(
        "unix_millis(timestamp) AS ts", f"(value * 2654435761) % {keys} AS key", "value AS v"
    )


def ours(spark: SparkSession, keys: int) -> DataFrame:
    from pyspark.sql.types import LongType, StructField, StructType

    def columns(*names: str) -> list[StructField]:
        return [StructField(name, LongType()) for name in names]

    pipeline = Pipeline()
    source_rows: Stream[Any] = pipeline.source([], name="rows")
    rows = source_rows.event_time(lambda row: row["ts"], BoundedOutOfOrderness(0))
    keyed = rows.key_by(lambda row: row["key"])
    keyed.window(TumblingWindows(WINDOW)).aggregate(n=Count(), total=Sum("v")).to([], name="out")
    value = StructField("value", StructType(columns("n", "total")))
    schema = StructType([*columns("key", "start_ms", "end_ms"), value])
    return pipeline.on_spark(spark, inputs={"rows": source(spark, keys)}, outputs={"out": schema})["out"]


def in_sql(spark: SparkSession, keys: int) -> DataFrame:
    from pyspark.sql import functions as F

    rows = source(spark, keys).withColumn("at", F.timestamp_millis("ts")).withWatermark("at", "0 seconds")
    groups = rows.groupBy("key", F.window("at", f"{WINDOW} seconds"))
    return groups.agg(F.count("*").alias("n"), F.sum("v").alias("total"))


def windows(spark: SparkSession, batches: int) -> None:
    for keys in (1_000, 50_000):
        made = {"ours": ours(spark, keys), "SQL": in_sql(spark, keys)}
        found = {name: stream_rate(df, batches) for name, df in made.items()}
        print(f"tumbling count and sum, {keys:,} keys, {ROWS_PER_BATCH:,} rows a batch, rows/s")
        for name, rows in found.items():
            print(f"  {name:<16}{rows:>12,.0f}   {rows / found['SQL']:.2f} of Spark SQL")


def stream_rate(df: DataFrame, batches: int) -> float:
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = df.writeStream.format("noop").outputMode("append").option("checkpointLocation", checkpoint)
        query = writer.start()
        while query.lastProgress is None or query.lastProgress["batchId"] < batches:
            query.awaitTermination(1)
        progress = query.recentProgress
        query.stop()
    warm = [each for each in progress if each["numInputRows"] and each["batchId"] >= WARM_UP]
    rates = (1000 * each["numInputRows"] / each["durationMs"]["triggerExecution"] for each in warm)
    return float(statistics.median(rates))


def main(*, quick: bool = False) -> None:
    spark = local_spark(
        CORES, spark__sql__streaming__stateStore__rocksdb__changelogCheckpointing__enabled="true"
    )
    spark.sparkContext.setLogLevel("OFF")  # a stream that is stopped complains
    enrichment(spark, ROWS // 10 if quick else ROWS)
    windows(spark, 4 if quick else 8)
    spark.stop()


if __name__ == "__main__":
    main()
