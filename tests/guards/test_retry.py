"""Retry, on a virtual clock: which call is made at which millisecond."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from asyncstream.clock import ManualClock
from asyncstream.errors import CircuitOpen, PipelineError, RetriesExhausted
from asyncstream.guards import Attempt, current_attempt, retry
from asyncstream.testing.loop import run_virtual
from tests.guards.services import Flaky, now_ms

pytestmark = pytest.mark.usefixtures("virtual_time")


class Refused(Exception):
    retryable = False


class Busy(Exception):
    def __init__(self, retry_after: object) -> None:
        self.retry_after = retry_after


async def refuse(value: object) -> object:
    raise OSError


def test_copies_in_other_processes_do_not_wait_in_step() -> None:
    assert len(pickle.dumps(retry(refuse))) < 2_000  # the state of a generator takes more


def schedule(failures: int, error: Exception | None = None, **options: Any) -> tuple[list[int], Any]:
    """When one element is tried by a service that fails so often, and what comes of it."""
    service = Flaky(failures, error or OSError("down"))

    async def main() -> Any:
        try:
            return await retry(service, **options)("x")
        except Exception as caught:
            return caught

    outcome = run_virtual(main())
    return service.times, outcome


def test_backoff_doubles_up_to_its_ceiling() -> None:
    times, outcome = schedule(5, wait_jitter=0, wait_initial=0.1, wait_max=0.5)
    assert times == [0, 100, 300, 700, 1200, 1700]
    assert outcome == "x"


def test_full_jitter_takes_a_part_of_the_backoff() -> None:
    times, _ = schedule(3, random=lambda: 0.25)
    assert times == [0, 25, 75, 175]


def test_added_jitter_stays_within_the_ceiling() -> None:
    times, _ = schedule(3, wait_jitter=0.4, wait_max=0.6, random=lambda: 0.5)
    assert times == [0, 300, 700, 1300]


async def test_two_interleaved_elements_back_off_independently() -> None:
    times: dict[str, list[int]] = {"a": [], "b": []}

    async def fail(value: str) -> None:
        times[value].append(now_ms())
        raise OSError

    guarded = retry(fail, attempts=4, wait_jitter=0)

    async def later(value: str, delay: float) -> None:
        await asyncio.sleep(delay)
        with pytest.raises(RetriesExhausted):
            await guarded(value)

    await asyncio.gather(later("a", 0), later("b", 0.05))
    assert times == {"a": [0, 100, 300, 700], "b": [50, 150, 350, 750]}


def test_gives_up_after_the_last_attempt_with_the_last_error() -> None:
    times, outcome = schedule(9, wait_jitter=0, attempts=3)
    assert times == [0, 100, 300]
    assert isinstance(outcome, RetriesExhausted)
    assert outcome.attempts == 3
    assert isinstance(outcome.__cause__, OSError)


def test_no_attempt_starts_at_or_after_the_total_time() -> None:
    times, outcome = schedule(99, wait_jitter=0, attempts=None, timeout=0.7)
    assert times == [0, 100, 300]
    assert isinstance(outcome, RetriesExhausted)


def test_gives_up_at_once_when_the_next_attempt_would_be_too_late() -> None:
    async def main() -> int:
        with pytest.raises(RetriesExhausted):
            await retry(Flaky(9), timeout=timedelta(seconds=5), wait_initial=10, wait_max=10, wait_jitter=0)(
                1
            )
        return now_ms()

    assert run_virtual(main()) == 0


async def test_cancellation_ends_the_waiting_and_no_attempt_follows() -> None:
    service = Flaky(99)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.25):
            await retry(service, wait_jitter=0)(1)
    await asyncio.sleep(60)
    assert service.times == [0, 100]


def test_only_the_errors_asked_for_are_retried() -> None:
    times, outcome = schedule(1, KeyError("x"), on=OSError)
    assert times == [0]
    assert isinstance(outcome, KeyError)
    assert len(schedule(1, ConnectionResetError(), on=(KeyError, OSError), wait_jitter=0)[0]) == 2


async def test_error_that_ends_the_retries_tells_at_which_attempt() -> None:
    errors = iter([OSError(), Refused()])

    async def fail(value: int) -> None:
        raise next(errors)

    with pytest.raises(Refused) as caught:
        await retry(fail)(1)
    assert getattr(caught.value, "attempts", None) == 2


def test_error_that_calls_itself_final_is_not_retried() -> None:
    times, outcome = schedule(1, Refused())
    assert times == [0]
    assert isinstance(outcome, Refused)


@pytest.mark.parametrize(
    ("answer", "times"),
    [
        (True, [0, 100]),
        (False, [0]),
        (0, [0, 0]),
        (0.04, [0, 40]),
        (1, [0, 1000]),
        (timedelta(seconds=2), [0, 2000]),
    ],
)
def test_predicate_decides_whether_and_when(answer: Any, times: list[int]) -> None:
    assert schedule(1, on=lambda error: answer, wait_jitter=0)[0] == times


def test_refused_result_is_tried_again() -> None:
    results = iter([None, None, 7])

    async def poll(value: int) -> int | None:
        return next(results)

    async def main() -> tuple[Any, int]:
        return await retry(poll, on_result=lambda result: result is None, wait_jitter=0)(1), now_ms()

    assert run_virtual(main()) == (7, 300)


async def test_result_that_is_refused_to_the_end_raises() -> None:
    async def empty(value: int) -> None:
        return None

    with pytest.raises(RetriesExhausted, match="2 attempts") as caught:
        await retry(empty, attempts=2, on_result=lambda result: result is None)(1)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("asked", [3, 3.0, "3", timedelta(seconds=3), "Sun, 06 Nov 1994 08:49:37 GMT"])
def test_retry_after_is_honoured(asked: object) -> None:
    clock = ManualClock(784_111_774_000)  # 08:49:34 of that day
    assert schedule(1, Busy(asked), clock=clock)[0] == [0, 3000]


@pytest.mark.parametrize("date", ["Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"])
def test_obsolete_forms_of_an_http_date_are_understood(date: str) -> None:
    assert schedule(1, Busy(date), clock=ManualClock(784_111_774_000))[0] == [0, 3000]


def test_retry_after_is_honoured_up_to_its_ceiling() -> None:
    assert schedule(1, Busy("86400"), retry_after_max=2, wait_jitter=0)[0] == [0, 2000]


def test_time_that_does_not_suffice_for_another_attempt_is_told() -> None:
    times, outcome = schedule(5, Busy(60), attempts=3, timeout=45)
    assert times == [0]
    late = ", for the next one in 60 s would be past the timeout of 45 s for all"
    assert str(outcome) == f"gave up after 1 attempt{late}: Busy: 60"
    assert outcome.attempts == 1
    _, outcome = schedule(5, Busy(1), attempts=3, timeout=45)
    assert str(outcome) == "gave up after 3 attempts: Busy: 1"


def test_retry_after_does_not_shorten_the_backoff() -> None:
    assert schedule(1, Busy("0"), wait_jitter=0)[0] == [0, 100]


@pytest.mark.parametrize("nonsense", ["soon", "", "nan", "-5", object(), "Sun, 99 Nov 1994 08:49:37 GMT"])
def test_retry_after_that_makes_no_sense_is_ignored(nonsense: object) -> None:
    assert schedule(1, Busy(nonsense), wait_jitter=0)[0] == [0, 100]


def test_retry_after_is_found_in_the_headers_of_a_response() -> None:
    class Response:
        headers = {"retry-after": "4"}  # noqa: RUF012 - as a client has it

    class StatusError(Exception):
        response = Response()

    assert schedule(1, StatusError())[0] == [0, 4000]
    results = iter([Response(), 7])

    async def poll(value: int) -> Any:
        return next(results)

    async def main() -> int:
        await retry(poll, on_result=lambda result: result != 7)(1)
        return now_ms()

    assert run_virtual(main()) == 4000


def test_open_circuit_is_waited_for() -> None:
    assert schedule(1, CircuitOpen(2.5))[0] == [0, 2500]


def attempts_seen(failures: int, **options: Any) -> list[Attempt]:
    seen: list[Attempt] = []

    async def call(value: str) -> str:
        seen.append(current_attempt())
        if len(seen) <= failures:
            raise OSError
        return value

    async def main() -> None:
        await retry(call, **options)("x")
        assert current_attempt() == Attempt()  # nothing stays behind

    run_virtual(main())
    return seen


def test_attempts_are_numbered_from_one() -> None:
    assert attempts_seen(2) == [Attempt(1), Attempt(2), Attempt(3)]


@pytest.mark.parametrize("key", ["k", None])
def test_a_retry_inside_of_another_counts_its_own_attempts_and_keeps_the_key(key: str | None) -> None:
    seen: list[Attempt] = []

    async def ask(value: str) -> str:
        seen.append(current_attempt())
        if len(seen) < 6:
            raise OSError
        return value

    guarded = retry(retry(ask, attempts=2), attempts=3, idempotency_key=lambda value: key)
    run_virtual(guarded("x"))
    assert seen == [Attempt(1, key), Attempt(2, key)] * 3


def test_all_attempts_of_an_element_share_an_idempotency_key() -> None:
    keys = iter("k!")
    seen = attempts_seen(2, idempotency_key=lambda value: value + next(keys))
    assert seen == [Attempt(1, "xk"), Attempt(2, "xk"), Attempt(3, "xk")]


def test_counters_tell_retries_recoveries_and_defeats() -> None:
    async def main() -> dict[str, int]:
        guarded = retry(Flaky(2), attempts=4)
        await guarded(1)
        await guarded(1)
        lost = retry(Flaky(9), attempts=2)
        with pytest.raises(RetriesExhausted):
            await lost(1)
        assert lost.metrics() == {"retries": 1, "recovered": 0, "retries_exhausted": 1}
        return guarded.metrics()

    assert run_virtual(main()) == {"retries": 2, "recovered": 1, "retries_exhausted": 0}


async def test_first_attempt_that_succeeds_does_not_suspend() -> None:
    coroutine = retry(Flaky(0)).invoke(5)

    with pytest.raises(StopIteration) as caught:
        coroutine.send(None)
    assert caught.value.value == 5


@pytest.mark.parametrize(
    "options",
    [
        {"attempts": 0},
        {"attempts": None, "timeout": None},
        {"timeout": -1},
        {"wait_exp_base": 0.5},
        {"wait_jitter": "some"},
        {"wait_initial": 10},
        {"wait_initial": 2, "wait_max": 1},
        {"on": 7},
        {"on": KeyboardInterrupt},
    ],
)
def test_wrong_argument_is_refused_when_built(options: dict[str, Any]) -> None:
    with pytest.raises(PipelineError):
        retry(Flaky(0), **options)


def test_first_wait_by_default_is_at_most_the_longest() -> None:
    times, _ = schedule(3, wait_jitter=0, wait_max=0.05)
    assert times == [0, 50, 100, 150]


def test_plain_function_is_refused() -> None:
    wrong: Callable[[int], Any] = lambda value: value  # noqa: E731
    with pytest.raises(PipelineError, match="async def"):
        retry(wrong)
