"""A failure anywhere stops everything, and is raised once; it names the step and carries the element."""

# ruff: noqa: PT012 - what a job raises comes out of its block

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from asyncstream import (
    AscendingTimestamps,
    AsyncFunction,
    AsyncStreamError,
    JobStopped,
    Pipeline,
    SinkError,
    SourceError,
    UserFunctionError,
)
from asyncstream.errors import CALL_ERRORS, HttpError
from asyncstream.pipeline import Stream
from tests.runtime.parts import (
    Boom,
    Log,
    LoggedFunction,
    LoggedSink,
    LoggedSource,
    boom,
    forever,
    run,
    sleeping,
)

pytestmark = pytest.mark.usefixtures("virtual_time", "tidy")


def fails_on(bad: int, error: Callable[[], BaseException] = Boom) -> Callable[[int], Any]:
    def function(value: int) -> int:
        if value == bad:
            raise error()
        return value

    return function


def fails_on_async(bad: int) -> Callable[[int], Any]:
    async def function(value: int) -> int:
        await asyncio.sleep(0.01)
        if value == bad:
            boom()
        return value

    return function


def _kept(main: Stream[int], others: Stream[int]) -> Stream[int]:
    others.discard()
    return main


STEPS: dict[str, Callable[[Stream[int]], Stream[Any]]] = {
    "map": lambda stream: stream.map(fails_on(7), name="bad"),
    "filter": lambda stream: stream.filter(fails_on(7), name="bad"),
    "flat_map": lambda stream: stream.flat_map(lambda value: [fails_on(7)(value)], name="bad"),
    "flat_map_not_iterable": lambda stream: stream.flat_map(
        lambda value: [value] if value != 7 else 7,  # type: ignore[arg-type, return-value]
        name="bad",
    ),
    "branch": lambda stream: _kept(*stream.branch(fails_on(7), name="bad")),
    "timestamp": lambda stream: stream.event_time(fails_on(7), AscendingTimestamps(), name="bad"),
    "timestamp_of_wrong_type": lambda stream: stream.event_time(
        lambda value: value if value != 7 else 7.5,  # type: ignore[arg-type, return-value]
        AscendingTimestamps(),
        name="bad",
    ),
    "async_map": lambda stream: stream.async_map(fails_on_async(7), name="bad"),
    "key": lambda stream: stream.key_by(fails_on(7)).async_map(sleeping(0.1), order="per_key", name="bad"),
    "key_not_hashable": lambda stream: stream.key_by(lambda value: [] if value == 7 else value).async_map(
        sleeping(0.1), order="per_key", name="bad"
    ),
    "ours": lambda stream: stream.map(
        fails_on(7, lambda: HttpError("http://api", 500, "oops", retryable=True)), name="bad"
    ),
    "stop_iteration_in_map": lambda stream: stream.map(fails_on(7, StopIteration), name="bad"),
    "stop_iteration_in_filter": lambda stream: stream.filter(fails_on(7, StopIteration), name="bad"),
    "stop_iteration_in_flat_map": lambda stream: stream.flat_map(fails_on(7, StopIteration), name="bad"),
}


@pytest.mark.parametrize("behind_a_wait", [False, True], ids=["", "behind_async"])
@pytest.mark.parametrize("step", STEPS)
async def test_failure_of_a_function_names_the_step_and_carries_the_element(
    step: str, behind_a_wait: bool
) -> None:
    log = Log()
    sink = LoggedSink(log)
    pipeline = Pipeline()
    # one batch: what comes before the bad element in it must not be lost
    stream: Stream[int] = pipeline.source(LoggedSource(log, [range(1, 10), range(10, 20)]))
    if behind_a_wait:
        stream = stream.async_map(sleeping(0.001))
    if step == "stop_iteration_in_flat_map":
        stream = stream.filter(lambda value: value == 7)
    end = STEPS[step](stream)
    end.to(sink)

    with pytest.raises(UserFunctionError, match=r"step 'bad': .*on element 7") as caught:
        await pipeline.run()
    assert caught.value.step == "bad"
    assert caught.value.element == 7
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__ is not caught.value
    assert log[-2:] == ["source close", "sink close"]
    assert set(sink.values) <= set(range(1, 7))
    if step in ("map", "filter", "flat_map", "timestamp", "branch"):
        assert sink.values == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("moment", ["open", "read", "close"])
