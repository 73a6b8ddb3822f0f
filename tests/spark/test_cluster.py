"""
Two executors in processes of their own, which do not have the package: it is shipped to them, and a Python
worker and an executor are killed while they work.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.cluster import ROOT, batches_in, write_batches, written
from tests.spark.contract import batches_of, embedded
from tests.spark.job import define
from tests.spark.processes import Program, slay
from tests.spark.shipping import python_without_package, writable_spark, zipped_package


def test_package_is_shipped_and_what_is_killed_is_replaced(tmp_path: Path) -> None:
    source, checkpoint, out = (tmp_path / name for name in ("in", "checkpoint", "out"))
    out.mkdir()
    write_batches(source, batches_of(12, count=8, size=60))
    job = [sys.executable, str(ROOT / "tests/spark/job.py"), "local-cluster[2,1,1024]"]
    job += map(str, (source, checkpoint, out, zipped_package(tmp_path), python_without_package(tmp_path)))
    settings = {"PYTHONPATH": str(ROOT), "SPARK_HOME": str(writable_spark(tmp_path))}
    with Program(job, log=tmp_path / "log", folder=tmp_path, settings=settings) as program:
        program.until(lambda: written(out), 180)
        assert "ModuleNotFoundError: No module named 'asyncstream'" in (out / "without").read_text()
        kill_a_worker_at_work(program)
        slay(executors(program)[0])
        program.until(lambda: "Lost executor" in program.said, 120)
        assert not (out / "done").exists()
        program.finish(180)
    assert sorted(written(out)) == embedded(batches_in(checkpoint), define)


def executors(program: Program) -> list[int]:
    return [process.pid for process in program.processes("CoarseGrainedExecutorBackend")]


def workers_of_executors(program: Program) -> list[int]:
    daemons = [process.pid for process in program.processes("daemon") if process.parent in executors(program)]
    return [process.pid for process in program.workers() if process.parent in daemons]


def kill_a_worker_at_work(program: Program) -> None:
    """Workers at rest are killed too, until one has left a task behind."""
    for _ in range(20):
        slay(program.until(lambda: workers_of_executors(program), 120)[0])
        if "Python worker exited unexpectedly" in program.said:
            return
    raise AssertionError("no worker was at work")
