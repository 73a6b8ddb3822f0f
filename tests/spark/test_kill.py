"""
Exactly once: driver, JVM and workers are killed together, and started again from the checkpoint.

After a crash Spark may put files into one micro-batch that were in two before, which moves watermarks. So the
embedded engine is fed the micro-batches that the checkpoint tells of.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest

from tests.spark.cluster import ROOT, write_batches
from tests.spark.test_contract import batches_of, embedded, functions

KILLS = int(os.environ.get("ASYNCSTREAM_KILLS", "2"))


@pytest.mark.timeout(120 + 90 * KILLS)
def test_output_is_exactly_once_after_sigkill(tmp_path: Path) -> None:
    source, checkpoint, out = (tmp_path / name for name in ("in", "checkpoint", "out"))
    out.mkdir()
    write_batches(source, batches_of(11, count=4 + 3 * KILLS, size=40))
    rng = random.Random(5)
    for kill in range(KILLS):
        run(source, checkpoint, out, until=2 + 3 * kill, then_wait=rng.random())
    run(source, checkpoint, out)
    found = [line for path in sorted(out.glob("*.json")) for line in json.loads(path.read_text())]
    assert sorted(found) == embedded(batches_in(checkpoint), functions)


def run(source: Path, checkpoint: Path, out: Path, until: int | None = None, then_wait: float = 0) -> None:
    """Run the driver to its end, or kill it `then_wait` seconds after `until` micro-batches are written."""
    command = [sys.executable, "-m", "tests.spark.driver", str(source), str(checkpoint), str(out)]
    with (out / "log").open("ab") as log:
        driver = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    try:
        while driver.poll() is None and (until is None or len(list(out.glob("*.json"))) < until):
            time.sleep(0.05)
        if until is None:
            assert (out / "done").exists(), (out / "log").read_text()[-3000:]
        else:
            assert driver.poll() is None, (out / "log").read_text()[-3000:]
            time.sleep(then_wait)
    finally:
        try:
            os.killpg(driver.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        driver.wait()


def batches_in(checkpoint: Path) -> list[list[dict[str, Any]]]:
    """The rows of each micro-batch, by what the checkpoint says of files and offsets."""
    files: dict[str, int] = {}
    for path in (checkpoint / "sources" / "0").iterdir():
        if not path.name.startswith("."):
            for line in path.read_text().splitlines()[1:]:
                entry = json.loads(line)
                files[unquote(urlparse(entry["path"]).path)] = entry["batchId"]
    offsets = sorted(int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdigit())
    batches, last = [], -1
    for number in offsets:
        offset = json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[2])["logOffset"]
        paths = sorted(path for path, entry in files.items() if last < entry <= offset)
        rows = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
        if rows:
            batches.append(rows)
        last = offset
    return batches
