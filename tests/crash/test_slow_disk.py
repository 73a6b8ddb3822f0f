"""A disk that takes long to answer, or never does, holds up the job, and nobody else in its event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    Checkpoints,
    CsvSink,
    DirectoryStore,
    JsonLinesSink,
    Pipeline,
    SqliteSink,
    SqliteStore,
)
from asyncstream.checkpoint import CheckpointStore


class Disk:
    """Notes in which threads something is brought to the disk, and can stop to answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[int] = []
        self.asked, self.answers = threading.Event(), threading.Event()
        self.answers.set()
        real: Callable[..., Any] = os.fsync

        def fsync(file: int) -> None:
            self.threads.append(threading.get_ident())
            self.asked.set()
            if not self.answers.wait(60):
                raise OSError("the test is over")
            real(file)

        monkeypatch.setattr(os, "fsync", fsync)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def writing(folder: Path, count: int = 20) -> Pipeline:
    pipeline = Pipeline()
    rows = pipeline.source([{"id": number} for number in range(count)], name="rows")
    rows.to(JsonLinesSink(folder / "out.jsonl"), name="lines")
    rows.to(CsvSink(folder / "out.csv", columns=["id"]), name="csv")
    rows.to(SqliteSink(folder / "out.db", "t", columns=["id"]), name="table")
    return pipeline


@pytest.mark.parametrize("place", ["kept", "kept.db"])
def test_nothing_is_brought_to_the_disk_in_the_event_loop(tmp_path: Path, disk: Disk, place: str) -> None:
    async def main() -> None:
        for _ in range(2):  # at first, and going on
            path = tmp_path / place
            store: CheckpointStore = SqliteStore(path) if place.endswith(".db") else DirectoryStore(path)
            async with writing(tmp_path).start(checkpoints=Checkpoints(store=store)) as job:
                await job.wait()

    asyncio.run(main())
    assert len(disk.threads) > 8
    assert threading.get_ident() not in disk.threads


def test_file_that_is_taken_over_when_nobody_waits_for_it_any_more_is_let_go(
    tmp_path: Path, disk: Disk
) -> None:
    path = tmp_path / "out.jsonl"

    async def main() -> None:
        disk.answers.clear()
        sink = JsonLinesSink(path)
        taking = asyncio.ensure_future(sink.recover(None))
        await asyncio.to_thread(disk.asked.wait, 20)
        taking.cancel()
        await asyncio.wait({taking})
        await sink.close()
        disk.answers.set()
        for thread in threading.enumerate():
            if thread.name == "asyncstream disk":
                await asyncio.to_thread(thread.join, 20)
        other = JsonLinesSink(path, existing="append")
        await other.open()  # refused as long as another has it open
        await other.close()

    asyncio.run(main())
