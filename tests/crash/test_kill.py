"""
A process is killed again and again, at any moment and at every call by which something becomes durable; at
times two are started at once. What they leave in the end is, byte for byte, what one run leaves.
"""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.crash.app import POINTS, TABLES
from tests.crash.ending import let_end
from tests.crash.kills import PATIENCE, Forked, killed_within
from tests.stamps import newest_ns

KILLS = 32
"""For each of the two variants."""

EVENTS = 12_000


def events() -> str:
    chance = random.Random(4)
    rows: list[dict[str, Any]] = [
        {
            "id": number,
            "key": f"k{chance.randrange(20)}",
            # a few come so late that nothing waits for them any more
            "at": number + (chance.randrange(25) if chance.random() > 0.03 else -chance.randrange(400)),
            "value": number % 7,
        }
        for number in range(EVENTS)
    ]
    rows[-1]["last"] = True
    return "".join(json.dumps(row) + "\n" for row in rows)


class Runs:
    """The processes of one folder, one after the other or two at once."""

    def __init__(self, folder: Path, store: str) -> None:
        folder.mkdir()
        self.folder, self.store = folder, store
        (folder / "events.jsonl").write_text(events())

    def start(self, *point: str, on_held: str = "refuse") -> Forked:
        return Forked("tests.crash.app", str(self.folder), "ordered", self.store, on_held, *point)

    def wait_for_checkpoint(self, process: Forked, at_most: float = PATIENCE) -> None:
        """Until there is a new one in the store: processes start as slowly as the machine is busy."""
        before, until = self._newest_ns(), time.monotonic() + at_most
        self.wait_until(
            lambda: self._newest_ns() > before or process.ended() is not None or time.monotonic() > until
        )

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE
        while not is_so():
            assert time.monotonic() < until
            time.sleep(0.01)  # of real processes

    def _newest_ns(self) -> int:
        return newest_ns([*self.folder.glob("kept.sqlite*"), *self.folder.glob("checkpoints/*.checkpoint")])

    def finish(self) -> None:
        let_end(self.folder)
        process = self.start()
        assert process.wait() == 0, process.errors()

    def results(self) -> dict[str, list[Any]]:
        """All that the sinks have left, in order."""
        left: dict[str, list[Any]] = {
            file: (self.folder / file).read_bytes().splitlines(keepends=True)
            for file in ("sessions.jsonl", "late.jsonl")
        }
        with closing(sqlite3.connect(self.folder / "results.sqlite")) as database:
            for table in TABLES:
                left[table] = database.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()
        return left


class Killer:
    """Starts processes, alone or in pairs, and sees to it that each comes to a violent end."""

    def __init__(self, runs: Runs, seed: int) -> None:
        self.runs = runs
        self.chance = random.Random(seed)
        self.deaths: Counter[str] = Counter()
        self.told: Counter[str] = Counter()  # what the loser of a pair said

    def one(self) -> None:
        """Most are hit in the middle, some while they start and restore."""
        point = self.chance.choice(POINTS) if self.chance.random() < 0.6 else None
        passes = self.chance.choice((1, 2, 3, 5, 8, 13, 21, 34))
        process = self.runs.start(*([] if point is None else [f"kill:{point}:{passes}"]))
        told = self.told.total()
        self.end(process, self.chance.uniform(0.05, 1.2), point)
        assert self.told.total() == told

    def two_at_once(self) -> None:
        """One runs, and the other refuses, or waits and goes on when the first is gone."""
        on_held = self.chance.choice(("refuse", "wait"))
        first, second = (self.runs.start(on_held=on_held) for _ in range(2))
        if on_held == "refuse":
            self.runs.wait_until(lambda: first.ended() is not None or second.ended() is not None)
        else:
            self.runs.wait_for_checkpoint(first)
        self.end(first, self.chance.uniform(0.0, 0.6))
        self.end(second, self.chance.uniform(0.0, 1.0))

    def one_paused(self) -> None:
        """One stops at some point, or at any moment, so the other follows; then the first wakes up."""
        point, passes = self.chance.choice(POINTS), self.chance.choice((1, 2, 3, 5, 8, 13, 21, 34))
        paused = self.runs.start(f"stop:{point}:{passes}")
        until = time.monotonic() + self.chance.uniform(0.6, 1.6)
        self.runs.wait_until(lambda: paused.is_stopped() or time.monotonic() > until)
        paused.signal(signal.SIGSTOP)  # there are stores that never pass some points
        self.runs.wait_until(lambda: paused.is_stopped())
        follower = self.runs.start(on_held="wait")
        # one that is stopped in a transaction holds a lock that nobody can break: it must wake up
        self.runs.wait_for_checkpoint(follower, at_most=5.0)
        paused.signal(signal.SIGCONT)
        self.end(follower, self.chance.uniform(0.2, 0.6))
        self.end(paused, self.chance.uniform(0.0, 0.6))

    def end(self, process: Forked, seconds: float, point: str | None = None) -> None:
        """Have it end, and note how."""
        ending = killed_within(process, seconds)
        if ending == "killed":
            self.deaths[point or "any moment"] += 1
        elif "LeaseHeld" in ending:
            self.told["held"] += 1
        elif "is being taken over by another process" in ending or "is locked" in ending:
            self.told["locked out"] += 1  # by one that is stopped, and holds a lock of the operating system
        else:
            assert "LeaseLost" in ending or "was taken over by" in ending, ending
            self.told["lost"] += 1


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("store", "seed"), [("directory", 1), ("sqlite", 2)])
def test_killed_processes_leave_exactly_what_one_run_leaves(tmp_path: Path, store: str, seed: int) -> None:
    one = Runs(tmp_path / "one run", store)
    one.finish()
    wanted = one.results()
    runs = Runs(tmp_path / "killed", store)
    killer = Killer(runs, seed)
    until = time.monotonic() + 4 * PATIENCE
    turn = 0
    while killer.deaths.total() < KILLS:
        assert time.monotonic() < until, killer.deaths
        turn += 1
        if turn % 4:
            killer.one()
        elif turn % 12:
            killer.two_at_once()
        else:
            killer.one_paused()
    runs.finish()
    left = runs.results()
    for name in wanted:
        assert left[name] == wanted[name], name
    assert all(wanted.values())
    assert len([point for point in POINTS if killer.deaths[point]]) >= len(POINTS) // 2, killer.deaths
    assert killer.told, "no two processes ever met"
