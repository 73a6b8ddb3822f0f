"""From opening to closing: in what order, how often, in which loop."""

# ruff: noqa: PT012 - what a job raises comes out of its block

from __future__ import annotations

import asyncio
import contextvars
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from asyncstream import (
    AscendingTimestamps,
    Checkpoints,
    Job,
    MemoryStore,
    Pipeline,
    PipelineError,
    Restarts,
    SinkError,
    TransactionalSink,
    UserFunctionError,
)
from asyncstream.elements import Timestamps
from asyncstream.testing import loop
from asyncstream.testing.loop import run_virtual
from tests.runtime.parts import Boom, Log, LoggedFunction, LoggedSink, LoggedSource, boom, run, sleeping

pytestmark = pytest.mark.usefixtures("virtual_time", "tidy")


def test_opens_from_the_tail_and_closes_from_the_head() -> None:
    log = Log()
    pipeline = Pipeline()
    stream = pipeline.source(LoggedSource(log, [[1]]))
    stream.async_map(LoggedFunction(log, name="first")).async_map(LoggedFunction(log, name="second")).to(
        LoggedSink(log)
    )
    run(pipeline.run())
    opened = ["sink open", "second open", "first open", "source open"]
    closed = ["source close", "first close", "second close", "sink close"]
    assert log == [*opened, "sink flush", *closed]


def test_same_pipeline_runs_again() -> None:
    seen: list[int] = []
    pipeline = Pipeline()
    pipeline.source([1, 2]).event_time(lambda value: value, AscendingTimestamps()).async_map(sleeping(1)).to(
        seen
    )
    run(pipeline.run())
    run(pipeline.run())
    assert seen == [1, 2, 1, 2]


async def test_plain_with_names_the_ways_to_enter_a_job() -> None:
    pipeline = Pipeline()
    pipeline.source([1]).discard()
    ways = r"async with pipeline\.start.*`with pipeline\.start_in_thread"
    with pytest.raises(PipelineError, match=ways), pipeline.start():  # type: ignore[attr-defined]
        pass
    await pipeline.run()


async def test_same_pipeline_runs_again_after_a_failure() -> None:
    fail = True
    seen: list[int] = []

    def sometimes(value: int) -> int:
        if fail:
            boom()
        return value

    pipeline = Pipeline()
    pipeline.source([1]).map(sometimes).to(seen)

    with pytest.raises(Exception, match="on purpose"):
        await pipeline.run()
    fail = False
    await pipeline.run()
    assert seen == [1]


async def test_two_runs_at_once_are_refused() -> None:
    seen: list[int] = []
    pipeline = Pipeline()
    pipeline.source([1]).async_map(sleeping(1)).to(seen)

    async with pipeline.start() as job:
        with pytest.raises(PipelineError, match="is running already"):
            await pipeline.run()
        await job.wait()
    await pipeline.run()
    assert seen == [1, 1]


async def test_step_that_a_running_job_would_not_have_is_refused() -> None:
    seen: list[int] = []
    pipeline = Pipeline()
    source = pipeline.source([1])
    source.async_map(sleeping(1)).to(seen)

    async with pipeline.start() as job:
        with pytest.raises(PipelineError, match="step 'map': the pipeline is running, and goes on"):
            source.map(str)
        await job.wait()
    source.to(seen)
    await pipeline.run()
    assert sorted(seen) == [1, 1, 1]


async def test_job_runs_once() -> None:
    pipeline = Pipeline()
    pipeline.source([1]).discard()

    job = pipeline.start()
    async with job:
        pass
    with pytest.raises(PipelineError, match=r"runs once; call pipeline\.start\(\)"):
        async with job:
            pass


async def test_failed_opening_leaves_the_pipeline_usable() -> None:
    log = Log()
    sink = LoggedSink(log, fails="open")
    pipeline = Pipeline()
    pipeline.source([1]).to(sink)

    with pytest.raises(Exception, match="on purpose"):
        await pipeline.run()
    sink.fails = ""
    await pipeline.run()
    assert sink.values == [1]


