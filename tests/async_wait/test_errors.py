"""What becomes of an element whose call does not end well: something defined, and never nothing."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncstream.elements import Watermark
from asyncstream.errors import UserFunctionError
from asyncstream.guards.in_threads import InThreads
from asyncstream.operators.functions import AsyncFunction, FailedCall
from asyncstream.testing.loop import VirtualTimeLoop, run_virtual
from tests.async_wait.rig import Rig, Service, passes
from tests.naming import shown

pytestmark = pytest.mark.usefixtures("virtual_time")


class Odd(BaseException):
    """Not an Exception."""


class Awkward(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class NoText(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]


class Equal(Exception):
    """Says it is everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


ERRORS: list[BaseException] = [
    LookupError("none"),
    asyncio.CancelledError(),
    asyncio.CancelledError("with a text"),
    TimeoutError(),
    asyncio.InvalidStateError(),
    StopAsyncIteration(),
    GeneratorExit(),
    Odd("odd"),
    Awkward(),
    NoText(),
    Equal(),
    ExceptionGroup("several", [ValueError(1), LookupError(2)]),
    BaseExceptionGroup("odd ones", [Odd()]),
    RecursionError(),
    MemoryError(),
]
WHEN = ["before it suspends", "after it has suspended"]


def failing(error: BaseException, when: str) -> Any:
    async def call(value: int) -> int:
        if when == WHEN[1]:
            await asyncio.sleep(value % 3)
        if value % 2:
            raise error
        return value

    return call


@pytest.mark.parametrize("isolation", ["pool", "task"])
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_whatever_a_call_raises_is_its_elements_error(
    error: BaseException, when: str, isolation: str
) -> None:
    options: dict[str, Any] = {"concurrency": 3, "isolation": isolation}
    async with Rig(failing(error, when), on_error="skip", **options) as rig:
        rig.feed(*range(10))
        assert await rig.finish() == [0, 2, 4, 6, 8]
        assert (rig.counts["failed"], rig.counts["skipped"], rig.errors) == (5, 5, [])

    async with Rig(failing(error, when), on_error="route", **options) as rig:
        rig.feed(*((value, value) for value in range(10)))
        assert await rig.finish() == [0, 2, 4, 6, 8]
        routed = rig.failed.records[:-1]
        assert sorted(call.value for call, _ in routed) == [1, 3, 5, 7, 9]
        assert all(call.timestamp == timestamp == call.value for call, timestamp in routed)
        assert all(type(call.error) is type(error) for call, _ in routed)
        assert rig.counts["failed"] == 5

    async with Rig(failing(error, when), **options) as rig:
        rig.feed(*range(10))
        await asyncio.sleep(10)
        (failure,) = rig.errors
        assert isinstance(failure, UserFunctionError)
        assert failure.step == "enrich"
        assert failure.element in {1, 3}, "3 is the first to end if they suspend"
        assert type(failure.__cause__) is type(error)
        assert "enrich" in str(failure)
    async with Rig(Service.echo, state=rig.operator.snapshot()) as after:
        assert rig.log.values + await after.finish() == list(range(10)), "not one is lost"


@pytest.mark.usefixtures("others_gone")
@pytest.mark.parametrize("isolation", ["pool", "task"])
@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time", "per_key"])
async def test_an_exit_that_a_call_meets_in_a_task_is_its_elements_error(isolation: str, order: str) -> None:
    """The loop throws it into the worker, which closes every coroutine that waits for the call."""

    async def leave() -> None:
        raise GeneratorExit

    running = 0

    async def call(value: int) -> int:
        nonlocal running
        running += 1
        assert running <= 2
        try:
            await (asyncio.create_task(leave()) if value % 3 == 1 else asyncio.sleep(value % 3))
        finally:
            running -= 1
        return value

    options: dict[str, Any] = {"order": order, "concurrency": 2, "isolation": isolation}
    key_by = (lambda value: value % 2) if order == "per_key" else None
    async with Rig(call, on_error="skip", key_by=key_by, **options) as rig:
        rig.feed(*range(12))
        assert sorted(await rig.finish()) == [0, 2, 3, 5, 6, 8, 9, 11]
        assert (rig.counts["failed"], rig.counts["skipped"], rig.errors) == (4, 4, [])
    gc.collect()  # a coroutine that goes on when it is closed is an error there


