"""Rate limit, on a virtual clock."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import aiolimiter
import pytest

from asyncstream.errors import PipelineError
from asyncstream.guards import RateLimiter, SharedLimit, rate_limit
from asyncstream.guards.rate_limit import share_rates
from asyncstream.testing.loop import run_virtual
from tests.guards.services import Flaky, now_ms

pytestmark = pytest.mark.usefixtures("virtual_time")


def starts(calls: int, **options: Any) -> list[int]:
    """When so many calls that are asked for at once begin."""
    service = Flaky(0)

    async def main() -> None:
        guarded = rate_limit(service, **options)
        await asyncio.gather(*(guarded(number) for number in range(calls)))

    run_virtual(main())
    return service.times


def test_rate_starts_at_once_and_the_next_after_the_period() -> None:
    assert starts(7, rate=3) == [0, 0, 0, 1000, 1000, 1000, 2000]


def test_burst_starts_at_once_and_the_rest_evenly() -> None:
    assert starts(6, rate=4, burst=2) == [0, 0, 250, 500, 1000, 1000]


@pytest.mark.parametrize("per", [0.7, 60, 12.345])
def test_no_call_of_a_burst_waits_for_the_rounding_of_sums(per: float) -> None:
    for burst in range(1, 40):
        limiter = RateLimiter(40, per=per, burst=burst)
        assert [limiter.try_acquire(now=1234.5) for _ in range(burst + 1)] == [True] * burst + [False]


def test_burst_of_one_spaces_all_calls_evenly() -> None:
    assert starts(5, rate=10, burst=1) == [0, 100, 200, 300, 400]


def test_rest_does_not_let_more_through_than_the_rate() -> None:
    async def main() -> list[int]:
        limiter = RateLimiter(2)
        times = []
        for pause in (0.9, 0.0, 0.2, 0.0):
            await asyncio.sleep(pause)
            await limiter.acquire()
            times.append(now_ms())
        return times

    # a token bucket would let all four through by 1100
    assert run_virtual(main()) == [900, 900, 1900, 1900]


def test_weights_count() -> None:
    assert starts(4, rate=10, weight=lambda number: 4.0) == [0, 0, 1000, 1000]


async def test_heavy_call_is_not_overtaken_by_light_ones() -> None:
    order: list[int] = []

    async def note(weight: int) -> None:
        order.append(weight)

    guarded = rate_limit(note, rate=10, weight=float)
    await asyncio.gather(*(guarded(weight) for weight in (8, 9, 1, 2)))
    assert order == [8, 9, 1, 2]


async def test_weight_that_never_fits_is_refused() -> None:
    with pytest.raises(PipelineError, match="never fits"):
        await RateLimiter(5).acquire(6)
    with pytest.raises(PipelineError, match="never fits"):
        await rate_limit(Flaky(0), rate=5, weight=lambda _: 6)(1)


def test_cancelled_caller_gives_its_place_to_the_next() -> None:
    async def main() -> int:
        limiter = RateLimiter(1)
        await limiter.acquire()
        first = asyncio.create_task(limiter.acquire())
        second = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0.5)
        first.cancel()
        await second
        return now_ms()

    assert run_virtual(main()) == 1000


async def test_limiter_is_shared_by_several_functions() -> None:
    one, two = Flaky(0), Flaky(0)

    limiter = RateLimiter(2)
    guarded = rate_limit(one, limiter=limiter), rate_limit(two, limiter=limiter)
    await asyncio.gather(*(guarded[number % 2](number) for number in range(6)))
    assert sorted(one.times + two.times) == [0, 0, 1000, 1000, 2000, 2000]


async def test_aiolimiter_is_accepted() -> None:
    service = Flaky(0)

    guarded = rate_limit(service, limiter=aiolimiter.AsyncLimiter(2, 1))
    await asyncio.gather(*(guarded(number) for number in range(4)))
    assert service.times == [0, 0, 500, 1000]


def test_limiter_forgets_what_an_event_loop_with_another_clock_counted() -> None:
    limiter = RateLimiter(2, burst=1)

    async def main(pause: float) -> int:
        await asyncio.sleep(pause)
        await limiter.acquire()
        await limiter.acquire()
        return now_ms()

    assert run_virtual(main(100)) == 100_500
    assert run_virtual(main(0)) == 500


def test_limiter_goes_on_in_an_event_loop_after_one_that_ended_with_calls_waiting() -> None:
    limiter = RateLimiter(1)

    async def leave_waiting() -> None:
        waiting = [asyncio.create_task(limiter.acquire()) for _ in range(3)]
        await asyncio.sleep(0.5)
        assert [task.done() for task in waiting] == [True, False, False]

    async def main() -> int:
        await limiter.acquire()
        return now_ms()

    run_virtual(leave_waiting())
    assert run_virtual(main()) == 1000


def test_light_call_goes_as_soon_as_the_heavy_one_before_it_is_cancelled() -> None:
    async def main() -> int:
        limiter = RateLimiter(10)
        await limiter.acquire(8)
        heavy = asyncio.create_task(limiter.acquire(9))
        light = asyncio.create_task(limiter.acquire(2))
        await asyncio.sleep(0.5)
        heavy.cancel()
        await light
        return now_ms()

    assert run_virtual(main()) == 500


@pytest.mark.parametrize(
    ("options", "then"), [({"rate": 1, "per": 10}, 10_000), ({"rate": 5, "per": 50, "burst": 1}, 10_000)]
)
def test_call_that_is_cancelled_when_it_has_just_been_let_in_uses_nothing_up(
    options: dict[str, int], then: int
) -> None:
    async def main() -> list[int]:
        limiter = RateLimiter(**options)
        await limiter.acquire()
        waiting = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_at(10, waiting.cancel)  # behind the limiter's timer
        times = []
        for _ in range(2):
            await limiter.acquire()
            times.append(now_ms())
        assert waiting.cancelled()
        return times

    assert run_virtual(main()) == [then, 2 * then]


def test_parts_of_a_call_that_is_cancelled_are_given_back(shares: Callable[[int], None]) -> None:
    shares(2)

    async def main() -> list[int]:
        limiter = RateLimiter(4, per=10)
        await limiter.acquire(1)
        heavy = asyncio.create_task(limiter.acquire(4))
        await asyncio.sleep(15)
        heavy.cancel()
        times = []
        for _ in range(2):
            await limiter.acquire(2)
            times.append(now_ms())
        return times

    assert run_virtual(main()) == [15_000, 25_000]


def test_call_without_weight_never_waits() -> None:
    assert starts(3, rate=1, weight=0) == [0, 0, 0]


async def test_call_within_the_rate_does_not_suspend() -> None:
    limiter = RateLimiter(1)
    with pytest.raises(StopIteration):
        limiter.acquire().send(None)
    assert not limiter.try_acquire()
    assert limiter.waited == 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rate": 0},
        {"rate": 5, "burst": 6},
        {"rate": 5, "weight": 6},
        {"rate": 5, "burst": 2, "weight": 3},
        {"rate": 5, "weight": 6, "scope": SharedLimit("sqlite:///rates.db", name="api")},
        {"limiter": RateLimiter(1), "weight": 2},
        {"rate": 5, "limiter": RateLimiter(1)},
        {"limiter": 7},
        {"limiter": RateLimiter(1), "scope": SharedLimit("sqlite:///rates.db", name="api")},
    ],
)
def test_wrong_argument_is_refused_when_built(options: dict[str, Any]) -> None:
    with pytest.raises(PipelineError):
        rate_limit(Flaky(0), **options)


@pytest.fixture
def shares() -> Iterator[Callable[[int], None]]:
    """Has this process share all rates with others, for the time of a test."""
    yield share_rates
    share_rates(1)


@pytest.mark.parametrize("rate", [1, 3, 7, 10, 50])
@pytest.mark.parametrize("burst", [1, 2, None])
@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_parts_of_a_rate_are_not_more_than_it(
    shares: Callable[[int], None], rate: int, burst: int | None, processes: int
) -> None:
    shares(processes)
    burst = burst and min(burst, rate)
    one = starts(40, rate=rate, burst=burst)  # those of the others are at the same times
    # where there is no call for each, it is each one's turn more rarely
    most, period = (rate, 1000) if rate >= processes else (processes, 1000 * processes // rate)
    for first in one:
        assert sum(first <= when < first + period for when in one) * processes <= most
    assert one.count(0) <= max((burst or rate) // processes, 1)
    seconds = one[-1] / 1000
    assert (len(one) - 1) * processes <= rate * seconds + max(rate, processes)
    assert len(one) * processes >= (rate - processes) * seconds  # what rounding down costs, and no more


def test_limiters_that_are_there_and_those_that_come_have_their_part(shares: Callable[[int], None]) -> None:
    there = RateLimiter(10)
    shares(5)
    come, shipped = RateLimiter(10), pickle.loads(pickle.dumps(RateLimiter(10)))

    async def taken(limiter: RateLimiter) -> int:
        return sum(limiter.try_acquire(1, 0.0) for _ in range(20))

    assert [run_virtual(taken(limiter)) for limiter in (there, come, shipped)] == [2, 2, 2]
    shares(1)
    assert run_virtual(taken(there)) == 8
    assert run_virtual(taken(RateLimiter(10))) == 10


def test_call_that_is_heavier_than_a_part_waits_until_it_has_come_by_so_much(
    shares: Callable[[int], None],
) -> None:
    shares(4)  # 2 a second
    assert starts(3, rate=8, weight=lambda number: 5.0) == [2000, 5000, 8000]


async def test_call_that_is_heavier_than_the_rate_is_refused_by_a_part_too(
    shares: Callable[[int], None],
) -> None:
    shares(4)
    with pytest.raises(PipelineError, match="never fits a burst of 8"):
        await RateLimiter(8).acquire(9)
