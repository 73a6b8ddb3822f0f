"""The map of chunks is asked for by those tasks that read or write one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import BoundedOutOfOrderness, Pipeline, Stream
from asyncstream.runtime.spark.worker.chunks import Chunks
from asyncstream.windowing import Count, TumblingWindows
from tests.spark.cluster import columns, event_columns, run_stream, write_batches
from tests.spark.contract import key_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Client:
    """Stands in for what talks to the JVM, which is told where a task is."""

    def __init__(self, state: str) -> None:
        from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorHandleState

        self.states = StatefulProcessorHandleState
        self.handle_state = self.states[state]

    def set_handle_state(self, state: Any) -> None:
        self.handle_state = state


class Handle:
    """Stands in for PySpark's."""

    def __init__(self, state: str) -> None:
        self._statefulProcessorApiClient = Client(state)
        self.asked: list[str] = []
        self.written: dict[Any, Any] = {}

    def ask(self) -> Any:
        self.asked.append(self._statefulProcessorApiClient.handle_state.name)
        return SimpleNamespace(
            getValue=self.written.get,
            updateValue=self.written.__setitem__,
            removeKey=self.written.__delitem__,
        )


def test_the_driver_asks_at_once() -> None:
    handle = Handle("PRE_INIT")
    Chunks(handle, handle.ask)
    assert handle.asked == ["PRE_INIT"]


def test_what_is_not_known_asks_at_once() -> None:
    handle = Handle("CREATED")
    Chunks(SimpleNamespace(), handle.ask)
    assert handle.asked == ["CREATED"]


def test_a_task_asks_at_once_where_spark_reads_no_partition_without_the_map(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.2.1")
    handle = Handle("CREATED")
    Chunks(handle, handle.ask)
    assert handle.asked == ["CREATED"]


def test_a_task_asks_once_and_when_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.3.0")
    handle = Handle("CREATED")
    client = handle._statefulProcessorApiClient
    chunks = Chunks(handle, handle.ask)
    client.set_handle_state(client.states.DATA_PROCESSED)
    assert handle.asked == []
    chunks.updateValue((3,), (b"three", True))
    assert chunks.getValue((3,)) == (b"three", True)
    chunks.removeKey((3,))
    assert handle.written == {}
    assert handle.asked == ["CREATED"]
    assert client.handle_state is client.states.DATA_PROCESSED


def test_a_task_is_where_it_was_if_it_cannot_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.3.0")
    handle = Handle("CREATED")
    client = handle._statefulProcessorApiClient

    def refused() -> Any:
        raise OSError("the JVM is gone")

    chunks = Chunks(handle, refused)
    client.set_handle_state(client.states.INITIALIZED)
    with pytest.raises(OSError, match="the JVM is gone"):
        chunks.getValue((0,))
    assert client.handle_state is client.states.INITIALIZED


KEYS = [f"k{number}" for number in range(4_000)]


def windows(spark: SparkSession, rows: DataFrame, held_bytes: int | None) -> Any:
    from pyspark.sql.types import StringType

    pipeline = Pipeline("windows")
    source: Stream[Any] = pipeline.source([], name="rows")
    timed = source.event_time(lambda row: row["ts"], BoundedOutOfOrderness(0))
    counts = timed.key_by(key_of).window(TumblingWindows(4)).aggregate(Count(), name="counts")
    counts.map(lambda found: f"{found.key} {found.start_ms} {found.value}").to([], name="lines")
    outputs = {"lines": columns(line=StringType())}
    return pipeline.on_spark(
        spark, inputs={"rows": rows}, outputs=outputs, key_groups=2, held_bytes=held_bytes
    )


def some(ts: int, keys: list[str]) -> list[dict[str, Any]]:
    return [{"key": key, "ts": ts, "v": 1} for key in keys]


def test_chunks_outlast_micro_batches_that_do_not_ask_for_them(spark: SparkSession, tmp_path: Path) -> None:
    first = [some(0, KEYS), *(some(1_000 + number, KEYS[:2]) for number in range(3))]
    then = [some(2_000, KEYS[:1]), some(2_001, KEYS[:1]), some(9_000, KEYS[:2])]
    found: list[str] = []
    for run, batches in enumerate((first, then)):  # the second holds nothing, so it reads the log again
        write_batches(tmp_path / f"{run}", batches)
        for number, path in enumerate(sorted((tmp_path / f"{run}").iterdir())):
            path.rename(path.with_name(f"{run}{number:04}.json"))
        rows = spark.readStream.schema(event_columns()).option("maxFilesPerTrigger", 1)
        plan = windows(spark, rows.json(str(tmp_path / "[01]")), held_bytes=0 if run else None)
        found += run_stream(plan, tmp_path / "checkpoint")["lines"]
    counts = dict.fromkeys(KEYS, 1) | {"k0": 6, "k1": 4}
    assert sorted(found) == sorted(f"{key} 0 {count}" for key, count in counts.items())