async def test_stop_iteration_becomes_the_runtime_error_that_python_makes_of_it() -> None:
    async with Rig(failing(StopIteration(), WHEN[1]), on_error="route") as rig:
        rig.feed(1)
        assert await rig.finish() == []
        assert isinstance(rig.failed.values[0].error, RuntimeError)


@pytest.mark.parametrize("isolation", ["pool", "task"])
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_being_asked_to_stop_the_process_is_no_error_of_an_element(
    error: type[BaseException], when: str, isolation: str
) -> None:
    rig = Rig(failing(error(), when), on_error="skip", isolation=isolation)
    reached_the_end = []

    async def main() -> None:
        async with rig:
            rig.feed(*range(4))
            await asyncio.sleep(10)
            reached_the_end.append(True)

    with pytest.raises(error):
        run_virtual(main())
    assert not reached_the_end
    if isolation == "pool":  # else the loop's end, which cancels every task there is, may come to it first
        assert rig.counts["skipped"] == 0
        assert ["call", 1, None] in rig.operator.snapshot()


async def test_exception_with_an_element_that_cannot_be_shown() -> None:
    class Element:
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    async def call(value: Element) -> None:
        raise Awkward

    async with Rig(call) as rig:
        element = Element()
        await rig.put(element)
        (failure,) = rig.errors
        assert isinstance(failure, UserFunctionError)
        assert failure.element is element
        assert "Element" in str(failure)
        assert "Awkward" in str(failure)


async def test_routed_error_that_refuses_to_be_asked_loses_nothing() -> None:
    class Closed(Exception):
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    async def call(value: int) -> int:
        if value == 1:
            raise Closed
        return value

    async with Rig(call, on_error="route") as rig:
        rig.feed(0, 1, 2)
        assert await rig.finish() == [0, 2]
        assert [failed.value for failed in rig.failed.values[:-1]] == [1]


async def test_attempts_that_a_retry_has_counted_are_told() -> None:
    async def call(value: int) -> None:
        error = OSError("down")
        error.attempts = 3  # type: ignore[attr-defined]
        raise error

    async with Rig(call, on_error="route") as rig:
        rig.feed(("x", 5))
        await rig.finish()
        (call_, _) = rig.failed.records[0]
        assert isinstance(call_, FailedCall)
        assert (call_.value, call_.attempts, call_.timestamp) == ("x", 3, 5)


async def test_routed_call_tells_when_it_began_and_when_it_was_given_up() -> None:
    async def call(value: float) -> None:
        await asyncio.sleep(value)
        raise OSError("down")

    async with Rig(call, concurrency=1, on_error="route") as rig:
        rig.feed(2.0, 3.0)
        await rig.finish()
        spans = [failed.last_ms - failed.first_ms for failed in rig.failed.values[:-1]]
        assert spans == [2000, 3000]


@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time"])
async def test_failed_element_blocks_nobody(order: str) -> None:
    """FLINK-6435."""

    service = Service()
    async with Rig(service, order=order, on_error="skip") as rig:
        await rig.put(1, Watermark(1), 2, Watermark(2))
        await service.answer(2)
        await service.answer_with(1, LookupError())
        assert [value for value in rig.log.values if value != 20] == [Watermark(1), Watermark(2)]
        assert 20 in rig.log.values
        assert rig.counts["held"] == 0


async def test_first_failure_fails_the_job_and_only_the_first() -> None:
    service = Service()
    async with Rig(service) as rig:
        await rig.put(*range(5))
        await service.answer_with(3, LookupError("three"))
        await service.answer_with(1, LookupError("one"))
        await service.answer(2)
        (failure,) = rig.errors
        assert isinstance(failure, UserFunctionError)
        assert failure.element == 3
        assert rig.log.values == []


