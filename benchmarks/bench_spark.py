"""
Spark: rows per second through `enrich` and through windows, and what others do in the same session.

    python -m benchmarks spark            # needs the extra [spark]; some five minutes on two cores

Enrichment, of a row of one number that comes back as it is, and of a row of five columns (text, three
numbers, a timestamp) that gets one more. The async function never waits: only the machinery is measured. Two
million rows a task are a few seconds: the 0.1 s that Spark takes to begin and end any job hardly count. What
they are is printed as the cost of a job of one row a task.

    enrich            this package, inside mapInArrow
    gather            what is written today: mapInPandas, and a task per row in asyncio.gather for each batch
    identity          mapInArrow that gives back what it gets: what Spark and the way through Python cost
    without Spark     the very code of a task of `enrich`, on the same Arrow batches, in this process

Rows a second are given per core, which for Spark means per task that may run at once. One task at a time
(`local[1]`), on a machine of two cores, leaves the other core to the JVM, which reads, converts and writes
meanwhile. With as many tasks as cores (`local[2]`) the JVM takes its time from the same cores. CPU time shows
how much that is, and hardly sees what else the machine does; the last column compares by it. There enrich
cannot reach 1, for what identity costs comes on top: the less the code of a task costs, the lower the ratio.

Then calls that take 10 ms, a thousand of them at once in each task, and 5 ms, two hundred at once: 100,000
and 40,000 rows a second and task at best; and what so many coroutines reach that call one after the other,
in a process for each task, without Spark: event loops wait by the millisecond.

Windows: a stream of micro-batches of 100,000 rows, tumbling windows with count and sum for each key; the same
in Spark SQL, and with a state call for each row, in batches of a tenth. Sparse: 200,000 keys have an open
window, and a micro-batch has rows for 5 % of them; the same with one blob for each key. Each runs in turn
with the others, in one order and then in the other, after a round that does not count: in a JVM that has just
begun, whichever comes first is the slowest. Nor do the first two batches of each count, in which sparse state
is filled; the median of the others does.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import uvloop

from asyncstream import BoundedOutOfOrderness, Pipeline, Stream
from asyncstream.runtime.spark import enrich, local_spark
from asyncstream.runtime.spark.enrich import async_step
from asyncstream.runtime.spark.stages import stages_of
from asyncstream.runtime.spark.worker.operators import Terms
from asyncstream.runtime.spark.worker.outputs import OutputTask
from asyncstream.runtime.spark.worker.tasks import StageTask, run_stage
from asyncstream.windowing import Count, Sum, TumblingWindows
from benchmarks.by_key import ByKey, result_type
from benchmarks.kit import table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

CORES = 2
ROWS = 2_000_000
FEW = 5
"""What takes long for a row, or has no job of Spark's to begin, gets the fifth part of them."""
ROWS_PER_BATCH = 100_000
TURNS = 3
CALLING = 4
"""Seconds for which calls that take a while are made, at best."""
WARM_UP = 2
WINDOW = 10
HOUR = 3_600
SPARSE_KEYS = 200_000
SPARSE_ROWS = 10_000

Row = dict[str, Any]
Function = Callable[[Row], Awaitable[Row]]


async def at_once(row: Row) -> Row:
    return row


async def with_seats(row: Row) -> Row:
    return row | {"seats": 180}


async def after(seconds: float, row: Row) -> Row:
    await asyncio.sleep(seconds)
    return row


def pool_rate(seconds: float, concurrency: int, count: int) -> float:
    """Rows a second of coroutines that do no more than call, under the event loop of a Spark worker."""

    async def calling(rows: Iterator[int]) -> None:
        for row in rows:
            await after(seconds, {"id": row})

    async def all_of_them() -> None:
        rows = iter(range(count))
        await asyncio.gather(*(calling(rows) for _ in range(concurrency)))

    began = time.perf_counter()
    uvloop.run(all_of_them())
    return count / (time.perf_counter() - began)


def gather_each_batch(fn: Function, batches: Iterator[Any]) -> Iterator[Any]:
    import pandas as pd

    async def all_of(rows: list[Row]) -> list[Row]:
        return await asyncio.gather(*(fn(row) for row in rows))

    for batch in batches:
        yield pd.DataFrame(asyncio.run(all_of(batch.to_dict("records"))))


