"""One function object in two steps or two jobs: shared where that is meant, else refused with what to do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncstream import (
    AsyncFunction,
    Count,
    KeyedContext,
    KeyedProcessFunction,
    Pipeline,
    PipelineError,
    Stream,
)
from asyncstream.guards import cached, retry, single_flight
from asyncstream.operators.emitting import Emitter
from asyncstream.pipeline.keyed import WindowedStream
from asyncstream.state import ValueDescriptor
from asyncstream.windowing import ProcessWindowFunction, WindowContext
from tests.runtime.parts import run

pytestmark = pytest.mark.usefixtures("virtual_time", "tidy")


class CountPerKey(KeyedProcessFunction[str, tuple[str, int]]):
    def open(self, ctx: KeyedContext) -> None:
        self.count = ctx.state(ValueDescriptor[int]("n", default=0))

    def process_element(self, value: str, ctx: KeyedContext, out: Emitter[tuple[str, int]]) -> None:
        self.count.set((self.count.get() or 0) + 1)
        out((ctx.key, self.count.get() or 0))


def counting(function: CountPerKey) -> tuple[Pipeline, list[Any]]:
    done: list[Any] = []
    pipeline = Pipeline()
    pipeline.submissions().key_by(lambda value: value).process(function, name="count").to(done)
    return pipeline, done


def test_process_function_in_two_steps_is_refused_when_it_is_built() -> None:
    pipeline = Pipeline()
    keyed = pipeline.source(["a"]).key_by(lambda value: value)
    function = CountPerKey()
    keyed.process(function, name="one")
    with pytest.raises(PipelineError, match="steps 'one' and 'two' share one CountPerKey; give each its own"):
        keyed.process(function, name="two")


async def test_process_function_in_two_jobs_at_once_is_refused_and_the_first_goes_on() -> None:
    function = CountPerKey()
    (one, done), (two, _) = counting(function), counting(function)

    async with one.start() as job:
        await job.submit("a")
        with pytest.raises(PipelineError, match="CountPerKey serves another job that runs"):
            await two.start().__aenter__()
        await job.submit("a")
    async with two.start() as job:  # one after the other is well
        await job.submit("a")
    assert done == [("a", 1), ("a", 2)]


class CountFirings(ProcessWindowFunction[tuple[int, int]]):
    """Remembers what it should not: that is how it is found out to serve two."""

    def __init__(self) -> None:
        self.firings = 0

    def process(self, key: Any, contents: Any, ctx: WindowContext, out: Any) -> None:
        self.firings += 1
        out((self.firings, contents if isinstance(contents, int) else len(contents)))


def processed(windows: WindowedStream[str, str], function: CountFirings, name: str) -> Stream[Any]:
    return windows.process(function, name=name)


def aggregated(windows: WindowedStream[str, str], function: CountFirings, name: str) -> Stream[Any]:
    return windows.aggregate(Count(), process=function, name=name)


def named(windows: WindowedStream[str, str], function: CountFirings, name: str) -> Stream[Any]:
    return windows.aggregate(n=Count(), process=function, name=name)


WAYS = [processed, aggregated, named]


@pytest.mark.parametrize("second", WAYS)
@pytest.mark.parametrize("first", WAYS)
def test_window_function_in_two_steps_is_refused_when_it_is_built(first: Any, second: Any) -> None:
    windows = Pipeline().source(["a"]).key_by(lambda value: value).count_window(1)
    function = CountFirings()
    first(windows, function, "one")
    with pytest.raises(
        PipelineError, match="steps 'one' and 'two' share one CountFirings; give each its own"
    ):
        second(windows, function, "two")


@pytest.mark.parametrize("way", [processed, aggregated])
async def test_window_function_in_two_jobs_at_once_is_refused_and_the_first_goes_on(way: Any) -> None:
    function = CountFirings()

    def build() -> tuple[Pipeline, list[Any]]:
        done: list[Any] = []
        pipeline = Pipeline()
        windows = pipeline.submissions().key_by(lambda value: value).count_window(1)
        way(windows, function, "count").to(done)
        return pipeline, done

    (one, done), (two, other) = build(), build()

    async with one.start() as job:
        await job.submit("a")
        with pytest.raises(PipelineError, match="CountFirings serves another job that runs"):
            await two.start().__aenter__()
        await job.submit("a")
    async with two.start() as job:  # one after the other is well
        await job.submit("a")
    assert (done, other) == ([(1, 1), (2, 1)], [(3, 1)])


class Session(AsyncFunction[int, int]):
    """Notes how often it was opened and closed, and refuses calls while it is not open."""

    def __init__(self) -> None:
        self.opened = self.closed = 0

    async def open(self) -> None:
        await asyncio.sleep(1)
        self.opened += 1

    async def invoke(self, value: int) -> int:
        assert self.opened > self.closed
        await asyncio.sleep(1)
        assert self.opened > self.closed
        return value

    async def close(self) -> None:
        await asyncio.sleep(1)
        self.closed += 1


def test_session_of_two_steps_is_opened_once_and_closed_once() -> None:
    session = Session()
    for runs in (1, 2):
        done: list[int] = []
        pipeline = Pipeline()
        pipeline.source(range(5)).async_map(session, name="one").async_map(session, name="two").to(done)
        run(pipeline.run())
        assert (session.opened, session.closed) == (runs, runs)
        assert done == [*range(5)]


@pytest.mark.parametrize("second", [retry, lambda session: retry(cached(session)), lambda session: session])
def test_session_inside_several_guards_is_opened_once_and_closed_once(second: Any) -> None:
    session = Session()
    done: list[int] = []
    pipeline = Pipeline()
    guarded = pipeline.source(range(5)).async_map(cached(session), name="one", concurrency=1)
    guarded.async_map(second(session), name="two").to(done)
    run(pipeline.run())
    assert (session.opened, session.closed) == (1, 1)
    assert done == [*range(5)]


async def test_guard_that_is_closed_leaves_the_session_to_another() -> None:
    session = Session()

    async with retry(session) as kept:
        async with cached(session) as short:
            assert await short(1) == 1
        assert await kept(2) == 2
        assert session.closed == 0
    assert (session.opened, session.closed) == (1, 1)


@pytest.mark.parametrize("level", [lambda session: session, retry, cached], ids=["plain", "retry", "cached"])
@pytest.mark.parametrize("leaves_first", ["the block", "the job"])
async def test_what_is_opened_by_hand_is_the_one_that_a_job_holds(level: Any, leaves_first: str) -> None:
    """One session: the job's calls go on when the block is left, and the block's when the job has ended."""
    session = Session()
    shared = level(session)
    done: list[int] = []
    pipeline = Pipeline()
    pipeline.submissions().async_map(shared).to(done)

    if leaves_first == "the block":
        async with pipeline.start() as job:
            async with shared:
                assert await shared.invoke(1) == 1
            await job.submit(2)
    else:
        async with shared:
            async with pipeline.start() as job:
                await job.submit(2)
            async with shared:
                assert await shared.invoke(3) == 3
            assert await shared.invoke(4) == 4
            assert session.closed == 0
    assert done == [2]
    assert (session.opened, session.closed) == (1, 1)


class FailingFirst(Session):
    async def open(self) -> None:
        await super().open()
        if self.opened == 1:
            raise ConnectionError


async def test_what_fails_to_open_by_hand_is_closed_and_can_be_opened_again() -> None:
    session = FailingFirst()

    with pytest.raises(ConnectionError):
        async with session:
            pass
    async with session:
        assert await session.invoke(1) == 1
    assert (session.opened, session.closed) == (2, 2)


@pytest.mark.parametrize("level", [lambda session: session, retry, cached], ids=["plain", "retry", "cached"])
@pytest.mark.parametrize("failures", [1, 2, 3])
async def test_what_failed_to_open_for_one_is_closed_and_opened_for_the_next(
    level: Any, failures: int
) -> None:
    class Failing(Session):
        async def open(self) -> None:
            assert self.opened == self.closed
            await super().open()
            if self.opened <= failures:
                raise ConnectionError

    session = Failing()
    shared = level(session)

    async def use(value: int) -> int | str:
        try:
            async with shared:
                return int(await shared.invoke(value))
        except ConnectionError:
            return "failed"

    assert await asyncio.gather(*map(use, range(3))) == ["failed"] * failures + [*range(failures, 3)]
    assert session.opened == session.closed == min(failures + 1, 3)


async def test_what_failed_to_open_is_closed_once_though_that_fails_too() -> None:
    class Failing(FailingFirst):
        async def close(self) -> None:
            await super().close()
            if self.closed == 1:
                raise ConnectionError

    session = Failing()

    async def use(value: int) -> int | str:
        try:
            async with session:
                return await session.invoke(value)
        except ConnectionError:
            return "failed"

    assert await asyncio.gather(*map(use, range(3))) == ["failed", "failed", 2]
    assert session.opened == session.closed == 2


async def test_what_is_closed_is_closed_once_though_the_next_is_cancelled_when_its_turn_comes() -> None:
    session = Session()

    async def use() -> None:
        async with session:
            raise AssertionError("it was cancelled before")

    await session.__aenter__()
    using = asyncio.create_task(use())
    await session.__aexit__()
    using.cancel()
    await asyncio.wait([using])
    assert using.cancelled()
    assert (session.opened, session.closed) == (1, 1)
    async with session:
        assert session.opened == 2


def test_guard_serves_again_after_its_loop_ended_while_it_was_open() -> None:
    session = Session()
    guarded = retry(session)
    run(guarded.open())

    async def main() -> None:
        async with guarded:
            assert await guarded(1) == 1

    run(main())
    assert (session.opened, session.closed) == (2, 1)


def test_job_that_ends_leaves_the_session_of_another_open() -> None:
    session = Session()

    def build(items: range) -> tuple[Pipeline, list[int]]:
        done: list[int] = []
        pipeline = Pipeline()
        pipeline.source(items).async_map(session, concurrency=1).to(done)
        return pipeline, done

    async def main() -> None:
        (short, _), (long, done) = build(range(1)), build(range(10))
        await asyncio.gather(short.run(), long.run())
        assert done == list(range(10))
        third, done = build(range(3))
        await third.run()
        assert done == [0, 1, 2]

    run(main())
    assert session.opened == session.closed == 2


async def test_job_that_stops_leaves_the_calls_of_another_alone() -> None:
    async def slow(value: int) -> int:
        await asyncio.sleep(3)
        return value

    shared = single_flight(slow)

    done: list[int] = []
    stopped, kept = Pipeline(), Pipeline()
    stopped.source([100]).async_map(shared).discard()
    kept.source(range(5)).async_map(shared).to(done)

    async def stop_early() -> None:
        async with stopped.start() as job:
            await asyncio.sleep(1)
            await job.stop()

    await asyncio.gather(stop_early(), kept.run())
    assert done == list(range(5))
