"""Whatever a key is, its state and its timers are found again behind a base and its changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Literal, NamedTuple, cast

import pytest

from asyncstream import (
    CheckpointError,
    Checkpoints,
    KeyedProcessFunction,
    KeyedStream,
    MemoryStore,
    NoWatermarks,
    Pattern,
    Pipeline,
    Stream,
    UserFunctionError,
)
from asyncstream.state import ValueDescriptor
from asyncstream.windowing import (
    Collect,
    Count,
    CountTrigger,
    DynamicSessionWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
)


class Point(NamedTuple):
    x: int
    y: str


@dataclass(frozen=True)
class User:
    name: str


class Colour(Enum):
    RED = "red"


KEYS = [
    *(None, 1, True, 1.5, -0.0, 10**30, "", "a", "x" * 100_000, "\0", b"", b"a", (), (1, "a"), (None, (1,))),
    *(Point(1, "a"), User("a"), Colour.RED, frozenset({1, 2}), datetime(2020, 1, 1, tzinfo=UTC), math.inf),
]


class Counts(KeyedProcessFunction[tuple[Any, str], Any]):
    """Counts, forgets when told to, and tells its count when its timer fires."""

    count = ValueDescriptor[int]("count")

    def open(self, ctx: Any) -> None:
        self.state = ctx.state(self.count)

    def process_element(self, value: tuple[Any, str], ctx: Any, out: Any) -> None:
        if value[1] == "forget":
            self.state.clear()
            ctx.delete_event_timer(1_000)
        else:
            self.state.set((self.state.get() or 0) + 1)
            ctx.register_event_timer(1_000)

    def on_timer(self, timestamp: int, ctx: Any, out: Any) -> None:
        out((ctx.key, self.state.get()))


def counting(out: list[Any]) -> Pipeline:
    pipeline = Pipeline("counting")
    timed = pipeline.submissions(name="in").event_time(lambda value: 0, NoWatermarks(), name="time")
    timed.key_by(lambda value: value[0]).process(Counts(), name="counts").to(out, name="out")
    return pipeline


@pytest.mark.parametrize("codec", ["json", "pickle"])
@pytest.mark.parametrize("key", KEYS, ids=lambda key: repr(key)[:20])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_key_finds_what_it_had(key: Any, codec: Literal["json", "pickle"]) -> None:
    store, out = MemoryStore(), list[Any]()
    types = (Point, User, Colour) if codec == "json" else ()
    for inline_bytes, whats in ((0, ("add", "add", "forget")), (10_000, ("add",)), (0, ("add",))):
        checkpoints = Checkpoints(store=store, codec=codec, inline_bytes=inline_bytes, types=types)
        async with counting(out).start(checkpoints=checkpoints) as job:
            for what in whats:
                await job.submit((key, what))
                await job.checkpoint()
    async with counting(out).start(checkpoints=checkpoints) as job:
        await job.drain()
    assert out == [(key, 2)]
    assert type(out[0][0]) is type(key)


@dataclass(eq=False)
class Seat:
    """Is told from others by which object it is."""

    number: int


@pytest.mark.parametrize("codec", ["json", "pickle"])
@pytest.mark.parametrize("key", [ValueError("x"), Seat(1), (1, Seat(1)), frozenset({Seat(1)})], ids=repr)
@pytest.mark.parametrize("before", [1.5, (1, 1), frozenset({1})], ids=repr)
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_key_that_equals_no_copy_of_itself_is_refused_by_a_checkpoint(
    before: Any, key: Any, codec: Literal["json", "pickle"]
) -> None:
    checkpoints = Checkpoints(store=MemoryStore(), every=None, codec=codec)
    told = r"step 'counts' cannot be kept in a checkpoint: key .*: it does not equal a copy of itself"
    with pytest.raises(CheckpointError, match=told):  # noqa: PT012
        async with counting([]).start(checkpoints=checkpoints) as job:
            await job.submit((before, "add"))
            await job.submit((key, "add"))
            await job.checkpoint()


class SetsOnly(KeyedProcessFunction[Any, Any]):
    """Writes what it never reads."""

    def open(self, ctx: Any) -> None:
        self.state = ctx.state(ValueDescriptor("last"))

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        self.state.set(value)


class TimersOnly(KeyedProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        ctx.register_event_timer(ctx.timestamp + 1)

    def on_timer(self, timestamp: int, ctx: Any, out: Any) -> None: ...


async def same(value: Any) -> Any:
    return value


STEPS: dict[str, Callable[[KeyedStream[Any, Any]], Stream[Any]]] = {
    "process that only writes": lambda stream: stream.process(SetsOnly()),
    "process with timers only": lambda stream: stream.process(TimersOnly()),
    "tumbling": lambda stream: stream.window(TumblingWindows(1)).aggregate(n=Count()),
    "sliding": lambda stream: stream.window(SlidingWindows(2, 1)).aggregate(n=Count()),
    "in order": lambda stream: stream.window(SlidingWindows(2, 1)).aggregate(all=Collect("v")),
    "sessions": lambda stream: stream.window(SessionWindows(1)).aggregate(n=Count()),
    "dynamic sessions": lambda stream: stream.window(DynamicSessionWindows(lambda value: 1)).aggregate(
        n=Count()
    ),
    "trigger": lambda stream: stream.window(TumblingWindows(1)).trigger(CountTrigger(2)).aggregate(n=Count()),
    "count": lambda stream: stream.count_window(2).aggregate(n=Count()),
    "policy": lambda stream: stream.policy_window(length=2, function=str),
    "first": lambda stream: stream.deduplicate(),
    "first for a while": lambda stream: stream.deduplicate(within=1),
    "first by event time": lambda stream: stream.deduplicate(by="event_time"),
    "last": lambda stream: stream.deduplicate(keep="last"),
    "rolling": lambda stream: stream.max_by("v"),
    "rolling for a while": lambda stream: stream.max_by("v", ttl=1),
    "top": lambda stream: stream.top(1, by="id"),
    "pattern": lambda stream: stream.pattern(Pattern.begin("any", lambda value: True)),
    "interval join": lambda stream: stream.join(stream).within(1, 1),
    "window join": lambda stream: stream.join(stream).window(TumblingWindows(1)),
    "as of": lambda stream: stream.as_of(stream),
    "latest": lambda stream: cast("Any", stream).map(dict).key_by("id").as_of(stream, latest=True),
    "calls": lambda stream: stream.async_map(same, order="per_key", name="calls"),
}


@pytest.mark.parametrize("key", ["v", ("id", "v")], ids=repr)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_key_that_is_not_a_number_is_refused_at_its_first_element(step: str, key: Any) -> None:
    elements = [{"id": 1, "v": value} for value in (1.0, 1.0, math.nan, 2.0)]
    pipeline = Pipeline()
    timed = pipeline.source(elements).event_time(lambda value: 1_000, NoWatermarks())
    STEPS[step](timed.key_by(key)).to([])
    with pytest.raises(UserFunctionError, match=r"a key must equal itself, got .*nan") as failure:
        await pipeline.run()
    assert failure.value.element is elements[2]


@pytest.mark.parametrize("key", ["v", ("id", "v")], ids=repr)
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_key_that_is_not_a_number_can_be_skipped(key: Any) -> None:
    elements = [{"id": 1, "v": value} for value in (1.0, math.nan, 1.0)]
    out = list[Any]()
    pipeline = Pipeline()
    timed = pipeline.source(elements).event_time(lambda value: 1_000, NoWatermarks())
    timed.key_by(key, on_error="skip").window(TumblingWindows(1)).aggregate(n=Count()).to(out)
    await pipeline.run()
    assert [result.value for result in out] == [{"n": 2}]
