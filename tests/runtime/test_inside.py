"""Who waits for a job inside one of its steps is told at once."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from asyncstream import (
    AsyncFunction,
    AsyncStreamError,
    Checkpoints,
    Job,
    MemoryStore,
    Pipeline,
    Sink,
    Source,
    SourceBatch,
)
from asyncstream.elements import Timestamps
from tests.runtime.parts import sleeping

pytestmark = pytest.mark.usefixtures("virtual_time", "tidy")

METHODS: dict[str, Callable[[Job], Awaitable[Any]]] = {
    "stop": lambda job: job.stop(),
    "drain": lambda job: job.drain(),
    "wait": lambda job: job.wait(),
    "checkpoint": lambda job: job.checkpoint(),
}


async def _gathered(work: Awaitable[Any]) -> None:
    await asyncio.gather(work)


async def _in_a_group(work: Awaitable[Any]) -> None:
    async def waiting() -> None:
        await work

    async with asyncio.TaskGroup() as group:
        group.create_task(waiting())


WAYS: dict[str, Callable[[Awaitable[Any]], Awaitable[Any]]] = {
    "plainly": lambda work: work,
    "with_a_timeout": lambda work: asyncio.wait_for(work, 5),
    "gathered": _gathered,
    "in_a_group": _in_a_group,
}


@pytest.mark.parametrize("isolation", ["pool", "task"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", METHODS)
async def test_waiting_for_the_job_in_a_call_is_refused(method: str, way: str, isolation: Any) -> None:
    job: Job

    async def call(value: int) -> int:
        if value == 3:
            await WAYS[way](METHODS[method](job))
        return value

    pipeline = Pipeline()
    pipeline.source(range(10), name="in").async_map(call, name="call", isolation=isolation).to([], name="out")

    with pytest.raises(AsyncStreamError) as caught:
        async with pipeline.start(checkpoints=Checkpoints(store=MemoryStore())) as job:
            await job.wait()
    causes = f"{caught.value} {caught.value.__cause__!r}"
    cause = caught.value.__cause__
    if isinstance(cause, BaseExceptionGroup):
        causes += str(cause.exceptions)
    assert f"job.{method}() was called inside step 'call' of the same job" in causes
    assert asyncio.get_running_loop().time() < 1


@pytest.mark.parametrize("place", ["sink", "sink_function", "source", "open", "close"])
async def test_waiting_for_the_job_in_other_parts_is_refused(place: str) -> None:
    job: Job

    async def stop(*arguments: Any) -> None:
        await job.stop()

    class Bad(Sink[Any]):
        async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
            await stop()

    class BadCall(AsyncFunction[Any, Any]):
        async def open(self) -> None:
            if place == "open":
                await stop()

        async def invoke(self, value: Any) -> Any:
            return value

        async def close(self) -> None:
            if place == "close":
                await stop()

    async def numbers() -> AsyncIterator[int]:
        yield 1
        if place == "source":
            await stop()

    sinks: dict[str, Any] = {"sink": Bad(), "sink_function": stop}
    pipeline = Pipeline()
    stream = pipeline.source(numbers(), name="in").async_map(BadCall(), name="call")
    stream.to(sinks.get(place, []), name="out")

    job = pipeline.start()
    with pytest.raises(AsyncStreamError) as caught:
        async with job:
            await job.wait()
    step = {"source": "in", "open": "call", "close": "call"}.get(place, "out")
    assert f"step {step!r}" in str(caught.value)
    assert "would wait for itself" in str(caught.value)
    assert asyncio.get_running_loop().time() < 1


async def test_step_of_one_job_may_wait_for_another() -> None:
    seen: list[int] = []

    async def inner(value: int) -> int:
        pipeline = Pipeline()
        pipeline.source([value]).async_map(sleeping(1)).to(seen)
        async with pipeline.start() as job:
            await job.wait()
            await job.stop()
        return value

    pipeline = Pipeline()
    pipeline.source([1, 2]).async_map(inner).discard()
    await pipeline.run()
    assert sorted(seen) == [1, 2]


async def test_step_can_have_the_job_stopped_by_an_event() -> None:
    enough = asyncio.Event()

    async def call(value: int) -> int:
        if value == 3:
            enough.set()
        await asyncio.sleep(1)
        return value

    pipeline = Pipeline()
    pipeline.source(range(10), name="in").async_map(call, concurrency=1, name="call").to([], name="out")

    async with pipeline.start() as job:
        await enough.wait()
        await job.stop()
    assert job.state == "stopped"


@pytest.mark.parametrize("isolation", ["pool", "task"])
@pytest.mark.parametrize("place", ["source", "call", "sink"])
async def test_what_a_step_has_started_does_not_hold_a_job_that_has_ended(place: str, isolation: Any) -> None:
    """Such as the task with which a client that outlives the job reads its connection."""
    started: list[asyncio.Task[None]] = []

    def begin(here: str) -> None:
        if here == place and not started:
            started.append(asyncio.create_task(asyncio.sleep(3600)))

    class Numbers(Source[int]):
        def __init__(self) -> None:
            self.given = 0

        async def read(self) -> SourceBatch[int] | None:
            begin("source")
            self.given += 1
            return SourceBatch([self.given]) if self.given < 9 else None

        def position(self) -> int:
            return self.given

        async def seek(self, position: int) -> None:
            self.given = position

    async def call(value: int) -> int:
        begin("call")
        await asyncio.sleep(0)
        return value

    async def write(value: int) -> None:
        begin("sink")

    pipeline = Pipeline("clients")
    calls = pipeline.source(Numbers(), name="in").async_map(
        call, effect=True, isolation=isolation, name="call"
    )
    calls.to(write, name="out")
    async with pipeline.start(checkpoints=Checkpoints(MemoryStore())) as job:
        await job.wait()
    held = weakref.ref(job)
    del pipeline, calls, job
    await asyncio.sleep(1)
    gc.collect()
    assert len(started) == 1
    assert held() is None
    started[0].cancel()
    await asyncio.wait(started)
