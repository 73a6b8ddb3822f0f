"""
What checkpoints cost: throughput, how long the event loop stands still, and how long a restore takes.

The store is a directory on the disk, synced each time. The longest pause is seen from inside, by a task that
does nothing but yield: the machine's own hiccups are in it too, so the same is measured without a checkpoint.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from asyncstream import (
    BoundedOutOfOrderness,
    Checkpoints,
    Count,
    DirectoryStore,
    Pipeline,
    SessionWindows,
    SlidingWindows,
    Sum,
    TumblingWindows,
    WatermarkStrategy,
)
from asyncstream.windowing import WindowAssigner
from benchmarks.kit import Goal, compare, goals, results, run, table
from benchmarks.workloads import replies

__all__ = ("main",)

IN_FLIGHT = 1000
KEYS = 100_000
LATENCY = 0.005


def event(number: int) -> dict[str, Any]:
    """About what an event looks like: eight fields, 130 bytes as JSON."""
    return {
        "id": number,
        "tailnum": f"N{number % 4000}",
        "origin": "JFK",
        "dest": "LAX",
        "carrier": "UA",
        "distance": 2475.5,
        "delay": number % 90,
        "cancelled": False,
    }


# ---------------------------------------------------------------------- throughput


def enrich(events: list[dict[str, Any]], checkpoints: Checkpoints | None, **settings: Any) -> int:
    """Every element waits 5 ms for a reply, 1,000 at a time."""

    async def work() -> int:
        call: Any = replies(LATENCY)()
        out: list[Any] = []
        pipeline = Pipeline()
        stream = pipeline.source(events, name="events")
        calls = stream.async_map(call, name="call", concurrency=IN_FLIGHT, **settings)
        calls.to(out, name="out")
        await pipeline.run(checkpoints=checkpoints)
        assert len(out) == len(events)
        return len(out)

    return run(work())


def throughput(folder: Path, quick: bool) -> Goal:
    """The goal is for checkpoints alone; by default calls get copies of elements, and are written down."""
    events = [event(number) for number in range(20_000 if quick else 300_000)]
    checkpoints = Checkpoints(store=DirectoryStore(folder / "t"), every=1.0, restore="none")
    alone: dict[str, Any] = {"copy_input": False, "journal": False}
    measured = compare(
        {
            "without": lambda: enrich(events, None),
            "every second": lambda: enrich(events, checkpoints, **alone),
            "and each call has a copy": lambda: enrich(events, checkpoints, journal=False),
            "and is in the journal, as by default": lambda: enrich(events, checkpoints),
        },
        base="without",
        turns=1 if quick else 7,
    )
    print(results("5 ms enrichment, 1,000 in flight", measured, base="without"))
    cost = 1 / measured["every second"].cpu_ratio - 1
    return Goal("checkpoints every second: CPU", cost * 100, 5, at_most=True, form="{:.1f} %")


# ---------------------------------------------------------------------- pauses


@asynccontextmanager
async def heartbeat() -> AsyncIterator[list[float]]:
    """In its first place, the longest time in ms that the event loop did not come round."""
    longest = [0.0]

    async def beat() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest[0] = max(longest[0], (now - last) * 1000)
            last = now

    task = asyncio.create_task(beat())
    await asyncio.sleep(0)
    yield longest
    task.cancel()


async def pauses(job: Any, times: int) -> tuple[float, float, float]:
    """
    In ms: the capture itself; the longest pause with a checkpoint; the longest without one.

    Each is the least of several, for what the neighbours on the machine do to a pause only adds to it.
    """
    captures, longest, quiet = [], [], []
    for _ in range(times):
        async with heartbeat() as beat:
            began = time.perf_counter()
            await job.checkpoint()
            took = time.perf_counter() - began
        captures.append(job.checkpoint_metrics()["pause_us"] / 1000)
        longest.append(beat[0])
        async with heartbeat() as beat:
            await asyncio.sleep(took)
        quiet.append(beat[0])
    return min(captures), min(longest), min(quiet)


def in_flight_pauses(folder: Path, quick: bool) -> tuple[float, float, float]:
    async def work() -> tuple[float, float, float]:
        async def never(value: Any) -> Any:
            await asyncio.sleep(3600)

        pipeline = Pipeline()
        submissions = pipeline.submissions(name="in")
        submissions.async_map(never, name="call", concurrency=IN_FLIGHT).discard(name="out")
        checkpoints = Checkpoints(store=DirectoryStore(folder / "f"), restore="none")
        async with pipeline.start(checkpoints=checkpoints) as job:
            for number in range(IN_FLIGHT):
                await job.submit(event(number))
            await asyncio.sleep(0.2)
            found = await pauses(job, 3 if quick else 25)
            await job.stop(0)
        return found

    return run(work())


WINDOWS: dict[str, WindowAssigner] = {
    "tumbling": TumblingWindows(3600),
    "sliding, 2 per element": SlidingWindows(3600, 1800),
    "sessions": SessionWindows(600),
}


def window_pauses(folder: Path, name: str, quick: bool) -> tuple[float, float, float, float, float]:
    """What `pauses` gives; then CPU seconds for a restore, and MB on the disk."""
    keys = KEYS // 20 if quick else KEYS
    strategy: WatermarkStrategy = BoundedOutOfOrderness(0)
    checkpoints = Checkpoints(store=DirectoryStore(folder / name.split(",")[0]))

    def build() -> Pipeline:
        pipeline = Pipeline()
        (
            pipeline.submissions(name="in", limit=keys)
            .event_time(lambda value: value[1], strategy, name="time")
            .key_by(lambda value: value[0])
            .window(WINDOWS[name])
            .aggregate(name="window", n=Count(), total=Sum(lambda value: value[1]))
            .discard(name="out")
        )
        return pipeline

    async def fill() -> tuple[float, float, float]:
        async with build().start(checkpoints=checkpoints) as job:
            for number in range(keys):
                await job.submit((f"customer-{number}", number % 1000))
            while job.metrics()["in"]["read"] < keys:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            found = await pauses(job, 1 if quick else 3 if "sliding" in name else 7)
            await job.stop(0)
        return found

    async def restore() -> float:
        began = time.process_time()
        async with build().start(checkpoints=checkpoints) as job:
            took = time.process_time() - began
            assert job.metrics()["window"]["windows_open"] >= keys
            await job.stop(0)
        return took

    found = run(fill())
    seconds = statistics.median(run(restore()) for _ in range(1 if quick else 3))
    size = max(path.stat().st_size for path in (folder / name.split(",")[0]).iterdir()) / 1e6
    return (*found, seconds, size)


def main(quick: bool = False) -> None:
    reached = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        reached.append(throughput(folder, quick))
        flight = in_flight_pauses(folder, quick)
        reached.append(
            Goal("1,000 in flight: capture", flight[0], 1, at_most=True, form="{:.2f} ms"),
        )
        rows: list[tuple[str, ...]] = [("1,000 in flight", *(f"{ms:.2f}" for ms in flight), "", "")]
        for windows in WINDOWS:
            found = window_pauses(folder, windows, quick)
            rows.append((f"{KEYS:,} keys, {windows}", *(f"{figure:.1f}" for figure in found)))
            if windows == "tumbling":
                what = f"{KEYS:,} keys of windows"
                reached.append(Goal(f"{what}: capture", found[0], 20, at_most=True, form="{:.1f} ms"))
                reached.append(Goal(f"{what}: longest pause", found[1], 20, at_most=True, form="{:.1f} ms"))
                reached.append(Goal(f"{what}: restore", found[3], 2, at_most=True, form="{:.2f} s"))
    head = ("", "capture, ms", "longest pause, ms", "without, ms", "restore, CPU s", "MB")
    print(f"#### One checkpoint\n\n{table(head, rows)}\n")
    print(goals(reached))


if __name__ == "__main__":
    main()
