"""
A job whose block is never left, in an event loop that is closed, as where a program is interrupted: with it
goes all that it had, and what it has used serves another one.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from asyncstream import (
    AsyncFunction,
    Checkpoints,
    Inbox,
    Job,
    KeyedContext,
    KeyedProcessFunction,
    LookupTable,
    MemoryStore,
    Pipeline,
    Sink,
    Source,
    SourceBatch,
    SqliteSink,
)
from asyncstream.guards import SharedLimit, cached, rate_limit
from asyncstream.operators.emitting import Emitter
from asyncstream.testing.loop import VirtualTimeLoop, run_virtual
from tests.closing_loops import close_amid
from tests.runtime.parts import Ledger, boom

pytestmark = pytest.mark.usefixtures("others_gone")


def left_open(pipeline: Pipeline, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
    """Start a job, give it an element, and close its loop."""

    async def begin() -> None:
        job: Job = await pipeline.start(**options).__aenter__()
        await job.submit(1)
        await asyncio.sleep(1)

    close_amid(loop, begin())


class Never(AsyncFunction[int, int]):
    async def invoke(self, value: int) -> int:
        await asyncio.Event().wait()
        return value


async def never(value: int) -> int:
    await asyncio.Event().wait()
    return value


class Passing(KeyedProcessFunction[int, int]):
    def process_element(self, value: int, ctx: KeyedContext, out: Emitter[int]) -> None:
        out(value)


def of_an_inbox(folder: Path) -> Pipeline:
    pipeline = Pipeline("p")
    pipeline.submissions(name="in", inbox=Inbox(folder / "inbox.db")).discard(name="out")
    return pipeline


def of_a_table(folder: Path) -> Pipeline:
    pipeline = Pipeline("p")
    numbers = pipeline.submissions(name="in").map(lambda number: {"n": number})
    numbers.to(SqliteSink(folder / "out.db", "t", columns=["n"]), name="out")
    return pipeline


def of_a_cache(folder: Path) -> Pipeline:
    pipeline = Pipeline("p")
    asked = cached(never, store=folder / "cache.db")
    pipeline.submissions(name="in").async_map(asked, name="ask").discard(name="out")
    return pipeline


def of_a_rate(folder: Path) -> Pipeline:
    pipeline = Pipeline("p")
    asked = rate_limit(never, rate=1, scope=SharedLimit(f"sqlite:///{folder}/rate.db"))
    pipeline.submissions(name="in").async_map(asked, name="ask").discard(name="out")
    return pipeline


def of_a_journal(folder: Path) -> Pipeline:
    async def called(number: int) -> int:
        return number

    pipeline = Pipeline("p")
    numbers = pipeline.submissions(name="in").async_map(called, name="do", effect=lambda number: number)
    numbers.discard(name="out")
    return pipeline


def files_open_in(folder: Path) -> set[str]:
    descriptors = Path("/proc/self/fd")
    places = [os.readlink(one) for one in descriptors.iterdir() if one.is_symlink()]
    return {place for place in places if place.startswith(str(folder))}


@pytest.mark.skipif(sys.platform != "linux", reason="which files are open is seen on Linux")
@pytest.mark.parametrize("build", [of_an_inbox, of_a_table, of_a_cache, of_a_rate, of_a_journal])
def test_no_thread_and_no_file_stays_open(build: Callable[[Path], Pipeline], tmp_path: Path) -> None:
    before = threading.enumerate()
    checkpoints = Checkpoints(store=MemoryStore(), every=100, journal=tmp_path / "journal")
    left_open(build(tmp_path), VirtualTimeLoop(), checkpoints=checkpoints)
    assert files_open_in(tmp_path)
    for _ in range(3):  # what is ended as it is collected lets go of more
        gc.collect()
    for thread in threading.enumerate():
        if thread not in before:
            thread.join(10)
            assert not thread.is_alive(), thread
    gc.collect()  # what such a thread has had
    assert files_open_in(tmp_path) == set()


def test_functions_that_were_open_are_gone_with_it() -> None:
    function, pipeline = Never(), Pipeline()
    pipeline.submissions().async_map(function).discard()
    left_open(pipeline, VirtualTimeLoop())
    held = weakref.ref(function)
    del function, pipeline
    gc.collect()
    assert held() is None


@pytest.mark.parametrize("stays", [True, False])
def test_the_pipeline_and_its_functions_serve_again(stays: bool) -> None:
    done: list[int] = []
    pipeline = Pipeline()
    numbers = pipeline.submissions().async_map(Never(), timeout=5, on_timeout="skip")
    numbers.key_by(lambda number: number).process(Passing()).to(done)

    async def again() -> None:
        async with pipeline.start() as job:
            await job.submit(1)
        pipeline.source([2]).to(done)  # it does not run any more, or this would be refused

    loop = VirtualTimeLoop()
    left_open(pipeline, loop)
    if not stays:
        del loop
        gc.collect()
    run_virtual(again())


class Slow(Source[int]):
    """Takes for ever for one of its methods."""

    def __init__(self, slow: str) -> None:
        self._slow = slow

    async def _do(self, what: str) -> None:
        await asyncio.sleep(1e9 if self._slow == what else 0.1)

    async def open(self) -> None:
        await self._do("open")

    async def read(self) -> SourceBatch[int]:
        await self._do("read")
        return SourceBatch([1])

    async def close(self) -> None:
        await self._do("close")


class SlowSink(Sink[int]):
    async def write(self, values: Any, timestamps: Any) -> None:
        await asyncio.sleep(1e9)


class SlowToPrepare(Ledger):
    async def prepare(self, epoch: int) -> int:
        if self.rows:
            await asyncio.sleep(1e9)
        return await super().prepare(epoch)


class SlowFunction(AsyncFunction[int, int]):
    def __init__(self, slow: str) -> None:
        self._slow = slow

    async def open(self) -> None:
        await asyncio.sleep(1e9 if self._slow == "open" else 0)

    async def invoke(self, value: int) -> int:
        await asyncio.sleep(1e9 if self._slow == "invoke" else 0)
        return value

    async def close(self) -> None:
        await asyncio.sleep(1e9 if self._slow == "close" else 0)


async def numbers() -> AsyncIterator[int]:
    yield 1
    await asyncio.sleep(1e9)


def calling(function: SlowFunction) -> Callable[[Pipeline], Any]:
    return lambda pipeline: pipeline.source([1], name="in").async_map(function, name="do").discard()


def slow_jobs(slow: str) -> Callable[[Pipeline], Any]:
    """Batch jobs that take for ever for one of their calls."""

    async def do(what: str) -> None:
        await asyncio.sleep(1e9 if slow == what else 0)

    async def submit(elements: list[int], key: str) -> list[int]:
        await do("submit")
        return elements

    async def poll(job: list[int]) -> bool:
        await do("poll")
        return True

    async def fetch(job: list[int]) -> list[int]:
        await do("fetch")
        return job

    def build(pipeline: Pipeline) -> None:
        elements = pipeline.source([1], name="in")
        elements.async_batch(submit, poll, fetch, size=1, every=0.1, name="do").discard()

    return build


def looked_up(pipeline: Pipeline) -> None:
    """In a table that is read a second time for ever."""
    seconds = iter([0, 1e9])

    async def rows() -> list[dict[str, int]]:
        await asyncio.sleep(next(seconds))
        return [{"id": 1}]

    table = LookupTable.from_call(rows, key="id", every=0.5)
    pipeline.source(Slow("read"), name="in").lookup(table, on=lambda number: number).discard()


PIPELINES: dict[str, Callable[[Pipeline], Any]] = {
    "source_open": lambda pipeline: pipeline.source(Slow("open"), name="in").discard(),
    "source_read": lambda pipeline: pipeline.source(Slow("read"), name="in").discard(),
    "source_close": lambda pipeline: pipeline.source(Slow("close"), name="in").discard(),
    "generator": lambda pipeline: pipeline.source(numbers(), name="in").discard(),
    "function_open": calling(SlowFunction("open")),
    "function_invoke": calling(SlowFunction("invoke")),
    "function_close": calling(SlowFunction("close")),
    "sink_write": lambda pipeline: pipeline.source([1], name="in").to(SlowSink(), name="out"),
    "job_submit": slow_jobs("submit"),
    "job_poll": slow_jobs("poll"),
    "job_fetch": slow_jobs("fetch"),
    "lookup_read": looked_up,
}


@pytest.mark.parametrize("ends", ["stays", "leaves", "stops", "drains", "is_cancelled"])
@pytest.mark.parametrize("build", PIPELINES.values(), ids=PIPELINES)
def test_it_is_collected_without_a_word_while_another_one_runs(
    build: Callable[[Pipeline], Any], ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What a coroutine raises when it is collected, pytest makes an error of."""

    async def body(job: Job) -> None:
        async with job:
            if ends == "stops":
                await job.stop(1e6)
            if ends == "drains":
                await job.drain()
            await asyncio.sleep(0 if ends == "leaves" else 1e9)

    async def begin() -> None:
        pipeline = Pipeline()
        build(pipeline)
        job = pipeline.start(checkpoints=Checkpoints(store=MemoryStore(), every=0.5))
        task = asyncio.ensure_future(body(job))
        await asyncio.sleep(1)
        if ends == "is_cancelled":
            task.cancel()
            await asyncio.sleep(0.5)

    async def meanwhile() -> None:
        for _ in range(3):
            gc.collect()
        await asyncio.sleep(1)

    loop = VirtualTimeLoop()  # which stays until the end
    close_amid(loop, begin())
    caplog.clear()
    run_virtual(meanwhile())
    assert [record.getMessage() for record in caplog.records] == []