async def test_clock_that_fails_leaves_the_pipeline_usable() -> None:
    class Broken:
        def now_ms(self) -> int:
            boom()
            return 0

    seen: list[int] = []
    pipeline = Pipeline()
    pipeline.source([1]).to(seen)
    job = pipeline.start(clock=Broken())
    with pytest.raises(Boom):
        async with job:
            pass
    assert job.state == "new"
    await pipeline.run()
    assert seen == [1]


async def test_ends_do_not_work_for_a_job_that_has_ended() -> None:
    class Transactional(TransactionalSink[int]):
        async def recover(self, position: Any) -> None:
            pass

        async def write(self, values: Sequence[int], timestamps: Timestamps) -> None:
            pass

        async def prepare(self, epoch: int) -> int:
            return epoch

        async def commit(self, epoch: int) -> None:
            pass

    source, sink = LoggedSource(Log(), [[1]]), Transactional()

    def told() -> list[object]:
        return [source.writer, sink.writer, source.checkpoint_soon]

    pipeline = Pipeline()
    pipeline.source(source, name="in").to(sink, name="out")
    await pipeline.run(checkpoints=Checkpoints(store=MemoryStore()))
    assert None not in told()
    async with pipeline.start():
        assert told() == [None, None, None]


async def test_leaving_at_once_leaves_nothing_behind() -> None:
    log = Log()
    pipeline = Pipeline()
    pipeline.source(LoggedSource(log, [[1]])).to(LoggedSink(log))

    async with pipeline.start():
        pass
    assert log == ["sink open", "source open", "sink flush", "source close", "sink close"]


async def test_drain_reads_no_more_and_finishes_what_was_accepted() -> None:
    seen: list[int] = []

    async def endless() -> AsyncIterator[int]:
        value = 0
        while True:
            await asyncio.sleep(1)
            yield value
            value += 1

    pipeline = Pipeline()
    pipeline.source(endless()).async_map(sleeping(10)).to(seen)

    async with pipeline.start() as job:
        await asyncio.sleep(5.5)
        await job.drain(timedelta(minutes=1))
        assert asyncio.get_running_loop().time() == 15
    assert seen == [0, 1, 2, 3, 4]


async def test_drain_that_takes_too_long_leaves_the_job_running() -> None:
    seen: list[int] = []
    pipeline = Pipeline()
    pipeline.submissions().async_map(sleeping(10)).to(seen)

    async with pipeline.start() as job:
        await job.submit(1)
        with pytest.raises(TimeoutError):
            await job.drain(1)
        assert seen == []
        await job.drain()
        assert seen == [1]


async def test_drain_fires_what_waits_for_the_end_of_time() -> None:
    pipeline = Pipeline()
    sink = LoggedSink(Log())
    pipeline.submissions().event_time(lambda value: value, AscendingTimestamps()).async_map(
        sleeping(0.1), order="event_time"
    ).to(sink)

    async with pipeline.start() as job:
        await job.submit(5)
        await job.submit(3)
    assert sorted(sink.values) == [3, 5]
    assert sorted(stamp for stamp in sink.timestamps if stamp is not None) == [3, 5]


async def test_stop_cancels_calls_that_run() -> None:
    cancelled: list[int] = []

    async def call(value: int) -> int:
        try:
            await asyncio.sleep(1e9)
        except asyncio.CancelledError:
            cancelled.append(value)
            raise
        return value

    pipeline = Pipeline()
    pipeline.source(range(3)).async_map(call).discard()

    async with pipeline.start() as job:
        await asyncio.sleep(1)
        await job.stop()
        assert sorted(cancelled) == [0, 1, 2]


