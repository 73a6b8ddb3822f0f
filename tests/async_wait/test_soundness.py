"""
What user code may rely on inside a call: its task, its context, its cancellation, and what is built on them.

Each probe is an async function that is right if it gives its element back. Several run at once, mixed with
calls that never suspend, in few workers, so that whatever one call leaves behind would hit another.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.async_wait.rig import Rig

pytestmark = pytest.mark.usefixtures("virtual_time")

Probe = Callable[[int], Awaitable[Any]]


def run_uvloop(main: Coroutine[Any, Any, Any]) -> Any:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


LOOPS = [pytest.param(asyncio.run, id="asyncio"), pytest.param(run_uvloop, id="uvloop")]
"""Loops on real time, because of threads: a virtual clock would jump over them."""

request: contextvars.ContextVar[int] = contextvars.ContextVar("request")
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


async def current_task_is_stable(value: int) -> int:
    before = asyncio.current_task()
    await asyncio.sleep(0)
    assert asyncio.current_task() is before
    await asyncio.sleep(0.001)
    assert asyncio.current_task() is before
    return value


async def timeout_fires(value: int) -> int:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await asyncio.sleep(60)
    await asyncio.sleep(0)
    return value


async def timeout_that_does_not_fire_leaves_nothing(value: int) -> int:
    async with asyncio.timeout(0.2):  # enough for one pass of the loop of a busy machine
        await asyncio.sleep(0)
    if value < 4:
        await asyncio.sleep(0.25)  # in all workers, so that it would fire in one of their calls
    return value


async def timeout_around_nothing(value: int) -> int:
    async with asyncio.timeout(0.001):  # noqa: ASYNC100 - that is the point
        pass
    return value


async def wait_for(value: int) -> int:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.sleep(60), 0.001)
    return await asyncio.wait_for(asyncio.sleep(0, value), 60)


async def task_group(value: int) -> int:
    async with asyncio.TaskGroup() as group:
        first = group.create_task(asyncio.sleep(0.001, value))
        second = group.create_task(asyncio.sleep(0, 0))
    return first.result() + second.result()


async def task_group_with_a_failing_child(value: int) -> int:
    async def fail() -> None:
        raise LookupError(value)

    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012 - the group is what raises
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            await asyncio.sleep(60)
    assert raised.value.exceptions[0].args == (value,)
    return value


async def cancels_itself_and_takes_it_back(value: int) -> int:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(60)
    task.uncancel()
    await asyncio.sleep(0)
    return value


async def context_is_kept_over_a_suspension(value: int) -> int:
    assert request.get(None) is None, "another element's variable"
    token = request.set(value)
    await asyncio.sleep(0.001)
    assert request.get() == value
    request.reset(token)
    return value


async def context_is_left_soiled(value: int) -> int:
    assert request.get(None) is None, "another element's variable"
    request.set(value)
    await asyncio.sleep(0.001 * (value % 3))
    assert request.get() == value
    return value


async def context_is_left_soiled_without_suspension(value: int) -> int:
    assert request.get(None) is None, "another element's variable"
    request.set(value)
    return value


async def context_is_inherited_from_where_the_step_was_opened(value: int) -> int:
    assert tenant.get() == "acme"
    await asyncio.sleep(0)
    assert tenant.get() == "acme"
    return value


async def child_task_inherits_the_context(value: int) -> int:
    async def child() -> int:
        return request.get()

    token = request.set(value)
    found = await asyncio.create_task(child())
    request.reset(token)
    return found


async def to_thread(value: int) -> int:
    return await asyncio.to_thread(lambda: value)


async def shield_and_gather(value: int) -> int:
    first, second = await asyncio.gather(asyncio.shield(asyncio.sleep(0.001, value)), asyncio.sleep(0, 1))
    return first * second


async def suspends_once_first(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def anyio_move_on_after(value: int) -> int:
    with anyio.move_on_after(0.001) as scope:
        await anyio.sleep(60)
    assert scope.cancelled_caught
    await anyio.lowlevel.checkpoint()
    return value


async def anyio_scope_without_suspension(value: int) -> int:
    with anyio.CancelScope():  # noqa: ASYNC100 - that is the point
        pass
    return value


async def anyio_task_group(value: int) -> int:
    got = []

    async def child(part: int) -> None:
        await anyio.sleep(0.001)
        got.append(part)

    async with anyio.create_task_group() as group:
        group.start_soon(child, value)
        group.start_soon(child, 0)
    return sum(got)


async def anyio_cancelled_group(value: int) -> int:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 60)
        await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    await anyio.lowlevel.checkpoint()
    return value


PROBES: list[Probe] = [
    current_task_is_stable,
    timeout_fires,
    timeout_that_does_not_fire_leaves_nothing,
    timeout_around_nothing,
    wait_for,
    task_group,
    task_group_with_a_failing_child,
    cancels_itself_and_takes_it_back,
    context_is_kept_over_a_suspension,
    context_is_left_soiled,
    context_is_left_soiled_without_suspension,
    context_is_inherited_from_where_the_step_was_opened,
    child_task_inherits_the_context,
    to_thread,
    shield_and_gather,
    suspends_once_first,
    anyio_move_on_after,
    anyio_scope_without_suspension,
    anyio_task_group,
    anyio_cancelled_group,
]


@pytest.mark.parametrize("isolation", ["pool", "task"])
@pytest.mark.parametrize("run", LOOPS)
@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_user_code_finds_what_it_expects(probe: Probe, run: Any, isolation: str) -> None:
    async def call(value: int) -> Any:
        return value if value % 4 == 3 else await probe(value)

    async def main() -> None:
        tenant.set("acme")
        async with Rig(call, concurrency=4, buffer=16, timeout=30, isolation=isolation) as rig:
            rig.operator.process_batch(range(24), None)
            assert await rig.finish() == list(range(24)), rig.errors
            assert not rig.errors
        assert request.get(None) is None, "a variable leaked to the feeder"

    run(main())


@pytest.mark.parametrize("isolation", ["pool", "task"])
async def test_each_running_call_has_a_task_of_its_own_that_is_not_the_feeders(isolation: str) -> None:
    tasks = {asyncio.current_task()}

    async def call(value: int) -> int:
        tasks.add(asyncio.current_task())
        await asyncio.sleep(1)
        return value

    async with Rig(call, concurrency=8, isolation=isolation) as rig:
        rig.feed(*range(8))
        await rig.finish()
    assert len(tasks) == 9


@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time"])
async def test_variables_left_behind_in_hundreds_of_calls_reach_no_other_element(order: str) -> None:
    """After a few such calls every call gets a context of its own, and nothing is lost on the way."""

    async def call(value: int) -> int:
        assert request.get(None) is None
        request.set(value)
        if value % 2:
            await asyncio.sleep(value % 5 / 1000)
        assert request.get() == value
        return value

    async with Rig(call, concurrency=5, buffer=20, order=order) as rig:
        rig.operator.process_batch(range(400), None)
        assert sorted(await rig.finish()) == list(range(400))
        assert not rig.errors


async def test_a_variable_whose_values_cannot_be_compared_is_only_another_one_left_behind() -> None:
    class Incomparable:
        def __eq__(self, other: object) -> bool:
            raise ValueError("the truth value is ambiguous")

        __hash__ = None  # type: ignore[assignment]

    matrix: contextvars.ContextVar[Incomparable] = contextvars.ContextVar("matrix")

    async def call(value: int) -> int:
        matrix.set(Incomparable())
        return value

    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    matrix.set(Incomparable())
    async with Rig(call, concurrency=2) as rig:
        rig.operator.process_batch(range(50), None)
        assert await rig.finish() == list(range(50))
        assert not rig.errors
    assert not reported


@pytest.mark.parametrize("order", ["ordered", "unordered"])
async def test_one_elements_timeout_spares_its_neighbours(order: str) -> None:
    async def call(value: int) -> str:
        try:
            async with asyncio.timeout(0.01 if value % 3 == 0 else 10):
                await asyncio.sleep(0.02)
        except TimeoutError:
            return f"{value} late"
        return f"{value} fine"

    async with Rig(call, concurrency=4, order=order) as rig:
        rig.feed(*range(30))
        expected = [f"{value} {'fine' if value % 3 else 'late'}" for value in range(30)]
        assert sorted(await rig.finish()) == sorted(expected)


async def test_a_task_handle_kept_and_cancelled_later_loses_no_element_in_the_pool() -> None:
    """It hits whoever uses the worker then: that element fails, visibly; nothing hangs."""

    handles: list[asyncio.Task[Any]] = []

    async def call(value: int) -> int:
        task = asyncio.current_task()
        assert task is not None
        handles.append(task)
        if value == 1:
            handles[0].cancel()
        await asyncio.sleep(1)
        return value

    async with Rig(call, concurrency=1, on_error="route") as rig:
        rig.feed(*range(5))
        assert await rig.finish() == [0, 2, 3, 4]
        assert [failed.value for failed in rig.failed.values[:-1]] == [1]
        assert isinstance(rig.failed.values[0].error, asyncio.CancelledError)


async def test_a_task_handle_kept_and_cancelled_later_hits_nobody_with_a_task_for_each_call() -> None:
    handles: list[asyncio.Task[Any]] = []

    async def call(value: int) -> int:
        task = asyncio.current_task()
        assert task is not None
        handles.append(task)
        for handle in handles[:-1]:
            handle.cancel()
        await asyncio.sleep(1)
        return value

    async with Rig(call, concurrency=1, isolation="task") as rig:
        rig.feed(*range(5))
        assert await rig.finish() == list(range(5))


async def test_idle_workers_cancelled_from_outside_are_replaced() -> None:
    handles: set[asyncio.Task[Any]] = set()

    async def call(value: int) -> int:
        task = asyncio.current_task()
        assert task is not None
        handles.add(task)
        await asyncio.sleep(1)
        return value

    async with Rig(call, concurrency=3) as rig:
        rig.feed(*range(3))
        await asyncio.sleep(2)
        for handle in handles:
            handle.cancel()
        rig.feed(*range(3, 9))
        assert await rig.finish() == list(range(9))
        assert not rig.errors


async def test_a_pending_cancellation_left_behind_does_not_reach_the_next_element() -> None:
    async def main() -> None:
        async def call(value: int) -> int:
            task = asyncio.current_task()
            assert task is not None
            assert not task.cancelling()
            if value % 2 == 0:
                task.cancel()
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    pass  # and never uncancelled
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0))
            return value

        async with Rig(call, concurrency=2) as rig:
            rig.feed(*range(10))
            assert await rig.finish() == list(range(10))

    if sys.version_info < (3, 13):  # from there on such a task cannot use a TaskGroup itself
        await main()


@pytest.mark.parametrize("order", ["ordered", "unordered"])
@pytest.mark.parametrize("run", LOOPS)
def test_timeouts_on_a_real_clock_complete_each_element_once(run: Any, order: str) -> None:
    """uvloop's clock ticks in milliseconds: several calls share a deadline."""

    async def call(value: int) -> int:
        if value % 7 == 0:
            await asyncio.sleep(60)
        elif value % 3 == 0:
            await asyncio.sleep(0.001)
        return value

    async def main() -> None:
        hook = int.__neg__
        async with Rig(call, concurrency=16, buffer=64, timeout=0.02, on_timeout=hook, order=order) as rig:
            rig.operator.process_batch(range(1, 400), None)
            results = await rig.finish()
            assert sorted(map(abs, results)) == list(range(1, 400))
            assert {value for value in range(1, 400) if value % 7 == 0} <= {-result for result in results}
            assert not rig.errors

    run(main())
