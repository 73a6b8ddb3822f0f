"""Sources of a pipeline as formats of a real Spark, and what writes each of their micro-batches once."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import PipelineError
from asyncstream.connectors import GlobSource, Items, JsonLinesSource, Source, SqliteSource
from asyncstream.runtime.spark import (
    once_in_database,
    once_in_delta,
    once_in_folders,
    register_source,
)
from tests.spark.cluster import columns, run_to_the_end
from tests.spark.files import add

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PRICES = "symbol string, price bigint"


def run(rows: DataFrame, write: Callable[[DataFrame, int], None], checkpoint: Path) -> None:
    """Run the stream until there is nothing more."""
    run_to_the_end(rows.writeStream.foreachBatch(write), checkpoint)


def forget(checkpoint: Path, number: int) -> None:
    """As if the driver had died before it noted down that this micro-batch is done."""
    for path in checkpoint.glob(f"commits/*{number}*"):
        path.unlink()


def filled(path: Path, rows: Sequence[tuple[str, int]]) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS prices (symbol TEXT, price INTEGER)")
        connection.executemany("INSERT INTO prices VALUES (?, ?)", rows)
    return path


def numbers(start: int, end: int) -> list[tuple[str, int]]:
    return [(f"s{number % 7}", number) for number in range(start, end)]


def test_table_is_a_stream_that_goes_on_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    path = filled(tmp_path / "shop.db", numbers(0, 50))

    def make() -> Source[Any]:
        return SqliteSource(path, "prices", batch=10)

    register_source(spark, make, schema=PRICES, max_rows_per_trigger=20)
    found: dict[int, list[Any]] = {}
    results = tmp_path / "results.db"

    def write(rows: DataFrame, number: int) -> None:
        found[number] = [tuple(row) for row in rows.collect()]
        once(rows, number)

    with closing(sqlite3.connect(results)) as connection:
        connection.execute("CREATE TABLE found (symbol TEXT, price INTEGER)")
    once = once_in_database(lambda: sqlite3.connect(results), "found")
    run(spark.readStream.format("asyncstream").load(), write, tmp_path / "checkpoint")
    assert {number: len(rows) for number, rows in found.items()} == {0: 20, 1: 20, 2: 10}
    assert [row for number in sorted(found) for row in found[number]] == numbers(0, 50)

    forget(tmp_path / "checkpoint", 2)
    last, found[2] = found[2], []
    filled(path, numbers(50, 60))  # what came since is not of that micro-batch
    run(spark.readStream.format("asyncstream").load(), write, tmp_path / "checkpoint")
    assert found[2] == last
    assert found[3] == numbers(50, 60)
    with closing(sqlite3.connect(results)) as connection:
        rows = connection.execute("SELECT symbol, price FROM found ORDER BY price").fetchall()
    assert rows == numbers(0, 60), "each micro-batch is in the database once"


def test_files_are_read_in_parts_and_micro_batches_have_folders(spark: SparkSession, tmp_path: Path) -> None:
    for name in "ab":
        add(tmp_path / f"{name}.jsonl", [{"name": name, "v": v} for v in range(3)])
    pattern = str(tmp_path / "*.jsonl")

    def make() -> Source[Any]:
        return GlobSource(pattern, JsonLinesSource)

    register_source(spark, make, schema="name string, v bigint", name="notes")
    bounded = spark.read.format("notes").load()
    assert bounded.rdd.getNumPartitions() == 2
    expected = [(name, v) for name in "ab" for v in range(3)]
    assert sorted(map(tuple, bounded.collect())) == expected

    once = once_in_folders(str(tmp_path / "out"))
    parts: list[int] = []

    def write(rows: DataFrame, number: int) -> None:
        parts.append(rows.rdd.getNumPartitions())
        once(rows, number)

    for _ in range(2):
        run(spark.readStream.format("notes").load(), write, tmp_path / "checkpoint")
        forget(tmp_path / "checkpoint", 0)
    assert parts == [2, 2], "one for each file; and again as it was"
    again = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(map(tuple, again.select("name", "v").collect())) == expected
    assert {row.batch for row in again.select("batch").collect()} == {0}


def test_source_without_positions_is_bounded_only(spark: SparkSession, tmp_path: Path) -> None:
    def counted() -> Iterator[Any]:
        for number in range(5):
            yield {"v": number, "at": datetime(2026, 5, number + 1, tzinfo=UTC)}

    register_source(spark, lambda: Items(counted), schema="v bigint, at timestamp", name="counted")
    found = [tuple(row) for row in spark.read.format("counted").load().selectExpr("v", "day(at)").collect()]
    assert found == [(number, number + 1) for number in range(5)]
    stream = spark.readStream.format("counted").load()
    with pytest.raises(Exception, match="'counted': the source cannot be read again from a position"):
        run(stream, lambda rows, number: None, tmp_path)
    with pytest.raises(Exception, match="'counted' can only be read"):
        spark.range(1).write.format("counted").mode("append").save()
    with pytest.raises(Exception, match="'counted' can only be read"):
        run_to_the_end(
            spark.readStream.format("rate").load().writeStream.format("counted"), tmp_path / "other"
        )
    with pytest.raises(Exception, match="'counted' has no option 'pace'"):
        spark.read.format("counted").option("pace", "5").load().collect()


def test_source_that_cannot_be_sent_is_refused_with_what_to_do(spark: SparkSession) -> None:
    lock = threading.Lock()
    with pytest.raises(
        PipelineError, match=r"make: the function cannot be sent .*'_thread.lock'.* make inside"
    ):
        register_source(spark, lambda: Items([lock]), schema="id int")


def test_a_query_begins_where_another_has_ended(spark: SparkSession, tmp_path: Path) -> None:
    path = filled(tmp_path / "shop.db", numbers(0, 20))
    register_source(spark, lambda: SqliteSource(path, "prices"), schema=PRICES)
    ended = spark.readStream.format("asyncstream").load().writeStream.format("noop")
    query = ended.option("checkpointLocation", str(tmp_path / "one")).trigger(availableNow=True).start()
    assert query.awaitTermination(100)
    offset = next(each for each in query.recentProgress if each["numInputRows"])["sources"][0]["endOffset"]
    filled(path, numbers(20, 25))
    found: list[int] = []
    rest = spark.readStream.format("asyncstream").option("startingOffsets", offset).load()
    run(rest, lambda rows, number: found.extend(row.price for row in rows.collect()), tmp_path / "two")
    assert found == [20, 21, 22, 23, 24]


def test_delta_is_told_query_and_number(spark: SparkSession, tmp_path: Path) -> None:
    """Delta's jar is not there; what its writer is given is what Delta's documents ask for."""
    from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage
    from pyspark.sql.types import LongType

    log = str(tmp_path / "log")

    class Delta(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "delta"

        def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
            return Writer(self.options, overwrite)

    class Writer(DataSourceWriter):  # type: ignore[misc]
        def __init__(self, options: Mapping[str, str], overwrite: bool) -> None:
            given = [options[name] for name in ("txnAppId", "txnVersion", "path")]
            self.said = f"{' '.join(given)} {overwrite}\n"

        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            return WriterCommitMessage()

        def commit(self, messages: Any) -> None:
            with open(log, "a") as file:
                file.write(self.said)

    spark.dataSource.register(Delta)
    register_source(spark, lambda: Items([1, 2]), schema=columns(v=LongType()), name="two")
    run(spark.readStream.format("two").load(), once_in_delta("s3://x/t", query="shop"), tmp_path / "cp")
    assert Path(log).read_text() == "shop 0 s3://x/t False\n"
