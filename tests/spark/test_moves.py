"""
Pipelines that Hypothesis draws, moved from one runtime to the other and on while they run: all that comes out
is what one run alone gives.

On Spark they run in the stand-in. `test_state_transfer` and `test_rescale` move some on Spark itself.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, example, given, note, settings
from hypothesis import strategies as st

from asyncstream import (
    BoundedOutOfOrderness,
    Checkpoints,
    KeyedContext,
    KeyedProcessFunction,
    MemoryStore,
    Pipeline,
    PipelineError,
    PunctuatedWatermarks,
    Stream,
)
from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.runtime.spark import SparkPlan
from asyncstream.runtime.spark.clocks import before
from asyncstream.runtime.spark.state_transfer import save, united
from asyncstream.runtime.spark.wire.keys import KeyGroups
from asyncstream.runtime.spark.worker.group_head import remembered
from asyncstream.state import ValueDescriptor
from asyncstream.testing.loop import run_virtual
from asyncstream.windowing import TumblingWindows
from tests.spark.cluster import columns, run_stream
from tests.spark.fake_spark import StandIn
from tests.spark.generated_pipelines import (
    Batches,
    Drawn,
    Rows,
    is_of,
    row_columns,
    watermark_of,
    with_watermarks,
)
from tests.spark.steps import Processed, Windowed, ms
from tests.spark.strategies import micro_batches, pipelines

EXAMPLES = int(os.environ.get("ASYNCSTREAM_DRAWN", "40"))


class Part(NamedTuple):
    """
    Where a pipeline runs for some micro-batches.

    Attributes:
        start: the number of the first.
        spark: None: embedded.
        is_left_early: on Spark, before timers fire at the watermark that the last of them leads to.
    """

    start: int
    spark: StandIn | None
    is_left_early: bool
    key_groups: int


SPARKS = st.builds(
    StandIn,
    seed=st.integers(0, 2**16),
    partitions=st.integers(1, 4),
    packed=st.sampled_from([1, 3, 50_000]),
    unsteady=st.booleans(),
)
PARTS = st.lists(
    st.builds(Part, st.integers(0, 5), st.none() | SPARKS, st.booleans(), st.integers(1, 5)),
    min_size=1,
    max_size=4,
    unique_by=lambda part: part.start,
).map(partial(sorted, key=lambda part: part.start))

Marks = Sequence[tuple[int | None, Rows]]
"""Micro-batches, each with the watermark before it."""

STRATEGY = PunctuatedWatermarks(watermark_of)


COUNTS, ALARMS = (
    Drawn((), ((step, True),), True, 0, 1, False, False)
    for step in (
        Windowed("key", TumblingWindows(ms(5)), None, None, 0, "sums", True, True, True),
        Processed("key", 5, 0, False, False, False, True, True),
    )
)
ON_TIME: Batches = [
    [[{"k": 0, "ts": 0, "n": 1}, {"k": 0, "ts": -1, "n": 2}]],
    [[{"k": 0, "ts": -1, "n": 3}, {"k": 0, "ts": 0, "n": 4}]],
]
"""At the watermark to which the first micro-batch leads, a timer is due."""


def on_spark(start: int, *, is_left_early: bool = False) -> Part:
    """It packs envelopes as soon as it can."""
    return Part(start, StandIn(0, packed=1, unsteady=False), is_left_early, 2)


def run_embedded(drawn: Drawn, marks: Marks, **start: Any) -> list[str]:
    async def elements() -> AsyncIterator[dict[str, Any]]:
        for watermark, rows in marks:
            if watermark is not None:
                yield {"watermark": watermark}
            await asyncio.sleep(1)  # nothing goes ahead of a watermark
            for row in rows:
                yield row
            await asyncio.sleep(100)
        await asyncio.Event().wait()

    pipeline = Pipeline("drawn")
    source: Stream[Any] = pipeline.source(elements(), name="elements")
    timed = source.event_time(lambda row: row.get("ts", 0), STRATEGY, name="event_time")
    found: list[str] = []
    drawn.define([timed.filter(partial(is_of, number)) for number in range(drawn.sources)], None, found)
    pipeline._graph.unnamed.clear()  # the steps are the same in each run, and so are their numbers

    async def main() -> None:
        clock: Any = asyncio.get_running_loop()
        async with pipeline.start(clock=clock, **start) as job:
            await asyncio.sleep(200 * len(marks) + 1000)
            await job.stop()

    run_virtual(main())
    return found


def save_checkpoint(plan: SparkPlan, spark: StandIn, settings: Checkpoints) -> None:
    """What the plan's own does, of its query in the stand-in."""
    left, graph = spark.checkpoints[str(Path())], plan._graph
    groups = [kept.values for groups in left.stores.values() for kept in groups.values()]
    states, seen_ms = [], MIN_TIMESTAMP
    for values in groups:
        if "operators" in values:
            chunks = [chunk for _, chunk in sorted(values.get("chunks", ()))]
            state, watermark_ms = remembered(graph, values["operators"][0], chunks, plan._terms.classes)
            states.append(state)
            seen_ms = max(seen_ms, watermark_ms)
    save(settings, "drawn", graph, united(graph, states, before(left.next_ms), seen_ms), None)


