"""Calls that have ended are written down before their results go on, and are not made again."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    AsyncFunction,
    CheckpointError,
    Checkpoints,
    Items,
    MemoryStore,
    Pipeline,
    PipelineError,
    UserFunctionError,
)
from asyncstream.async_wait.blocks import Block
from asyncstream.async_wait.journaled import Journaled
from asyncstream.async_wait.promise import DROPPED, PENDING, Routed, Several, pending
from asyncstream.guards import retry
from asyncstream.operators.functions import FailedCall
from asyncstream.operators.origins import Origin
from tests.async_wait.charging import charging, crashed, kept_in

pytestmark = pytest.mark.usefixtures("virtual_time")

ORDERS = ["ordered", "unordered", "event_time", "per_key"]


@pytest.mark.parametrize("journal", [True, "fsync"])
@pytest.mark.parametrize("order", ORDERS)
async def test_what_ended_after_the_last_checkpoint_is_not_called_again(
    order: str, journal: Any, tmp_path: Path
) -> None:
    calls: Counter[int] = Counter()
    running = 0

    async def charge(value: int) -> int:
        nonlocal running
        calls[value] += 1
        running += 1
        try:
            await asyncio.sleep(1 + value % 3 / 10)
        finally:
            running -= 1
        return value * 10

    results: list[int] = []
    repeated = 0
    for seconds in (3.05, 4.55):
        pipeline = charging(Items(range(200)), charge, results, order, journal=journal)
        job = pipeline.start(checkpoints=kept_in(tmp_path))
        await job.__aenter__()
        await asyncio.sleep(seconds)
        repeated += running
        await job._run.close()
    pipeline = charging(Items(range(200)), charge, results, order, journal=journal)
    async with pipeline.start(checkpoints=kept_in(tmp_path)) as job:
        await job.wait()
        assert job.metrics()["charge"]["spared"] >= 40

    assert set(results) == {value * 10 for value in range(200)}
    assert calls.total() - 200 <= repeated
    assert len(calls) == 200


async def test_a_whole_life_between_two_checkpoints_makes_no_call_again(tmp_path: Path) -> None:
    calls: Counter[int] = Counter()

    async def charge(value: int) -> dict[str, Any]:
        calls[value] += 1
        if value == 50 and calls[50] == 1:
            await asyncio.sleep(1)  # all others have ended by then
            raise ConnectionError
        return {"order": value, "receipt": {calls.total()}}

    results: list[Any] = []
    with pytest.raises(UserFunctionError):
        await charging(range(100), charge, results, concurrency=100).run(checkpoints=kept_in(tmp_path))
    first = {result["order"]: result for result in results}
    assert len(first) == 50

    results.clear()
    await charging(range(100), charge, results).run(checkpoints=kept_in(tmp_path))

    assert calls.pop(50) == 2
    assert set(calls.values()) == {1}
    assert [result["order"] for result in results] == list(range(100))
    assert all(result == first[result["order"]] for result in results[:50]), (
        "what it was, not what it would be"
    )


async def test_errors_are_not_kept_and_what_is_skipped_is(tmp_path: Path) -> None:
    calls: Counter[int] = Counter()

    async def charge(value: int) -> list[int]:
        calls[value] += 1
        if value == 99:
            await asyncio.sleep(100)
        if value % 3 == 0:
            raise ValueError(value)
        return [value] * (value % 3)

    ways: list[tuple[Any, int]] = [("route", 2), ("skip", 1)]
    for on_error, expected in ways:
        calls.clear()
        for seconds in (5, 5):
            pipeline = Pipeline("shop")
            charges = pipeline.source(range(100), name="orders").async_flat_map(
                charge, name="charge", journal=True, concurrency=100, on_error=on_error
            )
            charges.discard()
            if on_error == "route":
                charges.failed.discard()
            await crashed(pipeline, kept_in(tmp_path / on_error), seconds)
        assert calls[0] == expected
        assert calls[1] == calls[2] == 1
        assert calls[99] == 2, "it had not ended"


def size_of_journal(folder: Path, most_files: int) -> int:
    files = list(folder.glob("calls-*"))
    assert len(files) <= most_files
    return sum(file.stat().st_size for file in files)


class LoopClock:
    """Goes with the event loop's time, if nobody sets it back."""

    set_back_ms = 0

    def now_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000) - self.set_back_ms


