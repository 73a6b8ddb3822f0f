"""Rows that are folded before they go to their key groups, against the way of all other rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream import BoundedOutOfOrderness, Pipeline, Stream, UserFunctionError
from asyncstream.clock import ManualClock
from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.operators.base import OperatorContext
from asyncstream.plan import Output
from asyncstream.runtime.spark.stages import Stage, stages_of
from asyncstream.runtime.spark.wire import columns, folding
from asyncstream.runtime.spark.wire.columns import picks_of
from asyncstream.runtime.spark.wire.envelope import PAYLOAD, entering
from asyncstream.runtime.spark.wire.folding import folded, foldings_of, keys_of
from asyncstream.runtime.spark.wire.keys import group_of
from asyncstream.runtime.spark.worker.operators import StageOperators, Terms
from asyncstream.runtime.spark.worker.tasks import StageTask, run_stage
from asyncstream.windowing import (
    Count,
    CumulativeWindows,
    Max,
    Mean,
    Min,
    SlidingWindows,
    Sum,
    TumblingWindows,
    WindowAssigner,
    WindowPlan,
)
from asyncstream.windowing.partials import Partials, folding_of
from tests.spark.cluster import event_columns, run_stream, stream
from tests.spark.contract import batches_of, embedded, embedded_to_the_end, key_of, on_spark
from tests.spark.fake_spark import StandIn
from tests.tiers import examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUPS = 3

Define = Callable[[Stream[Any]], Any]

WINDOWS: dict[str, Callable[[], WindowAssigner]] = {
    "tumbling": lambda: TumblingWindows(2),
    "sliding": lambda: SlidingWindows(3, 1),
    "sliding, cut": lambda: SlidingWindows(3, 2),
    "cumulative": lambda: CumulativeWindows(4, 1),
}


def every(of: str) -> dict[str, Any]:
    """All aggregates that rows are folded by."""
    return {"n": Count(), "some": Count(of), "total": Sum(of), "mean": Mean(of), **extremes(of)}


def extremes(of: str) -> dict[str, Any]:
    return {"low": Min(of), "high": Max(of)}


def stages(define: Define) -> tuple[StageTask, Stage]:
    """The task of the source, with what the plan would have it fold, and the keyed stage behind it."""
    pipeline = Pipeline()
    define(pipeline.source([], name="rows"))
    first, keyed, *_ = found = stages_of(pipeline._graph, streaming=True)
    wanted = frozenset(route.number for stage in found for route in stage.exits)
    routes = {r.number for r in (*first.entries, *first.exits) if r.output == Output("rows")}
    source = tuple(sorted(routes))
    picks = picks_of(first, source, wanted, foldings_of(pipeline._graph, found))
    assert picks is not None
    terms = Terms(GROUPS, wanted, streaming=True, clocks=frozenset(step.name for step in first.steps))
    return StageTask(uuid4().hex, first, terms, source=source, event_time=True, picks=picks), keyed


class Results:
    """What the keyed stage gives for the rows of a task, by key group; `folded` counts what came folded."""

    def __init__(self, task: StageTask, keyed: Stage, batches: list[Any], watermark: int) -> None:
        self.folded = 0
        self.given: dict[int, Any] = {}
        groups: dict[int, StageOperators] = {}
        envelopes = [row for batch in run_stage(task, iter(batches)) for row in batch.to_pylist()]
        for row in envelopes:
            if row["route"] < 0:
                continue
            group = group_of(row["group"])
            parts = groups.get(group)
            if parts is None:
                parts = groups[group] = StageOperators(keyed, task.terms, None, group, watermark)
                for _ in parts.open(partial(OperatorContext, clock=ManualClock())):
                    pass
                parts.advance_watermark(watermark)
            for part in entering(row["route"], row["payload"]):
                self.folded += isinstance(part.values, Partials)
                parts.process(row["route"], part.values, part.timestamps)
        for group, parts in groups.items():
            parts.advance_watermark(MAX_TIMESTAMP)
            metrics = [operator.metrics() for operator in parts.operators.values()]
            given = [(leaving.values, leaving.timestamps) for leaving in parts.take()]
            self.given[group] = repr(given), metrics


def kinds() -> dict[str, tuple[Any, st.SearchStrategy[Any]]]:
    """Types of columns, and what is in them."""
    import pyarrow as pa

    limits = [2**63 - 1, -(2**63), 2**62, -1, 0, 1, 2]
    return {
        "int": (pa.int64(), st.sampled_from(limits)),
        "byte": (pa.int8(), st.integers(-128, 127)),
        "measure": (pa.float64(), st.sampled_from([0.0, 1.0, -1.5, float("inf"), 1e300])),
        "single": (pa.float32(), st.sampled_from([0.5, -2.0])),
        "float": (pa.float64(), st.sampled_from([0.1, 0.2, 1e300, float("nan"), -0.0])),
        "text": (pa.string(), st.sampled_from("ab")),
    }


@st.composite
def tables(draw: Any) -> tuple[list[Any], Any]:
    """Arrow batches of one partition, and the fields of the key."""
    import pyarrow as pa

    of_columns = {name: draw(st.sampled_from(sorted(kinds()))) for name in ("k0", "k1")}
    of_columns["v"] = draw(st.sampled_from(["int", "int", "byte", "float", "measure", "single"]))
    has_gaps = draw(st.booleans())
    batches = []
    for size in draw(st.lists(st.integers(0, 12), min_size=1, max_size=3)):
        arrays = {
            "ts": pa.array(draw(st.lists(st.integers(-3000, 6000), min_size=size, max_size=size)), pa.int64())
        }
        for name, kind in of_columns.items():
            of_type, values = kinds()[kind]
            values = st.none() | values if has_gaps else values
            arrays[name] = pa.array(draw(st.lists(values, min_size=size, max_size=size)), of_type)
        batches.append(pa.record_batch(arrays))
    return batches, draw(st.sampled_from(["k0", ("k0",), ("k0", "k1")]))


@pytest.fixture
def any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are folded too, whatever their keys."""
    monkeypatch.setattr(columns, "FEW", 0)
    monkeypatch.setattr(folding, "SEVERAL", 0)


