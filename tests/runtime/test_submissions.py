"""Elements handed in by the program itself, and results taken out by it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest

from asyncstream import Job, JobStopped, Pipeline, PipelineError, SourceBatch
from asyncstream.connectors.submissions import Submissions
from tests.runtime.parts import forever, sleeping

pytestmark = pytest.mark.usefixtures("virtual_time", "tidy")


async def test_submitted_elements_come_out_as_results() -> None:
    pipeline = Pipeline()
    pipeline.submissions().async_map(sleeping(1)).map(str).results()

    async with pipeline.start() as job:
        for value in range(3):
            await job.submit(value)
        await job.drain()
        assert [result async for result in job.results()] == ["0", "1", "2"]


async def test_leaving_the_block_drains() -> None:
    seen: list[int] = []
    pipeline = Pipeline()
    pipeline.submissions().async_map(sleeping(1)).to(seen)

    async with pipeline.start() as job:
        for value in range(3):
            await job.submit(value)
    assert seen == [0, 1, 2]


async def test_results_are_there_as_soon_as_they_are_ready() -> None:
    pipeline = Pipeline()
    pipeline.submissions().async_map(sleeping(1)).results()

    async with pipeline.start() as job:
        results = job.results()
        await job.submit(7)
        assert await anext(results) == 7
        assert asyncio.get_running_loop().time() == 1


async def test_who_gives_up_waiting_for_a_result_may_ask_again() -> None:
    """The iterator said that the job had ended."""
    pipeline = Pipeline()
    pipeline.submissions().results()

    async with pipeline.start() as job:
        results = job.results()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(results), 1)
        await job.submit(7)
        assert await anext(results) == 7
        await job.drain()
        for _ in range(2):
            with pytest.raises(StopAsyncIteration):
                await anext(results)


async def test_results_may_be_closed_as_those_of_a_generator() -> None:
    pipeline = Pipeline()
    pipeline.submissions().results()

    async with pipeline.start() as job:
        for number in (1, 2):
            await job.submit(number)
        taking: Any = job.results()
        async with aclosing(taking) as results:
            assert await anext(results) == 1
        with pytest.raises(StopAsyncIteration):
            await anext(results)
        assert await anext(job.results()) == 2


async def test_submit_waits_while_there_is_no_room() -> None:
    pipeline = Pipeline()
    pipeline.submissions(limit=1).results(limit=1)

    async with pipeline.start() as job:
        results = job.results()
        accepted = 0

        async def submit() -> None:
            nonlocal accepted
            for value in range(5000):
                await job.submit(value)
                accepted += 1

        task = asyncio.create_task(submit())
        await asyncio.sleep(1)
        before = accepted
        assert before < 3000
        await asyncio.sleep(1)
        assert accepted == before
        taken = [await anext(results) for _ in range(5000)]
        assert taken == list(range(5000))
        await task


async def full(pipeline: Pipeline, job: Job) -> int:
    """Submit until there is no room; how many were accepted."""
    accepted = 0
    try:
        async with asyncio.timeout(1):
            while True:
                await job.submit(f"filler {accepted}")
                accepted += 1
    except TimeoutError:
        return accepted


def blocked_pipeline(limit: int = 1) -> Pipeline:
    pipeline = Pipeline()
    pipeline.submissions(limit=limit).results(limit=1)
    return pipeline


async def test_who_submits_first_is_accepted_first() -> None:
    pipeline = blocked_pipeline()

    async with pipeline.start() as job:
        await full(pipeline, job)
        tasks = []
        for value in range(20):
            tasks.append(asyncio.create_task(job.submit(value)))
            await asyncio.sleep(0)
        await job.drain()
        left = await asyncio.gather(*tasks, return_exceptions=True)
        # those who waited when the job was drained were not accepted
        assert all(isinstance(outcome, JobStopped) for outcome in left)


async def test_quick_submitter_does_not_starve_others() -> None:
    pipeline = blocked_pipeline()

    async with pipeline.start() as job:
        fillers = await full(pipeline, job)
        results = job.results()
        accepted: list[str] = []

        async def submit(name: str) -> None:
            while True:
                await job.submit(name)
                accepted.append(name)

        tasks = [asyncio.create_task(submit(name)) for name in "abcde"]
        for _ in range(fillers + 100):
            await anext(results)
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        counts = [accepted.count(name) for name in "abcde"]
        assert max(counts) - min(counts) <= 2, counts


async def test_cancelled_submit_is_not_accepted_and_lets_others_pass() -> None:
    pipeline = blocked_pipeline()

    async with pipeline.start() as job:
        fillers = await full(pipeline, job)
        tasks = []
        for value in range(3):
            tasks.append(asyncio.create_task(job.submit(value)))
            await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[1].cancel()
        await asyncio.sleep(0)
        results = job.results()
        taken = [await anext(results) for _ in range(fillers + 1)]
        assert taken[-1] == 2
        await asyncio.gather(*tasks, return_exceptions=True)
        assert tasks[0].cancelled()
        assert tasks[1].cancelled()


@pytest.mark.parametrize("end", ["drain", "stop", "leave"])
async def test_submit_after_the_end_is_refused(end: str) -> None:
    pipeline = Pipeline()
    pipeline.submissions().discard()

    async with pipeline.start() as job:
        if end == "drain":
            await job.drain()
        elif end == "stop":
            await job.stop()
    with pytest.raises(JobStopped, match="takes no more elements"):
        await job.submit(1)


@pytest.mark.parametrize("end", ["drain", "stop"])
async def test_submit_that_waits_for_room_is_woken_by_the_end(end: str) -> None:
    pipeline = blocked_pipeline()

    async with pipeline.start() as job:
        await full(pipeline, job)
        waiting = [asyncio.create_task(job.submit(value)) for value in range(3)]
        await asyncio.sleep(1)
        await (job.drain() if end == "drain" else job.stop())
        for task in waiting:
            with pytest.raises(JobStopped):
                await task


async def test_one_of_several_submissions_is_named() -> None:
    left: list[int] = []
    right: list[int] = []
    pipeline = Pipeline()
    pipeline.submissions(name="left").to(left)
    pipeline.submissions(name="right").to(right)

    async with pipeline.start() as job:
        await job.submit(1, to="left")
        await job.submit(2, to="right")
        for wrong in (None, "middle"):
            with pytest.raises(PipelineError, match=r"to: expected the name of a .*: 'left', 'right', got"):
                await job.submit(3, to=wrong)
        with pytest.raises(PipelineError, match=r"there is no stream\.results\(\) in the pipeline"):
            job.results()
    assert (left, right) == ([1], [2])


async def test_several_takers_share_the_results() -> None:
    pipeline = Pipeline()
    pipeline.submissions().async_map(sleeping(0.1), concurrency=1).results()

    taken: list[list[int]] = [[], []]

    async def take(mine: list[int]) -> None:
        async for result in job.results():
            mine.append(result)
            await asyncio.sleep(0.15)  # busy with it when the next one comes

    async with pipeline.start() as job, asyncio.TaskGroup() as group:
        for mine in taken:
            group.create_task(take(mine))
        for value in range(10):
            await job.submit(value)
        await job.drain()
    assert sorted(taken[0] + taken[1]) == list(range(10))
    assert all(taken)


async def test_results_of_two_branches_are_named() -> None:
    pipeline = Pipeline()
    small, large = pipeline.source(range(6)).branch(lambda value: value < 3)
    small.results(name="small")
    large.results(name="large")

    async with pipeline.start() as job:
        await job.wait()
        assert [value async for value in job.results("large")] == [3, 4, 5]
        assert [value async for value in job.results("small")] == [0, 1, 2]


async def test_results_are_taken_by_what_ended_their_stream_and_by_that_of_no_other_pipeline() -> None:
    pipeline, other = Pipeline(), Pipeline()
    small, large = pipeline.source(range(6)).branch(lambda value: value < 3)
    smalls, larges = small.results(), large.map(str).results()
    foreign = other.source(range(2)).results()
    assert foreign.name == smalls.name

    async with pipeline.start() as job:
        await job.wait()
        with pytest.raises(PipelineError, match=r"of: expected what stream\.results\(\) gave"):
            job.results(foreign)
        assert [value async for value in job.results(larges)] == ["3", "4", "5"]
        assert [value async for value in job.results(smalls)] == [0, 1, 2]


async def test_drain_does_not_wait_for_whoever_takes_results() -> None:
    pipeline = Pipeline()
    pipeline.source(range(5000)).results(limit=1)

    async with pipeline.start() as job:
        await asyncio.sleep(1)
        await job.drain(timedelta(seconds=5))
        taken = [value async for value in job.results()]
    assert taken == list(range(len(taken)))
    assert taken


async def test_results_that_nobody_has_taken_can_be_taken_after_the_stop() -> None:
    pipeline = Pipeline()
    pipeline.submissions(limit=5000).results(limit=1)

    async with pipeline.start() as job:
        for value in range(5000):
            await job.submit(value)
        await asyncio.sleep(1)
        snapshot = await job.stop()
        assert asyncio.get_running_loop().time() < 2  # nobody was waited for
        first = [value async for value in job.results()]
    async with pipeline.start(snapshot=snapshot) as job:
        await job.drain()
        second = [value async for value in job.results()]
    assert first + second == list(range(5000))


async def test_job_must_be_entered_before_it_is_used() -> None:
    pipeline = Pipeline()
    pipeline.submissions().results()

    job = pipeline.start()
    uses: list[Any] = [job.results, job.metrics, job.snapshot]
    for use in uses:
        with pytest.raises(PipelineError, match=r"not running yet; .*async with pipeline\.start"):
            use()
    for wait in (job.submit(1), job.wait(), job.drain(), job.stop()):
        with pytest.raises(PipelineError, match="not running yet"):
            await wait


async def test_wait_waits_for_the_drain_of_submissions() -> None:
    pipeline = Pipeline()
    pipeline.submissions().async_map(sleeping(1)).discard()

    async with pipeline.start() as job:
        waiting = asyncio.create_task(job.wait())
        await job.submit(1)
        await asyncio.sleep(10)
        assert not waiting.done()
        await job.drain()
        await waiting


async def test_submit_wakes_a_pipeline_that_waits() -> None:
    seen: list[int] = []
    pipeline = Pipeline()
    pipeline.submissions().to(seen)

    async with pipeline.start() as job:
        for value in range(3):
            await asyncio.sleep(100)
            await job.submit(value)
            await asyncio.sleep(0.001)
            assert seen == list(range(value + 1))


async def test_a_taker_that_is_cancelled_takes_nothing_with_it() -> None:
    pipeline = Pipeline()
    pipeline.submissions().results()

    async with pipeline.start() as job:

        async def take() -> None:
            async for _ in job.results():
                await forever()

        task = asyncio.create_task(take())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait({task})
        await job.submit(1)
        assert await anext(job.results()) == 1


@pytest.mark.parametrize("how", ["cancelled", "given up by its thread"])
async def test_turn_of_who_leaves_in_the_moment_it_comes_goes_to_the_next(how: str) -> None:
    source = Submissions[int](limit=1)
    await source.open()
    assert await source.submit(0)
    claims = how != "cancelled"
    first = asyncio.create_task(source.submit(1, claim=(lambda: False) if claims else None))
    second = asyncio.create_task(source.submit(2))
    await asyncio.sleep(0)
    assert await source.read() == SourceBatch([0])  # and the first has its turn
    if not claims:
        first.cancel()
    await asyncio.wait({first, second})
    assert first.cancelled() if not claims else first.result() is False
    assert second.result() is True
    assert await source.read() == SourceBatch([2])
    assert await source.submit(3)


async def test_timeout_of_who_waits_leaves_its_place_in_the_queue() -> None:
    source = Submissions[int](limit=1)
    await source.open()
    assert await source.submit(0)
    first = asyncio.create_task(source.submit(1, seconds=5))
    second = asyncio.create_task(source.submit(2, seconds=10))
    await asyncio.wait({first})
    assert asyncio.get_running_loop().time() == 5
    assert isinstance(first.exception(), TimeoutError)
    await source.read()
    assert await second
    with pytest.raises(TimeoutError):
        await source.submit(3, seconds=0)
    assert await source.read() == SourceBatch([2])
