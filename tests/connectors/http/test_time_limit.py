from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncstream.connectors.http.time_limit import TimeLimit
from asyncstream.testing.loop import run_virtual


def current() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def took(seconds: float, limit: TimeLimit) -> float:
    """How long such a block goes on; negative: it has ended by itself."""
    begun = asyncio.get_running_loop().time()
    try:
        with limit.begin():
            await asyncio.sleep(seconds)
    except TimeoutError:
        assert current().cancelling() == 0
        return asyncio.get_running_loop().time() - begun
    return begun - asyncio.get_running_loop().time()


def test_each_block_has_the_same_time() -> None:
    async def main() -> list[float]:
        limit = TimeLimit(5.0)

        async def later(begins: float, seconds: float) -> float:
            await asyncio.sleep(begins)
            return await took(seconds, limit)

        begun = [(0, 4), (1, 9), (2, 4.5), (3, 60), (3, 5.5), (70, 6)]
        return await asyncio.gather(*(later(*each) for each in begun))

    assert run_virtual(main()) == pytest.approx([-4, 5, -4.5, 5, 5, 5])


def test_a_task_that_makes_one_after_the_other_is_ended_in_the_one_that_is_late() -> None:
    async def main() -> list[float]:
        limit = TimeLimit(5.0)
        return [await took(seconds, limit) for seconds in (4, 4, 6, 4, 6)]

    assert run_virtual(main()) == pytest.approx([-4, -4, 5, -4, 5])


@pytest.mark.parametrize("at", [1.0, 5.0], ids=["before", "in_the_same_turn"])
def test_who_is_cancelled_by_another_ends_so(at: float) -> None:
    async def main() -> None:
        limit = TimeLimit(5.0)
        task = asyncio.create_task(took(10, limit))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_at(asyncio.get_running_loop().time() + at, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main())


def test_what_comes_of_a_block_that_is_late_stays() -> None:
    """As of one that has taken in its cancellation, or fails over it."""

    async def fails(limit: TimeLimit) -> None:
        with limit.begin():
            try:
                await asyncio.sleep(10)
            finally:
                raise KeyError

    async def main() -> list[str]:
        limit, seen = TimeLimit(5.0), []
        with limit.begin():
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                seen.append("taken in")
        with pytest.raises(KeyError):
            await fails(limit)
        await asyncio.sleep(10)
        assert current().cancelling() == 0
        return seen

    assert run_virtual(main()) == ["taken in"]


def test_a_block_left_from_within_is_not_ended_in_what_follows() -> None:
    async def main() -> None:
        limit = TimeLimit(5.0)
        with (bound := limit.begin()):
            with bound:
                await asyncio.sleep(1)
            await asyncio.sleep(20)

    run_virtual(main())


def test_one_slow_block_keeps_none_of_the_others() -> None:
    async def main() -> int:
        limit = TimeLimit(5.0)
        slow = asyncio.create_task(took(4, limit))
        await asyncio.sleep(0)
        for _ in range(10_000):
            with limit.begin():
                pass
        left = len(limit._begun)
        assert await slow == pytest.approx(-4)
        return left

    assert run_virtual(main()) < 200


@pytest.mark.parametrize("way", ["close", "end"])
def test_no_timer_is_left(way: str) -> None:
    async def main(leave: Callable[[TimeLimit], Awaitable[object]]) -> float:
        limit = TimeLimit(5.0)
        with limit.begin():
            await leave(limit)
        await asyncio.sleep(5)
        assert limit._timer is None
        return await took(4, limit)

    async def close(limit: TimeLimit) -> None:
        limit.close()
        await asyncio.sleep(60)

    async def end(limit: TimeLimit) -> None:
        await asyncio.sleep(1)

    assert run_virtual(main({"close": close, "end": end}[way])) == pytest.approx(-4)
