"""
A small pipeline in a process of its own, to be killed: `python -m tests.crash.app FOLDER ORDER STORE`.

JSON lines are enriched by calls of a few milliseconds, counted in windows per key, and written to a file and
to a table. It goes on from its checkpoints, and ends with status 0 when it is through.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from asyncstream import (
    BoundedOutOfOrderness,
    Checkpoints,
    Count,
    DirectoryStore,
    JsonLinesSink,
    JsonLinesSource,
    Pipeline,
    SqliteSink,
    SqliteStore,
    Sum,
    TumblingWindows,
    WindowResult,
)

__all__ = ("COLUMNS", "build", "main")

COLUMNS = ("key", "start_ms", "n", "total")


async def enrich(event: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0.001 * (1 + event["id"] % 5))
    while event.get("last") and not may_end().exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)  # however quick the machine, it is not through before it has been killed
    event["doubled"] = 2 * event["value"]  # in place, as users do: a checkpoint must not see half of it
    return event


def may_end() -> Path:
    """The file that lets the last event pass."""
    return Path(sys.argv[1]) / "may end"


def flat(result: WindowResult) -> dict[str, Any]:
    return {"key": result.key, "start_ms": result.start_ms, **result.value}


def build(folder: Path, order: str) -> Pipeline:
    pipeline = Pipeline("crash")
    source = pipeline.source(JsonLinesSource(folder / "events.jsonl", batch=50), name="events")
    events = source.event_time(lambda event: event["at"], BoundedOutOfOrderness(0.05), name="time")
    if order == "per_key":
        events = events.key_by(lambda event: event["key"])
    results = (
        events.async_map(enrich, name="enrich", order=order, concurrency=8)  # type: ignore[arg-type]
        .key_by(lambda event: event["key"])
        .window(TumblingWindows(0.1))
        .aggregate(name="windows", n=Count(), total=Sum("doubled"))
        .map(flat, name="flat")
    )
    results.to(JsonLinesSink(folder / "results.jsonl"), name="file")
    results.to(SqliteSink(folder / "results.sqlite", "results", columns=COLUMNS), name="table")
    return pipeline


def main() -> None:
    folder, order, kind = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    store = (
        DirectoryStore(folder / "checkpoints") if kind == "directory" else SqliteStore(folder / "kept.sqlite")
    )
    checkpoints = Checkpoints(store=store, every=0.1)
    build(folder, order).run_blocking(checkpoints=checkpoints)


if __name__ == "__main__":
    main()
