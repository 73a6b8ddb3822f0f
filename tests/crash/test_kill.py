"""A process is killed again and again, at any moment; what it leaves in the end is what one run leaves."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

KILLS = 16
"""For each of the two variants."""

EVENTS = 16_000
PATIENCE = 60.0


def write_events(path: Path) -> list[dict[str, Any]]:
    chance = random.Random(4)
    events: list[dict[str, Any]] = [
        {
            "id": number,
            "key": f"k{chance.randrange(20)}",
            "at": number + chance.randrange(40),
            "value": number % 7,
        }
        for number in range(EVENTS)
    ]
    events[-1]["last"] = True
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return events


def expected(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a run without interruption writes."""
    windows: dict[tuple[str, int], list[int]] = {}
    for event in events:
        held = windows.setdefault((event["key"], event["at"] // 100 * 100), [0, 0])
        held[0] += 1
        held[1] += 2 * event["value"]
    return [
        {"key": key, "start_ms": start, "n": n, "total": total}
        for (key, start), (n, total) in windows.items()
    ]


def start(folder: Path, order: str, store: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.crash.app", str(folder), order, store],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize(("order", "store", "seed"), [("per_key", "directory", 1), ("ordered", "sqlite", 2)])
def test_killed_process_leaves_exactly_the_results_of_one_run(
    tmp_path: Path, order: str, store: str, seed: int
) -> None:
    chance = random.Random(seed)
    events = write_events(tmp_path / "events.jsonl")
    kills, until = 0, time.monotonic() + PATIENCE
    while True:
        if kills == KILLS:
            (tmp_path / "may end").touch()
        process = start(tmp_path, order, store)
        try:
            # most of it in the middle, some while it starts and restores
            _, errors = process.communicate(timeout=chance.uniform(0.2, 1.2) if kills < KILLS else PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
        else:
            assert process.returncode == 0, errors.decode()
            break
        assert time.monotonic() < until
    assert kills == KILLS
    lines = (tmp_path / "results.jsonl").read_bytes().splitlines(keepends=True)
    wanted = [json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in expected(events)]
    assert sorted(lines) == sorted(wanted)
    with closing(sqlite3.connect(tmp_path / "results.sqlite")) as database:
        rows = database.execute("SELECT key, start_ms, n, total FROM results").fetchall()
        assert sorted(rows) == sorted(tuple(row.values()) for row in expected(events))
        assert database.execute("SELECT count(*) FROM results__staged").fetchone() == (0,)