@pytest.mark.parametrize("then", ["leave", "drain", "stop"])
async def test_stop_that_is_given_up_in_its_grace_ends_the_job(then: str) -> None:
    pipeline = Pipeline()
    pipeline.source([1]).async_map(sleeping(3)).discard()
    async with asyncio.timeout(100):
        async with pipeline.start() as job:
            await asyncio.sleep(0.1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await job.stop(grace=60)
            assert job.state == "stopping"
            if then == "drain":
                await job.drain()
            elif then == "stop":
                await job.stop()
    assert job.state == "stopped"


def test_empty_source_ends() -> None:
    seen: list[int] = []
    pipeline = Pipeline()
    pipeline.source(list[int]()).async_map(sleeping(1)).to(seen)
    run(pipeline.run())
    assert seen == []


def test_one_stream_may_be_read_by_many() -> None:
    seen: list[list[int]] = [[], [], []]
    pipeline = Pipeline()
    stream = pipeline.source(range(100)).map(lambda value: value + 1)
    for mine in seen:
        stream.to(mine)
    run(pipeline.run())
    assert seen == [list(range(1, 101))] * 3


def test_union_of_a_stream_with_itself_gives_everything_twice() -> None:
    seen: list[int] = []
    pipeline = Pipeline()
    stream = pipeline.source(range(10))
    stream.union(stream).to(seen)
    run(pipeline.run())
    assert sorted(seen) == sorted([*range(10)] * 2)


def test_branch_gives_each_element_to_one_side() -> None:
    yes: list[int] = []
    no: list[int] = []
    pipeline = Pipeline()
    main, others = pipeline.source(range(10)).branch(lambda value: value % 3)
    main.to(yes)
    others.to(no)
    run(pipeline.run())
    assert yes == [1, 2, 4, 5, 7, 8]
    assert no == [0, 3, 6, 9]


async def test_independent_streams_run_side_by_side() -> None:
    seen: list[int] = []
    pipeline = Pipeline()
    for start in (0, 100):
        pipeline.source(range(start, start + 3)).async_map(sleeping(1)).to(seen)

    await pipeline.run()
    assert asyncio.get_running_loop().time() == 1
    assert sorted(seen) == [0, 1, 2, 100, 101, 102]


async def test_metrics_count_what_happens() -> None:
    pipeline = Pipeline()
    stream = pipeline.source(range(10)).filter(lambda value: value < 8)
    stream.async_map(sleeping(1), concurrency=3, name="call").to([])

    async with pipeline.start() as job:
        await asyncio.sleep(0.5)
        metrics = job.metrics()
        assert metrics["source"] == {"read": 10}
        assert metrics["call"]["elements_in"] == 8
        assert metrics["call"]["running"] == 3
        assert metrics["sink"] == {"written": 0, "waiting": 0}
        await job.wait()
        assert job.metrics()["sink"]["written"] == 8
    assert job.metrics()["call"]["results_out"] == 8
    assert all(isinstance(n, int) for counts in job.metrics().values() for n in counts.values())


def test_blocking_run_needs_no_loop() -> None:
    seen: list[int] = []
    pipeline = Pipeline()
    pipeline.source(range(10)).async_map(_at_once).to(seen)
    pipeline.run_blocking()
    assert seen == list(range(10))


async def _at_once(value: int) -> int:
    await asyncio.sleep(0)
    return value


def test_error_of_a_blocking_run_tells_of_no_other(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = Pipeline()
    pipeline.source([0]).map(lambda value: 1 / value, name="inverse").discard()
    with pytest.raises(UserFunctionError) as caught:
        pipeline.run_blocking()
    told = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "ZeroDivisionError" in told
    assert "no running event loop" not in told
    assert "During handling of the above exception" not in told


def test_blocking_run_takes_uvloop_when_told() -> None:
    uvloop = pytest.importorskip("uvloop")
    loops: list[Any] = []

    async def look(value: int) -> int:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0.001)
        return value

    seen: list[int] = []
    pipeline = Pipeline()
    pipeline.source(range(10)).async_map(look, timeout=5).to(seen)
    pipeline.run_blocking(uvloop=True)
    assert seen == list(range(10))
    assert all(isinstance(loop, uvloop.Loop) for loop in loops)


def test_blocking_run_without_uvloop_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    pipeline = Pipeline()
    pipeline.source([1]).discard()
    with pytest.raises(PipelineError, match="there is no uvloop for this platform"):
        pipeline.run_blocking(uvloop=True)


async def test_blocking_run_inside_a_loop_says_what_to_do() -> None:
    pipeline = Pipeline()
    pipeline.source([1]).discard()

    for uvloop in (False, True):
        with pytest.raises(PipelineError, match=r"an event loop is running here; use `await pipeline\.run"):
            pipeline.run_blocking(uvloop=uvloop)


def test_job_where_no_loop_of_asyncio_runs_says_what_to_do() -> None:
    """As under trio, which drives coroutines by itself."""
    seen: list[int] = []
    pipeline = Pipeline()
    pipeline.source([1], name="in").to(seen, name="out")
    entering: Callable[[], Coroutine[Any, Any, object]] = pipeline.start().__aenter__
    restarting = partial(pipeline.run, checkpoints=Checkpoints(MemoryStore()), restart=Restarts(1))
    for work in (entering, pipeline.run, restarting):
        with pytest.raises(PipelineError, match=r"none runs here; under trio use `pipeline\.start_in_thread"):
            work().send(None)
    pipeline.run_blocking()
    assert seen == [1]


async def test_jobs_live_in_the_loop_that_is_there() -> None:
    loop = asyncio.get_running_loop()
    seen: list[int] = []
    pipeline = Pipeline()

    async def call(value: int) -> int:
        assert asyncio.get_running_loop() is loop
        return value

    pipeline.source([1]).async_map(call).to(seen)
    other = asyncio.create_task(asyncio.sleep(100, "mine"))
    await pipeline.run()
    assert seen == [1]
    assert not other.done()  # nobody touched the tasks of others
    other.cancel()
    await asyncio.wait({other})


def test_pipeline_inside_a_step_of_another() -> None:
    async def inner(value: int) -> list[int]:
        seen: list[int] = []
        pipeline = Pipeline()
        pipeline.source(range(value)).async_map(_at_once).to(seen)
        await pipeline.run()
        return seen

    seen: list[int] = []
    pipeline = Pipeline()
    pipeline.source([2, 3]).async_flat_map(inner, timeout=5).to(seen)
    run(pipeline.run())
    assert seen == [0, 1, 0, 1, 2]


async def test_wait_can_be_given_up_without_harm() -> None:
    seen: list[int] = []
    pipeline = Pipeline()
    pipeline.source([1]).async_map(sleeping(10)).to(seen)

    async with pipeline.start() as job:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job.wait(), 1)
        await job.wait()
    assert seen == [1]


