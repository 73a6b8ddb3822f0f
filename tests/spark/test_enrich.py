from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import AsyncFunction, Pipeline, PipelineError, Stream
from asyncstream.runtime.spark import enrich, enrich_apart, enrich_column, failure_text
from asyncstream.windowing import Count
from tests.spark.cluster import columns, event_columns, frame, stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def rows_of(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"key": f"k{v % 3}", "ts": v * 1000, "v": v} for v in range(first, first + count)]


def numbers() -> StructType:
    from pyspark.sql.types import LongType

    return columns(v=LongType())


def values(df: DataFrame) -> list[int]:
    return [row.v for row in df.collect()]


async def later(row: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0.002 * (row["v"] % 4))
    return {"v": row["v"] * 10}


async def fail_on_some(row: dict[str, Any]) -> dict[str, Any]:
    if row["v"] % 10 == 3:
        raise LookupError(f"no plane {row['v']}")
    if row["v"] % 10 == 4:
        await asyncio.sleep(60)
    return row


def test_results_come_in_the_order_of_the_rows(spark: SparkSession) -> None:
    out = frame(spark, rows_of(300)).transform(enrich, later, schema=numbers(), concurrency=20)
    assert values(out) == [v * 10 for v in range(300)]


def test_unordered_results_are_all_there(spark: SparkSession) -> None:
    out = enrich(frame(spark, rows_of(300)), later, schema=numbers(), order="unordered", concurrency=20)
    assert sorted(values(out)) == [v * 10 for v in range(300)]


def test_flat_function_gives_any_number_of_rows(spark: SparkSession) -> None:
    async def repeated(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [row] * (row["v"] % 3)

    out = enrich(frame(spark, rows_of(6)), repeated, schema=numbers(), flat=True)
    assert values(out) == [1, 2, 2, 4, 5, 5]


def test_calls_run_across_arrow_batches_and_never_more_than_the_concurrency(spark: SparkSession) -> None:
    class Watched(AsyncFunction[dict[str, Any], dict[str, Any]]):
        running = 0

        async def invoke(self, value: dict[str, Any]) -> dict[str, Any]:
            self.running += 1
            here = self.running
            await asyncio.sleep(0.005)
            self.running -= 1
            return {"v": here}

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 4)
    try:
        out = enrich(frame(spark, rows_of(200), 1), Watched(), schema=numbers(), concurrency=16)
        assert max(values(out)) == 16
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_error_names_step_and_element_and_shows_the_users_code(spark: SparkSession) -> None:
    from pyspark.errors import PythonException

    out = enrich(frame(spark, rows_of(10)), fail_on_some, schema=numbers(), name="planes")
    with pytest.raises(PythonException) as caught:
        out.collect()
    text = str(caught.value)
    assert "step 'planes': LookupError: no plane 3, on element {'key': 'k0', 'ts': 3000, 'v': 3}" in text
    assert "in fail_on_some" in text
    assert 'LookupError(f"no plane' in text


def test_result_that_does_not_fit_the_schema_is_blamed(spark: SparkSession) -> None:
    from pyspark.errors import PythonException

    async def wrong(row: dict[str, Any]) -> dict[str, Any]:
        return {"v": "many" if row["v"] == 2 else 1}

    with pytest.raises(PythonException, match=r"step 'results'.*'v': 'many'.*into column 'v' .int64"):
        enrich(frame(spark, rows_of(5)), wrong, schema=numbers()).collect()


def test_task_that_failed_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    marker = tmp_path / "marker"

    async def fail_once(row: dict[str, Any]) -> dict[str, Any]:
        if row["v"] == 5 and not marker.exists():
            marker.touch()
            raise ConnectionError("try again")
        return row

    assert values(enrich(frame(spark, rows_of(10)), fail_once, schema=numbers())) == list(range(10))
    assert marker.exists()


def test_failed_and_timed_out_rows_come_apart(spark: SparkSession) -> None:
    apart = enrich_apart(
        frame(spark, rows_of(40)), fail_on_some, schema=numbers(), timeout=0.05, concurrency=20
    )
    assert sorted(apart) == ["failed", "results", "timed_out"]
    assert values(apart["results"]) == [v for v in range(40) if v % 10 not in (3, 4)]
    failed = apart["failed"].collect()
    assert sorted(row.value.v for row in failed) == [3, 13, 23, 33]
    assert {row.error for row in failed} == {f"LookupError: no plane {v}" for v in (3, 13, 23, 33)}
    timed_out = apart["timed_out"].collect()
    assert sorted(row.value.v for row in timed_out) == [4, 14, 24, 34]
    assert all(row.error.startswith("CallTimeout") for row in timed_out)
    apart.release()


