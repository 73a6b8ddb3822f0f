"""Elements that a sink fails on: the job fails, they are left out, or they go aside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    AscendingTimestamps,
    Checkpoints,
    Count,
    FailedCall,
    JsonLinesSink,
    MemoryStore,
    ParquetSink,
    Pipeline,
    PipelineError,
    Sink,
    SinkError,
    SqliteSink,
    TransactionalSink,
    TumblingWindows,
)
from asyncstream.elements import Timestamps
from tests.runtime.parts import run

pytestmark = pytest.mark.usefixtures("virtual_time", "tidy")

POISON = {3, 7, 8, 39}
GOOD = [number for number in range(40) if number not in POISON]


class AllOrNothing(Sink[int]):
    """Refuses a write in which there is poison, and does not say which element it was."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.writes = 0

    async def write(self, values: Sequence[int], timestamps: Timestamps) -> None:
        self.writes += 1
        await asyncio.sleep(0.01)
        if POISON & set(values):
            raise ConnectionError("refused")
        self.rows += values


def one_by_one(rows: list[int]) -> Any:
    calls: list[int] = []

    async def sink(value: int) -> None:
        assert value not in calls, "no element is given to the function twice"
        calls.append(value)
        await asyncio.sleep(0.01)
        if value in POISON:
            raise ConnectionError("refused")
        rows.append(value)

    return sink


def kinds() -> dict[str, tuple[Any, list[int]]]:
    whole, rows = AllOrNothing(), list[int]()
    return {"all_or_nothing": (whole, whole.rows), "function": (one_by_one(rows), rows)}


@pytest.mark.parametrize("kind", kinds())
async def test_skipped_elements_are_counted_and_the_others_written_once(kind: str) -> None:
    sink, rows = kinds()[kind]
    pipeline = Pipeline()
    pipeline.source(range(40), name="in").to(sink, name="out", on_error="skip")

    async with pipeline.start() as job:
        await job.wait()
    assert job.metrics()["out"] == {"written": 36, "waiting": 0, "failed": 4, "skipped": 4}
    assert rows == GOOD


@pytest.mark.parametrize("kind", kinds())
def test_routed_elements_come_out_of_failed(kind: str) -> None:
    sink, rows = kinds()[kind]
    failed: list[FailedCall] = []
    pipeline = Pipeline()
    end = pipeline.source(range(40), name="in").to(sink, name="out", on_error="route")
    end.failed.to(failed, name="dead")
    run(pipeline.run())
    assert rows == GOOD
    assert [call.value for call in failed] == sorted(POISON)
    assert all(isinstance(call.error, ConnectionError) for call in failed)


async def test_fail_is_what_happens_if_nothing_is_said() -> None:
    pipeline = Pipeline()
    pipeline.source(range(40), name="in").to(AllOrNothing(), name="out")

    with pytest.raises(SinkError, match="step 'out': ConnectionError: refused"):
        await pipeline.run()


@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize("is_one_by_one", [False, True])
async def test_what_fails_over_no_element_fails_the_job(many: int, *, is_one_by_one: bool) -> None:
    class TakesAll(Sink[int]):
        one_by_one = is_one_by_one
        count = 0

        async def write(self, values: Sequence[int], timestamps: Timestamps) -> None:
            self.count = len(values)
            raise ConnectionError("when all was taken")

        def taken(self) -> int:
            return self.count

    pipeline = Pipeline()
    pipeline.source(list(range(many))).to(TakesAll(), name="out", on_error="skip")
    with pytest.raises(SinkError, match="step 'out': ConnectionError: when all was taken"):
        await pipeline.run()


async def test_poison_in_files_and_tables(tmp_path: Path) -> None:
    dead: list[FailedCall] = []
    pipeline = Pipeline()
    rows = pipeline.source([{"id": 1}, {"id": object()}, {"id": 3}, {}, {"id": 5}], name="in")
    rows.to(JsonLinesSink(tmp_path / "out"), name="file", on_error="route").failed.to(dead, name="dead")
    rows.to(SqliteSink(tmp_path / "db", "t", columns=["id"]), name="table", on_error="skip")

    async with pipeline.start() as job:
        await job.wait()
    assert job.metrics()["table"]["written"] == 3
    assert job.metrics()["table"]["skipped"] == 2
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert lines == [{"id": 1}, {"id": 3}, {}, {"id": 5}]
    assert len(dead) == 1


