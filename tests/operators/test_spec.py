"""Specs: what a plan knows of a step is what its operator then does."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

import asyncstream
from asyncstream import (
    AsyncFunction,
    BoundedOutOfOrderness,
    Count,
    GlobalWindows,
    IngestionTime,
    KeyedBroadcastProcessFunction,
    KeyedContext,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    LookupTable,
    ManualClock,
    Pattern,
    Pipeline,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
)
from asyncstream.guards import circuit_breaker, retry
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.emitting import Emitter
from asyncstream.operators.flow import Attended, Intake
from asyncstream.operators.spec import ClockUse, Spec
from asyncstream.pipeline import Stream
from asyncstream.plan import OperatorStep
from asyncstream.windowing import AfterWatermark, ContinuousProcessingTimeTrigger


class PassOn(KeyedProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        out(value)


class Ask(AsyncFunction[Any, Any]):
    async def invoke(self, value: Any) -> Any:
        return value

    def metrics(self) -> dict[str, int]:
        return {"asked": 1, "open_sockets": 2}

    def counter_names(self) -> tuple[str, ...]:
        return ("asked",)


class Inputs(KeyedCoProcessFunction[Any, Any, Any]):
    def process_input(self, number: int, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        out(value)


class Rules(KeyedBroadcastProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any, out: Emitter[Any]) -> None:
        out(value)

    def process_broadcast(self, rule: Any, ctx: Any, out: Emitter[Any]) -> None:
        out(rule)


async def ask(value: Any) -> Any:
    return value


async def submit(values: list[Any], key: str) -> str:
    return key


def two(stream: Stream[Any]) -> Any:
    return stream.key_by(str).join(stream.key_by(str))


def windowed(stream: Stream[Any], assigner: Any) -> Any:
    return stream.key_by(str).window(assigner).aggregate(n=Count())


KINDS: dict[str, Callable[[Stream[Any]], Any]] = {
    "map": lambda stream: stream.map(str),
    "map that skips": lambda stream: stream.map(str, on_error="skip"),
    "filter": lambda stream: stream.filter(bool, on_error="route"),
    "flat_map": lambda stream: stream.flat_map(list),
    "branch": lambda stream: stream.branch(bool, on_error="route")[0],
    "key_by": lambda stream: stream.key_by(str, on_error="skip"),
    "union": lambda stream: stream.union(stream, stream.map(str)),
    "event_time": lambda stream: stream.event_time(int, BoundedOutOfOrderness(1), on_error="skip"),
    "idle": lambda stream: stream.event_time(int, BoundedOutOfOrderness(1), idle_after=1),
    "quiet": lambda stream: stream.advance_when_quiet(1),
    "ingestion": lambda stream: stream.event_time(IngestionTime()),
    "process": lambda stream: stream.key_by(str).process(PassOn(), on_error="skip"),
    "co_process": lambda stream: stream.connect(stream, stream).process(Inputs()),
    "broadcast": lambda stream: stream.key_by(str).connect(stream.broadcast()).process(Rules()),
    "interval": lambda stream: two(stream).within(1, 1),
    "window join": lambda stream: two(stream).window(TumblingWindows(1)),
    "window join by clock": lambda stream: two(stream).window(TumblingWindows(1, time="processing")),
    "as_of": lambda stream: stream.key_by(str).as_of(stream.key_by(str)),
    "latest": lambda stream: stream.key_by(str).as_of(stream.key_by(str), latest=True),
    "first": lambda stream: stream.deduplicate(str),
    "first by time": lambda stream: stream.deduplicate(str, by="event_time"),
    "last": lambda stream: stream.deduplicate(str, keep="last"),
    "top": lambda stream: stream.key_by(str).top(1, int),
    "top of changes": lambda stream: stream.key_by(str).top(1, int, retracts=True, changes="all"),
    "reduce": lambda stream: stream.key_by(str).reduce(max),
    "pattern": lambda stream: stream.key_by(str).pattern(Pattern.begin("one", bool)),
    "lookup": lambda stream: stream.lookup(LookupTable.from_call(Ask()), str),
    "lookup in a stream": lambda stream: stream.lookup(stream.as_table(str), str),
    "async batch": lambda stream: stream.async_batch(submit, ask, Ask(), size=2),
    "async": lambda stream: stream.async_map(ask, on_error="route", timeout=1, on_timeout="route"),
    "async flat": lambda stream: stream.async_flat_map(Ask()),
    "async per key": lambda stream: stream.key_by(str).async_map(ask, order="per_key"),
    "async guarded": lambda stream: stream.async_map(retry(circuit_breaker(Ask()))),
    "threads": lambda stream: stream.thread_map(str),
    "tumbling": lambda stream: windowed(stream, TumblingWindows(1)),
    "sliding": lambda stream: windowed(stream, SlidingWindows(2, 1)),
    "sliding apart": lambda stream: windowed(stream, SlidingWindows(1, 2)),
    "session": lambda stream: windowed(stream, SessionWindows(1)),
    "ticking": lambda stream: (
        stream.key_by(str)
        .window(TumblingWindows(1))
        .trigger(AfterWatermark(early=ContinuousProcessingTimeTrigger(1)))
        .aggregate(n=Count())
    ),
    "clock windows": lambda stream: windowed(stream, TumblingWindows(1, time="processing")),
    "global": lambda stream: stream.key_by(str).window(GlobalWindows(fire_at_end=True)).collect(),
    "count": lambda stream: stream.key_by(str).count_window(2).collect(),
    "policy": lambda stream: stream.policy_window(length=2),
    "policy by key": lambda stream: stream.key_by(str).policy_window(length=2, time="processing"),
}
WAIT = {"clock windows", "policy", "window join by clock"}
PORTS = {"union": 3, "co_process": 3} | dict.fromkeys(
    (
        "broadcast",
        "interval",
        "window join",
        "window join by clock",
        "as_of",
        "latest",
        "lookup in a stream",
    ),
    2,
)


def spec_of(kind: str) -> Spec:
    """Of the last step that is added."""
    pipeline = Pipeline()
    KINDS[kind](pipeline.source([1]))
    step = list(pipeline._graph)[-1]
    assert isinstance(step, OperatorStep)
    assert step.required == step.spec.required
    return step.spec


each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
def test_spec_is_frozen_and_builds_a_fresh_operator_of_the_class_it_names(kind: str) -> None:
    spec = spec_of(kind)
    one, other = spec.build(), spec.build()
    assert one is not other
    assert type(one) is type(other) is spec.operator
    with pytest.raises(FrozenInstanceError):
        spec.anything = 1  # type: ignore[attr-defined]


@each_kind
def test_operator_tells_all_that_the_spec_says_it_counts(kind: str) -> None:
    spec = spec_of(kind)
    operator = spec.build()
    operator.out = Operator()
    if spec.calls is None:  # which open in an event loop
        operator.open(OperatorContext("step", clock=ManualClock()))
    assert {*spec.counters, *spec.peaks} <= operator.metrics().keys()
    assert len(set(spec.counters)) == len(spec.counters)
    assert ("failed" in spec.counters) == ("failed" in operator.metrics())


def test_guards_and_functions_declare_their_counters_and_gauges_are_none() -> None:
    counters = spec_of("async guarded").counters
    assert {"retries", "circuit_opened", "asked"} <= set(counters)
    assert not {"circuit_state", "open_sockets"} & set(counters)


@each_kind
def test_spec_knows_what_the_clock_is_to_the_operator(kind: str) -> None:
    spec = spec_of(kind)
    listens = spec.operator.advance_clock is not Operator.advance_clock
    assert listens or spec.clock is ClockUse.NONE
    assert (spec.clock is ClockUse.WAITS) == (kind in WAIT)
    if spec.clock is ClockUse.NONE:
        # without idle_after; and the clock only makes a table be read again
        assert not listens or kind in ("event_time", "lookup")


@each_kind
def test_operator_has_a_port_for_each_key(kind: str) -> None:
    spec = spec_of(kind)
    operator = spec.build()
    ports = {id(operator.port(number)) for number in range(len(spec.keys))}
    assert len(ports) == len(spec.keys) == PORTS.get(kind, 1)


@each_kind
def test_what_remembers_something_has_a_schema(kind: str) -> None:
    spec = spec_of(kind)
    operator = spec.build()
    if spec.calls is None:
        operator.open(OperatorContext("step", clock=ManualClock()))
    remembers = type(operator).snapshot is not Operator.snapshot or bool(operator.tables)
    assert remembers == (spec.schema is not None)


PLANNERS = ("plan", "pipeline", "runtime/aio", "runtime/spark")
OF_RUNNING = {"runtime/aio/blocking.py"}
"""Looks at operators while they run, and at what is inside them."""


def _operators(kind: type[Operator] = Operator) -> Iterator[type[Operator]]:
    """All that steps are made of: but `Attended` and `Intake`, parts of the contract with those who await."""
    if kind.__module__.startswith("asyncstream.") and ".runtime." not in kind.__module__:
        yield kind
    for one in kind.__subclasses__():
        yield from _operators(one)


def _asks(source: str) -> list[str]:
    """The operators that the module asks an object to be one of."""
    names = {kind.__name__ for kind in _operators() if kind not in (Attended, Intake)}
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    asked = [
        node.args[1]
        for node in calls
        if isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass")
    ]
    found = (part for argument in asked for part in ast.walk(argument))
    return [part.id for part in found if isinstance(part, ast.Name) and part.id in names]


def test_no_planner_asks_an_operator_what_it_is() -> None:
    root = Path(asyncstream.__file__).parent
    found = {
        name: asked
        for room in PLANNERS
        for path in (root / room).rglob("*.py")
        if (name := path.relative_to(root).as_posix()) not in OF_RUNNING
        and (asked := _asks(path.read_text(encoding="utf-8")))
    }
    assert found == {}
    assert _asks("isinstance(part, Union | int)") == ["Union"]
