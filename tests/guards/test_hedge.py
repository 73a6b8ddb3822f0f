"""A second call for those that take long: the tail is cut off, and the extra calls are bounded."""

from __future__ import annotations

import asyncio
import gc
from random import Random
from typing import Any

import pytest

from asyncstream import Pipeline, PipelineError, call_context
from asyncstream.guards import hedge, retry, single_flight

pytestmark = pytest.mark.usefixtures("virtual_time")


class Service:
    """
    Answers after what the script says for each call, or raises it.

    Attributes:
        calls: how many there were.
        cancelled: how many of them were cancelled.
    """

    def __init__(self, *script: tuple[float, Any]) -> None:
        self.script = list(script)
        self.calls = 0
        self.cancelled = 0

    async def __call__(self, value: Any) -> Any:
        seconds, answer = self.script[self.calls]
        self.calls += 1
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_the_tail_of_a_service_with_slow_answers_is_cut_off_for_few_more_calls() -> None:
    chance, calls = Random(3), 0

    async def service(value: int) -> int:
        nonlocal calls
        calls += 1
        await asyncio.sleep(1.0 if chance.random() < 0.02 else chance.uniform(0.01, 0.02))
        return value

    async def p99(function: Any) -> float:
        loop, seconds = asyncio.get_running_loop(), []

        async def timed(value: int) -> None:
            began = loop.time()
            assert await function(value) == value
            seconds.append(loop.time() - began)

        pipeline = Pipeline()
        pipeline.source(range(5000)).async_map(timed, concurrency=20).discard()
        await pipeline.run()
        return sorted(seconds)[-50]

    plain = await p99(service)
    calls = 0
    hedged = hedge(service, after="p95", at_most=0.05)
    cut_off = await p99(hedged)

    assert plain > 3 * cut_off
    assert calls <= 5000 * 1.05
    assert hedged.metrics()["hedged"] == calls - 5000
    assert hedged.metrics()["hedges_won"] > 50


async def test_the_first_answer_counts_and_the_other_call_is_cancelled() -> None:
    service = Service((10, "slow"), (1, "quick"))
    hedged = hedge(service, after=2, at_most=1)

    assert await hedged("x") == "quick"
    assert asyncio.get_running_loop().time() == 3
    await asyncio.sleep(0)
    assert (service.calls, service.cancelled) == (2, 1)

    service = Service((3, "first"), (9, "second"))
    assert await hedge(service, after=2, at_most=1)("x") == "first"
    await asyncio.sleep(0)
    assert service.cancelled == 1


async def test_an_error_is_raised_only_if_no_other_call_answers() -> None:
    hedged = hedge(Service((3, OSError("one")), (5, "answer")), after=1, at_most=1)
    assert await hedged("x") == "answer"

    hedged = hedge(Service((9, OSError("one")), (1, OSError("other"))), after=1, at_most=1)
    with pytest.raises(OSError, match="one"):
        await hedged("x")

    service = Service((0.5, OSError("quick")))
    with pytest.raises(OSError, match="quick"):
        await hedge(service, after=1, at_most=1)("x")
    assert service.calls == 1


async def test_extra_calls_are_bounded_also_when_all_are_slow() -> None:
    service = Service(*[(5, "slow")] * 1000)
    hedged = hedge(service, after=1, at_most=0.1)
    for _ in range(4):
        await asyncio.gather(*(hedged(number) for number in range(50)))
    assert service.calls == 220

    service = Service(*[(0.1, "quick")] * 1000, *[(5, "slow")] * 1000)
    hedged = hedge(service, after=1, at_most=0.1)
    for number in range(1000):
        await hedged(number)
    await asyncio.gather(*(hedged(number) for number in range(100)))
    assert service.calls <= 1000 + 100 + 10 + 10, "what is saved up is little"


