"""The clock that tests run on must itself be right."""

from __future__ import annotations

import asyncio
import gc
import math
import socket
import time
import weakref
from threading import Event
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream import Pipeline
from asyncstream.errors import InternalError, PipelineError
from asyncstream.testing import loop as module
from asyncstream.testing.loop import VirtualTimeLoop, run_virtual


def test_long_sleep_takes_no_time() -> None:
    started = time.process_time()

    async def main() -> float:
        await asyncio.sleep(30 * 24 * 3600)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 30 * 24 * 3600
    assert time.process_time() - started < 2


def test_what_main_returns_and_raises_comes_out() -> None:
    async def fails() -> None:
        raise ValueError("mine")

    async def gives() -> int:
        return 7

    assert run_virtual(gives()) == 7
    with pytest.raises(ValueError, match="mine"):
        run_virtual(fails())


def test_timer_that_is_set_anew_until_its_time_has_come_is_set_once_more() -> None:
    """As those of anyio are."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0.1)
        until = loop.time() + 0.05  # 0.15000000000000002: between two times that the clock shows
        looks: list[float] = []
        over: asyncio.Future[None] = loop.create_future()

        def look() -> None:
            looks.append(loop.time())
            if loop.time() >= until or len(looks) == 5:
                over.set_result(None)
            else:
                loop.call_at(until, look)

        loop.call_at(until, look)
        await over
        assert looks == [0.15, until]
        await asyncio.sleep(0.05)
        assert loop.time() == 0.2

    run_virtual(main())


def test_loop_and_pipeline_share_one_time() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        await asyncio.sleep(1.2345)
        assert loop.time() == 1.2345
        assert loop.now_ms() == 1234
        for _ in range(1000):
            await asyncio.sleep(0.001)
        assert loop.now_ms() == 2234

    run_virtual(main())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 50), max_size=20))
def test_sleepers_wake_in_order_and_on_time(delays: list[int]) -> None:
    async def main() -> None:
        woken: list[tuple[int, int]] = []

        async def sleeper(number: int, delay: int) -> None:
            await asyncio.sleep(delay / 1000)
            assert asyncio.get_running_loop().time() == pytest.approx(delay / 1000)
            woken.append((delay, number))

        await asyncio.gather(*(sleeper(number, delay) for number, delay in enumerate(delays)))
        assert [delay for delay, _ in woken] == sorted(delays)

    run_virtual(main())


def test_timeouts_and_cancellations_work() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await asyncio.sleep(11)
        assert asyncio.get_running_loop().time() == 10

    run_virtual(main())


def test_real_sockets_work() -> None:
    async def main() -> None:
        async def answer(reader: Any, writer: Any) -> None:
            writer.write(b"hello " + await reader.read(100))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"you")
            assert await reader.read(100) == b"hello you"
            writer.close()
            await writer.wait_closed()

    run_virtual(main())


def test_threads_work() -> None:
    async def main() -> str:
        return await asyncio.to_thread(socket.gethostname)

    assert run_virtual(main()) == socket.gethostname()


def test_time_does_not_jump_over_what_a_thread_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.01)

    async def main() -> float:
        async with asyncio.timeout(1):
            await asyncio.to_thread(Event().wait, 0.1)
        await asyncio.to_thread(Event().wait, 0.1)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 0


def test_the_end_of_the_loop_waits_for_threads_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.01)

    async def main() -> None:
        asyncio.get_running_loop().run_in_executor(None, Event().wait, 0.1).cancel()

    run_virtual(main())


def test_time_does_not_jump_over_the_threads_of_a_step() -> None:
    """Calls timed out in no time, and a stop left them alone as ones that ignored their cancellation."""

    async def main() -> list[bool]:
        results: list[bool] = []
        pipeline = Pipeline()
        numbers = pipeline.source([0.05] * 3)
        numbers.thread_map(Event().wait, timeout=1, on_timeout=lambda number: True).to(results)
        await pipeline.run()
        return results

    assert run_virtual(main()) == [False] * 3


def test_cancelled_step_waits_for_its_threads_in_no_time() -> None:
    async def main() -> float:
        begun, waits = asyncio.Event(), Event()
        loop = asyncio.get_running_loop()

        def wait(number: int) -> bool:
            loop.call_soon_threadsafe(begun.set)
            return waits.wait(0.1)

        pipeline = Pipeline()
        pipeline.source([1]).thread_map(wait).discard()
        async with pipeline.start() as job:
            await begun.wait()
            await job.stop()
        return loop.time()

    assert run_virtual(main()) == 0


def test_standstill_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.02)

    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(InternalError, match="every task waits and no timer is set"):
        run_virtual(main())
    with pytest.raises(InternalError, match="every task waits and no timer is set"):
        run_virtual(asyncio.sleep(math.inf))


def test_standstill_says_where_each_task_waits_those_of_the_user_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.02)

    async def never(number: int) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        pipeline = Pipeline()
        pipeline.source([1]).async_map(never, name="stuck", timeout=None).discard()
        await pipeline.run()

    with pytest.raises(InternalError) as caught:
        run_virtual(main())
    first = str(caught.value).splitlines()[1]
    assert "stuck in " in first
    assert f"never, {__file__}:" in first
    assert "Job._outcome" in str(caught.value)


def test_of_many_tasks_that_stand_still_some_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.02)

    async def main() -> None:
        await asyncio.gather(*(asyncio.Event().wait() for _ in range(100)))

    with pytest.raises(InternalError, match=r"and 81 more$"):
        run_virtual(main())


def test_a_sleep_for_ever_takes_no_time_and_can_be_cancelled() -> None:
    async def main() -> float:
        for_ever = asyncio.create_task(asyncio.sleep(math.inf))
        receiving, sending = socket.socketpair()
        with receiving, sending:
            receiving.setblocking(False)
            loop = asyncio.get_running_loop()
            received = asyncio.create_task(loop.sock_recv(receiving, 1))
            await asyncio.sleep(0)
            sending.send(b"x")
            assert await received == b"x"
        for_ever.cancel()
        with pytest.raises(asyncio.CancelledError):
            await for_ever
        return loop.time()

    assert run_virtual(main()) == 0


def test_a_task_that_sleeps_for_ever_lives_as_long_as_it_sleeps() -> None:
    async def main() -> None:
        sleeping = weakref.ref(asyncio.create_task(asyncio.sleep(math.inf)))
        await asyncio.sleep(0)
        gc.collect()  # nobody has it but its timer
        task = sleeping()
        assert task is not None
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])
        del task
        gc.collect()
        assert sleeping() is None

    run_virtual(main())


def test_each_run_starts_at_zero() -> None:
    async def main() -> float:
        await asyncio.sleep(5)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == run_virtual(main()) == 5


def test_function_in_place_of_its_coroutine_is_refused() -> None:
    async def main() -> None: ...

    with pytest.raises(PipelineError, match=r"main: expected a coroutine, .*run_virtual\(main\(\)\)"):
        run_virtual(main)  # type: ignore[arg-type]