def test_routing_needs_enrich_apart(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="use enrich_apart"):
        enrich(frame(spark, rows_of(1)), later, schema=numbers(), on_error="route")


def test_unknown_option_is_refused(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="no option 'retries'"):
        enrich(frame(spark, rows_of(1)), later, schema=numbers(), retries=3)  # type: ignore[call-arg]


def test_column_function_keeps_rows_and_order(spark: SparkSession) -> None:
    from pyspark.sql.types import StringType

    async def label(row: dict[str, Any]) -> str:
        await asyncio.sleep(0.001 * (row["v"] % 5))
        return f"{row['key']}-{row['v']}"

    labelled = enrich_column(label, StringType(), concurrency=10)
    out = frame(spark, rows_of(100)).withColumn("label", labelled("key", "v")).collect()
    assert [row.label for row in out] == [f"k{v % 3}-{v}" for v in range(100)]


@pytest.mark.parametrize("persisted", [False, True])
def test_column_is_asked_for_once_however_often_it_is_used(
    spark: SparkSession, tmp_path: Path, persisted: bool
) -> None:
    from pyspark.sql import functions as sql
    from pyspark.sql.types import LongType

    async def next_number(row: dict[str, Any]) -> int:
        with (tmp_path / "calls").open("a") as calls:
            calls.write("x")
        return (tmp_path / "calls").stat().st_size

    numbered = frame(spark, rows_of(20), 1).withColumn("n", enrich_column(next_number, LongType())("v"))
    if persisted:
        numbered = numbered.persist()
        assert numbered.orderBy("v").count() + len(numbered.union(numbered).collect()) == 60
    used = numbered.withColumn("twice", sql.when(sql.col("n") > 5, sql.col("n") * 2).otherwise(sql.col("n")))
    kept = used.where("n > 10 and n is not null").select("v", "n", "twice").where("twice > 0").collect()
    assert [(row.n, row.twice) for row in kept] == [(n, 2 * n) for n in range(11, 21)]
    assert (tmp_path / "calls").stat().st_size == 20


def test_column_function_must_give_every_row_a_value() -> None:
    from pyspark.sql.types import StringType

    with pytest.raises(PipelineError, match="every row of a column needs a value"):
        enrich_column(later, StringType(), on_error="skip")
    with pytest.raises(PipelineError, match="keeps the order of its rows"):
        enrich_column(later, StringType(), order="unordered")


def test_column_function_names_a_column_of_which_python_has_no_values(spark: SparkSession) -> None:
    from pyspark.sql.types import StringType

    months = spark.sql("SELECT 1 AS v, INTERVAL '1-2' YEAR TO MONTH AS term")
    with pytest.raises(Exception, match="PipelineError") as caught:
        months.select(enrich_column(later, StringType())("v", "term")).collect()
    assert failure_text(caught.value).startswith("PipelineError: column 'term' (month_interval) holds what")


def test_function_is_opened_once_in_each_worker(spark: SparkSession, tmp_path: Path) -> None:
    class Opened(AsyncFunction[dict[str, Any], dict[str, Any]]):
        async def open(self) -> None:
            (tmp_path / f"{os.getpid()}-{id(self)}").touch()

        async def invoke(self, value: dict[str, Any]) -> dict[str, Any]:
            return {"v": os.getpid()}

    out = enrich(frame(spark, rows_of(40), 4), Opened(), schema=numbers())
    workers = {pid for _ in range(3) for pid in values(out)}
    opened = sorted(int(path.name.split("-")[0]) for path in tmp_path.iterdir())
    assert set(opened) == workers
    assert len(opened) == len(workers)


