"""
A pipeline between two servers, in a process of its own, to be killed:
`python -m tests.crash.broker_app FOLDER REDIS|MQTT POSTGRES`

Entries of a stream of Redis are read as a member of a group, or messages of a topic of MQTT; they are
enriched by calls of a few milliseconds, and written to a table of PostgreSQL. It says "reading" with its
first call. With Redis it ends when there are no more entries, and it may.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from asyncstream import Checkpoints, DirectoryStore, Pipeline, PostgresSink, RedisGroupSource, Source
from asyncstream.connectors.mqtt import MqttSource
from tests.crash.app import LEASE
from tests.crash.ending import until_it_may_end

__all__ = ("GROUP", "STREAM", "events_of", "main")

STREAM, GROUP = "events", "enrichers"

_said: list[str] = []


async def enrich(event: dict[str, Any]) -> dict[str, Any]:
    if not _said:
        _said.append("reading")
        print(*_said, flush=True)
    await asyncio.sleep(0.002 * (1 + event["id"] % 5))
    if event.get("last"):
        await until_it_may_end()
    return event | {"doubled": 2 * event["id"]}


def events_of(url: str) -> Source[dict[str, Any]]:
    if url.startswith("mqtt"):
        return MqttSource(url, STREAM, client_id=GROUP, unacknowledged=40, batch=20)
    return RedisGroupSource(url, STREAM, group=GROUP, ends=True, batch=50)


async def run(folder: Path, broker: str, postgres: str) -> None:
    pipeline = Pipeline("between servers")
    (
        pipeline.source(events_of(broker), name="events")
        .async_map(enrich, name="enrich", order="unordered", concurrency=16)
        .to(PostgresSink(postgres, "results", columns=["id", "doubled"]), name="results")
    )
    store = DirectoryStore(folder / "checkpoints")
    await pipeline.run(checkpoints=Checkpoints(store=store, every=0.05, lease=LEASE, on_held="wait", keep=2))


def main() -> None:
    folder, broker, postgres = sys.argv[1:]
    asyncio.run(run(Path(folder), broker, postgres))


if __name__ == "__main__":
    main()
