"""Those that wait for leave to begin: in order, and not for longer than they want to."""

from __future__ import annotations

import asyncio

import pytest

from asyncstream.guards.waiting import Waiting

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
