"""
A process that pays for its calls is killed twenty times, with no checkpoint in between. A real server counts:
only calls that ran when the process was killed are made again, and all of them carry the keys that they had.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.journal_app import ELEMENTS
from tests.crash.kills import PATIENCE, Forked
from tests.crash.till import LATENCY, Till

KILLS = 20

CALLS = 100
"""The most that a process makes before its end comes."""


@pytest.fixture
def till() -> Iterator[Till]:
    with Till() as running:
        yield running


def start(folder: Path, till: Till) -> Forked:
    return Forked("tests.crash.journal_app", str(folder), till.url)


def test_no_call_is_paid_for_twice_unless_it_ran_at_a_kill(till: Till, tmp_path: Path) -> None:
    chance = random.Random(15)
    unanswered = 0
    for _ in range(KILLS):
        enough, process = till.count() + chance.randint(1, CALLS), start(tmp_path, till)
        until = time.monotonic() + PATIENCE
        while till.count() < enough and process.ended() is None and time.monotonic() < until:
            time.sleep(0.005)  # of a real process
        time.sleep(chance.uniform(0.0, LATENCY))
        assert process.ended() is None, process.errors()
        killed = time.monotonic()
        process.kill()
        time.sleep(2 * LATENCY)  # the server does not know that nobody listens
        unanswered += till.unanswered_at(killed)
    assert till.count() < ELEMENTS, "there is something left to do"
    last = start(tmp_path, till)
    assert last.wait() == 0, last.errors()

    receipts = [json.loads(line) for line in (tmp_path / "receipts.jsonl").read_text().splitlines()]
    assert sorted(receipt["id"] for receipt in receipts) == list(range(ELEMENTS))
    assert sorted(receipt["receipt"] for receipt in receipts) == list(range(ELEMENTS))
    assert all(len(set(keys)) == 1 for keys in till.calls.values())
    assert len(till.charged) == ELEMENTS
    repeated = till.count() - ELEMENTS
    assert repeated <= unanswered
    assert unanswered < 50 * KILLS
    sizes = [file.stat().st_size for file in (tmp_path / "state").glob("calls-*")]
    assert sum(sizes) < 200 * ELEMENTS
