"""Adaptive concurrency, on a virtual clock."""

from __future__ import annotations

import asyncio
import copy
import pickle
import weakref
from typing import Any, Literal

import pytest

from asyncstream.errors import HttpError, PipelineError
from asyncstream.guards import AdaptiveLimit, adaptive_concurrency, retry
from asyncstream.testing.loop import run_virtual
from tests.guards.services import Flaky

pytestmark = pytest.mark.usefixtures("virtual_time")


class Server:
    """Answers after 100 ms; with more than `room` calls at once later in proportion, or with 429."""

    def __init__(self, room: int, refuses: bool = False) -> None:
        self.room = room
        self.refuses = refuses
        self.running = 0
        self.most_running = 0
        self.refused = 0

    async def __call__(self, value: int) -> int:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if self.refuses and self.running > self.room:
                self.refused += 1
                raise HttpError("/", 429, "too many", retryable=True)
            await asyncio.sleep(0.1 * max(1, self.running / self.room))
        finally:
            self.running -= 1
        return value


async def load(guarded: Any, workers: int, calls: int) -> None:
    """So many workers make so many calls each, one after the other."""

    async def work() -> None:
        for number in range(calls):
            await guarded(number)

    await asyncio.gather(*(work() for _ in range(workers)))


async def test_limit_grows_by_one_for_each_round_of_good_answers() -> None:
    limit = AdaptiveLimit(least=1, most=50, start=4)
    await load(adaptive_concurrency(Server(1000), limit=limit), workers=50, calls=1)
    # rounds of 4, 5, 6, … calls
    assert limit.limit in range(10, 12)


async def test_limit_stays_between_its_floor_and_its_ceiling() -> None:
    server = Server(1000)
    limit = AdaptiveLimit(least=2, most=6)
    await load(adaptive_concurrency(server, limit=limit), workers=20, calls=20)
    assert limit.limit == server.most_running == 6
    failing = adaptive_concurrency(Flaky(999, HttpError("/", 503, "", retryable=True)), limit=limit)
    for _ in range(20):
        with pytest.raises(HttpError):
            await failing(1)
        await asyncio.sleep(1)
    assert limit.limit == 2


async def test_unused_limit_does_not_grow() -> None:
    limit = AdaptiveLimit(most=100, start=10)
    await load(adaptive_concurrency(Server(1000), limit=limit), workers=2, calls=50)
    assert limit.limit == 10


async def test_many_failures_of_one_round_cut_the_limit_once() -> None:
    service = Flaky(8, HttpError("/", 429, "", retryable=True), takes=0.1)
    limit = AdaptiveLimit(most=100, start=8, decrease=0.5)
    guarded = adaptive_concurrency(service, limit=limit)
    await asyncio.gather(*(guarded(number) for number in range(8)), return_exceptions=True)
    assert (limit.limit, limit.cuts) == (4, 1)


async def test_other_errors_leave_the_limit_alone() -> None:
    limit = AdaptiveLimit(start=8)
    guarded = adaptive_concurrency(Flaky(8, KeyError()), limit=limit)
    await asyncio.gather(*(guarded(number) for number in range(8)), return_exceptions=True)
    assert (limit.limit, limit.cuts) == (8, 0)


async def test_limit_finds_what_a_server_that_refuses_can_take() -> None:
    server = Server(20, refuses=True)
    limit = AdaptiveLimit(most=200)
    guarded = retry(adaptive_concurrency(server, limit=limit), attempts=50, timeout=None)
    await load(guarded, workers=100, calls=50)
    assert 10 <= limit.limit <= 25
    assert server.refused < 500  # of 5,000 calls; a fixed limit of 100 would be refused most


@pytest.mark.parametrize(("method", "latency"), [("aimd", 0.15), ("gradient", None)])
async def test_limit_finds_what_a_server_that_slows_down_can_take(
    method: Literal["aimd", "gradient"], latency: float | None
) -> None:
    server = Server(20)
    limit = AdaptiveLimit(most=200, start=5, method=method, latency=latency)
    await load(adaptive_concurrency(server, limit=limit), workers=200, calls=50)
    assert 15 <= limit.limit <= 60


async def test_call_that_is_cancelled_after_long_is_a_sign_of_overload() -> None:
    limit = AdaptiveLimit(start=8, latency=1, decrease=0.5)
    guarded = adaptive_concurrency(Flaky(0, takes=100), limit=limit)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await guarded(1)
    assert (limit.limit, limit.in_flight) == (4, 0)


async def test_a_retry_does_not_keep_the_limits_that_were_around_it() -> None:
    inside = retry(Flaky(0, HttpError("/", 429, "", retryable=True)), attempts=9)
    known = weakref.ref(adaptive_concurrency(inside))
    assert known() is None
    made = adaptive_concurrency(inside, start=16, decrease=0.5)
    copies: list[Any] = [copy.deepcopy(made), pickle.loads(pickle.dumps(made))]
    for guarded in copies:
        guarded.inner.inner.failures = 2
        await guarded(1)
        assert guarded.limit.limit == 4


async def test_limit_outside_a_retry_sees_each_attempt() -> None:
    service = Flaky(2, HttpError("/", 429, "", retryable=True))
    guarded = adaptive_concurrency(retry(service), start=16, decrease=0.5)
    assert await guarded(1) == 1
    assert guarded.metrics()["concurrency_limit"] == 4


async def test_cancelled_caller_gives_its_place_to_the_next() -> None:
    limit = AdaptiveLimit(least=1, most=1)
    guarded = adaptive_concurrency(Flaky(0, takes=1), limit=limit)
    callers = [asyncio.create_task(guarded(number)) for number in range(3)]
    await asyncio.sleep(0.5)
    callers[1].cancel()
    callers[0].cancel()
    assert await callers[2] == 2
    assert (limit.in_flight, limit.waited) == (0, 2)


async def test_caller_cancelled_when_it_has_just_been_let_in_gives_its_place_back() -> None:
    limit = AdaptiveLimit(least=1, most=1)
    await limit.acquire()
    caller = asyncio.create_task(limit.acquire())
    await asyncio.sleep(0)
    limit.release()
    caller.cancel()
    await asyncio.wait([caller])
    assert limit.in_flight == 0


def test_a_cut_of_an_event_loop_before_does_not_put_off_the_next() -> None:
    limit = AdaptiveLimit(most=100, start=100)

    async def overloaded(at: float) -> None:
        await asyncio.sleep(at)
        limit.overloaded(at, at)

    run_virtual(overloaded(1000))
    run_virtual(overloaded(1))
    assert limit.cuts == 2


async def test_callers_are_let_in_first_come_first_served() -> None:
    order: list[int] = []

    async def note(value: int) -> None:
        order.append(value)
        await asyncio.sleep(1)

    guarded = adaptive_concurrency(note, most=2, start=2)
    await asyncio.gather(*(guarded(number) for number in range(6)))
    assert order == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "options",
    [{"least": 0}, {"least": 5, "most": 4}, {"start": 101}, {"decrease": 1}, {"method": "x"}, {"latency": 0}],
)
def test_wrong_argument_is_refused_when_built(options: dict[str, Any]) -> None:
    with pytest.raises(PipelineError):
        adaptive_concurrency(Flaky(0), **options)
