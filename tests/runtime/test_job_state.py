"""A job tells how it is: its state, its error, one line in the log; and its block hears of its death."""

# ruff: noqa: PT012 - what a job raises comes out of its block

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

import pytest

from asyncstream import (
    AscendingTimestamps,
    Checkpoints,
    Count,
    Job,
    JobState,
    JobStopped,
    MemoryStore,
    Pipeline,
    SinkError,
    SourceError,
    TumblingWindows,
    UserFunctionError,
)
from asyncstream.errors import describe_error
from tests.runtime.parts import (
    Boom,
    Log,
    LoggedFunction,
    LoggedSink,
    LoggedSource,
    boom,
    forever,
    sleeping,
)

pytestmark = pytest.mark.usefixtures("virtual_time", "tidy")


async def fails_at_one_second(value: Any) -> Any:
    await asyncio.sleep(1)
    boom()


def state(job: Job) -> JobState:
    """Not narrowed by the type checker from one assertion to the next."""
    return job.state.name


def failing() -> Pipeline:
    pipeline = Pipeline("poor")
    pipeline.submissions().async_map(fails_at_one_second, name="bad").results()
    return pipeline


async def test_states_of_a_job_that_comes_to_its_end() -> None:
    pipeline = Pipeline()
    pipeline.source([1]).async_map(sleeping(1)).discard()

    job = pipeline.start()
    assert (state(job), job.error) == ("new", None)
    async with job:
        assert state(job) == "running"
        await job.wait()
        assert state(job) == "finished"
    assert (state(job), job.error) == ("finished", None)


async def test_states_of_a_job_that_is_drained_and_of_one_that_is_stopped() -> None:
    pipeline = Pipeline()
    pipeline.submissions().async_map(sleeping(1)).discard()

    async with pipeline.start() as job:
        await job.submit(1)
        drain = asyncio.create_task(job.drain())
        await asyncio.sleep(0.5)
        assert state(job) == "draining"
        await drain
        assert state(job) == "finished"
    async with pipeline.start() as job:
        await job.stop()
        assert state(job) == "stopped"
    assert state(job) == "stopped"
    with pytest.raises(Boom):
        async with pipeline.start() as job:
            boom()
    assert (state(job), job.error) == ("stopped", None)


async def test_dead_job_tells_of_its_error_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UserFunctionError) as caught:
        async with failing().start() as job:
            await job.submit("poison")
            await asyncio.sleep(2)
            assert state(job) == "failed"
            assert isinstance(job.error, UserFunctionError)
            with pytest.raises(JobStopped, match=r"has failed: .*Boom: on purpose") as stopped:
                await job.submit("another")
            assert stopped.value.__cause__ is job.error
            with pytest.raises(UserFunctionError):
                async for _ in job.results():
                    pass
    assert caught.value is job.error
    with pytest.raises(JobStopped, match="has failed"):
        await job.submit("yet another")
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.name for record in errors] == ["asyncstream.job"]
    assert "pipeline 'poor' failed: step 'bad': Boom: on purpose, on element 'poison'" in errors[0].message
    assert errors[0].exc_text is not None
    assert "fails_at_one_second" in errors[0].exc_text, "the traceback"


@pytest.mark.parametrize("moment", ["open", "read", "close"])
async def test_failure_of_a_source_is_logged_once(moment: str, caplog: pytest.LogCaptureFixture) -> None:
    pipeline = Pipeline()
    pipeline.source(LoggedSource(Log(), [[1]], fails=moment), name="bad").discard()

    with pytest.raises(SourceError):
        await pipeline.run()
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_later_failures_are_not_lost_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = Pipeline()
    function = LoggedFunction(Log(), fails="close")
    pipeline.source(LoggedSource(Log(), [[1]], fails="read")).async_map(function, name="call").discard()

    with pytest.raises(SourceError):
        await pipeline.run()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "step 'call'" in caplog.records[1].message


