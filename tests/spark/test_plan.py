"""How a pipeline is cut into stages, what is refused, and what `describe` tells."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import BoundedOutOfOrderness, Pipeline, PipelineError, PunctuatedWatermarks, Stream
from asyncstream.pipeline import WindowResults
from asyncstream.runtime.spark import PlanSettings
from asyncstream.runtime.spark.stages import StageKind, stages_of
from asyncstream.windowing import Count, TumblingWindows
from tests.spark.cluster import columns, event_columns, frame
from tests.spark.fake_spark import StandIn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from asyncstream.runtime.spark import SparkPlan


async def same(row: Any) -> Any:
    return row


def key_of(row: Any) -> Any:
    return row["key"]


def timed(stream: Stream[Any]) -> Stream[Any]:
    return stream.event_time(lambda row: row["ts"], BoundedOutOfOrderness(1))


def counted(stream: Stream[Any]) -> WindowResults[Any]:
    return stream.key_by(key_of).window(TumblingWindows(1)).aggregate(n=Count())


def stages(define: Callable[[Stream[Any]], Stream[Any]], *, streaming: bool) -> list[str]:
    pipeline = Pipeline()
    define(pipeline.source([])).to([], name="out")
    return [
        f"{stage.kind.name.lower()}: {' '.join(step.name for step in stage.steps)}"
        for stage in stages_of(pipeline._graph, streaming=streaming)
    ]


def test_stateless_steps_and_calls_are_one_stage() -> None:
    assert stages(lambda s: s.map(dict).async_map(same).filter(bool), streaming=True) == [
        "plain: map async_map filter"
    ]


def test_stages_of_a_stream_alternate() -> None:
    define = lambda s: counted(counted(timed(s)).map(dict).async_map(same))  # noqa: E731
    assert stages(define, streaming=True) == [
        "plain: event_time",
        "keyed: aggregate",
        "plain: map async_map",
        "keyed: aggregate-2",
    ]


def test_bounded_job_keeps_what_follows_in_the_stage_of_the_keyed_step() -> None:
    define = lambda s: counted(counted(timed(s)).map(dict).async_map(same))  # noqa: E731
    assert stages(define, streaming=False) == [
        "plain: event_time",
        "shuffled: aggregate map async_map",
        "shuffled: aggregate-2",
    ]


def test_calls_in_order_of_a_key_bring_the_key_together_without_state() -> None:
    define = lambda s: s.key_by(key_of).async_map(same, order="per_key").map(dict)  # noqa: E731
    assert stages(define, streaming=True) == ["plain: ", "shuffled: async_map map"]


def test_every_edge_between_stages_has_one_route() -> None:
    pipeline = Pipeline()
    source = timed(pipeline.source([]))
    windows = counted(source)
    windows.to([], name="windows")
    windows.late.to([], name="late")
    windows.map(dict).union(source.map(dict)).to([], name="both")
    found = stages_of(pipeline._graph, streaming=True)
    assert [stage.kind for stage in found] == [StageKind.PLAIN, StageKind.KEYED, StageKind.PLAIN]
    numbers = [route.number for stage in found for route in stage.exits]
    assert len(numbers) == len(set(numbers))
    assert {str(route.output) for stage in found for route in stage.exits if route.reader == "late"} == {
        "aggregate.late"
    }


def planned(df: DataFrame, define: Callable[[Stream[Any]], Stream[Any]], **options: Any) -> SparkPlan:
    from pyspark.sql.types import LongType

    pipeline = Pipeline()
    define(pipeline.source([], name="rows")).to([], name="out")
    names: dict[str, Any] = {"inputs": {"rows": df}, "outputs": {"out": columns(v=LongType())}}
    return pipeline.on_spark(df.sparkSession, **(names | options))


def a_stream(spark: SparkSession, tmp_path: Any) -> DataFrame:
    return spark.readStream.schema(event_columns()).json(str(tmp_path))


def test_inputs_and_outputs_must_match_the_pipeline(spark: SparkSession) -> None:
    from pyspark.sql.types import LongType

    df = frame(spark, [])
    with pytest.raises(PipelineError, match=r"inputs: .*\(rows\), there is no 'other'"):
        planned(df, lambda s: s, inputs={"rows": df, "other": df})
    with pytest.raises(PipelineError, match=r"inputs: .*\(rows\), there is no 'row', and nothing for 'rows'"):
        planned(df, lambda s: s, inputs={"row": df})
    with pytest.raises(PipelineError, match=r"outputs: .*\(out\), nothing for 'out'"):
        planned(df, lambda s: s, outputs={})
    with pytest.raises(PipelineError, match=r"outputs\['out'\]: expected a StructType, or columns as text"):
        planned(df, lambda s: s, outputs={"out": "bigint"})
    with pytest.raises(
        PipelineError, match=r"outputs\['out'\]: Spark cannot read 'v lang'.*data type \"LANG"
    ):
        planned(df, lambda s: s, outputs={"out": "v lang"})
    with pytest.raises(PipelineError, match=r"outputs\['out'\]: expected a name of its own for each column"):
        planned(df, lambda s: s, outputs={"out": "v long, v long"})
    assert planned(df, lambda s: s, outputs={"out": "v long"})["out"].schema == columns(v=LongType())
    with pytest.raises(PipelineError, match=r"outputs\['out'\]: expected at least one column, got ''"):
        planned(df, lambda s: s, outputs={"out": ""})


def test_watermark_of_sparks_own_is_refused(spark: SparkSession, tmp_path: Any) -> None:
    marked = a_stream(spark, tmp_path).selectExpr("timestamp_millis(ts) AS at", "key", "v")
    with pytest.raises(PipelineError, match=r"on column 'at'.*leave withWatermark out"):
        planned(marked.withWatermark("at", "1 second"), lambda s: s)


def test_second_watermark_in_a_query_is_refused_where_event_time_is_followed(
    spark: SparkSession, tmp_path: Any
) -> None:
    from pyspark.sql.functions import col

    rows = a_stream(spark, tmp_path)
    marked = rows.selectExpr("*", "timestamp_millis(ts) AS at").withWatermark("at", "1 second")
    once = marked.dropDuplicatesWithinWatermark(["key"]).drop("at")
    earlier = planned(rows, lambda s: counted(timed(s)), outputs={"out": "key string"})["out"]
    for behind in (once, earlier, rows.union(once)):
        with pytest.raises(PipelineError, match=r"inputs\['rows'\] comes from a watermark .* one watermark"):
            planned(behind, lambda s: counted(timed(s)))
        assert planned(behind, lambda s: s)["out"].isStreaming
        assert planned(behind, lambda s: s.key_by(key_of).count_window(2).collect())["out"].isStreaming
    unmarked = marked.withColumn("at", col("at").alias("at", metadata={}))
    assert planned(unmarked, lambda s: s)["out"].isStreaming


def test_stream_refuses_watermarks_that_spark_does_not_have(spark: SparkSession, tmp_path: Any) -> None:
    strategy = PunctuatedWatermarks(lambda row, ts: ts)
    define = lambda s: counted(s.event_time(lambda row: row["ts"], strategy))  # noqa: E731
    with pytest.raises(PipelineError, match=r"step 'event_time': .* is not possible on Spark"):
        planned(a_stream(spark, tmp_path), define)
    planned(frame(spark, []), define)


def test_stream_refuses_new_timestamps_behind_a_keyed_step(spark: SparkSession, tmp_path: Any) -> None:
    with pytest.raises(PipelineError, match="step 'event_time-2' gives elements new timestamps"):
        planned(a_stream(spark, tmp_path), lambda s: counted(timed(counted(timed(s)))))


def test_stream_refuses_delays_that_differ(spark: SparkSession, tmp_path: Any) -> None:
    def define(stream: Stream[Any]) -> Stream[Any]:
        patient = stream.event_time(lambda row: row["ts"], BoundedOutOfOrderness(60), name="patient")
        return counted(timed(stream)).union(counted(patient))

    with pytest.raises(PipelineError, match="steps 'patient', 'event_time-2' wait for different times"):
        planned(a_stream(spark, tmp_path), define)
    planned(frame(spark, []), define)


def test_description_says_what_a_restart_forgets_of_several_inputs() -> None:
    spark: Any = StandIn(1)
    pipeline = Pipeline()
    one, other = (timed(pipeline.source([], name=name)) for name in ("one", "other"))
    counted(one.union(other)).to([], name="out")
    inputs = {name: spark.stream([[[]]], event_columns()) for name in ("one", "other")}
    plan = pipeline.on_spark(spark, inputs=inputs, outputs={"out": event_columns()})
    assert "its watermark stays where it was until all of them have brought elements" in plan.describe()


def test_stream_follows_processing_time_only_if_it_is_asked_to(spark: SparkSession, tmp_path: Any) -> None:
    rows = a_stream(spark, tmp_path)
    minute = timedelta(minutes=1)
    with pytest.raises(PipelineError, match="step 'policy_window' waits for processing time, which a stream"):
        planned(rows, lambda s: timed(s).policy_window(length=3))
    with pytest.raises(PipelineError, match="step 'policy_window' waits for processing time"):
        planned(rows, lambda s: s.policy_window(length=minute, tumbling=True, time="processing"))
    with pytest.raises(PipelineError, match="step 'collect' waits for processing time"):
        planned(rows, lambda s: s.key_by(key_of).window(TumblingWindows(1, time="processing")).collect())
    planned(rows, lambda s: s.policy_window(length=3, time="processing"))
    plan = planned(rows, lambda s: timed(s).policy_window(length=3), processing_time=True)
    assert "each key group follows a watermark of its own" in plan.describe()
    assert "the first micro-batch of a query, also of one that is started again, waits for" in plan.describe()
    assert "availableNow does not end" in plan.describe()


def test_stream_refuses_keyed_steps_behind_policy_windows_in_event_time(
    spark: SparkSession, tmp_path: Any
) -> None:
    with pytest.raises(PipelineError, match="no keyed step can follow them"):
        planned(
            a_stream(spark, tmp_path),
            lambda s: timed(s).policy_window(length=3).key_by(key_of).count_window(2).collect(),
            processing_time=True,
        )


def test_stream_needs_the_state_store_that_spark_wants(spark: SparkSession, tmp_path: Any) -> None:
    name = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(name)
    spark.conf.unset(name)
    spark.conf.set(name, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
    try:
        with pytest.raises(PipelineError, match="RocksDB"):
            planned(a_stream(spark, tmp_path), lambda s: counted(timed(s)))
        spark.conf.set(name, "com.vendor.state.RocksDBStateStoreProvider")
        planned(a_stream(spark, tmp_path), lambda s: counted(timed(s)))
    finally:
        spark.conf.set(name, before)


@pytest.mark.parametrize(
    ("given", "shuffle_partitions", "resolved"),
    [
        ({}, 2, (4, 2)),
        ({}, 48, (96, 48)),
        ({}, 65, (65, 65)),
        ({}, 128, (128, 128)),
        ({}, 200, (200, 200)),
        ({"key_groups": 3}, 200, (3, 3)),
        ({"key_groups": 300, "partitions": 7}, 200, (300, 7)),
        ({"partitions": 7}, 2, (14, 7)),
    ],
)
def test_no_partition_is_without_key_groups(
    given: dict[str, int], shuffle_partitions: int, resolved: tuple[int, int]
) -> None:
    assert PlanSettings(**given).resolved(shuffle_partitions) == resolved  # type: ignore[arg-type]


def test_description_says_what_differs(spark: SparkSession, tmp_path: Any) -> None:
    define = lambda s: counted(timed(s).async_map(same, name="ask", concurrency=7))  # noqa: E731
    text = planned(a_stream(spark, tmp_path), define).describe()
    for expected in (
        "stage 0 (plain): event_time, ask",
        "stage 1 (keyed): aggregate",
        "ask: 7 calls at once in every running task, not in all",
        "ask: order ordered holds within a partition and micro-batch",
        "the end of a stream does not close open windows",
        "by which state outlives its time to live, stands still during a micro-batch",
    ):
        assert expected in text
    assert "watermark stays where it was until all of them" not in text
    text = planned(frame(spark, []), define).describe()
    assert "event time moves once, at the end of input: nothing is late, and all timers fire then" in text


def test_several_sources_become_one_stream(spark: SparkSession) -> None:
    from pyspark.sql.types import LongType

    pipeline = Pipeline()
    odd: Stream[Any] = pipeline.source([], name="odd")
    even: Stream[Any] = pipeline.source([], name="even")
    odd.map(dict).union(even.filter(bool)).key_by(key_of).count_window(2).collect().map(
        lambda result: {"v": sum(row["v"] for row in result.value)}
    ).to([], name="out")
    inputs = {
        name: frame(spark, [{"key": "k", "ts": 0, "v": v} for v in range(first, 10, 2)])
        for name, first in (("odd", 1), ("even", 0))
    }
    plan = pipeline.on_spark(spark, inputs=inputs, outputs={"out": columns(v=LongType())})
    # in the order of the inputs: 1 3 5 7 9 0 2 4 6 8
    assert sorted(row.v for row in plan["out"].collect()) == sorted([4, 12, 9, 6, 14])


@pytest.mark.parametrize("together", [False, True])
def test_spark_knows_each_stream_by_its_name_whatever_the_order_in_which_it_is_given(
    spark: SparkSession, tmp_path: Path, together: bool
) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()

    def places(defined: str, given: str) -> list[str]:
        """The streams as they stand in Spark's plan, by whose places its checkpoint has what was read."""
        pipeline = Pipeline()
        sources: list[Stream[Any]] = [pipeline.source([], name=name) for name in defined]
        first, *others = sources if together else [timed(source) for source in sources]
        united = first.union(*others)
        counted(timed(united) if together else united).to([], name="out")
        inputs = {name: a_stream(spark, tmp_path / name) for name in given}
        plan = pipeline.on_spark(spark, inputs=inputs, outputs={"out": "key string"})
        analyzed = plan["out"]._jdf.queryExecution().analyzed().toString()
        return re.findall(rf"{tmp_path}/(\w+)", analyzed)

    for defined in ("abc", "cab"):
        for given in ("abc", "bca"):
            assert places(defined, given) == ["a", "b", "c"]


def test_policy_windows_of_a_bounded_job(spark: SparkSession) -> None:
    from pyspark.sql.types import LongType

    pipeline = Pipeline()
    keyed = timed(pipeline.source([], name="rows")).key_by(key_of)
    windows = keyed.policy_window(length=2, tumbling=True, name="pairs")
    windows.map(lambda window: {"v": sum(row["v"] for row in window.values)}).to([], name="out")
    windows.late.discard()
    rows = [{"key": f"k{v % 2}", "ts": v * 1000, "v": v} for v in range(8)]
    outputs = {"out": columns(v=LongType())}
    plan = pipeline.on_spark(spark, inputs={"rows": frame(spark, rows)}, outputs=outputs)
    assert sorted(row.v for row in plan["out"].collect()) == [0 + 2, 1 + 3, 4 + 6, 5 + 7]