async def test_failed_elements_keep_their_event_time_and_are_not_late() -> None:
    counts: list[tuple[int | None, Any]] = []
    pipeline = Pipeline()
    timed = pipeline.source(range(40), name="in").event_time(
        lambda value: value, AscendingTimestamps(), name="t"
    )
    end = timed.to(AllOrNothing(), name="out", on_error="route")
    (
        end.failed.window_all(TumblingWindows(0.01))
        .aggregate(n=Count(), name="w")
        .map(lambda result: (result.start_ms, result.value["n"]), name="pair")
        .to(counts, name="counts")
    )

    async with pipeline.start() as job:
        await job.wait()
    assert job.metrics()["w"]["late_dropped"] == 0
    assert counts == [(0, 3), (30, 1)]


@pytest.mark.parametrize("timeout", [0.0, 0.05, 0.2, 10.0])
@pytest.mark.parametrize("after", [0.0, 0.035, 0.1, 0.3])
async def test_stops_lose_and_double_neither_good_nor_bad(after: float, timeout: float) -> None:
    sink, failed = AllOrNothing(), list[FailedCall]()

    async def slow(call: FailedCall) -> None:
        await asyncio.sleep(0.03)
        failed.append(call)

    pipeline = Pipeline()
    end = pipeline.source(range(40), name="in").to(sink, name="out", on_error="route")
    end.failed.map(lambda call: call, name="same").to(slow, name="dead")

    async with pipeline.start() as job:
        await asyncio.sleep(after)
        snapshot = await job.stop(timeout)
    async with pipeline.start(snapshot=snapshot) as job:
        await job.wait()
    assert sink.rows == GOOD
    assert [call.value for call in failed] == sorted(POISON)


async def test_dead_letters_hold_the_sink_back() -> None:
    gate = asyncio.Event()

    async def stuck(call: FailedCall) -> None:
        await gate.wait()

    def refuses(value: int) -> None:
        raise ValueError(value)

    pipeline = Pipeline()
    pipeline.source(range(20_000), name="in").to(refuses, name="out", on_error="route").failed.to(
        stuck, name="dead"
    )

    async with pipeline.start() as job:
        await asyncio.sleep(1)
        assert job.metrics()["dead"]["waiting"] <= 1100
        assert job.metrics()["in"]["read"] < 10_000
        gate.set()
        await job.wait()
        assert job.metrics()["dead"]["written"] == 20_000


def test_what_cannot_be_right_is_refused(tmp_path: Path) -> None:
    pipeline = Pipeline()
    end = pipeline.source([1], name="in").to([], name="out")
    with pytest.raises(PipelineError, match="give it on_error='route'"):
        _ = end.failed
    with pytest.raises(PipelineError, match="on_error"):
        pipeline.source([1]).to([], on_error="ignore")  # type: ignore[arg-type]
    pipeline = Pipeline()
    end = pipeline.source([1], name="in").to(JsonLinesSink(tmp_path / "out"), name="out", on_error="route")
    with pytest.raises(PipelineError, match=r"'out' sends elements to its output .failed, which"):
        pipeline.start()
    end.failed.discard(name="dead")
    with pytest.raises(PipelineError, match="'out': a transactional sink in a job with checkpoints cannot"):
        pipeline.start(checkpoints=Checkpoints(store=MemoryStore()))
    run(pipeline.run())


@pytest.mark.parametrize(
    "sink",
    [
        lambda folder: JsonLinesSink(folder / "out"),
        lambda folder: ParquetSink(folder / "out"),
        lambda folder: SqliteSink(folder / "out", "numbers", columns=["n"]),
    ],
    ids=["file", "folder", "table"],
)
async def test_two_steps_do_not_share_what_is_written_exactly_once(
    tmp_path: Path, sink: Callable[[Path], TransactionalSink[Any]]
) -> None:
    """Each would take back, or keep, what the other one has written since a checkpoint."""
    pipeline = Pipeline()
    numbers = pipeline.source([{"n": 1}], name="in")
    numbers.to(sink(tmp_path), name="even")
    numbers.to(sink(tmp_path), name="odd")
    with pytest.raises(SinkError, match="another step of this job: give each its own, or unite them"):
        await pipeline.run(checkpoints=Checkpoints(store=MemoryStore()))