def test_state_is_not_for_a_step_that_has_its_name_from_its_place() -> None:
    """It was that of another one, if one has come or gone before it."""
    settings = Checkpoints(store=MemoryStore(), codec="pickle", allow_dropped=["elements", "event_time"])
    run_embedded(COUNTS, [(None, [{"k": 0, "ts": 0, "n": 1, "source": 0}])], checkpoints=settings)
    spark = StandIn(0)
    inputs = [spark.stream([], row_columns())]
    with pytest.raises(PipelineError, match=r"state of 'aggregate', .*name=.*renamed={'aggregate': name}"):
        COUNTS.on_spark(spark, inputs, start_from=settings)
    assert COUNTS.on_spark(spark, inputs, named=True, start_from=settings)


class Silence(KeyedProcessFunction[Any, str]):
    """Tells of a key of which nothing has come for ten seconds."""

    def open(self, ctx: KeyedContext) -> None:
        self.due = ctx.state(ValueDescriptor[int]("due"))

    def process_element(self, value: Any, ctx: KeyedContext, out: Any) -> None:
        if (due := self.due.get()) is not None:
            ctx.delete_event_timer(due)
        self.due.set(ctx.timestamp + 10_000)
        ctx.register_event_timer(ctx.timestamp + 10_000)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Any) -> None:
        out(f"{ctx.key}: {timestamp}")
        self.due.clear()


@pytest.mark.parametrize("is_streaming", [True, False])
def test_what_was_due_between_two_micro_batches_comes_before_further_elements(is_streaming: bool) -> None:
    """An element of the key would put the timer off."""
    from pyspark.sql.types import StringType

    spark = StandIn(0, unsteady=False)
    kept = Checkpoints(store=MemoryStore(), codec="pickle")

    def plan(frame: Any, **start: Any) -> SparkPlan:
        pipeline = Pipeline("drawn")
        source: Stream[Any] = pipeline.source([], name="rows")
        timed = source.event_time("ts", BoundedOutOfOrderness(0), name="event_time")
        timed.key_by("k").process(Silence(), name="silence").to([], name="lines")
        return pipeline.on_spark(
            spark,
            inputs={"rows": frame},
            outputs={"lines": columns(line=StringType())},
            key_groups=2,
            **start,
        )

    def row(k: int, ts: int) -> dict[str, int]:
        return {"k": k, "ts": ts, "n": 0}

    spark.stop_before = 1
    before = plan(spark.stream([[[row(0, 0), row(1, 20_000)]]], row_columns()))
    assert run_stream(before, Path())["lines"] == []
    save_checkpoint(before, spark, kept)
    spark.stop_before = None
    more = [[row(0, 15_000)], [row(1, 25_000)]]
    if is_streaming:
        behind = plan(spark.stream([more], row_columns()), start_from=kept)
        found = run_stream(behind, Path("behind"))["lines"]
    else:
        found = [
            row.line for row in plan(spark.bounded(more, row_columns()), start_from=kept)["lines"].collect()
        ]
    assert found[0] == "0: 10000", found


