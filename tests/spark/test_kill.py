"""
Exactly once: the driver, its JVM, their workers, or all of them are killed at random, and what has ended is
started again from the checkpoint.
"""

from __future__ import annotations

import os
import random
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.spark.cluster import ROOT, batches_in, write_batches, written
from tests.spark.contract import batches_of, embedded
from tests.spark.job import define
from tests.spark.processes import Program, slay

KILLS = int(os.environ.get("ASYNCSTREAM_KILLS", "4"))


VICTIMS = ("worker", "driver", "JVM", "all")
"""
Each is killed as often as the others, in an order that is drawn. All but a worker cost a start of Spark. In
`test_generated_pipelines` workers are killed too, many times.
"""


@pytest.mark.timeout(600 + 60 * KILLS)
def test_output_is_exactly_once_after_sigkill(tmp_path: Path) -> None:
    source, checkpoint, out = (tmp_path / name for name in ("in", "checkpoint", "out"))
    out.mkdir()
    write_batches(source, batches_of(11, count=2 + 2 * KILLS, size=40))
    job = [sys.executable, str(ROOT / "tests/spark/job.py"), "local[1,3]"]
    job += map(str, (source, checkpoint, out))

    def start() -> Program:
        return Program(job, log=tmp_path / "log", folder=tmp_path, settings={"PYTHONPATH": str(ROOT)})

    def begun() -> int:
        return len(list(checkpoint.glob("offsets/[0-9]*")))

    def is_at_work(program: Program, enough: int) -> bool:
        return begun() >= enough and bool(program.workers())

    rng = random.Random(195)
    victims = [victim for _ in range(0, KILLS, len(VICTIMS)) for victim in rng.sample(VICTIMS, len(VICTIMS))]
    program, least = start(), 1
    try:
        for victim in victims[:KILLS]:
            enough = begun() + rng.randint(least, 1)
            program.until(partial(is_at_work, program, enough), 180)
            time.sleep(0.4 * rng.random())
            if victim == "worker":
                slay(rng.choice(program.until(program.workers, 60)).pid)
                least = 1  # no task may fail three times
                continue
            if victim == "driver":
                slay(program.pid)
            elif victim == "JVM":
                slay(program.processes("org.apache.spark.deploy.SparkSubmit")[0].pid)
            else:
                program.kill()
            program.until_gone(60)
            program, least = start(), 0  # also while it recovers
        program.finish(300)
    finally:
        program.kill()
    assert sorted(written(out)) == embedded(batches_in(checkpoint), define)
