"""Each wrong argument is refused by its name when a plan is made, in words."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    LongType,
    MapType,
    NullType,
    StructType,
    YearMonthIntervalType,
)

from asyncstream import BoundedOutOfOrderness, Pipeline, PipelineError, Stream, TumblingWindows
from asyncstream.connectors.memory import Items
from asyncstream.errors import MissingExtra
from asyncstream.runtime.spark import (
    SparkPlan,
    enrich,
    enrich_apart,
    enrich_column,
    failure_text,
    local_spark,
    log_progress,
    read_json_lines,
    register_source,
    write_json_lines,
)
from asyncstream.windowing import Count
from tests.spark.cluster import columns, event_columns
from tests.spark.fake_spark import Frame, StandIn

spark = StandIn(1)
ROWS = spark.bounded([], event_columns())
A_STREAM = spark.stream([], event_columns())


class RemoteFrame(Frame):
    __module__ = "pyspark.sql.connect.dataframe"


class OwnFrame(RemoteFrame):
    """A user may have classes of Spark's extended."""


REMOTE = RemoteFrame(spark, ROWS.made, ROWS.schema)
OWN = OwnFrame(spark, ROWS.made, ROWS.schema)


def plan(rows: Any = ROWS, **others: Any) -> SparkPlan:
    pipeline = Pipeline()
    pipeline.source([], name="rows").key_by("key").count_window(2).collect(name="pairs").to([], name="out")
    given: dict[str, Any] = {"spark": spark, "inputs": {"rows": rows}, "outputs": {"out": event_columns()}}
    return pipeline.on_spark(**(given | others))


async def same(row: Any) -> Any:
    return row


def enriched(df: Any = ROWS, **others: Any) -> Any:
    given: dict[str, Any] = {"schema": event_columns()}
    return enrich(df, same, **(given | others))


def source() -> Items[Any]:
    return Items([])


class PandasOnSpark:
    def to_spark(self) -> Any: ...

    def __repr__(self) -> str:
        return "pandas"


anything: Any = object()
MONTHS = columns(v=ArrayType(YearMonthIntervalType()))
TWICE = StructType().add("a", LongType()).add("a", LongType())
ON_SPARK: Any = PandasOnSpark()
other: Any = pd.DataFrame({"v": [1]})


