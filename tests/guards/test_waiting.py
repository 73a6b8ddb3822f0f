"""Those that wait for leave to begin: in order, and not for longer than they want to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from asyncstream.aside import DiskThread
from asyncstream.guards import Breaker, Budget, SharedLimit, metered, rate_limit, single_flight
from asyncstream.guards.cache_store import CacheStore, Group
from asyncstream.guards.guard import delivery
from asyncstream.guards.shared.rate_limiter import SharedRateLimiter
from asyncstream.guards.waiting import Waiting
from asyncstream.testing.loop import VirtualTimeLoop
from tests.closing_loops import close_amid

pytestmark = pytest.mark.usefixtures("virtual_time")


class Caller:
    """Waits, and tells what it was given."""

    def __init__(self, waiting: Waiting[str, int], need: int) -> None:
        self.given_back: list[str] = []
        self.task = asyncio.create_task(waiting.turn(waiting.join(need), self.given_back.append))


async def test_they_are_let_in_first_come_first_served() -> None:
    waiting: Waiting[str, int] = Waiting()
    callers = [Caller(waiting, need) for need in (3, 0, 5)]
    await asyncio.sleep(0)
    assert waiting.number() == 3
    needs = []
    while (need := waiting.first()) is not None:
        needs.append(need)
        waiting.let_in(f"of {need}")
    assert needs == [3, 0, 5]
    assert [await caller.task for caller in callers] == ["of 3", "of 0", "of 5"]


async def test_who_is_cancelled_leaves_wherever_it_stands() -> None:
    waiting: Waiting[str, int] = Waiting()
    callers = [Caller(waiting, need) for need in range(1000)]
    await asyncio.sleep(0)
    for caller in callers[1:]:
        caller.task.cancel()
    assert waiting.number() == 1
    await asyncio.wait([caller.task for caller in callers[1:]])
    assert len(waiting) < 100
    callers[0].task.cancel()
    assert waiting.first() is None
    await asyncio.wait([callers[0].task])
    assert len(waiting) == 0
    assert not any(caller.given_back for caller in callers)


async def test_what_a_caller_was_given_in_the_pass_in_which_it_is_cancelled_is_taken_back() -> None:
    waiting: Waiting[str, int] = Waiting()
    caller, failing = Caller(waiting, 1), Caller(waiting, 2)
    await asyncio.sleep(0)
    waiting.let_in("leave")
    waiting.fail(OSError("away"))
    caller.task.cancel()
    failing.task.cancel()
    await asyncio.wait([caller.task, failing.task])
    assert caller.task.cancelled()
    assert failing.task.cancelled()
    assert (caller.given_back, failing.given_back) == (["leave"], [])


async def test_who_is_ended_by_any_other_exception_leaves_too() -> None:
    waiting: Waiting[str, int] = Waiting()
    given_back: list[str] = []
    calls = [waiting.turn(waiting.join(need), given_back.append) for need in range(2)]
    for call in calls:
        call.send(None)
    waiting.let_in("of 0")
    for call in calls:
        with pytest.raises(SystemExit):
            call.throw(SystemExit())
    assert given_back == ["of 0"]
    assert waiting.first() is None


async def nothing(value: int) -> int:
    await asyncio.get_running_loop().create_future()
    return value


async def passed(value: int) -> int:
    return value


def by_breaker(folder: Path) -> list[Coroutine[Any, Any, Any]]:
    breaker = Breaker(failures=1)
    breaker.failed(breaker.period, 0, OSError())
    return [breaker.enter()]


def by_store(folder: Path) -> list[Coroutine[Any, Any, Any]]:
    class Slow(CacheStore):
        async def write(self, group: Group) -> list[bool]:
            await asyncio.get_running_loop().create_future()
            return []

    return [Slow(1).lease(b"a" * 16, 1000)]


def by_shared_rate(folder: Path) -> list[Coroutine[Any, Any, Any]]:
    limiter = SharedRateLimiter(1, per=100, scope=SharedLimit(f"sqlite:///{folder}/limits.db"))
    return [limiter.acquire() for _ in range(2)]


@pytest.mark.parametrize(
    "make",
    [
        lambda _: [nothing(1), (waiting := Waiting[str, int]()).turn(waiting.join(1), lambda leave: None)],
        lambda _: [nothing(1), delivery(asyncio.get_running_loop().create_future())],
        lambda _: [(call := metered(nothing, cost=1, budget=Budget(usd=1)))(1), call(2)],
        lambda _: [(call := rate_limit(passed, rate=1, per=100))(1), call(2)],
        lambda _: [(call := single_flight(nothing))(1), call(1)],
        lambda _: [DiskThread().make(Event().wait, lambda made: None)],
        by_breaker,
        by_store,
        by_shared_rate,
    ],
    ids=["turn", "answer", "budget", "rate", "flight", "disk", "breaker", "store", "shared rate"],
)
def test_what_waits_as_its_loop_is_closed_makes_no_noise_when_it_is_collected(
    make: Callable[[Path], list[Coroutine[Any, Any, Any]]], tmp_path: Path
) -> None:
    async def begin() -> tuple[list[Coroutine[Any, Any, Any]], list[asyncio.Task[Any]]]:
        calls = make(tmp_path)
        tasks = [asyncio.ensure_future(call) for call in calls]
        for _ in range(3):
            await asyncio.sleep(0)
        return calls, tasks

    calls, tasks = close_amid(VirtualTimeLoop(), begin())
    noise = list[str]()
    for call in calls:
        try:
            call.close()  # as the collector does
        except RuntimeError as error:
            noise.append(str(error))
    assert not noise
    assert not tasks[-1].done()
