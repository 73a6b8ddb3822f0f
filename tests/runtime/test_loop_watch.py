"""A step that holds the event loop is named in the log, with the place in its function."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest

from asyncstream import Pipeline
from asyncstream.metrics import Distribution
from asyncstream.operators.basic import Map
from asyncstream.runtime.aio.watching import _THREAD, BLOCKED, TASK_NAME, LoopWatch
from asyncstream.runtime.aio.watching import _where as where_of
from tests.forks import forked
from tests.runtime.parts import run

SOME_TICKS = 0.4
"""Seconds in which the thread looks a few times: real ones, for nothing else shows what it does."""

LOOKED = threading.Event()
"""The thread has looked at what holds the loop; on a busy machine it takes its time."""


@pytest.fixture(autouse=True)
def only_tests_collect() -> Iterator[None]:
    """What the garbage collector does of its own accord would be told of, too."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def looks_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    step_in = LoopWatch._step_in

    def noted(watch: LoopWatch, innermost: FrameType) -> str | None:
        found = step_in(watch, innermost)
        LOOKED.set()
        return found

    monkeypatch.setattr(LoopWatch, "_step_in", noted)


def block(value: Any = None) -> Any:
    LOOKED.clear()
    assert LOOKED.wait(60)
    time.sleep(BLOCKED)
    return value


async def block_in_call(value: Any) -> Any:
    return block(value)


async def block_after_a_while(value: Any) -> Any:
    await asyncio.sleep(0.01)
    return block(value)


async def block_in_write(value: Any) -> None:
    block()


def blocked_source() -> Iterable[int]:
    yield block(1)


PLACES: dict[str, Callable[[Pipeline], Any]] = {
    "map": lambda pipeline: pipeline.source([1]).map(block, name="slow").map(lambda v: v).discard(),
    "map behind a map": lambda p: p.source([1]).map(lambda v: v).map(block, name="slow").discard(),
    "async_map": lambda p: p.source([1]).async_map(block_in_call, name="slow").discard(),
    "async_map, later": lambda p: p.source([1]).async_map(block_after_a_while, name="slow").discard(),
    "async_map, task": lambda p: (
        p.source([1]).async_map(block_after_a_while, isolation="task", name="slow").discard()
    ),
    "behind an async_map": lambda p: (
        p.source([1]).async_map(asyncio.sleep, name="ask").map(block, name="slow").discard()
    ),
    "sink": lambda p: p.source([1]).to(block_in_write, name="slow"),
    "source": lambda p: p.source(blocked_source, name="slow").discard(),
    "key": lambda p: p.source([1]).key_by(block, on_error="skip", name="slow").map(lambda v: v).discard(),
}


@pytest.mark.parametrize("place", PLACES)
def test_step_that_holds_the_loop_is_named(place: str, caplog: pytest.LogCaptureFixture) -> None:
    pipeline = Pipeline("blocked")
    PLACES[place](pipeline)
    asyncio.run(pipeline.run())
    (record,) = [record for record in caplog.records if record.name == "asyncstream.loop"]
    assert record.levelno == logging.WARNING
    assert "step 'slow' has held the event loop for " in record.message
    assert "in block (test_loop_watch.py:" in record.message
    fields = vars(record)
    assert (fields["pipeline"], fields["step"]) == ("blocked", "slow")
    assert BLOCKED <= fields["seconds"] <= 60


def test_code_of_a_library_is_not_blamed_on_who_runs_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    LOOKED.clear()
    pipeline = Pipeline()
    looked = pipeline.source([60]).map(LOOKED.wait, name="look")
    looked.map(SOME_TICKS.__mul__).map(time.sleep, name="slow").discard()  # most looks find this one
    pipeline.run_blocking()
    (record,) = [record for record in caplog.records if record.name == "asyncstream.loop"]
    assert Path(__file__).name not in record.message
    assert "<module>" not in record.message


def test_pauses_are_measured_and_a_step_is_named_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> Distribution:
        pipeline = Pipeline()
        pipeline.source([1, 2, 3]).async_map(block_in_call, concurrency=1).discard()
        async with pipeline.start() as job:
            await job.wait()
            (metric,) = [one for one in job.measure() if one.name == "asyncstream.loop.pause"]
            assert isinstance(metric.points[0].value, Distribution)
            return metric.points[0].value

    found = asyncio.run(main())
    assert found.count - dict(found.cumulative())[0.1] >= 1
    assert len([record for record in caplog.records if record.name == "asyncstream.loop"]) == 1