async def test_nothing_is_called_after_the_job_has_failed() -> None:
    service = Service()
    async with Rig(service, concurrency=2) as rig:
        await rig.put(*range(10))
        await service.answer_with(0, LookupError())
        await service.answer(1)
        await passes(30)
        assert service.called == [0, 1]
        assert [entry[:2] for entry in rig.operator.snapshot()] == [
            ["call", 0],
            ["finished", 1],
            *(["call", value] for value in range(2, 10)),
        ]


# -------------------------------------------------------------------- results


@pytest.mark.parametrize("result", ["text", b"bytes", {"a": 1}, None, 5, object()], ids=shown)
async def test_flat_map_refuses_what_is_no_iterable_of_results(result: Any) -> None:
    """PyFlink emits a text letter by letter."""

    async def call(value: int) -> Any:
        return result if value == 1 else [value]

    async with Rig(call, flat=True) as rig:
        await rig.put(0, 1, 2)
        (failure,) = rig.errors
        assert isinstance(failure, UserFunctionError)
        assert failure.element == 1
        assert isinstance(failure.__cause__, TypeError)
    async with Rig(call, flat=True, on_error="skip") as rig:
        rig.feed(0, 1, 2)
        assert await rig.finish() == [0, 2]


async def test_flat_map_whose_iterable_fails_half_way_is_an_error_and_emits_nothing_of_it() -> None:
    def half() -> Any:
        yield 1
        raise LookupError("half way")

    async def call(value: int) -> Any:
        return half() if value == 1 else [value]

    async with Rig(call, flat=True, on_error="route") as rig:
        rig.feed(0, 1, 2)
        assert await rig.finish() == [0, 2]
        assert isinstance(rig.failed.values[0].error, LookupError)


@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time"])
async def test_any_result_is_one_result_in_a_map(order: str) -> None:
    """Also those that compare strangely, and exceptions that are returned rather than raised."""

    class Strange:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("not comparable")

        __hash__ = None  # type: ignore[assignment]

        def __bool__(self) -> bool:
            raise RuntimeError("neither true nor false")

    results: list[Any] = [None, "text", [], [1, 2], {}, (), Strange(), LookupError("returned"), Ellipsis]

    async def call(number: int) -> Any:
        if number % 2:
            await asyncio.sleep(1)
        return results[number]

    async with Rig(call, order=order) as rig:
        rig.feed(*range(len(results)))
        found = await rig.finish()
        assert {id(result) for result in found} == {id(result) for result in results}
        assert len(found) == len(results)


async def test_call_that_returns_a_coroutine_that_nobody_awaits_fails_the_job_behind_those_before_it() -> (
    None
):
    async def inner() -> int:
        return 1

    async def call(value: int) -> Any:
        return inner() if value == 2 else value

    async with Rig(call) as rig:
        rig.feed(0, 1, 2, 3)
        assert await rig.finish() == [0, 1]
        (error,) = rig.errors
        assert isinstance(error, UserFunctionError)
        assert "an async function must return its result, got <coroutine" in str(error)


async def test_flat_call_that_returns_an_async_generator_is_told_what_to_return() -> None:
    """The error spoke of a plain function, and said to use what the step was already."""

    async def inner() -> AsyncIterator[int]:
        yield 1

    async def call(value: int) -> Any:
        return inner()

    async with Rig(call, flat=True) as rig:
        rig.feed(0)
        assert await rig.finish() == []
        (error,) = rig.errors
        assert "a flat map must return its result, got <async_generator" in str(error)
        assert "belongs in an async_flat_map, which returns a list" in str(error)


@pytest.mark.parametrize("on_error", ["skip", "route"])
@pytest.mark.parametrize("suspends", [False, True])
async def test_flat_call_that_returns_a_coroutine_ends_the_job_whatever_becomes_of_errors(
    on_error: str, suspends: bool
) -> None:
    """It was taken for an error of its element, and so were all of them."""

    async def call(value: int) -> Any:
        if suspends:
            await asyncio.sleep(1)
        return call(value)

    async with Rig(call, flat=True, on_error=on_error) as rig:
        rig.feed(0, 1)
        assert await rig.finish() == []
        (error,) = rig.errors
        assert isinstance(error, UserFunctionError)
        assert "must return its result, got <coroutine" in str(error)
        assert (rig.counts["skipped"], rig.failed.records) == (0, [])


