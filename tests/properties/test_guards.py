"""Guards in any order, around a service that fails in any way: one outcome each, and no limit exceeded."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream.errors import CircuitOpen, RetriesExhausted
from asyncstream.guards import (
    Guard,
    RateLimiter,
    adaptive_concurrency,
    batched,
    cached,
    circuit_breaker,
    concurrency_limit,
    hedge,
    rate_limit,
    retry,
    single_flight,
)
from asyncstream.operators.functions import AsyncFunction
from asyncstream.testing.loop import run_virtual

Make = Callable[[Any], Guard[Any, Any]]


class Each(AsyncFunction[list[Any], Any]):
    """Takes lists for a function of single elements, so that batching can stand anywhere in a nest."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    async def open(self) -> None:
        if isinstance(self.fn, AsyncFunction):
            await self.fn.open()

    async def invoke(self, value: list[Any]) -> Any:
        return await asyncio.gather(*(self.fn(one) for one in value), return_exceptions=True)

    async def close(self) -> None:
        if isinstance(self.fn, AsyncFunction):
            await self.fn.close()


GUARDS: dict[str, Make] = {
    "retry": lambda fn: retry(fn, attempts=3, wait_initial=0.01, wait_max=0.1),
    "rate_limit": lambda fn: rate_limit(fn, rate=4, per=0.05),
    "waiting breaker": lambda fn: circuit_breaker(fn, failures=3, open_for=0.1, failure_ratio=0.5),
    "refusing breaker": lambda fn: circuit_breaker(fn, failures=2, open_for=0.1, when_open="refuse"),
    "cached": lambda fn: cached(fn, ttl=0.05, stale_for=0.05, size=3),
    "single_flight": single_flight,
    "adaptive": lambda fn: adaptive_concurrency(fn, most=4),
    "limit": lambda fn: concurrency_limit(fn, most=2),
    "hedge": lambda fn: hedge(fn, after=0.03, at_most=1),
    "batched": lambda fn: batched(Each(fn), size=3, wait=0.02),
}


def is_made(nest: list[str]) -> bool:
    """Whether it has no single_flight inside of a hedge, which is refused, as far as guards see inwards."""
    parts = " ".join(nest).split("batched")
    return not any("hedge" in part.partition("single_flight")[2] for part in parts)


nests = st.lists(st.sampled_from(sorted(GUARDS)), min_size=1, max_size=5).filter(is_made)
milliseconds = st.integers(0, 200).map(lambda ms: ms / 1000)


class Scripted:
    """
    Takes and gives what a script says, call by call; then it answers at once. What is cancelled takes a
    moment to end.
    """

    def __init__(self, script: list[tuple[float, bool]]) -> None:
        self.script = iter(script)
        self.running = 0
        self.cancelled = 0
        self.ended_well = 0

    async def __call__(self, value: int) -> tuple[str, int]:
        takes, fails = next(self.script, (0.0, False))
        self.running += 1
        try:
            if takes:
                await asyncio.sleep(takes)
        except asyncio.CancelledError:
            self.cancelled += 1
            await asyncio.sleep(0.01)
            self.ended_well += 1
            raise
        finally:
            self.running -= 1
        if fails:
            raise OSError(value)
        return "answer", value


@settings(max_examples=200, deadline=None)
@given(
    nest=nests,
    script=st.lists(st.tuples(milliseconds, st.booleans()), max_size=30),
    elements=st.lists(
        st.tuples(st.integers(0, 4), milliseconds, st.none() | milliseconds), min_size=1, max_size=12
    ),
)
def test_each_element_has_exactly_one_outcome_in_any_nest(
    nest: list[str],
    script: list[tuple[float, bool]],
    elements: list[tuple[int, float, float | None]],
) -> None:
    """
    The nest is named from the inside out. Elements are (value, when it comes, how long it has before it
    is cancelled).

    Whoever is not cancelled gets his own value's answer, or an error of the service or of a guard; no call is
    cancelled twice; and when all have their outcome and the nest is closed, nothing runs any more.
    """
    service = Scripted(script)
    outcomes: Counter[int] = Counter()

    async def element(guarded: Any, number: int, value: int, comes: float, has: float | None) -> None:
        await asyncio.sleep(comes)
        try:
            async with asyncio.timeout(has):
                assert await guarded(value) == ("answer", value)
        except TimeoutError:
            assert has is not None
        except (OSError, RetriesExhausted, CircuitOpen):
            pass
        outcomes[number] += 1

    async def main() -> None:
        guarded: Any = service
        for name in nest:
            guarded = GUARDS[name](guarded)
        async with guarded, asyncio.timeout(3600):
            await asyncio.gather(
                *(element(guarded, number, *one) for number, one in enumerate(elements)),
            )
            await asyncio.sleep(1)  # of who has lost, and what is renewed
            assert service.ended_well == service.cancelled
        await asyncio.sleep(0)
        assert service.running == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())
    assert outcomes == Counter(range(len(elements)))