def test_interrupt_is_no_failure_to_be_logged(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = Pipeline()
    pipeline.source([1]).discard()

    async def main() -> None:
        async with pipeline.start():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert not caplog.records


# ---------------------------------------------------------------------- cancel_body


async def test_death_of_the_job_cancels_its_block() -> None:
    with pytest.raises(UserFunctionError, match="step 'bad'"):
        async with failing().start(cancel_body=True) as job:
            await job.submit(1)
            await forever()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert asyncio.get_running_loop().time() < 2
    await asyncio.sleep(1)  # nothing of the cancellation is left


async def test_block_that_swallows_its_cancellation_leaves_no_cancellation_behind() -> None:
    with pytest.raises(UserFunctionError):
        async with failing().start(cancel_body=True) as job:
            await job.submit(1)
            with suppress(asyncio.CancelledError):
                await forever()
    await asyncio.sleep(1)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_cancellation_from_outside_is_not_swallowed_with_that_of_the_job() -> None:
    async def body(pipeline: Pipeline) -> None:
        async with pipeline.start(cancel_body=True):
            await forever()

    pipeline = Pipeline()
    pipeline.submissions().discard()
    task = asyncio.create_task(body(pipeline))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_timeout_around_a_block_that_the_job_cancels_is_no_timeout() -> None:
    with pytest.raises(UserFunctionError):
        async with asyncio.timeout(60), failing().start(cancel_body=True) as job:
            await job.submit(1)
            await forever()


async def test_jobs_in_one_another_cancel_the_right_block() -> None:
    outer = Pipeline()
    outer.submissions().discard()
    async with outer.start(cancel_body=True) as job:
        with pytest.raises(UserFunctionError):
            async with failing().start(cancel_body=True) as inner:
                await inner.submit(1)
                await forever()
        assert state(job) == "running"
        await asyncio.sleep(1)


async def test_error_of_the_block_that_was_being_cleaned_up_gives_way_to_that_of_the_job() -> None:
    with pytest.raises(UserFunctionError, match="step 'bad'"):
        async with failing().start(cancel_body=True) as job:
            await job.submit(1)
            try:
                await forever()
            finally:
                boom()


# ---------------------------------------------------------------------- leaving the block


async def test_leaving_with_checkpoints_keeps_what_is_open_and_leaving_without_drains() -> None:
    results: list[Any] = []
    pipeline = Pipeline()
    (
        pipeline.submissions(name="in")
        .event_time(lambda value: value, AscendingTimestamps(), name="time")
        .window_all(TumblingWindows(60))
        .aggregate(n=Count(), name="w")
        .map(lambda result: result.value["n"], name="n")
        .to(results, name="out")
    )
    checkpoints = Checkpoints(store=MemoryStore())
    for _ in range(3):
        async with pipeline.start(checkpoints=checkpoints) as job:
            await job.submit(5)
        assert state(job) == "stopped"
        assert results == []
    async with pipeline.start(checkpoints=checkpoints) as job:
        await job.drain()
    assert state(job) == "finished"
    assert results == [3]
    async with pipeline.start() as job:
        await job.submit(5)
    assert results == [3, 1]


async def test_leaving_after_the_end_of_input_is_an_end() -> None:
    results: list[int] = []
    pipeline = Pipeline()
    pipeline.source([1, 2, 3], name="in").to(results, name="out")
    store = MemoryStore()
    async with pipeline.start(checkpoints=Checkpoints(store=store)) as job:
        await job.wait()
    assert state(job) == "finished"
    assert results == [1, 2, 3]


async def test_sink_that_fails_as_the_block_is_left_is_told_of() -> None:
    pipeline = Pipeline()
    pipeline.submissions(name="in").to(LoggedSink(Log(), fails="write", delay=1), name="bad")
    with pytest.raises(SinkError, match="step 'bad'"):
        async with pipeline.start(checkpoints=Checkpoints(store=MemoryStore())) as job:
            await job.submit(1)
            await asyncio.sleep(0.5)
    assert state(job) == "failed"
    assert job.error is not None
    assert "Boom" in describe_error(job.error)