@pytest.mark.parametrize(
    ("told", "call"),
    [
        ("spark: expected a SparkSession", lambda: plan(spark=anything)),
        ("spark: expected a SparkSession", lambda: register_source(anything, source, schema=event_columns())),
        ("spark: expected a SparkSession", lambda: log_progress(anything)),
        ("spark: expected a SparkSession", lambda: read_json_lines(anything, "in", schema=event_columns())),
        ("inputs: expected a mapping with one for each source, {'rows': ...}", lambda: plan(inputs=ROWS)),
        ("inputs: expected a mapping with one for each source", lambda: plan(inputs=None)),
        ("inputs['rows']: expected a Spark DataFrame", lambda: plan(other)),
        ("inputs['rows']: expected a DataFrame of the session", lambda: plan(REMOTE)),
        ("inputs['rows']: expected a DataFrame of the session", lambda: plan(OWN)),
        ("outputs: expected a mapping with one for each sink, {'out': ...}", lambda: plan(outputs="v long")),
        ("outputs['out']: expected at least one column", lambda: plan(outputs={"out": event_columns()[:0]})),
        ("key_groups: expected an integer below 2**31", lambda: plan(key_groups=2**31)),
        ("partitions: expected an integer below 2**31", lambda: plan(partitions=2**31)),
        ("write: expected a function", lambda: plan(A_STREAM).write_stream(anything)),
        ("location: expected a non-empty text", lambda: plan(A_STREAM).save_checkpoint(anything, "to")),
        ("location: expected a non-empty text", lambda: plan(A_STREAM).rescale(anything, 2)),
        (
            "inputs['rows'], column 'v' (array<interval year to month>) holds what Python cannot: intervals",
            lambda: plan(spark.bounded([], MONTHS)),
        ),
        (
            "inputs['rows'], column 'v' (interval) holds what Python cannot: intervals of months",
            lambda: plan(spark.bounded([], columns(v=CalendarIntervalType()))),
        ),
        (
            "inputs['rows'] has no columns, and of such rows Spark hands Python none",
            lambda: plan(spark.bounded([], StructType())),
        ),
        (
            "inputs['rows'] has 2 columns 'v', and a row becomes a dict: give them other names",
            lambda: plan(spark.bounded([], StructType([*event_columns(), *columns(v=LongType())]))),
        ),
        *(
            (f"inputs['rows'], column 'v' ({kind.simpleString()}) has 2 fields 'a' in a struct", call)
            for kind in (TWICE, ArrayType(TWICE), MapType(LongType(), TWICE), columns(b=TWICE))
            for call in (
                lambda kind=kind: plan(spark.bounded([], columns(v=kind))),
                lambda kind=kind: enriched(spark.stream([], columns(v=kind)), effect=True),
                lambda kind=kind: enrich_apart(spark.bounded([], columns(v=kind)), same, schema=ROWS.schema),
            )
        ),
        *(
            (f"column '{name}': expected fields of different names, got ['a', 'a']", call)
            for name, kind in (("v", TWICE), ("v[]", ArrayType(TWICE)), ("v.b", columns(b=TWICE)))
            for call in (lambda kind=kind: write_json_lines(spark.bounded([], columns(v=kind)), "out"),)
        ),
        (
            "outputs['out'], column 'v': values of type array<interval ye",
            lambda: plan(outputs={"out": MONTHS}),
        ),
        (
            "outputs['out'], column 'v': values of type map<void,void> cannot get",
            lambda: plan(outputs={"out": columns(v=MapType(NullType(), NullType()))}),
        ),
        (
            "schema, column 'v': values of type void cannot get",
            lambda: enriched(schema=StructType().add("v", NullType(), nullable=False)),
        ),
        (
            "outputs['out'], column 'v': values of type struct<a:bigint,a:bigint> cannot get",
            lambda: plan(outputs={"out": columns(v=TWICE)}),
        ),
        (
            "returns: values of type array<void> cannot get",
            lambda: enrich_column(anything, ArrayType(NullType(), containsNull=False)),
        ),
        (
            "returns: values of type interval cannot get",
            lambda: enrich_column(anything, CalendarIntervalType()),
        ),
        ("df: expected a Spark DataFrame", lambda: enriched(other)),
        ("df: expected a Spark DataFrame", lambda: enrich_apart(other, anything, schema=event_columns())),
        ("df: expected a Spark DataFrame", lambda: write_json_lines(other, "out")),
        ("flat: expected True or False", lambda: enriched(flat="no")),
        ("level: expected an integer", lambda: log_progress(spark, "INFO")),  # type: ignore[arg-type]
        ("failed: expected an exception, or a StreamingQuery", lambda: failure_text(anything)),
        ("cores: expected an integer of at least 1", lambda: local_spark(0)),
        ("name: expected a non-empty text", lambda: local_spark(name="")),
        ("quiet: expected True or False", lambda: local_spark(quiet=anything)),
        (
            "settings: expected names that begin with spark__, for the dots of Spark's, got 'master'; "
            'e.g. spark__sql__shuffle__partitions="2"',
            lambda: local_spark(master="local[1]"),
        ),
    ],
)
def test_wrong_argument_is_refused_by_its_name(told: str, call: Callable[[], object]) -> None:
    with pytest.raises(PipelineError) as caught:
        call()
    assert str(caught.value).startswith(told)


def test_column_that_is_not_read_is_not_refused() -> None:
    """Spark hands Python those that a pipeline looks at."""
    schema = StructType([*event_columns(), *columns(more=TWICE, months=YearMonthIntervalType())])
    pipeline = Pipeline()
    source: Stream[Any] = pipeline.source([], name="rows")
    timed = source.event_time("ts", BoundedOutOfOrderness(0))
    timed.key_by("key").window(TumblingWindows(1)).aggregate(n=Count()).to([], name="out")
    frame: Any = spark.bounded([], schema)
    assert pipeline.on_spark(spark, inputs={"rows": frame}, outputs={"out": event_columns()})["out"]


@pytest.mark.parametrize("number", ["0", "-1"])
def test_session_that_hands_tasks_no_state_is_refused(number: str) -> None:
    name = "spark.sql.execution.arrow.transformWithStateInPySpark.maxStateRecordsPerBatch"
    given: Any = StandIn(1)
    given.conf[name] = number
    rows: Any = given.stream([], event_columns())
    with pytest.raises(PipelineError, match=rf"{name} = '{number}'.*spark\.conf\.unset"):
        plan(rows, spark=given)


def test_frame_of_pandas_on_spark_is_told_how_it_becomes_one_of_spark() -> None:
    with pytest.raises(
        PipelineError, match=r"df: expected a Spark DataFrame, got pandas; its \.to_spark\(\)"
    ):
        enriched(ON_SPARK)


def test_output_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(KeyError, match="there is no output 'results'; there are: out"):
        plan()["results"]
    assert plan().get("results") is None


def test_keyed_stream_without_protobuf_is_refused_in_place_of_a_crash_of_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = Pipeline()
    rows = pipeline.source(list[dict[str, int]](), name="rows").key_by(lambda row: row["value"])
    rows.reduce(lambda one, other: one, name="first").to([], name="out")
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(MissingExtra, match=r"a stream of keyed steps needs the extra \[spark\]"):
        _ = pipeline.on_spark(spark, inputs={"rows": A_STREAM}, outputs={"out": event_columns()})["out"]
