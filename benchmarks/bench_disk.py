"""
State that is larger than memory: ten million keys on disk, under a limit of memory.

    python -m benchmarks.bench_disk --disk DIRECTORY [--sessions] [--keys N] [--limit MB] [--checkpoints]

Each key has a value and an event timer of a process function; or a session. First all keys come once; then
nothing does for a while, in which RocksDB merges files, which belongs to what was loaded; then come
events of which nine in ten are of one key in a hundred; then event time passes all timers, or ends. What they
find is compared with what was put in, so a row that was lost or doubled is found out. The limit is on the
memory that the process has in use (resident, as `ru_maxrss` says): of address space, RocksDB's threads and
files take much that is never used.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from asyncstream import (
    BoundedOutOfOrderness,
    Checkpoints,
    DirectoryStore,
    DiskState,
    KeyedProcessFunction,
    Pipeline,
    SessionWindows,
    Sum,
)
from asyncstream.connectors.base import Source, SourceBatch
from asyncstream.state import ValueDescriptor

__all__ = ("main",)

KEYS = 10_000_000
EVENTS = 3_000_000
LIMIT_MB = 500
BATCH = 1_000
HOT_SHARE = 0.9
HOT_PART = 100
"""One key in so many is hot."""

REST_SECONDS = 30

RESTS: SourceBatch[tuple[int, int, int]] = SourceBatch([])
"""Stands for the time in which nothing comes."""


@dataclass
class Tally:
    """
    What is to be found, and what was.

    Attributes:
        added: how much was added to all keys.
        fired, found: timers or sessions, and what they found in all.
        marks: when a phase ended, by its name: seconds, and seconds of CPU.
    """

    added: int = 0
    fired: int = 0
    found: int = 0
    marks: dict[str, tuple[float, float]] = field(default_factory=dict)

    def mark(self, phase: str) -> None:
        self.marks[phase] = (time.perf_counter(), time.process_time())
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"{phase:10} {time.strftime('%H:%M:%S')}   at most {memory} MB so far", flush=True)


class Adds(KeyedProcessFunction[tuple[int, int, int], Any]):
    """Adds up for each key, with a timer that tells how much it was."""

    total = ValueDescriptor[int]("total")

    def __init__(self, tally: Tally, keys: int) -> None:
        self._tally, self._keys = tally, keys

    def open(self, ctx: Any) -> None:
        self._state = ctx.state(self.total)

    def process_element(self, value: tuple[int, int, int], ctx: Any, out: Any) -> None:
        key, amount, _ = value
        if not amount:
            return
        present = self._state.get()
        if present is None:
            ctx.register_event_timer(self._keys + key)
            present = 0
        self._state.set(present + amount)

    def on_timer(self, timestamp: int, ctx: Any, out: Any) -> None:
        assert timestamp == self._keys + ctx.key
        self._tally.fired += 1
        self._tally.found += self._state.get()
        self._state.clear()


class Events(Source[tuple[int, int, int]]):
    """
    The three phases; not read again after a crash.

    Args:
        moves: event time moves on with each element, not in the last phase only.
    """

    def __init__(self, tally: Tally, keys: int, events: int, *, moves: bool) -> None:
        self._tally, self._keys, self._events, self._moves = tally, keys, events, moves
        self._batches = self._all()

    async def read(self) -> SourceBatch[tuple[int, int, int]] | None:
        batch = next(self._batches, None)
        if batch is not RESTS:
            return batch
        await asyncio.sleep(REST_SECONDS)
        self._tally.mark("rested")
        return next(self._batches, None)

    def position(self) -> int:
        return 1

    def _all(self) -> Iterator[SourceBatch[tuple[int, int, int]]]:
        tally, keys, random = self._tally, self._keys, Random(7)
        tally.mark("begin")
        for start in range(0, keys, BATCH):
            some = range(start, min(start + BATCH, keys))
            tally.added += len(some)
            yield SourceBatch([(key, 1, key if self._moves else 0) for key in some])
        tally.mark("loaded")
        yield RESTS
        hot = max(keys // HOT_PART, 1)
        for number in range(0, self._events, BATCH):
            at = keys + number if self._moves else 0
            batch = [
                (random.randrange(hot) if random.random() < HOT_SHARE else random.randrange(keys), 2, at)
                for _ in range(BATCH)
            ]
            tally.added += 2 * BATCH
            yield SourceBatch(batch)
        tally.mark("touched")
        begin, end = keys, 2 * keys
        if self._moves:
            begin, end = gap_ms(keys, self._events), gap_ms(keys, self._events) + keys + self._events
        for at in range(begin, end + BATCH, BATCH):
            yield SourceBatch([(-1, 0, at)])
        tally.mark("fired")


def gap_ms(keys: int, events: int) -> int:
    """Of sessions: so long that none ends before the last phase."""
    return 2 * (keys + events)


def run(
    directory: Path, keys: int, events: int, *, sessions: bool, checkpoints: bool, young_rows: int
) -> Tally:
    """One run; what it found is right."""
    tally = Tally()
    pipeline = Pipeline("state")
    timed = pipeline.source(Events(tally, keys, events, moves=sessions), name="events").event_time(
        lambda value: value[2], BoundedOutOfOrderness(0), name="times"
    )
    keyed = timed.key_by(lambda value: value[0])
    if sessions:

        def count(result: Any) -> None:
            if result.key >= 0:
                tally.fired += 1
                tally.found += result.value

        windows = keyed.window(SessionWindows(timedelta(milliseconds=gap_ms(keys, events))))
        windows.aggregate(Sum(lambda value: value[1]), name="adds").to(count, name="out")
    else:
        keyed.process(Adds(tally, keys), name="adds").to([], name="out")
    kept = Checkpoints(store=DirectoryStore(directory / "checkpoints"), every=10) if checkpoints else None
    state = DiskState(directory / "state", young_rows=young_rows)
    asyncio.run(pipeline.run(state=state, checkpoints=kept))
    assert (tally.fired, tally.found) == (keys, tally.added), "rows were lost, or doubled"
    return tally


def main(*, quick: bool = False) -> None:
    """As one of the benchmarks: a small one, on a disk that `tempfile` finds."""
    with TemporaryDirectory() as directory:
        for sessions in (False, True):
            keys = 100_000 if quick else 1_000_000
            report(Path(directory) / str(sessions), keys, 500_000, sessions=sessions)


def report(
    directory: Path,
    keys: int,
    events: int,
    *,
    sessions: bool = False,
    checkpoints: bool = False,
    young_rows: int = 200_000,
    limit: int = LIMIT_MB,
) -> None:
    """Run, and print the figures."""
    tally = run(directory, keys, events, sessions=sessions, checkpoints=checkpoints, young_rows=young_rows)
    print(f"\n{keys:,} keys, exact")
    print("           per second   CPU us each")
    phases = (
        ("load", "begin", "loaded", keys),
        ("rest", "loaded", "rested", keys),
        ("touch", "rested", "touched", events),
        ("fire", "touched", "fired", keys),
    )
    for name, first, last, number in phases:
        (began, cpu_began), (ended, cpu_ended) = tally.marks[first], tally.marks[last]
        print(f"{name:8} {number / (ended - began):>12,.0f} {(cpu_ended - cpu_began) / number * 1e6:>13.1f}")
    print("(goal: 100,000 touches per second)")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"memory    {memory:>10,} MB at most (goal: {limit:,})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--disk", type=Path, required=True, help="where there is room for a few gigabytes")
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--limit", type=int, default=LIMIT_MB)
    parser.add_argument("--young", type=int, default=200_000, help="rows that stay in memory")
    parser.add_argument("--sessions", action="store_true", help="rather than a process function")
    parser.add_argument("--checkpoints", action="store_true")
    options = parser.parse_args()
    report(
        options.disk,
        options.keys,
        options.events,
        sessions=options.sessions,
        checkpoints=options.checkpoints,
        young_rows=options.young,
        limit=options.limit,
    )
