"""
A pipeline with its state on disk, in a process: `python -m tests.crash.disk_app FOLDER STATE BYTES`

It adds up events for each key, keeps so many bytes of each that do not compress, and tells what it has found
at the key's time; sessions of the same keys are counted beside it. Both go into files. The state is in the
directory STATE, or in memory if that is empty. It goes on from its checkpoints, and ends when it may.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

from asyncstream import (
    BoundedOutOfOrderness,
    Checkpoints,
    DirectoryStore,
    DiskState,
    JsonLinesSink,
    JsonLinesSource,
    KeyedContext,
    KeyedProcessFunction,
    Pipeline,
    SessionWindows,
    Sum,
)
from asyncstream.operators.emitting import Emitter
from asyncstream.state import ValueDescriptor
from tests.crash.ending import until_it_may_end

__all__ = ("KEYS", "events", "main")

KEYS = 1_000
ROUNDS = 4
"""Times that each key comes."""

YOUNG_ROWS = 200
NAMES = ("sums", "sessions")


def events(held: int = -1) -> str:
    """All of them; `held` is the place of the one that does not pass until the process may end."""
    rows = [
        {"key": (17 * number) % KEYS, "at": turn * KEYS + number, "value": number % 7}
        for turn in range(ROUNDS)
        for number in range(KEYS)
    ]
    rows[held]["held"] = True
    return "".join(json.dumps(row) + "\n" for row in rows)


class Adds(KeyedProcessFunction[dict[str, Any], dict[str, Any]]):
    """Adds up what comes for a key, and tells it twice: in the midst and at the end."""

    total = ValueDescriptor[int]("total", default=0)
    ballast = ValueDescriptor[bytes]("ballast")

    def __init__(self, size: int) -> None:
        self._size = size

    def open(self, ctx: KeyedContext) -> None:
        self._total, self._ballast = ctx.state(self.total), ctx.state(self.ballast)

    def process_element(self, event: dict[str, Any], ctx: KeyedContext, out: Emitter[dict[str, Any]]) -> None:
        if self._ballast.get() is None:
            self._ballast.set(self._bytes(ctx.key))
            ctx.register_event_timer(2 * KEYS + ctx.key)
            ctx.register_event_timer(ROUNDS * KEYS + ctx.key)
        self._total.set((self._total.get() or 0) + event["value"])

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[dict[str, Any]]) -> None:
        intact = self._ballast.get() == self._bytes(ctx.key)
        out({"key": ctx.key, "at": timestamp, "total": self._total.get(), "intact": intact})

    def _bytes(self, key: int) -> bytes:
        return Random(key).randbytes(self._size)


async def main(folder: Path, state: str, size: int) -> None:
    pipeline = Pipeline("on-disk")
    timed = (
        pipeline.source(JsonLinesSource(folder / "events.jsonl"), name="events")
        .async_map(_slow, concurrency=20, name="calls")
        .event_time(lambda event: event["at"], BoundedOutOfOrderness(0), name="times")
        .key_by(lambda event: event["key"])
    )
    timed.process(Adds(size), name="adds").to(JsonLinesSink(folder / "sums.jsonl"), name="sums")
    windows = timed.window(SessionWindows(timedelta(milliseconds=KEYS // 2)))
    windows.aggregate(Sum(lambda event: event["value"]), name="windows").map(list, name="lists").to(
        JsonLinesSink(folder / "sessions.jsonl"), name="sessions"
    )
    kept = Checkpoints(store=DirectoryStore(folder / "checkpoints"), every=0.1)
    await pipeline.run(checkpoints=kept, state=DiskState(state, young_rows=YOUNG_ROWS) if state else None)


async def _slow(event: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0.002)
    if event.get("held"):
        await until_it_may_end()
    return event


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