async def test_failure_of_a_source_names_it(moment: str) -> None:
    log = Log()
    sink = LoggedSink(log)
    pipeline = Pipeline()
    pipeline.source(LoggedSource(log, [[1, 2]], fails=moment), name="bad").to(sink)

    with pytest.raises(SourceError, match="step 'bad': Boom: on purpose") as caught:
        await pipeline.run()
    assert isinstance(caught.value.__cause__, Boom)
    assert sink.values == ([] if moment == "open" else [1, 2])
    assert log.count("source close") == 1
    assert log.count("sink close") == 1


@pytest.mark.parametrize("moment", ["open", "write", "flush", "close"])
async def test_failure_of_a_sink_names_it(moment: str) -> None:
    log = Log()
    pipeline = Pipeline()
    pipeline.source(LoggedSource(log, [[1, 2]])).to(LoggedSink(log, fails=moment), name="bad")

    with pytest.raises(SinkError, match="step 'bad': Boom: on purpose") as caught:
        await pipeline.run()
    assert isinstance(caught.value.__cause__, Boom)
    assert log.count("sink close") == 1


@pytest.mark.parametrize("moment", ["open", "invoke", "close"])
async def test_failure_of_an_async_function_object_names_the_step(moment: str) -> None:
    log = Log()
    pipeline = Pipeline()
    function = LoggedFunction(log, fails=moment)
    pipeline.source(LoggedSource(log, [[1, 2]])).async_map(function, name="bad").to(LoggedSink(log))

    with pytest.raises(AsyncStreamError, match="step 'bad': Boom: on purpose") as caught:
        await pipeline.run()
    assert isinstance(caught.value.__cause__, Boom)
    assert log.count("call close") == 1


async def test_what_was_never_opened_is_not_closed() -> None:
    log = Log()
    pipeline = Pipeline()
    # opened tail first: the second sink, then the first, then the source
    stream = pipeline.source(LoggedSource(log, [[1]]))
    stream.to(LoggedSink(log, name="first", fails="open"))
    stream.to(LoggedSink(log, name="second"))

    with pytest.raises(SinkError):
        await pipeline.run()
    assert log == ["second open", "first open", "first close", "second close"]


async def test_failure_of_a_callback_sink_names_the_step_and_carries_the_element() -> None:
    pipeline = Pipeline()
    pipeline.source([1, 2, 3]).to(fails_on(2), name="bad")

    with pytest.raises(UserFunctionError, match=r"step 'bad': Boom, on element 2") as caught:
        await pipeline.run()
    assert (caught.value.step, caught.value.element) == ("bad", 2)


async def test_failure_of_an_iterable_names_the_step() -> None:
    def numbers() -> Any:
        yield 1
        boom()

    seen: list[int] = []
    pipeline = Pipeline()
    pipeline.source(numbers(), name="bad").to(seen)

    with pytest.raises(SourceError, match=r"step 'bad': .*after 1 elements.*on purpose"):
        await pipeline.run()
    assert seen == [1]


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class MuteSink(LoggedSink):
    async def write(self, values: Any, timestamps: Any) -> None:
        raise Mute


async def test_error_whose_text_cannot_be_read_still_ends_the_job() -> None:
    pipeline = Pipeline()
    pipeline.source([1]).to(MuteSink(Log()), name="bad")

    with pytest.raises(SinkError, match="step 'bad': Mute: <its message could not be read>"):
        await asyncio.wait_for(pipeline.run(), 100)


class Cancelling(LoggedSource):
    async def read(self) -> Any:
        raise asyncio.CancelledError


class CancellingSink(LoggedSink):
    async def write(self, values: Any, timestamps: Any) -> None:
        raise asyncio.CancelledError


async def test_cancelled_error_of_a_source_does_not_pass_for_silence() -> None:
    pipeline = Pipeline()
    pipeline.source(Cancelling(Log(), []), name="bad").to([])

    with pytest.raises(SourceError, match=r"'bad'.*cancelled"):
        await asyncio.wait_for(pipeline.run(), 100)


async def test_cancelled_error_of_a_sink_does_not_pass_for_silence() -> None:
    pipeline = Pipeline()
    pipeline.source([1]).to(CancellingSink(Log()), name="bad")

    with pytest.raises(SinkError, match=r"'bad'.*cancelled"):
        await asyncio.wait_for(pipeline.run(), 100)


