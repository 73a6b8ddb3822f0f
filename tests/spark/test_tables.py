"""De-duplication, the first n, rolling results and patterns on Spark: as embedded, within a key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import LookupTable, Pattern, Pipeline, PipelineError, Stream
from tests.spark.cluster import columns, event_columns, frame, run_stream, stream
from tests.spark.contract import batches_of, embedded, embedded_to_the_end, key_of, on_spark, on_stand_in, row
from tests.spark.fake_spark import StandIn

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


def test_a_stream_is_a_table_on_the_stand_in() -> None:
    """Of one stream the rows come with the elements; what each sees is what came in earlier micro-batches."""

    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        rows, events = timed.branch(lambda row: row["v"] < 20, name="parted")
        looked = events.lookup(rows.as_table("key"), on="key", name="looked")
        return {"looked": looked, "events": events}

    first, second = batches_of(1, count=2)
    batches = [[row for row in first if row["v"] < 20], [row for row in second if row["v"] >= 20]]
    found = sorted(on_stand_in(batches, define))
    assert found == embedded(batches, define)
    assert len(found) == 80


def lookups(orders: Stream[Any], products: Stream[Any]) -> Stream[Any]:
    """Each order with its product, if it was there before it."""
    by_row = orders.lookup(products.as_table("key"), on="key", name="looked")
    by_key = orders.key_by("key").as_of(products.key_by("key"), latest=True, name="latest")
    return by_row.union(by_key).map(lambda pair: f"{pair[0]['v']} {pair[1] and pair[1]['v']}")


@pytest.mark.parametrize("inputs", [("orders", "products"), ("products", "orders")], ids=repr)
@pytest.mark.parametrize("streaming", [False, True], ids=["bounded", "stream"])
def test_the_rows_of_a_table_come_before_what_comes_with_them(
    inputs: tuple[str, str], streaming: bool, tmp_path: Path
) -> None:
    rows = {
        "orders": [[row(1_000 + at, key) | {"v": at} for at, key in enumerate("abc")] for _ in range(2)],
        "products": [[row(9_000, key) | {"v": ord(key)} for key in keys] for keys in ("ab", "c")],
    }
    from pyspark.sql.types import StringType

    spark: Any = StandIn(1)

    def frame_of(batches: list[Any]) -> Any:
        if streaming:
            return spark.stream([[batch] for batch in batches], event_columns())
        return spark.bounded(batches, event_columns())

    pipeline = Pipeline()
    orders: Stream[Any] = pipeline.source([], name="orders")
    products: Stream[Any] = pipeline.source([], name="products")
    lookups(orders, products).to([], name="lines")
    frames = {name: frame_of(rows[name]) for name in inputs}
    plan = pipeline.on_spark(
        spark, inputs=frames, outputs={"lines": columns(line=StringType())}, key_groups=3
    )
    found = (
        run_stream(plan, tmp_path)["lines"] if streaming else [line for (line,) in plan["lines"].collect()]
    )
    known = ["0 97", "1 98", "2 99"]
    missed = ["0 97", "1 98", "2 None"] if streaming else known
    assert sorted(found) == sorted(2 * (missed + known))


def test_rows_of_a_table_that_a_later_stage_has_made_come_first_too() -> None:
    """The elements are of a keyed stage, and the table is of the one behind it."""

    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        first = timed.key_by(key_of).reduce(lambda one, other: other, name="first")
        second = first.key_by("v").reduce(lambda one, other: other, name="second")
        return {"looked": first.lookup(second.as_table("key"), on="key", name="looked"), "second": second}

    found = on_stand_in([[row(1_000, key) for key in "abc"]], define)
    assert len(found) == 6
    assert not any("None" in line for line in found)


async def planes() -> Any:
    return {}


def test_a_table_that_is_read_in_the_background_is_refused() -> None:
    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        table = LookupTable.from_call(planes, every=60)
        return {"looked": timed.lookup(table, on="key", name="look"), "all": timed.map(dict)}

    with pytest.raises(PipelineError, match=r"step 'look' looks things up in a table .* \(as_table\)"):
        on_stand_in([], define)


async def asked(*_: Any) -> Any:
    return []


def test_jobs_at_a_provider_are_refused_and_calls_named_in_their_place() -> None:
    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        return {"batch": timed.async_batch(asked, asked, asked, size=2, name="ask"), "all": timed.map(dict)}

    with pytest.raises(PipelineError, match=r"step 'ask' has jobs .* call for each element \(async_map\)"):
        on_stand_in([], define)


def test_gives_what_the_embedded_engine_gives_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        latest = timed.key_by(key_of).deduplicate(keep="last", by="event_time", changes="all")
        largest = latest.key_by(key_of_change).top(2, by="v", retracts=True)
        return {"latest": latest, "largest": largest}

    batches = batches_of(3, count=2)
    plan = on_spark(spark, stream(spark, tmp_path / "in", batches), define, key_groups=2)
    assert sorted(run_stream(plan, tmp_path / "checkpoint")["lines"]) == embedded(batches, define)


def test_gives_the_same_of_all_there_is(spark: SparkSession) -> None:
    rows = [row for batch in batches_of(3) for row in batch]
    plan = on_spark(spark, frame(spark, rows, partitions=1), tables, key_groups=5)
    assert sorted(row.line for row in plan["lines"].collect()) == embedded_to_the_end(rows, tables)
