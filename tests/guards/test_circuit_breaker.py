"""Circuit breaker, on a virtual clock."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from asyncstream.errors import CircuitOpen, PipelineError
from asyncstream.guards import Breaker, circuit_breaker, retry
from asyncstream.testing.loop import run_virtual
from tests.guards.services import Flaky, now_ms

pytestmark = pytest.mark.usefixtures("virtual_time")


class WrongRequest(Exception):
    retryable = False


def state(breaker: Breaker) -> str:
    return breaker.state.name


async def fail(guarded: Any, times: int) -> None:
    for _ in range(times):
        with pytest.raises(OSError, match="down"):
            await guarded(0)


async def test_opens_after_so_many_failures_in_a_row() -> None:
    guarded = circuit_breaker(Flaky(9), failures=3, failure_ratio=None, when_open="refuse")
    await fail(guarded, 3)
    with pytest.raises(CircuitOpen) as caught:
        await guarded(0)
    assert caught.value.retry_after == 10


async def test_success_breaks_the_row() -> None:
    service = Flaky(2)
    breaker = Breaker(failures=3, failure_ratio=None)
    guarded = circuit_breaker(service, breaker=breaker)
    await fail(guarded, 2)
    await guarded(0)
    service.failures = 2
    await fail(guarded, 2)
    assert state(breaker) == "CLOSED"


async def test_opens_at_the_failure_ratio_of_the_window() -> None:
    service = Flaky(0)
    breaker = Breaker(failure_ratio=0.5, min_calls=4)
    guarded = circuit_breaker(service, breaker=breaker)
    await guarded(0)
    await guarded(0)
    service.failures = 2
    await fail(guarded, 1)
    assert state(breaker) == "CLOSED"
    await fail(guarded, 1)
    assert state(breaker) == "OPEN"


async def test_failures_that_left_the_window_do_not_count() -> None:
    breaker = Breaker(failure_ratio=0.5, min_calls=4, window=10)
    guarded = circuit_breaker(Flaky(9), breaker=breaker)
    await fail(guarded, 3)
    await asyncio.sleep(11)
    await fail(guarded, 3)
    assert state(breaker) == "CLOSED"
    await fail(guarded, 1)
    assert state(breaker) == "OPEN"


def test_calls_wait_while_it_is_open_and_one_of_them_tries_the_service() -> None:
    service = Flaky(1, takes=0.1)

    async def main() -> list[int]:
        guarded = circuit_breaker(service, failures=1, open_for=2)
        await fail(guarded, 1)
        await asyncio.gather(*(guarded(number) for number in range(3)))
        return service.times

    assert run_virtual(main()) == [0, 2100, 2200, 2200]


async def test_probe_that_fails_opens_it_again() -> None:
    service = Flaky(2)

    guarded = circuit_breaker(service, failures=1, open_for=2)
    await fail(guarded, 1)
    probe, other = guarded(1), guarded(2)
    results = await asyncio.gather(probe, other, return_exceptions=True)
    assert [type(result) for result in results] == [OSError, int]
    assert guarded.metrics()["circuit_opened"] == 2
    assert service.times == [0, 2000, 4000]


async def test_log_tells_once_that_it_opens_and_that_it_closes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "asyncstream.guards")
    guarded = circuit_breaker(Flaky(3), failures=2, failure_ratio=None)
    await fail(guarded, 3)  # the third one is a probe
    await guarded(0)
    assert [record.message for record in caplog.records] == [
        "a circuit breaker has opened, and tries the service again in 10 s; the last call: OSError: down",
        "a circuit breaker has closed again",
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_all_probes_must_succeed() -> None:
    service = Flaky(1, takes=0.1)

    breaker = Breaker(failures=1, open_for=1, probes=2)
    guarded = circuit_breaker(service, breaker=breaker)
    await fail(guarded, 1)
    await asyncio.gather(*(guarded(number) for number in range(4)))
    assert state(breaker) == "CLOSED"
    assert service.times == [0, 1100, 1100, 1200, 1200]


async def test_state_is_readable_and_half_open_refuses_all_but_the_probe() -> None:
    service = Flaky(1)
    breaker = Breaker(failures=1, open_for=1)
    guarded = circuit_breaker(service, breaker=breaker, when_open="refuse")
    assert state(breaker) == "CLOSED"
    await fail(guarded, 1)
    assert state(breaker) == "OPEN"
    await asyncio.sleep(1)
    assert state(breaker) == "HALF_OPEN"
    service.takes = 0.5
    probe = asyncio.create_task(guarded(1))
    await asyncio.sleep(0)
    with pytest.raises(CircuitOpen):
        await guarded(2)
    assert await probe == 1
    assert state(breaker) == "CLOSED"
    assert guarded.metrics() == {
        "circuit_state": 0,
        "circuit_opened": 1,
        "circuit_waited": 0,
        "circuit_refused": 1,
        "limited": 0,
    }


def test_cancelled_probe_hands_over_to_the_next() -> None:
    async def main() -> int:
        service = Flaky(1, takes=0.1)
        guarded = circuit_breaker(service, failures=1, open_for=1)
        await fail(guarded, 1)
        service.takes = 10
        probe = asyncio.create_task(guarded(1))
        other = asyncio.create_task(guarded(2))
        await asyncio.sleep(1.5)
        service.takes = 0
        probe.cancel()
        assert await other == 2
        return now_ms()

    assert run_virtual(main()) == 1600


async def test_caller_cancelled_while_it_waits_leaves_the_queue() -> None:
    guarded = circuit_breaker(Flaky(1), failures=1, open_for=1)
    await fail(guarded, 1)
    first = asyncio.create_task(guarded(1))
    second = asyncio.create_task(guarded(2))
    await asyncio.sleep(0.5)
    first.cancel()
    assert await second == 2


async def test_caller_cancelled_when_it_has_just_been_let_in_leaves_the_probe_to_another() -> None:
    breaker = Breaker(failures=1, open_for=1)
    await fail(circuit_breaker(Flaky(1), breaker=breaker), 1)
    caller = asyncio.create_task(breaker.enter())
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(1, caller.cancel)  # after the breaker's own timer
    await asyncio.wait([caller])
    assert breaker.try_enter()


async def test_straggler_from_before_it_opened_does_not_close_it() -> None:
    service = Flaky(0, takes=5)
    breaker = Breaker(failures=1, open_for=100)
    guarded = circuit_breaker(service, breaker=breaker)
    straggler = asyncio.create_task(guarded(1))
    await asyncio.sleep(1)
    service.takes = 0
    service.failures = 1
    await fail(guarded, 1)
    await straggler
    assert state(breaker) == "OPEN"


async def test_answer_to_a_wrong_request_is_no_failure_of_the_service() -> None:
    breaker = Breaker(failures=1)
    guarded = circuit_breaker(Flaky(1, WrongRequest()), breaker=breaker)
    with pytest.raises(WrongRequest):
        await guarded(0)
    assert state(breaker) == "CLOSED"


async def test_answer_to_a_wrong_request_breaks_the_row_and_a_mistake_in_the_code_says_nothing() -> None:
    service = Flaky(2)
    breaker = Breaker(failures=3, failure_ratio=None)
    guarded = circuit_breaker(service, breaker=breaker)
    for error in (WrongRequest(), TypeError()):
        service.failures, service.error = 2, OSError("down")
        await fail(guarded, 2)
        service.failures, service.error = 1, error
        with pytest.raises(type(error)):
            await guarded(0)
    assert state(breaker) == "CLOSED"
    service.failures, service.error = 1, OSError("down")
    await fail(guarded, 1)
    assert state(breaker) == "OPEN"


async def test_what_is_said_to_be_a_failure_is_one_also_if_it_is_a_mistake_in_the_code() -> None:
    breaker = Breaker(failures=1, on=lambda error: isinstance(error, TypeError))
    with pytest.raises(TypeError):
        await circuit_breaker(Flaky(1, TypeError()), breaker=breaker)(0)
    assert state(breaker) == "OPEN"


async def test_retry_outside_waits_for_a_refusing_breaker() -> None:
    service = Flaky(1)

    breaker = circuit_breaker(service, failures=1, open_for=3, when_open="refuse")
    await retry(breaker, wait_jitter=0)(1)
    # refused at 100, and told to come back when the breaker lets a call through
    assert service.times == [0, 3000]


async def test_breaker_is_shared_by_several_functions() -> None:
    breaker = Breaker(failures=1)
    await fail(circuit_breaker(Flaky(1), breaker=breaker), 1)
    with pytest.raises(CircuitOpen):
        await circuit_breaker(Flaky(0), breaker=breaker, when_open="refuse")(1)


def test_breaker_goes_on_in_an_event_loop_after_the_one_in_which_it_opened() -> None:
    service = Flaky(1)
    guarded = circuit_breaker(service, failures=1, open_for=2)

    async def leave_waiting() -> None:
        await asyncio.sleep(100)
        await fail(guarded, 1)
        waiting = asyncio.create_task(guarded(1))
        await asyncio.sleep(1)
        waiting.cancel()

    run_virtual(leave_waiting())
    assert run_virtual(guarded.invoke(2)) == 2
    assert service.times == [100_000, 2000]


def test_failures_of_an_event_loop_before_do_not_count_for_ever() -> None:
    breaker = Breaker(failure_ratio=0.5, min_calls=4)

    async def after(seconds: float, failures: int) -> None:
        await asyncio.sleep(seconds)
        await fail(circuit_breaker(Flaky(failures), breaker=breaker), failures)

    run_virtual(after(1000, 3))
    run_virtual(after(60, 3))
    assert state(breaker) == "CLOSED"
    run_virtual(after(60, 4))
    assert state(breaker) == "OPEN"


@pytest.mark.parametrize(
    "options",
    [
        {"failure_ratio": None},
        {"failure_ratio": 0},
        {"failure_ratio": 1.5},
        {"probes": 0},
        {"when_open": "x"},
    ],
)
def test_wrong_argument_is_refused_when_built(options: dict[str, Any]) -> None:
    with pytest.raises(PipelineError):
        circuit_breaker(Flaky(0), **options)


async def test_one_that_is_sent_elsewhere_begins_there_though_it_is_open_here() -> None:
    breaker = Breaker(failures=2, open_for=10)
    guarded = circuit_breaker(Flaky(9), breaker=breaker)
    async with guarded:
        await fail(guarded, 2)
        waiting = asyncio.create_task(guarded(0))
        await asyncio.sleep(1)
        sent: Breaker = pickle.loads(pickle.dumps(breaker))
        assert (state(breaker), state(sent)) == ("OPEN", "CLOSED")
        waiting.cancel()
        await asyncio.wait({waiting})
    again: Any = pickle.loads(pickle.dumps(guarded))
    await fail(again, 1)
    assert state(again.breaker) == "CLOSED"
    await fail(again, 1)
    assert state(again.breaker) == "OPEN"
