"""A checkpoint that the codec refuses says which step, state, key and field it is, and no places of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from asyncstream import (
    BoundedOutOfOrderness,
    Checkpoints,
    Emitter,
    KeyedContext,
    KeyedProcessFunction,
    ListDescriptor,
    MemoryStore,
    Pipeline,
    Stream,
    TumblingWindows,
    ValueDescriptor,
)
from asyncstream.errors import CheckpointError
from asyncstream.testing import harness


class Opaque:
    def __repr__(self) -> str:
        return "<opaque>"


@dataclass(frozen=True)
class User:
    session: Opaque


class Remembers(KeyedProcessFunction[int, int]):
    def open(self, ctx: KeyedContext) -> None:
        self.last = ctx.state(ValueDescriptor[Any]("last"))

    def process_element(self, value: int, ctx: KeyedContext, out: Emitter[int]) -> None:
        self.last.set({"user": User(Opaque())} if value == 3 else value)


class Lists(KeyedProcessFunction[int, int]):
    def open(self, ctx: KeyedContext) -> None:
        self.seen = ctx.state(ListDescriptor[Any]("seen"))

    def process_element(self, value: int, ctx: KeyedContext, out: Emitter[int]) -> None:
        self.seen.add({"at": [Opaque()]})


class Timer(KeyedProcessFunction[int, int]):
    def process_element(self, value: int, ctx: KeyedContext, out: Emitter[int]) -> None:
        ctx.register_event_timer(5)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[int]) -> None: ...


async def wait(value: Any) -> Any:
    await asyncio.sleep(1000)


def in_windows(stream: Stream[int]) -> Stream[Any]:
    timed = stream.map(lambda value: {"n": [Opaque()]}).event_time(
        lambda value: 0, BoundedOutOfOrderness(1), name="t"
    )
    return timed.key_by(lambda value: "key").window(TumblingWindows(1)).collect(name="step")


WHERE: dict[str, tuple[Callable[[Stream[int]], Stream[Any]], str]] = {
    "state": (
        lambda stream: stream.key_by(lambda value: f"key {value}").process(Remembers(), name="step"),
        "state 'last' of key 'key 3', at ['user'].session: cannot keep a ",
    ),
    "state of a list": (
        lambda stream: stream.key_by(lambda value: 7).process(Lists(), name="step"),
        "state 'seen' of key 7, at ['at'][0]: cannot keep a ",
    ),
    "key": (
        lambda stream: stream.key_by(lambda value: (1, User(Opaque()))).process(Timer(), name="step"),
        "key (1, User(session=<opaque>)), at .session: cannot keep a ",
    ),
    "window": (in_windows, "what it holds of key 'key', at ['n'][0]: cannot keep a "),
    "element of a call": (
        lambda stream: stream.map(lambda value: {"n": Opaque()}).async_map(wait, name="step"),
        "what it holds, at ['n']: cannot keep a ",
    ),
}


@pytest.mark.usefixtures("virtual_time", "tidy")
@pytest.mark.parametrize("case", WHERE)
async def test_refused_value_is_found_by_what_the_user_knows(case: str) -> None:
    build, told = WHERE[case]
    pipeline = Pipeline("p")
    build(pipeline.submissions(int, name="in")).to([], name="out")
    with pytest.raises(CheckpointError) as caught:  # noqa: PT012 - at one of them
        async with pipeline.start(checkpoints=Checkpoints(store=MemoryStore(), every=1000)) as job:
            for value in range(5):
                await job.submit(value)
            await job.checkpoint()
    assert str(caught.value).startswith(f"step 'step' cannot be kept in a checkpoint: {told}")


def test_harness_says_the_same() -> None:
    with harness(Remembers(), key_by=lambda value: value, name="step") as tested:
        tested.push_all(range(5))
        with pytest.raises(
            CheckpointError, match=r"step 'step' .*: state 'last' of key 3, at \['user'\]\.session"
        ):
            tested.snapshot()
