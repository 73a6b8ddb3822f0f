"""
Enrich orders with the price from a slow service, then sum them up by shop and minute: on Spark.

    python examples/spark_job.py                      on this machine

On a cluster, with the package in a zip, or installed on its machines. What it needs must be installed there
either way, since compiled modules are not found in a zip: pandas pyarrow protobuf orjson anyio

    zip -r asyncstream.zip asyncstream
    spark-submit --master spark://127.0.0.1:7077 --py-files asyncstream.zip examples/spark_job.py --submitted

PySpark from pip brings a master and a worker too. With Java 17 on the path, each in a terminal of its own:

    spark-class org.apache.spark.deploy.master.Master --host 127.0.0.1 --port 7077
    spark-class org.apache.spark.deploy.worker.Worker --work-dir /tmp/spark-work spark://127.0.0.1:7077
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["asyncstream[spark]"]
#
# [tool.uv.sources]
# asyncstream = { path = "..", editable = true }
# ///

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from asyncstream import AsyncFunction, BoundedOutOfOrderness, FailedCall, Pipeline, Stream
from asyncstream.runtime.spark import SparkPlan, local_spark
from asyncstream.windowing import Count, Sum, TumblingWindows, WindowResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]


class Prices(AsyncFunction[Row, Row]):
    """Stands for a client of a service: opened once in each worker, and used by all its tasks."""

    async def open(self) -> None:
        self.known = {"tea": 3, "rice": 2, "salt": 1}

    async def invoke(self, order: Row) -> Row:
        await asyncio.sleep(0.01)
        return order | {"euros": order["pieces"] * self.known[order["article"]]}


def turnover(orders: Stream[Row]) -> tuple[Stream[Row], Stream[FailedCall]]:
    """The pipeline's own part: nothing in it knows of Spark."""
    priced = orders.async_map(Prices(), concurrency=200, timeout=5, on_error="route", name="prices")
    minutes = (
        priced.event_time(lambda order: order["at_ms"], BoundedOutOfOrderness(10))
        .key_by(lambda order: order["shop"])
        .window(TumblingWindows(60))
        .aggregate(orders=Count(), euros=Sum("euros"))
    )
    return minutes.map(as_row), priced.failed


def as_row(minute: WindowResult) -> Row:
    return {"shop": minute.key, "minute_ms": minute.start_ms, **minute.value}


def plan(spark: SparkSession, orders: DataFrame) -> SparkPlan:
    """Its two outputs as DataFrames."""
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    pipeline = Pipeline("turnover")
    source: Stream[Row] = pipeline.source([], name="orders")
    minutes, failed = turnover(source)
    minutes.to([], name="minutes")
    failed.to([], name="failed")
    columns = [StructField("shop", StringType())]
    columns += [StructField(name, LongType()) for name in ("minute_ms", "orders", "euros")]
    rejected = [StructField("value", orders.schema), StructField("error", StringType())]
    outputs = {"minutes": StructType(columns), "failed": StructType(rejected)}
    return pipeline.on_spark(spark, inputs={"orders": orders}, outputs=outputs)


def some_orders(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr(
        "element_at(array('tea', 'rice', 'salt', 'gold'), int(id % 97 % 4) + 1) AS article",
        "id % 5 + 1 AS pieces",
        "concat('shop ', id % 3) AS shop",
        "1700000000000 + id * 100 AS at_ms",
    )


def main() -> None:
    if "--submitted" in sys.argv:
        from pyspark.sql import SparkSession

        # Spark's own number, 200, is for more data than this
        spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "4").getOrCreate()
    else:
        spark = local_spark()
        spark.sparkContext.setLogLevel("ERROR")
    found = plan(spark, some_orders(spark, 6_000))
    print(found.describe())
    found["minutes"].orderBy("minute_ms", "shop").show(6)
    failed = found["failed"]
    print(f"no price: {failed.count()} orders, such as {failed.first()}")
    spark.stop()


if __name__ == "__main__":
    main()
