"""The example under `spark-submit`, on a master and a worker started as its first lines say."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from pathlib import Path

from asyncstream.runtime.spark import need_java
from tests.spark.cluster import ROOT
from tests.spark.processes import Program
from tests.spark.shipping import python_without_package, zipped_package


def test_example_runs_on_a_standalone_cluster_with_the_package_in_a_zip(tmp_path: Path) -> None:
    need_java()
    python = str(python_without_package(tmp_path))
    settings = {"PYSPARK_PYTHON": python, "PYTHONPATH": None}
    scripts = Path(sys.executable).parent

    def program(name: str, *command: str) -> Program:
        return running.enter_context(
            Program(
                [str(scripts / command[0]), *command[1:]],
                log=tmp_path / name,
                folder=tmp_path,
                settings=settings,
            )
        )

    place = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as running:
        master = program("master", "spark-class", "org.apache.spark.deploy.master.Master", *place)
        url = master.until(lambda: re.findall(r"Starting Spark master at (spark://\S+)", master.said), 120)[0]
        work = ("--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / "work"), url)
        worker = program("worker", "spark-class", "org.apache.spark.deploy.worker.Worker", *place, *work)
        worker.until(lambda: "Successfully registered with master" in worker.said, 120)
        options = ["--master", url, "--py-files", str(zipped_package(tmp_path))]
        job = program("job", "spark-submit", *options, str(ROOT / "examples/spark_job.py"), "--submitted")
        job.finish(180)
    without = sum(number % 97 % 4 == 3 for number in range(6_000))
    assert f"no price: {without} orders" in job.said
    assert "|shop 0|1699999980000|" in job.said
