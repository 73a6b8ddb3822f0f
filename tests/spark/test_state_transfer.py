"""
State goes from the embedded engine to Spark and back: what comes out is what one run alone would have given.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import (
    BoundedOutOfOrderness,
    KeyedContext,
    KeyedProcessFunction,
    NoWatermarks,
    Pipeline,
    PipelineError,
    Stream,
)
from asyncstream.checkpoint import Checkpoints, DirectoryStore, MemoryStore
from asyncstream.errors import CheckpointError
from asyncstream.state import ValueDescriptor
from asyncstream.testing.loop import run_virtual
from asyncstream.windowing import Count, Sum, TumblingWindows
from tests.spark.cluster import frame, run_stream, run_to_the_end, stream, write_batches
from tests.spark.contract import (
    DELAY,
    Definition,
    batches_of,
    embedded,
    functions,
    halves,
    key_of,
    on_spark,
    run_embedded,
    told,
    windows,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def answer(held: Callable[[Any], bool], row: dict[str, Any]) -> dict[str, Any]:
    if held(row):
        await asyncio.sleep(10_000)
    return row | {"v": row["v"] + 1}


def never(row: Any) -> bool:
    return False


def some(row: Any) -> bool:
    return bool(row["v"] > 50)


def calls(timed: Stream[Any], held: Callable[[Any], bool] = never) -> dict[str, Stream[Any]]:
    """Calls before windows, behind them, and one after the other for each key."""
    ask = partial(answer, held)
    asked = timed.async_map(ask, concurrency=100, name="ask")
    sums = (
        asked.key_by(key_of).window(TumblingWindows(2)).aggregate(n=Count(), total=Sum("v"), name="summing")
    )
    again = sums.map(lambda result: {"key": result.key, "v": result.value["total"]}).async_map(
        ask, name="ask_again"
    )
    by_key = timed.key_by(key_of).async_map(ask, order="per_key", concurrency=100, name="ask_by_key")
    return {
        "sums": sums,
        "late": sums.late,
        "again": again.key_by(key_of).count_window(3).aggregate(total=Sum("v"), name="threes"),
        "by_key": by_key,
        "counted": by_key.key_by(key_of).count_window(4).collect(name="fours"),
    }


@pytest.mark.parametrize("define", [windows, functions])
def test_stream_goes_on_from_a_checkpoint_of_the_embedded_engine(
    spark: SparkSession, tmp_path: Path, define: Definition
) -> None:
    batches = batches_of(4, count=4)
    first, _ = halves(batches, at=2)
    settings = Checkpoints(store=MemoryStore(), codec="pickle")
    found = run_embedded(first, define, settings, name="event_time")
    plan = on_spark(
        spark, stream(spark, tmp_path / "in", batches[2:]), define, key_groups=5, start_from=settings
    )
    found += run_stream(plan, tmp_path / "checkpoint")["lines"]
    assert sorted(found) == embedded(batches, define)


def test_query_that_is_started_again_does_not_take_up_its_heritage_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches = batches_of(7, count=4)
    first, _ = halves(batches, at=2)
    settings = Checkpoints(store=MemoryStore(), codec="pickle")
    found = run_embedded(first, partial(calls, held=some), settings, name="event_time")
    checkpoint = tmp_path / "checkpoint"
    rows = stream(spark, tmp_path / "in", batches[2:3])
    found += run_stream(on_spark(spark, rows, calls, key_groups=5, start_from=settings), checkpoint)["lines"]
    write_batches(tmp_path / "more", batches[3:])
    for path in (tmp_path / "more").iterdir():
        later = path.stat().st_mtime + 2
        moved = path.rename(tmp_path / "in" / f"more {path.name}")
        os.utime(moved, (later, later))
    found += run_stream(on_spark(spark, rows, calls, key_groups=5, start_from=settings), checkpoint)["lines"]
    assert sorted(found) == embedded(batches, calls)


@pytest.mark.parametrize("define", [windows, functions])
def test_embedded_engine_goes_on_from_a_checkpoint_of_spark(
    spark: SparkSession, tmp_path: Path, define: Definition
) -> None:
    batches = batches_of(5, count=4)
    plan = on_spark(spark, stream(spark, tmp_path / "in", batches[:2]), define, key_groups=5)
    found = run_stream(plan, tmp_path / "checkpoint")["lines"]
    store = MemoryStore()
    info = plan.save_checkpoint(str(tmp_path / "checkpoint"), Checkpoints(store=store, codec="pickle"))
    assert info.pipeline == "spark"
    _, rest = halves(batches, at=2)
    # the watermarks of this test come from another strategy than that of the query
    settings = Checkpoints(store=store, codec="pickle", allow_dropped=["event_time"])
    found += run_embedded(rest, define, settings, name="marks")
    assert sorted(found) == embedded(batches, define)


class Totals(KeyedProcessFunction[Any, Any]):
    def open(self, ctx: KeyedContext) -> None:
        self.total = ctx.state(ValueDescriptor[int]("total", default=0))

    def process_element(self, value: Any, ctx: KeyedContext, out: Any) -> None:
        self.total.set(self.total.get() + value["v"])
        out(self.total.get())


def totals(timed: Stream[Any]) -> dict[str, Stream[Any]]:
    return {"total": timed.key_by(key_of).process(Totals(), name="totals"), "all": timed.map(dict)}


def in_cents(state: Any) -> Any:
    ((space, rows),) = state["tables"]["state/total"]
    return {**state, "tables": {"state/total": [[space, [[key, 100 * total] for key, total in rows]]]}}


def test_what_spark_has_migrated_is_not_migrated_again(spark: SparkSession, tmp_path: Path) -> None:
    batches = [[row(n)] for n in range(3)]
    before, _ = halves(batches, at=1)
    store = MemoryStore()
    settings = Checkpoints(store=store, codec="pickle", migrate={"totals": in_cents})
    found = run_embedded(before, totals, Checkpoints(store=store, codec="pickle"), name="event_time")
    rows = stream(spark, tmp_path / "in", batches[1:2])
    plan = on_spark(spark, rows, totals, key_groups=2, start_from=settings)
    found += run_stream(plan, tmp_path / "checkpoint")["lines"]
    info = plan.save_checkpoint(str(tmp_path / "checkpoint"), Checkpoints(store=store, codec="pickle"))
    assert info.migrated == settings.migrations
    found += run_embedded(batches[2], totals, replace(settings, allow_dropped=["event_time"]), name="marks")
    assert [line for line in found if line.startswith("total")] == ["total: 1", "total: 101", "total: 102"]


class Fat(KeyedProcessFunction[Any, Any]):
    """Remembers much of a key, and tells what it remembered before."""

    def open(self, ctx: KeyedContext) -> None:
        self.kept = ctx.state(ValueDescriptor[str]("kept"))

    def process_element(self, value: Any, ctx: KeyedContext, out: Any) -> None:
        before = self.kept.get() or ""
        out({"key": ctx.key, "ts": value["ts"], "before": before[:20], "length": len(before)})
        self.kept.set(random.Random(value["ts"]).randbytes(200_000).hex())


def fat(timed: Stream[Any]) -> dict[str, Stream[Any]]:
    return {"fat": timed.key_by(key_of).process(Fat(), name="fat"), "all": timed.map(dict)}


def test_groups_of_megabytes_go_on_and_are_saved(spark: SparkSession, tmp_path: Path) -> None:
    """Their logs are in chunks, and their tables in files."""
    batches = [[row(100 * n + k, key) for k, key in enumerate("abcdefgh")] for n in range(4)]
    rows = stream(spark, tmp_path / "in", batches[:3])
    plan = on_spark(spark, rows, fat, key_groups=2, held_bytes=0)
    found = run_stream(plan, tmp_path / "checkpoint")["lines"]
    settings = Checkpoints(store=MemoryStore(), codec="pickle", allow_dropped=["event_time"])
    plan.save_checkpoint(str(tmp_path / "checkpoint"), settings)
    _, rest = halves(batches, at=3)
    found += run_embedded(rest, fat, settings, name="marks")
    assert sorted(found) == embedded(batches, fat)


def test_saved_watermark_holds_in_the_embedded_engine(spark: SparkSession, tmp_path: Path) -> None:
    batches = [[row(0), row(9_000)], [row(9_500)]]

    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        sums = timed.key_by(key_of).window(TumblingWindows(2)).aggregate(n=Count(), name="sums")
        return {"sums": sums, "late": sums.late}

    plan = on_spark(spark, stream(spark, tmp_path / "in", batches), define)
    assert len(run_stream(plan, tmp_path / "checkpoint")["lines"]) == 1
    settings = str(tmp_path / "saved")
    plan.save_checkpoint(str(tmp_path / "checkpoint"), settings)
    pipeline = Pipeline("spark")
    timed = pipeline.source([row(1_000), row(8_500)], name="rows").event_time(
        lambda row: row["ts"], BoundedOutOfOrderness(DELAY), name="event_time"
    )
    found: list[str] = []
    told(define(timed)).to(found, name="lines")
    pipeline.run_blocking(checkpoints=settings)
    assert [line.split(":")[0] for line in found] == ["late", "sums"]
    assert "start_ms=8000" in found[1]
    assert "'n': 3" in found[1]


def test_bounded_job_goes_on_from_a_checkpoint(spark: SparkSession) -> None:
    rows = [row for batch in batches_of(6) for row in batch]

    async def main(pipeline: Pipeline, settings: Checkpoints) -> None:
        async with pipeline.start(checkpoints=settings) as job:
            await asyncio.sleep(3600)
            await job.stop()

    async def endless() -> AsyncIterator[Any]:
        for row in rows[:200]:
            yield row
        await asyncio.Event().wait()

    found: list[str] = []
    pipeline = Pipeline("spark")
    timed = pipeline.source(endless(), name="rows").event_time(
        lambda row: row["ts"], NoWatermarks(), name="event_time"
    )
    told(calls(timed, some)).to(found, name="lines")
    settings = Checkpoints(store=MemoryStore(), codec="pickle")
    run_virtual(main(pipeline, settings))

    plan = on_spark(spark, frame(spark, rows[200:]), calls, key_groups=5, start_from=settings)
    found += [row.line for row in plan["lines"].collect()]
    expected: list[str] = []
    whole = Pipeline()
    told(calls(whole.source(rows).event_time(lambda row: row["ts"], NoWatermarks()))).to(expected)
    whole.run_blocking()

    def kind(lines: list[str], *names: str) -> list[str]:
        return sorted(line for line in lines if line.split(":")[0] in names)

    assert kind(found, "sums", "by_key") == kind(expected, "sums", "by_key")
    assert len(found) == len(expected)


def test_what_cannot_be_taken_over_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    rows = frame(spark, [row(1)])
    empty = Checkpoints(store=DirectoryStore(tmp_path))
    with pytest.raises(PipelineError, match="there is no checkpoint in"):
        on_spark(spark, rows, windows, start_from=empty)
    with pytest.raises(PipelineError, match="restore='none' starts from nothing"):
        on_spark(spark, rows, windows, start_from=Checkpoints(store=MemoryStore(), restore="none"))
    with pytest.raises(PipelineError, match="start_from: expected Checkpoints"):
        on_spark(spark, rows, windows, start_from=3)
    settings = Checkpoints(store=MemoryStore(), codec="pickle")
    run_embedded([row(1)], windows, settings, name="event_time")
    with pytest.raises(CheckpointError, match="holds the state of steps that this pipeline does not have"):
        on_spark(spark, rows, functions, start_from=settings)
    with pytest.raises(PipelineError, match="the inputs are bounded"):
        on_spark(spark, rows, windows).save_checkpoint(str(tmp_path), empty)
    plan = on_spark(spark, stream(spark, tmp_path / "in", []), windows)
    with pytest.raises(PipelineError, match="settings: expected Checkpoints"):
        plan.save_checkpoint(str(tmp_path), 3)  # type: ignore[arg-type]


def test_what_is_no_checkpoint_of_the_plan_is_refused_in_words(spark: SparkSession, tmp_path: Path) -> None:
    rows = stream(spark, tmp_path / "in", [[row(1)]])
    plan = on_spark(spark, rows, windows)
    settings = Checkpoints(store=MemoryStore(), codec="pickle")
    run_to_the_end(plan.write_stream(lambda outputs, number: None), tmp_path / "lost")
    shutil.rmtree(tmp_path / "lost" / "state")
    plain, counts = rows.writeStream, rows.groupBy("key").count().writeStream.outputMode("update")
    for writer, name in ((plain, "plain"), (counts, "counts")):
        run_to_the_end(writer.format("noop"), tmp_path / name)
    (tmp_path / "file").touch()
    of_another = "is not of this plan: it has {} operators with state .*, and this plan 1"
    for name, words in {
        "lost": of_another.format(0) + ".*its folder 'state' is gone",
        "plain": of_another.format(0),
        "counts": of_another.format(1),
        "absent": "cannot read what a query has left .*Path does not exist.*checkpointLocation",
        "file": "cannot read what a query has left",
    }.items():
        with pytest.raises(CheckpointError, match=words):
            plan.save_checkpoint(str(tmp_path / name), settings)


def row(ts: int, key: str = "k") -> dict[str, Any]:
    return {"key": key, "ts": ts, "v": 1}
