"""What the clock makes steps emit heeds backpressure: timers wait, and fire in order once there is room."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from asyncstream import Count, KeyedContext, KeyedProcessFunction, Pipeline, TumblingWindows
from asyncstream.operators.emitting import BURST, Emitter
from asyncstream.runtime.aio.writing import SINK_LIMIT
from tests.runtime.parts import Held, VirtualClock

pytestmark = pytest.mark.usefixtures("virtual_time", "tidy")


class Ticker(KeyedProcessFunction[Any, Any]):
    """Emits 100 results every 5 ms."""

    def process_element(self, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        ctx.register_processing_timer(ctx.now_ms + 5)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        for number in range(100):
            out((timestamp, number))
        ctx.register_processing_timer(ctx.now_ms + 5)


async def test_timers_wait_while_the_sink_is_full_and_go_on_in_order() -> None:
    sink = Held()
    pipeline = Pipeline()
    pipeline.submissions(name="in").key_by(lambda x: x).process(Ticker(), name="tick").to(sink, name="out")
    async with pipeline.start(clock=VirtualClock()) as job:
        await job.submit(1)
        await asyncio.sleep(60)
        assert job.metrics()["out"]["waiting"] <= SINK_LIMIT + BURST
        assert job.metrics()["tick"]["processing_timers"] == 1
        sink.may.set()
        await asyncio.sleep(1)
        assert len(sink.seen) > 10_000
        assert sink.seen == sorted(set(sink.seen))
        await job.stop()


class Once(KeyedProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        ctx.register_processing_timer(100 + ctx.key % 7)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        out((timestamp, ctx.key))


def once(sink: Any, keys: int) -> Pipeline:
    pipeline = Pipeline()
    source = pipeline.submissions(name="in", limit=keys)
    source.key_by(lambda x: x).process(Once(), name="once").to(sink, name="out")
    return pipeline


KEYS = 5 * (SINK_LIMIT + BURST)


@pytest.mark.parametrize("how", ["go on", "stop", "end"])
async def test_timers_due_together_fire_in_parts_and_each_once(how: str) -> None:
    sink = Held()
    async with once(sink, KEYS).start(clock=VirtualClock()) as job:
        for key in range(KEYS):
            await job.submit(key)
        await asyncio.sleep(1)
        metrics = job.metrics()
        assert metrics["out"]["waiting"] <= SINK_LIMIT + BURST + 1
        assert metrics["once"]["processing_timers"] >= KEYS - 2 * (SINK_LIMIT + BURST)
        if how == "stop":
            snapshot = await job.stop(timeout=0)
        else:
            sink.may.set()
            if how == "end":
                await job.drain()
            await asyncio.sleep(1)
            await job.stop()
    if how == "stop":
        sink.may.set()
        async with once(sink, KEYS).start(clock=VirtualClock(), snapshot=snapshot) as job:
            await asyncio.sleep(1)
            await job.stop()
    assert sink.seen == sorted((100 + key % 7, key) for key in range(KEYS))


@pytest.mark.parametrize("policy", [False, True])
async def test_windows_in_processing_time_wait_for_room(policy: bool) -> None:
    sink, keys = Held(), 2 * (SINK_LIMIT + BURST)
    pipeline = Pipeline()
    source = pipeline.submissions(name="in", limit=keys)
    if policy:
        source.key_by(lambda x: x).policy_window(
            length=timedelta(milliseconds=100),
            tumbling=True,
            time="processing",
            function=lambda window: window.values[0],
            name="windows",
        ).to(sink, name="out")
    else:
        windows = source.key_by(lambda x: x).window(TumblingWindows(0.1, time="processing"))
        windows.aggregate(n=Count(), name="windows").map(lambda result: result.key).to(sink, name="out")
    async with pipeline.start(clock=VirtualClock()) as job:
        for key in range(keys):
            await job.submit(key)
        await asyncio.sleep(1)
        assert job.metrics()["out"]["waiting"] <= SINK_LIMIT + BURST + 1
        sink.may.set()
        await asyncio.sleep(1)
        assert sink.seen == list(range(keys))
        await job.stop()


async def test_processing_time_timers_that_are_pending_at_the_end_of_input_do_not_fire() -> None:
    sink = Held()
    async with once(sink, 3).start(clock=VirtualClock()) as job:
        await job.submit(1)
        await asyncio.sleep(0.01)
        draining = asyncio.create_task(job.drain())
        await asyncio.sleep(1)
        sink.may.set()
        await draining
    assert sink.seen == []
