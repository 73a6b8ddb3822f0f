"""What an iterable has given is emitted, in the snapshot or still with the source, wherever the job stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream import Checkpoints, Items, JobSnapshot, MemoryStore, Pipeline, SourceError, UserFunctionError
from tests.runtime.parts import run


class Feed:
    """An async iterator over a queue; None ends it."""

    def __init__(self, queue: asyncio.Queue[int | None]) -> None:
        self.queue = queue

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        value = await self.queue.get()
        if value is None:
            raise StopAsyncIteration
        return value


async def generator_over(queue: asyncio.Queue[int | None]) -> AsyncIterator[int]:
    while (value := await queue.get()) is not None:
        yield value


class Wrapped:
    """An async iterator made of a generator."""

    def __init__(self, queue: asyncio.Queue[int | None]) -> None:
        self.generator = generator_over(queue)

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        return await anext(self.generator)


MAKES: dict[str, Callable[[asyncio.Queue[int | None]], Any]] = {
    "feed": Feed,
    "generator": generator_over,
    "wrapped": Wrapped,
}


@pytest.mark.parametrize("make", MAKES)
@settings(max_examples=30, deadline=None)
@given(
    pieces=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 30), st.booleans(), st.integers(0, 4)), max_size=5
    ),
    same=st.booleans(),
)
def test_stops_at_any_moment_lose_and_double_nothing(
    make: str, pieces: list[tuple[int, int, bool, int]], same: bool
) -> None:
    async def main() -> None:
        queue: asyncio.Queue[int | None] = asyncio.Queue()
        numbers = iter(range(1000))
        source = MAKES[make](queue)
        items = Items(source, batch=3)
        found: list[int] = []

        def put(many: int) -> None:
            for _ in range(many):
                queue.put_nowait(next(numbers))

        def build() -> Pipeline:
            pipeline = Pipeline()
            # a generator that is being waited for belongs to the source that waits
            again = items if same or make != "feed" else Items(Feed(queue), batch=3)
            pipeline.source(again, name="in").async_map(slowly, name="call", concurrency=1, buffer=1).to(
                found, name="out"
            )
            return pipeline

        async def slowly(value: int) -> int:
            await asyncio.sleep(0.01)
            return value

        snapshot: JobSnapshot | None = None
        for before, milliseconds, is_gentle, after in pieces:
            put(before)
            async with build().start(snapshot=snapshot) as job:
                await asyncio.sleep(milliseconds / 1000)
                put(before)
                if is_gentle:
                    await asyncio.sleep(0)
                snapshot = await job.stop()
            put(after)
            await asyncio.sleep(0.001)
        queue.put_nowait(None)
        async with build().start(snapshot=snapshot) as job:
            await job.wait()
        assert sorted(found) == list(range(next(numbers)))

    run(main())


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_item_taken_while_the_pipeline_is_full_is_in_the_snapshot() -> None:
    queue: asyncio.Queue[int | None] = asyncio.Queue()
    for number in range(1100):
        queue.put_nowait(number)
    pipeline = Pipeline()
    stuck = asyncio.Event()

    async def wait(value: int) -> int:
        await stuck.wait()
        return value

    pipeline.source(Feed(queue), name="in").async_map(wait, name="call", concurrency=1, buffer=1).to([])
    async with pipeline.start() as job:
        await asyncio.sleep(0.1)
        queue.put_nowait(1100)
        await asyncio.sleep(0.1)
        snapshot = await job.stop()
    assert snapshot.sources["in"] == {"read": 1100, "taken": [1100]}
    assert sum(entry[0] == "call" for entry in snapshot.operators["call"]) == 1100


def numbers() -> Iterator[int]:
    yield from range(5000)


async def async_numbers() -> AsyncIterator[int]:
    for number in range(5000):
        yield number


class Again:
    """Iterable any number of times, always from the beginning."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(5000))


class AsyncAgain:
    """The same, for `async for`."""

    def __aiter__(self) -> AsyncIterator[int]:
        return async_numbers()


KINDS: dict[str, Callable[[], Any]] = {
    "generator": numbers,
    "async_generator": async_numbers,
    "iterator": lambda: iter(range(5000)),
    "iterable": Again,
    "async_iterable": AsyncAgain,
    "function": lambda: numbers,
    "async_function": lambda: async_numbers,
    "list": lambda: list(range(5000)),
}


