"""What a stream's own checkpoint holds is taken up by the steps that it is for, or refused in words."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from asyncstream import BoundedOutOfOrderness, KeyedProcessFunction, Pipeline, Stream
from asyncstream.errors import CheckpointError, PipelineError
from asyncstream.runtime.spark import SparkPlan, failure_text
from asyncstream.runtime.spark.failures import failure_in
from asyncstream.runtime.spark.plan import _unnamed
from asyncstream.runtime.spark.stages import StageKind, stages_of
from asyncstream.runtime.spark.wire.batches import NOW
from asyncstream.runtime.spark.wire.envelope import CLOCK
from asyncstream.runtime.spark.wire.keys import label_of
from asyncstream.runtime.spark.worker import group_memory
from asyncstream.runtime.spark.worker.group_head import remembered
from asyncstream.runtime.spark.worker.keyed import KeyGroup
from asyncstream.runtime.spark.worker.operators import Terms
from asyncstream.state import ListDescriptor, ValueDescriptor
from asyncstream.windowing import Count, CountTrigger, Max, SessionWindows, Sum, TumblingWindows
from tests.codec.changed import CHANGES, kept_class
from tests.spark.cluster import event_columns, run_stream, stream, write_more
from tests.spark.contract import on_spark, row
from tests.spark.fake_spark import StandIn
from tests.state.asking import Opens

Define = Callable[[Stream[Any]], Stream[Any]]


def key_of(row: Any) -> Any:
    return row["key"]


def windows(size: float = 60, *, name: str | None = "w", lateness: float = 0, **of: Any) -> Define:
    def define(rows: Stream[Any]) -> Stream[Any]:
        windowed = rows.key_by(key_of).window(TumblingWindows(size)).allowed_lateness(lateness)
        return (windowed.aggregate(**of) if name is None else windowed.aggregate(name=name, **of)).map(repr)

    return define


def sessions(rows: Stream[Any]) -> Stream[Any]:
    return rows.key_by(key_of).window(SessionWindows(60)).aggregate(n=Count(), name="w").map(repr)


def triggered(rows: Stream[Any]) -> Stream[Any]:
    windowed = rows.key_by(key_of).window(TumblingWindows(60)).trigger(CountTrigger(3))
    return windowed.aggregate(n=Count(), name="w").map(repr)


class Remembers(KeyedProcessFunction[Any, Any]):
    def __init__(self, state: Any) -> None:
        self.state = state

    def open(self, ctx: Any) -> None:
        ctx.state(self.state)

    def process_element(self, value: Any, ctx: Any, out: Any) -> None: ...


def function(state: Any) -> Define:
    return lambda rows: rows.key_by(key_of).process(Remembers(state), name="w")


def both(*of: Define) -> Define:
    def define(rows: Stream[Any]) -> Stream[Any]:
        first, *others = [define(rows) for define in of]
        return first.union(*others)

    return define


def joined(left: str, right: str) -> Define:
    def define(rows: Stream[Any]) -> Stream[Any]:
        one, other = (rows.filter(bool, name=name).key_by(key_of) for name in (left, right))
        return one.join(other).within(0, 1, name="w").map(repr)

    return define


class Store:
    """The state of one key group."""

    blob: tuple[bytes] | None = None

    def get(self) -> tuple[bytes] | None:
        return self.blob

    def update(self, value: tuple[bytes]) -> None:
        self.blob = value


def graph_of(define: Define) -> Any:
    pipeline = Pipeline()
    source: Stream[Any] = pipeline.source([])
    timed = source.event_time(lambda row: row["ts"], BoundedOutOfOrderness(0))
    define(timed).to([], name="out")
    return pipeline._graph


def group_of(define: Define, store: Store, key_groups: int = 4) -> KeyGroup:
    graph = graph_of(define)
    stage = next(stage for stage in stages_of(graph, streaming=True) if stage.kind is StageKind.KEYED)
    terms = Terms(key_groups, frozenset(), streaming=True, unnamed=tuple(_unnamed(graph)))
    group = KeyGroup(stage, terms, 1)
    group.init(
        SimpleNamespace(
            getValueState=lambda *_: store,
            getMapState=lambda *_: None,
            deleteTimer=lambda _: None,
        )
    )
    return group


def run(define: Define, store: Store) -> None:
    """A micro-batch in which nothing comes."""
    group = group_of(define, store)
    times = SimpleNamespace(getCurrentWatermarkInMs=lambda: 0, getCurrentProcessingTimeInMs=lambda: 0)
    due = SimpleNamespace(getExpiryTimeInMs=lambda: 0)
    list(group.handleExpiredTimer((label_of(0),), times, due))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (windows(n=Count()), windows(n=Count())),
        (windows(n=Count(), name=None), windows(n=Count(), name=None)),
        (windows(n=Count()), both(windows(n=Count()), windows(30, n=Sum("v"), name="beside"))),
        (windows(n=Count()), windows(n=Count(), lateness=5)),
        (windows(n=Count()), lambda rows: windows(n=Count())(rows.filter(bool))),
        (function(ValueDescriptor("a")), function(ValueDescriptor("a"))),
        (joined("a", "b"), joined("a", "b")),
        (joined("a", "b"), joined("a", "c")),
        (joined("a", "b"), joined("b", "c")),
    ],
)
def test_steps_that_are_as_they_were_go_on(before: Define, after: Define) -> None:
    store = Store()
    run(before, store)
    run(after, store)
    assert store.blob is not None
    assert {"w", "aggregate"} & set(remembered(graph_of(after), store.blob[0], [], {})[0])


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (windows(n=Count()), windows(n=Sum("v")), "step 'w' has changed .*n was .*Count.* and is .*Sum"),
        (windows(n=Sum("v")), windows(n=Max("v")), "step 'w' has changed .*Sum.*Max"),
        (windows(n=Sum("v")), windows(n=Sum("u")), "step 'w' has changed"),
        (windows(n=Count()), windows(n=Count(), t=Sum("v")), "'t' is new"),
        (windows(n=Count(), t=Sum("v")), windows(n=Count()), "what 't' held is gone"),
        (windows(n=Count(), t=Sum("v")), windows(t=Sum("v"), n=Count()), "another order"),
        (windows(60, n=Count()), windows(40, n=Count()), "step 'w' has changed"),
        (windows(n=Count()), sessions, "step 'w' has changed"),
        (windows(n=Count()), triggered, "step 'w' has changed"),
        (windows(n=Count()), function(ValueDescriptor("a")), "'w' has changed .*was a step"),
        (function(ValueDescriptor("a")), function(ValueDescriptor("b")), "what 'a' held is gone"),
        (joined("a", "b"), joined("b", "a"), "'w' has changed .*places: left input was 'a' and is 'b'"),
        (windows(n=Count()), windows(n=Count(), name="v"), "does not have, or has elsewhere: 'w'"),
        (
            both(windows(n=Count()), windows(30, n=Count(), name="gone")),
            windows(n=Count()),
            "does not have, or has elsewhere: 'gone'",
        ),
        (
            both(windows(n=Count(), name=None), windows(n=Sum("v"), name=None)),
            both(windows(n=Sum("v"), name=None), windows(n=Count(), name=None)),
            "step 'aggregate' has changed",
        ),
        (
            windows(n=Count(), name=None),
            both(windows(n=Count(), name=None), windows(n=Count(), name=None)),
            "have their names from their places only.*give them names",
        ),
    ],
)
def test_state_of_another_step_is_refused(before: Define, after: Define, told: str) -> None:
    store = Store()
    run(before, store)
    kept = store.blob
    with pytest.raises(CheckpointError, match=told) as caught:
        run(after, store)
    assert "start_from=Checkpoints(...), which takes renamed={old: new}" in str(caught.value)
    assert store.blob is kept


def test_state_of_another_kind_that_open_asks_for_is_refused_with_the_step() -> None:
    def opens(make: Callable[[], Any]) -> Define:
        return lambda rows: rows.key_by(key_of).process(Opens(make), name="w")

    store = Store()
    run(opens(lambda: ValueDescriptor("s")), store)
    with pytest.raises(CheckpointError, match="step 'w': state 's' is value state and cannot be read"):
        run(opens(lambda: ListDescriptor("s")), store)


def test_what_is_no_group_tells_of_the_plan() -> None:
    store, beside = Store(), both(windows(n=Count()), windows(30, n=Count(), name="beside"))
    clock = Row(route=CLOCK, watermark=NOW, origin=0, sequence=0)

    def look(define: Define, key_groups: int = 4) -> None:
        group = group_of(define, store, key_groups)
        assert list(group.handleInputRows((0,), [clock, clock], None)) == [clock], "for the next stage"

    look(windows(n=Count()))
    with pytest.raises(CheckpointError, match="step 'w' has changed"):
        look(windows(n=Sum("v")))
    with pytest.raises(PipelineError, match="has 4 key groups, and the plan 8"):
        look(windows(n=Count()), key_groups=8)
    look(beside)
    with pytest.raises(CheckpointError, match="does not have, or has elsewhere: 'beside'"):
        look(windows(n=Count()))
    assert store.blob is not None
    assert remembered(graph_of(beside), store.blob[0], [], {})[0] == {}


@pytest.mark.parametrize("is_given_up", [False, True])
def test_first_micro_batch_of_timers_alone_is_refused_by_a_changed_later_step(is_given_up: bool) -> None:
    """It would begin key groups that the checkpoint does not have, and neither plan could go on."""
    spark: Any = StandIn(1, unsteady=is_given_up)
    rows = spark.stream(
        [
            [[row(1_000, "aa"), row(9_000, "cc")]],
            [[row(50_000, f"{n}b") for n in range(3)], [row(90_000, "cc")]],
        ],
        event_columns(),
    )

    def plan(**of: Any) -> Any:
        def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
            first = timed.key_by(key_of).window(TumblingWindows(1)).aggregate(n=Count(), name="first")
            again = first.map(tuple).key_by(lambda result: result[0][0]).window(TumblingWindows(3600))
            return {"again": again.aggregate(name="again", **of), "none": timed.filter(lambda row: False)}

        return on_spark(spark, rows, define, key_groups=500)

    spark.stop_before = 2
    run_stream(plan(n=Count()), Path("checkpoint"))
    left = deepcopy(spark.checkpoints["checkpoint"])
    spark.stop_before = None
    with pytest.raises(CheckpointError, match="step 'again' has changed"):
        run_stream(plan(t=Sum(len)), Path("checkpoint"))
    assert spark.checkpoints["checkpoint"] == left
    run_stream(plan(n=Count()), Path("checkpoint"))


def test_checkpoint_is_saved_by_the_program_that_made_it_only() -> None:
    store = Store()
    run(function(ListDescriptor("a")), store)
    assert store.blob is not None
    with pytest.raises(CheckpointError, match="step 'w' has changed"):
        remembered(graph_of(windows(n=Count())), store.blob[0], [], {})


class Remembering(KeyedProcessFunction[Any, Any]):
    """Tells what it has remembered of a key, and remembers an object of the class that is there now."""

    def open(self, ctx: Any) -> None:
        self.kept = ctx.state(ValueDescriptor("kept"))

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        out(self.kept.get())
        self.kept.set(sys.modules["kept"].Kept(x=value["ts"], y=[]))


def of_kept(timed: Stream[Any]) -> dict[str, Stream[Any]]:
    return {"kept": timed.key_by(key_of).process(Remembering(), name="keeping"), "all": timed.map(key_of)}


def test_class_in_state_may_get_fields_and_lose_none(monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = StandIn(1)
    rows = spark.stream([[[row(1_000)]], [[row(2_000)]]], event_columns())

    def go_on(change: str) -> list[str]:
        kept_class(monkeypatch, "both", CHANGES[change])
        monkeypatch.setattr(group_memory, "_worker", group_memory._Worker())  # of another driver
        return run_stream(on_spark(spark, rows, of_kept), Path("checkpoint"))["lines"]

    spark.stop_before = 1
    go_on("none")
    left = deepcopy(spark.checkpoints["checkpoint"])
    spark.stop_before = None
    with pytest.raises(
        CheckpointError, match=r"holds of 'keeping' cannot be read: kept\.Kept has no field 'y' .*start_from="
    ):
        go_on("gone")
    assert spark.checkpoints["checkpoint"] == left
    assert "kept: Kept(x=1000, y=[], n=[])" in go_on("a factory")


class Counting(KeyedProcessFunction[Any, Any]):
    def __init__(self, state: str) -> None:
        self.state = state

    def open(self, ctx: Any) -> None:
        self.count = ctx.state(ValueDescriptor[int](self.state))

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        self.count.set(self.count.get(0) + 1)
        out(self.count.get())


def test_state_that_has_another_name_now_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    spark: Any = StandIn(1)
    rows = spark.stream([[[row(1_000, key) for key in "abcd"]]] * 3, event_columns())

    def run(state: str) -> list[str]:
        def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
            return {
                "n": timed.key_by(key_of).process(Counting(state), name="counting"),
                "none": timed.filter(str),
            }

        return run_stream(on_spark(spark, rows, define, key_groups=4), Path("checkpoint"))["lines"]

    spark.stop_before = 1
    run("count")
    spark.stop_before = 2
    run("count")
    assert "has not asked for" not in caplog.text
    spark.stop_before = None
    assert "n: 1" in run("counted"), "it begins with nothing"
    (told,) = [text for text in caplog.messages if "has not asked for" in text]
    assert told.startswith(
        "step 'counting' goes on with state that its function has not asked for in open: 'count';"
    )


def plan_over(frames: list[DataFrame], *, keyed: int = 1, timed: bool = True) -> SparkPlan:
    """So many keyed steps behind each other, over the union of these streams."""
    pipeline = Pipeline()
    sources: list[Stream[Any]] = [pipeline.source([], name=f"rows_{n}") for n in range(len(frames))]
    rows = sources[0].union(*sources[1:]) if sources[1:] else sources[0]
    if timed:
        rows = rows.event_time("ts", BoundedOutOfOrderness(0), name="event_time")
    for number in range(keyed):
        windows = rows.key_by(lambda row: row[0] if type(row) is tuple else row["key"]).count_window(1)
        rows = windows.aggregate(n=Count(), name=f"count_{number}").map(tuple)
    rows.map(repr).to([], name="lines")
    inputs = {f"rows_{number}": frame for number, frame in enumerate(frames)}
    return pipeline.on_spark(
        frames[0].sparkSession, inputs=inputs, outputs={"lines": "line string"}, key_groups=2
    )


UNTIMED = {"timed": False}
"""So its last micro-batch has rows: none is made for a watermark."""


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, {"keyed": 2}, "has another number of keyed stages: 1 there and 2 here"),
        ({"keyed": 0}, {}, "has another number of keyed stages: 0 there and 1 here"),
        ({}, {"inputs": 2}, "reads another number of streams: 1 there and 3 here, where start_from= counts"),
        (UNTIMED, UNTIMED | {"first": 1}, "has read .*/in_0/0.* where this one reads /.*/in_1; of several"),
        ({}, UNTIMED, "goes by another time: its keyed steps by event time, and .* by no time"),
    ],
    ids=str,
)
def test_plan_that_spark_refuses_is_told_of_with_the_ways_out(
    before: Any, after: Any, told: str, spark: SparkSession, tmp_path: Path
) -> None:
    frames = [stream(spark, tmp_path / f"in_{number}", [[row(1_000)]]) for number in range(2)]

    def run(*, inputs: int = 1, first: int = 0, **of: Any) -> list[str]:
        plan = plan_over(frames[first : first + inputs], **of)
        assert plan.describe().count("(keyed): count_") == of.get("keyed", 1)
        return run_stream(plan, tmp_path / "checkpoint")["lines"]

    assert len(run(**before)) == 1
    write_more(tmp_path / "in_0", [[row(9_000)]], 1)
    with pytest.raises(StreamingQueryException) as caught:
        run(**after)
    text = failure_text(caught.value)
    assert re.match(f"CheckpointError: this stream's checkpoint is of a plan that {told}", text), text
    assert "; undo the change, or " in text
    assert ("start_from=Checkpoints(...), which takes renamed={old: new}" in text) == (before != {"keyed": 0})
    assert len(run(**before)) == 1, "the change can be undone"


def test_operators_of_sparks_own_that_have_changed_are_told_of_by_spark() -> None:
    told = (
        "[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] Changed.\n"
        "Stateful operators in the metadata: [(OperatorId: 0 -> OperatorName: dedupe)]; "
        "Stateful operators in current batch: []."
    )
    assert failure_in(told) == told
