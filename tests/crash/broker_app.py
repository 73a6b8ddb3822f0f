"""
A pipeline between two servers, in a process of its own, to be killed:
`python -m tests.crash.broker_app FOLDER REDIS POSTGRES`

Entries of a stream of Redis are read as a member of a group, enriched by calls of a few milliseconds, and
written to a table of PostgreSQL. It says "reading" with its first call, and ends when there are no more.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from asyncstream import Checkpoints, DirectoryStore, Pipeline, PostgresSink, RedisGroupSource
from tests.crash.app import LEASE

__all__ = ("GROUP", "STREAM", "main")

STREAM, GROUP = "events", "enrichers"

_said: list[str] = []


async def enrich(event: dict[str, Any]) -> dict[str, Any]:
    if not _said:
        _said.append("reading")
        print(*_said, flush=True)
    await asyncio.sleep(0.002 * (1 + event["id"] % 5))
    return event | {"doubled": 2 * event["id"]}


async def run(folder: Path, redis: str, postgres: str) -> None:
    pipeline = Pipeline("between servers")
    source = RedisGroupSource[dict[str, Any]](redis, STREAM, group=GROUP, ends=True, batch=50)
    (
        pipeline.source(source, name="events")
        .async_map(enrich, name="enrich", order="unordered", concurrency=16)
        .to(PostgresSink(postgres, "results", columns=["id", "doubled"]), name="results")
    )
    store = DirectoryStore(folder / "checkpoints")
    await pipeline.run(checkpoints=Checkpoints(store=store, every=0.05, lease=LEASE, on_held="wait", keep=2))


def main() -> None:
    folder, redis, postgres = sys.argv[1:]
    asyncio.run(run(Path(folder), redis, postgres))


if __name__ == "__main__":
    main()
