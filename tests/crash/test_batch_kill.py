"""A process is killed while it submits a job to a provider, and while jobs are parked: none is done twice."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.crash.batch_app import ELEMENTS, SIZE
from tests.crash.kills import PATIENCE, Forked

JOBS = -(-ELEMENTS // SIZE)


def start(folder: Path) -> Forked:
    return Forked("tests.crash.batch_app", str(folder))


def submissions(folder: Path) -> list[dict[str, Any]]:
    file = folder / "submitted.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def killed_while_parked(folder: Path) -> None:
    """Start, and kill when each job has been asked for some times, and so is in a checkpoint."""
    polled = folder / "polled"
    process = start(folder)
    until = time.monotonic() + PATIENCE
    while process.ended() is None and time.monotonic() < until:
        asked = Counter(polled.read_text().split()) if polled.exists() else Counter[str]()
        if len(asked) == JOBS and min(asked.values()) >= 10:
            break
        time.sleep(0.02)  # of a real process
    assert process.ended() is None, process.errors()
    process.kill()


def killed_while_submitting(folder: Path) -> None:
    """Start a process that is killed when the provider has a job and nobody has been told."""
    (folder / "deadly").touch()
    assert start(folder).wait() == -signal.SIGKILL
    (folder / "deadly").unlink()


def test_no_job_is_done_twice_by_processes_that_are_killed(tmp_path: Path) -> None:
    killed_while_submitting(tmp_path)
    killed_while_parked(tmp_path)
    made = submissions(tmp_path)
    assert len(made) == JOBS + 1
    assert [one["elements"] for one in made if one["key"] == made[0]["key"]] == [list(range(SIZE))] * 2

    (tmp_path / "open").touch()
    last = start(tmp_path)
    assert last.wait() == 0, last.errors()
    assert submissions(tmp_path) == made  # of what was parked nothing is submitted again
    assert len({one["key"] for one in made}) == JOBS
    found = [json.loads(line) for line in (tmp_path / "doubles.jsonl").read_text().splitlines()]
    assert found == [{"id": number, "double": 2 * number} for number in range(ELEMENTS)]