@pytest.mark.usefixtures("any_number")
@pytest.mark.parametrize("windows", WINDOWS)
@settings(max_examples=examples(100))
@given(drawn=tables(), watermark=st.integers(-3000, 6000), sums=st.booleans())
def test_rows_that_are_folded_give_what_they_give_by_themselves(
    windows: str, drawn: tuple[list[Any], Any], watermark: int, sums: bool
) -> None:
    batches, key = drawn
    aggregates = every("v") if sums else extremes("v")

    def define(rows: Stream[Any]) -> None:
        keyed = rows.event_time("ts", BoundedOutOfOrderness(0)).key_by(key)
        keyed.window(WINDOWS[windows]()).aggregate(**aggregates, name="windows").to([])

    task, keyed = stages(define)

    def found(task: StageTask) -> Any:
        try:
            return Results(task, keyed, batches, watermark).given
        except UserFunctionError as error:
            return repr(error)

    assert found(task) == found(replace(task, picks=None))


def a_batch(rows: int, **more: Any) -> Any:
    import pyarrow as pa

    return pa.record_batch({"ts": [0] * rows, "key": [1, 2] * (rows // 2), "v": range(rows), **more})


def counted(rows: Stream[Any]) -> None:
    keyed = rows.event_time("ts", BoundedOutOfOrderness(0)).key_by("key")
    keyed.window(TumblingWindows(2)).aggregate(n=Count(), total=Sum("v"), name="windows").to([])


def test_rows_of_few_keys_are_folded() -> None:
    task, keyed = stages(counted)
    found = Results(task, keyed, [a_batch(1000)], -1)
    assert found.folded == len(found.given)
    assert found.given == Results(replace(task, picks=None), keyed, [a_batch(1000)], -1).given


def highest(rows: Stream[Any]) -> None:
    keyed = rows.event_time("ts", BoundedOutOfOrderness(0)).key_by("key")
    keyed.window(TumblingWindows(2)).aggregate(Max("v"), name="windows").to([])


def test_extremes_of_floats_are_folded() -> None:
    task, keyed = stages(highest)
    batch = a_batch(1000, v=[number % 7 / 2 for number in range(1000)])
    found = Results(task, keyed, [batch], -1)
    assert found.folded == len(found.given)
    assert found.given == Results(replace(task, picks=None), keyed, [batch], -1).given


def about(rows: Stream[Any]) -> None:
    keyed = rows.event_time("ts", BoundedOutOfOrderness(0)).key_by("key")
    parts: dict[str, Any] = {
        "total": Sum("v", exact=False),
        "mean": Mean("v", exact=False),
        "high": Max("v", exact=False),
    }
    keyed.window(TumblingWindows(2)).aggregate(**parts, name="windows").to([])


def test_sums_of_floats_are_folded_where_they_need_not_be_exact() -> None:
    task, keyed = stages(about)
    batch = a_batch(1000, v=[number % 7 / 4 for number in range(1000)])  # which add up exactly
    found = Results(task, keyed, [batch], -1)
    assert found.folded == len(found.given)
    assert found.given == Results(replace(task, picks=None), keyed, [batch], -1).given
    given = [part for part, _ in found.given.values()]
    assert all(text in repr(given) for text in ("'mean': 0.7", "'high': 1.5"))


def test_row_of_long_ago_is_folded_with_others() -> None:
    task, keyed = stages(counted)
    batch = a_batch(1000, ts=[*range(0, 4995, 5), -(10**13)])
    found = Results(task, keyed, [batch], -1)
    assert found.folded == len(found.given)
    assert found.given == Results(replace(task, picks=None), keyed, [batch], -1).given


def told_of_late_ones(rows: Stream[Any]) -> None:
    keyed = rows.event_time("ts", BoundedOutOfOrderness(0)).key_by("key")
    results = keyed.window(TumblingWindows(2)).aggregate(n=Count(), name="windows")
    results.to([])
    results.late.to([])


@pytest.mark.parametrize(
    ("define", "batch"),
    [
        (counted, lambda: a_batch(1000, v=[0.5] * 1000)),
        (counted, lambda: a_batch(1000, v=[True] * 1000)),
        (highest, lambda: a_batch(1000, v=[0.5, float("nan")] * 500)),
        (highest, lambda: a_batch(1000, v=[0.0, -0.0] * 500)),
        (counted, lambda: a_batch(1200, ts=[number // 4 * 2000 for number in range(1200)], key=[1] * 1200)),
        (counted, lambda: a_batch(1000, key=[number // 2 * 2 + number % 3 for number in range(1000)])),
        (told_of_late_ones, lambda: a_batch(1000)),
    ],
    ids=["floats", "truths", "not a number", "zeros", "slices", "keys", "late"],
)
def test_rows_go_by_themselves(define: Define, batch: Callable[[], Any]) -> None:
    task, keyed = stages(define)
    found = Results(task, keyed, [batch()], -1)
    assert found.folded == 0
    assert found.given == Results(replace(task, picks=None), keyed, [batch()], -1).given


def test_what_rows_of_large_keys_are_folded_to_is_packed_a_few_at_a_time() -> None:
    keys = ["x" * (PAYLOAD // 10) + str(number) for number in range(40)]
    batch = a_batch(200, key=keys * 5)
    task, keyed = stages(counted)
    sizes = [len(payload) for out in run_stage(task, iter([batch])) for payload in out["payload"].to_pylist()]
    assert max(sizes) <= PAYLOAD < sum(sizes) < 2 * len("".join(keys))
    found = Results(task, keyed, [batch], -1)
    assert found.given == Results(replace(task, picks=None), keyed, [batch], -1).given


def test_column_that_is_not_there_is_missed_as_ever() -> None:
    import pyarrow as pa

    task, keyed = stages(counted)
    with pytest.raises(UserFunctionError, match="no field 'v'"):
        Results(task, keyed, [pa.record_batch({"ts": [0] * 1000, "key": [1] * 1000})], -1)


def test_sums_are_exact_beyond_64_bits() -> None:
    import numpy as np

    most, least = 2**63 - 1, -(2**63)
    batch = a_batch(6, key=[1, 1, 1, 2, 2, 2], v=[most, most, most, least, least, -1])
    plan = WindowPlan(TumblingWindows(2), aggregate=Sum("v"))
    of_plan = folding_of(plan)
    assert of_plan is not None
    found = folded(of_plan, batch, np.zeros(6, np.int64), keys_of(batch, "key"))
    assert found is not None
    assert found.accumulators[0].tolist() == [3 * most, 2 * least - 1]


def test_keys_of_several_fields_are_in_the_order_in_which_they_come() -> None:
    batch = a_batch(6, key=["b", "a", "b", None, "a", "b"], v=[1, 1, 2, 1, 1, 1])
    each, codes = keys_of(batch, ("key", "v"))
    assert each == [("b", 1), ("a", 1), ("b", 2), (None, 1)]
    assert codes.tolist() == [0, 1, 2, 3, 1, 0]


def windows_of_fields(timed: Stream[Any]) -> dict[str, Stream[Any]]:
    """Windows whose rows may be folded, by either kind of key."""
    keys: dict[str, Any] = {"field": "key", "fields": ("key", "v"), "function": key_of}
    found: dict[str, Stream[Any]] = {}
    for name, key in keys.items():
        for number, make in enumerate(WINDOWS.values()):
            step = f"{name}_{number}"
            found[step] = timed.key_by(key).window(make()).aggregate(**every("v"), name=step)
    return found


def windows_of_one_field(timed: Stream[Any]) -> dict[str, Stream[Any]]:
    """Some of them."""
    keyed = timed.key_by("key")
    return {
        "tumbling": keyed.window(TumblingWindows(2)).aggregate(**every("v"), name="tumbling"),
        "sliding": keyed.window(SlidingWindows(3, 1)).aggregate(**every("v"), name="sliding"),
    }


@pytest.fixture
def seen(any_number: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows have been folded."""
    rows: list[int] = []

    def noting(folding: Any, batch: Any, stamps: Any, keys: Any) -> Any:
        found = folded(folding, batch, stamps, keys)
        if found is not None:
            rows.append(batch.num_rows)
        return found

    monkeypatch.setattr(columns, "folded", noting)
    return rows


@pytest.mark.parametrize("seed", range(6))
def test_stream_of_folded_rows_gives_what_the_embedded_engine_gives(seed: int, seen: list[int]) -> None:
    batches, parts = batches_of(seed), 1 + seed % 2

    def partitions() -> list[list[list[dict[str, Any]]]]:
        sizes = [-(-len(rows) // parts) for rows in batches]
        return [
            [rows[at : at + size] for at in range(0, len(rows), size)]
            for rows, size in zip(batches, sizes, strict=True)
        ]

    source: Any = StandIn(seed, records=50).stream(partitions(), event_columns())
    plan = on_spark(source.sparkSession, source, windows_of_fields, key_groups=GROUPS)
    assert sorted(run_stream(plan, Path())["lines"]) == embedded(batches, windows_of_fields)
    assert sum(seen) >= sum(map(len, batches))


def test_bounded_job_of_folded_rows_gives_what_the_embedded_engine_gives(seen: list[int]) -> None:
    rows = [row for some in batches_of(7) for row in some]
    frame: Any = StandIn(7, records=50).bounded([rows[:100], rows[100:]], event_columns())
    plan = on_spark(frame.sparkSession, frame, windows_of_fields, key_groups=GROUPS)
    found = [row["line"] for row in plan["lines"].collect()]
    assert sorted(found) == sorted(embedded_to_the_end(rows, windows_of_fields))
    assert sum(seen) >= len(rows)


def test_stream_of_folded_rows_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    batches = batches_of(8, count=4, size=600)
    source = stream(spark, tmp_path / "in", batches)
    plan = on_spark(spark, source, windows_of_one_field, key_groups=2)
    found = run_stream(plan, tmp_path / "checkpoint")["lines"]
    assert sorted(found) == embedded(batches, windows_of_one_field)