@pytest.mark.parametrize("every", [1000, 3])
async def test_a_retry_goes_on_after_a_crash_where_it_was(tmp_path: Path, every: int) -> None:
    clock = LoopClock()
    began = asyncio.get_running_loop().time()
    times: list[float] = []

    async def charge(value: int) -> int:
        if value == 7:
            times.append(asyncio.get_running_loop().time() - began)
            raise ConnectionError
        return value

    def life() -> Pipeline:
        waits: Any = {"wait_initial": 10, "wait_max": 60, "wait_jitter": 0}
        patient = retry(charge, attempts=5, timeout=None, clock=clock, **waits)
        return charging(range(10), patient, results, "unordered", on_error="skip")

    results: list[int] = []
    for seconds in (4.0, 16.0):  # in the first wait, and in the second
        await crashed(life(), kept_in(tmp_path, every=every), seconds)
    async with life().start(checkpoints=kept_in(tmp_path, every=every)) as job:
        await job.wait()
        assert job.metrics()["charge"]["skipped"] == 1

    assert [round(time) for time in times] == [0, 10, 30, 70, 130]
    assert set(results) == set(range(10)) - {7}


def refused(times: list[float], clock: LoopClock, **settings: Any) -> Callable[[], Pipeline]:
    """Lives of a job with one call that always fails and is tried again; when it was made is noted."""

    async def charge(value: int) -> int:
        times.append(asyncio.get_running_loop().time())
        raise ConnectionError

    def life() -> Pipeline:
        waits: Any = {"wait_initial": 10, "wait_max": 60, "wait_jitter": 0}
        patient = retry(charge, clock=clock, **settings, **waits)
        return charging([0], patient, [], "unordered", on_error="skip")

    return life


async def test_the_timeout_of_a_retry_counts_over_a_crash_from_its_first_attempt(tmp_path: Path) -> None:
    clock = LoopClock()
    times: list[float] = []
    life = refused(times, clock, attempts=None, timeout=33)

    await crashed(life(), kept_in(tmp_path), 4.0)
    await life().run(checkpoints=kept_in(tmp_path))

    assert [round(time - times[0]) for time in times] == [0, 10, 30]


async def test_a_retry_waits_no_longer_because_the_clock_was_set_back(tmp_path: Path) -> None:
    clock = LoopClock()
    times: list[float] = []
    life = refused(times, clock, attempts=2, timeout=None)

    await crashed(life(), kept_in(tmp_path), 4.0)
    clock.set_back_ms = 3_600_000
    await life().run(checkpoints=kept_in(tmp_path))

    assert [round(time - times[0]) for time in times] == [0, 14]


async def test_the_journal_is_no_longer_than_what_happens_between_checkpoints(tmp_path: Path) -> None:
    async def charge(value: int) -> int:
        await asyncio.sleep(1)
        return value

    sizes: list[int] = []
    results: list[int] = []
    pipeline = charging(range(1000), charge, results)
    async with pipeline.start(checkpoints=kept_in(tmp_path, every=3, keep=2)) as job:
        for _ in range(20):
            await asyncio.sleep(3)
            sizes.append(size_of_journal(tmp_path, most_files=3))
        await job.stop()

    assert max(sizes[5:]) < 2 * sizes[5]
    assert sizes[5] > 0


async def test_other_code_is_called_again(tmp_path: Path) -> None:
    async def charge(value: int) -> int:
        await asyncio.sleep(value)
        return value

    async def corrected(value: int) -> int:
        await asyncio.sleep(value)
        return value + 100

    results: list[int] = []
    await crashed(charging(range(5), charge, results), kept_in(tmp_path), 2.5)
    assert results == [0, 1, 2]
    await charging(range(5), corrected, results).run(checkpoints=kept_in(tmp_path))
    assert results == [0, 1, 2, 100, 101, 102, 103, 104]


async def test_without_checkpoints_nothing_is_written(tmp_path: Path) -> None:
    async def charge(value: int) -> int:
        return value

    results: list[int] = []
    await charging(range(5), charge, results).run()
    assert results == list(range(5))


async def test_a_result_that_cannot_be_kept_fails_the_job_and_names_the_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    async def charge(value: int) -> Any:
        return lambda: value

    with pytest.raises(Exception, match="step 'charge': the journal cannot keep what its calls gave"):
        await charging(range(5), charge, []).run(checkpoints=kept_in(tmp_path))


