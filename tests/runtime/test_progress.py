"""`job.progress()`: what was read, of how much, and what is on its way; and where a job has gone on from."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    AscendingTimestamps,
    Checkpoints,
    CsvSource,
    Items,
    JobProgress,
    JsonLinesSource,
    MemoryStore,
    Pipeline,
    PipelineError,
    Source,
    SourceBatch,
    SourceError,
    SourceProgress,
)

pytestmark = pytest.mark.usefixtures("virtual_time")


async def test_progress_counts_what_is_on_its_way_and_what_failed() -> None:
    async def call(value: int) -> int:
        await asyncio.sleep(1)
        if value == 1:
            raise ValueError
        return value

    pipeline = Pipeline()
    numbers = pipeline.submissions(int, name="in")
    numbers.async_map(call, concurrency=4, on_error="skip").discard()
    job = pipeline.start()
    with pytest.raises(PipelineError, match="not running yet"):
        job.progress()
    async with job:
        assert job.progress() == JobProgress((SourceProgress("in", 0, None),), 0, 0)
        for number in range(10):
            await job.submit(number)
        await asyncio.sleep(0.5)
        assert job.progress() == JobProgress((SourceProgress("in", 10, None),), 10, 0)
        await asyncio.sleep(1)
        progress = job.progress()
        assert (progress.read, progress.in_flight, progress.failed) == (10, 6, 1)
        await job.drain()
    assert job.progress().in_flight == 0


async def test_watermarks_and_what_windows_hold_are_not_on_their_way() -> None:
    async def call(value: int) -> int:
        await asyncio.sleep(1)
        return value

    pipeline = Pipeline()
    numbers = pipeline.source(range(4)).event_time(lambda value: value * 1000, AscendingTimestamps())
    called = numbers.async_map(call, concurrency=2, buffer=100)
    called.key_by(lambda value: "all").policy_window(length=10).discard()
    async with pipeline.start() as job:
        await asyncio.sleep(0.5)
        assert (job.progress().read, job.progress().in_flight) == (4, 4)
        await asyncio.sleep(1)
        assert job.progress().in_flight == 2
        await job.wait()


async def test_sources_of_files_know_how_much_there_is(tmp_path: Path) -> None:
    async def shares(source: Source[Any]) -> list[float | None]:
        found = [source.progress()]
        await source.open()
        found.append(source.progress())
        while await source.read() is not None:
            found.append(source.progress())
        position = source.position()
        await source.close()
        await source.open()
        await source.seek(position)
        found.append(source.progress())
        await source.close()
        return found

    path = tmp_path / "lines"
    path.write_text("1\n2\n3\n4\n")
    assert (await shares(JsonLinesSource(path, batch=2))) == [None, 0.0, 0.5, 1.0, 1.0]
    path.write_text("")
    assert (await shares(JsonLinesSource(path))) == [None, 1.0, 1.0]
    path.write_text("a,b\n1,2\n3,4\n")
    found = await shares(CsvSource(path, batch=1))
    assert found == [None, pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0, 1.0]
    assert (await shares(Items([1, 2, 3, 4], batch=3))) == [0.0, 0.0, 0.75, 1.0, 1.0]
    assert (await shares(Items([]))) == [1.0, 1.0, 1.0]


async def test_what_a_source_rejects_is_counted(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("1\nno\n2\n")
    pipeline = Pipeline()
    lines = pipeline.source(JsonLinesSource(tmp_path / "lines", on_malformed="reject"), name="lines")
    lines.discard()
    lines.rejected.discard()
    async with pipeline.start() as job:
        await job.wait()
        assert job.metrics()["lines"] == {"read": 2, "rejected": 1}
        assert (job.progress().read, job.progress().failed) == (2, 1)
        rejected = [metric for metric in job.measure() if metric.name == "asyncstream.elements.rejected"]
        assert [point.value for metric in rejected for point in metric.points] == [1]


async def test_sources_that_do_not_know_say_so() -> None:
    class Numbers(Source[int]):
        async def read(self) -> SourceBatch[int] | None:
            return None

    pipeline = Pipeline()
    pipeline.source(Numbers(), name="numbers").discard()
    pipeline.source((number for number in range(3)), name="generated").discard()
    pipeline.submissions(name="submitted").discard()
    async with pipeline.start() as job:
        assert [source.share for source in job.progress().sources] == [None, None, None]


async def test_source_that_is_closed_is_not_asked_and_had_told_before() -> None:
    class Closing(Items[int]):
        is_closed = False

        async def close(self) -> None:
            await super().close()
            self.is_closed = True

        def progress(self) -> float | None:
            assert not self.is_closed
            return super().progress()

    pipeline = Pipeline()
    pipeline.source(Closing([1, 2]), name="in").discard()
    async with pipeline.start() as job:
        await job.wait()
    assert job.progress() == JobProgress((SourceProgress("in", 2, 1.0),), 0, 0)


async def test_source_that_fails_to_tell_is_named() -> None:
    class Numbers(Source[int]):
        async def read(self) -> SourceBatch[int] | None:
            return None

        def progress(self) -> float | None:
            raise ValueError("no idea")

    pipeline = Pipeline()
    pipeline.source(Numbers(), name="numbers").discard()
    async with pipeline.start() as job:
        with pytest.raises(SourceError, match="'numbers': ValueError: no idea"):
            job.progress()


async def test_job_tells_from_which_checkpoint_it_goes_on() -> None:
    store = MemoryStore()
    for expected in (None, 2):
        pipeline = Pipeline("numbers")
        pipeline.source([1, 2, 3], name="in").to([], name="out")
        job = pipeline.start(checkpoints=Checkpoints(store=store))
        assert job.resumed_from is None
        async with job:
            info = job.resumed_from
            assert (None if info is None else info.id) == expected
            await job.wait()
        assert job.resumed_from == info
    pipeline = Pipeline()
    pipeline.source([1]).discard()
    async with pipeline.start() as job:
        assert job.resumed_from is None
