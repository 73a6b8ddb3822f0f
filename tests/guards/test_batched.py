"""Batching, on a virtual clock."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from asyncstream.errors import PipelineError
from asyncstream.guards import Attempt, batched, cached, current_attempt, retry
from asyncstream.operators.call_context import KEEP
from asyncstream.testing.loop import VirtualTimeLoop
from tests.closing_loops import close_amid
from tests.guards.services import close_the_loop_in_mid_call, now_ms

pytestmark = pytest.mark.usefixtures("virtual_time")


class Doubler:
    """Doubles lists of numbers; `calls` tells when it was called, and with what."""

    def __init__(self, takes: float = 0.0) -> None:
        self.takes = takes
        self.calls: list[tuple[int, list[int]]] = []
        self.cancelled = 0

    async def __call__(self, values: list[int]) -> list[int]:
        self.calls.append((now_ms(), values))
        try:
            await asyncio.sleep(self.takes)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return [value * 2 for value in values]


async def test_full_batch_is_sent_at_once_and_the_rest_when_its_time_is_up() -> None:
    service = Doubler()

    async def main() -> list[int]:
        guarded = batched(service, size=3, wait=0.05)
        return await asyncio.gather(*(guarded(number) for number in range(5)))

    assert (await main()) == [0, 2, 4, 6, 8]
    assert service.calls == [(0, [0, 1, 2]), (50, [3, 4])]


async def test_time_runs_from_the_first_element_of_each_batch() -> None:
    service = Doubler()

    guarded = batched(service, size=10, wait=0.1)

    async def later(value: int, delay: float) -> None:
        await asyncio.sleep(delay)
        assert await guarded(value) == value * 2

    await asyncio.gather(later(1, 0), later(2, 0.2), later(3, 0.25))
    assert service.calls == [(100, [1]), (300, [2, 3])]


async def test_batch_of_one_does_not_wait() -> None:
    async def main() -> int:
        await batched(Doubler(), size=1, wait=60)(4)
        return now_ms()

    assert (await main()) == 0


async def test_timer_of_a_batch_that_was_full_does_not_send_the_next() -> None:
    service = Doubler()

    guarded = batched(service, size=2, wait=0.1)
    first = asyncio.gather(guarded(1), guarded(2))
    await asyncio.sleep(0.05)
    await asyncio.gather(first, guarded(3))
    assert service.calls == [(0, [1, 2]), (150, [3])]


async def test_answer_that_is_an_exception_is_raised_for_its_element_alone() -> None:
    async def check(values: list[int]) -> Sequence[int | Exception]:
        return [value if value < 3 else ValueError(value) for value in values]

    async def main() -> list[Any]:
        guarded = batched(check, size=3)
        return await asyncio.gather(*(guarded(number) for number in (1, 3, 2)), return_exceptions=True)

    one, three, two = await main()
    assert (one, two) == (1, 2)
    assert isinstance(three, ValueError)


@pytest.mark.parametrize("answers", [[1], [1, 2, 3], 7, None, "ab", b"ab", {1: 2, 2: 4}, {1, 2}], ids=repr)
async def test_wrong_number_of_answers_fails_the_whole_batch(answers: Any) -> None:
    async def wrong(values: list[int]) -> Any:
        return answers

    async def main() -> list[Any]:
        guarded = batched(wrong, size=2)
        return await asyncio.gather(*(guarded(number) for number in (1, 2)), return_exceptions=True)

    results = await main()
    assert all(
        isinstance(result, TypeError) and "one answer per element" in str(result) for result in results
    )


async def test_function_may_take_its_list_apart() -> None:
    async def takes_apart(values: list[int]) -> list[int]:
        return [values.pop(0) * 2 for _ in range(len(values))]

    guarded = batched(takes_apart, size=3)
    assert await asyncio.gather(*map(guarded, range(3))) == [0, 2, 4]


async def test_error_of_the_function_fails_its_batch_and_not_the_next() -> None:
    async def fail_on_zero(values: list[int]) -> list[float]:
        return [1 / value for value in values]

    async def main() -> list[Any]:
        guarded = batched(fail_on_zero, size=2)
        return await asyncio.gather(*(guarded(number) for number in (0, 1, 2, 4)), return_exceptions=True)

    results = await main()
    assert [type(result) for result in results] == [ZeroDivisionError, ZeroDivisionError, float, float]


class Lazy(Sequence[Any]):
    """Two answers, of which the second is fetched when it is asked for, and cannot be; `claims` so many."""

    def __init__(self, claims: int = 2) -> None:
        self.claims = claims

    def __len__(self) -> int:
        return self.claims

    def __getitem__(self, place: Any) -> Any:
        if place:
            raise (LookupError if self.claims == 2 else IndexError)(place)
        return "first"


@pytest.mark.parametrize(("answers", "error"), [(Lazy(), LookupError), (Lazy(claims=3), TypeError)])
async def test_answers_that_fail_when_they_are_looked_at_fail_the_whole_batch(
    answers: Any, error: type[Exception]
) -> None:
    """That happened where nobody heard of it, and the callers waited for ever."""

    async def call(values: list[int]) -> Any:
        return answers

    guarded = batched(call, size=answers.claims, wait=60)
    async with asyncio.timeout(10):
        calls = (guarded(number) for number in range(answers.claims))
        found = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in found] == [error] * answers.claims


async def test_answers_of_no_class_reach_their_elements() -> None:
    """The callers waited for ever: to look for errors among the answers raised where nobody heard of it."""

    class Unbound:
        @property  # type: ignore[misc]
        def __class__(self) -> type:
            raise RuntimeError("unbound")

    async def call(values: list[int]) -> list[Any]:
        return [Unbound() for _ in values]

    guarded = batched(call, size=2)
    async with asyncio.timeout(10):
        found = await asyncio.gather(guarded(1), guarded(2))
    assert [type(one) for one in found] == [Unbound, Unbound]


async def test_element_cancelled_before_the_batch_is_sent_is_not_in_it() -> None:
    service = Doubler()

    guarded = batched(service, size=10, wait=0.1)
    leaver, other = asyncio.create_task(guarded(1)), asyncio.create_task(guarded(2))
    await asyncio.sleep(0.05)
    leaver.cancel()
    assert await other == 4
    assert service.calls == [(100, [2])]


async def test_batch_that_all_have_left_is_not_sent() -> None:
    service = Doubler()

    guarded = batched(service, size=10, wait=0.1)
    leaver = asyncio.create_task(guarded(1))
    await asyncio.sleep(0.05)
    leaver.cancel()
    await asyncio.sleep(0.01)
    assert await guarded(2) == 4
    assert service.calls == [(160, [2])]


async def test_element_cancelled_while_the_batch_runs_leaves_the_rest() -> None:
    service = Doubler(takes=1)

    guarded = batched(service, size=2)
    leaver, other = asyncio.create_task(guarded(1)), asyncio.create_task(guarded(2))
    await asyncio.sleep(0.5)
    leaver.cancel()
    assert await other == 4
    assert (len(service.calls), service.cancelled) == (1, 0)


async def test_batch_is_cancelled_when_all_have_left_it() -> None:
    service = Doubler(takes=100)

    guarded = batched(service, size=2)
    callers = [asyncio.create_task(guarded(number)) for number in range(2)]
    await asyncio.sleep(0.5)
    for caller in callers:
        caller.cancel()
    await asyncio.wait(callers)
    assert service.cancelled == 1
    assert now_ms() == 500


async def test_close_ends_the_batches_under_way() -> None:
    service = Doubler(takes=100)

    guarded = batched(service, size=1)
    caller = asyncio.create_task(guarded(1))
    await asyncio.sleep(0.5)
    await guarded.close()
    await asyncio.wait([caller])
    assert service.cancelled == 1


async def test_close_sends_no_batch_that_is_still_open() -> None:
    service = Doubler()

    guarded = batched(service, size=10, wait=1)
    caller = asyncio.create_task(guarded(1))
    await asyncio.sleep(0.5)
    await guarded.close()
    await asyncio.wait([caller])
    assert now_ms() == 500
    assert service.calls == []


async def test_batch_has_all_jobs_asked_for_a_checkpoint_whose_elements_are_in_it() -> None:
    asked: list[str] = []
    jobs = [partial(asked.append, name) for name in ("one", "other")]

    async def spent(values: list[int]) -> list[int]:
        for keep in KEEP.get():
            keep()
        return values

    guarded, calls = batched(spent, size=3), []
    for job in (*jobs, jobs[0]):
        KEEP.set(frozenset({job}))
        calls.append(asyncio.ensure_future(guarded(1)))
    await asyncio.gather(*calls)
    assert sorted(asked) == ["one", "other"]


@pytest.mark.usefixtures("others_gone")
def test_a_batch_of_a_loop_that_is_closed_makes_no_noise() -> None:
    async def never(values: list[int]) -> list[int]:
        await asyncio.Event().wait()
        return values

    async def main() -> None:
        await asyncio.wait([asyncio.ensure_future(batched(never, size=1)(1))], timeout=1)

    loop = VirtualTimeLoop()  # which stays until the end
    close_amid(loop, main())
    gc.collect()  # what cannot be raised there, pytest makes an error of


def test_a_batch_whose_loop_was_closed_in_the_middle_keeps_nobody_from_closing() -> None:
    guarded = batched(Doubler(takes=100), size=1)

    async def again() -> None:
        assert await guarded(2) == 4

    close_the_loop_in_mid_call(guarded, again)


async def test_batched_nests_with_guards_of_elements_and_of_batches() -> None:
    service = Doubler()
    failures = [OSError()]

    @retry(wait_jitter=0)
    async def flaky(values: list[int]) -> list[int]:
        if failures:
            raise failures.pop()
        return await service(values)

    guarded = cached(batched(flaky, size=2))
    assert await asyncio.gather(*(guarded(number) for number in (1, 2))) == [2, 4]
    assert await guarded(1) == 2
    assert service.calls == [(100, [1, 2])]


async def test_batch_has_no_key_of_one_of_its_elements_and_is_a_first_attempt() -> None:
    seen: list[Attempt] = []

    async def ask(values: list[int]) -> list[int | Exception]:
        seen.append(current_attempt())
        return [OSError(value) if len(seen) == 1 else value for value in values]

    guarded = retry(batched(ask, size=2), idempotency_key=str, wait_jitter=0)
    assert await asyncio.gather(*map(guarded, (1, 2))) == [1, 2]
    assert seen == [Attempt(), Attempt()]


async def test_decorator_and_counters() -> None:
    @batched(size=2, wait=0.01)
    async def negate(values: list[int]) -> list[int]:
        return [-value for value in values]

    assert await asyncio.gather(*(negate(number) for number in (1, 2, 3))) == [-1, -2, -3]
    assert negate.metrics() == {"batches": 2, "batched": 3}


@pytest.mark.parametrize("options", [{"size": 0}, {"wait": -1}, {"wait": "long"}])
def test_wrong_argument_is_refused_when_built(options: dict[str, Any]) -> None:
    with pytest.raises(PipelineError):
        batched(Doubler(), **options)
