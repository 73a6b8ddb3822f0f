"""A job is stopped while its sink writes: what the sink has taken is not in the snapshot, all else is."""

# ruff: noqa: PT012 - what a job raises comes out of its block

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from asyncstream import Job, JobSnapshot, JsonLinesSink, Pipeline, Sink, SinkError, SqliteSink
from asyncstream.elements import Timestamps

COUNT = 40


class KnowsWhatItTook(Sink[Any]):
    """Takes one element in 0.1 s, and says how many it has."""

    one_by_one = True

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.number = 0

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self.number = 0
        for value in values:
            await asyncio.sleep(0.1)
            self.rows.append(value)
            self.number += 1

    def taken(self) -> int:
        return self.number


class FinishesInSpiteOfIt(KnowsWhatItTook):
    """Swallows its cancellation, and takes everything."""

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        for value in values:
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                pass
            self.rows.append(value)


def called(rows: list[Any]) -> Callable[[Any], Awaitable[None]]:
    async def sink(value: Any) -> None:
        await asyncio.sleep(0.1)
        rows.append(value)

    return sink


def sinks() -> dict[str, tuple[Any, Callable[[], list[Any]]]]:
    rows: list[Any] = []
    knows, finishes = KnowsWhatItTook(), FinishesInSpiteOfIt()
    return {
        "async_function": (called(rows), lambda: rows),
        "function": (rows.append, lambda: rows),
        "list": (rows, lambda: rows),
        "own": (knows, lambda: knows.rows),
        "own_that_finishes": (finishes, lambda: finishes.rows),
    }


@pytest.mark.parametrize("timeout", [0.0, 0.05, 0.1, 0.75, 100.0])
@pytest.mark.parametrize("after", [0.0, 0.05, 0.1, 1.25])
@pytest.mark.parametrize("kind", sinks())
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_nothing_is_lost_or_written_twice(kind: str, after: float, timeout: float) -> None:
    sink, rows = sinks()[kind]
    pipeline = Pipeline()
    pipeline.source(range(COUNT), name="in").to(sink, name="out")

    async with pipeline.start() as job:
        await asyncio.sleep(after)
        snapshot = await job.stop(timeout)
        taken = len(rows())
        if job.metrics()["in"]["read"]:
            assert snapshot.operators["out"][0] == list(range(taken, COUNT))
        assert job.metrics()["out"]["written"] == taken
    async with pipeline.start(snapshot=snapshot) as job:
        await job.wait()
    assert rows() == list(range(COUNT))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_sink_that_does_not_know_gets_a_write_that_was_cut_short_again() -> None:
    class Plain(KnowsWhatItTook):
        def taken(self) -> int:
            return 0

    sink = Plain()
    pipeline = Pipeline()
    pipeline.source(range(COUNT), name="in").to(sink, name="out")

    async with pipeline.start() as job:
        await asyncio.sleep(1.05)
        snapshot = await job.stop(0)
    async with pipeline.start(snapshot=snapshot) as job:
        await job.wait()
    assert Counter(sink.rows) == Counter([*range(10), *range(COUNT)])


