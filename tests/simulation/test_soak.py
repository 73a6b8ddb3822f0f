"""
An hour of events, in seconds: memory stays where it is.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from asyncstream import (
    BoundedOutOfOrderness,
    Pipeline,
    SessionWindows,
    Sink,
    Source,
    SourceBatch,
    TumblingWindows,
)
from asyncstream.checkpoint import Checkpoints, MemoryStore
from asyncstream.elements import Timestamps
from asyncstream.testing.loop import VirtualTimeLoop
from asyncstream.windowing.aggregates import Count, Sum

HOUR = 3600
PER_SECOND = 20
SAMPLE = 300
"""Seconds between two looks at the memory."""


class Events(Source[dict[str, Any]]):
    """Twenty events a second, of many users who come and go; can be replayed."""

    def __init__(self) -> None:
        self._second = 0
        self.blocks: list[int] = []

    async def read(self) -> SourceBatch[dict[str, Any]] | None:
        await asyncio.sleep(1)
        if self._second >= HOUR:
            return None
        if self._second % SAMPLE == 0:
            gc.collect()
            self.blocks.append(sys.getallocatedblocks())
        self._second += 1
        random = Random(self._second)
        # a few hundred users at a time, others every ten minutes: who has gone must be forgotten
        users = self._second // 600 * 1000
        return SourceBatch(
            [
                {
                    "user": users + random.randrange(300),
                    "at": self._second * 1000 - random.randrange(3000),
                    "n": 1,
                }
                for _ in range(PER_SECOND)
            ]
        )

    def position(self) -> int:
        return self._second

    async def seek(self, position: int) -> None:
        self._second = position


class Counting(Sink[Any]):
    def __init__(self) -> None:
        self.results = 0
        self.events = 0

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self.results += len(values)
        self.events += sum(result.value["n"] for result in values)


@pytest.mark.usefixtures("others_gone")
@pytest.mark.slow
def test_hour_of_events_leaves_memory_where_it_was() -> None:
    random = Random(0)
    source, tumbling, sessions = Events(), Counting(), Counting()

    async def enrich(event: dict[str, Any]) -> dict[str, Any]:
        if random.random() < 0.9:
            await asyncio.sleep(random.expovariate(10))
        return event | {"plane": f"N{event['user']}"}

    async def main() -> None:
        pipeline = Pipeline()
        events = pipeline.source(source, name="events").event_time(
            lambda event: event["at"], BoundedOutOfOrderness(3.0), name="time"
        )
        keyed = events.async_map(enrich, timeout=30.0, concurrency=100, name="enrich").key_by(
            lambda event: event["user"]
        )
        minutes = keyed.window(TumblingWindows(60)).aggregate(n=Count(), total=Sum("n"), name="minutes")
        visits = keyed.window(SessionWindows(20)).aggregate(n=Count(), total=Sum("n"), name="visits")
        minutes.to(tumbling, name="to minutes")
        visits.to(sessions, name="to visits")
        clock = asyncio.get_running_loop()
        assert isinstance(clock, VirtualTimeLoop)
        await pipeline.run(clock=clock, checkpoints=Checkpoints(store=MemoryStore(), every=10))

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
    assert tumbling.events == sessions.events == HOUR * PER_SECOND
    # the first samples see things being built up
    settled, rest = source.blocks[2], source.blocks[3:]
    assert max(rest) < settled * 1.03, source.blocks
