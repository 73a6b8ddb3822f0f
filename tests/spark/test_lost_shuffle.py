"""What Spark has shuffled is lost while it is read, and the calls that are made again answer otherwise."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from asyncstream.runtime.spark.failures import failure_in
from tests.spark.cluster import ROOT
from tests.spark.losing import ROWS
from tests.spark.processes import Program


def test_no_row_is_lost_or_doubled(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tests/spark/losing.py"), str(tmp_path)]
    settings = {"PYTHONPATH": str(ROOT)}
    with Program(command, log=tmp_path / "log", folder=tmp_path, settings=settings) as program:
        program.finish(240)
    for result in json.loads((tmp_path / "results.json").read_text()):
        assert result["is_lost"]
        assert result["found"] == list(range(ROWS))
        told = result["told"]
        assert not told or told.startswith("an executor of Spark has ended, or lost its files")
        # what is kept of a micro-batch is let go; of one that failed, by Spark
        assert result["kept"] <= bool(told)


def test_lost_checkpoint_of_a_micro_batch_says_what_to_do() -> None:
    told = failure_in(
        "An error occurred while calling o1.collectToPython.\n: org.apache.spark.SparkException: Checkpoint "
        "block rdd_5_0 not found! Either the executor\n\tat org.apache.spark.A.b(A.scala:1)"
    )
    assert told.endswith("a query goes on from its checkpoint\nCheckpoint block rdd_5_0 not found")