def test_sink_says_nothing_where_it_is_collected_before_its_task_amid_a_checkpoint() -> None:
    async def begin() -> asyncio.Task[Any]:
        pipeline = Pipeline()
        pipeline.source(Slow("never"), name="in").to(SlowToPrepare(), name="out")
        job = pipeline.start(checkpoints=Checkpoints(store=MemoryStore(), every=0.5))
        await job.__aenter__()
        await asyncio.sleep(1)
        assert job.state == "running"
        return next(task for task in asyncio.all_tasks() if task.get_name() == "asyncstream out")

    task = close_amid(VirtualTimeLoop(), begin())
    watched: Any = task.get_coro()
    watched.cr_await.close()


@pytest.mark.parametrize("isolation", ["pool", "task"])
@pytest.mark.parametrize("flat", [False, True])
def test_what_a_call_raises_as_it_is_collected_fails_no_job(
    flat: bool,
    isolation: Literal["pool", "task"],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python says it, as of any coroutine. A job that failed would end in the loop that runs then."""
    told: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_value))

    async def call(number: int) -> list[int]:
        try:
            await asyncio.sleep(1e9)
        finally:
            boom()
        return [number]

    async def meanwhile() -> set[asyncio.Task[Any]]:
        for _ in range(3):
            gc.collect()
        return asyncio.all_tasks()

    pipeline = Pipeline()
    numbers = pipeline.submissions()
    (numbers.async_flat_map if flat else numbers.async_map)(call, isolation=isolation).discard()
    loop = VirtualTimeLoop()
    left_open(pipeline, loop)
    del loop, pipeline, numbers
    assert len(run_virtual(meanwhile())) == 1
    assert [record.getMessage() for record in caplog.records] == []
    assert told
