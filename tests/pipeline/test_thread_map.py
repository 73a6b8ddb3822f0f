"""`thread_map`: a function that blocks, as a step of a pipeline whose event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import math
import shutil
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from asyncstream import Pipeline, PipelineError, UserFunctionError
from asyncstream.guards import in_threads

PATIENCE = 60
"""Seconds until a test that hangs is given up."""


@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time", "per_key"])
def test_calls_block_at_once_while_the_loop_goes_on(order: Any) -> None:
    together = threading.Barrier(4, timeout=PATIENCE)

    def meets(value: int) -> int:
        together.wait()
        return anyio.from_thread.run(in_the_loop, value)

    async def in_the_loop(value: int) -> int:
        return value * value

    async def main() -> list[int]:
        results: list[int] = []
        pipeline = Pipeline()
        numbers = pipeline.source(range(4))
        stream = numbers.key_by(lambda value: value) if order == "per_key" else numbers
        stream.thread_map(meets, threads=4, order=order).to(results)
        await pipeline.run()
        return results

    results = asyncio.run(main())
    assert sorted(results) == [0, 1, 4, 9]
    if order == "ordered":
        assert results == [0, 1, 4, 9]


def test_as_function_of_async_flat_map() -> None:
    results: list[int] = []
    pipeline = Pipeline()
    pipeline.source([2, 0, 3]).async_flat_map(in_threads(range, threads=2), concurrency=2).to(results)
    pipeline.run_blocking()
    assert results == [0, 1, 0, 1, 2]


def test_failed_calls_are_routed_with_their_elements() -> None:
    def half(value: int) -> float:
        return 10 / value

    results: list[float] = []
    failed: list[Any] = []
    pipeline = Pipeline()
    halves = pipeline.source([5, 0, 2]).thread_map(half, threads=2, on_error="route")
    halves.to(results)
    halves.failed.to(failed)
    pipeline.run_blocking()
    assert results == [2.0, 5.0]
    assert [(call.value, type(call.error)) for call in failed] == [(0, ZeroDivisionError)]


def test_timed_out_call_gives_up_its_element_at_once_and_its_thread_later() -> None:
    release = threading.Event()
    running: list[int] = []

    def hangs(value: int) -> int:
        running.append(value)
        assert release.wait(PATIENCE)
        return value

    async def main() -> None:
        pipeline = Pipeline()
        stream = pipeline.submissions(int).thread_map(
            # longer than a thread takes to begin, on a busy machine too
            hangs,
            threads=1,
            timeout=0.2,
            on_timeout="route",
            name="hangs",
        )
        stream.discard()
        late = stream.timed_out.results()
        async with pipeline.start() as job:
            await job.submit(1)
            await job.submit(2)
            given_up = await anext(job.results(late))
            assert given_up.value == 1
            counts = job.metrics()["hangs"]
            assert (counts["overdue"], counts["running"], counts["waiting"]) == (1, 1, 1)
            assert running == [1]
            release.set()
            await job.drain(PATIENCE)
            assert running == [1, 2]

    asyncio.run(main())


def test_call_that_does_not_return_is_named_by_a_stop() -> None:
    release = threading.Event()
    entered = threading.Event()

    def hangs(value: int) -> int:
        entered.set()
        assert release.wait(PATIENCE)
        return value

    async def main() -> None:
        pipeline = Pipeline()
        pipeline.submissions(int).thread_map(hangs, threads=1, name="hangs").discard()
        async with pipeline.start(end_timeout=0.05) as job:
            await job.submit(1)
            assert await asyncio.to_thread(entered.wait, PATIENCE)
            await job.stop(0)

    with pytest.raises(UserFunctionError, match=r"'hangs'.*1 calls ignored their cancellation"):
        asyncio.run(main())
    release.set()


def test_checkpoint_goes_on_when_the_function_becomes_async(tmp_path: Path) -> None:
    entered, release = threading.Event(), threading.Event()

    def blocks(value: int) -> int:
        entered.set()
        assert release.wait(PATIENCE)
        return value

    async def later(value: int) -> int:
        return value * 10

    results: list[int] = []

    async def main() -> None:
        first = Pipeline("numbers")
        first.submissions(int, name="in").thread_map(blocks, threads=2, name="call").to([], name="out")
        async with first.start(checkpoints=tmp_path / "kept") as job:
            await job.submit(1)
            assert await asyncio.to_thread(entered.wait, PATIENCE)
            await job.checkpoint()
            # a later one may hold its result, or nothing of it
            shutil.copytree(tmp_path / "kept", tmp_path / "copy")
            release.set()
        second = Pipeline("numbers")
        second.submissions(int, name="in").async_map(later, name="call").to(results, name="out")
        async with second.start(checkpoints=tmp_path / "copy") as job:
            await job.drain()

    asyncio.run(main())
    assert results == [10]


def test_description_tells_of_the_threads() -> None:
    pipeline = Pipeline()
    pipeline.source([1]).thread_map(abs, threads=7).discard()
    assert "fn=abs in threads" in pipeline.describe()
    assert "concurrency=7" in pipeline.describe()


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda s: s.thread_map(abs, threads=0), "threads: expected an integer of at least 1"),
        (lambda s: s.thread_map(abs, concurrency=9), "concurrency: expected none .*threads= says"),
        (lambda s: s.thread_map(asyncio.sleep), "fn: expected a plain function"),
        (lambda s: s.thread_map(None), "fn: expected a function"),
        (lambda s: s.thread_map(abs, thread=2), "there is no option 'thread'"),
        (lambda s: s.thread_map(abs, threads=anyio.CapacityLimiter(math.inf)), "finite"),
        (lambda s: s.async_map(abs), "for one that blocks use thread_map, or in_threads"),
    ],
)
def test_wrong_arguments_are_refused(build: Any, text: str) -> None:
    with pytest.raises(PipelineError, match=text):
        build(Pipeline().source([1]))