async def test_error_that_was_handled_inside_the_block_is_raised_again_on_leaving() -> None:
    # nobody leaves a failed job by accident; whoever means to, catches around the block
    pipeline = Pipeline()
    pipeline.source([1]).map(boom, name="bad").discard()

    with pytest.raises(Exception, match="step 'bad'") as caught:
        async with pipeline.start() as job:
            with pytest.raises(Exception, match="step 'bad'") as first:
                await job.wait()
    assert caught.value is first.value


async def test_context_variables_of_the_program_are_seen_in_steps() -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []

    def look(value: int) -> int:
        seen.append(variable.get())
        return value

    async def call(value: int) -> str:
        return variable.get()

    pipeline = Pipeline()
    pipeline.source([1]).map(look).async_map(call).to(seen)

    variable.set("mine")
    await pipeline.run()
    assert seen == ["mine", "mine"]


def test_deadlock_is_found_and_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "PATIENCE", 0.05)
    pipeline = Pipeline()
    pipeline.submissions().discard()

    async def main() -> None:
        job: Job
        async with pipeline.start() as job:
            await job.wait()

    with pytest.raises(Exception, match="virtual time stands still"):
        run_virtual(main())


async def test_generator_is_closed_with_its_job() -> None:
    ended: list[str] = []

    async def endless() -> AsyncIterator[int]:
        try:
            while True:
                await asyncio.sleep(1)
                yield 1
        finally:
            ended.append("yes")

    pipeline = Pipeline()
    pipeline.source(endless()).discard()

    with pytest.raises(Boom):
        async with pipeline.start():
            await asyncio.sleep(5)
            boom()
    assert ended == ["yes"]


async def test_sink_that_ignores_its_cancellation_does_not_hang_the_job() -> None:
    async def stubborn(value: int) -> None:
        for _ in range(100):
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                pass

    loop = asyncio.get_running_loop()
    pipeline = Pipeline()
    pipeline.source([1]).to(stubborn, name="deaf")
    with pytest.raises(SinkError, match="ignored their cancellation for 10 s: 'deaf'"):
        async with pipeline.start() as job:
            await asyncio.sleep(1)
            await job.stop(timeout=1)
    assert loop.time() < 30
    for task in asyncio.all_tasks() - {asyncio.current_task()}:  # nobody else will
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
