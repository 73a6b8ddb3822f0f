"""
Processes whose state is on disk are killed, run out of disk, and lose its directory: what they leave in the
end is what one leaves that keeps its state in memory, or they say why they cannot go on.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.crash.disk_app import KEYS, NAMES, ROUNDS, events
from tests.crash.ending import let_end
from tests.crash.kills import PATIENCE, ROOT
from tests.stamps import newest_ns

KILLS = 5

SMALL = 50
LARGE = 40_000
"""Bytes of each key: in all more than what RocksDB gathers in memory."""

DISK_MB = 20


class Runs:
    """The processes of one folder."""

    def __init__(self, folder: Path, size: int, held: int = -1) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.size = folder, size
        (folder / "events.jsonl").write_text(events(held))

    def start(
        self, state: Path | None, *before: str, limit: Callable[[], None] | None = None
    ) -> subprocess.Popen[str]:
        where = "" if state is None else str(state)
        return subprocess.Popen(
            [*before, sys.executable, "-m", "tests.crash.disk_app", str(self.folder), where, str(self.size)],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=limit,
        )

    def wait_for_checkpoint(self, process: subprocess.Popen[str]) -> None:
        before, until = self._newest_ns(), time.monotonic() + PATIENCE
        while self._newest_ns() <= before and process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.01)  # of a real process

    def _newest_ns(self) -> int:
        return newest_ns(self.folder.glob("checkpoints/*.checkpoint"))

    def finish(self, state: Path | None) -> None:
        let_end(self.folder)
        process = self.start(state)
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said

    def results(self) -> dict[str, str]:
        return {name: (self.folder / f"{name}.jsonl").read_text() for name in NAMES}


@cache
def in_memory(folder: Path, size: int) -> dict[str, str]:
    """What one run leaves that keeps its state in memory."""
    runs = Runs(folder / f"memory {size}", size)
    runs.finish(None)
    found = runs.results()
    sums = [json.loads(line) for line in found["sums"].splitlines()]
    assert len(sums) == 2 * KEYS
    assert all(row["intact"] for row in sums)
    assert len(found["sessions"].splitlines()) == ROUNDS * KEYS
    return found


@pytest.fixture
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, str]]:
    return lambda size: in_memory(tmp_path_factory.getbasetemp(), size)


def test_killed_processes_leave_what_one_run_leaves(
    tmp_path: Path, expected: Callable[[int], dict[str, str]]
) -> None:
    runs, chance = Runs(tmp_path / "runs", SMALL), random.Random(7)
    state = tmp_path / "state"
    for _ in range(KILLS):
        process = runs.start(state)
        runs.wait_for_checkpoint(process)
        time.sleep(chance.random() * 0.3)  # of a real process
        process.kill()
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == -signal.SIGKILL, said
    runs.finish(state)
    assert runs.results() == expected(SMALL)
    assert not (state / "rows").exists()


def test_a_full_disk_ends_the_job_and_the_next_goes_on(
    tmp_path: Path, expected: Callable[[int], dict[str, str]]
) -> None:
    runs, state = Runs(tmp_path / "runs", LARGE), tmp_path / "state"
    state.mkdir()
    if _can_mount(state):
        mount = f'mount -t tmpfs -o size={DISK_MB}m tmpfs "$0" && exec "$@"'
        process = runs.start(state, "unshare", "--mount", "sh", "-c", mount, str(state))
        says = "No space left on device"
    else:  # the same from the kernel, of each file
        process = runs.start(
            state,
            limit=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (DISK_MB << 20, DISK_MB << 20)),
        )
        says = "File too large"
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, said
    assert "the state in" in said
    assert "cannot be used any more" in said
    assert says in said
    runs.finish(tmp_path / "large enough")
    assert runs.results() == expected(LARGE)


def test_a_lost_directory_ends_the_job_and_the_next_goes_on(
    tmp_path: Path, expected: Callable[[int], dict[str, str]]
) -> None:
    runs, state = Runs(tmp_path / "runs", LARGE, KEYS // 4), tmp_path / "state"
    process = runs.start(state)
    runs.wait_for_checkpoint(process)
    state.rename(tmp_path / "elsewhere")  # at once: it goes on to make files in it
    let_end(runs.folder)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, said
    assert "cannot be used any more" in said
    runs.finish(state)
    assert runs.results() == expected(LARGE)


def _can_mount(where: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(where)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
