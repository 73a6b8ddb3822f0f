"""A job of many sources on the stand-in for Spark: a task does what the rows of its source ask for."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark import cloudpickle

from asyncstream import AsyncFunction, BoundedOutOfOrderness, Pipeline, Stream
from asyncstream.operators.base import Operator
from asyncstream.operators.ports import Valve
from asyncstream.runtime.spark.stages import reached, stages_of
from asyncstream.windowing import Count, TumblingWindows
from tests.spark.cluster import columns, event_columns
from tests.spark.contract import key_of, row
from tests.spark.fake_spark import Frame, StandIn

NAMES = ("a", "b", "c")


class Asking(AsyncFunction[Any, Any]):
    """Notes which were opened, by the inputs that they are for."""

    opened: list[str] = []  # noqa: RUF012 — of all copies

    def __init__(self, name: str) -> None:
        self.name = name

    async def open(self) -> None:
        Asking.opened.append(self.name)

    async def invoke(self, value: Any) -> Any:
        return value | {"key": f"{value['key']} {self.name}"}


def asking() -> Pipeline:
    """Each input is asked about by itself, and all of them once more."""
    pipeline = Pipeline()
    asked: list[Stream[Any]] = []
    for name in NAMES:
        rows: Stream[Any] = pipeline.source([], name=name)
        rows = rows.event_time("ts", BoundedOutOfOrderness(0), name=f"time {name}")
        asked.append(rows.async_map(Asking(name), name=f"ask {name}"))
    both = asked[0].union(*asked[1:], asked[1], name="all").async_map(Asking("all"), name="ask all")
    both.key_by(key_of).window(TumblingWindows(1)).aggregate(n=Count(), name="count").map(repr).to(
        [], name="counts"
    )
    asked[2].map(repr, name="told").to([], name="c alone")
    return pipeline


def test_of_the_first_stage_there_is_what_a_source_reaches() -> None:
    graph = asking()._graph
    first = stages_of(graph, streaming=False)[0]
    parts = {}
    for name in NAMES:
        part = reached(first, [route.number for route in first.entries if route.output.step == name])
        (union,) = (step for step in part.steps if step.name == "all")
        parts[name] = (
            [step.name for step in part.steps],
            [one.output.step for one in union.inputs],
            [route.reader for route in part.exits],
        )
    assert parts == {
        "a": (["time a", "ask a", "all", "ask all"], ["ask a"], ["count"]),
        "b": (["time b", "ask b", "all", "ask all"], ["ask b", "ask b"], ["count"]),
        "c": (["time c", "ask c", "all", "ask all", "told"], ["ask c"], ["count", "c alone"]),
    }


@pytest.mark.parametrize(("present", "opened"), [("b", ["all", "b"]), ("abc", ["a", "all", "b", "c"])])
def test_functions_are_opened_that_rows_get_to(
    monkeypatch: pytest.MonkeyPatch, present: str, opened: list[str]
) -> None:
    monkeypatch.setattr(Asking, "opened", [])
    spark: Any = StandIn(1, unsteady=False)
    rows = {name: [row(1_000)] if name in present else [] for name in NAMES}
    plan = asking().on_spark(
        spark,
        inputs={name: spark.bounded([some] if some else [], event_columns()) for name, some in rows.items()},
        outputs={name: columns(line=_text()) for name in ("counts", "c alone")},
        key_groups=2,
    )
    told = "\n".join(sorted(line for (line,) in plan["counts"].collect()))
    assert [f"'k {name} all'" in told for name in NAMES] == [name in present for name in NAMES]
    assert sorted(set(Asking.opened)) == opened
    workers = 2
    assert Asking.opened.count("all") <= workers, "it is one function for all sources"


def _text() -> Any:
    from pyspark.sql.types import StringType

    return StringType()


@pytest.mark.parametrize("streaming", [False, True])
def test_a_task_does_not_cost_more_where_there_are_more_sources(
    monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    opened, ended = 0, 0

    def opening(operator: Operator, *args: Any) -> None:
        nonlocal opened
        opened += 1
        was_opened(operator, *args)

    def ending(valve: Valve) -> None:
        nonlocal ended
        ended += 1
        was_ended(valve)

    was_opened, was_ended = Operator.open, Valve.ended
    monkeypatch.setattr(Operator, "open", opening)
    monkeypatch.setattr(Valve, "ended", ending)

    def cost(sources: int) -> tuple[int, int]:
        nonlocal opened, ended
        opened = ended = 0
        pipeline, spark = Pipeline(), StandIn(1, unsteady=False)
        names = [f"rows {number}" for number in range(sources)]
        rows: list[Stream[Any]] = [
            pipeline.source([], name=name)
            .event_time("ts", BoundedOutOfOrderness(0), name=f"time of {name}")
            .filter(bool, name=f"filter {name}")
            for name in names
        ]
        rows[0].union(*rows[1:]).map(repr).to([], name="lines")
        some = [[row(1_000)]]
        frames = {
            name: spark.stream([some], event_columns()) if streaming else spark.bounded(some, event_columns())
            for name in names
        }
        plan: Any = pipeline.on_spark(spark, inputs=frames, outputs={"lines": columns(line=_text())})
        if streaming:
            written: list[Any] = []
            query = plan.write_stream(lambda outputs, _: written.extend(outputs["lines"].collect()))
            query.option("checkpointLocation", "checkpoint").trigger(availableNow=True).start()
        else:
            written = plan["lines"].collect()
        assert len(written) == sources
        return opened, ended

    few, many = cost(4), cost(8)
    assert (many[0] / few[0], many[1] / few[1]) == (2, 2)


def test_what_goes_to_workers_grows_as_there_are_more_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = 0

    def mapped(frame: Frame, function: Any, schema: Any) -> Frame:
        nonlocal sent
        sent += len(cloudpickle.dumps(function))
        return did_map(frame, function, schema)

    did_map = Frame.mapInArrow
    monkeypatch.setattr(Frame, "mapInArrow", mapped)

    def cost(sources: int) -> int:
        nonlocal sent
        sent = 0
        pipeline, spark = Pipeline(), StandIn(1)
        frames = {
            f"rows {number}": spark.bounded([[row(1_000)]], event_columns()) for number in range(sources)
        }
        rows: list[Stream[Any]] = [
            pipeline.source([], name=name).map(dict, name=f"of {name}") for name in frames
        ]
        rows[0].union(*rows[1:]).map(repr).to([], name="lines")
        inputs: Any = frames
        pipeline.on_spark(cast("Any", spark), inputs=inputs, outputs={"lines": columns(line=_text())})
        return sent

    assert cost(40) < 2.5 * cost(20)
