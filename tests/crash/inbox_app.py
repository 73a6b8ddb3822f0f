"""
A pipeline with an inbox, in a process of its own, to be killed: `python -m tests.crash.inbox_app FOLDER`

Clients submit events durably, 40 at a time, and note in a file which ones were accepted. Started again, they
submit those again that were not, and some that were. A further argument is a point in the program, as for
`tests.crash.app`. It ends with status 0 when all were accepted and it may end.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Any

from asyncstream import (
    BoundedOutOfOrderness,
    Checkpoints,
    Count,
    DirectoryStore,
    Inbox,
    Job,
    JsonLinesSink,
    Pipeline,
    SqliteSink,
    TumblingWindows,
)
from tests.crash.app import LEASE, flat, signal_at
from tests.crash.ending import until_it_may_end

__all__ = ("EVENTS", "build", "main")

EVENTS = 4000

THINKING = 0.03
"""Seconds between two events of a client, so that there is something left to accept for many lives."""


async def enrich(event: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0.001 * (event["id"] % 3))
    return event | {"doubled": 2 * event["id"]}


def build(folder: Path) -> Pipeline:
    pipeline = Pipeline("crash")
    events = pipeline.submissions(inbox=Inbox(folder / "inbox.sqlite"), limit=200, name="events")
    enriched = events.async_map(enrich, name="enrich", order="unordered", concurrency=16)
    enriched.to(
        SqliteSink(folder / "results.sqlite", "results", columns=("id", "doubled")), name="results table"
    )
    (
        enriched.event_time(lambda event: event["id"], BoundedOutOfOrderness(1000), name="time")
        .key_by(lambda event: event["id"] % 7)
        .window(TumblingWindows(1))
        .aggregate(name="counts", n=Count())
        .map(flat("count"), name="rows")
        .to(JsonLinesSink(folder / "counts.jsonl"), name="counts file")
    )
    return pipeline


def event_id(number: int) -> str:
    return f"event {number}"


class Clients:
    """Those who submit events."""

    def __init__(self, folder: Path) -> None:
        noted = folder / "accepted"
        # a client that was killed while it noted something has noted nothing
        lines = noted.read_text().splitlines(keepends=True) if noted.exists() else []
        self.accepted = [int(line) for line in lines if line.endswith("\n")]
        missing = set(range(EVENTS)).difference(self.accepted)
        self.left = sorted(missing, reverse=True)
        self.again = random.Random(len(lines)).sample(self.accepted, min(50, len(self.accepted)))
        self.notes = os.open(noted, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def submit_all(self, job: Job) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.submit_again(job))
            for _ in range(40):
                group.create_task(self.submit(job))

    async def submit(self, job: Job) -> None:
        while self.left:
            number = self.left.pop()
            await job.submit({"id": number}, durable=True, id=event_id(number))
            os.write(self.notes, f"{number}\n".encode())
            await asyncio.sleep(THINKING)

    async def submit_again(self, job: Job) -> None:
        for number in self.again:
            assert not await job.submit({"id": number}, durable=True, id=event_id(number)), number


async def serve(folder: Path) -> None:
    store = DirectoryStore(folder / "checkpoints")
    checkpoints = Checkpoints(store=store, every=0.05, lease=LEASE, on_held="wait")
    async with build(folder).start(checkpoints=checkpoints, cancel_body=True) as job:
        await Clients(folder).submit_all(job)
        await until_it_may_end()
        await job.drain()


def main() -> None:
    for point in sys.argv[2:]:
        signal_at(point)
    asyncio.run(serve(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
