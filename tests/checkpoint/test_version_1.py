"""
A checkpoint in version 1 of the format is read, and gone on from.

The fixture holds, of 3,000 elements: 10 calls in flight, and an hour's window of 1,100 keys.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    BoundedOutOfOrderness,
    Checkpoints,
    Count,
    DirectoryStore,
    Pipeline,
    SqliteStore,
    Sum,
    TumblingWindows,
)
from asyncstream.checkpoint import CheckpointStore, History
from asyncstream.codec import JsonCodec

FIXTURES = Path(__file__).parent / "version_1"


@pytest.fixture(params=["directory", "kept.sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    """A copy, for going on means to write."""
    if request.param == "directory":
        return DirectoryStore(shutil.copytree(FIXTURES / "directory", tmp_path / "kept"))
    return SqliteStore(shutil.copy(FIXTURES / "kept.sqlite", tmp_path))


def test_it_says_what_it_is(store: CheckpointStore) -> None:
    info, states = asyncio.run(History(store, JsonCodec()).read(2))
    assert (info.id, info.pipeline, info.lease, info.stored) == (2, "version 1", 0, frozenset())
    assert {name: step.schema for name, step in info.steps.items()} == dict.fromkeys(info.steps)
    assert info.size == 59_470
    assert {entry[1]["id"] for entry in states["call"] if entry[0] == "call"} == set(range(2990, 3000))


def test_a_job_goes_on_from_it(store: CheckpointStore) -> None:
    out: list[Any] = []

    async def call(event: dict[str, int]) -> dict[str, int]:
        return event

    pipeline = Pipeline("version 1")
    (
        pipeline.submissions(name="in")
        .event_time(lambda event: event["at"], BoundedOutOfOrderness(0.001), name="time")
        .async_map(call, name="call", concurrency=20)
        .key_by(lambda event: event["id"] % 1100)
        .window(TumblingWindows(3600))
        .aggregate(name="window", n=Count(), total=Sum("at"))
        .to(out, name="list")
    )

    async def main() -> None:
        async with pipeline.start(checkpoints=Checkpoints(store=store, allow_dropped=["out"])) as job:
            await job.drain()

    asyncio.run(main())
    assert sorted((result.key, result.value["n"], result.value["total"]) for result in out) == [
        (key, len(ids), sum(ids)) for key in range(1100) for ids in [range(key, 3000, 1100)]
    ]
    assert max(asyncio.run(store.numbers())) > 2