async def test_nothing_is_called_twice_before_it_is_known_what_is_slow() -> None:
    service = Service(*[(1, "usual")] * 19, (50, "slow"), (50, "slow"), (1, "second"))
    hedged = hedge(service, at_most=1)
    for number in range(20):
        await hedged(number)
    assert service.calls == 20
    assert asyncio.get_running_loop().time() == 19 + 50
    # the 95th percentile of twenty is the largest of them
    began = asyncio.get_running_loop().time()
    service.script[20:] = [(90, "slow"), (1, "second")]
    assert await hedged("x") == "second"
    assert asyncio.get_running_loop().time() == began + 51


async def test_what_fails_at_once_does_not_make_answers_seem_slow() -> None:
    service = Service((2, "usual"), *[*[(0, OSError("down"))] * 30, (1, "usual")] * 20)
    hedged = hedge(service, at_most=1)
    assert await hedged("x") == "usual"
    for _ in range(20):
        for _ in range(30):
            with pytest.raises(OSError, match="down"):
                await hedged("x")
        assert await hedged("x") == "usual"
    assert hedged.metrics()["hedged"] == 0


async def test_who_is_cancelled_leaves_no_call_behind() -> None:
    service = Service((10, "slow"), (10, "slow"))
    task = asyncio.create_task(hedge(service, after=1, at_most=1).invoke("x"))
    await asyncio.sleep(2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert (service.calls, service.cancelled) == (2, 2)


async def test_who_is_cancelled_waits_until_its_calls_have_ended() -> None:
    ended: list[int] = []

    async def slow_to_end(value: int) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(3)
            ended.append(value)

    task = asyncio.create_task(hedge(slow_to_end, after=1, at_most=1).invoke(7))
    await asyncio.sleep(2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [7, 7]


@pytest.mark.usefixtures("others_gone")
async def test_a_call_that_has_lost_is_cancelled_once_and_the_end_waits_for_it() -> None:
    told: list[dict[str, Any]] = []
    happened: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))

    async def slow_at_first(value: int) -> int:
        is_first = not happened
        happened.append("called")
        try:
            await asyncio.sleep(100 if is_first else 1)
        except asyncio.CancelledError as error:
            await asyncio.sleep(5)  # a transaction is rolled back, say
            happened.append("rolled back")
            raise OSError("the connection is gone") from error  # of which nobody is to hear
        return value

    async with hedge(slow_at_first, after=1, at_most=1) as hedged:
        assert await hedged.invoke(7) == 7
        assert happened == ["called", "called"]
        await asyncio.sleep(10)
        assert happened[2:] == ["rolled back"]
        happened.clear()
        assert await hedged.invoke(8) == 8
        await asyncio.sleep(1)  # while it is rolled back, the end comes
    assert happened[2:] == ["rolled back"]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    gc.collect()
    assert told == []


async def test_both_calls_have_the_same_key() -> None:
    keys: list[str] = []

    async def charge(value: int) -> int:
        keys.append(call_context().idempotency_key)
        await asyncio.sleep(5)
        return value

    pipeline = Pipeline()
    hedged = retry(hedge(charge, after=1, at_most=1))
    pipeline.source([1], name="orders").async_map(hedged, effect=True, name="charge").discard()
    await pipeline.run()

    assert len(keys) == 2
    assert len(set(keys)) == 1


@pytest.mark.parametrize("between", [lambda fn: fn, retry], ids=["nothing", "retry"])
def test_single_flight_inside_which_makes_one_call_of_the_two_is_refused(between: Any) -> None:
    single_flight(hedge(Service(), after=1))
    with pytest.raises(PipelineError, match=r"single_flight inside, got .*; it .* single_flight\(hedge\("):
        hedge(between(single_flight(Service())), after=1)


@pytest.mark.parametrize("after", ["95", "p0", "p100", "px", "", 0, -1])
def test_a_moment_that_never_comes_is_refused(after: Any) -> None:
    with pytest.raises(PipelineError, match="after"):
        hedge(Service(), after=after)


@pytest.mark.parametrize("at_most", [0, 1.5, -1, True, "all"])
def test_a_share_that_is_none_is_refused(at_most: Any) -> None:
    with pytest.raises(PipelineError, match="at_most"):
        hedge(Service(), at_most=at_most)
