"""What Spark has shuffled is lost while it is read, and the calls that are made again answer otherwise."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import KeyedContext, KeyedProcessFunction, Pipeline
from asyncstream.runtime.spark import failure_text, once_in_database
from asyncstream.runtime.spark.failures import failure_in
from tests.spark.cluster import run_to_the_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 300

Row = dict[str, Any]


async def assigned(row: Row) -> Row:
    """As a service may that shares out work: to another one each time."""
    return row | {"to": random.SystemRandom().randrange(16)}


class Losing(KeyedProcessFunction[Row, Row]):
    """Once, it removes what Spark has shuffled last."""

    def __init__(self, done: Path) -> None:
        self.done = done

    def process_element(self, value: Row, ctx: KeyedContext, out: Any) -> None:
        if not self.done.exists():
            self.done.touch()
            folders = os.environ["SPARK_LOCAL_DIRS"].split(",")
            files = [file for folder in folders for file in Path(folder).glob("**/shuffle_*_*_*.*")]
            last = max(int(file.name.split("_")[1]) for file in files)
            for file in files:
                if file.name.startswith(f"shuffle_{last}_"):
                    file.unlink(missing_ok=True)
        out(value)


@pytest.fixture
def four(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that shuffles into four partitions, of which it runs two at once."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "4")
    yield spark
    spark.conf.set("spark.sql.shuffle.partitions", before)


@pytest.mark.parametrize("together", [True, False], ids=["write_stream", "a table"])
def test_no_row_is_lost_or_doubled(four: SparkSession, tmp_path: Path, together: bool) -> None:
    database = tmp_path / "out.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE out (id INTEGER)")
    four.range(0, ROWS, 1, 2).write.json(str(tmp_path / "in"))

    def insert(outputs: Any, connection: Any) -> None:
        connection.executemany("INSERT INTO out VALUES (?)", outputs["out"].collect())

    def run() -> None:
        pipeline = Pipeline("lost")
        rows = pipeline.source([], name="rows").async_map(assigned, concurrency=50)
        rows.key_by(lambda row: row["to"]).process(Losing(tmp_path / "done")).to([], name="out")
        source = four.readStream.schema("id bigint").json(str(tmp_path / "in"))
        plan = pipeline.on_spark(four, inputs={"rows": source}, outputs={"out": "id bigint"}, key_groups=8)
        once = once_in_database(lambda: sqlite3.connect(database), insert if together else "out")
        writer = plan.write_stream(once) if together else plan["out"].writeStream.foreachBatch(once)
        run_to_the_end(writer, tmp_path / "checkpoint")

    told = ""
    try:
        run()
    except Exception as error:
        told = failure_text(error)
        run()
    with closing(sqlite3.connect(database)) as connection:
        found = [number for (number,) in connection.execute("SELECT id FROM out ORDER BY id")]
    assert (tmp_path / "done").exists()
    assert found == list(range(ROWS))
    assert not told or told.startswith("an executor of Spark has ended, or lost its files")
    kept = len(four.sparkContext._jsc.getPersistentRDDs())
    assert kept <= bool(told), "what is kept of a micro-batch is let go, of one that failed by Spark"


def test_lost_checkpoint_of_a_micro_batch_says_what_to_do() -> None:
    told = failure_in(
        "An error occurred while calling o1.collectToPython.\n: org.apache.spark.SparkException: Checkpoint "
        "block rdd_5_0 not found! Either the executor\n\tat org.apache.spark.A.b(A.scala:1)"
    )
    assert told.endswith("a query goes on from its checkpoint\nCheckpoint block rdd_5_0 not found")
