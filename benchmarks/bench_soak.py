"""
Soak: a pipeline with everything in it runs for ten minutes, and does not grow.

    python -m benchmarks soak [--quick]     ten minutes; or twenty seconds

Events are enriched by calls that take some milliseconds; then windowed per user, in tumbling windows and in
sessions. A checkpoint is taken every second, into a directory. Users come and go, so that what is remembered
of them must be forgotten again.
"""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
import sys
import time
from dataclasses import astuple, dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from asyncstream import BoundedOutOfOrderness, Pipeline, SessionWindows, Source, SourceBatch, TumblingWindows
from asyncstream.checkpoint import Checkpoints, DirectoryStore
from asyncstream.windowing.aggregates import Count, Sum
from benchmarks.kit import Goal, goals, run, table

__all__ = ("Soak", "main", "report", "soak")

PER_TICK = 20
TICK = 0.01
"""Seconds between two batches: 2,000 events a second leave some of a slow machine's time to others."""

USERS = 500
"""At a time."""

STAY_MS = 5_000
"""How long users stay, in milliseconds, before others come in their place."""

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Soak:
    """
    What a soak saw.

    Attributes:
        events: how many were read.
        counted: how many of them the tumbling windows, and how many the sessions counted.
        checkpoints: how many were taken, and how many failed.
        rss: size of the process in bytes, at equal distances in time.
    """

    events: int
    counted: tuple[int, int]
    checkpoints: tuple[int, int]
    rss: list[int]

    def growth(self) -> float:
        """By which part it has grown after the second fifth of the time; in the first it warms up."""
        fifth = len(self.rss) // 5
        return max(self.rss[2 * fifth :]) / max(self.rss[fifth : 2 * fifth]) - 1


class _Events(Source[dict[str, Any]]):
    """A steady stream, for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds
        self._random = Random(0)
        self.read_so_far = 0

    async def read(self) -> SourceBatch[dict[str, Any]] | None:
        await asyncio.sleep(TICK)
        if time.monotonic() >= self._ends:
            return None
        at_ms = int(self.read_so_far / PER_TICK * TICK * 1000)
        generation = at_ms // STAY_MS * USERS
        self.read_so_far += PER_TICK
        return SourceBatch(
            [
                {"user": generation + self._random.randrange(USERS), "at": at_ms, "amount": number}
                for number in range(PER_TICK)
            ]
        )

    def position(self) -> int:
        return self.read_so_far

    async def seek(self, position: int) -> None:
        self.read_so_far = position


async def soak(seconds: float) -> Soak:
    """Run the pipeline for so many seconds, looking at the process a hundred times."""
    random = Random(1)
    source = _Events(seconds)
    counted = [0, 0]
    rss: list[int] = []

    async def enrich(event: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(random.uniform(0.001, 0.02))
        return event | {"plane": f"N{event['user']:05}"}

    def count(which: int) -> Any:
        def add(result: Any) -> None:
            counted[which] += result.value["n"]

        return add

    async def look() -> None:
        while True:
            await asyncio.sleep(seconds / 100)
            rss.append(_rss())

    with TemporaryDirectory() as folder:
        pipeline = Pipeline("soak")
        users = (
            pipeline.source(source, name="events")
            .event_time(lambda event: int(event["at"]), BoundedOutOfOrderness(0.1), name="time")
            .async_map(enrich, concurrency=1000, timeout=10.0, name="enrich")
            .key_by(lambda event: event["user"])
        )
        tumbling = users.window(TumblingWindows(1)).aggregate(n=Count(), total=Sum("amount"), name="tumbling")
        sessions = users.window(SessionWindows(0.5)).aggregate(
            n=Count(), total=Sum("amount"), name="sessions"
        )
        tumbling.to(count(0), name="to tumbling")
        sessions.to(count(1), name="to sessions")
        checkpoints = Checkpoints(store=DirectoryStore(Path(folder) / "checkpoints"), every=1.0)
        looking = asyncio.create_task(look())
        async with pipeline.start(checkpoints=checkpoints) as job:
            await job.wait()
            taken = job.checkpoint_metrics()
        looking.cancel()
    return Soak(source.read_so_far, (counted[0], counted[1]), (taken["taken"], taken["failed"]), rss)


def _rss() -> int:
    """The size of this process now, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024
    told = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, text=True, check=True
    )
    return int(told.stdout) * 1024


def report(seconds: float) -> None:
    """Print what a soak saw, for another process to read."""
    print(astuple(run(soak(seconds))))


def main(quick: bool = False) -> None:
    seconds = 20.0 if quick else 600.0
    seen = _in_a_fresh_process(seconds)
    if not seen.events == seen.counted[0] == seen.counted[1]:
        raise AssertionError(f"{seen.events} events, {seen.counted} counted by windows")
    rows = [
        (
            f"{seconds:.0f} s",
            f"{seen.events:,}",
            f"{seen.checkpoints[0]} ({seen.checkpoints[1]} failed)",
            f"{seen.rss[0] / MEGABYTE:.1f}",
            f"{seen.rss[len(seen.rss) // 2] / MEGABYTE:.1f}",
            f"{seen.rss[-1] / MEGABYTE:.1f}",
        )
    ]
    print(table(("time", "events", "checkpoints", "MB at first", "half-way", "at the end"), rows) + "\n")
    print(
        goals([Goal("growth of the process", seen.growth(), 0.05, at_most=True, form="{:.1%}")]), flush=True
    )


def _in_a_fresh_process(seconds: float) -> Soak:
    """A place without traces of earlier runs."""
    code = f"from {__name__} import report; report({seconds})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return Soak(*ast.literal_eval(done.stdout))