@pytest.mark.parametrize("is_streaming", [True, False])
def test_what_is_due_at_a_watermark_that_a_call_holds_back_comes_before_further_elements(
    is_streaming: bool,
) -> None:
    """The watermark had not come to the function, in whose key group no call is under way."""
    from pyspark.sql.types import StringType

    groups = KeyGroups(2)
    held, other = next((one, two) for one in range(9) for two in range(9) if groups.of(one) < groups.of(two))
    is_held = True
    kept = Checkpoints(store=MemoryStore(), codec="pickle", allow_dropped=["rows"])

    async def ask(row: dict[str, Any]) -> dict[str, Any]:
        if is_held and row["k"] == held:
            await asyncio.Event().wait()
        return row

    def define(pipeline: Pipeline, rows: Any, to: list[str]) -> None:
        source: Stream[Any] = pipeline.source(rows, name="rows")
        timed = source.event_time("ts", BoundedOutOfOrderness(0), name="event_time")
        asked = timed.async_map(ask, order="event_time", concurrency=9, name="ask")
        asked.key_by("k").process(Silence(), name="silence").to(to, name="lines")

    def row(k: int, ts: int) -> dict[str, int]:
        return {"k": k, "ts": ts, "n": 0}

    found: list[str] = []
    pipeline = Pipeline("drawn")

    async def elements() -> AsyncIterator[dict[str, int]]:
        yield row(other, 0)
        yield row(held, 0)
        yield row(held, 20_000)
        await asyncio.Event().wait()

    define(pipeline, elements(), found)

    async def embedded() -> None:
        clock: Any = asyncio.get_running_loop()
        async with pipeline.start(clock=clock, checkpoints=kept) as job:
            await asyncio.sleep(1000)
            await job.stop()

    run_virtual(embedded())
    assert found == []
    is_held = False
    spark = StandIn(0, unsteady=False)
    more = [[row(other, 15_000)], [row(held, 21_000)]]
    frame = spark.stream([more], row_columns()) if is_streaming else spark.bounded(more, row_columns())
    pipeline = Pipeline("drawn")
    define(pipeline, [], [])
    plan = pipeline.on_spark(
        spark,
        inputs={"rows": frame},
        outputs={"lines": columns(line=StringType())},
        key_groups=2,
        start_from=kept,
    )
    if is_streaming:
        found = run_stream(plan, Path())["lines"]
    else:
        found = [row.line for row in plan["lines"].collect()]
    assert f"{other}: 10000" in found


def as_if_marked(state: Any) -> Any:
    """Of a step that finds its watermarks otherwise."""
    return [STRATEGY.generator().snapshot(), *state[1:]]


@pytest.mark.timeout(600 + EXAMPLES)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="ASYNCSTREAM_DRAWN" not in os.environ,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
@given(pipelines(streaming=True, slow=False), micro_batches(), PARTS)
@example(COUNTS, [[], [[{"k": 0, "ts": -30, "n": 1}]]], [on_spark(0), on_spark(1)])
@example(COUNTS, ON_TIME, [on_spark(0, is_left_early=True), on_spark(1)])
@example(COUNTS, ON_TIME, [on_spark(0, is_left_early=True), Part(1, None, False, 1)])
@example(ALARMS, ON_TIME, [on_spark(0, is_left_early=True), on_spark(1)])
@example(ALARMS, ON_TIME, [on_spark(0, is_left_early=True), Part(1, None, False, 1)])
def test_what_moves_between_runtimes_gives_what_one_run_gives(
    drawn: Drawn, batches: Batches, parts: list[Part]
) -> None:
    parts = [parts[0]._replace(start=0), *(part for part in parts[1:] if part.start < len(batches))]
    ends = [part.start for part in parts[1:]] + [len(batches)]
    marks = list(with_watermarks(drawn, batches, [part.start for part in parts]))
    kept = Checkpoints(store=MemoryStore(), codec="pickle", allow_dropped=["elements", "event_time-2"])
    found: list[str] = []
    last: Part | None = None
    for part, end in zip(parts, ends, strict=True):
        if part.spark is None:
            was_on_spark = last is not None and last.spark is not None
            told = replace(kept, migrate={"event_time": as_if_marked} if was_on_spark else {})
            found += run_embedded(drawn, [*marks[part.start : end], (marks[end][0], [])], checkpoints=told)
        else:
            mine = batches[part.start : end]
            inputs = [
                part.spark.stream([drawn.divided(rows, n) for rows in mine], row_columns())
                for n in range(drawn.sources)
            ]
            start: dict[str, Any] = {} if last is None else {"start_from": kept}
            plan, _ = drawn.on_spark(part.spark, inputs, named=True, key_groups=part.key_groups, **start)
            part.spark.stop_before = end - part.start if part.is_left_early and end < len(batches) else None
            for lines in run_stream(plan, Path()).values():
                found += lines
            save_checkpoint(plan, part.spark, kept)
        last = part
    expected = run_embedded(drawn, marks)
    note(f"missing {Counter(expected) - Counter(found)}\nadded {Counter(found) - Counter(expected)}")
    assert Counter(found) == Counter(expected)
