"""A step whose inputs have changed places is refused what it kept of them; other names alone do no harm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from asyncstream import (
    BoundedOutOfOrderness,
    CheckpointError,
    Checkpoints,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    MemoryStore,
    Pipeline,
    Stream,
    TumblingWindows,
)
from asyncstream.plan import OperatorStep

Join = Callable[..., Stream[Any]]
Streams = Callable[[Pipeline], list[Stream[Any]]]


class Both(KeyedCoProcessFunction[Any, Any, Any]):
    def process_input(self, number: int, value: Any, ctx: Any, out: Any) -> None: ...


class Rules(KeyedBroadcastProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any, out: Any) -> None: ...

    def process_broadcast(self, value: Any, ctx: Any, out: Any) -> None: ...


JOINS: dict[str, Join] = {
    "interval": lambda one, other: one.join(other).within(0, 1, name="w"),
    "window": lambda one, other: one.join(other, how="left").window(TumblingWindows(2), name="w"),
    "groups": lambda one, other: one.co_group(other).window(TumblingWindows(2), name="w"),
    "as of": lambda one, other: one.as_of(other, name="w"),
    "latest": lambda one, other: one.as_of(other, latest=True, name="w"),
    "lookup": lambda one, other: one.lookup(other.as_table(), name="w"),
    "connected": lambda one, other: one.connect(other).process(Both(), name="w"),
    "broadcast": lambda one, other: one.connect(other.broadcast()).process(Rules(), name="w"),
}


def timed(pipeline: Pipeline, source: str) -> Stream[Any]:
    source_of: Stream[Any] = pipeline.source([{"k": "k", "t": 0, "of": source}], name=source)
    return source_of.event_time("t", BoundedOutOfOrderness(10), name=f"time of {source}")


def of(*sources: str) -> Streams:
    """A stream of each of these sources, which are made in the order of their names, whatever it is here."""

    def make(pipeline: Pipeline) -> list[Stream[Any]]:
        streams = {source: timed(pipeline, source).filter(bool) for source in sorted(sources)}
        return [streams[source] for source in sources]

    return make


def build(join: Join, streams: Streams) -> Pipeline:
    pipeline = Pipeline()
    join(*(stream.key_by("k") for stream in streams(pipeline))).to([], name="out")
    return pipeline


async def two_runs(join: Join, first: Streams, second: Streams, *, snapshot: bool, **settings: Any) -> None:
    store = MemoryStore()
    if snapshot:
        async with build(join, first).start() as job:
            kept = await job.stop()
        async with build(join, second).start(snapshot=kept) as job:
            await job.stop()
        return
    for streams, told in ((first, {}), (second, settings)):
        async with build(join, streams).start(checkpoints=Checkpoints(store=store, **told)) as job:
            await job.stop()


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("join", JOINS)
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_inputs_that_have_changed_places_are_refused(join: str, snapshot: bool) -> None:
    told = (
        "step 'w' has changed .*its inputs have changed places: "
        "left input was 'time of a' and is 'time of b', right input was 'time of b' and is 'time of a'"
    )
    with pytest.raises(CheckpointError, match=told):
        await two_runs(JOINS[join], of("a", "b"), of("b", "a"), snapshot=snapshot)
    await two_runs(JOINS[join], of("a", "b"), of("a", "b"), snapshot=snapshot)


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_two_of_three_inputs_that_have_changed_places_are_refused() -> None:
    def join(one: Stream[Any], *others: Stream[Any]) -> Stream[Any]:
        return one.connect(*others).process(Both(), name="w")

    told = "places: input 0 was 'time of a' and is 'time of c', input 2 was 'time of c' and is 'time of a'"
    with pytest.raises(CheckpointError, match=told):
        await two_runs(join, of("a", "b", "c"), of("c", "b", "a"), snapshot=False)
    gone = ("c", "time of c")
    await two_runs(join, of("a", "b", "c"), of("a", "b"), snapshot=False, allow_dropped=gone)


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_a_function_of_migrate_may_say_that_they_fit() -> None:
    seen: list[Any] = []

    def as_they_are(state: Any) -> Any:
        seen.append(state)
        return state

    join = JOINS["interval"]
    await two_runs(join, of("a", "b"), of("b", "a"), snapshot=False, migrate={"w": as_they_are})
    assert len(seen) == 1


def test_inputs_are_known_by_the_nearest_names_of_the_user() -> None:
    def known(stream: Callable[[Pipeline], Stream[Any]]) -> list[str]:
        pipeline = Pipeline()
        stream(pipeline).key_by("k").as_of(timed(pipeline, "other").key_by("k"), name="w")
        step = pipeline._graph["w"]
        assert isinstance(step, OperatorStep)
        assert step.schema is not None
        return list(step.schema.inputs["left input"])

    assert known(lambda p: timed(p, "a")) == ["time of a"]
    assert known(lambda p: timed(p, "a").map(dict).filter(bool)) == ["time of a"]
    assert known(lambda p: timed(p, "a").map(dict, name="b").filter(bool)) == ["b"]
    assert known(lambda p: timed(p, "b").union(timed(p, "a"))) == ["time of a", "time of b"]
    assert known(lambda p: timed(p, "a").map(dict, name="b", on_error="route").failed) == ["b.failed"]
    unnamed: Callable[[Pipeline], Stream[Any]] = lambda p: p.source([]).map(dict)  # noqa: E731
    assert known(unnamed) == [], "its number says where it is in the program"
    assert known(lambda p: unnamed(p).union(timed(p, "a"))) == []


RENAMED = [
    (of("a", "b"), of("a", "c"), {"b": "c", "time of b": "time of c"}),
    (of("a", "b"), of("b", "c"), {"b": "c", "time of b": "time of c", "a": "b", "time of a": "time of b"}),
    (of("a", "b"), of("b", "a"), {"b": "a", "time of b": "time of a", "a": "b", "time of a": "time of b"}),
]


@pytest.mark.parametrize(("first", "second", "renamed"), RENAMED)
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_an_input_with_another_name_is_the_same(first: Any, second: Any, renamed: Any) -> None:
    store, join = MemoryStore(), JOINS["interval"]
    told = Checkpoints(store=store, renamed=renamed)
    for streams, settings in ((first, Checkpoints(store=store)), (second, told), (second, told)):
        async with build(join, streams).start(checkpoints=settings) as job:
            await job.stop()
    with pytest.raises(CheckpointError, match=r"changed places|steps that this pipeline does not have"):
        async with build(join, first).start(checkpoints=replace(told, renamed={})):
            pass


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_an_input_that_was_moved_by_migrate_is_not_taken_to_be_where_the_other_was() -> None:
    """Else the slow one would be waited for no more until it had come to where the fast one was."""
    store, found, late = MemoryStore(), list[Any](), list[Any]()

    def moved(state: Any) -> Any:
        tables = state["tables"]
        sides = {"left": tables.get("right", []), "right": tables.get("left", [])}
        return {**state, "tables": {**tables, **sides}}

    def pairs(left: str, right: str) -> Pipeline:
        pipeline = Pipeline()
        streams = {
            name: pipeline.submissions(name=name)
            .event_time("t", BoundedOutOfOrderness(0), name=f"time of {name}")
            .key_by("k")
            for name in ("fast", "slow")
        }
        joined = streams[left].join(streams[right]).within(1, 1, name="w")
        joined.to(found, name="found")
        joined.late_left.to(late, name="late left")
        joined.late_right.to(late, name="late right")
        return pipeline

    def at(seconds: int) -> dict[str, Any]:
        return {"k": "k", "t": seconds * 1000}

    async with pairs("fast", "slow").start(checkpoints=Checkpoints(store=store)) as job:
        await job.submit(at(100), to="fast")
        await job.submit(at(50), to="slow")
        await asyncio.sleep(1)  # watermarks come
        await job.stop()
    told = Checkpoints(store=store, migrate={"w": moved})
    async with pairs("slow", "fast").start(checkpoints=told) as job:
        await job.submit(at(110), to="fast")
        await asyncio.sleep(1)
        await job.submit(at(60), to="slow")
        await job.submit(at(100), to="slow")
        await job.drain()
    assert late == []
    assert found == [(at(100), at(100))]
