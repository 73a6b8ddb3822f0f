"""One source or sink in two pipelines: each serves one job at a time, and the second is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    Checkpoints,
    Items,
    JsonLinesSink,
    MemoryStore,
    Pipeline,
    PipelineError,
    Sink,
    Source,
)

pytestmark = pytest.mark.usefixtures("virtual_time", "tidy")


class Kept(Sink[Any]):
    """Is open or not, as a connection is."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.is_open = False

    async def open(self) -> None:
        self.is_open = True

    async def write(self, values: Any, timestamps: Any) -> None:
        assert self.is_open
        self.written += values

    async def close(self) -> None:
        self.is_open = False


def reading(source: Source[int]) -> tuple[Pipeline, list[int]]:
    found: list[int] = []
    pipeline = Pipeline()
    pipeline.source(source).map(lambda value: value).to(found)
    return pipeline, found


async def test_source_in_two_jobs_at_once_is_refused_and_the_first_reads_all() -> None:
    source = Items(range(5000))
    (one, found), (two, other) = reading(source), reading(source)
    async with one.start() as job:
        with pytest.raises(PipelineError, match="step 'source': its Items serves another job that runs"):
            await two.run()
        await job.wait()
    await two.run()  # one after the other is well
    assert found == other == list(range(5000))


async def test_generator_in_two_jobs_at_once_is_refused() -> None:
    numbers = (number for number in range(5000))
    (one, found), (two, _) = reading(Items(numbers)), reading(Items(numbers))
    async with one.start() as job:
        with pytest.raises(PipelineError, match="its generator serves another job"):
            await two.run()
        await job.wait()
    assert found == list(range(5000))


async def test_refused_start_closes_nothing_and_holds_nothing() -> None:
    sink, source = Kept(), Items([9])
    one, two = Pipeline(), Pipeline()
    one.submissions().to(sink)
    two.source(source).to(sink, name="kept")
    async with one.start() as job:
        await job.submit(1)
        with pytest.raises(PipelineError, match="step 'kept': its Kept serves another job"):
            await two.run()
        await job.submit(2)
        await reading(source)[0].run()
        await job.stop()
        await two.run()  # the job is closed, though not left
    assert sink.written == [1, 2, 9]


async def test_job_that_cannot_be_opened_gives_its_ends_back() -> None:
    class Never(Kept):
        async def open(self) -> None:
            raise OSError("no route")

    source = Items([1])
    broken = Pipeline()
    broken.source(source).to(Never())
    with pytest.raises(Exception, match="no route"):
        await broken.run()
    pipeline, found = reading(source)
    await pipeline.run()
    assert found == [1]


async def test_dry_run_leaves_the_sink_of_a_job_alone(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "out.jsonl")
    one, two = Pipeline("one"), Pipeline("two")
    one.submissions(name="in").to(sink, name="out")
    two.source([], name="in").to(sink, name="out")
    async with one.start(checkpoints=Checkpoints(store=MemoryStore(), every=None)) as job:
        await job.submit({"n": 1})
        await asyncio.sleep(1)
        with pytest.raises(PipelineError, match="step 'out': its JsonLinesSink serves another job"):
            await two.dry_run(Checkpoints(store=MemoryStore()))
        await job.checkpoint()
    assert (tmp_path / "out.jsonl").read_text() == '{"n":1}\n'
    await two.dry_run(Checkpoints(store=MemoryStore()))
    async with one.start(checkpoints=Checkpoints(store=MemoryStore(), ahead="allow_behind")):
        pass


def test_a_source_serves_again_when_the_loop_of_a_job_that_was_never_closed_is() -> None:
    source = Items(range(10))
    left: list[Any] = []

    async def leaves() -> None:
        one, _ = reading(source)
        left.append(await one.start().__aenter__())

    asyncio.run(leaves())
    two, found = reading(source)
    asyncio.run(two.run())
    assert found == list(range(10))
