"""
What Spark has shuffled is lost while it is read, and calls that are made again answer otherwise. A program,
for a local Spark takes itself for the lost executor. Writes what came of it.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncstream import KeyedContext, KeyedProcessFunction, Pipeline
from asyncstream.runtime.spark import failure_text, once_in_database
from tests.spark.cluster import run_to_the_end, session

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


def lose(spark: SparkSession, folder: Path, together: bool) -> dict[str, Any]:
    """
    What was said of a failure, if there was one; which rows are in the table; how much Spark still keeps.

    Args:
        together: with `write_stream` and a function; else with the name of a table.
    """
    folder.mkdir()
    database = folder / "out.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE out (id INTEGER)")
    spark.range(0, ROWS, 1, 2).write.json(str(folder / "in"))

    def insert(outputs: Any, connection: Any) -> None:
        connection.executemany("INSERT INTO out VALUES (?)", outputs["out"].collect())

    def run() -> None:
        pipeline = Pipeline("lost")
        rows = pipeline.source([], name="rows").async_map(assigned, concurrency=50)
        rows.key_by(lambda row: row["to"]).process(Losing(folder / "done")).to([], name="out")
        source = spark.readStream.schema("id bigint").json(str(folder / "in"))
        plan = pipeline.on_spark(spark, inputs={"rows": source}, outputs={"out": "id bigint"}, key_groups=8)
        once = once_in_database(lambda: sqlite3.connect(database), insert if together else "out")
        writer = plan.write_stream(once) if together else plan["out"].writeStream.foreachBatch(once)
        run_to_the_end(writer, folder / "checkpoint")

    def kept() -> int:
        return len(spark.sparkContext._jsc.getPersistentRDDs())

    told, before = "", kept()
    try:
        run()
    except Exception as error:
        told = failure_text(error)
        run()
    with closing(sqlite3.connect(database)) as connection:
        found = [number for (number,) in connection.execute("SELECT id FROM out ORDER BY id")]
    is_lost = (folder / "done").exists()
    return {"told": told, "found": found, "is_lost": is_lost, "kept": kept() - before}


def main() -> None:
    folder = Path(sys.argv[1])
    spark = session()
    spark.conf.set("spark.sql.shuffle.partitions", "4")  # of which it runs two at once
    results = [lose(spark, folder / name, name == "together") for name in ("together", "table")]
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
