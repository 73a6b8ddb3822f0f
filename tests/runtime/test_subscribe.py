"""What a stream publishes, each subscriber gets at its own pace, and none holds it that may not."""

# ruff: noqa: PT012 - what a job raises comes out of its block

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from asyncstream import Job, Pipeline, PipelineError, Subscription, UserFunctionError
from tests.runtime.parts import Boom, boom, forever, run, sleeping


def published() -> Pipeline:
    pipeline = Pipeline()
    pipeline.submissions().publish(name="news")
    return pipeline


async def submit(job: Job, *values: Any) -> None:
    for value in values:
        await job.submit(value)
    await asyncio.sleep(0.001)


async def taken(subscription: Subscription[Any]) -> list[Any]:
    return [value async for value in subscription]


def test_every_subscriber_gets_all_that_comes_while_it_is_one() -> None:
    async def main() -> None:
        async with published().start() as job:
            early = job.subscribe()
            await submit(job, 1, 2)
            late = job.subscribe(filter=lambda value: value != 4)
            await submit(job, 3, 4, 5)
            await job.drain()
            assert await taken(early) == [1, 2, 3, 4, 5]
            assert await taken(late) == [3, 5]
            assert (early.missed, late.missed) == (0, 0)

    run(main())


def test_elements_come_as_they_are_published_and_nobody_needs_to_listen() -> None:
    async def main() -> None:
        async with published().start() as job:
            await submit(job, "unheard")
            subscription = job.subscribe()
            for value in range(3):
                waiting = asyncio.ensure_future(anext(subscription))
                await asyncio.sleep(10)
                await submit(job, value)
                assert waiting.done()
                assert await waiting == value

    run(main())


def test_slow_subscriber_that_drops_misses_the_oldest_and_holds_nothing() -> None:
    async def main() -> None:
        async with published().start() as job:
            slow, quick = job.subscribe(buffer=3), job.subscribe(buffer=5000)
            for value in range(2000):
                await job.submit(value)
            await job.drain()
            assert await taken(slow) == [1997, 1998, 1999]
            assert slow.missed == 1997
            assert len(await taken(quick)) == 2000

    run(main())


def test_slow_subscriber_that_holds_gets_all_and_no_buffer_grows() -> None:
    async def main() -> None:
        pipeline = Pipeline()
        pipeline.source(range(500)).publish()
        async with pipeline.start() as job:
            slow, quick = job.subscribe(buffer=4, slow="hold"), job.subscribe(buffer=10, slow="hold")
            got: list[list[int]] = [[], []]

            async def take(subscription: Subscription[Any], mine: list[int], seconds: float) -> None:
                async for value in subscription:
                    mine.append(value)
                    await asyncio.sleep(seconds)

            async with asyncio.TaskGroup() as group:
                group.create_task(take(slow, got[0], 1))
                group.create_task(take(quick, got[1], 0))
                await asyncio.sleep(100.5)
                assert 100 <= len(got[0]) <= 102
                assert len(got[0]) + 4 <= len(got[1]) <= len(got[0]) + 5
            assert got == [list(range(500))] * 2
            assert (slow.missed, quick.missed) == (0, 0)

    run(main())


@pytest.mark.usefixtures("others_gone")
@pytest.mark.parametrize("how", ["break", "close", "with", "cancelled", "forgotten"])
def test_a_subscriber_who_has_left_holds_nothing(how: str) -> None:
    async def main() -> None:
        async with published().start() as job:
            if how == "break":
                await submit(job, 0)
                waiting = asyncio.create_task(first(job))
                await asyncio.sleep(0)
                await submit(job, 0)
                await waiting
            elif how == "close":
                kept = job.subscribe(buffer=1, slow="hold")
                kept.close()
                assert await taken(kept) == []
            elif how == "with":
                async with job.subscribe(buffer=1, slow="hold") as kept:
                    await submit(job, 0)
            elif how == "cancelled":
                task = asyncio.create_task(listen(job))
                await asyncio.sleep(1)
                task.cancel()
                await asyncio.wait({task})
                del task
            else:
                cycle: list[Any] = [job.subscribe(buffer=1, slow="hold")]
                cycle.append(cycle)
                await submit(job, *range(10))  # and now the pipeline waits for it
                del cycle
                gc.collect()
            async with asyncio.timeout(5):
                for value in range(5000):
                    await job.submit(value)

    async def first(job: Job) -> None:
        async for _ in job.subscribe(buffer=1, slow="hold"):
            break

    async def listen(job: Job) -> None:
        async for _ in job.subscribe(buffer=1, slow="hold"):
            await forever()

    run(main())