def identity(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def flights(numbers: DataFrame) -> DataFrame:
    return numbers.selectExpr(
        "'N' || id % 5000 AS tailnum",
        "id AS number",
        "CAST(id % 1440 AS INT) AS minute",
        "id / 7 AS distance",
        "timestamp_millis(1700000000000 + id) AS at",
    )


def enrichment(*, quick: bool) -> None:
    for tasks in (1, CORES):
        # not local_spark's own options for Java, with which it starts sooner and runs slower
        spark = local_spark(tasks, spark__driver__extraJavaOptions="-XX:+UseSerialGC")
        enrich_on(spark, tasks, ROWS // 10 if quick else ROWS)
        spark.stop()


def enrich_on(spark: SparkSession, tasks: int, count: int) -> None:
    from pyspark.sql.types import IntegerType

    print(f"#### Enrichment, local[{tasks}], {count:,} rows a task\n")

    def numbers(of_task: int) -> DataFrame:
        return spark.range(0, of_task * tasks, 1, tasks)

    schema = numbers(1).schema
    compare_on(numbers, at_once, schema, tasks, count, "one number")
    more = flights(numbers(1)).schema.add("seats", IntegerType())
    compare_on(
        lambda of_task: flights(numbers(of_task)),
        with_seats,
        more,
        tasks,
        count,
        "five columns, and one more",
    )
    for seconds, concurrency in ((0.01, 1000), (0.005, 200)):
        best = concurrency / seconds
        some = numbers(int(count / ROWS * best * CALLING))
        slow = enrich(some, partial(after, seconds), schema=schema, concurrency=concurrency)
        took = costs({"enrich": partial(drain, slow)})["enrich"].seconds
        rate = some.count() / tasks / took
        with get_context("spawn").Pool(tasks) as pool:
            alone = pool.starmap(pool_rate, [(seconds, concurrency, some.count() // tasks)] * tasks)
        print(
            f"{1000 * seconds:g} ms, {concurrency:,} at once: {rate:,.0f} rows/s and task, of {best:,.0f}; "
            f"coroutines alone {statistics.median(alone):,.0f}"
        )
    print(flush=True)


def compare_on(
    rows_of: Callable[[int], DataFrame], fn: Function, schema: StructType, tasks: int, count: int, title: str
) -> None:
    """
    Prints what a row costs in each of the ways.

    Args:
        rows_of: makes so many rows for each task.
    """
    rows, fewer, single = rows_of(count), rows_of(count // FEW), rows_of(1)
    batches = fewer.toArrow().to_batches(max_chunksize=10_000)
    found = costs(
        {
            "enrich": lambda: drain(enrich(rows, fn, schema=schema)),
            "gather": lambda: drain(fewer.mapInPandas(partial(gather_each_batch, fn), schema)),
            "identity": lambda: drain(rows.mapInArrow(identity, rows.schema)),
            "without Spark": lambda: without_spark(fn, schema, batches),
        }
    )
    jobs = costs(
        {
            "enrich": lambda: drain(enrich(single, fn, schema=schema)),
            "identity": lambda: drain(single.mapInArrow(identity, rows.schema)),
        }
    )
    # the JVM is never quite idle
    alone = found["without Spark"] = found["without Spark"]._replace(java=0.0)
    of_all = {name: count * tasks // (1 if name in jobs else FEW) for name in found}
    by_clock, by_cpu = (cost / of_all["without Spark"] for cost in (alone.seconds, alone.python))
    lines = []
    for name, cost in found.items():
        seconds, python, java = (part / of_all[name] for part in cost)
        parallel = seconds if cost is alone else seconds * tasks
        parts = [f"{part * 1e6:.2f}" for part in (python, java)]
        ratios = f"{by_clock / parallel:.2f}x", f"{by_cpu / (python + java):.2f}x"
        lines.append((name, f"{1 / parallel:,.0f}", ratios[0], *parts, ratios[1]))
    head = (title, "rows/s and core", "of without Spark", "Python CPU us", "JVM CPU us", "by CPU")
    print(table(head, lines))
    told = ", ".join(f"{name} {1000 * cost.seconds:.0f} ms" for name, cost in jobs.items())
    print(f"a job of one row a task: {told}\n", flush=True)


def drain(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


def without_spark(fn: Function, schema: StructType, batches: list[Any]) -> None:
    graph, _ = async_step(fn, "enrich", {}, flat=False)
    (stage,) = stages_of(graph, streaming=False)
    route = stage.exits[0].number
    task = StageTask(
        f"without Spark {fn}",
        stage,
        Terms(1, frozenset({route}), streaming=False),
        source=tuple(entry.number for entry in stage.entries),
        output=OutputTask("results", route, schema),
    )
    written = sum(batch.num_rows for batch in run_stage(task, iter(batches)))
    assert written == sum(batch.num_rows for batch in batches)


class Cost(NamedTuple):
    """Seconds by the clock, and of processor time in Python and in the JVM."""

    seconds: float
    python: float
    java: float


def costs(ways: Mapping[str, Callable[[], None]]) -> dict[str, Cost]:
    """The medians of some turns, after one to warm up."""
    turns: dict[str, list[tuple[float, ...]]] = {name: [] for name in ways}
    for turn in range(TURNS + 1):
        for name, run in ways.items():
            before = time.perf_counter(), *cpu_seconds()
            run()
            after = time.perf_counter(), *cpu_seconds()
            if turn:
                turns[name].append(tuple(end - start for start, end in zip(before, after, strict=True)))
    return {name: Cost(*map(statistics.median, zip(*seen, strict=True))) for name, seen in turns.items()}


def cpu_seconds() -> tuple[float, float]:
    """Of this process and those below it: what Python has used, and the JVM. Zero where there is no /proc."""
    programs: dict[int, tuple[bool, float]] = {}
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            program, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:  # it has ended
            continue
        fields, pid = rest.split(), int(stat.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        programs[pid] = program == "java", sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    used = [0.0, 0.0]
    below = [os.getpid()]
    while below:
        pid = below.pop()
        below += children.get(pid, [])
        is_java, seconds = programs.get(pid, (False, 0.0))
        used[is_java] += seconds
    return used[0], used[1]


def source(spark: SparkSession, keys: int, rows: int) -> DataFrame:
    return generated(spark, rows).selectExpr("ts", f"(value * 2654435761) % {keys} AS key", "value AS v")


def sparse_source(spark: SparkSession) -> DataFrame:
    """All keys in the first micro-batch, then one part of them after the other."""
    copies = SPARSE_KEYS // SPARSE_ROWS
    filling = f"explode(if(value < {SPARSE_ROWS}, sequence(0, {copies - 1}), array(0))) AS copy"
    numbers = generated(spark, SPARSE_ROWS).selectExpr("ts", "value AS v", filling)
    number = f"(v + {SPARSE_ROWS} * copy)"
    return numbers.selectExpr("ts", f"({number} * 2654435761) % {SPARSE_KEYS} AS key", "v")


def generated(spark: SparkSession, rows: int) -> DataFrame:
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    reader = reader.option("numPartitions", CORES).option("advanceMillisPerBatch", 5_000)
    return reader.load().selectExpr("unix_millis(timestamp) AS ts", "value")


def wide(source: DataFrame) -> DataFrame:
    """With columns that nobody looks at."""
    texts = [f"concat('some text of number ', v % {7 + number}) AS text_{number}" for number in range(8)]
    numbers = [f"v * {number} / 3.0 AS number_{number}" for number in range(6)]
    return source.selectExpr("*", *texts, *numbers)


def ours(source: DataFrame, window: int = WINDOW) -> DataFrame:
    from pyspark.sql.types import LongType, StructField, StructType

    def columns(*names: str) -> list[StructField]:
        return [StructField(name, LongType()) for name in names]

    pipeline = Pipeline()
    source_rows: Stream[Any] = pipeline.source([], name="rows")
    rows = source_rows.event_time(lambda row: row["ts"], BoundedOutOfOrderness(0))
    keyed = rows.key_by(lambda row: row["key"])
    keyed.window(TumblingWindows(window)).aggregate(n=Count(), total=Sum("v")).to([], name="out")
    value = StructField("value", StructType(columns("n", "total")))
    schema = StructType([*columns("key", "start_ms", "end_ms"), value])
    plan = pipeline.on_spark(source.sparkSession, inputs={"rows": source}, outputs={"out": schema})
    return plan["out"]


def in_sql(source: DataFrame, window: int = WINDOW) -> DataFrame:
    from pyspark.sql import functions as F

    rows = source.withColumn("at", F.timestamp_millis("ts")).withWatermark("at", "0 seconds")
    groups = rows.groupBy("key", F.window("at", f"{window} seconds"))
    return groups.agg(F.count("*").alias("n"), F.sum("v").alias("total"))


def by_key(source: DataFrame, window: int = WINDOW, *, at_once: bool) -> DataFrame:
    from pyspark.sql import functions as F

    rows = source.withColumn("at", F.timestamp_millis("ts")).withWatermark("at", "0 seconds")
    processor: Any = ByKey(1000 * window, at_once=at_once)
    keyed = rows.select("key", "ts", "v").groupBy("key")
    return keyed.transformWithState(processor, result_type(), "append", "EventTime")


def windows(spark: SparkSession, batches: int) -> None:
    for keys in (1_000, 50_000):
        rows, tenth = source(spark, keys, ROWS_PER_BATCH), source(spark, keys, ROWS_PER_BATCH // 10)
        made = {"ours": ours(rows), "SQL": in_sql(rows), "call for each row": by_key(tenth, at_once=False)}
        compared(f"{keys:,} keys, {ROWS_PER_BATCH:,} rows a batch", made, batches)
    rows = wide(source(spark, 1_000, ROWS_PER_BATCH))
    compared("1,000 keys, rows of 17 columns", {"ours": ours(rows), "SQL": in_sql(rows)}, batches)
    spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1))
    for factor in (1, 4):
        rows = source(spark, 1_000, factor * ROWS_PER_BATCH)
        title = f"1,000 keys, {factor * ROWS_PER_BATCH:,} rows a batch, their bytes not measured"
        compared(title, {"ours": ours(rows), "SQL": in_sql(rows)}, batches)
    spark.conf.unset("spark.sql.execution.arrow.maxBytesPerBatch")


def compared(title: str, made: Mapping[str, DataFrame], batches: int) -> None:
    found = in_turn(made, batches)
    print(f"tumbling count and sum, {title}, rows/s")
    for name, rate in found.items():
        print(f"  {name:<20}{rate:>12,.0f}   {rate / found['SQL']:.2f} of Spark SQL")


def sparse_state(spark: SparkSession, batches: int) -> None:
    rows = sparse_source(spark)
    made = {"ours": ours(rows, HOUR), "blob for each key": by_key(rows, HOUR, at_once=True)}
    found = {name: SPARSE_ROWS / rate for name, rate in in_turn(made, batches).items()}
    print(f"sparse state, {SPARSE_KEYS:,} keys, {SPARSE_ROWS:,} of them in a batch, seconds a batch")
    for name, seconds in found.items():
        share = seconds / found["blob for each key"]
        print(f"  {name:<20}{seconds:>12.2f}   {share:.2f} of a blob for each key")


def in_turn(made: Mapping[str, DataFrame], batches: int) -> dict[str, float]:
    """The median of each, in rows a second."""
    names = list(made)
    for name in names:
        stream(made[name], batches)
    found: dict[str, list[float]] = {name: [] for name in names}
    for name in (*names, *reversed(names)):
        found[name] += stream(made[name], batches)
    return {name: statistics.median(rates) for name, rates in found.items()}


def stream(df: DataFrame, batches: int) -> list[float]:
    """Rows a second, of each micro-batch but the first ones."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:  # Spark may still write
        writer = df.writeStream.format("noop").outputMode("append").option("checkpointLocation", checkpoint)
        query = writer.start()
        while query.lastProgress is None or query.lastProgress["batchId"] < batches:
            query.awaitTermination(1)
        progress = query.recentProgress
        query.stop()
    warm = [each for each in progress if each["numInputRows"] and each["batchId"] >= WARM_UP]
    return [1000 * each["numInputRows"] / each["durationMs"]["triggerExecution"] for each in warm]


def keyed(*, quick: bool) -> None:
    spark = local_spark(
        CORES, spark__sql__streaming__stateStore__rocksdb__changelogCheckpointing__enabled="true"
    )
    spark.sparkContext.setLogLevel("OFF")  # a stream that is stopped complains
    batches = 4 if quick else 8
    windows(spark, batches)
    sparse_state(spark, batches)
    spark.stop()


def main(*, quick: bool = False) -> None:
    for part in (enrichment, keyed):  # each with a JVM of its own, which takes its options when it starts
        process = get_context("spawn").Process(target=part, kwargs={"quick": quick})
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(process.exitcode)


if __name__ == "__main__":
    main()
