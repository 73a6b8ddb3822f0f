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
    assert "a query goes on from its checkpoint; if executors are let go" in told
    assert "spark.dynamicAllocation.cachedExecutorIdleTimeout" in told
    assert told.endswith("\nCheckpoint block rdd_5_0 not found")


def test_executors_that_end_again_and_again_say_what_to_do() -> None:
    job = (
        "Job aborted due to stage failure: ShuffleMapStage 1 (start at A.java:0) has failed the maximum "
        "allowable number of times: 4. Most recent failure reason: "
    )
    lost = "org.apache.spark.shuffle.MetadataFetchFailedException: Missing an output location for shuffle 0\n"
    frames = (
        "An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):\n"
        '  File "/lib/python3.11/site-packages/py4j/java_gateway.py", line 1, in call\n    call()\n'
    )
    error = "py4j.protocol.Py4JJavaError: An error occurred while calling o1.localCheckpoint.\n: "
    told = failure_in(f"{frames}{error}{job}{lost}\tat org.apache.spark.A.b(A.scala:1)\n")
    assert told.startswith("executors of Spark have ended, or lost their files, one after another")
    assert told.endswith("failure reason: org.apache.spark.shuffle.MetadataFetchFailedException")


def test_rows_that_cannot_be_computed_show_no_frames_but_the_users() -> None:
    told = failure_in(
        "An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):\n"
        '  File "/here/asyncstream/runtime/spark/plan.py", line 1, in write_batch\n    with computed(b):\n'
        '  File "/usr/lib/python3.11/contextlib.py", line 137, in __enter__\n    return next(self.gen)\n'
        "           ^^^^^^^^^^^^^^\n"
        '  File "/here/asyncstream/runtime/spark/micro_batch.py", line 2, in computed\n    kept()\n'
        "py4j.protocol.Py4JJavaError: out of room\n"
    )
    assert told == "foreachBatch: py4j.protocol.Py4JJavaError: out of room"
