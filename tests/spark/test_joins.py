"""Joins on the stand-in for Spark: those by key run as they are; what every task would need is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asyncstream import (
    BroadcastContext,
    KeyedBroadcastProcessFunction,
    PipelineError,
    Stream,
    TumblingWindows,
)
from tests.joins.latest import Latest
from tests.spark.cluster import event_columns
from tests.spark.contract import embedded, embedded_to_the_end, on_spark, on_stand_in, row
from tests.spark.fake_spark import StandIn

Joined = Callable[[Any, Any], Any]


def key_of(value: Any) -> Any:
    return value["key"]


def sides(join: Joined) -> Callable[[Stream[Any]], dict[str, Stream[Any]]]:
    """The rows with an even `v` with the others."""

    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        left = timed.filter(lambda row: row["v"] % 2 == 0, name="left").key_by(key_of)
        right = timed.filter(lambda row: row["v"] % 2, name="right").key_by(key_of)
        return {"found": join(left, right).map(_plain), "all": timed.map(lambda row: row["v"])}

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
    define = sides(join)
    found = sorted(on_stand_in(BATCHES, define))
    assert found == embedded(BATCHES, define) != []


@pytest.mark.parametrize("join", JOINS.values(), ids=JOINS)
def test_bounded_job_gives_what_the_same_gives_embedded(join: Joined) -> None:
    source: Any = StandIn(1).bounded(BATCHES, event_columns())
    plan = on_spark(source.sparkSession, source, sides(join), key_groups=3)
    found = sorted(line for (line,) in plan["lines"].collect())
    assert found == embedded_to_the_end([row for batch in BATCHES for row in batch], sides(join)) != []


class Ruled(KeyedBroadcastProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, ctx: BroadcastContext, out: Any) -> None:
        out(value)

    def process_broadcast(self, value: Any, ctx: BroadcastContext, out: Any) -> None:
        pass


def test_broadcast_is_refused_in_words() -> None:
    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        rules = timed.filter(lambda row: row["v"] == 0, name="rules")
        ruled = timed.key_by(key_of).connect(rules.broadcast()).process(Ruled(), name="ruled")
        return {"found": ruled, "rules": rules}

    source: Any = StandIn(1).bounded(BATCHES, event_columns())
    with pytest.raises(PipelineError, match="step 'ruled' brings keys together and reads 'rules' without"):
        on_spark(source.sparkSession, source, define)


def test_function_of_two_inputs_finds_in_a_later_micro_batch_what_came_by_the_other() -> None:
    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        questions = timed.filter(lambda row: row["v"] == 0).key_by(key_of)
        facts = timed.filter(lambda row: row["v"]).key_by(key_of)
        return {"found": questions.connect(facts).process(Latest()), "all": facts.map(key_of)}

    batches = [[row(1_000, key) for key in "abc"], [row(1_500, key) | {"v": 0} for key in "cba"]]
    assert sorted(on_stand_in(batches, define)) == embedded(batches, define) != []
