"""
A job is frozen at any call by which something becomes durable or is looked up, and another one follows it.

Whatever the first one does when it wakes up, the results are those of one run in the end. All in one process:
a job is frozen by blocking its event loop, and the thread that makes the call.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    Checkpoints,
    DirectoryStore,
    Job,
    JsonLinesSink,
    JsonLinesSource,
    Pipeline,
    SqliteSink,
    SqliteStore,
    lease,
)
from asyncstream.checkpoint import CheckpointStore
from asyncstream.errors import AsyncStreamError

EVENTS = 60
PATIENCE = 60.0
STRIDE = 8
"""Every so many-th call is tried, others in each variant; 1 tries all, which takes minutes."""


class Freezer:
    """Blocks the only job that runs at its n-th call, until it is woken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._left = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._frozen = threading.Event()
        self.at = ""
        for name in ("fsync", "replace", "unlink", "link", "listdir"):
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))
        connect, passing, real = sqlite3.connect, self.passing, lease.is_free

        def is_free(current: lease.Lease, now_ms: int) -> bool:
            return self.has_run_out() or real(current, now_ms)

        monkeypatch.setattr(lease, "is_free", is_free)

        class Connection(sqlite3.Connection):
            def execute(self, statement: str, *rest: Any) -> sqlite3.Cursor:
                # one that is frozen in a transaction holds the lock, which nobody can break
                if not self.in_transaction and not statement.startswith("PRAGMA"):
                    passing(f"before {statement}")
                cursor = super().execute(statement, *rest)
                if statement == "COMMIT":
                    passing("after COMMIT")
                return cursor

        monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **{"factory": Connection, **k}))

    def arm(self, number: int) -> None:
        self._left, self.at = number, ""
        self._woken, self._frozen = threading.Event(), threading.Event()

    def watch(self) -> None:
        """Called in the job's event loop."""
        self._loop = asyncio.get_running_loop()

    def has_frozen(self, thread: threading.Thread) -> bool:
        """Wait until it has, or the job has come to its end."""
        while not self._frozen.wait(0.005):
            if not thread.is_alive():
                return self._frozen.is_set()
        return True

    def has_run_out(self) -> bool:
        """Whether the lease of the job that is frozen may be taken over."""
        return self._frozen.is_set() and not self._woken.is_set()

    def wake(self) -> None:
        self._woken.set()

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.passing(f"before {name} {arguments[:2]}")
            result = real(*arguments, **options)
            self.passing(f"after {name} {arguments[:2]}")
            return result

        return call

    def passing(self, what: str) -> None:
        with self._lock:
            if self._left == 0 or self._loop is None:
                return
            self._left -= 1
            if self._left:
                return
            self.at = what
        woken, frozen, blocked = self._woken, self._frozen, threading.Event()

        def block() -> None:
            blocked.set()
            woken.wait(PATIENCE)

        if not self._is_in_loop():
            self._loop.call_soon_threadsafe(block)
            assert blocked.wait(PATIENCE)
        frozen.set()
        woken.wait(PATIENCE)

    def _is_in_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False


class Runs:
    """Jobs on one folder, each in a thread of its own."""

    def __init__(self, folder: Path, store: str, freezer: Freezer, through: dict[str, int]) -> None:
        folder.mkdir()
        self.folder, self.store, self.freezer, self.through = folder, store, freezer, through
        lines = [json.dumps({"id": number}) + "\n" for number in range(EVENTS)]
        (folder / "in.jsonl").write_text("".join(lines))
        self.errors: dict[str, AsyncStreamError] = {}

    def start(self, name: str, work: Callable[[Job], Any]) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(name, work), daemon=True)
        thread.start()
        return thread

    def _run(self, name: str, work: Callable[[Job], Any]) -> None:
        async def run() -> None:
            if name == "first":
                self.freezer.watch()
            async with self._pipeline(name).start(checkpoints=self._checkpoints()) as job:
                await work(job)

        try:
            asyncio.run(run())
        except AsyncStreamError as error:
            self.errors[name] = error

    def _pipeline(self, name: str) -> Pipeline:
        async def call(event: dict[str, int]) -> dict[str, int]:
            if event["id"] >= self.through[name]:
                await asyncio.Event().wait()
            return event

        pipeline = Pipeline("frozen")
        events = pipeline.source(JsonLinesSource(self.folder / "in.jsonl", batch=5), name="in")
        results = events.async_map(call, name="call", concurrency=4)
        results.to(JsonLinesSink(self.folder / "out.jsonl"), name="file")
        for table in ("one", "two"):
            results.to(SqliteSink(self.folder / "out.db", table, columns=("id",)), name=table)
        return pipeline

    def _checkpoints(self) -> Checkpoints:
        store: CheckpointStore = (
            SqliteStore(self.folder / "kept.db")
            if self.store == "sqlite"
            else DirectoryStore(self.folder / "kept")
        )
        return Checkpoints(store=store, on_held="wait", tolerate=0)

    def results(self) -> dict[str, list[int]]:
        lines = (self.folder / "out.jsonl").read_bytes().splitlines()
        found = {"file": [json.loads(line)["id"] for line in lines]}
        with closing(sqlite3.connect(self.folder / "out.db")) as database:
            for table in ("one", "two"):
                found[table] = [row[0] for row in database.execute(f"SELECT id FROM {table} ORDER BY rowid")]
        return found


async def take_two(job: Job) -> None:
    """Checkpoints with something in between."""
    for _ in range(2):
        await asyncio.sleep(0.003)
        await job.checkpoint()


async def to_the_end(job: Job) -> None:
    await job.wait()


@pytest.mark.parametrize("follower_gets", [0, 40], ids=["follower gets nothing", "follower gets further"])
@pytest.mark.parametrize("store", ["directory", "sqlite"])
def test_results_are_those_of_one_run_wherever_a_job_is_frozen_and_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, follower_gets: int
) -> None:
    freezer = Freezer(monkeypatch)
    whole = list(range(EVENTS))
    through = {"first": 30, "second": follower_gets, "last": EVENTS}
    start = 1 + STRIDE * ["directory", "sqlite"].index(store) // 2 + follower_gets // 20
    for number in range(start, 1500, STRIDE):
        runs = Runs(tmp_path / str(number), store, freezer, through)
        freezer.arm(number)
        first = runs.start("first", take_two)
        if not freezer.has_frozen(first):
            break
        second = runs.start("second", take_two)
        second.join(PATIENCE)
        freezer.wake()
        first.join(PATIENCE)
        last = runs.start("last", to_the_end)
        last.join(PATIENCE)
        assert not any(job.is_alive() for job in (first, second, last)), (freezer.at, runs.errors)
        assert "last" not in runs.errors, (freezer.at, runs.errors)
        assert runs.results() == {"file": whole, "one": whole, "two": whole}, (freezer.at, runs.errors)
        words = f"{runs.errors.get('first', '')} {runs.errors.get('second', '')}".strip()
        assert not words or re.search("taken over|LeaseLost", words), (freezer.at, words)
    assert 40 < number < 1490
