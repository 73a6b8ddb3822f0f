"""Values of every kind, in every place that a checkpoint or a snapshot keeps, come back as what they were."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any

import pytest

from asyncstream import (
    BoundedOutOfOrderness,
    CheckpointError,
    Checkpoints,
    KeyedContext,
    KeyedProcessFunction,
    KeyedStream,
    MemoryStore,
    Pipeline,
    SessionWindows,
    SlidingWindows,
    Stream,
    TumblingWindows,
)
from asyncstream.pipeline import WindowedStream
from asyncstream.state import ListDescriptor, MapDescriptor, ReducingDescriptor, ValueDescriptor
from asyncstream.testing.loop import run_virtual
from asyncstream.windowing import Collect, CountEvictor, First
from tests.values import KEPT, PICKLED, REFUSED, same


class Remembers(KeyedProcessFunction[Any, Any]):
    """Puts an element into state of every kind at first, and emits what is there at the second."""

    def open(self, ctx: KeyedContext) -> None:
        self.value = ctx.state(ValueDescriptor[Any]("value"))
        self.list = ctx.state(ListDescriptor[Any]("list"))
        self.map = ctx.state(MapDescriptor[Any, Any]("map"))
        self.sum = ctx.state(ReducingDescriptor[Any]("sum", lambda one, other: (one, other)))

    def process_element(self, element: Any, ctx: KeyedContext, out: Callable[[Any], None]) -> None:
        _, again, value = element
        if again:
            out((self.value.get(), *self.list.get(), *self.map.items(), self.sum.get()))
            return
        self.value.set(value)
        self.list.add(value)
        self.map.put("k", value)
        self.sum.add(value)


class Timed(KeyedProcessFunction[Any, Any]):
    """Emits the key when its timer fires."""

    def process_element(self, element: Any, ctx: KeyedContext, out: Callable[[Any], None]) -> None:
        ctx.register_processing_timer(ctx.now_ms + 50_000)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Callable[[Any], None]) -> None:
        out(ctx.key)


def interrupted(
    build: Callable[[Stream[Any]], Stream[Any]], first: list[Any], then: list[Any], codec: Any
) -> Any:
    """What comes out of a job that is given `first`, stopped with a checkpoint, and gone on with `then`."""
    found: list[Any] = []

    def pipeline() -> Pipeline:
        made = Pipeline("values")
        build(made.submissions(name="in")).to(found, name="out")
        return made

    async def main() -> None:
        store, snapshot = MemoryStore(), None
        for elements, seconds in ((first, 1.0), (then, 100.0)):
            options: Any = {"snapshot": snapshot}
            if codec != "snapshot":
                options = {"checkpoints": Checkpoints(store=store, codec=codec)}
            async with pipeline().start(**options) as job:
                for element in elements:
                    await job.submit(element)
                await asyncio.sleep(seconds)
                snapshot = await job.stop()

    run_virtual(main())
    return found


async def slow(value: Any) -> Any:
    await asyncio.sleep(20)
    return value


async def first_slow(value: Any) -> Any:
    await asyncio.sleep(20 if type(value) is str and value == "first" else 0)
    return value


def number_of(element: tuple[int, bool, Any]) -> int:
    return element[0]


def values_for(codec: str) -> list[Any]:
    return [*KEPT.values(), *(PICKLED.values() if codec == "pickle" else ())]


def hashable(values: list[Any]) -> list[Any]:
    return [value for value in values if _is_key(value)]


def _is_key(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return isinstance(value, Hashable) and bool(value == value)


CODECS = pytest.mark.parametrize("codec", ["json", "pickle", "snapshot"])


@CODECS
def test_inputs_of_calls_under_way(codec: str) -> None:
    values = values_for(codec)
    found = interrupted(lambda s: s.async_map(slow, name="call", concurrency=500), values, [], codec)
    assert same(found, values)


@CODECS
def test_finished_results_that_wait_for_their_turn(codec: str) -> None:
    values = ["first", *values_for(codec)]
    found = interrupted(
        lambda s: s.async_map(first_slow, name="call", concurrency=500, buffer=500), values, [], codec
    )
    assert same(found, values)


@CODECS
def test_state_of_every_kind(codec: str) -> None:
    values = [value for value in values_for(codec) if value is not None]  # which state takes for nothing
    first = [(number, False, value) for number, value in enumerate(values)]
    then = [(number, True, None) for number in range(len(values))]
    found = interrupted(
        lambda s: s.key_by(lambda e: e[0]).process(Remembers(), name="state"), first, then, codec
    )
    assert same(found, [(value, value, ("k", value), value) for value in values])


@CODECS
def test_keys_of_timers(codec: str) -> None:
    keys = list(dict.fromkeys(hashable(values_for(codec))))
    found = interrupted(lambda s: s.key_by(lambda e: e).process(Timed(), name="timers"), keys, [], codec)
    assert same(found, keys)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("codec", ["json", "pickle"])
def test_what_cannot_be_kept_fails_the_checkpoint_and_names_the_step(codec: str, name: str) -> None:
    with pytest.raises(CheckpointError, match="step 'call'"):
        interrupted(lambda s: s.async_map(slow, name="call"), [{"a": [REFUSED[name]]}], [], codec)


WINDOWS: dict[str, Callable[[KeyedStream[Any, Any]], WindowedStream[Any, Any]]] = {
    "tumbling": lambda keyed: keyed.window(TumblingWindows(60)),
    "sliding": lambda keyed: keyed.window(SlidingWindows(60, 60)),
    "sharing slices": lambda keyed: keyed.window(SlidingWindows(120, 60)),
    "sessions": lambda keyed: keyed.window(SessionWindows(30)),
    "counting": lambda keyed: keyed.count_window(2),
    "evicting": lambda keyed: keyed.window(TumblingWindows(60)).evictor(CountEvictor(5)),
}

FOLDS: dict[str, Callable[[WindowedStream[Any, Any]], Stream[Any]]] = {
    "elements": lambda windowed: windowed.collect(name="fold").map(lambda found: found.value),
    "reduced": lambda windowed: windowed.reduce(lambda one, other: one, name="fold").map(
        lambda found: [found.value]
    ),
    "aggregates": lambda windowed: windowed.aggregate(a=Collect(), b=First(), name="fold").map(
        lambda found: found.value["a"]
    ),
}


@CODECS
@pytest.mark.parametrize(
    ("kind", "fold"),
    # an evictor throws elements out, which no fold can
    [(kind, fold) for kind in WINDOWS for fold in FOLDS if kind != "evicting" or fold == "elements"],
)
def test_contents_of_windows(kind: str, fold: str, codec: str) -> None:
    values = values_for(codec)
    first = [(number, 1000, value) for number, value in enumerate(values)]
    # what closes the windows: of numbers each its second element, of time one that comes later
    then = [(number, 200_000, None) for number in (range(len(values)) if kind == "counting" else (-1,))]

    def build(stream: Stream[Any]) -> Stream[Any]:
        timed = stream.event_time(lambda e: e[1], BoundedOutOfOrderness(0.001), name="time")
        return FOLDS[fold](WINDOWS[kind](timed.key_by(lambda e: e[0])))

    found = interrupted(build, first, then, codec)
    seen = {contents[0][0]: contents[0] for contents in found}
    assert same([seen[number] for number in range(len(values))], first)


@CODECS
def test_elements_on_a_side_output(codec: str) -> None:
    values = values_for(codec)
    aside: list[Any] = []

    def build(stream: Stream[Any]) -> Stream[Any]:
        some, others = stream.map(lambda e: e, name="same").branch(lambda e: False, name="branch")
        others.async_map(slow, name="others", concurrency=500).to(aside, name="aside")
        return some

    interrupted(build, values, [], codec)
    assert same(aside, values)
