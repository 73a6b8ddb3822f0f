"""What a query counts, where Spark tells it, and the line in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import AsyncFunction, BoundedOutOfOrderness, Pipeline, Stream
from asyncstream.guards import retry
from asyncstream.runtime.spark import enrich, log_progress
from asyncstream.runtime.spark.progress import progress_line
from asyncstream.windowing import Count, TumblingWindows
from tests.spark.cluster import columns, event_columns, frame, stream
from tests.spark.contract import key_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Moody(AsyncFunction[Any, Any]):
    """Fails for every third value at the first attempt, and for every seventh always."""

    async def open(self) -> None:
        self.asked: set[int] = set()

    async def invoke(self, row: Any) -> Any:
        value = row["v"]
        if value % 7 == 0 or (value % 3 == 0 and value not in self.asked):
            self.asked.add(value)
            raise ValueError(value)
        return row


def collect(outputs: Mapping[str, Any], number: int) -> None:
    for df in outputs.values():
        df.collect()


def rows(ts: int) -> list[dict[str, Any]]:
    return [{"key": "k", "ts": ts + v, "v": v} for v in range(1, 21)]


def test_progress_tells_what_was_counted(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from pyspark.sql.types import LongType, StringType

    pipeline = Pipeline("moods")
    source: Stream[Any] = pipeline.source([], name="rows")
    asked = source.async_map(
        retry(Moody(), attempts=2, wait_initial=0.001), on_error="route", concurrency=4, name="ask"
    )
    timed = asked.event_time(lambda row: row["ts"], BoundedOutOfOrderness(0))
    sums = timed.key_by(key_of).window(TumblingWindows(1)).aggregate(v=Count(), name="sums")
    sums.map(lambda result: {"v": result.value["v"]}).to([], name="counted")
    asked.failed.to([], name="failed")
    batches = [rows(10_000), rows(20_000), rows(1_000)]  # the last ones are late
    plan = pipeline.on_spark(
        spark,
        inputs={"rows": stream(spark, tmp_path / "in", batches)},
        outputs={"counted": columns(v=LongType()), "failed": columns(error=StringType())},
        observe="moods",
    )
    caplog.set_level(logging.INFO, "asyncstream.spark")
    lines = log_progress(spark)
    try:
        query = (
            plan.write_stream(collect)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .queryName("moods")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        told = [progress["observedMetrics"]["moods"] for progress in query.recentProgress]
        with_rows = [counts for counts in told if counts["ask.elements_in"]]
        assert len(with_rows) == 3
        for counts in with_rows:
            assert (counts["ask.elements_in"], counts["ask.failed"], counts["ask.results_out"]) == (20, 2, 18)
            # some values were asked for by another worker before
            assert 2 <= counts["ask.retries"] <= 8
            assert 0 < counts["ask.most_running"] <= 4
            assert counts["failed.rows"] == 2
        # what is late depends on the watermark before
        assert [counts["sums.late_dropped"] for counts in told if counts["sums.late_dropped"]] == [18]
        assert sum(counts["counted.rows"] for counts in told) == 1
        deadline = time.monotonic() + 100
        while len(caplog.messages) < 3 and time.monotonic() < deadline:
            query.awaitTermination(0.05)  # the listener is told a moment later
    finally:
        spark.streams.removeListener(lines)
    assert "moods micro-batch 0: 20 rows in" in caplog.messages[0]
    assert "ask.elements_in 20, ask.results_out 18, ask.failed 2, ask.retries" in caplog.messages[0]


def test_single_step_is_observed_in_a_bounded_job(spark: SparkSession) -> None:
    from pyspark.sql import Observation

    given = frame(spark, rows(0))
    observation = Observation("ask")
    found = enrich(
        given,
        Moody(),
        schema=event_columns(),
        name="ask",
        on_error="skip",
        observe=observation,
        concurrency=4,
    )
    count = found.count()
    told = observation.get
    assert told["ask.elements_in"] == 20
    assert told["results.rows"] == told["ask.results_out"] == count
    assert told["ask.failed"] == told["ask.skipped"] == 20 - count


def test_observed_job_keeps_nothing_in_memory(spark: SparkSession) -> None:
    def kept() -> int:
        return int(spark.sparkContext._jsc.getPersistentRDDs().size())

    async def same(row: Any) -> Any:
        return row

    before = kept()
    found = enrich(frame(spark, rows(0)), same, schema=event_columns(), observe="asked")
    assert found.count() == found.count() == 20
    assert kept() == before


def test_line_leaves_out_what_is_not_known() -> None:
    progress = SimpleNamespace(
        name=None,
        id="5f3a",
        batchId=7,
        batchDuration=0,
        numInputRows=0,
        eventTime={},
        observedMetrics=None,
    )
    assert progress_line(progress) == "5f3a micro-batch 7: 0 rows in 0.0 s"
    progress.eventTime = {"watermark": "1970-01-01T00:00:00.000Z"}
    assert progress_line(progress) == "5f3a micro-batch 7: 0 rows in 0.0 s", "there is none yet"