@pytest.mark.parametrize(
    ("parts", "blamed"),
    [
        ([(0.2, True)], "Python's garbage collector"),  # the thread could not look before it was over
        ([(0.2, True), (0.0, False)], "Python's garbage collector"),
        ([(0.05, False), (0.15, True), (0.0, False)], "Python's garbage collector"),
        ([(0.05, True), (0.05, False), (0.1, False)], "step 'slow'"),
        ([(0.05, False), (0.1, False)], "step 'slow'"),
    ],
)
def test_garbage_collector_is_not_blamed_on_the_step_that_had_it_begin(
    parts: list[tuple[float, bool]],
    blamed: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Parts of a pause: how long each took, and whether that was the collector; the thread looks between."""
    caplog.set_level(logging.INFO, logger="asyncstream.loop")
    now = 0.0
    monkeypatch.setattr("asyncstream.runtime.aio.watching.monotonic", lambda: now)

    async def hold(watch: LoopWatch) -> None:
        nonlocal now
        for seconds, collects in parts:
            watch.knock()
            if collects:
                gc.collect()
            now += seconds
        await asyncio.sleep(0)  # it answers

    async def main() -> None:
        watch = LoopWatch("blocked", {"slow": Map(str)})
        for _ in range(2):
            await asyncio.create_task(hold(watch), name=f"{TASK_NAME}slow")

    asyncio.run(main())
    (record,) = caplog.records
    assert record.message.startswith(f"{blamed} has held the event loop for 0.")
    assert vars(record)["pipeline"] == "blocked"


@pytest.mark.parametrize(
    ("parts", "blamed"),
    [
        ([(1.5, 0.01), (0.0, 0.0)], "the process did not run for 1.50 s"),
        ([(0.05, 0.05), (1.5, 0.0), (0.02, 0.02)], "the process did not run for 1.50 s"),
        ([(0.05, 0.05), (1.5, 1.5), (0.0, 0.0)], "step 'slow' has held"),  # with Python's lock
        ([(0.05, 0.0), (0.9, 0.0), (0.9, 0.0)], "step 'slow' has held"),  # without, as in time.sleep
        ([(0.05, 0.0), (1.5, 0.0), (0.9, 0.0), (0.9, 0.0)], "step 'slow' has held"),
    ],
)
def test_stop_of_the_process_is_not_blamed_on_a_step(
    parts: list[tuple[float, float]],
    blamed: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Parts of a pause: how long each took, and what was computed in it; the thread looks between."""
    caplog.set_level(logging.INFO, logger="asyncstream.loop")
    now = computed = 0.0
    monkeypatch.setattr("asyncstream.runtime.aio.watching.monotonic", lambda: now)
    monkeypatch.setattr("asyncstream.runtime.aio.watching.process_time", lambda: computed)

    async def hold() -> None:
        nonlocal now, computed
        watch = LoopWatch("blocked", {"slow": Map(str)})
        for seconds, of_them_computed in parts:
            watch.knock()
            now += seconds
            computed += of_them_computed
        await asyncio.sleep(0)  # it answers

    async def main() -> None:
        await asyncio.create_task(hold(), name=f"{TASK_NAME}slow")

    asyncio.run(main())
    (record,) = caplog.records
    assert record.message.startswith(blamed)


@pytest.mark.parametrize(
    ("looks", "blamed"),
    [
        (["ask", "ask"], "ask"),
        (["ask", "write", "ask"], "ask"),
        (["ask", "write"], None),  # each had its turn in one pass of the loop
        (["ask", "write", "keep"], None),
        ([], None),
    ],
)
def test_step_is_blamed_that_most_looks_find(
    looks: list[str],
    blamed: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    monkeypatch.setattr("asyncstream.runtime.aio.watching.monotonic", lambda: now)
    found = iter(looks)
    monkeypatch.setattr(LoopWatch, "_step_in", lambda watch, innermost: next(found))

    async def main() -> None:
        nonlocal now
        watch = LoopWatch("blocked", {})
        watch.knock()
        for _ in looks:
            now += BLOCKED
            watch.knock()
        now += BLOCKED
        await asyncio.sleep(0)  # it answers

    asyncio.run(main())
    assert [vars(record)["step"] for record in caplog.records] == ([] if blamed is None else [blamed])


def test_what_is_not_a_step_is_not_blamed_on_one(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        pipeline = Pipeline()
        pipeline.submissions().discard()
        async with pipeline.start():
            await asyncio.sleep(0.05)
            block()
            await asyncio.sleep(0)

    asyncio.run(main())
    assert caplog.records == []


def test_loop_that_waits_is_not_woken_to_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[float] = []
    answer = LoopWatch._answer

    def counted(watch: LoopWatch, knocked: float) -> None:
        answers.append(knocked)
        answer(watch, knocked)

    monkeypatch.setattr(LoopWatch, "_answer", counted)

    async def main() -> None:
        pipeline = Pipeline()
        pipeline.submissions().discard()
        async with pipeline.start() as job, asyncio.timeout(60):
            count = 0
            while count <= len(answers):  # as all knocks are counted, some were not answered by the loop
                await asyncio.sleep(SOME_TICKS)
                (metric,) = [one for one in job.measure() if one.name == "asyncstream.loop.pause"]
                assert isinstance(metric.points[0].value, Distribution)
                count = metric.points[0].value.count

    asyncio.run(main())


def test_loop_that_only_looks_in_the_midst_of_its_work_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    waits = LoopWatch._waits

    def noted(watch: LoopWatch, innermost: FrameType) -> bool:
        seen.append(waits(watch, innermost))
        return seen[-1]

    monkeypatch.setattr(LoopWatch, "_waits", noted)

    async def main() -> list[bool]:
        pipeline = Pipeline()
        pipeline.submissions().discard()
        async with pipeline.start():
            seen.clear()
            until = time.monotonic() + SOME_TICKS
            while (now := time.monotonic()) < until or (not seen and now < until + 60):  # noqa: ASYNC110
                await asyncio.sleep(0)  # busy, and never waiting
            return seen.copy()

    found = asyncio.run(main())
    assert found
    assert not any(found)


def test_frames_of_another_thread_are_not_read_without_a_global_lock(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)  # as of a free-threaded build
    monkeypatch.setattr(sys, "_current_frames", lambda: pytest.fail("another thread runs on meanwhile"))
    knocks: queue.SimpleQueue[bool] = queue.SimpleQueue()
    knock = LoopWatch.knock

    def noted(watch: LoopWatch) -> None:
        knock(watch)
        knocks.put(True)

    monkeypatch.setattr(LoopWatch, "knock", noted)

    def hold(value: int) -> int:
        for _ in range(4):  # one is under way, one asks, and two look
            knocks.get(timeout=60)
        time.sleep(BLOCKED)
        return value

    async def main() -> Distribution:
        pipeline = Pipeline()
        pipeline.source([1]).map(hold).async_map(asyncio.sleep).discard()
        async with pipeline.start() as job:
            await job.wait()
            (metric,) = [one for one in job.measure() if one.name == "asyncstream.loop.pause"]
            assert isinstance(metric.points[0].value, Distribution)
            return metric.points[0].value

    assert asyncio.run(main()).count >= 1
    assert caplog.records == []


def watching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "asyncstream watch"]


def let_others_end() -> None:
    """Of jobs that have just ended."""
    for thread in watching():
        thread.join(10)


def test_thread_ends_with_the_last_job() -> None:
    async def main() -> None:
        one, other = Pipeline(), Pipeline()
        for pipeline in (one, other):
            pipeline.submissions().discard()
        let_others_end()
        async with one.start():
            async with other.start():
                assert len(watching()) == 1
            assert len(watching()) == 1
            (thread,) = watching()
        thread.join(10)
        assert not thread.is_alive()

    asyncio.run(main())


def test_thread_ends_with_a_loop_that_was_closed_before_it_answered() -> None:
    async def begin() -> LoopWatch:
        let_others_end()
        watch = LoopWatch("left open", {})
        watch.begin()
        return watch

    loop = asyncio.new_event_loop()
    watch = loop.run_until_complete(begin())
    (thread,) = watching()
    watch.knock()  # nobody is there to answer
    loop.close()
    thread.join(10)
    assert not thread.is_alive()


async def test_thread_ends_with_a_job_that_is_gone() -> None:
    let_others_end()
    watch = LoopWatch("left open", {})
    watch.begin()
    (thread,) = watching()
    del watch
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()


def test_loop_on_virtual_time_is_not_watched() -> None:
    async def main() -> None:
        pipeline = Pipeline()
        pipeline.submissions().discard()
        let_others_end()
        async with pipeline.start():
            assert watching() == []

    run(main())


def test_code_that_no_line_says_is_shown_by_where_its_function_begins() -> None:
    def shown() -> str:
        return where_of(sys._getframe())

    begins = shown.__code__.co_firstlineno
    lineless = shown.__code__.replace(co_linetable=b"")
    assert FunctionType(lineless, globals())().endswith(f".shown (test_loop_watch.py:{begins})")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_process_that_is_forked_while_a_job_begins_elsewhere_can_have_jobs() -> None:
    """The lock was taken by a thread that is not there, and the first job waited for ever."""

    def check() -> None:
        pipeline = Pipeline()
        pipeline.source([1]).discard()
        asyncio.run(pipeline.run())

    with _THREAD._lock:
        assert forked(check) == 7