@pytest.mark.parametrize("behind_a_wait", [False, True], ids=["", "behind_async"])
async def test_cancelled_error_of_a_plain_function_ends_the_job(behind_a_wait: bool) -> None:
    pipeline = Pipeline()
    stream: Stream[int] = pipeline.source([6, 7, 8])
    if behind_a_wait:
        stream = stream.async_map(sleeping(0.001))
    stream.map(fails_on(7, asyncio.CancelledError), name="bad").to([])

    with pytest.raises(UserFunctionError, match="'bad': CancelledError, on element 7"):
        await asyncio.wait_for(pipeline.run(), 100)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("behind_a_wait", [False, True], ids=["", "behind_async"])
def test_interrupt_in_a_function_reaches_whoever_runs_the_loop(
    kind: type[BaseException], behind_a_wait: bool
) -> None:
    log = Log()
    pipeline = Pipeline()
    stream: Stream[int] = pipeline.source(LoggedSource(log, [[6, 7, 8]]))
    if behind_a_wait:
        stream = stream.async_map(sleeping(0.001))
    stream.map(fails_on(7, kind)).to(LoggedSink(log))

    async def main() -> None:
        await asyncio.wait_for(pipeline.run(), 100)

    with pytest.raises(kind):
        run(main())
    assert log[-2:] == ["source close", "sink close"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_interrupt_in_a_call_reaches_whoever_runs_the_loop(kind: type[BaseException]) -> None:
    log = Log()

    async def interrupted(value: int) -> int:
        await asyncio.sleep(1)
        raise kind

    pipeline = Pipeline()
    pipeline.source(LoggedSource(log, [[6, 7, 8]])).async_map(interrupted).to(LoggedSink(log))
    with pytest.raises(kind):
        run(pipeline.run())
    assert log[-2:] == ["source close", "sink close"]


async def test_results_that_had_reached_the_sink_are_written() -> None:
    log = Log()
    sink = LoggedSink(log, delay=1)
    pipeline = Pipeline()
    pipeline.source(LoggedSource(log, [[1], [2, 3], [4, 5], [6]])).map(fails_on(5)).to(sink)

    with pytest.raises(UserFunctionError):
        await pipeline.run()
    assert sink.values == [1, 2, 3, 4]
    assert log[-3:] == ["sink flush", "source close", "sink close"]


async def test_a_sink_that_hangs_after_a_failure_is_cut_off() -> None:
    log = Log()
    pipeline = Pipeline()
    stream = pipeline.source(LoggedSource(log, [[1], [2]]))
    stream.to(LoggedSink(log, name="slow", delay=1e9))
    stream.map(fails_on(2)).discard()

    with pytest.raises(UserFunctionError):
        await pipeline.run()
    assert asyncio.get_running_loop().time() < 60
    assert "slow close" in log


async def test_first_of_two_failures_is_the_one_that_is_raised() -> None:
    log = Log()
    pipeline = Pipeline()
    pipeline.source([1]).map(fails_on(1), name="first").to(LoggedSink(log, fails="close"), name="second")

    with pytest.raises(UserFunctionError, match="step 'first'"):
        await pipeline.run()


async def test_one_branch_that_fails_stops_the_other() -> None:
    log = Log()
    pipeline = Pipeline()
    pipeline.source(LoggedSource(log, [[1]], name="bad", fails="read")).to(LoggedSink(log, name="a"))

    async def endless() -> AsyncIterator[int]:
        try:
            while True:
                await asyncio.sleep(1)
                yield 1
        finally:
            log.append("endless ended")

    pipeline.source(endless()).async_map(sleeping(1e9)).to(LoggedSink(log, name="b"))

    with pytest.raises(SourceError, match="on purpose"):
        await pipeline.run()
    assert {"endless ended", "a close", "b close"} <= set(log)


async def test_failure_wakes_everybody_who_waits_for_the_job_and_is_raised_on_leaving() -> None:
    pipeline = Pipeline()
    pipeline.submissions(limit=1).async_map(fails_on_async(7), concurrency=1, name="bad").results()

    heard: list[str] = []

    async def take(job: Any) -> None:
        try:
            async for _ in job.results():
                pass
        except UserFunctionError as error:
            heard.append(f"results {error.element}")

    async def wait(job: Any) -> None:
        try:
            await job.wait()
        except UserFunctionError as error:
            heard.append(f"wait {error.element}")

    with pytest.raises(UserFunctionError) as caught:
        async with pipeline.start() as job:
            tasks = [asyncio.create_task(take(job)), asyncio.create_task(wait(job))]
            await job.submit(1)
            await job.submit(7)
            await asyncio.gather(*tasks)
            with pytest.raises(JobStopped, match="takes no more") as stopped:
                await job.submit(8)
            assert isinstance(stopped.value.__cause__, UserFunctionError)
    assert caught.value.element == 7
    assert sorted(heard) == ["results 7", "wait 7"]


async def test_submit_that_waits_for_room_hears_of_the_failure() -> None:
    pipeline = Pipeline()
    never = asyncio.Event

    async def stuck_or_fail(value: int) -> int:
        if value == 7:
            await asyncio.sleep(5)
            boom()
        await never().wait()
        return value

    pipeline.submissions(limit=1).async_map(stuck_or_fail, concurrency=2, buffer=2).discard()

    with pytest.raises(UserFunctionError):
        async with pipeline.start() as job:
            await job.submit(7)
            with pytest.raises(JobStopped) as stopped:
                for value in range(100_000):
                    await job.submit(value)
            assert isinstance(stopped.value.__cause__, UserFunctionError)


async def test_error_of_the_block_stops_the_job_at_once() -> None:
    log = Log()
    sink = LoggedSink(log)
    pipeline = Pipeline()
    pipeline.source(LoggedSource(log, [[1, 2]])).async_map(sleeping(100)).to(sink)

    with pytest.raises(Boom):
        async with pipeline.start():
            await asyncio.sleep(1)
            boom()
    assert asyncio.get_running_loop().time() == 1
    assert sink.values == []
    assert log[-2:] == ["source close", "sink close"]


async def test_failure_of_the_job_comes_before_what_the_block_makes_of_it() -> None:
    pipeline = Pipeline()
    pipeline.submissions().map(fails_on(7), name="bad").discard()

    with pytest.raises(UserFunctionError, match="'bad'"):
        async with pipeline.start() as job:
            await job.submit(7)
            await asyncio.sleep(1)
            await job.submit(8)  # raises JobStopped, which leaves the block


async def test_cancelling_the_task_that_runs_a_pipeline_ends_everything() -> None:
    log = Log()
    pipeline = Pipeline()
    pipeline.source(LoggedSource(log, [[1, 2]])).async_map(LoggedFunction(log, delay=1e9)).to(LoggedSink(log))

    task = asyncio.create_task(pipeline.run())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asyncio.all_tasks()) == 1
    assert log[-3:] == ["source close", "call close", "sink close"]


