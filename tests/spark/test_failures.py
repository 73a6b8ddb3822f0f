"""What a failed job says, and that the calls of a cancelled one end."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import Pipeline
from asyncstream.connectors import Items
from asyncstream.runtime.spark import enrich, failure_text, log_progress, register_source
from asyncstream.runtime.spark.failures import failure_in
from tests.spark.cluster import event_columns, frame, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = [{"key": "k", "ts": number, "v": number} for number in range(10)]

TOLD = "UserFunctionError: step 'planes': LookupError: no plane 3, on element {'key': 'k', 'ts': 3, 'v': 3}"


async def fail_on_three(row: dict[str, Any]) -> dict[str, Any]:
    if row["v"] == 3:
        raise LookupError("no plane 3")
    return row


def check(told: str) -> None:
    lines = told.splitlines()
    assert lines[0] == TOLD
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "LookupError: no plane 3"
    assert "in fail_on_three" in told
    assert not any(word in told for word in ("java", "scala", "org.apache", "run_stage"))


def test_failed_action_begins_with_step_and_element(spark: SparkSession) -> None:
    out = enrich(frame(spark, ROWS), fail_on_three, schema=event_columns(), name="planes")
    with pytest.raises(Exception, match="no plane 3") as caught:
        out.collect()
    check(failure_text(caught.value))
    shown = str(caught.value).splitlines()
    assert TOLD in shown[1], "Spark's own line is the first, and ours the next"


def test_failed_query_begins_with_step_and_element(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = stream(spark, tmp_path / "in", [ROWS])
    out = enrich(rows, fail_on_three, schema=event_columns(), name="planes")
    caplog.set_level(logging.ERROR, "asyncstream.spark")
    lines = log_progress(spark)
    try:
        query = out.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "cp")).start()
        with pytest.raises(Exception, match="no plane 3"):
            query.awaitTermination(200)
        check(failure_text(query))
        until = time.monotonic() + 60
        while not caplog.messages and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(lines)
    assert f"{query.id} has failed: {TOLD}" in caplog.messages[0]


@pytest.mark.parametrize("sinks", [("rows",), ("rows", "more")], ids=["written by its stage", "read apart"])
def test_row_that_does_not_fit_begins_with_step_and_element(
    spark: SparkSession, sinks: tuple[str, ...]
) -> None:
    pipeline = Pipeline("rows")
    rows = pipeline.source(ROWS, name="in").map(lambda row: {"v": row["v"]}, name="some")
    for sink in sinks:
        rows.to([], name=sink)
    plan = pipeline.on_spark(spark, inputs={"in": frame(spark, ROWS)}, outputs=dict.fromkeys(sinks, "w long"))
    with pytest.raises(Exception, match="it has no 'w'") as caught:
        plan["rows"].collect()
    told = "UserFunctionError: step 'rows': KeyError: \"it has no 'w'; "
    assert failure_text(caught.value).startswith(told)
    assert told in str(caught.value).splitlines()[1], "Spark's own line is the first, and ours the next"


REPLY = (
    "500\njava.io.IOException: gone\n\tat com.acme.Planes.find(Planes.java:1)\n SQLSTATE: 42000\n\t... 2 more"
)
"""What a service may answer that runs on Java: lines as Spark has them."""


def test_failed_writer_of_a_stream_is_told_by_its_error_first(spark: SparkSession, tmp_path: Path) -> None:
    def write(rows: Any, number: int) -> None:
        rows.count()
        raise ConnectionError(REPLY)

    writer = stream(spark, tmp_path / "in", [ROWS]).writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).start()
    with pytest.raises(Exception, match="500") as caught:
        query.awaitTermination(200)
    error, told = f"ConnectionError: {REPLY}", failure_text(query)
    head = f"foreachBatch: {error}\nTraceback (most recent call last):\n  File "
    assert told.startswith(head), told
    assert told.endswith(f", in write\n    raise ConnectionError(REPLY)\n{error}"), told
    assert "pyspark" not in told
    assert failure_text(caught.value) == told


def test_writer_that_does_not_read_a_micro_batch_of_keyed_steps_is_told_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = Pipeline()
    keyed: Any = pipeline.source([], name="rows").key_by("key").count_window(2).collect(name="pairs")
    keyed.map(lambda pair: str(pair.value)).to([], name="out")
    rows = stream(spark, tmp_path / "in", [ROWS])
    out = pipeline.on_spark(spark, inputs={"rows": rows}, outputs={"out": "pair string"})["out"]
    writer = out.writeStream.foreachBatch(lambda rows, number: None)
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).start()
    with pytest.raises(Exception, match="terminated"):
        query.awaitTermination(200)
    assert "ensure your foreachBatch function processes the entire DataFrame" in failure_text(query)


@pytest.mark.parametrize(
    "goes_on",
    [
        "\n SQLSTATE: 38000 SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: x",
        "\n SQLSTATE: 38000\n\nJVM stacktrace:\norg.apache.spark.X\n\tat org.apache.spark.X",
        "\n SQLSTATE: 38000\n\tat org.apache.spark.X\nCaused by: java.X\n\tat java.Y",
        "\n\n\tat org.apache.spark.X\n\tat java.Y",
        "\n\nDriver stacktrace:\n\tat org.apache.spark.X",
        "\n SQLSTATE: 38000\n",
        "",
    ],
)
def test_lines_of_a_service_on_java_are_no_end_of_an_error_of_ours(goes_on: str) -> None:
    ours = f"UserFunctionError: step 'x': OSError: {REPLY}, on element 1\nTraceback: ...\nOSError: {REPLY}"
    assert failure_in(f"[STREAM_FAILED] Query: asyncstream.errors.{ours}{goes_on}") == ours
    proxy = "Reason: An exception was raised by the Python Proxy. Return Message: "
    connect = "[session: x] Found error inside foreachBatch Python process: "
    above = '  File "/spark/python/lib/py4j-src.zip/py4j/clientserver.py", line 1, in call\n    x\n    ^\n'
    above += '  File "/lib/python3.11/site-packages/pyspark/sql/utils.py", line 2, in call\n'
    mine = '  File "/home/me/pyspark/job.py", line 3, in write\n    save()\n'
    head = "Traceback (most recent call last):\n"
    for spark in (proxy, connect):
        assert failure_in(f"{spark}{head}{above}{mine}OSError: {REPLY}{goes_on}") == (
            f"foreachBatch: OSError: {REPLY}\n{head}{mine}OSError: {REPLY}"
        )
        assert failure_in(f"{spark}{head}{above}TypeError: x{goes_on}") == "foreachBatch: TypeError: x"


def test_calls_of_a_cancelled_job_end(spark: SparkSession, tmp_path: Path) -> None:
    """Spark gives a task two seconds, and ends its worker."""
    beats = tmp_path / "beats"

    def note() -> None:
        with open(beats, "a") as file:
            file.write(".")

    async def beat(row: dict[str, Any]) -> dict[str, Any]:
        while True:
            note()
            await asyncio.sleep(0.02)

    errors: list[str] = []

    def collect() -> None:
        spark.sparkContext.setJobGroup("slow", "calls that never end", interruptOnCancel=True)
        try:
            enrich(frame(spark, ROWS), beat, schema=event_columns()).collect()
        except Exception as error:
            errors.append(str(error))

    def size() -> int:
        return beats.stat().st_size if beats.exists() else 0

    running = threading.Thread(target=collect)
    running.start()
    until = time.monotonic() + 100
    while not size() and time.monotonic() < until:
        time.sleep(0.02)
    spark.sparkContext.cancelJobGroup("slow")
    running.join(100)
    assert "cancelled" in errors[0]
    quiet = 0
    while quiet < 10 and time.monotonic() < until + 60:
        before = size()
        time.sleep(0.1)
        quiet = quiet + 1 if size() == before else 0
    assert quiet == 10, "no call goes on"


def test_what_is_not_of_a_step_stays_as_spark_says_it() -> None:
    assert failure_in("[TABLE_NOT_FOUND] no such table\n\tat org.apache.X\n\tat java.Y") == (
        "[TABLE_NOT_FOUND] no such table"
    )
    assert failure_in("") == ""
    lost, told = (
        "Job aborted: X: asyncstream.errors.InternalError: lost\nat once",
        "InternalError: lost\nat once",
    )
    assert failure_in(f"{lost}\n\nDriver stacktrace:\n\tat org.apache.spark.X") == told
    assert failure_in(f"{lost}\n SQLSTATE: 38000\n\tat org.apache.spark.X") == told


def test_worker_that_has_ended_is_told_with_what_to_do(spark: SparkSession) -> None:
    async def end(row: dict[str, Any]) -> dict[str, Any]:
        os._exit(7)

    with pytest.raises(Exception, match="exited unexpectedly") as caught:
        enrich(frame(spark, ROWS), end, schema=event_columns()).collect()
    told = failure_text(caught.value)
    first, spark_says = told.splitlines()
    assert re.match("a Python worker of Spark has ended .* memory, .*; give workers more room", first)
    assert spark_says.startswith("Python worker exited unexpectedly (crashed)")
    proxy = "Reason: An exception was raised by the Python Proxy. Return Message: "
    assert failure_in(f"{proxy}Traceback (most recent call last):\n{caught.value}") == told


def test_reader_of_a_source_that_has_ended_is_told_with_what_to_do(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Ending(Items[int]):
        async def read(self) -> Any:
            os._exit(7)

    register_source(spark, lambda: Ending([1]), schema="v bigint", name="ending")
    rows = spark.readStream.format("ending").load()
    caplog.set_level(logging.ERROR, "asyncstream.spark")
    lines = log_progress(spark)
    try:
        query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
        with pytest.raises(Exception, match="STREAM_FAILED") as caught:
            query.awaitTermination(200)
        until = time.monotonic() + 60
        while not caplog.messages and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(lines)
    told = failure_text(query)
    assert re.match("the Python process in which Spark's driver reads a source has ended: .* memory, ", told)
    assert failure_text(caught.value) == told
    assert caplog.messages[0] == f"{query.id} has failed: {told}"


def test_error_of_ours_that_another_has_caused_is_told_behind_it(spark: SparkSession, tmp_path: Path) -> None:
    class Nowhere(Items[int]):
        def position(self) -> Any:
            return object()

    register_source(spark, lambda: Nowhere([1]), schema="v bigint", name="nowhere")
    rows = spark.readStream.format("nowhere").load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(Exception, match="STREAM_FAILED"):
        query.awaitTermination(200)
    told = failure_text(query)
    assert told.startswith("SourceError: source 'nowhere': Nowhere stands at <object object>, which no")
    assert "CodecError: value: cannot keep a object" in told


def test_checkpoint_that_a_killed_regroup_has_left_is_told_with_what_to_do() -> None:
    told = failure_in(
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: No usable value for logOffset\n"
        "Did not find value which can be converted into long SQLSTATE: XXKST"
    )
    assert told.startswith(
        "CheckpointError: this stream's checkpoint is of a query that has read something else"
    )
    assert told.endswith("remove it, and regroup again")
