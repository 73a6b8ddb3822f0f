"""
A copy of a store of checkpoints: a job on it takes nothing from the job that goes on, and what the one has
written to a sink is not taken by the other for its own.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    Checkpoints,
    DirectoryStore,
    JsonLinesFolderSink,
    JsonLinesSink,
    Pipeline,
    Sink,
    SqliteSink,
    SqliteStore,
)
from asyncstream.checkpoint import CheckpointStore
from asyncstream.connectors.writer import Writer
from asyncstream.errors import SinkError
from asyncstream.lease import Holder, Lease, enter, following, leave

SINKS: dict[str, Callable[[Path], Sink[Any]]] = {
    "lines": lambda folder: JsonLinesSink(folder / "out.jsonl"),
    "folder": lambda folder: JsonLinesFolderSink(folder / "out"),
    "sqlite": lambda folder: SqliteSink(folder / "out.sqlite", table="out", columns=["value"]),
}


def written(folder: Path) -> list[str]:
    files = [path for path in (folder / "out.jsonl", *sorted(folder.glob("out/*.jsonl"))) if path.exists()]
    if files:
        return [json.loads(line)["value"] for path in files for line in path.read_text().splitlines()]
    with closing(sqlite3.connect(folder / "out.sqlite")) as database:
        return [row[0] for row in database.execute("SELECT value FROM out ORDER BY rowid")]


def copied(store: Path) -> CheckpointStore:
    """A copy of a store, in which the lease has run out meanwhile."""
    copy = store.with_name("copy")
    if store.is_dir():
        shutil.copytree(store, copy)
        (lease,) = copy.glob("lease-*")
        lease.write_bytes(Lease.from_json(lease.read_bytes()).renewed(1).to_json())
        return DirectoryStore(copy)
    with closing(sqlite3.connect(store)) as database, closing(sqlite3.connect(copy)) as other, other:
        database.backup(other)
        (text,) = other.execute("SELECT lease FROM asyncstream_checkpoints_lease").fetchone()
        text = Lease.from_json(text).renewed(1).to_json()
        other.execute("UPDATE asyncstream_checkpoints_lease SET lease = ?", (text,))
    return SqliteStore(copy)


@pytest.fixture(params=["directory", "sqlite store"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    path = tmp_path / "kept"
    return DirectoryStore(path) if request.param == "directory" else SqliteStore(path)


@pytest.fixture(params=SINKS)
def pipeline(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Pipeline]:
    def make() -> Pipeline:
        made = Pipeline("copied")
        values = made.submissions(name="in").map(lambda value: {"value": value})
        values.to(SINKS[request.param](tmp_path), name="out")
        return made

    return make


async def life(pipeline: Pipeline, store: CheckpointStore, values: str, **settings: Any) -> None:
    async with pipeline.start(checkpoints=Checkpoints(store=store, **settings)) as job:
        for value in values:
            await job.submit(value)
            await job.checkpoint()
        await job.stop()


async def test_job_on_a_copy_takes_nothing_from_the_one_that_goes_on(
    tmp_path: Path, store: CheckpointStore, pipeline: Callable[[], Pipeline]
) -> None:
    async with pipeline().start(checkpoints=Checkpoints(store=store)) as job:
        await job.submit("a")
        await job.checkpoint()
        copy = copied(tmp_path / "kept")
        with pytest.raises(SinkError, match=r"in use by process \d+ .*store of checkpoints is a copy"):
            await life(pipeline(), copy, "x")
        for _ in range(40):  # that of a refused start counts, too
            with pytest.raises(SinkError, match="is a copy"):
                await life(pipeline(), copy, "x")
        await job.submit("b")
        await job.checkpoint()
        await job.stop()
    assert written(tmp_path) == ["a", "b"]


async def test_what_a_job_on_a_copy_wrote_is_not_taken_for_ones_own(
    tmp_path: Path, store: CheckpointStore, pipeline: Callable[[], Pipeline]
) -> None:
    await life(pipeline(), store, "a")
    copy = copied(tmp_path / "kept")
    await life(pipeline(), copy, "x")
    for _ in range(3):
        with pytest.raises(SinkError, match="on a copy of this store of checkpoints"):
            await life(pipeline(), store, "b")
    assert written(tmp_path) == ["a", "x"]
    await life(pipeline(), copy, "y")
    assert written(tmp_path) == ["a", "x", "y"]


async def test_results_of_a_copy_go_when_that_is_said(
    tmp_path: Path, store: CheckpointStore, pipeline: Callable[[], Pipeline]
) -> None:
    await life(pipeline(), store, "a")
    await life(pipeline(), copied(tmp_path / "kept"), "x")
    await life(pipeline(), store, "b", ahead="start_over")
    await life(pipeline(), store, "c")
    assert written(tmp_path) == ["a", "b", "c"]


async def test_results_of_a_copy_stay_when_that_is_said(
    tmp_path: Path, store: CheckpointStore, pipeline: Callable[[], Pipeline]
) -> None:
    await life(pipeline(), store, "a")
    await life(pipeline(), copied(tmp_path / "kept"), "x")
    await life(pipeline(), store, "b", ahead="allow_behind")
    await life(pipeline(), store, "c")
    assert written(tmp_path) == ["a", "x", "b", "c"]


# ---------------------------------------------------------------------- the rule


def holder_of(*, lives: bool) -> Holder:
    holder = Holder.here(0)
    enter(holder, lambda: lives)
    return holder


def writer(lease: Lease) -> Writer:
    return Writer(lease, 3, "refuse")


def test_who_was_followed_for_it_was_silent_is_in_nobodys_way() -> None:
    """What it wrote last shows a time that is not later than that of which the store knew."""
    holder = holder_of(lives=True)
    old = following(None, holder, 30.0, 1_000, "it")
    new = following(old, holder_of(lives=True), 30.0, 31_001, "it")
    writer(new).check_follows(old, "it")
    assert writer(new).fences(old, 0)
    leave(holder)


@pytest.mark.parametrize("end", ["released", "dead"])
def test_who_came_to_an_end_is_in_nobodys_way_though_it_could_not_say_so_to_the_sink(end: str) -> None:
    elsewhere = replace(holder_of(lives=False), host="")  # which cannot be looked at from here
    old = following(None, elsewhere if end == "released" else holder_of(lives=False), 1e12, 1_000, "it")
    left = old.given_back() if end == "released" else old
    new = left
    for _ in range(2):
        new = following(new, holder_of(lives=False), 1.0, 2_000, "it")
    writer(new).check_follows(old, "it")
    assert writer(new).fences(old, 0)


def test_lease_keeps_what_was_before_it_and_no_more_than_that() -> None:
    lease = following(None, holder_of(lives=False), 1.0, 0, "it")
    for _ in range(100):
        lease = following(lease.given_back(), holder_of(lives=False), 1.0, 0, "it")
    assert [one.number for one in lease.before] == list(range(100, 68, -1))
    assert Lease.from_json(lease.to_json()) == lease
    assert len(lease.to_json()) < 2_000