async def test_timeout_around_a_pipeline_is_a_timeout() -> None:
    pipeline = Pipeline()
    pipeline.source([1]).async_map(sleeping(1e9)).discard()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await pipeline.run()


async def test_second_cancellation_while_everything_is_closed_leaves_no_task() -> None:
    log = Log()

    async def stubborn(value: int) -> int:
        try:
            await forever()
        finally:
            await asyncio.sleep(5)  # takes its time to end
        return value

    pipeline = Pipeline()
    pipeline.source(LoggedSource(log, [[1, 2]])).async_map(stubborn).to(LoggedSink(log))

    async def Pipeline_again(pipeline: Pipeline) -> None:
        async with pipeline.start():
            pass

    task = asyncio.create_task(pipeline.run())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(20)
    assert len(asyncio.all_tasks()) == 1
    await asyncio.wait_for(Pipeline_again(pipeline), 100)
    assert log.count("sink close") == 2


@pytest.mark.parametrize("method", ["open", "close"])
@pytest.mark.parametrize("kind", CALL_ERRORS, ids=lambda kind: kind.__name__)
async def test_function_whose_service_fails_where_it_opens_or_closes_is_named_by_its_step(
    method: str, kind: type[AsyncStreamError]
) -> None:
    """Though the error is one of this package: who raises it knows no step."""

    async def fails() -> None:
        raise kind.__new__(kind, "busy")

    class Asks(AsyncFunction[int, int]):
        async def invoke(self, value: int) -> int:
            return value

    function = Asks()
    setattr(function, method, fails)
    pipeline = Pipeline()
    pipeline.source([1]).async_map(function, name="ask").discard()
    with pytest.raises(
        UserFunctionError, match=rf"^step 'ask': {kind.__name__}: busy, when it was {method}"
    ) as caught:
        await pipeline.run()
    assert isinstance(caught.value.__cause__, kind)