async def test_function_in_a_thread_that_returns_a_coroutine_ends_the_job() -> None:
    async def inner(value: int) -> int:
        return value

    call: AsyncFunction[int, Any] = InThreads(lambda value: inner(value))
    async with Rig(call, on_error="skip") as rig:
        rig.feed(0, 1)
        assert await rig.finish() == []
        (error,) = rig.errors
        assert "must return its result, got <coroutine" in str(error)
        assert rig.counts["skipped"] == 0


async def test_elements_of_any_kind_are_elements() -> None:
    async def call(value: Any) -> Any:
        return value

    elements: list[Any] = [None, (), (1, 2, 3), Watermark, "x", frozenset(), {}, []]

    async with Rig(call) as rig:
        rig.operator.process_batch(elements, None)
        assert await rig.finish() == elements


# -------------------------------------------------------------------- how a call may end


@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time", "per_key"])
async def test_async_def_that_never_suspends_lets_others_have_their_turn(order: str) -> None:
    async def call(value: int) -> int:
        return value

    key_by = (lambda value: value) if order == "per_key" else None
    async with Rig(call, concurrency=4, order=order, key_by=key_by) as rig:
        rig.operator.process_batch(range(100_000), None)
        before = rig.counts["waiting"]
        turns = 0
        while rig.counts["waiting"]:
            await asyncio.sleep(0)
            turns += 1
        assert before == 100_000
        assert turns > 100_000 / (4 * 16) / 2, "no more than the buffer at a time"
        assert await rig.finish() == list(range(100_000))


async def test_call_that_never_returns_holds_its_place_and_nothing_else() -> None:
    async def call(value: int) -> int:
        if value == 0:
            await asyncio.Event().wait()
        return value

    async with Rig(call, concurrency=2, order="unordered") as rig:
        await rig.put(*range(100))
        assert rig.log.values == list(range(1, 100))
        assert (rig.counts["running"], rig.counts["held"]) == (1, 1)
        snapshot = rig.operator.snapshot()
        assert snapshot == [["call", 0, None]]


async def test_call_that_returns_although_it_was_cancelled_has_returned() -> None:
    """It took back a cancellation of its own making."""

    async def call(value: int) -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            pass
        return value

    async with Rig(call, concurrency=2) as rig:
        rig.feed(*range(10))
        assert await rig.finish() == list(range(10))
        assert rig.counts["failed"] == 0


# -------------------------------------------------------------------- stopping


@pytest.mark.parametrize("isolation", ["pool", "task"])
@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time", "per_key"])
async def test_stop_cancels_running_calls_and_waits_for_them(order: str, isolation: str) -> None:
    ended = []

    async def call(value: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.5)
            ended.append(value)

    key_by = (lambda value: value) if order == "per_key" else None
    async with Rig(call, concurrency=3, order=order, key_by=key_by, isolation=isolation) as rig:
        await rig.put(*range(5))
    assert sorted(ended) == [0, 1, 2]
    assert rig.counts["running"] == 0
    assert not rig.errors
    assert [entry[:2] for entry in rig.operator.snapshot()] == [["call", value] for value in range(5)]
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time", "per_key"])
async def test_stop_cancels_no_worker_that_has_nothing_to_do(order: str) -> None:
    """It ends by itself: to be cancelled takes twice the time, which short jobs of many workers feel."""
    service = Service()
    async with Rig(service, concurrency=3, order=order, key_by=hash if order == "per_key" else None) as rig:
        await rig.put(1, 2, 3)
        await service.answer(1, 2)
        workers = asyncio.all_tasks() - {asyncio.current_task()}
    assert sorted(worker.cancelled() for worker in workers) == [False, False, True]
    assert service.cancelled == [3]
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("order", ["ordered", "per_key"])
async def test_stop_gives_up_on_a_call_that_ignores_every_cancellation_and_names_its_element(
    order: str,
) -> None:
    over = asyncio.Event()

    async def call(value: int) -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                pass

    key_by = (lambda value: value) if order == "per_key" else None
    rig = Rig(call, concurrency=2, order=order, key_by=key_by)
    with pytest.raises(UserFunctionError, match="ignored") as raised:
        async with rig:
            await rig.put("stubborn")
    assert raised.value.element == ["stubborn"]
    over.set()
    await passes()


