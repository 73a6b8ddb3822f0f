"""
Spark: what a micro-batch of ours costs above Spark's own, with the streams taking turns.

    python -m benchmarks spark_turns      # needs the extra [spark]; some ten minutes on two cores

Each stream reads files of its own, and one micro-batch of each follows another, so that whatever else the
machine does meets all of them, and the JVM warms up for all. Tumbling windows of an hour with count and sum
for each key; the first micro-batch has all keys, each later one has rows for the next hundredth of them.

    ours      this package
    SQL       groupBy(key, window)
    no-op     transformWithState by as many groups, in Python, that looks at no row: what Spark's own costs

With 100 rows a micro-batch is all fixed cost, which is ours less that of the no-op. Rows of the no-op
wait 40 ms on their way by TCP, and ours do not (`worker.connection`). With 10,000 rows a micro-batch is
compared with SQL. State written is what has come new into the folder of the query's state.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncstream.runtime.spark import local_spark
from benchmarks.bench_spark import CORES, HOUR, cpu_seconds, in_sql, ours
from benchmarks.kit import table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "ts long, key long, v long"
BEGINS_MS = 1_700_000_000_000
WARM_UP = 5
TURNS = 20


class Turn(NamedTuple):
    """What a micro-batch took: by the clock, of processor time in Python and the JVM, and bytes of state."""

    ms: float
    python_ms: float
    java_ms: float
    written: int


class Nothing:
    """A stateful processor that has state and does nothing."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("state", "blob binary")

    def handleInputRows(self, key: Any, rows: Iterable[Any], timerValues: Any) -> Iterator[Any]:
        for _ in rows:
            pass
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        return iter(())

    def close(self) -> None: ...


def nothing(source: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    rows = source.withColumn("at", F.timestamp_millis("ts")).withWatermark("at", "0 seconds")
    groups = rows.selectExpr("pmod(hash(key), 4) AS number", "v").groupBy("number")
    processor: Any = Nothing()
    return groups.transformWithState(processor, "number int, v long", "append", "EventTime")


class Streamed:
    """A stream that is given one micro-batch at a time, with its files below `folder`."""

    def __init__(self, spark: SparkSession, make: Callable[[DataFrame], DataFrame], folder: Path) -> None:
        self._rows = folder / "rows"
        self._rows.mkdir(parents=True)
        self._state = folder / "checkpoint" / "state"
        self._sizes: dict[Path, int] = {}
        frame = make(spark.readStream.schema(SCHEMA).parquet(str(self._rows)))
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
        self._query = writer.start()

    def turn(self, number: int, keys: Sequence[int]) -> Turn:
        import pyarrow as pa
        from pyarrow import parquet

        stamps = [BEGINS_MS + 1000 * number + place % 1000 for place in range(len(keys))]
        rows = pa.table({"ts": stamps, "key": keys, "v": range(len(keys))})
        before = cpu_seconds()
        hidden = self._rows / f".{number:05}.parquet"  # Spark does not look at it
        parquet.write_table(rows, hidden)
        hidden.rename(self._rows / f"{number:05}.parquet")
        self._query.processAllAvailable()
        python, java = (1000 * (end - start) for start, end in zip(before, cpu_seconds(), strict=True))
        done = [progress for progress in self._query.recentProgress if progress["numInputRows"]][-1]
        sizes = {path: path.stat().st_size for path in self._state.rglob("*") if path.is_file()}
        written = sum(size for path, size in sizes.items() if self._sizes.get(path) != size)
        self._sizes = sizes
        return Turn(done["durationMs"]["triggerExecution"], python, java, written)

    def stop(self) -> None:
        self._query.stop()


def keys_of(count: int, rows: int, turns: int) -> Iterator[list[int]]:
    """The keys of each micro-batch."""
    keys = list(range(count))
    random.Random(1).shuffle(keys)
    yield [keys[place % count] for place in range(max(rows, count))]
    some = max(count // 100, 1)
    for turn in range(turns):
        yield [keys[(turn * some + place % some) % count] for place in range(rows)]


def compare(
    spark: SparkSession, ways: dict[str, Callable[[DataFrame], DataFrame]], keys: int, rows: int, turns: int
) -> None:
    found: dict[str, list[Turn]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        streams = {name: Streamed(spark, make, Path(folder, name)) for name, make in ways.items()}
        for number, mine in enumerate(keys_of(keys, rows, turns + WARM_UP)):
            for name in sorted(streams, reverse=number % 2 == 1):
                found[name].append(streams[name].turn(number, mine))
        for stream in streams.values():
            stream.stop()
    warm = {name: seen[WARM_UP + 1 :] for name, seen in found.items()}  # the first one fills the state
    lines = []
    for name, seen in warm.items():
        ms = [turn.ms for turn in seen]
        parts = [statistics.median(column) for column in zip(*seen, strict=True)]
        saved = statistics.median(other.ms / mine.ms for other, mine in zip(seen, warm["ours"], strict=True))
        mean = statistics.mean(turn.written for turn in seen) / 1e6
        costs = [f"{value:,.0f}" for value in (parts[0], min(ms), parts[1], parts[2])]
        lines.append((name, *costs, f"{mean:.2f}", f"{saved:.2f}x"))
    head = (f"{keys:,} keys, {rows:,} rows", "ms", "least", "Python CPU ms", "JVM CPU ms", "state MB")
    print(table((*head, "ours is faster"), lines) + "\n", flush=True)


def main(*, quick: bool = False) -> None:
    spark = local_spark(
        CORES,
        quiet=True,
        spark__driver__memory="4g",
        # not local_spark's own options for Java, with which it starts sooner and runs slower
        spark__driver__extraJavaOptions="-XX:+UseSerialGC",
        spark__sql__streaming__pollingDelay="100ms",
        spark__sql__streaming__noDataMicroBatches__enabled="false",  # each turn is one micro-batch
    )
    windows = partial(ours, window=HOUR)
    turns = 2 if quick else TURNS
    compare(spark, {"ours": windows, "no-op": nothing}, 10_000, 100, turns)
    for keys in (10_000,) if quick else (10_000, 100_000, 1_000_000):
        compare(spark, {"ours": windows, "SQL": partial(in_sql, window=HOUR)}, keys, 10_000, turns)
    spark.stop()


if __name__ == "__main__":
    main()
