"""What was there before stays as it is if the job that was to replace it fails, is left, or cannot start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    ArrowIpcSink,
    CsvSink,
    Job,
    JsonLinesSink,
    JsonLinesSource,
    ParquetSink,
    Pipeline,
    Sink,
    SinkError,
    SourceError,
    UserFunctionError,
)
from asyncstream.connectors import CsvFolderSink, JsonLinesFolderSink
from asyncstream.testing.loop import run_virtual

WHOLE: dict[str, Callable[..., Sink[Any]]] = {
    "parquet": ParquetSink,
    "arrow": ArrowIpcSink,
    "parquet partitions": lambda path, **options: ParquetSink(path, partition_by="day", **options),
    "json folder": JsonLinesFolderSink,
    "csv folder": CsvFolderSink,
}
"""Sinks whose files are complete when they have their names."""

LINES: dict[str, Callable[..., Sink[Any]]] = {
    "json": JsonLinesSink,
    "csv": CsvSink,
    "gzip": lambda path, **options: JsonLinesSink(path, compression="gzip", **options),
}
"""Sinks whose file grows with what comes."""


def contents(path: Path) -> dict[str, bytes]:
    """What there is at a path, and hidden beside it, by name."""
    return {str(each): each.read_bytes() for each in path.parent.rglob("*") if each.is_file()}


def rows(first: int) -> list[dict[str, int]]:
    return [{"day": number % 2, "id": number} for number in range(first, first + 10)]


def written(make: Callable[..., Sink[Any]], path: Path) -> dict[str, bytes]:
    """What a job has left that came to its end."""
    pipeline = Pipeline()
    pipeline.source(rows(0)).to(make(str(path)))
    run_virtual(pipeline.run())
    return contents(path)


async def all_written(job: Job) -> None:
    while job.metrics()["out"]["written"] < 10:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(1)


async def fails(sink: Sink[Any]) -> None:
    """The step fails over the last element."""

    def ratio(row: dict[str, int]) -> dict[str, float]:
        return row | {"ratio": 1 / (19 - row["id"])}

    pipeline = Pipeline()
    pipeline.source(rows(10)).map(ratio).to(sink)
    await pipeline.run()


async def is_left(sink: Sink[Any]) -> None:
    """The block in which the job runs raises when all are written."""
    pipeline = Pipeline()
    pipeline.submissions(name="in").to(sink, name="out")
    async with pipeline.start() as job:
        for row in rows(10):
            await job.submit(row)
        await all_written(job)
        raise ZeroDivisionError


async def is_cancelled(sink: Sink[Any]) -> None:
    """Who waits for the job waits no longer."""

    async def endless() -> AsyncIterator[dict[str, int]]:
        for row in rows(10):
            yield row
        await asyncio.sleep(1e9)

    pipeline = Pipeline()
    pipeline.source(endless()).to(sink)
    async with asyncio.timeout(10):
        await pipeline.run()


async def cannot_start(sink: Sink[Any]) -> None:
    """There is nothing to read."""
    pipeline = Pipeline()
    pipeline.source(JsonLinesSource("not there")).to(sink)
    await pipeline.run()


ENDS = [
    (fails, UserFunctionError),
    (is_left, ZeroDivisionError),
    (is_cancelled, TimeoutError),
    (cannot_start, SourceError),
]


@pytest.mark.parametrize(("end", "error"), ENDS)
@pytest.mark.parametrize("kind", WHOLE)
def test_what_is_whole_is_not_replaced_by_a_part(
    kind: str, end: Callable[..., Any], error: type[Exception], tmp_path: Path
) -> None:
    path = tmp_path / "out"
    before = written(WHOLE[kind], path)
    assert before
    with pytest.raises(error):
        run_virtual(end(WHOLE[kind](str(path), existing="overwrite")))
    assert contents(path) == before


@pytest.mark.parametrize(("end", "error"), ENDS)
@pytest.mark.parametrize("kind", WHOLE)
def test_a_part_gets_no_name(
    kind: str, end: Callable[..., Any], error: type[Exception], tmp_path: Path
) -> None:
    path = tmp_path / "out"
    with pytest.raises(error):
        run_virtual(end(WHOLE[kind](str(path))))
    assert contents(path) == {}


@pytest.mark.parametrize("kind", [*WHOLE, *LINES])
def test_what_a_job_that_is_stopped_has_written_stays(kind: str, tmp_path: Path) -> None:
    make, path = (WHOLE | LINES)[kind], tmp_path / "out"
    before = written(make, path)

    async def main() -> None:
        pipeline = Pipeline()
        pipeline.submissions(name="in").to(make(str(path), existing="overwrite"), name="out")
        async with pipeline.start() as job:
            for row in rows(10):
                await job.submit(row)
            await all_written(job)
            await job.stop(timeout=0)

    run_virtual(main())
    after = contents(path)
    assert len(after) == len(before)
    assert set(after.values()).isdisjoint(before.values())


@pytest.mark.parametrize("kind", LINES)
def test_lines_stay_until_others_come(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    before = written(LINES[kind], path)

    async def fails_at_once(sink: Sink[Any]) -> None:
        pipeline = Pipeline()
        pipeline.source([0]).map(lambda number: {"ratio": 1 / number}).to(sink)
        await pipeline.run()

    for end in (cannot_start, fails_at_once):
        with pytest.raises((SourceError, UserFunctionError)):
            run_virtual(end(LINES[kind](str(path), existing="overwrite")))
        assert contents(path) == before


@pytest.mark.parametrize("kind", LINES)
def test_lines_go_with_the_first_that_come_or_at_an_end_without_any(kind: str, tmp_path: Path) -> None:
    path, other = tmp_path / "out", tmp_path / "other"
    written(LINES[kind], path)
    for values in (rows(20), []):
        for target, options in ((path, {"existing": "overwrite"}), (other, {})):
            other.unlink(missing_ok=True)
            pipeline = Pipeline()
            pipeline.source(values).to(LINES[kind](str(target), **options))
            run_virtual(pipeline.run())
        assert path.read_bytes() == other.read_bytes()


def test_what_a_sink_says_of_that_does_not_hide_why() -> None:
    class Broken(Sink[Any]):
        async def write_batch(self, values: Any) -> None:
            pass

        def cut_short(self) -> None:
            raise SinkError("no")

    with pytest.raises(UserFunctionError, match="division by zero"):
        run_virtual(fails(Broken()))
