"""
A pipeline in a process of its own, to be killed: `python -m tests.crash.app FOLDER ORDER STORE ON_HELD`

JSON lines are enriched by calls of a few milliseconds, then counted in sessions and in sliding windows, and
watched by a function that sets and deletes timers; late elements go aside. Two sinks write files, two write
tables of one database. It goes on from its checkpoints, and ends with status 0 when it is through and may.

ON_HELD says what to do if another one runs. A further argument, `kill:name:n` or `stop:name:n`, is a point in
the program: the process sends itself SIGKILL or SIGSTOP at its n-th pass, so just before or just after one of
the calls by which anything becomes durable.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from asyncstream import (
    BoundedOutOfOrderness,
    Checkpoints,
    Count,
    DirectoryStore,
    JsonLinesSink,
    JsonLinesSource,
    KeyedContext,
    KeyedProcessFunction,
    Mean,
    Pipeline,
    SessionWindows,
    SlidingWindows,
    SqliteSink,
    SqliteStore,
    Sum,
    WindowResult,
)
from asyncstream.operators.emitting import Emitter
from asyncstream.state import ListDescriptor, MapDescriptor, ValueDescriptor
from tests.crash.ending import until_it_may_end

__all__ = ("POINTS", "TABLES", "build", "main")

LEASE = 1.0
"""Seconds after which one that is paused is followed by one that waits."""

POINTS = tuple(
    f"{call}-{when}" for call in ("fsync", "replace", "unlink", "sql") for when in ("before", "after")
)
"""Where the process can kill itself."""

TABLES = {
    "sliding": ("kind", "key", "start", "end", "n", "total", "mean"),
    "quiet": ("key", "at", "n", "seen", "last"),
}
"""The tables of `results.sqlite`, and their columns."""

SILENCE_MS = 60


class Quiet(KeyedProcessFunction[dict[str, Any], dict[str, Any]]):
    """Tells of a key that has been silent for a while, with what it keeps of the key; never forgets any."""

    def open(self, ctx: KeyedContext) -> None:
        self.count = ctx.state(ValueDescriptor[int]("count", default=0))
        self.due = ctx.state(ValueDescriptor[int]("due"))
        self.seen = ctx.state(MapDescriptor[int, int]("seen"))
        self.last = ctx.state(ListDescriptor[int]("last"))

    def process_element(self, event: dict[str, Any], ctx: KeyedContext, out: Emitter[dict[str, Any]]) -> None:
        self.count.set((self.count.get() or 0) + 1)
        self.seen.put(event["id"] % 5, event["id"])
        self.last.set([*self.last.get()[-3:], event["doubled"]])
        due = self.due.get()
        if due is not None:
            ctx.delete_event_timer(due)
        self.due.set(ctx.timestamp + SILENCE_MS)
        ctx.register_event_timer(ctx.timestamp + SILENCE_MS)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[dict[str, Any]]) -> None:
        seen, last = str(sorted(self.seen.items())), str(self.last.get())
        out({"key": ctx.key, "at": timestamp, "n": self.count.get(), "seen": seen, "last": last})
        self.due.clear()


async def enrich(event: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0.001 * (1 + event["id"] % 5))
    if event.get("last"):
        await until_it_may_end()
    event["doubled"] = 2 * event["value"]  # in place, as users do: a checkpoint must not see half of it
    return event


def flat(kind: str) -> Callable[[WindowResult], dict[str, Any]]:
    def row(result: WindowResult) -> dict[str, Any]:
        return {
            "kind": kind,
            "key": result.key,
            "start": result.start_ms,
            "end": result.end_ms,
            **result.value,
        }

    return row


def build(folder: Path, order: str) -> Pipeline:
    pipeline = Pipeline("crash")
    source = pipeline.source(JsonLinesSource(folder / "events.jsonl", batch=50), name="events")
    events = source.event_time(lambda event: event["at"], BoundedOutOfOrderness(0.03), name="time")
    if order == "per_key":
        events = events.key_by(lambda event: event["key"])
    enriched = events.async_map(enrich, name="enrich", order=order, concurrency=16)  # type: ignore[arg-type]
    keyed = enriched.key_by(lambda event: event["key"])

    sessions = keyed.window(SessionWindows(0.07)).aggregate(name="sessions", n=Count(), total=Sum("doubled"))
    sessions.map(flat("session"), name="session rows").to(
        JsonLinesSink(folder / "sessions.jsonl"), name="sessions file"
    )
    sliding = (
        keyed.window(SlidingWindows(0.3, 0.1))
        .allowed_lateness(timedelta(milliseconds=20))
        .aggregate(name="sliding", n=Count(), total=Sum("doubled"), mean=Mean("doubled"))
    )
    database = folder / "results.sqlite"
    sliding.map(flat("sliding"), name="sliding rows").to(
        SqliteSink(database, "sliding", columns=TABLES["sliding"]), name="sliding table"
    )
    sliding.late.to(JsonLinesSink(folder / "late.jsonl"), name="late file")
    keyed.process(Quiet(), name="quiet").to(
        SqliteSink(database, "quiet", columns=TABLES["quiet"]), name="quiet table"
    )
    return pipeline


def signal_at(point: str) -> None:
    """Have the process killed or stopped at a pass of one of `POINTS`, in calls that every store makes."""
    deed, name, number = point.split(":")
    left = int(number)

    def passing(where: str) -> None:
        nonlocal left
        if where == name:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL if deed == "kill" else signal.SIGSTOP)

    def wrapped(call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def function(*arguments: Any, **options: Any) -> Any:
            passing(f"{call}-before")
            result = real(*arguments, **options)
            passing(f"{call}-after")
            return result

        return function

    class Connection(sqlite3.Connection):
        execute = wrapped("sql", sqlite3.Connection.execute)
        executemany = wrapped("sql", sqlite3.Connection.executemany)
        commit = wrapped("sql", sqlite3.Connection.commit)

    connect = sqlite3.connect
    sqlite3.connect = lambda *a, **k: connect(*a, **{"factory": Connection, **k})
    os.fsync, os.replace, os.unlink = (
        wrapped("fsync", os.fsync),
        wrapped("replace", os.replace),
        wrapped("unlink", os.unlink),
    )


def main() -> None:
    folder, (order, kind, on_held, *points) = Path(sys.argv[1]), sys.argv[2:]
    for point in points:
        signal_at(point)
    store = (
        DirectoryStore(folder / "checkpoints") if kind == "directory" else SqliteStore(folder / "kept.sqlite")
    )
    checkpoints = Checkpoints(store=store, every=0.1, lease=LEASE, on_held=on_held)  # type: ignore[arg-type]
    build(folder, order).run_blocking(checkpoints=checkpoints)


if __name__ == "__main__":
    main()
