"""A stream that runs on does not grow, and a key with half of all rows burdens its own partition only."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import BoundedOutOfOrderness, KeyedContext, KeyedProcessFunction, Pipeline, Stream
from asyncstream.runtime.spark.worker.group_log import LEAST_BYTES, TAIL_BYTES
from asyncstream.windowing import Count, Sum, TumblingWindows
from tests.spark.cluster import columns
from tests.spark.processes import workers_of_this_process

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MICRO_BATCHES = int(os.environ.get("ASYNCSTREAM_BATCHES", "36"))
WARM = 12
"""Micro-batches after which all that is open is there, and each worker has seen all of it."""

GROUPS = 4

LAST = 9
"""Micro-batches whose figures are compared, of three windows each."""


def key_of(row: dict[str, Any]) -> str:
    """Half of all rows have one key."""
    return "hot" if row["value"] % 2 == 0 else f"cold {row['value'] % 199}"


def windows(rows: DataFrame) -> DataFrame:
    from pyspark.sql.types import LongType, StringType

    pipeline = Pipeline("long")
    source: Stream[Any] = pipeline.source([], name="rows")
    timed = source.event_time(lambda row: row["ts"], BoundedOutOfOrderness(0))
    counts = timed.key_by(key_of).window(TumblingWindows(3)).aggregate(n=Count(), total=Sum("value"))
    counts.map(lambda found: {"key": found.key, "start_ms": found.start_ms, **found.value}).to([], name="out")
    schema = columns(key=StringType(), start_ms=LongType(), n=LongType(), total=LongType())
    plan = pipeline.on_spark(
        rows.sparkSession, inputs={"rows": rows}, outputs={"out": schema}, key_groups=GROUPS
    )
    return plan["out"]


def resident_bytes() -> int:
    """Of the largest Python worker."""
    sizes = [0]
    for pid in workers_of_this_process():
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        sizes += [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS")]
    return max(sizes)


@pytest.mark.timeout(600 + 5 * MICRO_BATCHES)
def test_a_stream_that_runs_on_keeps_no_more_than_is_open(spark: SparkSession, tmp_path: Path) -> None:
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 200)
    reader = reader.option("numPartitions", 1).option("advanceMillisPerBatch", 1000)
    rows = reader.load().selectExpr("unix_millis(timestamp) AS ts", "value")
    settings = {
        "spark.sql.shuffle.partitions": 1,
        "spark.sql.streaming.numRecentProgressUpdates": MICRO_BATCHES,
    }
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    used: dict[int, int] = {}
    try:
        writer = windows(rows).writeStream.format("noop")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        while (now := last_of(query)) < MICRO_BATCHES:
            assert query.isActive, query.exception()
            used[now] = resident_bytes()
            time.sleep(0.1)
        progress = query.recentProgress
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
        query.stop()
    states = {each["batchId"]: each["stateOperators"][0] for each in progress}
    spans = (range(WARM, WARM + LAST), range(MICRO_BATCHES - LAST, MICRO_BATCHES))
    warm, late = ([states[number] for number in span if number in states] for span in spans)
    # each group has a head and the chunks of a small log, of which a micro-batch writes the last one at most
    chunks = 2 * LEAST_BYTES // TAIL_BYTES + 1
    assert max(each["numRowsTotal"] for each in late) <= GROUPS * (1 + chunks)
    assert max(each["numRowsUpdated"] for each in late) <= GROUPS * 2
    sizes = [max(each["customMetrics"]["rocksdbSstFileSize"] for each in some) for some in (warm, late)]
    assert sizes[1] < 1.5 * sizes[0] + 100_000, sizes
    held = [max(size for number, size in used.items() if number in span) for span in spans]
    assert held[1] < held[0] + 8 * 2**20, held
    # each window has three micro-batches, and in each micro-batch all keys
    assert sum(each["sink"]["numOutputRows"] for each in progress) > 100 * (MICRO_BATCHES // 3 - 2)


def last_of(query: Any) -> int:
    """The number of the last micro-batch that has ended."""
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


class Counting(KeyedProcessFunction[Any, Any]):
    """Tells of each row in which task its key is."""

    def process_element(self, value: Any, ctx: KeyedContext, out: Any) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        out({"key": ctx.key, "partition": context.partitionId()})


def test_a_hot_key_burdens_its_own_partition_only(spark: SparkSession) -> None:
    from pyspark.sql.types import LongType, StringType

    count, partitions = 4_000, 4
    pipeline = Pipeline("hot")
    source: Stream[Any] = pipeline.source([], name="rows")
    source.key_by(key_of).process(Counting()).to([], name="out")
    rows = spark.range(count).withColumnRenamed("id", "value")
    schema = columns(key=StringType(), partition=LongType())
    plan = pipeline.on_spark(
        spark, inputs={"rows": rows}, outputs={"out": schema}, partitions=partitions, key_groups=32
    )
    found = plan["out"].groupBy("partition", "key").count().collect()
    of_partitions = Counter[int]()
    for partition, key, rows_of_key in found:
        of_partitions[partition] += 0 if key == "hot" else rows_of_key
    assert [rows_of_key for _, key, rows_of_key in found if key == "hot"] == [count // 2]
    assert sum(of_partitions.values()) == count // 2
    fair = count // 2 / partitions
    assert all(0.6 * fair < of_partitions[number] < 1.5 * fair for number in range(partitions)), of_partitions
