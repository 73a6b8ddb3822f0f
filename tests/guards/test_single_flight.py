"""Single flight, on a virtual clock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from asyncstream.errors import PipelineError
from asyncstream.guards import SingleFlight, single_flight
from tests.guards.services import Flaky, close_the_loop_in_mid_call, now_ms

pytestmark = pytest.mark.usefixtures("virtual_time")


async def test_calls_that_overlap_are_one() -> None:
    service = Flaky(0, takes=1)

    guarded = single_flight(service)
    assert await asyncio.gather(*(guarded(number) for number in (1, 2, 1, 1))) == [1, 2, 1, 1]
    assert guarded.metrics() == {"coalesced": 2}
    await guarded(1)
    assert service.times == [0, 0, 1000]


async def test_calls_are_told_apart_by_their_key() -> None:
    service = Flaky(0, takes=1)

    guarded = single_flight(service, key=lambda flight: flight["tail"])
    await asyncio.gather(*(guarded({"tail": "N1", "number": number}) for number in range(3)))
    assert service.times == [0]


async def test_all_get_the_same_error() -> None:
    service = Flaky(1, takes=1)

    guarded = single_flight(service)
    results = await asyncio.gather(guarded(1), guarded(1), return_exceptions=True)
    assert results[0] is results[1] is service.error


@pytest.mark.parametrize("leaver", [0, 1])
async def test_cancelled_caller_does_not_cancel_the_others(leaver: int) -> None:
    service = Flaky(0, takes=1)

    guarded = single_flight(service)
    callers = [asyncio.create_task(guarded(7)) for _ in range(3)]
    await asyncio.sleep(0.5)
    callers.pop(leaver).cancel()
    assert await asyncio.gather(*callers) == [7, 7]
    assert now_ms() == 1000
    assert service.times == [0]


@pytest.mark.usefixtures("tidy")
async def test_caller_cancelled_as_the_answer_is_handed_out_keeps_nobody_waiting() -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def call(value: int) -> str:
        return await answer

    guarded = single_flight(call)
    leaves, stays = [asyncio.create_task(guarded(7)) for _ in range(2)]
    await asyncio.sleep(1)
    answer.set_result("found")
    await asyncio.sleep(0)  # the call has ended, and nobody has been told
    leaves.cancel()
    async with asyncio.timeout(1):
        assert await stays == "found"
    assert leaves.cancelled()


async def test_timed_out_caller_does_not_end_the_call() -> None:
    service = Flaky(0, takes=1)

    async def impatient(guarded: object) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await guarded(7)  # type: ignore[operator]

    guarded = single_flight(service)
    _, result = await asyncio.gather(impatient(guarded), guarded(7))
    assert result == 7
    assert service.times == [0]


async def test_last_to_leave_ends_the_call_and_sees_it_end() -> None:
    ended = []

    async def slow(value: int) -> None:
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(1)
            ended.append(now_ms())

    guarded = single_flight(slow)
    callers = [asyncio.create_task(guarded(1)) for _ in range(2)]
    await asyncio.sleep(2)
    for caller in callers:
        caller.cancel()
    await asyncio.wait(callers)
    assert ended == [3000]
    assert all(caller.cancelled() for caller in callers)


async def test_close_sees_a_call_end_whose_last_caller_did_not_wait_for_that() -> None:
    ended = []

    async def slow(value: int) -> None:
        try:
            await asyncio.sleep(10)
        finally:
            try:
                await asyncio.sleep(1)
            finally:
                ended.append(now_ms())

    guarded = single_flight(slow)
    caller = asyncio.create_task(guarded(1))
    await asyncio.sleep(2)
    caller.cancel()
    await asyncio.sleep(0.5)
    caller.cancel()  # as who ends a step does each second
    await asyncio.wait([caller])
    assert not ended
    await guarded.close()
    assert ended


async def test_call_after_all_have_left_is_a_new_one() -> None:
    service = Flaky(0, takes=1)

    guarded = single_flight(service)
    caller = asyncio.create_task(guarded(1))
    await asyncio.sleep(0.5)
    caller.cancel()
    await asyncio.wait([caller])
    assert await guarded(1) == 1
    assert service.times == [0, 500]


async def test_cancellation_that_the_function_raises_itself_reaches_all() -> None:
    async def give_up(value: int) -> None:
        await asyncio.sleep(1)
        raise asyncio.CancelledError

    guarded = single_flight(give_up)
    callers = [asyncio.create_task(guarded(1)) for _ in range(2)]
    done, _ = await asyncio.wait(callers, timeout=5)
    assert len(done) == 2


async def test_result_may_be_an_exception() -> None:
    assert await single_flight(Flaky(0))(KeyError) is KeyError
    error = KeyError()
    assert await single_flight(Flaky(0))(error) is error


async def test_close_ends_the_calls_under_way() -> None:
    service = Flaky(0, takes=100)

    guarded = single_flight(service)
    caller = asyncio.create_task(guarded(1))
    await asyncio.sleep(1)
    await guarded.close()
    assert service.running == 0
    await asyncio.wait([caller])


@pytest.mark.parametrize("made", [2, []], ids=["another key", "no key at all"])
async def test_key_that_its_call_changes_keeps_nobody_waiting(made: Any) -> None:
    @dataclass(unsafe_hash=True)
    class Event:
        answer: Any = 1

    async def enrich(event: Event) -> Any:
        await asyncio.sleep(1)
        event.answer = made
        return made

    guarded, event = SingleFlight(enrich), Event()
    async with asyncio.timeout(10):
        assert [*await asyncio.gather(guarded(event), guarded(event))] == [made] * 2
        event.answer = 1  # so that it is the key again under which its call was made
        assert await guarded(event) == made
        assert not guarded._flights
        await guarded.close()


def test_a_call_whose_loop_was_closed_in_the_middle_keeps_nobody_waiting() -> None:
    guarded = single_flight(Flaky(0, takes=100))

    async def again() -> None:
        await guarded(1)

    close_the_loop_in_mid_call(guarded, again)


async def test_element_that_cannot_be_a_key_asks_for_one() -> None:
    with pytest.raises(PipelineError, match="give key="):
        await single_flight(Flaky(0))({})
