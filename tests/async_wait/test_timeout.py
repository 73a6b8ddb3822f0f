"""A timeout bounds a call: it is cancelled, its element has an outcome at once, its place is free later."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from weakref import ref

import pytest

from asyncstream.elements import Watermark
from asyncstream.errors import CallTimeout, PipelineError, UserFunctionError
from asyncstream.guards import retry
from asyncstream.operators.functions import AsyncFunction
from asyncstream.testing.loop import VirtualTimeLoop
from asyncstream.validation import is_async_function
from tests.async_wait.rig import Rig, Service, passes

pytestmark = pytest.mark.usefixtures("virtual_time")


async def never(value: Any) -> Any:
    await asyncio.Event().wait()


async def test_timed_out_call_is_cancelled_and_awaited() -> None:
    ended: list[int] = []

    async def call(value: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            ended.append(value)

    async with Rig(call, timeout=10, on_timeout="skip") as rig:
        rig.feed(1)
        await asyncio.sleep(10.5)
        assert (rig.counts["timed_out"], rig.counts["overdue"], ended) == (1, 1, [])
        await asyncio.sleep(1)
        assert (rig.counts["overdue"], rig.counts["running"], ended) == (0, 0, [1])


@pytest.mark.parametrize("isolation", ["pool", "task"])
async def test_place_of_a_timed_out_call_is_not_given_away_before_it_has_ended(isolation: str) -> None:
    running = most = 0

    async def call(value: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(5)
        running -= 1

    async with Rig(call, concurrency=2, timeout=1, on_timeout=lambda v: v, isolation=isolation) as rig:
        rig.feed(*range(6))
        await asyncio.sleep(1.5)
        assert rig.log.values == [0, 1], "the outcome does not wait for the end of the call"
        assert await rig.finish() == list(range(6))
        assert most == 2
        assert asyncio.get_running_loop().time() == pytest.approx(18)


async def test_timeout_bounds_the_element_whatever_the_call_does_about_it() -> None:
    async def stubborn(value: int) -> int:
        for _ in range(5):
            try:
                await asyncio.sleep(3)
            except asyncio.CancelledError:
                pass
        return value

    async with Rig(stubborn, concurrency=1, timeout=1, on_timeout=lambda value: -value) as rig:
        rig.feed(7, Watermark(7))
        await asyncio.sleep(1.1)
        assert rig.log.values[:1] == [-7]
        assert rig.counts["overdue"] == 1
        assert await rig.finish() == [-7], "the late result is dropped"


@pytest.mark.parametrize("isolation", ["pool", "task"])
async def test_call_that_makes_an_error_of_its_cancellation_is_cancelled_again(isolation: str) -> None:
    tried: list[float] = []

    async def hurt(value: int) -> None:
        tried.append(asyncio.get_running_loop().time())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("connection lost") from None

    again = retry(hurt, attempts=3, timeout=None, wait_initial=1, wait_jitter=0)
    async with Rig(again, concurrency=1, timeout=1, on_timeout="skip", isolation=isolation) as rig:
        rig.feed(1)
        await asyncio.sleep(100)
        assert tried == [0, 2, 12 + 1]
        assert (rig.counts["overdue"], rig.counts["running"]) == (0, 0)


async def test_timeout_of_one_element_fails_the_job_by_default_and_names_it() -> None:
    """Flink: 1 at time 0, 2 at time 5; at time 11 the first has failed the job."""

    async with Rig(never, timeout=10) as rig:
        rig.feed((1, 0))
        await asyncio.sleep(5)
        rig.feed((2, 5))
        await asyncio.sleep(4.999)
        assert not rig.errors
        await asyncio.sleep(1)
        (error,) = rig.errors
        assert isinstance(error, UserFunctionError)
        assert (error.step, error.element) == ("enrich", 1)
        assert isinstance(error.__cause__, CallTimeout)
        assert isinstance(error.__cause__, TimeoutError)
        assert [entry[:2] for entry in rig.operator.snapshot()] == [["call", 1], ["call", 2]]


async def test_hook_gives_what_stands_in_and_the_late_result_is_dropped() -> None:
    service = Service()
    async with Rig(service, timeout=10, on_timeout=lambda value: value * 3) as rig:
        await rig.put((1, 0))
        await asyncio.sleep(5)
        await rig.put((2, 5))
        await asyncio.sleep(6)
        assert rig.log.records == [(3, 0)]
        assert service.cancelled == [1]
        await service.answer(2)
        assert rig.log.records == [(3, 0), (20, 5)]


class Client(AsyncFunction[int, Any]):
    """Never answers; says what stands in for the answer."""

    async def invoke(self, value: int) -> Any:
        await asyncio.Event().wait()

    def timeout(self, value: int) -> Any:
        return f"instead of {value}"


@pytest.mark.parametrize("guarded", [False, True])
async def test_timeout_method_of_an_async_function_is_the_hook_also_through_a_guard(guarded: bool) -> None:
    client: Any = Client()
    async with Rig(retry(client, attempts=3) if guarded else client, timeout=1) as rig:
        rig.feed(1)
        assert await rig.finish() == ["instead of 1"]
        assert not rig.errors


async def test_on_timeout_says_more_than_the_timeout_method() -> None:
    async with Rig(Client(), timeout=1, on_timeout="skip") as rig:
        rig.feed(1)
        assert await rig.finish() == []
        assert rig.counts["skipped"] == 1


def test_async_timeout_method_is_refused_when_the_step_is_built() -> None:
    class Wrong(Client):
        async def timeout(self, value: int) -> Any:
            return value

    assert is_async_function(Wrong().timeout)
    with pytest.raises(PipelineError, match="timeout"):
        Rig(Wrong(), timeout=1)


async def test_hook_that_gives_nothing_gives_none_and_blocks_nobody() -> None:
    """In Flink a handler that does not complete the element leaves it in the queue for ever."""

    async with Rig(never, timeout=1, on_timeout=lambda value: None) as rig:
        rig.feed(1, 2)
        assert await rig.finish() == [None, None]


@pytest.mark.parametrize("on_error", ["fail", "skip", "route"])
@pytest.mark.parametrize("error", [LookupError("hook"), CallTimeout("hook"), StopIteration()], ids=repr)
async def test_hook_that_raises_is_an_error_of_its_element(on_error: str, error: Exception) -> None:
    def hook(value: int) -> None:
        raise error

    async def main() -> None:
        async with Rig(never, timeout=1, on_timeout=hook, on_error=on_error) as rig:
            rig.feed(1, 2)
            if on_error == "fail":
                await asyncio.sleep(5)
                assert [failure.__cause__ for failure in rig.errors] == [error]
                return
            assert await rig.finish() == []
            assert rig.counts["timed_out"] == 2
            if on_error == "route":
                assert [failed.error for failed in rig.failed.values[:-1]] == [error, error]

    await main()


@pytest.mark.parametrize("is_method", [False, True], ids=["on_timeout", "AsyncFunction.timeout"])
@pytest.mark.parametrize("on_error", ["fail", "skip", "route"])
@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError(),
        GeneratorExit(),
        BaseExceptionGroup("several", [GeneratorExit()]),
        type("Own", (BaseException,), {})(),
    ],
    ids=repr,
)
async def test_hook_that_raises_no_exception_ends_the_job(
    is_method: bool, on_error: str, error: BaseException
) -> None:
    """A hook is a plain function: nobody cancels it, and what is no `Exception` is of no element."""

    def hook(value: int) -> None:
        raise error

    class Hooked(Client):
        def timeout(self, value: int) -> Any:
            hook(value)

    rig = (
        Rig(Hooked(), timeout=1, on_error=on_error)
        if is_method
        else Rig(never, timeout=1, on_timeout=hook, on_error=on_error)
    )

    async with rig:
        rig.feed(1, 2)
        await asyncio.sleep(5)
        (failure,) = rig.errors
        assert isinstance(failure, UserFunctionError)
        assert (failure.step, failure.element, failure.__cause__) == ("enrich", 1, error)
        assert rig.counts["skipped"] == 0
        assert not rig.failed.records
        assert [entry[:2] for entry in rig.operator.snapshot()] == [["call", 1], ["call", 2]]


@pytest.mark.parametrize("on_error", ["fail", "skip"])
async def test_hook_that_gives_what_is_to_be_awaited_ends_the_job(on_error: str) -> None:
    async with Rig(never, timeout=1, on_timeout=lambda value: never(value), on_error=on_error) as rig:
        rig.feed(1)
        await asyncio.sleep(5)
        (failure,) = rig.errors
        assert isinstance(failure, UserFunctionError)
        assert "must return its result, got <coroutine" in str(failure)
        assert (rig.counts["skipped"], rig.log.values) == (0, [])


@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time"])
async def test_routed_element_says_what_happened_and_when(order: str) -> None:
    async with Rig(never, timeout=2, on_timeout="route", order=order) as rig:
        began_ms = rig.operator.context.clock.now_ms()
        rig.feed(("x", 7), Watermark(8))
        await rig.finish()
        (call, timestamp), watermark, _ = rig.timed_out.records
        assert (call.value, call.attempts, call.timestamp, timestamp) == ("x", 1, 7, 7)
        assert isinstance(call.error, CallTimeout)
        assert call.last_ms - call.first_ms == 2000
        assert call.last_ms >= began_ms
        assert watermark == Watermark(8)
        assert rig.failed.values[:1] == [Watermark(8)]


async def test_no_timer_is_left_after_the_last_call() -> None:
    service = Service()
    hooked: list[Any] = []
    async with Rig(service, timeout=10, on_timeout=hooked.append) as rig:
        await rig.put(1, 2)
        await service.answer(1, 2)
        await asyncio.sleep(100)
        assert hooked == []
        assert rig.counts["timed_out"] == 0


@pytest.mark.parametrize("order", ["unordered", "per_key"])
@pytest.mark.usefixtures("others_gone")
async def test_timed_out_call_that_has_ended_is_kept_by_nothing(order: str) -> None:
    """A service hangs, thousands of calls a second: each would stay for the time of its patience."""
    tasks: list[ref[asyncio.Task[Any]]] = []

    async def call(value: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(ref(task))
        await asyncio.Event().wait()

    async with Rig(call, timeout=1, on_timeout="skip", order=order, key_by=lambda value: value) as rig:
        rig.feed(*range(10))
        await asyncio.sleep(1.5)
        gc.collect()
        assert (len(tasks), rig.counts["timed_out"]) == (10, 10)
        assert [task() for task in tasks if task() is not None] == []


async def test_call_that_ended_in_time_is_not_timed_out_although_the_loop_comes_to_it_late() -> None:
    """FLINK-22573."""

    service = Service()
    loop = asyncio.get_running_loop()
    async with Rig(service, timeout=10, on_timeout=lambda value: "too late") as rig:
        await rig.put(1)
        loop.call_at(10 - 1e-4, lambda: service.running[1].set_result("in time"))
        assert await rig.finish() == ["in time"]


async def test_time_runs_per_element_not_per_worker() -> None:
    """A worker takes the next element when a call ends; each has its whole time."""

    async def call(value: int) -> int:
        await asyncio.sleep(0.9)
        return value

    async with Rig(call, concurrency=2, timeout=1) as rig:
        rig.feed(*range(20))
        assert await rig.finish() == list(range(20))
        assert not rig.errors


async def test_time_of_an_element_does_not_run_while_it_waits_in_the_inbox() -> None:
    async def call(value: int) -> int:
        await asyncio.sleep(0.9)
        return value

    async with Rig(call, concurrency=1, buffer=1, timeout=1) as rig:
        rig.feed(*range(10))
        assert await rig.finish() == list(range(10))


@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time"])
async def test_deadlines_of_ended_calls_do_not_pile_up_behind_a_slow_one(order: str) -> None:
    async def call(value: int) -> int:
        await asyncio.sleep(3000 if value == 0 else 0.001)
        return value

    async with Rig(call, concurrency=2, buffer=10_000, timeout=3600, order=order) as rig:
        rig.operator.process_batch(range(5000), None)
        deadlines = rig.operator._pool._deadlines
        assert deadlines is not None
        most = 0
        for _ in range(100):
            await asyncio.sleep(0.1)
            most = max(most, len(deadlines._entries))
        assert 0 < most <= 4 * 2 + 64 + 2
        assert sorted(await rig.finish()) == list(range(5000))


@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time", "per_key"])
async def test_deadline_of_a_slow_call_is_kept_where_those_of_ended_ones_are_forgotten(order: str) -> None:
    async def call(value: int) -> int:
        await asyncio.sleep(3000 if value == 0 else 0.001)
        return value

    key_by = (lambda value: value) if order == "per_key" else None
    options: dict[str, Any] = {"timeout": 60, "on_timeout": "skip", "key_by": key_by}
    async with Rig(call, concurrency=2, buffer=1000, order=order, **options) as rig:
        rig.operator.process_batch(range(300), None)
        assert sorted(await rig.finish()) == list(range(1, 300))


@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time"])
async def test_deadlines_of_elements_that_have_all_left_do_not_pile_up(order: str) -> None:
    async def call(value: int) -> int:
        await asyncio.sleep(0.001)
        return value

    async with Rig(call, concurrency=4, timeout=3600, order=order) as rig:
        deadlines = rig.operator._pool._deadlines
        assert deadlines is not None
        for _ in range(200):  # each a block of its own
            rig.operator.process_batch(range(4), None)
            await asyncio.sleep(0.01)
        assert len(rig.log.values) == 800
        assert 0 < len(deadlines) <= 4 * 4 + 64


async def test_deadlines_are_met_in_the_midst_of_other_traffic() -> None:
    loop = asyncio.get_running_loop()
    began: dict[int, float] = {}
    bounded: list[float] = []

    async def call(value: int) -> int:
        began[value] = loop.time()
        await asyncio.sleep(60 if value % 10 == 3 else (value % 7) / 10)
        return value

    def hook(value: int) -> int:
        bounded.append(loop.time() - began[value])
        return value

    async with Rig(call, concurrency=5, timeout=1, on_timeout=hook) as rig:
        rig.operator.process_batch(range(500), None)
        assert await rig.finish() == list(range(500))
    assert len(bounded) == 50
    assert bounded == pytest.approx([1.0] * 50, abs=0.001)


async def test_no_attempt_is_made_after_the_timeout_of_a_retried_call() -> None:
    """FLINK-38082: every attempt fails after 0.5 s, time for one and a half of them."""

    attempts: list[int] = []

    async def call(value: int) -> None:
        attempts.append(value)
        await asyncio.sleep(0.501)
        raise OSError("down")

    guarded = retry(call, attempts=6, wait_initial=0.1, wait_jitter=0)
    async with Rig(guarded, timeout=1, on_timeout=lambda value: -1) as rig:
        rig.feed((1, 1), (2, 2))
        assert await rig.finish() == [-1, -1]
        await asyncio.sleep(60)
        assert sorted(attempts) == [1, 1, 2, 2]


async def test_cancellation_in_the_midst_of_a_retrys_pause_gives_exactly_one_outcome() -> None:
    """FLINK-40456: the timeout passes while the next attempt is being scheduled."""

    async def call(value: int) -> None:
        await asyncio.sleep(0.5)
        raise OSError("down")

    guarded = retry(call, attempts=2, wait_initial=0.5, wait_jitter=0)
    async with Rig(guarded, timeout=1, on_timeout=lambda value: "timeout", on_error="route") as rig:
        rig.feed(*range(4))
        results = await rig.finish()
        assert len(results) + len(rig.failed.values[:-1]) == 4


async def test_timed_out_element_in_a_flat_map_gives_any_number_of_results() -> None:
    async with Rig(never, flat=True, timeout=1, on_timeout=lambda value: [value] * value) as rig:
        rig.feed(0, 1, 2)
        assert await rig.finish() == [1, 2, 2]


async def test_timeout_and_result_in_the_same_pass_give_one_outcome() -> None:
    loop = asyncio.get_running_loop()
    service = Service()
    async with Rig(service, concurrency=3, timeout=1, on_timeout=lambda value: "timeout") as rig:
        await rig.put(1, 2, 3)
        for value in (1, 2, 3):
            loop.call_at(1.0, lambda value=value: service.running[value].set_result("result"))  # type: ignore[misc]
        await passes(30)
        outcomes = await rig.finish()
        assert len(outcomes) == 3
        assert rig.counts["timed_out"] == outcomes.count("timeout")


class CoarseLoop(VirtualTimeLoop):
    """Its clock ticks in hundredths of a second, so that much happens at equal readings, as with uvloop."""

    def time(self) -> float:
        return super().time() // 0.01 / 100


@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time", "per_key"])
@pytest.mark.parametrize("loop", ["coarse", "virtual", "uvloop"])
def test_calls_that_are_due_at_equal_clock_readings_time_out_in_input_order(loop: str, order: str) -> None:
    timed_out: list[int] = []

    async def call(value: int) -> int:
        await asyncio.sleep(0 if value < 3 else 1000)  # the workers of the first three take up later ones
        return value

    async def main() -> None:
        key_by = (lambda value: value) if order == "per_key" else None
        timeout = 0.5 if loop == "uvloop" else 0.02  # in real time the first three must be quicker than that
        async with Rig(
            call, order=order, key_by=key_by, concurrency=8, timeout=timeout, on_timeout=timed_out.append
        ) as rig:
            rig.feed(*range(11))
            await rig.finish()
        assert timed_out == list(range(3, 11))

    if loop == "uvloop":
        factory: Any = pytest.importorskip("uvloop").new_event_loop
    else:
        factory = CoarseLoop if loop == "coarse" else VirtualTimeLoop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
