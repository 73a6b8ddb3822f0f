"""
A job that is stopped anywhere and goes on gives what the job gives that is not interrupted.

Both runs must see elements and alarms in the same order. So elements come at whole hundredths of a second of
virtual time, cuts are 2 ms later, and alarms go off in between. Calls take another time when they are made
again, so they are in front of steps that know event time only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncstream import (
    AscendingTimestamps,
    BoundedOutOfOrderness,
    Checkpoints,
    Count,
    KeyedContext,
    KeyedProcessFunction,
    MemoryStore,
    Pipeline,
    SessionWindows,
    SlidingWindows,
    Source,
    SourceBatch,
    Sum,
    TumblingWindows,
)
from asyncstream.operators.emitting import Emitter
from asyncstream.operators.keyed_context import TimeDomain
from asyncstream.pipeline import Stream
from asyncstream.state import ValueDescriptor
from tests.runtime.parts import Boom, VirtualClock, run

Way = Literal["snapshot", "checkpoint"]


class Event(NamedTuple):
    """
    An element, as a plain tuple on its way.

    Attributes:
        source: which source gives it.
        wait: hundredths of a second after the one before.
        key: whose it is.
        at_ms: its event time.
        commands: what the process function does with it.
    """

    source: int
    wait: int
    key: int
    at_ms: int
    commands: list[tuple[str, int]]


EVENTS = st.lists(
    st.builds(
        Event,
        st.integers(0, 1),
        st.integers(1, 5),
        st.integers(0, 1),
        st.integers(0, 60),
        st.lists(
            st.tuples(
                st.sampled_from(
                    ("register", "register", "delete", "register_p", "delete_p", "count", "move")
                ),
                st.integers(-10, 12),
            ),
            max_size=3,
        ),
    ),
    min_size=1,
    max_size=7,
)


class Timed(Source[Any]):
    """Gives its events at their moments of virtual time: those up to `limit`, and the end if that is all."""

    def __init__(self, events: Sequence[tuple[float, Event]], limit: int) -> None:
        self.events = events
        self.limit = limit
        self.at = 0

    async def read(self) -> SourceBatch[Any] | None:
        if self.at == self.limit < len(self.events):
            await asyncio.Event().wait()
        if self.at == len(self.events):
            return None
        when, event = self.events[self.at]
        await asyncio.sleep(when - asyncio.get_running_loop().time())
        self.at += 1
        return SourceBatch([tuple(event)])

    def position(self) -> int:
        return self.at

    async def seek(self, position: int) -> None:
        self.at = position


class Random(KeyedProcessFunction[Any, Any]):
    """Does what its elements say, with timers and state, and tells all that it can see."""

    def open(self, ctx: KeyedContext) -> None:
        self.count = ctx.state(ValueDescriptor[int]("count"))
        self.alert = ctx.state(ValueDescriptor[int]("alert"))

    def process_element(self, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        at_ms = value[3]
        for command, by_ms in value[4]:
            if command == "register":
                ctx.register_event_timer(at_ms + by_ms)
            elif command == "delete":
                ctx.delete_event_timer(at_ms + by_ms)
            elif command == "register_p":
                ctx.register_processing_timer(ctx.now_ms + by_ms * 10 + 4)
            elif command == "delete_p":
                ctx.delete_processing_timer(ctx.now_ms + by_ms * 10 + 4)
            elif command == "count":
                self.count.set((self.count.get() or 0) + 1)
            else:  # an alert that each element puts off
                if (before := self.alert.get()) is not None:
                    ctx.delete_event_timer(before)
                self.alert.set(at_ms + by_ms)
                ctx.register_event_timer(at_ms + by_ms)
        out(("element", ctx.key, at_ms, ctx.watermark, self.count.get()))

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        out(("timer", ctx.domain is TimeDomain.EVENT, ctx.key, timestamp, ctx.watermark, self.count.get()))
        self.count.set((self.count.get() or 0) + 1)
        if timestamp % 3 == 0 and ctx.domain is TimeDomain.EVENT and timestamp < 90:
            ctx.register_event_timer(timestamp + 1)


async def call(value: Any) -> Any:
    if value[3] % 3:
        await asyncio.sleep(value[3] / 100)
    return value


Shape = tuple[str, int, int]
SHAPES = st.tuples(
    st.sampled_from(("one", "calls", "union", "calls and calls")), st.integers(0, 12), st.integers(0, 8)
)


def build(events: list[Event], shape: Shape, limit: int, out: list[Any]) -> Pipeline:
    """A pipeline that reads the first `limit` events."""
    front, delay, lateness = shape
    both = front == "union"
    timed: list[list[tuple[float, Event]]] = [[], []]
    limits = [0, 0]
    now = 0.01
    for number, event in enumerate(events):
        now += event.wait / 100
        source = event.source if both else 0
        timed[source].append((round(now, 2), event))
        limits[source] += number < limit
    pipeline = Pipeline()
    heads = []
    for source in range(2 if both else 1):
        strategy = (
            AscendingTimestamps(every=0)
            if source
            else BoundedOutOfOrderness(delay / 1000, every=delay // 3 / 1000)
        )
        read = pipeline.source(Timed(timed[source], limits[source]), name=f"source {source}")
        heads.append(read.event_time(lambda value: value[3], strategy, name=f"time {source}"))
    stream: Stream[Any] = heads[0].union(heads[1], name="union") if both else heads[0]
    for number in range(front.count("calls")):
        stream = stream.async_map(call, order="ordered", concurrency=2, buffer=3, name=f"calls {number}")
    keyed = stream.key_by(lambda value: value[2])
    if front.startswith("calls"):
        keyed = stream.map(without_processing_time, name="plain").key_by(lambda value: value[2])
    keyed.process(Random(), name="process").to(
        lambda value: out.append(("process", *value)), name="processed"
    )
    for name, assigner in (
        ("tumbling", TumblingWindows(0.01)),
        ("sliding", SlidingWindows(0.02, 0.005)),
        ("session", SessionWindows(0.004)),
    ):
        windows = keyed.window(assigner).allowed_lateness(lateness / 1000)
        counted = windows.aggregate(n=Count(), total=Sum(lambda value: value[3]), name=name)
        counted.map(partial(told, name)).to(out.append, name=f"{name} results")
        counted.late.map(partial(told, f"{name} late")).to(out.append, name=f"{name} late")
    if both or front == "one":
        stream.policy_window(length=3, slide=2, lag=delay / 1000, watermark_interval=0.03, name="policy").to(
            lambda window: out.append(("policy", window.values, window.end_ms)), name="policy results"
        )
        windows = keyed.window(TumblingWindows(0.03, offset=0.005, time="processing"))
        windows.aggregate(n=Count(), name="processing").to(
            lambda value: out.append(("processing", repr(value))), name="processing results"
        )
    return pipeline


def without_processing_time(value: Any) -> Any:
    return (*value[:4], [command for command in value[4] if not command[0].endswith("_p")])


def told(step: str, value: Any) -> Any:
    return step, repr(value)


def by_step(out: list[Any]) -> dict[str, list[Any]]:
    """Results of each step in order; sinks write independently of each other."""
    found: dict[str, list[Any]] = {}
    for step, *rest in out:
        found.setdefault(step, []).append(rest)
    return found


async def uninterrupted(events: list[Event], shape: Shape) -> dict[str, list[Any]]:
    out: list[Any] = []
    await build(events, shape, len(events), out).run(clock=VirtualClock())
    return by_step(out)


async def interrupted(events: list[Event], shape: Shape, cut: int, way: Way, calls: bool) -> Any:
    """Stop when `cut` events have been read, and go on; `calls`: while calls are running."""
    out: list[Any] = []
    clock = VirtualClock()
    read_by = sum(event.wait for event in events[:cut]) / 100 + 0.012
    wait = read_by if calls or not shape[0].startswith("calls") else 10.0
    pipeline = build(events, shape, cut, out)
    again = build(events, shape, len(events), out)
    if way == "snapshot":
        async with pipeline.start(clock=clock) as job:
            await asyncio.sleep(wait)
            snapshot = await job.stop()
        async with again.start(clock=clock, snapshot=snapshot) as job:
            await job.wait()
    else:
        checkpoints = Checkpoints(store=MemoryStore(), every=None)
        with suppress(Boom):
            async with pipeline.start(clock=clock, checkpoints=checkpoints) as job:
                await asyncio.sleep(wait)
                await job.checkpoint()
                kept = len(out)
                raise Boom
        del out[kept:]
        await again.run(clock=clock, checkpoints=checkpoints)
    return by_step(out)


@pytest.mark.parametrize("way", ["snapshot", "checkpoint"])
@settings(max_examples=12, deadline=None)
@example(  # a timer that is due when it is set, and deleted before there is another watermark
    [Event(0, 1, 0, 40, []), Event(0, 1, 0, 5, [("register", 0)]), Event(0, 1, 0, 6, [("delete", -1)])],
    ("one", 0, 0),
    True,
)
@example(
    [Event(0, 1, 0, 40, []), Event(0, 1, 0, 6, [("register", 0)]), Event(0, 1, 0, 3, [("delete", 3)])],
    ("calls", 0, 0),
    False,
)
@given(EVENTS, SHAPES, st.booleans())
def test_job_that_is_cut_at_any_position_goes_on_as_if_it_had_not_been(
    way: Way, events: list[Event], shape: Shape, calls: bool
) -> None:
    expected = run(uninterrupted(events, shape))
    for cut in range(len(events)):
        assert run(interrupted(events, shape, cut, way, calls)) == expected, f"cut at {cut}"
