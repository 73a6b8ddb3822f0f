"""
A process that accepts events durably is killed again and again, at any moment and at every call by which
something becomes durable; at times it is paused, and another one follows. What was accepted comes out once.
"""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

from tests.crash.app import POINTS
from tests.crash.ending import let_end
from tests.crash.inbox_app import EVENTS
from tests.crash.kills import Forked, killed_within

KILLS = 15


def start(folder: Path, *point: str) -> Forked:
    return Forked("tests.crash.inbox_app", str(folder), *point)


def wait_until_accepting(folder: Path, process: Forked, until: float) -> None:
    """Until it has accepted something, or is at its end; processes start as slowly as the machine is busy."""
    noted = folder / "accepted"
    before = noted.stat().st_size if noted.exists() else 0
    while process.ended() is None and time.monotonic() < until:
        if noted.exists() and noted.stat().st_size > before:
            return
        time.sleep(0.005)  # of a real process


def test_every_accepted_event_comes_out_once(tmp_path: Path) -> None:
    chance = random.Random(16)
    deaths: Counter[str] = Counter()
    told: Counter[str] = Counter()

    def end(process: Forked, seconds: float, how: str) -> None:
        ending = killed_within(process, seconds)
        if ending == "killed":
            deaths[how] += 1
        else:
            assert "LeaseLost" in ending or "taken over" in ending or "is locked" in ending, ending
            told[how] += 1

    points = [point for point in POINTS if not point.startswith("unlink")]
    while deaths.total() < KILLS:
        turn = deaths.total() + told.total()
        if turn % 5 == 4:
            paused = start(tmp_path)
            wait_until_accepting(tmp_path, paused, time.monotonic() + 10)
            paused.signal(signal.SIGSTOP)
            follower = start(tmp_path)
            wait_until_accepting(tmp_path, follower, time.monotonic() + 4)
            paused.signal(signal.SIGCONT)
            end(paused, chance.uniform(0.1, 0.4), "paused")
            end(follower, chance.uniform(0.1, 0.4), "followed")
            continue
        point = chance.choice(points) if turn % 2 else None
        passes = chance.choice((3, 8, 21, 55, 144, 377))
        process = start(tmp_path, *([] if point is None else [f"kill:{point}:{passes}"]))
        wait_until_accepting(tmp_path, process, time.monotonic() + 10)
        end(process, chance.uniform(0.0, 0.25), point or "any moment")
    let_end(tmp_path)
    last = start(tmp_path)
    assert last.wait() == 0, last.errors()

    with closing(sqlite3.connect(tmp_path / "results.sqlite")) as database:
        results = database.execute("SELECT id, doubled FROM results ORDER BY id").fetchall()
    assert results == [(number, 2 * number) for number in range(EVENTS)]
    counts = [json.loads(line)["n"] for line in (tmp_path / "counts.jsonl").read_text().splitlines()]
    assert sum(counts) == EVENTS
    assert len(deaths) >= 3, deaths
