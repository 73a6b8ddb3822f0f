"""Results of which a checkpoint does not know, in a sink: they stay, go or refuse, as `ahead=` says."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from asyncstream import (
    CheckpointError,
    Checkpoints,
    JsonLinesFolderSink,
    JsonLinesSink,
    MemoryStore,
    Pipeline,
    SinkError,
    SqliteSink,
    TransactionalSink,
)
from asyncstream.lease import Lease

pytestmark = pytest.mark.usefixtures("virtual_time")


class Full(MemoryStore):
    """Takes no checkpoint as long as it is."""

    is_full = True

    async def commit(self, lease: Lease, number: int, manifest: bytes) -> None:
        if self.is_full:
            raise OSError("full")
        await super().commit(lease, number, manifest)


class Place(NamedTuple):
    """Where results go."""

    sink: Callable[[], TransactionalSink[Any]]
    found: Callable[[], list[str]]


def in_lines(*paths: Path) -> Iterator[str]:
    for path in paths:
        for line in path.read_text().splitlines():
            yield json.loads(line)["n"]


def place_of(kind: str, folder: Path) -> Place:
    path = folder / "out"

    def in_table() -> list[str]:
        with closing(sqlite3.connect(path)) as database:
            return [n for (n,) in database.execute("SELECT n FROM t ORDER BY rowid")]

    if kind == "table":
        return Place(lambda: SqliteSink(path, "t", columns=["n"]), in_table)
    if kind == "folder":
        parts = path.glob
        return Place(lambda: JsonLinesFolderSink(path), lambda: list(in_lines(*sorted(parts("*.jsonl")))))
    return Place(lambda: JsonLinesSink(path), lambda: list(in_lines(path)))


@pytest.fixture(params=["file", "folder", "table"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, tmp_path)


async def run(place: Place, store: MemoryStore, names: str, *, killed: bool = False, **settings: Any) -> None:
    """A job that writes an element for each letter; `killed`: before it reads any."""
    pipeline = Pipeline()
    pipeline.source([{"n": name} for name in names], name="in").to(place.sink(), name="out")
    job = pipeline.start(checkpoints=Checkpoints(store=store, **settings))
    if killed:
        with pytest.raises(RuntimeError):
            async with job:
                raise RuntimeError
    else:
        async with job:
            await job.wait()


async def test_a_job_does_not_take_out_what_another_one_has_written_since(place: Place) -> None:
    ours, theirs = MemoryStore(), MemoryStore()
    await run(place, ours, "ab")
    await run(place, theirs, "xy", ahead="allow_behind")
    with pytest.raises(SinkError, match="holds results of a later checkpoint"):
        await run(place, ours, "abc")
    assert place.found() == [*"abxy"]
    await run(place, ours, "abc", ahead="allow_behind")
    await run(place, ours, "abcd")
    assert place.found() == [*"abxycd"]


async def test_what_is_to_be_kept_is_kept_by_each_start_that_says_so(place: Place) -> None:
    store = MemoryStore()
    await run(place, store, "ab", savepoint=True)
    (*_, savepoint) = await store.numbers()
    await run(place, store, "xy", restore="none", ahead="allow_behind")
    for _ in range(3):
        await run(place, store, "abc", killed=True, restore=savepoint, ahead="allow_behind")
    await run(place, store, "abc", restore=savepoint, ahead="allow_behind")
    assert place.found() == [*"abxyc"]


@pytest.mark.parametrize("restore", ["newest", "none"])
async def test_a_start_that_came_to_nothing_does_not_change_what_is_kept(place: Place, restore: Any) -> None:
    await run(place, MemoryStore(), "ab")
    store = Full()
    for _ in range(2):
        with pytest.raises(CheckpointError, match="full"):
            await run(place, store, "xy", restore=restore, ahead="allow_behind", tolerate=0)
    store.is_full = False
    await run(place, store, "xy", restore=restore, ahead="allow_behind")
    assert place.found() == [*"abxy"]


async def test_what_was_allowed_once_needs_not_be_said_again_after_a_crash(place: Place) -> None:
    ours = MemoryStore()
    await run(place, ours, "ab")
    await run(place, MemoryStore(), "xy", ahead="allow_behind")
    await run(place, ours, "abc", killed=True, ahead="allow_behind")
    await run(place, ours, "abc")
    assert place.found() == [*"abxyc"]
