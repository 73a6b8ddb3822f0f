"""
Elements for all keys, on Spark and its stand-in: every key group has them, and what comes of them comes once.

Those of a micro-batch are ahead of its other rows, as Spark has them come.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import (
    AscendingTimestamps,
    BroadcastContext,
    KeyedBroadcastProcessFunction,
    MapDescriptor,
    Pipeline,
    Stream,
)
from asyncstream.checkpoint import Checkpoints, MemoryStore
from asyncstream.errors import CheckpointError, UserFunctionError
from asyncstream.joins.broadcast import KeyedBroadcastOperator
from asyncstream.operators.base import OperatorContext
from asyncstream.runtime.spark.state_transfer import united
from asyncstream.state import ValueDescriptor
from asyncstream.windowing import Count, TumblingWindows
from tests.spark.cluster import columns, event_columns, frame, run_stream, stream, write_more
from tests.spark.contract import (
    embedded,
    embedded_to_the_end,
    halves,
    key_of,
    on_spark,
    on_stand_in,
    run_embedded,
)
from tests.spark.fake_spark import StandIn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULES = MapDescriptor[str, int]("rules")
TOTAL = ValueDescriptor[int]("total")


def is_rule(row: Any) -> bool:
    return row["key"] in ("limit", "count", "bad", "worse")


class Totals(KeyedBroadcastProcessFunction[Any, Any, Any]):
    """
    Tells of elements whose key's total has passed the limit that stands, and of a key when a second is over.

    A limit is told of by itself, before and after what it makes of each key; "count" resets all totals; "bad"
    fails behind both.
    """

    def open(self, ctx: BroadcastContext) -> None:
        self.rules = ctx.broadcast_state(RULES)
        self.total = ctx.state(TOTAL)

    def process_element(self, value: Any, ctx: BroadcastContext, out: Any) -> None:
        total = (self.total.get() or 0) + value["v"]
        self.total.set(total)
        ctx.register_event_timer(ctx.timestamp - ctx.timestamp % 1000 + 1000)
        limits = [limit for _, limit in self.rules.items() if total > limit]
        if limits:
            out(("passed", ctx.key, value["ts"], limits))

    def process_broadcast(self, value: Any, ctx: BroadcastContext, out: Any) -> None:
        kind, number = value["key"], value["v"]
        self.rules.put(f"{kind} {number}", number)
        out(("rule", kind, number))
        ctx.side("rules", number)

        def visit(key: Any, total: Any) -> None:
            if kind != "limit":
                ctx.side("reset", (key, total.get()))
                out(("was", key, total.get()))
                total.clear()
            elif total.get() > number:
                out(("has passed", key, total.get(), number))

        ctx.apply_to_keyed_state(TOTAL, visit)
        for _ in range(300):
            out(("known", len(self.rules)))
        if kind == "bad":
            raise ValueError("a bad rule")

    def on_timer(self, timestamp: int, ctx: BroadcastContext, out: Any) -> None:
        out(("second", ctx.key, timestamp, self.total.get(), len(self.rules)))


def ruled(timed: Stream[Any]) -> dict[str, Stream[Any]]:
    rules, events = timed.filter(is_rule, name="rules"), timed.filter(lambda row: not is_rule(row))
    found = (
        events.key_by(key_of).connect(rules.broadcast()).process(Totals(), on_error="route", name="totals")
    )
    return {
        "found": found,
        "rules": found.side("rules"),
        "reset": found.side("reset"),
        "failed": found.failed.map(lambda call: (call.value["key"], repr(call.error))),
        "counted": found.filter(lambda told: told[0] == "passed")
        .key_by(lambda told: told[1])
        .count_window(3)
        .collect(name="threes"),
    }


def batches_of(seed: int, count: int = 5) -> list[list[dict[str, Any]]]:
    rng, now, batches = random.Random(seed), 1_700_000_000_000, []
    for number in range(count):
        kinds = ["limit"] if number == 0 else rng.choices(["limit", "count", "bad"], k=rng.randrange(3))
        rules = [{"key": kind, "ts": now, "v": rng.randrange(5, 30)} for kind in kinds]
        events = [] if number == 2 else [(rng.choice("abcdef"), rng.randrange(3000)) for _ in range(12)]
        batches.append([*rules, *({"key": key, "ts": now + ms, "v": rng.randrange(9)} for key, ms in events)])
        now += rng.choice((500, 4000))
    return batches


BATCHES = batches_of(1)


@pytest.mark.parametrize("seed", range(8))
def test_stream_gives_what_the_same_gives_embedded(seed: int) -> None:
    batches = batches_of(seed)
    assert sorted(on_stand_in(batches, ruled)) == embedded(batches, ruled) != []


def test_every_way_out_is_looked_at() -> None:
    lines = [line for seed in range(8) for line in embedded(batches_of(seed), ruled)]
    told = {line.split("'")[1] for line in lines if line.startswith("found")}
    assert told == {"passed", "has passed", "was", "rule", "known", "second"}
    assert {line.split(":")[0] for line in lines} == {"found", "rules", "reset", "failed", "counted"}


@pytest.mark.parametrize(("key_groups", "partitions"), [(3, 2), (1, 4), (8, 3), (2, 2)])
def test_bounded_job_gives_what_the_same_gives_embedded(key_groups: int, partitions: int) -> None:
    """What is for all keys comes first, from wherever it comes."""
    rows = [row for batch in BATCHES for row in batch]
    rules, events = [row for row in rows if is_rule(row)], [row for row in rows if not is_rule(row)]
    source: Any = StandIn(1, packed=3).bounded([events, rules], event_columns())
    plan = on_spark(source.sparkSession, source, ruled, key_groups=key_groups, partitions=partitions)
    found = sorted(line for (line,) in plan["lines"].collect())
    assert found == embedded_to_the_end([*rules, *events], ruled) != []


class Visits(KeyedBroadcastProcessFunction[Any, Any, str]):
    """Tells of keys that are visited, and of timers, with the event time that is reached."""

    def open(self, ctx: BroadcastContext) -> None:
        self.total = ctx.state(TOTAL)

    def process_element(self, value: Any, ctx: BroadcastContext, out: Any) -> None:
        self.total.set(value["v"])
        ctx.register_event_timer(value["ts"] + 500)

    def process_broadcast(self, value: Any, ctx: BroadcastContext, out: Any) -> None:
        out(f"rule at {ctx.watermark}")
        ctx.apply_to_keyed_state(TOTAL, lambda key, total: out(f"{key} visited at {ctx.watermark}"))

    def on_timer(self, timestamp: int, ctx: BroadcastContext, out: Any) -> None:
        out(f"{ctx.key} {timestamp} at {ctx.watermark}")


def test_bounded_job_moves_event_time_by_both_inputs_and_visits_each_key_once_an_element() -> None:
    from pyspark.sql.types import StringType

    pipeline = Pipeline("visits")
    timed: list[Stream[Any]] = [
        pipeline.source([], name=name).event_time(lambda row: row["ts"], AscendingTimestamps())
        for name in ("events", "rules")
    ]
    rows = {
        "events": [{"key": key, "ts": ts, "v": 1} for ts in (1_000, 2_000, 149_000) for key in "abcdef"],
        "rules": [{"key": "rule", "ts": ts, "v": 1} for ts in (50_000, 200_000)],
    }
    events, rules = timed
    events.key_by(key_of).connect(rules.broadcast()).process(Visits()).to([], name="lines")
    spark: Any = StandIn(1, partitions=2)
    inputs = {name: spark.bounded([each], event_columns()) for name, each in rows.items()}
    outputs = {"lines": columns(line=StringType())}
    plan = pipeline.on_spark(spark, inputs=inputs, outputs=outputs, key_groups=8)
    expected = ["rule at 49999"] * 2
    for key in "abcdef":
        expected += [f"{key} visited at 49999"] * 2
        expected += [f"{key} 1500 at 1999", f"{key} 2500 at 49999", f"{key} 149500 at 199999"]
    assert sorted(line for (line,) in plan["lines"].collect()) == sorted(expected)


def test_what_fails_for_a_key_fails_the_job() -> None:
    """The other key groups have gone on with the element, which cannot be left out in one of them."""

    class Failing(Totals):
        def process_broadcast(self, value: Any, ctx: BroadcastContext, out: Any) -> None:
            ctx.apply_to_keyed_state(TOTAL, lambda key, total: 1 // (key != "c"))

    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        rules, events = timed.filter(is_rule), timed.filter(lambda row: not is_rule(row))
        found = events.key_by(key_of).connect(rules.broadcast())
        return {"found": found.process(Failing(), on_error="skip", name="failing"), "all": rules}

    batches = [[{"key": key, "ts": 1_000, "v": 1} for key in "abcd"], [{"key": "limit", "ts": 1_000, "v": 1}]]
    for run in (on_stand_in, embedded):
        with pytest.raises(UserFunctionError, match=r"'failing': ZeroDiv.*, in apply_to_keyed.* on key 'c'"):
            run(batches, define)


class Rules(KeyedBroadcastProcessFunction[Any, Any, Any]):
    """Tells with each element what rules there are, in their order."""

    def open(self, ctx: BroadcastContext) -> None:
        self.rules = ctx.broadcast_state(RULES)

    def process_element(self, value: Any, ctx: BroadcastContext, out: Any) -> None:
        out((value["ts"], list(self.rules)))

    def process_broadcast(self, value: Any, ctx: BroadcastContext, out: Any) -> None:
        self.rules.put(repr(value), 1)


@pytest.mark.parametrize("seed", range(4))
def test_every_key_group_has_all_in_the_same_order(seed: int) -> None:
    """Which of several is first that keyed steps emit at once is left open, but the same everywhere."""

    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        keyed = timed.key_by(key_of)
        counts = keyed.window(TumblingWindows(1)).aggregate(n=Count(), name="counts")
        known = keyed.connect(counts.broadcast()).process(Rules(), name="rules")
        return {"known": known, "none": timed.filter(lambda row: False)}

    keys = "abcdefgh"
    batches = [[{"key": key, "ts": second * 5_000, "v": 1} for key in keys] for second in range(4)]
    source: Any = StandIn(seed).stream([[rows] for rows in batches], event_columns())
    lines = run_stream(on_spark(source.sparkSession, source, define, key_groups=5), Path())["lines"]
    assert sorted(map(len, lines)) == sorted(map(len, embedded(batches, define)))
    assert len(set(lines)) == len(batches) < len(lines) == len(keys) * len(batches)
    assert max(line.count("WindowResult") for line in lines) == 2 * len(keys)


class Pickled:
    """Counts how often it is pickled."""

    times = 0

    def __reduce__(self) -> Any:
        Pickled.times += 1
        return Pickled, ()

    def __getitem__(self, name: str) -> str:
        return "limit"


def test_element_is_pickled_once_for_all_key_groups() -> None:
    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        rules = timed.map(lambda row: Pickled())
        known = timed.key_by(key_of).connect(rules.broadcast()).process(Rules())
        return {"known": known, "none": timed.filter(lambda row: False)}

    source: Any = StandIn(1, unsteady=False).stream([[[rule("limit", 1, 2)]]], event_columns())
    Pickled.times = 0
    run_stream(on_spark(source.sparkSession, source, define, key_groups=16), Path())
    assert Pickled.times == 2, "once for the key group that speaks, and once for all others"


def rule(kind: str, number: int, ts: int) -> dict[str, Any]:
    return {"key": kind, "v": number, "ts": ts}


def test_key_groups_that_do_not_agree_are_refused_in_words() -> None:
    def snapshot(*rules: Any) -> Any:
        operator = KeyedBroadcastOperator(key_of, Rules())
        operator.open(OperatorContext("rules"))
        operator._maps.give({"rules": [[name, value] for name, value in rules]})
        return operator.snapshot()

    same = [("a", float("nan")), ("b", object)]
    operator = KeyedBroadcastOperator(key_of, Rules())
    assert operator.united([snapshot(*same), snapshot(*same)])["cells"]["broadcast"]
    graph = pipeline_of(Rules())
    told = r"step 'rules': broadcast state 'rules' .* \[\['a', 1\]\] for some and \[\['a', 2\]\] for"
    with pytest.raises(CheckpointError, match=told):
        united(graph, [{"rules": snapshot(("a", 1))}, {"rules": snapshot(("a", 2))}], 0, 0)


def pipeline_of(function: Any) -> Any:
    pipeline = Pipeline()
    rows: Stream[Any] = pipeline.source([])
    rows.key_by(key_of).connect(rows.broadcast()).process(function, name="rules").discard()
    return pipeline._graph


def test_plan_says_what_runs_in_every_key_group() -> None:
    source: Any = StandIn(1).stream([], event_columns())
    text = on_spark(source.sparkSession, source, ruled, key_groups=3).describe()
    assert "totals: process_broadcast runs in every key group" in text


def test_bounded_job_on_spark_gives_what_the_same_gives_embedded(spark: SparkSession) -> None:
    rows = sorted((row for batch in BATCHES for row in batch), key=lambda row: not is_rule(row))
    plan = on_spark(spark, frame(spark, rows, partitions=1), ruled, key_groups=5, partitions=3)
    # tasks of Spark that run several of ours, in which partitions have other numbers
    lines = plan["lines"].coalesce(2)
    found = [row.line for row in lines.union(lines).collect()]
    assert sorted(found) == sorted(2 * embedded_to_the_end(rows, ruled))


def test_stream_goes_on_from_a_checkpoint_with_other_key_groups_and_into_a_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    settings = Checkpoints(store=MemoryStore(), codec="pickle", allow_dropped=["event_time", "marks"])
    first, _ = halves(BATCHES, at=2)
    found = run_embedded(first, ruled, settings, name="event_time")

    rows = stream(spark, tmp_path / "in", BATCHES[2:3])
    plan = on_spark(spark, rows, ruled, key_groups=3, start_from=settings)
    found += run_stream(plan, tmp_path / "first")["lines"]
    wider = on_spark(spark, rows, ruled, key_groups=5, start_from=settings)
    wider.regroup(str(tmp_path / "first"), str(tmp_path / "second"))
    write_more(tmp_path / "in", BATCHES[3:4], first=1)
    found += run_stream(wider, tmp_path / "second")["lines"]

    wider.save_checkpoint(str(tmp_path / "second"), settings)
    _, rest = halves(BATCHES, at=4)
    found += run_embedded(rest, ruled, settings, name="marks")
    assert sorted(found) == embedded(BATCHES, ruled)
