"""A plain function that blocks, called in threads: how many, what they see, and what a cancellation does."""

from __future__ import annotations

import asyncio
import math
import pickle
import threading
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from asyncstream.errors import PipelineError
from asyncstream.guards import InThreads, cached, current_attempt, in_threads, retry, single_flight

PATIENCE = 60
"""Seconds until a test that hangs is given up."""


class Held:
    """A function that blocks until it is let go, and counts who is inside."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.released = threading.Event()
        self.inside = self.most = self.done = 0
        self.entered = threading.Semaphore(0)

    def __call__(self, value: int) -> int:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.entered.release()
        assert self.released.wait(PATIENCE)
        with self.lock:
            self.inside -= 1
            self.done += 1
        return value * 2

    async def until_inside(self, number: int) -> None:
        for _ in range(number):
            assert await asyncio.to_thread(self.entered.acquire, True, PATIENCE)


async def test_calls_run_in_threads_at_once_and_no_more_than_asked_for() -> None:
    together = threading.Barrier(4, timeout=PATIENCE)
    held = Held()

    def meet(value: int) -> int:
        together.wait()
        return value

    async with in_threads(meet, threads=4) as call:
        assert await asyncio.gather(*map(call, range(8))) == list(range(8))
    async with in_threads(held, threads=3) as call:
        calls = [asyncio.create_task(call(number)) for number in range(9)]
        await held.until_inside(3)
        held.released.set()
        assert await asyncio.gather(*calls) == list(range(0, 18, 2))
    assert held.most == 3


async def test_limiter_is_shared() -> None:
    held = Held()

    limiter = anyio.CapacityLimiter(2)
    first, second = in_threads(held, threads=limiter), in_threads(held, threads=limiter)
    assert (first.threads, second.threads) == (2, 2)
    calls = [asyncio.create_task(call(1)) for call in (first, second, first, second)]
    await held.until_inside(2)
    assert (limiter.borrowed_tokens, held.inside) == (2, 2)
    held.released.set()
    await asyncio.gather(*calls)
    assert (limiter.borrowed_tokens, held.most) == (0, 2)


async def test_cancelled_call_keeps_its_thread_until_the_function_returns() -> None:
    held = Held()

    call = in_threads(held, threads=1)
    first, second, third = (asyncio.create_task(call(number)) for number in range(3))
    await held.until_inside(1)
    first.cancel()
    second.cancel()  # it waits for its thread, and is never called
    await asyncio.wait({second}, timeout=PATIENCE)
    assert second.cancelled()
    first.cancel()
    await asyncio.sleep(0)
    assert not first.done()
    held.released.set()
    assert await third == 4
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (held.done, held.most) == (2, 1)


async def test_function_may_ask_whether_it_is_still_wanted() -> None:
    entered, go_on, seen = threading.Event(), threading.Event(), []

    def looks(value: int) -> None:
        anyio.from_thread.check_cancelled()
        entered.set()
        assert go_on.wait(PATIENCE)
        try:
            anyio.from_thread.check_cancelled()
        except BaseException as error:
            seen.append(type(error))
            raise

    task = asyncio.create_task(in_threads(looks, threads=1)(1))
    assert await asyncio.to_thread(entered.wait, PATIENCE)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [asyncio.CancelledError]


async def test_thread_sees_context_variables_and_reaches_the_loop() -> None:
    variable: ContextVar[str] = ContextVar("variable")

    async def in_the_loop(value: int) -> tuple[int, bool]:
        return value, threading.current_thread() is threading.main_thread()

    def call(value: int) -> object:
        assert threading.current_thread() is not threading.main_thread()
        return variable.get(), anyio.from_thread.run(in_the_loop, value)

    variable.set("mine")
    assert await in_threads(call)(7) == ("mine", (7, True))


async def test_guards_go_around_it() -> None:
    tries: list[int] = []

    def fails_twice(value: int) -> str:
        tries.append(current_attempt().number)
        if len(tries) < 3:
            raise ConnectionError("gone")
        return f"answer {value}"

    ask = cached(single_flight(retry(in_threads(fails_twice, threads=2), wait_initial=0.0)), ttl=60)
    async with ask:
        assert {await ask(1), await ask(1)} == {"answer 1"}
    assert tries == [1, 2, 3]


@pytest.mark.parametrize("error", [ValueError("bad"), asyncio.CancelledError(), TimeoutError()])
async def test_error_of_the_function_is_that_of_the_call(error: BaseException) -> None:
    def fails(value: int) -> None:
        raise error

    with pytest.raises(type(error)):
        await in_threads(fails, threads=1)(1)


async def test_stop_iteration_is_an_error_like_any_other() -> None:
    def ends(values: list[int]) -> int:
        return next(iter(values))

    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_threads(ends, threads=1)([])


async def test_serves_one_event_loop_after_the_other_and_another_process() -> None:
    call: InThreads[str, int] = in_threads(int, threads=1)
    for number in range(2):
        assert (await call(str(number))) == number
    sent = pickle.loads(pickle.dumps(in_threads(abs, threads=3)))
    assert isinstance(sent, InThreads)
    assert (await sent.invoke(-2)) == 2
    assert sent.threads == 3


async def test_end_of_the_event_loop_waits_for_no_thread() -> None:
    held = Held()

    task = asyncio.create_task(in_threads(held, threads=1)(1))
    await held.until_inside(1)
    assert not task.done()  # and it is left running
    assert held.done == 0
    held.released.set()


async def gives_later(value: int) -> int:
    return value


async def yields_later(value: int) -> AsyncIterator[int]:
    yield value


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: in_threads(gives_later), "fn: expected a plain function"),
        (lambda: in_threads(yields_later), "fn: expected a plain function"),
        (lambda: in_threads(7), "fn: expected a function, got 7"),  # type: ignore[arg-type]
        (lambda: in_threads(abs, threads=0), "threads: expected an integer of at least 1, got 0"),
        (lambda: in_threads(abs, threads=True), "threads: expected an integer"),
        (lambda: in_threads(abs, threads=2.5), "threads: expected an integer"),  # type: ignore[arg-type]
        (lambda: in_threads(abs, threads=anyio.CapacityLimiter(math.inf)), "a finite number of tokens"),
    ],
)
def test_what_is_no_such_function_or_number_is_refused(make: Any, text: str) -> None:
    with pytest.raises(PipelineError, match=text):
        make()


async def test_coroutine_that_comes_out_is_refused() -> None:
    def calls(value: int) -> object:
        return gives_later(value)

    with pytest.raises(TypeError, match="without in_threads"):
        await in_threads(calls, threads=1)(1)
