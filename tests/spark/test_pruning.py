"""Which columns Spark reads for a pipeline: no session, no Java, but for the last test."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import (
    BoundedOutOfOrderness,
    Pipeline,
    PunctuatedWatermarks,
    SessionWindows,
    SlidingWindows,
    Stream,
    TumblingWindows,
)
from asyncstream.runtime.spark.pruning import columns_read, pruned
from asyncstream.windowing import (
    AggregateFunction,
    Collect,
    Count,
    CountEvictor,
    DynamicSessionWindows,
    First,
    Last,
    Mean,
    Sum,
)
from tests.spark.cluster import columns
from tests.spark.fake_spark import StandIn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from asyncstream.runtime.spark import SparkPlan

Define = Callable[[Stream[Any]], Any]

TIMED = BoundedOutOfOrderness(1)


def read(define: Define) -> frozenset[str] | None:
    pipeline = Pipeline()
    define(pipeline.source([], name="rows"))
    return columns_read(pipeline._graph, "rows")


def keyed(rows: Stream[Any], key: Any = "user") -> Any:
    return rows.event_time("at", TIMED).key_by(key)


def counted(rows: Stream[Any]) -> Any:
    return keyed(rows).window(TumblingWindows(60)).aggregate(n=Count()).to([])


class Largest(AggregateFunction[Any, Any]):
    """Looks at whatever it likes."""

    def create(self) -> Any:
        return None

    def add(self, accumulator: Any, value: Any) -> Any:
        return max(accumulator or 0, value["n"])

    def result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, accumulator: Any, other: Any) -> Any:
        return max(accumulator or 0, other or 0)


class Doubled(Sum):
    def add(self, accumulator: Any, value: Any) -> Any:
        return super().add(accumulator, value) + value["m"]


def two_ways(rows: Stream[Any]) -> None:
    counted(rows)
    keyed(rows, "item").window(SessionWindows(5)).aggregate(total=Sum("price"), last=Last("name")).to([])


def several_keys(rows: Stream[Any]) -> None:
    keyed(rows, ("a", "b")).window(TumblingWindows(1)).aggregate(Count()).to([])


def mapped(rows: Stream[Any]) -> None:
    kept = rows.filter(lambda row: row["kind"] == "sale").map(lambda row: (row["at"], row["user"]))
    kept.map(str).to([])


def looked_at(rows: Stream[Any]) -> None:
    counted(rows)
    rows.filter(lambda row: row["kind"]).to([])


def late(rows: Stream[Any]) -> None:
    windows = keyed(rows).window(TumblingWindows(60)).aggregate(n=Count())
    windows.to([])
    windows.late.to([])


def failed(told: Any) -> Define:
    def define(rows: Stream[Any]) -> None:
        kept = rows.filter(lambda row: row["kind"] == "sale", on_error="route")
        kept.failed.map(told).to([])
        counted(kept)

    return define


def united(rows: Stream[Any]) -> None:
    counted(rows.filter(lambda row: row["a"]).union(rows.filter(lambda row: row["b"])))


def aggregated(*parts: Any, window: Any = None, **named: Any) -> Define:
    def define(rows: Stream[Any]) -> None:
        keyed(rows).window(window or SlidingWindows(60, 10)).aggregate(*parts, **named).to([])

    return define


KNOWN: list[tuple[Define, set[str]]] = [
    (counted, {"at", "user"}),
    (two_ways, {"at", "user", "item", "price", "name"}),
    (mapped, {"kind", "at", "user"}),
    (united, {"a", "b", "at", "user"}),
    (aggregated(Mean("n")), {"at", "user", "n"}),
    (aggregated(Collect(("n", "m"))), {"at", "user", "n", "m"}),
    (aggregated(first=First(lambda row: row["n"]["deep"])), {"at", "user", "n"}),
    (aggregated(n=Count("n"), window=SessionWindows(60)), {"at", "user", "n"}),
    (
        lambda rows: keyed(rows, ("a", "b")).window(TumblingWindows(1)).aggregate(Count()).to([]),
        {"at", "a", "b"},
    ),
]

UNKNOWN: list[Define] = [
    lambda rows: rows.to([]),
    lambda rows: keyed(rows).reduce(lambda a, b: a).to([]),
    looked_at,
    late,
    aggregated(Largest()),
    aggregated(Doubled("n")),
    aggregated(each=Collect()),
    aggregated(Sum(lambda row: row.get("n"))),
    aggregated(Count(), window=DynamicSessionWindows(lambda row: row["gap"])),
    lambda rows: keyed(rows).window(TumblingWindows(1)).evictor(CountEvictor(1)).aggregate(Count()).to([]),
    lambda rows: counted(rows.event_time("at", PunctuatedWatermarks(lambda row, at: row["mark"]))),
    lambda rows: rows.event_time("at", TIMED, on_error="route").failed.to([]),
    failed("value"),
    failed(lambda call: 1),
]


@pytest.mark.parametrize(("define", "columns"), KNOWN)
def test_columns_that_a_pipeline_looks_at_are_told(define: Define, columns: set[str]) -> None:
    assert read(define) == frozenset(columns)


@pytest.mark.parametrize("define", UNKNOWN)
def test_rows_that_may_be_looked_at_as_a_whole_keep_all_columns(define: Define) -> None:
    assert read(define) is None


def frame_of(*names: str) -> Any:
    from pyspark.sql.types import LongType

    return StandIn(1).stream([], columns(**dict.fromkeys(names, LongType())))


@pytest.mark.parametrize(
    ("names", "wanted", "left"),
    [
        (("c", "b", "a"), {"a", "c"}, ["c", "a"]),
        (("a", "b"), None, ["a", "b"]),
        (("a", "b"), set(), ["a", "b"]),
        (("a", "b"), {"a", "missing"}, ["a", "b"]),
        (("a", "A", "b"), {"a"}, ["a", "A", "b"]),
        (("a", "b.c"), {"a"}, ["a"]),
        (("a", "b.c"), {"b.c"}, ["a", "b.c"]),
        (("a", "b`c"), {"b`c"}, ["a", "b`c"]),
        (("a", "*"), {"*"}, ["a", "*"]),
        (("a", "_corrupt_record"), {"_corrupt_record"}, ["a", "_corrupt_record"]),
    ],
)
def test_columns_remain_where_names_do_not_tell_them_apart(
    names: tuple[str, ...], wanted: set[str] | None, left: list[str]
) -> None:
    assert pruned(frame_of(*names), None if wanted is None else frozenset(wanted)).schema.names == left


def totals(rows: Stream[Any], found: list[Any]) -> None:
    """Looks at four columns of the rows below."""
    kept = rows.filter(lambda row: row["kind"] != "test")
    keyed(kept).window(TumblingWindows(1)).aggregate(n=Count(), total=Sum("n")).to(found, name="out")


ROWS: list[dict[str, Any]] = [
    {"at": 100 * number, "user": number % 7, "kind": "test" if number % 5 == 0 else "sale", "n": number}
    for number in range(300)
]
WIDE = [{**row, "page": f"<p>{row}</p>", "score": row["n"] / 3, "tags": ["a", "b"]} for row in ROWS]


def totals_on(frame: DataFrame) -> SparkPlan:
    pipeline = Pipeline()
    totals(pipeline.source([], name="rows"), [])
    value = "struct<n: bigint, total: bigint>"
    schema = f"key bigint, start_ms bigint, end_ms bigint, value {value}"
    return pipeline.on_spark(frame.sparkSession, inputs={"rows": frame}, outputs={"out": schema})


def expected() -> list[tuple[Any, ...]]:
    pipeline, found = Pipeline(), list[Any]()
    totals(pipeline.source(ROWS, name="rows"), found)
    asyncio.run(pipeline.run())
    return sorted((result.key, result.start_ms, *result.value.values()) for result in found)


def test_spark_reads_no_other_columns(spark: SparkSession, tmp_path: Path) -> None:
    spark.createDataFrame(WIDE).write.parquet(str(tmp_path / "rows"))
    frame = spark.read.parquet(str(tmp_path / "rows"))
    out = totals_on(frame)["out"]
    read_columns = re.findall(r"ReadSchema: struct<(.*)>", out._jdf.queryExecution().toString())
    assert [set(re.findall(r"(\w+):", each)) for each in read_columns] == [{"at", "user", "kind", "n"}]
    found = sorted((row.key, row.start_ms, row.value.n, row.value.total) for row in out.collect())
    assert found == expected()


def test_row_in_which_something_is_wrong_is_seen_by_a_name_that_its_reader_has(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark looks for it in the columns that it reads only."""
    (tmp_path / "rows.json").write_text('{"a": 1, "b": 2}\n{"a": 2, "b": "x"}\n')
    for read in (spark.read, spark.readStream):
        reader = read.schema("a int, b int, bad string")
        plain = reader.json(str(tmp_path))
        assert pruned(plain, frozenset({"a", "bad"})).columns == ["a", "bad"]
        named = reader.option("columnNameOfCorruptRecord", "bad").json(str(tmp_path))
        assert pruned(named.where("a > 0"), frozenset({"a", "bad"})).columns == ["a", "b", "bad"]


def test_of_streams_that_spark_joins_it_keeps_all_columns(spark: SparkSession) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("value", "timestamp AS at", "'x' AS other")
    names = frozenset({"value", "at"})
    assert pruned(rows.union(rows), names).columns == ["value", "at"]
    assert pruned(rows.join(spark.range(3), rows.value == 1), names).columns == ["value", "at"]
    joined = rows.join(rows.selectExpr("value", "other AS name"), "value")
    assert pruned(joined, names).columns == joined.columns
