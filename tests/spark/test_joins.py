"""Joins on Spark and its stand-in: those by key run as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import (
    BoundedOutOfOrderness,
    KeyedStream,
    Pipeline,
    Stream,
    TumblingWindows,
)
from tests.joins.latest import Latest
from tests.spark.cluster import event_columns, frame, run_stream, stream
from tests.spark.contract import embedded, embedded_to_the_end, on_spark, on_stand_in, row
from tests.spark.fake_spark import StandIn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Joined = Callable[[Any, Any], Any]


def key_of(value: Any) -> Any:
    return value["key"]


def sides(**joins: Joined) -> Callable[[Stream[Any]], dict[str, Stream[Any]]]:
    """The rows with an even `v` with the others, by all of these joins."""

    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        left = timed.filter(lambda row: row["v"] % 2 == 0, name="left").key_by(key_of)
        right = timed.filter(lambda row: row["v"] % 2, name="right").key_by(key_of)
        found = {name: join(left, right).map(_plain) for name, join in joins.items()}
        return found | {"all": timed.map(lambda row: row["v"])}

    return define


def _plain(pair: Any) -> Any:
    """Rows as what identifies them, whichever runtime made the dict."""
    return [None if one is None else (one["key"], one["ts"], one["v"]) for one in pair]


JOINS: dict[str, Joined] = {
    "interval": lambda left, right: left.join(right).within(2, 2),
    "interval, full": lambda left, right: left.join(right, how="full").within(1, 2),
    "window": lambda left, right: left.join(right, how="left").window(TumblingWindows(5)),
    "as of": lambda left, right: left.as_of(right),
}

BATCHES = [
    [row(1_000 + at, key) | {"v": at // 100 + (key == "b")} for at in range(0, 2_000, 300) for key in "abc"],
    [row(2_500 + at, key) | {"v": at // 100 + (key == "a")} for at in range(0, 2_000, 300) for key in "abd"],
    [row(30_000, key) | {"v": at} for at in range(2) for key in "abcd"],
    [row(60_000, "z") | {"v": 0}],
]


@pytest.mark.parametrize("join", JOINS.values(), ids=JOINS)
def test_stream_gives_what_the_same_gives_embedded(join: Joined) -> None:
    define = sides(found=join)
    found = sorted(on_stand_in(BATCHES, define))
    assert found == embedded(BATCHES, define) != []


@pytest.mark.parametrize("join", JOINS.values(), ids=JOINS)
def test_bounded_job_gives_what_the_same_gives_embedded(join: Joined) -> None:
    source: Any = StandIn(1).bounded(BATCHES, event_columns())
    plan = on_spark(source.sparkSession, source, sides(found=join), key_groups=3)
    found = sorted(line for (line,) in plan["lines"].collect())
    assert found == embedded_to_the_end([row for batch in BATCHES for row in batch], sides(found=join)) != []


every_join = sides(**JOINS)


def test_stream_on_spark_gives_what_the_same_gives_embedded(spark: SparkSession, tmp_path: Path) -> None:
    plan = on_spark(spark, stream(spark, tmp_path / "in", BATCHES), every_join, key_groups=2)
    found = sorted(run_stream(plan, tmp_path / "checkpoint")["lines"])
    assert found == embedded(BATCHES, every_join) != []


def test_bounded_job_on_spark_gives_what_the_same_gives_embedded(spark: SparkSession) -> None:
    rows = [row for batch in BATCHES for row in batch]
    plan = on_spark(spark, frame(spark, rows, partitions=1), every_join, key_groups=3)
    assert sorted(row.line for row in plan["lines"].collect()) == embedded_to_the_end(rows, every_join) != []


def test_sources_with_delays_of_their_own_are_joined_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    """The payments are three seconds behind the orders, and none of them is late."""
    orders = [[row(1_000 * at, key) for key in "ab"] for at in range(10, 30, 4)]
    payments = [[row(each["ts"] + 500 - 3_000, each["key"]) for each in batch] for batch in orders]
    expected = [
        (order["key"], order["ts"], payment["ts"])
        for batch in orders
        for order in batch
        for others in payments
        for payment in others
        if order["key"] == payment["key"] and 0 <= payment["ts"] - order["ts"] <= 4_000
    ]
    pipeline = Pipeline("paid")
    keyed: dict[str, KeyedStream[Any, Any]] = {
        name: pipeline.source([], name=name)
        .event_time(lambda row: row["ts"], BoundedOutOfOrderness(delay), name=f"time of {name}")
        .key_by(key_of)
        for name, delay in {"orders": 1, "payments": 5}.items()
    }
    pairs = keyed["orders"].join(keyed["payments"]).within(0, 4)
    pairs.map(lambda pair: repr((pair[0]["key"], pair[0]["ts"], pair[1]["ts"]))).to([], name="paid")
    plan = pipeline.on_spark(
        spark,
        inputs={
            "orders": stream(spark, tmp_path / "o", orders),
            "payments": stream(spark, tmp_path / "p", payments),
        },
        outputs={"paid": "line string"},
        key_groups=2,
    )
    found = run_stream(plan, tmp_path / "checkpoint")["paid"]
    assert sorted(found) == sorted(map(repr, expected)) != []


def test_function_of_two_inputs_finds_in_a_later_micro_batch_what_came_by_the_other() -> None:
    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        questions = timed.filter(lambda row: row["v"] == 0).key_by(key_of)
        facts = timed.filter(lambda row: row["v"]).key_by(key_of)
        return {"found": questions.connect(facts).process(Latest()), "all": facts.map(key_of)}

    batches = [[row(1_000, key) for key in "abc"], [row(1_500, key) | {"v": 0} for key in "cba"]]
    assert sorted(on_stand_in(batches, define)) == embedded(batches, define) != []