@pytest.mark.parametrize("on_error", ["skip", "route"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_sink_that_fails_over_its_cancellation_loses_no_element(count: int, on_error: Any) -> None:
    """As a client does that says of everything that its connection is gone."""

    class Interrupted(Sink[int]):
        one_by_one = True

        async def write(self, values: Sequence[int], timestamps: Timestamps) -> None:
            try:
                await asyncio.sleep(1_000)
            except asyncio.CancelledError:
                raise ConnectionError("interrupted") from None

    pipeline = Pipeline()
    end = pipeline.source(range(count), name="in").to(Interrupted(), name="out", on_error=on_error)
    if on_error == "route":
        end.failed.to([], name="failed")
    async with pipeline.start() as job:
        await asyncio.sleep(1)
        snapshot = await job.stop(1)
    assert snapshot.operators["out"][0] == list(range(count))
    assert job.metrics()["out"]["failed"] == 0


@pytest.mark.parametrize("wrong", [-1, 41, "all"])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_sink_that_says_nonsense_is_named(wrong: Any) -> None:
    class Liar(KnowsWhatItTook):
        def taken(self) -> int:
            return wrong  # type: ignore[no-any-return]

    pipeline = Pipeline()
    pipeline.source(range(COUNT), name="in").to(Liar(), name="out")

    with pytest.raises(SinkError, match=r"step 'out': taken\(\) gave .* of a write of 40 elements"):
        async with pipeline.start() as job:
            await asyncio.sleep(1)
            await job.stop(0)


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_results_that_wait_for_room_are_given_once() -> None:
    pipeline = Pipeline()
    pipeline.submissions(name="in").results(limit=2, name="out")

    got: list[Any] = []
    async with pipeline.start() as job:
        for number in range(10):
            await job.submit(number)
        await asyncio.sleep(1)
        assert job.snapshot().operators["out"][0] == []
        snapshot = await job.stop(0)
        got += [result async for result in job.results()]
    async with pipeline.start(snapshot=snapshot) as job:
        await job.drain()
        got += [result async for result in job.results()]
    assert got == list(range(10))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_snapshot_of_a_running_job_knows_what_its_sink_has_taken() -> None:
    sink = KnowsWhatItTook()
    pipeline = Pipeline()
    pipeline.source(range(COUNT), name="in").to(sink, name="out")

    async with pipeline.start() as job:
        for _ in range(5):
            await asyncio.sleep(0.35)
            assert job.snapshot().operators["out"][0] == list(range(len(sink.rows), COUNT))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_failed_write_leaves_what_was_not_taken() -> None:
    rows: list[int] = []

    async def sink(value: int) -> None:
        await asyncio.sleep(0.1)
        if value == 5:
            raise ValueError(value)
        rows.append(value)

    pipeline = Pipeline()
    pipeline.source(range(COUNT), name="in").to(sink, name="out")

    job: Job
    with pytest.raises(Exception, match="step 'out'"):
        async with pipeline.start() as job:
            await job.wait()
    assert job.snapshot().operators["out"][0] == list(range(5, COUNT))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_file_sink_that_fails_knows_how_many_lines_it_has(tmp_path: Path) -> None:
    pipeline = Pipeline()
    pipeline.source([0, 1, 2, object(), 4], name="in").to(JsonLinesSink(tmp_path / "out"), name="out")

    with pytest.raises(SinkError):
        async with pipeline.start() as job:
            await job.wait()
    assert len(job.snapshot().operators["out"][0]) == 2
    assert [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()] == [0, 1, 2]


# ---------------------------------------------------------------------- a database that works in threads


def ids(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM t ORDER BY id")]


@pytest.mark.parametrize("is_released", [False, True], ids=["still_locked", "released"])
async def test_row_that_a_locked_database_got_is_not_in_the_snapshot(
    tmp_path: Path, is_released: bool
) -> None:
    path = tmp_path / "db"
    sink = SqliteSink(path, "t", columns=["id"])
    pipeline = Pipeline()
    pipeline.submissions(name="in").to(sink, name="out")
    writing = threading.Event()

    class Telling(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if sql == "BEGIN IMMEDIATE":
                writing.set()
            return super().execute(sql, *arguments)

    async with pipeline.start() as job:
        database = sink._database
        assert database is not None
        database._connection.close()
        database._connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, factory=Telling
        )
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        for number in range(10):
            await job.submit({"id": number})
        assert await asyncio.to_thread(writing.wait, 30)
        if is_released:
            asyncio.get_running_loop().call_soon(other.execute, "COMMIT")
        snapshot = await job.stop(timeout=60 if is_released else 0.05)
        left = len(snapshot.operators["out"][0])
        if not is_released:
            other.execute("COMMIT")
        other.close()
    assert left + len(ids(path)) == 10
    assert left == (0 if is_released else 10)
    async with pipeline.start(snapshot=snapshot) as job:
        await job.drain()
    assert ids(path) == list(range(10))


async def test_write_that_has_begun_to_commit_is_waited_for_and_counts(tmp_path: Path) -> None:
    path = tmp_path / "db"
    sink = SqliteSink(path, "t", columns=["id"])
    committing, go_on = threading.Event(), threading.Event()

    class SlowToCommit(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if sql == "COMMIT" and self.total_changes:
                committing.set()
                go_on.wait(10)
            return super().execute(sql, *arguments)

    async def main() -> JobSnapshot:
        async with pipeline.start() as job:
            database = sink._database
            assert database is not None
            database._connection.close()
            database._connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, factory=SlowToCommit
            )
            await job.submit({"id": 1})
            await asyncio.to_thread(committing.wait, 10)
            stop = asyncio.create_task(job.stop(timeout=0))
            await asyncio.sleep(0.05)
            go_on.set()
            return await stop

    pipeline = Pipeline()
    pipeline.submissions(name="in").to(sink, name="out")
    snapshot = await main()
    assert snapshot.operators["out"][0] == []
    assert ids(path) == [1]