async def test_stop_names_a_timed_out_call_by_its_element_too() -> None:
    over = asyncio.Event()

    async def call(value: int) -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                pass

    with pytest.raises(UserFunctionError) as raised:  # noqa: PT012 - leaving the block is what raises
        async with Rig(call, order="unordered", timeout=1, on_timeout="skip") as rig:
            rig.feed("stubborn")
            await asyncio.sleep(2)
    assert raised.value.element == ["stubborn"]
    over.set()
    await passes()


async def test_call_that_answers_its_cancellation_at_stop_with_a_result_has_finished() -> None:
    async def call(value: int) -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return value

    async with Rig(call) as rig:
        await rig.put(1)
    assert rig.log.values == []
    assert rig.operator.snapshot() in ([["call", 1, None]], [["finished", 1, None, [1]]])


async def test_error_of_a_call_that_is_cancelled_by_stop_is_not_the_elements() -> None:
    async def call(value: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError("while closing")

    async with Rig(call, on_error="route") as rig:
        await rig.put(1)
    assert not rig.errors
    assert rig.counts["failed"] == 0
    assert rig.operator.snapshot() == [["call", 1, None]]


async def test_halted_operator_takes_and_emits_nothing_but_keeps_what_comes() -> None:
    service = Service()
    async with Rig(service) as rig:
        await rig.put(1, 2)
        rig.operator.halt()
        await service.answer(1)
        await rig.put(3)
        assert rig.log.values == []
        assert service.called == [1, 2]
        assert rig.operator.snapshot() == [
            ["finished", 1, None, [10]],
            ["call", 2, None],
            ["call", 3, None],
        ]


async def test_async_function_is_opened_before_the_first_call_and_closed_after_the_last() -> None:
    class Client(AsyncFunction[int, int]):
        def __init__(self) -> None:
            self.seen: list[str] = []

        async def open(self) -> None:
            self.seen.append("open")

        async def invoke(self, value: int) -> int:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                self.seen.append("cancelled")
                raise
            return value

        async def close(self) -> None:
            self.seen.append("close")

    client = Client()
    async with Rig(client) as rig:
        await rig.put(1)
    assert client.seen == ["open", "cancelled", "close"]


@pytest.mark.usefixtures("others_gone")
def test_loop_that_is_closed_without_a_stop_makes_no_noise() -> None:
    """Abandoned coroutines are thrown a GeneratorExit when they are collected."""

    async def never(value: int) -> None:
        await asyncio.Event().wait()

    async def main() -> Rig:
        rig = await Rig(never, concurrency=2).__aenter__()
        await rig.put(1)
        return rig

    loop = VirtualTimeLoop()
    rig: Any = loop.run_until_complete(main())
    (task,) = asyncio.all_tasks(loop)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    assert not rig.errors
    del rig, task
    gc.collect()  # what cannot be raised there, pytest makes an error of


async def test_what_takes_too_long_to_close_is_cancelled_and_said() -> None:
    class Clinging(AsyncFunction[Any, Any]):
        cancelled = False

        async def invoke(self, value: Any) -> Any:
            return value

        async def close(self) -> None:
            try:
                await asyncio.sleep(1e9)
            finally:
                self.cancelled = True

    function = Clinging()
    with pytest.raises(UserFunctionError, match="when it was closed"):
        async with Rig(function):
            pass
    assert function.cancelled
