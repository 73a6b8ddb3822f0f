"""Processing-time wake-ups: one timer of the loop; a millisecond is over before its wake-up goes off."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream import ManualClock
from asyncstream.operators.base import Operator
from asyncstream.runtime.aio.wakeups import Wakeups
from tests.runtime.parts import Boom, VirtualClock, boom, run


class Sleeper(Operator):
    """Notes when it is woken: what it is told, and what the loop says."""

    def __init__(self) -> None:
        super().__init__()
        self.woken: list[tuple[int, float]] = []
        self.then: Any = None

    def advance_clock(self, now_ms: int) -> None:
        self.woken.append((now_ms, asyncio.get_running_loop().time()))
        if self.then is not None:
            self.then(now_ms)


def no_failure(error: BaseException) -> None:
    raise AssertionError(error)


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_wakeup_goes_off_when_its_millisecond_has_passed() -> None:
    wakeups, sleeper = Wakeups(VirtualClock(), no_failure), Sleeper()
    wakeups.wake(sleeper, 1000)
    await asyncio.sleep(5)
    assert sleeper.woken == [(1000, 1.001)]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_wakeup_that_is_overdue_goes_off_in_the_next_pass() -> None:
    await asyncio.sleep(5)
    wakeups, sleeper = Wakeups(VirtualClock(), no_failure), Sleeper()
    wakeups.wake(sleeper, 1000)
    assert sleeper.woken == []
    await asyncio.sleep(0.0001)
    assert sleeper.woken == [(4999, 5.0)]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_sooner_request_replaces_a_later_one_and_a_later_one_does_nothing() -> None:
    wakeups, sleeper = Wakeups(VirtualClock(), no_failure), Sleeper()
    for at_ms in (500, 300, 400):
        wakeups.wake(sleeper, at_ms)
    await asyncio.sleep(5)
    assert sleeper.woken == [(300, 0.301)]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_operators_due_together_are_woken_by_one_timer() -> None:
    wakeups, sleepers = Wakeups(VirtualClock(), no_failure), [Sleeper(), Sleeper(), Sleeper()]
    for at_ms, sleeper in zip((200, 100, 200), sleepers, strict=True):
        wakeups.wake(sleeper, at_ms)
    await asyncio.sleep(5)
    assert [sleeper.woken for sleeper in sleepers] == [[(200, 0.201)], [(100, 0.101)], [(200, 0.201)]]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_operator_may_ask_again_while_it_is_woken() -> None:
    wakeups, sleeper = Wakeups(VirtualClock(), no_failure), Sleeper()
    sleeper.then = lambda now_ms: wakeups.wake(sleeper, now_ms + 10) if now_ms < 130 else None
    wakeups.wake(sleeper, 100)
    await asyncio.sleep(5)
    assert [now_ms for now_ms, _ in sleeper.woken] == [100, 110, 120, 130]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_wakeup_waits_for_a_clock_that_lags_behind_the_loop() -> None:
    clock = ManualClock(0)
    wakeups, sleeper = Wakeups(clock, no_failure), Sleeper()
    wakeups.wake(sleeper, 1000)
    await asyncio.sleep(10)
    assert sleeper.woken == []
    clock.set_ms(1001)
    await asyncio.sleep(10)
    assert [now_ms for now_ms, _ in sleeper.woken] == [1000]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_error_of_an_operator_is_reported_once() -> None:
    errors: list[BaseException] = []
    wakeups, sleeper = Wakeups(VirtualClock(), errors.append), Sleeper()
    sleeper.then = boom
    wakeups.wake(sleeper, 100)
    await asyncio.sleep(5)
    assert [type(error) for error in errors] == [Boom]
    assert len(sleeper.woken) == 1


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_cancelled_alarms_wake_nobody() -> None:
    wakeups, sleeper = Wakeups(VirtualClock(), no_failure), Sleeper()
    wakeups.wake(sleeper, 100)
    wakeups.cancel()
    await asyncio.sleep(5)
    assert sleeper.woken == []


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3), st.integers(0, 80)), max_size=20))
def test_nobody_is_woken_early_or_late_or_left_asleep(requests: list[tuple[int, int, int]]) -> None:
    """Requests are (wait ms before asking, who asks, for which millisecond)."""

    async def main() -> None:
        clock = VirtualClock()
        wakeups, sleepers = Wakeups(clock, no_failure), [Sleeper() for _ in range(4)]
        asked: list[list[tuple[int, int]]] = [[], [], [], []]
        for wait, who, at_ms in requests:
            await asyncio.sleep(wait / 1000)
            asked[who].append((clock.now_ms(), at_ms))
            wakeups.wake(sleepers[who], at_ms)
        await asyncio.sleep(1)
        for sleeper, mine in zip(sleepers, asked, strict=True):
            for told_ms, seconds in sleeper.woken:
                assert round(seconds * 1000) == told_ms + 1
                assert any(at_ms <= told_ms for _, at_ms in mine)
            for when_ms, at_ms in mine:
                due_ms = max(at_ms + 1, when_ms)
                assert any(when_ms <= round(seconds * 1000) <= due_ms for _, seconds in sleeper.woken)

    run(main())


def test_clock_may_be_moved_in_the_moment_in_which_the_loop_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()

    async def main() -> tuple[asyncio.AbstractEventLoop, Wakeups]:
        return asyncio.get_running_loop(), Wakeups(clock, no_failure)

    loop, wakeups = asyncio.run(main())
    with monkeypatch.context() as before:
        before.setattr(loop, "is_closed", lambda: False)
        clock.set_ms(1)
    wakeups.cancel()
