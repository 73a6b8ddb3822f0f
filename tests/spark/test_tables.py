"""De-duplication, the first n, rolling results and patterns on Spark: as embedded, within a key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import Pattern, Pipeline, Stream
from tests.spark.cluster import frame, run_stream, stream
from tests.spark.test_contract import batches_of, embedded, embedded_to_the_end, key_of, on_spark
from tests.spark.test_keyed import on_stand_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def key_of_change(change: Any) -> Any:
    return change.value["key"]


def tables(timed: Stream[Any]) -> dict[str, Stream[Any]]:
    keyed = timed.key_by(key_of)
    latest = keyed.deduplicate(keep="last", by="event_time", changes="all", name="latest")
    earliest = timed.deduplicate(("key", "v"), by="event_time", name="earliest")
    small: Pattern[Any] = Pattern.begin("small", lambda row: row["v"] % 3 == 0)
    pattern = small.followed_by("large", lambda row: row["v"] % 5 == 0).times(1, 2).within(6)
    matches = keyed.pattern(pattern, name="matches")
    return {
        "matches": matches,
        "timed_out": matches.timed_out,
        "too_late": matches.late,
        "first": keyed.deduplicate(within=3600, name="first"),
        "earliest": earliest,
        "late": earliest.late,
        "latest": latest,
        "largest": latest.key_by(key_of_change).top(2, by="v", retracts=True, name="best"),
        "smallest": keyed.top(2, by="ts", order="ascending", changes="all", ranked=True, name="smallest"),
        "sum": keyed.reduce(lambda one, other: {**other, "v": one["v"] + other["v"]}, name="sum"),
        "oldest": keyed.min_by("ts", ttl=3600, name="oldest"),
    }


@pytest.mark.parametrize("seed", [1, 2])
def test_gives_what_the_embedded_engine_gives_on_the_stand_in(seed: int) -> None:
    batches = batches_of(seed)
    found = sorted(on_stand_in(batches, tables))
    assert found == embedded(batches, tables)
    assert {line.split(":")[0] for line in found} == set(tables(Pipeline().source([])))


@pytest.mark.timeout(400)
def test_gives_what_the_embedded_engine_gives_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        latest = timed.key_by(key_of).deduplicate(keep="last", by="event_time", changes="all")
        largest = latest.key_by(key_of_change).top(2, by="v", retracts=True)
        return {"latest": latest, "largest": largest}

    batches = batches_of(3, count=2)
    plan = on_spark(spark, stream(spark, tmp_path / "in", batches), define, key_groups=2)
    assert sorted(run_stream(plan, tmp_path / "checkpoint")["lines"]) == embedded(batches, define)


@pytest.mark.timeout(400)
def test_gives_the_same_of_all_there_is(spark: SparkSession) -> None:
    rows = [row for batch in batches_of(3) for row in batch]
    plan = on_spark(spark, frame(spark, rows, partitions=1), tables, key_groups=5)
    assert sorted(row.line for row in plan["lines"].collect()) == embedded_to_the_end(rows, tables)