async def stopped(pipeline: Pipeline, found: list[int], how: Any) -> JobSnapshot:
    async with pipeline.start(**how) as job:
        while len(found) < 1000:  # noqa: ASYNC110 - whoever sets an event would be the function under test
            await asyncio.sleep(0)
        return await job.stop()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["snapshot", "checkpoints"])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_stopped_job_is_continued_where_its_iterable_stands(kind: str, by: str) -> None:
    found: list[int] = []
    pipeline = Pipeline()
    pipeline.source(KINDS[kind](), name="in").to(found, name="out")
    how: dict[str, Any] = {"checkpoints": Checkpoints(store=MemoryStore())} if by == "checkpoints" else {}
    snapshot = await stopped(pipeline, found, how)
    assert len(found) < 5000
    async with pipeline.start(**(how or {"snapshot": snapshot})) as job:
        await job.wait()
    assert found == list(range(5000))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_second_run_begins_anew_or_is_refused(kind: str) -> None:
    async def main(*, partly: bool) -> None:
        found: list[int] = []
        pipeline = Pipeline()
        pipeline.source(KINDS[kind](), name="in").to(found, name="out")
        if partly:
            await stopped(pipeline, found, {})
        else:
            await pipeline.run()
            assert len(found) == 5000
        found.clear()
        if kind in ("generator", "async_generator", "iterator"):
            with pytest.raises(SourceError, match=r"step 'in': .* a function that makes a new one"):
                await pipeline.run()
            assert found == []
        else:
            await pipeline.run()
            assert found == list(range(5000))

    await main(partly=False)
    await main(partly=True)


@pytest.mark.parametrize("make", [numbers, async_numbers])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_generator_that_another_pipeline_has_read_is_refused(make: Callable[[], Any]) -> None:
    source = make()
    for is_first in (True, False):
        pipeline = Pipeline()
        pipeline.source(source, name="in").to([])
        if is_first:
            await pipeline.run()
        else:
            with pytest.raises(SourceError, match="gives its elements once"):
                await pipeline.run()


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_generator_of_a_run_that_failed_is_refused_in_the_next() -> None:
    def fail(value: int) -> None:
        raise ValueError

    pipeline = Pipeline()
    pipeline.source(numbers(), name="in").to(fail)
    with pytest.raises(UserFunctionError):
        await pipeline.run()
    with pytest.raises(SourceError, match="gives its elements once"):
        await pipeline.run()


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_feed_is_read_on_by_the_run_after_a_drained_one() -> None:
    queue: asyncio.Queue[int | None] = asyncio.Queue()
    found: list[int] = []
    pipeline = Pipeline()
    pipeline.source(Feed(queue), name="in").to(found)
    for number in range(3):
        queue.put_nowait(number)
        async with pipeline.start():
            await asyncio.sleep(0.01)
    assert found == [0, 1, 2]
    assert queue.empty()


@pytest.mark.usefixtures("virtual_time")
async def test_iterable_that_ignores_its_cancellation_is_waited_for_so_long_only() -> None:
    async def stubborn() -> AsyncIterator[int]:
        yield 1
        for _ in range(100):
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue
            yield 2

    pipeline = Pipeline()
    pipeline.source(stubborn(), name="in").to([])
    loop = asyncio.get_running_loop()
    with pytest.raises(SourceError, match=r"step 'in': .*ignored its cancellation"):
        async with pipeline.start():
            await asyncio.sleep(1)
    assert loop.time() < 60


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize(("end_timeout", "is_too_long"), [(30, False), (3, True)])
async def test_iterable_gets_the_time_to_end_that_the_job_gives(
    end_timeout: float, is_too_long: bool
) -> None:
    async def stubborn() -> AsyncIterator[int]:
        yield 1
        while asyncio.get_running_loop().time() < 20:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(5)  # of virtual time

    pipeline = Pipeline()
    pipeline.source(stubborn(), name="in").to([])
    too_long = pytest.raises(SourceError, match="ignored its cancellation for 3 s")
    with too_long if is_too_long else nullcontext():
        async with pipeline.start(end_timeout=end_timeout):
            await asyncio.sleep(1)


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_function_that_makes_no_iterable_is_told() -> None:
    def make() -> Iterable[int]:
        return 5  # type: ignore[return-value]

    def fail() -> Iterable[int]:
        raise ValueError("no")

    for function, message in ((make, "gave 5 instead of an iterable"), (fail, "ValueError: no")):
        pipeline = Pipeline()
        pipeline.source(function, name="in").to([])
        with pytest.raises(SourceError, match=f"step 'in': .*{message}"):
            await pipeline.run()