async def test_what_was_called_is_closed_though_the_last_calls_cannot_be_kept(tmp_path: Path) -> None:
    class Client(AsyncFunction[int, object]):
        is_closed = False

        async def invoke(self, value: int) -> object:
            try:
                await asyncio.sleep(value)
            except asyncio.CancelledError:
                pass  # and ends with a result all the same
            return object()

        async def close(self) -> None:
            self.is_closed = True

    client = Client()
    with pytest.raises(CheckpointError, match="journal cannot keep"):
        await charging([1, 100], client, []).run(checkpoints=kept_in(tmp_path))
    assert client.is_closed


def test_what_makes_no_sense_is_refused() -> None:
    async def charge(value: int) -> int:
        return value

    with pytest.raises(PipelineError, match="have none, for it cannot be read again"):
        charging(iter(range(5)), charge, [])
    with pytest.raises(PipelineError, match="replay: expected 'unfinished' to go with journal="):
        charging(range(5), charge, [], replay="all")
    with pytest.raises(PipelineError, match="journal"):
        charging(range(5), charge, [], journal="always")
    charging(iter(range(5)), charge, [], effect=lambda value: value)


async def test_a_store_without_a_place_is_refused_unless_one_is_given(tmp_path: Path) -> None:
    async def charge(value: int) -> int:
        return value

    with pytest.raises(PipelineError, match="no place for a journal"):
        await charging(range(5), charge, []).run(checkpoints=Checkpoints(store=MemoryStore()))
    checkpoints = Checkpoints(store=MemoryStore(), journal=tmp_path / "calls")
    await charging(range(5), charge, []).run(checkpoints=checkpoints)


class Written:
    """Keeps what it is given to write down."""

    waits = False
    known: Mapping[Origin, object] = {}

    def __init__(self) -> None:
        self.results: dict[Origin, tuple[Any, Any]] = {}

    def append(
        self, origins: Sequence[Origin], elements: Sequence[Any], results: list[Any], *, single: bool
    ) -> None:
        self.results |= zip(origins, zip(elements, results, strict=True), strict=True)


@pytest.mark.parametrize("ended", [[(0, 0), (0, 1)], [(0, 2), (0, 0)], [(0, 2), (1, 0)], [(1, 1), (0, 1)]])
def test_calls_of_blocks_are_written_with_their_elements_and_origins(ended: list[tuple[int, int]]) -> None:
    log: Any = Written()
    journaled = Journaled(log, _unused, _unused)
    blocks = [
        Block([f"{of}{n}" for n in range(3)], [None] * 3, [("r", of, n) for n in range(3)]) for of in (0, 1)
    ]
    for of, place in ended:
        blocks[of].outcomes[place] = f"result of {of}{place}"
        journaled.calls.append((blocks[of], place, f"{of}{place}"))

    journaled.write(single=True)

    assert log.results == {("r", of, n): (f"{of}{n}", f"result of {of}{n}") for of, n in ended}
    journaled.write(single=True)
    assert len(log.results) == 2


class WrittenLater(Written):
    """Has what is written on the disk when the test says so."""

    waits = True

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[[], None]] = []

    def when_safe(self, then: Callable[[], None]) -> None:
        self.waiting.append(then)


@pytest.mark.parametrize("outcome", ["one result", Several(["a", "b"]), DROPPED], ids=["one", "some", "none"])
def test_a_result_that_waits_for_the_disk_is_let_go_when_it_is_there(outcome: Any) -> None:
    log: Any = WrittenLater()
    let_go: list[Any] = []
    journaled = Journaled(log, let_go.append, lambda: let_go.append("turn"))
    promise = pending(1, None, ("r", 0))
    journaled.add(promise, outcome)
    journaled.write(single=isinstance(outcome, str))
    assert log.results.keys() == {("r", 0)}
    assert (let_go, promise.outcome, journaled.is_writing()) == ([], PENDING, True)

    log.waiting.pop()()
    assert (let_go, promise.outcome, journaled.is_writing()) == ([promise, "turn"], outcome, False)


def test_an_error_that_cannot_be_written_waits_for_no_disk() -> None:
    log: Any = WrittenLater()
    let_go: list[Any] = []
    journaled = Journaled(log, let_go.append, _unused)
    promise = pending(1, None, ("r", 0))
    journaled.add(promise, Routed("failed", FailedCall(1, ValueError(), 1, None, 0, 0, None)))
    journaled.write(single=False)
    assert (let_go, log.results, log.waiting) == ([promise], {}, [])


def _unused(*_: object) -> None:
    raise AssertionError
