"""What a source is told to be done for good: never anything behind an element that is still under way."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from asyncstream import Checkpoints, Count, MemoryStore, Pipeline, Source, SourceBatch
from asyncstream.elements import Mark
from asyncstream.operators.base import Discard, Fanout
from asyncstream.operators.union import Union
from asyncstream.testing.loop import run_virtual
from tests.runtime.parts import sleeping


class Kept(Source[int]):
    """Gives numbers, `batch` at a time, one batch each second, and keeps them until they are acknowledged."""

    def __init__(self, count: int, batch: int = 1) -> None:
        self.count, self.batch, self.at = count, batch, 0
        self.acknowledged: list[int] = []
        self.fails = False

    async def read(self) -> SourceBatch[int] | None:
        await asyncio.sleep(1)
        if self.at == self.count:
            return None
        self.at += self.batch
        return SourceBatch(list(range(self.at - self.batch, self.at)))

    def position(self) -> Any:
        return self.at

    async def seek(self, position: Any) -> None:
        self.at = position

    async def acknowledge(self, position: Any) -> None:
        if self.fails:
            raise OSError("away")
        self.acknowledged.append(position)


class Moving(Kept):
    """Its position is one object, which changes as it reads."""

    def __init__(self, count: int, batch: int = 1) -> None:
        super().__init__(count, batch)
        self.place = {"at": 0}

    async def read(self) -> SourceBatch[int] | None:
        batch = await super().read()
        self.place["at"] = self.at
        return batch

    def position(self) -> Any:
        return self.place

    async def seek(self, position: Any) -> None:
        self.at = position["at"]

    async def acknowledge(self, position: Any) -> None:
        await super().acknowledge(position["at"])


@pytest.mark.parametrize("kind", [Kept, Moving])
@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time"])
def test_nothing_is_acknowledged_behind_a_call_that_hangs(order: Any, kind: type[Kept]) -> None:
    async def main() -> Kept:
        source, release = kind(20, batch=2), asyncio.Event()
        written: list[int] = []

        async def call(number: int) -> int:
            if number == 7:
                await release.wait()
            return number

        pipeline = Pipeline("stuck")
        calls = pipeline.source(source, name="numbers").async_map(call, order=order, concurrency=50)
        calls.to(written)
        async with pipeline.start() as job:
            await asyncio.sleep(15)
            assert max(source.acknowledged) <= 6
            assert max(source.acknowledged) >= 4
            if order == "unordered":
                assert len(written) == 19 - 20 + source.at
            release.set()
            await job.wait()
        return source

    source = run_virtual(main())
    assert source.acknowledged == sorted(source.acknowledged)
    assert source.acknowledged[-1] == 20


@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time"])
def test_nothing_is_acknowledged_that_is_in_a_job_at_a_provider(order: Any) -> None:
    async def main() -> Kept:
        source, jobs = Kept(12), list[list[int]]()
        written: list[int] = []

        async def submit(numbers: list[int], key: str) -> int:
            jobs.append(numbers)
            return len(jobs) - 1

        async def poll(job: int) -> bool:
            return job == 0 or len(jobs) == 4

        async def fetch(job: int) -> list[int]:
            return jobs[job]

        pipeline = Pipeline("jobs")
        numbers = pipeline.source(source, name="numbers")
        results = numbers.async_batch(submit, poll, fetch, size=3, every=0.1, wait=60, order=order)
        results.to(written)
        async with pipeline.start() as job:
            await asyncio.sleep(9.5)
            assert written == [0, 1, 2]
            assert max(source.acknowledged) <= 3
            await job.wait()
        assert sorted(written) == list(range(12))
        return source

    assert run_virtual(main()).acknowledged[-1] == 12


@pytest.mark.parametrize("kind", [Kept, Moving])
def test_with_checkpoints_it_waits_for_one_that_is_safe(kind: type[Kept]) -> None:
    async def main() -> None:
        source = kind(10)
        pipeline = Pipeline("kept")
        pipeline.source(source, name="numbers").to([], name="found")
        async with pipeline.start(checkpoints=Checkpoints(store=MemoryStore(), every=None)) as job:
            await asyncio.sleep(5.5)
            assert source.acknowledged == []
            await job.checkpoint()
            assert source.acknowledged == [5]
            await job.wait()
        assert source.acknowledged[-1] == 10

    run_virtual(main())


@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time"])
def test_what_is_acknowledged_is_not_far_behind_what_is_done(order: Any) -> None:
    async def main() -> None:
        source, done = Kept(10_000), list[int]()
        pipeline = Pipeline("much under way")
        calls = pipeline.source(source).async_map(sleeping(100), order=order, concurrency=200)
        calls.to(done)
        async with pipeline.start() as job:
            await asyncio.sleep(150)
            for _ in range(300):
                await asyncio.sleep(1.5)
                assert len(done) - source.acknowledged[-1] <= 100 / 8 + 2
            await job.stop()

    run_virtual(main())


def test_behind_a_call_that_hangs_few_marks_wait_for_it() -> None:
    class Asked(Kept):
        positions = 0

        def position(self) -> Any:
            self.positions += 1
            return super().position()

    async def main() -> Asked:
        source = Asked(3000)
        pipeline = Pipeline("stuck")
        calls = pipeline.source(source).async_map(sleeping(1e6), order="unordered", concurrency=5000)
        calls.discard()
        async with pipeline.start() as job:
            await asyncio.sleep(2500)
            await job.stop()
        return source

    assert 20 <= run_virtual(main()).positions <= 80


@pytest.mark.parametrize("every", [None, 1.0], ids=["", "checkpoints"])
def test_what_a_source_passes_over_is_acknowledged_when_nothing_is_under_way(every: float | None) -> None:
    class Passing(Kept):
        async def read(self) -> SourceBatch[int] | None:
            if self.at < 3:
                return await super().read()
            await asyncio.sleep(1)
            self.at = 10  # what is between is no element
            await asyncio.sleep(1000)
            return None

    async def main() -> None:
        source = Passing(3)
        pipeline = Pipeline("passing")
        pipeline.source(source, name="in").async_map(sleeping(20), name="c", concurrency=5).to([], name="out")
        checkpoints = None if every is None else Checkpoints(store=MemoryStore(), every=every)
        async with pipeline.start(checkpoints=checkpoints) as job:
            await asyncio.sleep(22.5)
            assert source.acknowledged[-1] <= 2
            await asyncio.sleep(3)
            assert source.acknowledged[-1] == 10
            await job.stop()

    run_virtual(main())


def test_an_acknowledgement_that_hangs_fails_no_checkpoint() -> None:
    class Hanging(Kept):
        async def acknowledge(self, position: Any) -> None:
            await asyncio.sleep(1000 if self.fails else 0)
            await super().acknowledge(position)

    async def main() -> None:
        source = Hanging(1000)
        source.fails = True
        pipeline = Pipeline("hangs")
        pipeline.source(source, name="in").to([], name="out")
        checkpoints = Checkpoints(store=MemoryStore(), every=None, timeout=10, tolerate=0)
        async with pipeline.start(checkpoints=checkpoints) as job:
            await asyncio.sleep(5.5)
            await job.checkpoint()
            assert job.state == "running"
            assert source.acknowledged == []
            source.fails = False
            await job.checkpoint()
            assert source.acknowledged[-1] >= 15
            await job.stop()

    run_virtual(main())


def test_what_was_rejected_is_acknowledged() -> None:
    class Rejecting(Kept):
        rejects = True

        async def read(self) -> SourceBatch[int] | None:
            batch = await super().read()
            return batch and SourceBatch([], None, list(batch.values))

    async def main() -> Rejecting:
        source = Rejecting(5)
        pipeline = Pipeline("rejected")
        numbers = pipeline.source(source, name="numbers")
        numbers.to([])
        numbers.rejected.to([])
        await pipeline.run()
        return source

    assert run_virtual(main()).acknowledged[-1] == 5


def test_every_way_through_the_pipeline_counts() -> None:
    async def main() -> None:
        source, release = Kept(6), asyncio.Event()

        async def call(number: int) -> int:
            await release.wait()
            return number

        pipeline = Pipeline("ways")
        numbers = pipeline.source(source, name="numbers")
        even, odd = numbers.branch(lambda number: number % 2 == 0)
        slow = odd.async_map(call, concurrency=5)
        even.filter(lambda number: number > 100).union(slow).to([])
        numbers.to([])
        async with pipeline.start() as job:
            await asyncio.sleep(4)
            assert all(position <= 1 for position in source.acknowledged)
            release.set()
            await job.wait()
        assert source.acknowledged[-1] == 6

    run_virtual(main())


def test_ways_that_are_united_again_are_one() -> None:
    class End(Discard):
        marks = 0

        def pass_mark(self, mark: Mark) -> None:
            self.marks += 1
            super().pass_mark(mark)

    through, end = list[bool](), End()
    unions = [Union(3) for _ in range(16)]
    for union, after in pairwise(unions):
        union.out = Fanout(after.ports[:2])
    for union, behind in zip(unions, unions[2:], strict=False):  # and once past the next
        union.out = Fanout([union.out, behind.ports[2]])
    unions[-1].out = end
    unions[0].pass_mark(Mark(lambda: through.append(True)))
    assert through == [True]
    assert end.marks < len(unions)


def test_what_a_step_remembers_is_not_acknowledged_without_checkpoints() -> None:
    async def main() -> Kept:
        source = Kept(4)
        pipeline = Pipeline("remembers")
        pipeline.source(source).key_by(lambda number: 0).count_window(3).aggregate(n=Count()).to([])
        await pipeline.run()
        return source

    assert run_virtual(main()).acknowledged == []


def test_an_acknowledgement_that_fails_is_made_again() -> None:
    async def main() -> Kept:
        source = Kept(5)
        source.fails = True
        pipeline = Pipeline("fails")
        pipeline.source(source).to([])
        async with pipeline.start() as job:
            await asyncio.sleep(3.5)
            source.fails = False
            await job.wait()
        return source

    assert run_virtual(main()).acknowledged[-1] == 5


def test_a_snapshot_holds_no_mark() -> None:
    async def main() -> None:
        source, forever = Kept(4), asyncio.Event()

        async def call(number: int) -> int:
            await forever.wait()
            return number

        pipeline = Pipeline("snapshot")
        pipeline.source(source, name="numbers").async_map(call, name="calls").to([], name="found")
        async with pipeline.start() as job:
            await asyncio.sleep(3.5)
            snapshot = await job.stop()
        assert [entry[0] for entry in snapshot.operators["calls"]] == ["call"] * 3

    run_virtual(main())


def test_source_that_did_not_know_where_it_stands_is_asked_again_with_the_next_batch() -> None:
    class Absent(Kept):
        told: list[dict[str, Any]]

        async def read(self) -> SourceBatch[int] | None:
            self.batch = 10 if self.at == 0 else 1  # behind the second is no mark before those are through
            return await super().read()

        def position(self) -> int:
            if asyncio.current_task() is None and not self.told:  # between two batches
                raise OSError("away")
            return self.at

    async def main() -> Absent:
        source = Absent(1_000)
        source.told = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: source.told.append(context))
        pipeline = Pipeline("away")
        pipeline.source(source, name="numbers").async_map(sleeping(1.5), concurrency=50).discard()
        async with pipeline.start() as job:
            await asyncio.sleep(20)
            await job.stop()
        return source

    source = run_virtual(main())
    assert len(source.told) == 1
    assert source.acknowledged[-1] >= 15
