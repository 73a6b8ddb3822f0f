"""Processing time inside a job: it never goes backwards, and a clock that is moved is noticed."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from asyncstream import (
    Checkpoints,
    Count,
    KeyedContext,
    KeyedProcessFunction,
    ManualClock,
    MemoryStore,
    Pipeline,
    TumblingWindows,
)
from asyncstream.clock import SystemClock
from asyncstream.operators.emitting import Emitter
from asyncstream.runtime.aio.jobclock import JobClock
from asyncstream.testing.loop import VirtualTimeLoop

pytestmark = pytest.mark.usefixtures("virtual_time", "tidy")

HOUR_MS = 3_600_000


class SetClock:
    """Goes with the event loop, and is set by hand besides."""

    def __init__(self, now_ms: int = 10 * HOUR_MS) -> None:
        self.offset_ms = now_ms
        self._loop = asyncio.get_running_loop()

    def now_ms(self) -> int:
        return round(self._loop.time() * 1000) + self.offset_ms


class After(KeyedProcessFunction[Any, Any]):
    """Emits when a timer of 0.3 s fires: by how much processing time, and loop time, have gone on."""

    def process_element(self, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        self.began = asyncio.get_running_loop().time()
        ctx.register_processing_timer(ctx.now_ms + 300)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        out((ctx.now_ms >= timestamp, round(asyncio.get_running_loop().time() - self.began, 2)))


def after(out: list[Any]) -> Pipeline:
    pipeline = Pipeline()
    keyed = pipeline.submissions(name="in").key_by(lambda value: value)
    keyed.process(After(), name="after").to(out, name="out")
    return pipeline


def counting(out: list[Any]) -> Pipeline:
    pipeline = Pipeline()
    keyed = pipeline.submissions(name="in").key_by(lambda value: value)
    windows = keyed.window(TumblingWindows(60, time="processing"))
    windows.aggregate(n=Count(), name="count").map(lambda result: result.end_ms).to(out, name="out")
    return pipeline


@pytest.mark.parametrize("from_thread", [False, True])
async def test_manual_clock_that_is_moved_fires_windows_and_only_then(from_thread: bool) -> None:
    clock = ManualClock()
    out: list[Any] = []
    async with counting(out).start(clock=clock) as job:
        for minute in range(3):
            await job.submit("a")
            await asyncio.sleep(1000)
            assert len(out) == minute
            move = threading.Thread(target=clock.set_ms, args=((minute + 1) * 60_000,))
            if from_thread:
                move.start()
                move.join()
            else:
                move.run()
            await asyncio.sleep(0.001)
            assert out == [60_000 * (number + 1) for number in range(minute + 1)]
        await job.stop()


async def test_manual_clock_is_not_looked_at_when_it_stands_still() -> None:
    class Counted(ManualClock):
        looks = 0

        def now_ms(self) -> int:
            self.looks += 1
            return super().now_ms()

    async def main() -> None:
        clock = Counted()
        out: list[Any] = []
        async with counting(out).start(clock=clock) as job:
            await job.submit("a")
            await asyncio.sleep(1)
            looks = clock.looks
            await asyncio.sleep(100_000)
            assert clock.looks == looks
            await job.stop()

    await main()


async def test_clock_that_is_set_forward_is_noticed_within_a_second() -> None:
    clock = SetClock()
    out: list[Any] = []
    async with counting(out).start(clock=clock) as job:
        await job.submit("a")
        await asyncio.sleep(0.1)
        clock.offset_ms += HOUR_MS
        await asyncio.sleep(1.1)
        assert len(out) == 1
        await job.stop()


@pytest.mark.parametrize("step_ms", [-1, -10, -HOUR_MS])
async def test_timer_takes_its_time_when_the_clock_is_set_back_meanwhile(step_ms: int) -> None:
    clock = SetClock()
    out: list[Any] = []
    async with after(out).start(clock=clock) as job:
        await job.submit("a")
        await asyncio.sleep(0.1)
        clock.offset_ms += step_ms
        await asyncio.sleep(0.5)
        assert len(out) == 1
        assert out[0][0]
        assert 0.3 <= out[0][1] <= 0.45
        await job.stop()


@pytest.mark.parametrize("way", ["snapshot", "checkpoints"])
async def test_timer_takes_its_time_when_the_next_job_has_a_clock_that_is_behind(way: str) -> None:
    clock = SetClock()
    out: list[Any] = []
    kept = Checkpoints(store=MemoryStore(), every=None)
    first, second = after(out), after(out)
    async with first.start(clock=clock, checkpoints=kept if way == "checkpoints" else None) as job:
        await job.submit("a")
        await asyncio.sleep(0.1)
        snapshot = await job.stop()
    clock = SetClock(9 * HOUR_MS)
    began = asyncio.get_running_loop().time()
    second_job = second.start(clock=clock, checkpoints=kept) if way == "checkpoints" else None
    async with second_job or second.start(clock=clock, snapshot=snapshot) as job:
        for function in [step for step in job._run.wiring.operators.values() if hasattr(step, "_function")]:
            function._function.began = began
        await asyncio.sleep(0.5)
        assert out == [(True, 0.2)]
        await job.stop()


async def test_job_clock_never_goes_backwards_and_is_right_again_once_the_clock_is() -> None:
    clock = SetClock()
    job = JobClock(clock)
    job.begin()
    shown = []
    for step_ms in (0, -HOUR_MS, 0, -5, HOUR_MS + 5, 0, HOUR_MS, -1):
        await asyncio.sleep(0.2)
        clock.offset_ms += step_ms
        shown.append(job.now_ms())
    assert shown == sorted(shown)
    assert shown[4] - clock.now_ms() <= 10 - HOUR_MS + 1
    assert shown[-1] - clock.now_ms() <= 10


async def test_job_in_virtual_time_takes_its_processing_time_from_the_loop() -> None:
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
    out: list[Any] = []
    async with counting(out).start() as job:
        await job.submit("a")
        await asyncio.sleep(61)
        assert out == [60_000]
        await job.stop()


async def test_machine_that_is_set_back_does_not_hold_the_timers_of_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = SetClock()
    monkeypatch.setattr(SystemClock, "machine_ms", lambda self: now.now_ms())
    out: list[Any] = []
    async with after(out).start(clock=SystemClock()) as job:
        await job.submit("a")
        await asyncio.sleep(0.1)
        now.offset_ms -= HOUR_MS
        await asyncio.sleep(0.5)
        assert len(out) == 1
        await job.stop()