@settings(max_examples=200, deadline=None)
@given(
    rate=st.integers(1, 6),
    burst=st.integers(1, 6),
    per_ms=st.integers(1, 300),
    calls=st.lists(
        st.tuples(st.integers(0, 500), st.integers(0, 6), st.none() | st.integers(0, 300)), max_size=40
    ),
)
def test_rate_is_exceeded_in_no_window_and_nobody_is_overtaken(
    rate: int, burst: int, per_ms: int, calls: list[tuple[int, int, int | None]]
) -> None:
    """Calls are (when, weight, patience), in milliseconds."""
    burst = min(rate, burst)
    per = per_ms / 1000
    started: list[tuple[float, float, int]] = []
    came: list[int] = []

    async def call(limiter: RateLimiter, number: int, when: int, weight: int, patience: int | None) -> None:
        await asyncio.sleep(when / 1000)
        came.append(number)
        try:
            async with asyncio.timeout(None if patience is None else patience / 1000):
                await limiter.acquire(weight)
        except TimeoutError:
            return
        started.append((asyncio.get_running_loop().time(), weight, number))

    async def main() -> None:
        limiter = RateLimiter(rate, per=per, burst=burst)
        await asyncio.gather(
            *(
                call(limiter, number, when, min(weight, burst), patience)
                for number, (when, weight, patience) in enumerate(calls)
            )
        )

    run_virtual(main())
    for first, (begin, _, _) in enumerate(started):
        window = [weight for when, weight, _ in started[first:] if when < begin + per - 1e-6]
        assert sum(window) <= rate
        at_once = [weight for when, weight, _ in started[first:] if when - begin < 1e-6]
        assert sum(at_once) <= burst
    # who is let in begins in the next pass of the loop, so at one and the same time any order goes
    order = {number: place for place, number in enumerate(came)}
    in_order = sorted((round(when, 6), order[number]) for when, _, number in started)
    assert [place for _, place in in_order] == sorted(place for _, place in in_order)


@settings(max_examples=100, deadline=None)
@given(
    rate=st.integers(1, 5),
    pauses=st.lists(st.integers(0, 400), min_size=1, max_size=40),
)
def test_rate_limit_makes_nobody_wait_longer_than_it_must(rate: int, pauses: list[int]) -> None:
    """A call starts when it comes, or one period after the call that is `rate` before it."""
    starts: list[float] = []

    async def main() -> None:
        limiter = RateLimiter(rate)

        async def call() -> None:
            await limiter.acquire()
            starts.append(asyncio.get_running_loop().time())

        calls = []
        for pause in pauses:
            await asyncio.sleep(pause / 1000)
            calls.append(asyncio.create_task(call()))
        await asyncio.gather(*calls)

    run_virtual(main())
    expected: list[float] = []
    now = 0.0
    for number, pause in enumerate(pauses):
        now += pause / 1000
        start = now
        if number >= rate:
            start = max(start, expected[number - rate] + 1)
        expected.append(max([start, *expected[-1:]]))
    assert [round(start, 6) for start in starts] == [round(start, 6) for start in expected]


@settings(max_examples=100, deadline=None)
@given(failures=st.lists(st.integers(0, 5), min_size=1, max_size=6), gaps=st.integers(0, 300))
def test_elements_that_interleave_back_off_independently(failures: list[int], gaps: int) -> None:
    """Each element is tried at the times it would be tried at if it were alone."""
    times: dict[int, list[int]] = {number: [] for number in range(len(failures))}

    async def service(number: int) -> None:
        times[number].append(round(asyncio.get_running_loop().time() * 1000))
        if len(times[number]) <= failures[number]:
            raise OSError

    async def main() -> None:
        guarded = retry(service, wait_jitter=0)

        async def element(number: int) -> None:
            await asyncio.sleep(number * gaps / 1000)
            await guarded(number)

        await asyncio.gather(*map(element, times))

    run_virtual(main())
    alone = [0, 100, 300, 700, 1500, 3100]
    for number, tried in times.items():
        assert tried == [number * gaps + when for when in alone[: failures[number] + 1]]


@settings(max_examples=100, deadline=None)
@given(
    most=st.integers(1, 5),
    script=st.lists(st.tuples(milliseconds, st.booleans()), max_size=40),
    patience=st.lists(st.none() | milliseconds, max_size=40),
)
def test_adaptive_limit_is_never_exceeded(
    most: int, script: list[tuple[float, bool]], patience: list[float | None]
) -> None:
    service = Scripted(script)
    most_running = 0

    async def watched(value: int) -> Any:
        nonlocal most_running
        most_running = max(most_running, service.running + 1)
        return await service(value)

    async def main() -> None:
        guarded = adaptive_concurrency(watched, most=most)

        async def element(number: int, has: float | None) -> None:
            try:
                async with asyncio.timeout(has):
                    await guarded(number)
            except OSError:  # a TimeoutError is one
                pass

        await asyncio.gather(*(element(*one) for one in enumerate(patience)))
        assert guarded.metrics()["concurrency_limit"] <= most

    run_virtual(main())
    assert most_running <= most
