"""Whoever is slow is waited for, and nothing piles up: what is in flight stays bounded."""

# ruff: noqa: PT012 - what a job raises comes out of its block

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from asyncstream import Items, Pipeline
from asyncstream.runtime.aio.writing import SINK_LIMIT
from tests.runtime.parts import sleeping

pytestmark = pytest.mark.usefixtures("virtual_time", "tidy")

ONE_BATCH = 1000  # what `Items` reads at most
ONE_INBOX = 1024


class Count:
    """How many elements have gone into a pipeline and not come out, and the most there have ever been."""

    def __init__(self) -> None:
        self.taken = 0
        self.inside = 0
        self.most = 0

    def numbers(self, end: int | None = None) -> Iterator[int]:
        while end is None or self.taken < end:
            self.taken += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
            yield self.taken

    def out(self, value: Any) -> None:
        self.inside -= 1


async def run_for(pipeline: Pipeline, seconds: float) -> dict[str, dict[str, int]]:
    """Run for so long, then leave at once; the largest of each inbox that was seen every 10 ms."""
    largest: dict[str, dict[str, int]] = {}
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds), pipeline.start() as job:
            while True:
                for step, counts in job.metrics().items():
                    seen = largest.setdefault(step, {})
                    for name, count in counts.items():
                        seen[name] = max(seen.get(name, 0), count)
                await asyncio.sleep(0.01)
    return largest


async def test_slow_sink_holds_an_endless_source() -> None:
    count = Count()
    pipeline = Pipeline()

    async def slow(value: int) -> None:
        await asyncio.sleep(0.001)
        count.out(value)

    pipeline.source(count.numbers()).to(slow)
    largest = await run_for(pipeline, 5)
    assert count.taken > 3000
    # one batch being written, one inbox, and the batch that filled it
    assert count.most <= SINK_LIMIT + 2 * ONE_BATCH + ONE_INBOX
    assert largest["sink"]["waiting"] <= SINK_LIMIT + ONE_BATCH


@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time", "per_key"])
async def test_slow_calls_hold_an_endless_source(order: Any) -> None:
    count = Count()
    pipeline = Pipeline()
    source = pipeline.source(count.numbers())
    stream = source.key_by(lambda value: value % 7) if order == "per_key" else source
    stream.async_map(sleeping(1), order=order, concurrency=4, buffer=8, name="slow").to(count.out)
    largest = await run_for(pipeline, 20)
    assert largest["slow"]["running"] == 4
    assert largest["slow"]["held"] <= 8
    assert largest["slow"]["waiting"] <= ONE_INBOX + ONE_BATCH
    assert count.most <= 8 + ONE_INBOX + 2 * ONE_BATCH


async def test_slow_second_step_holds_the_first() -> None:
    count = Count()
    calls = 0

    async def first(value: int) -> int:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        return value

    pipeline = Pipeline()
    stream = pipeline.source(count.numbers()).async_map(first, concurrency=10, buffer=20)
    stream.async_map(sleeping(1), concurrency=2, buffer=2).to(count.out)
    await run_for(pipeline, 10)
    # nothing is called for that has no place behind: the second inbox, one emission, what the first holds
    assert calls <= 20 + ONE_INBOX + 20 + 2 * 20 + 2


async def test_slow_branch_holds_the_quick_one() -> None:
    count = Count()
    quick = 0

    def note(value: int) -> None:
        nonlocal quick
        quick += 1

    pipeline = Pipeline()
    stream = pipeline.source(count.numbers())
    stream.map(lambda value: value).to(note)
    stream.async_map(sleeping(1), concurrency=1, buffer=1).to(count.out)
    await run_for(pipeline, 10)
    assert quick <= count.taken <= ONE_INBOX + 3 * ONE_BATCH


async def test_branches_that_meet_again_do_not_lock_each_other() -> None:
    pipeline = Pipeline()
    even, odd = pipeline.source(range(5000)).branch(lambda value: value % 2 == 0)
    seen: list[int] = []
    even.async_map(sleeping(0.01), concurrency=3).union(odd.async_map(sleeping(0.001))).to(seen)
    await asyncio.wait_for(pipeline.run(), 1000)
    assert sorted(seen) == list(range(5000))


async def test_union_holds_both_of_its_sources() -> None:
    one, two = Count(), Count()
    pipeline = Pipeline()
    union = pipeline.source(one.numbers()).union(pipeline.source(two.numbers()))
    union.async_map(sleeping(1), concurrency=1, buffer=1).discard()
    await run_for(pipeline, 10)
    assert one.taken + two.taken <= ONE_INBOX + 5 * ONE_BATCH
    assert min(one.taken, two.taken) >= ONE_BATCH


@pytest.mark.parametrize("into", ["sink", "calls"])
async def test_burst_waits_in_one_inbox_and_holds_what_follows(into: str) -> None:
    burst = 10_000
    pipeline = Pipeline()
    taken = 0

    def numbers() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    stream = pipeline.source(Items(numbers(), batch=1)).flat_map(lambda value: [value] * burst)
    if into == "calls":
        stream.async_map(sleeping(0.001), concurrency=1, buffer=16, name="end").discard()
    else:
        stream.to(sleeping(0.001), name="end")
    largest = await run_for(pipeline, 12)
    assert largest["end"]["waiting"] <= ONE_INBOX + burst
    assert 2 <= taken <= 3  # 12,000 elements of one millisecond are 1.2 bursts


async def test_submissions_are_held_by_a_slow_step() -> None:
    pipeline = Pipeline()
    pipeline.submissions(limit=10).async_map(sleeping(1), concurrency=1, buffer=1).discard()
    accepted = 0

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10), pipeline.start() as job:
            while True:
                await job.submit(accepted)
                accepted += 1
    assert 1000 < accepted <= ONE_INBOX + 3 * 10 + 12


async def test_quick_source_lets_a_slow_one_have_its_turn() -> None:
    pipeline = Pipeline()
    quick = Count()
    came_at: list[int] = []

    async def slow() -> AsyncIterator[str]:
        for _ in range(3):
            await asyncio.sleep(0)
            yield "slow"

    pipeline.source(quick.numbers(200_000)).to(quick.out)
    pipeline.source(slow()).to(lambda value: came_at.append(quick.taken))
    await pipeline.run()
    assert len(came_at) == 3
    assert came_at[-1] <= 30 * ONE_BATCH