def test_a_filter_may_subscribe() -> None:
    async def main() -> None:
        async with published().start() as job:
            more: list[Subscription[Any]] = []

            def subscribes(value: Any) -> bool:
                more.append(job.subscribe())
                return True

            first = job.subscribe(filter=subscribes)
            second = job.subscribe()
            await submit(job, 1, 2)
            await job.drain()
            assert await taken(first) == await taken(second) == [1, 2]
            assert [await taken(one) for one in more] == [[2], []]

    run(main())


def test_what_a_filter_raises_is_told_to_its_subscriber_alone() -> None:
    async def main() -> None:
        async with published().start() as job:
            broken = job.subscribe(filter=lambda value: boom() if value == 2 else True)
            whole = job.subscribe()
            await submit(job, 1, 2, 3)
            assert await anext(broken) == 1
            with pytest.raises(Boom):
                await anext(broken)
            await job.drain()
            assert await taken(whole) == [1, 2, 3]
            assert await taken(broken) == []

    run(main())


def test_subscribers_hear_of_the_failure_of_the_job() -> None:
    async def main() -> None:
        pipeline = Pipeline()
        pipeline.submissions().map(lambda value: boom() if value == 2 else value, name="map").publish()
        with pytest.raises(UserFunctionError):
            async with pipeline.start() as job:
                subscription = job.subscribe()
                await submit(job, 1, 2)
                await asyncio.sleep(1)
                assert await anext(subscription) == 1
                with pytest.raises(UserFunctionError, match="step 'map'"):
                    await anext(subscription)
        with pytest.raises(UserFunctionError):
            await taken(job.subscribe())

    run(main())


@pytest.mark.parametrize("end", ["drain", "stop"])
def test_the_end_does_not_wait_for_a_subscriber_that_holds(end: str) -> None:
    async def main() -> None:
        pipeline = Pipeline()
        pipeline.submissions().async_map(sleeping(0.1)).publish()
        async with pipeline.start() as job:
            subscription = job.subscribe(buffer=1, slow="hold")
            for value in range(10):
                await job.submit(value)
            await asyncio.sleep(5)
            await (job.drain(10) if end == "drain" else job.stop(1))
            got = await taken(subscription)
            assert got == list(range(len(got)))
            assert got if end == "stop" else len(got) == 10

    run(main())


def test_one_of_several_publications_is_named_or_given() -> None:
    async def main() -> None:
        pipeline, other = Pipeline(), Pipeline()
        odd, even = pipeline.submissions().branch(lambda value: value % 2)
        odds, evens = odd.publish(name="odds"), even.publish(name="evens")
        foreign = other.submissions().publish(name="odds")
        async with pipeline.start() as job:
            with pytest.raises(PipelineError, match=r"of: expected the name of a stream\.publish\(\)"):
                job.subscribe()
            with pytest.raises(PipelineError, match=r"of: expected what stream\.publish\(\) gave"):
                job.subscribe(foreign)
            subscriptions = job.subscribe(odds), job.subscribe(evens), job.subscribe("evens")
            await submit(job, 1, 2, 3)
            await job.drain()
            assert [await taken(one) for one in subscriptions] == [[1, 3], [2], [2]]

    run(main())


@pytest.mark.parametrize(
    "wrong", [{"buffer": 0}, {"slow": "end"}, {"filter": 5}, {"filter": sleeping(1)}, {"of": "nobody"}]
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    async def main() -> None:
        async with published().start() as job:
            with pytest.raises(PipelineError, match="expected"):
                job.subscribe(**wrong)

    run(main())