@pytest.mark.parametrize("outputs", [1, 2])
def test_micro_batch_is_computed_once_however_often_it_is_written(
    spark: SparkSession, tmp_path: Path, outputs: int
) -> None:
    async def counted(row: dict[str, Any]) -> dict[str, Any]:
        with (tmp_path / "calls").open("a") as calls:
            calls.write("x")
        return row

    pipeline = Pipeline()
    rows: Stream[Any] = pipeline.source([], name="rows")
    asked = rows.async_map(counted, name="ask")
    names = ["first", "second"][:outputs]
    for name in names:
        asked.map(dict, name=f"as {name}").to([], name=name)
    source = stream(spark, tmp_path / "in", [rows_of(10), rows_of(10, 10)])
    plan = pipeline.on_spark(spark, inputs={"rows": source}, outputs=dict.fromkeys(names, numbers()))
    found: list[int] = []

    def write(written: Mapping[str, DataFrame], number: int) -> None:
        for df in written.values():
            found.append(df.count())
            found.append(df.orderBy("v").count())

    writer = plan.write_stream(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    assert found == [10, 10] * 2 * outputs
    assert (tmp_path / "calls").stat().st_size == 20


def test_elements_that_plain_steps_fail_on_come_out_apart(spark: SparkSession) -> None:
    from pyspark.sql.types import StringType

    def inverse(row: dict[str, Any]) -> dict[str, Any]:
        return row | {"v": 10 // row["v"]}

    def even(row: dict[str, Any]) -> bool:
        return (True, False)[int(row["v"])]

    def of_value(result: Any) -> Any:
        return result.value

    pipeline = Pipeline()
    rows: Stream[Any] = pipeline.source([], name="rows")
    inverted = rows.map(inverse, on_error="route", name="invert")
    kept = rows.filter(even, on_error="route", name="even")
    keyed = inverted.key_by(lambda row: 6 // (row["v"] - 3), on_error="route", name="by")
    streams = {
        "inverted": inverted,
        "kept": kept,
        "counted": keyed.count_window(1).aggregate(v=Count()).map(of_value),
    }
    failures = {"not inverted": inverted.failed, "not kept": kept.failed, "not keyed": keyed.failed}
    for name, found in (streams | failures).items():
        found.to([], name=name)
    told = columns(value=event_columns(), error=StringType())
    outputs = dict.fromkeys(streams, numbers()) | dict.fromkeys(failures, told)
    plan = pipeline.on_spark(spark, inputs={"rows": frame(spark, rows_of(4))}, outputs=outputs)
    assert sorted(values(plan["inverted"])) == [3, 5, 10]
    assert values(plan["kept"]) == [0]
    (failed,) = plan["not inverted"].collect()
    assert (failed.value.v, failed.error) == (0, "ZeroDivisionError: integer division or modulo by zero")
    assert sorted(row.value.v for row in plan["not kept"].collect()) == [2, 3]
    assert sorted(row.v for row in plan["counted"].collect()) == [1, 1]
    assert [row.value.v for row in plan["not keyed"].collect()] == [3]
    plan.release()


def test_stream_with_several_outputs_is_written_together(spark: SparkSession, tmp_path: Path) -> None:
    source = stream(spark, tmp_path / "in", [rows_of(10), rows_of(10, 10)])
    apart = enrich_apart(source, fail_on_some, schema=numbers(), timeout=0.05)
    with pytest.raises(PipelineError, match="written together"):
        apart["results"]
    found: dict[str, list[int]] = {"results": [], "failed": [], "timed_out": []}

    def write(outputs: Mapping[str, DataFrame], number: int) -> None:
        found["results"] += values(outputs["results"])
        found["failed"] += [row.value.v for row in outputs["failed"].collect()]

    writer = apart.write_stream(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination(60)
    assert sorted(found["failed"]) == [3, 13]
    assert sorted(found["results"]) == [v for v in range(20) if v % 10 not in (3, 4)]


def test_columns_may_have_any_name(spark: SparkSession) -> None:
    rows = spark.sql("select 1 `a.b`, 2 `a'b`, 3 `x\"y`, 4 `ü`, 5 `{z}`, 6 `a``b`, struct(7 `c.d`) `e.f`")
    (found,) = enrich(rows, same_row, schema=rows.schema).collect()
    assert found.asDict(recursive=True) == rows.first().asDict(recursive=True)


def test_columns_may_differ_in_case_alone(spark: SparkSession) -> None:
    rows = spark.sql("select 1 Id, 2 id, named_struct('a', 3, 'A', 4) parts")
    (found,) = enrich(rows, same_row, schema=rows.schema).collect()
    assert tuple(found) == (1, 2, (3, 4))


async def same_row(row: dict[str, Any]) -> dict[str, Any]:
    return row
