"""Which watermark a stream follows: of one input and of several, each with its delay, also before 1970."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import BoundedOutOfOrderness, IngestionTime, NoWatermarks, Pipeline, PipelineError, Stream
from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.runtime.spark.clocks import LATEST_MS, before, timed_inputs, to_spark
from asyncstream.runtime.spark.progress import _ours
from asyncstream.windowing import Count, TumblingWindows
from tests.spark.cluster import columns, event_columns, run_stream, stream
from tests.spark.fake_spark import StandIn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = 24 * 3_600_000

Inputs = Callable[[Pipeline], Stream[Any]]
"""Reads its sources, and gives one stream with event time."""


def timed(stream: Stream[Any], delay: float = 1, **how: Any) -> Stream[Any]:
    return stream.event_time(lambda row: row["ts"], BoundedOutOfOrderness(delay), **how)


def planned(spark: Any, define: Inputs, **inputs: Any) -> Any:
    from pyspark.sql.types import StringType

    pipeline = Pipeline()
    counts = define(pipeline).key_by(lambda row: row["key"]).window(TumblingWindows(1)).aggregate(n=Count())
    counts.map(lambda w: f"{w.key} {w.start_ms} {w.value['n']}").to([], name="counts")
    counts.late.map(lambda row: f"{row['key']} {row['ts']}").to([], name="late")
    line = columns(line=StringType())
    return pipeline.on_spark(spark, inputs=inputs, outputs={"counts": line, "late": line}, key_groups=3)


def rows(key: str, first: int, count: int, step: int = 500) -> list[dict[str, Any]]:
    return [{"key": key, "ts": first + number * step, "v": number} for number in range(count)]


def found_by(define: Inputs, **batches: list[list[dict[str, Any]]]) -> dict[str, list[str]]:
    """What comes out of a stream whose inputs have these rows in their micro-batches."""
    spark: Any = StandIn(1)
    inputs = {
        name: spark.stream([[part] for part in parts], event_columns()) for name, parts in batches.items()
    }
    return {
        name: sorted(lines) for name, lines in run_stream(planned(spark, define, **inputs), Path()).items()
    }


def two(delay_of_slow: float = 1) -> Inputs:
    def define(pipeline: Pipeline) -> Stream[Any]:
        fast: Stream[Any] = pipeline.source([], name="fast")
        slow: Stream[Any] = pipeline.source([], name="slow")
        return timed(fast).union(timed(slow, delay_of_slow))

    return define


def test_source_that_is_a_day_behind_is_not_late() -> None:
    found = found_by(
        two(),
        fast=[rows("fast", 2 * DAY + 2_000 * n, 4) for n in range(5)],
        slow=[rows("slow", DAY + 2_000 * n, 4) for n in range(5)],
    )
    assert found["late"] == []
    # all windows that the slow source is beyond, less its delay
    assert found["counts"] == [f"slow {DAY + start} 2" for start in range(0, 8_000, 1_000)]


def test_session_in_which_the_fastest_source_counts_is_refused_for_several() -> None:
    spark: Any = StandIn(1)
    spark.conf["spark.sql.streaming.multipleWatermarkPolicy"] = "max"
    fast, slow = (spark.stream([], event_columns()) for _ in range(2))
    with pytest.raises(PipelineError, match=r"multipleWatermarkPolicy = 'max'.* spark\.conf\.unset"):
        planned(spark, two(), fast=fast, slow=slow)
    assert planned(spark, lambda pipeline: timed(pipeline.source([], name="fast")), fast=fast)


def test_each_source_has_its_own_delay() -> None:
    slow = [rows("slow", 10_000, 4), [{"key": "slow", "ts": 6_000, "v": 0}], rows("slow", 30_000, 1)]
    fast = [rows("fast", 40_000, 2)] * 3
    assert found_by(two(delay_of_slow=1), slow=slow, fast=fast)["late"] == ["slow 6000"]
    patient = found_by(two(delay_of_slow=8), slow=slow, fast=fast)
    assert patient["late"] == []
    assert "slow 6000 1" in patient["counts"]


def test_source_that_has_brought_nothing_holds_event_time_back() -> None:
    found = found_by(two(), fast=[rows("fast", 0, 10), rows("fast", 20_000, 1)], slow=[[], []])
    assert found == {"counts": [], "late": []}


def test_sources_that_are_united_before_they_get_event_time_share_a_watermark() -> None:
    def define(pipeline: Pipeline) -> Stream[Any]:
        one: Stream[Any] = pipeline.source([], name="fast")
        return timed(one.union(pipeline.source([], name="slow")))

    found = found_by(
        define, fast=[rows("fast", 2 * DAY, 4), rows("fast", 2 * DAY, 1)], slow=[[], rows("slow", DAY, 2)]
    )
    assert found["late"] == [f"slow {DAY}", f"slow {DAY + 500}"]


def test_of_two_event_times_of_an_input_the_one_that_is_behind_counts() -> None:
    def define(pipeline: Pipeline) -> Stream[Any]:
        all_rows: Stream[Any] = pipeline.source([], name="rows")
        behind = timed(all_rows.filter(lambda row: row["key"] == "slow"), name="behind")
        return timed(all_rows.filter(lambda row: row["key"] == "fast"), name="ahead").union(behind)

    batches = [rows("fast", 2 * DAY + 2_000 * n, 4) + rows("slow", DAY + 2_000 * n, 4) for n in range(4)]
    found = found_by(define, rows=batches)
    assert found["late"] == []
    assert len(found["counts"]) == 6


def test_event_time_that_is_given_once_more_is_the_one_that_counts() -> None:
    def define(pipeline: Pipeline) -> Stream[Any]:
        source: Stream[Any] = pipeline.source([], name="rows")
        first = source.event_time(lambda row: row["ts"] + DAY, BoundedOutOfOrderness(0))
        return timed(first)

    found = found_by(define, rows=[rows("k", 10_000, 4), rows("k", 11_000, 4)])
    assert found == {"counts": ["k 10000 2"], "late": []}


@pytest.mark.parametrize("first", [-10 * 365 * DAY, -1900 * 365 * DAY, -1_500, 0, 1_700_000_000_000])
def test_windows_close_before_and_after_1970(first: int) -> None:
    def define(pipeline: Pipeline) -> Stream[Any]:
        return timed(pipeline.source([], name="rows"))

    first -= first % 1_000
    found = found_by(define, rows=[rows("k", first + 2_000 * n, 4) for n in range(4)])
    assert found["counts"] == sorted(f"k {first + start} 2" for start in range(0, 6_000, 1_000))
    late = [rows("k", first + 9_000, 2), rows("k", first, 1), []]
    assert found_by(define, rows=late)["late"] == [f"k {first}"]


def test_times_are_shown_to_spark_in_their_order() -> None:
    times = [MIN_TIMESTAMP, -1970 * 365 * DAY, -1, 0, 1, 1_700_000_000_000, LATEST_MS, MAX_TIMESTAMP]
    shown = [to_spark(time) for time in times]
    assert shown == sorted(shown)
    assert [before(time) for time in shown[1:-1]] == [time - 1 for time in times[1:-1]]
    assert before(0) == MIN_TIMESTAMP
    assert shown[-1] * 1000 < 2**63


@pytest.mark.parametrize(
    ("shown", "meant"),
    [
        ("4024-05-05T12:00:00.000Z", "2024-05-05T12:00:00.000Z"),
        ("3969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.999Z"),
        ("2024-05-05T12:00:00.000Z", "2024-05-05T12:00:00.000Z"),
        ("1970-01-01T00:00:00.000Z", "1970-01-01T00:00:00.000Z"),
    ],
)
def test_log_tells_the_watermark_as_the_pipeline_knows_it(shown: str, meant: str) -> None:
    assert _ours(shown) == meant


def test_inputs_share_a_watermark_if_a_step_gives_event_time_to_both() -> None:
    pipeline = Pipeline()
    sources: list[Stream[Any]] = [pipeline.source([], name=name) for name in "abcd"]
    a, b, c, d = sources
    both = timed(a.union(b), name="both")
    alone: Any = timed(c, name="alone")
    keyed = both.union(alone, d).key_by(lambda row: row["key"])
    keyed.count_window(2).collect().to([], name="out")
    timed(d, name="unread").to([], name="other")
    assert {(timed.inputs, timed.steps) for timed in timed_inputs(pipeline._graph)} == {
        (frozenset("ab"), frozenset({"both"})),
        (frozenset("c"), frozenset({"alone"})),
        (frozenset("d"), frozenset()),
    }


def test_delays_that_differ_in_one_input_are_refused() -> None:
    def define(pipeline: Pipeline) -> Stream[Any]:
        one: Stream[Any] = pipeline.source([], name="rows")
        return timed(one, 1, name="hasty").union(timed(one, 60, name="patient"))

    with pytest.raises(PipelineError, match="steps 'hasty', 'patient' wait for different times"):
        found_by(define, rows=[])


def test_ingestion_time_is_refused_in_bounded_jobs_too() -> None:
    def define(pipeline: Pipeline) -> Stream[Any]:
        return pipeline.source([], name="rows").event_time(IngestionTime())

    spark: Any = StandIn(1)
    inputs = {"rows": spark.bounded([rows("a", 0, 4)], event_columns())}
    with pytest.raises(PipelineError, match=r"step 'event_time': ingestion time .* current_timestamp\(\)"):
        planned(
            spark, lambda pipeline: pipeline.source([], name="rows").event_time(IngestionTime()), **inputs
        )


def test_source_without_watermarks_leaves_the_bounded_job_as_it_is() -> None:
    def define(pipeline: Pipeline) -> Stream[Any]:
        slow: Stream[Any] = pipeline.source([], name="slow")
        still = slow.event_time(lambda row: row["ts"], NoWatermarks())
        return timed(pipeline.source([], name="fast")).union(still)

    spark: Any = StandIn(1)
    inputs = {name: spark.bounded([rows(name, 0, 4)], event_columns()) for name in ("fast", "slow")}
    found = sorted(row.line for row in planned(spark, define, **inputs)["counts"].collect())
    assert found == ["fast 0 2", "fast 1000 2", "slow 0 2", "slow 1000 2"]


def test_slower_source_is_not_late_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    before_1970 = -30 * 365 * DAY
    inputs = {
        "fast": stream(spark, tmp_path / "fast", [rows("fast", DAY + 2_000 * n, 4) for n in range(3)]),
        "slow": stream(
            spark, tmp_path / "slow", [rows("slow", before_1970 + 2_000 * n, 4) for n in range(3)]
        ),
    }
    found = run_stream(planned(spark, two(delay_of_slow=0.5), **inputs), tmp_path / "checkpoint")
    assert found["late"] == []
    assert sorted(found["counts"]) == sorted(
        f"slow {before_1970 + start} 2" for start in range(0, 5_000, 1_000)
    )
