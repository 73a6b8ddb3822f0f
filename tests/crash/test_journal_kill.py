"""
A process that pays for its calls is killed twenty times, with no checkpoint in between. A real server counts:
only calls that ran when the process was killed are made again, and all of them carry the keys that they had.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.journal_app import ELEMENTS
from tests.crash.kills import PATIENCE, ROOT
from tests.crash.till import LATENCY, Till

KILLS = 20


@pytest.fixture
def till() -> Iterator[Till]:
    with Till() as running:
        yield running


def start(folder: Path, till: Till) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.crash.journal_app", str(folder), till.url]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)


@pytest.mark.timeout(600)
def test_no_call_is_paid_for_twice_unless_it_ran_at_a_kill(till: Till, tmp_path: Path) -> None:
    chance = random.Random(15)
    unanswered = 0
    for _ in range(KILLS):
        before, process = till.count(), start(tmp_path, till)
        until = time.monotonic() + PATIENCE
        while till.count() == before and process.poll() is None and time.monotonic() < until:
            time.sleep(0.005)  # of a real process
        time.sleep(chance.uniform(0.0, 0.6))
        assert process.poll() is None, (process.stderr or sys.stderr).read()
        unanswered += till.unanswered()
        process.kill()
        process.communicate()
        time.sleep(2 * LATENCY)  # the server does not know that nobody listens
    assert till.count() < ELEMENTS, "there is something left to do"
    last = start(tmp_path, till)
    _, errors = last.communicate(timeout=PATIENCE)
    assert last.returncode == 0, errors.decode()

    receipts = [json.loads(line) for line in (tmp_path / "receipts.jsonl").read_text().splitlines()]
    assert sorted(receipt["id"] for receipt in receipts) == list(range(ELEMENTS))
    assert sorted(receipt["receipt"] for receipt in receipts) == list(range(ELEMENTS))
    assert all(len(set(keys)) == 1 for keys in till.calls.values())
    assert len(till.charged) == ELEMENTS
    repeated = till.count() - ELEMENTS
    assert repeated <= unanswered
    assert unanswered < 40 * KILLS
    sizes = [file.stat().st_size for file in (tmp_path / "state").glob("calls-*")]
    assert sum(sizes) < 200 * ELEMENTS
