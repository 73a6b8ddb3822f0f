"""Two processes on one store, or one sink: one writes, and leaves in the end what one run leaves."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

EVENTS = 1500
APP = """
import asyncio, sys
from pathlib import Path
from asyncstream import (
    Checkpoints, DirectoryStore, JsonLinesSink, JsonLinesSource, Pipeline, SqliteSink, SqliteStore
)
folder, store, on_held, lease = Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])

async def call(event):
    while event["id"] >= 700 and not (folder / "may end").exists():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.001)
    return event

pipeline = Pipeline("one writer")
source = pipeline.source(JsonLinesSource(folder / "in.jsonl", batch=10), name="in")
results = source.async_map(call, name="call", concurrency=4)
results.to(JsonLinesSink(folder / "out.jsonl"), name="out")
results.to(SqliteSink(folder / "out.db", "t", columns=("id",)), name="db")
path = folder / store
kept = SqliteStore(path) if path.suffix == ".db" else DirectoryStore(path)
pipeline.run_blocking(checkpoints=Checkpoints(store=kept, every=0.05, lease=lease, on_held=on_held))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in.jsonl").write_text("".join(f'{{"id":{number}}}\n' for number in range(EVENTS)))
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(store: str, on_held: str = "refuse", lease: float = 60) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", APP, str(folder), store, on_held, str(lease)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def let_end(folder: Path) -> None:
    (folder / "may end").touch()


def wait_until_it_writes(folder: Path) -> None:
    until = time.monotonic() + 90
    while time.monotonic() < until:
        out = folder / "out.jsonl"
        if out.exists() and out.stat().st_size > 1000:
            return
        time.sleep(0.01)
    raise AssertionError("it wrote nothing")


def assert_exact(folder: Path) -> None:
    lines = (folder / "out.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["id"] for line in lines] == list(range(EVENTS))
    with closing(sqlite3.connect(folder / "out.db")) as database:
        rows = [row[0] for row in database.execute("SELECT id FROM t ORDER BY rowid")]
    assert rows == list(range(EVENTS))


@pytest.mark.parametrize(("first", "second"), [("kept", "kept"), ("kept.db", "kept.db"), ("kept", "other")])
def test_second_process_is_refused_and_told_who_is_there(
    folder: Path, start: Callable[..., subprocess.Popen[str]], first: str, second: str
) -> None:
    one = start(first)
    wait_until_it_writes(folder)
    two = start(second)
    errors = two.communicate(timeout=90)[1]
    assert two.returncode == 1, errors
    assert f"process {one.pid} on" in errors
    let_end(folder)
    errors = one.communicate(timeout=90)[1]
    assert one.returncode == 0, errors
    assert_exact(folder)


@pytest.mark.parametrize("store", ["kept", "kept.db"])
def test_process_that_was_stopped_and_followed_damages_nothing(
    folder: Path, start: Callable[..., subprocess.Popen[str]], store: str
) -> None:
    one = start(store, lease=2)
    wait_until_it_writes(folder)
    stop_between_transactions(one, folder)
    two = start(store, "wait", lease=2)
    until = time.monotonic() + 90
    while not store_is_taken(folder, store, two.pid):
        assert time.monotonic() < until
        time.sleep(0.02)
    one.send_signal(signal.SIGCONT)
    let_end(folder)
    errors = one.communicate(timeout=90)[1]
    assert one.returncode == 1, errors
    assert "taken over" in errors
    errors = two.communicate(timeout=90)[1]
    assert two.returncode == 0, errors
    assert_exact(folder)


def stop_between_transactions(process: subprocess.Popen[str], folder: Path) -> None:
    """Within one it would hold SQLite's lock, which nobody can take from it."""
    until = time.monotonic() + 90
    while time.monotonic() < until:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        if not any(map(is_locked, folder.glob("*.db"))):
            return
        process.send_signal(signal.SIGCONT)
        time.sleep(0.003)
    raise AssertionError("it is always within a transaction")


def is_locked(path: Path) -> bool:
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as database:
        try:
            database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        database.execute("ROLLBACK")
        return False


def store_is_taken(folder: Path, store: str, pid: int) -> bool:
    if store == "kept":
        *_, newest = sorted((folder / store).glob("lease-" + "[0-9]" * 8))
        try:
            return f'"pid": {pid}'.encode() in newest.read_bytes()
        except FileNotFoundError:  # it is followed just now
            return False
    with closing(sqlite3.connect(folder / store)) as database:
        lease = database.execute("SELECT lease FROM asyncstream_checkpoints_lease").fetchone()[0]
    return f'"pid": {pid}' in (lease if isinstance(lease, str) else lease.decode())


def test_dead_process_is_followed_at_once(folder: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    for _ in range(3):
        process = start("kept")
        wait_until_it_writes(folder)
        time.sleep(0.2)
        process.kill()
        process.communicate()
    let_end(folder)
    last = start("kept")
    errors = last.communicate(timeout=90)[1]
    assert last.returncode == 0, errors
    assert_exact(folder)
