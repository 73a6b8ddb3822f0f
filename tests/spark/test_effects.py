"""Idempotency keys in Spark's own tasks: the same when one is run again, in a batch and in a stream."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import PipelineError, call_context
from asyncstream.connectors.http import HttpLookup
from asyncstream.runtime.spark import enrich, enrich_column
from tests.crash.till import Till
from tests.spark.cluster import columns, frame, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


def keys() -> StructType:
    from pyspark.sql.types import LongType, StringType

    return columns(v=LongType(), key=StringType())


async def keyed(row: dict[str, Any]) -> dict[str, Any]:
    return {"v": row["v"], "key": call_context().idempotency_key}


def test_each_row_has_a_key_that_every_run_of_the_plan_shares(spark: SparkSession) -> None:
    rows = [{"key": "a", "ts": 0, "v": number // 2} for number in range(100)]
    out = enrich(frame(spark, rows), keyed, schema=keys(), effect=True)
    first = sorted(tuple(row) for row in out.collect())

    assert len({key for _, key in first}) == 100, "also those of equal rows"
    assert sorted(tuple(row) for row in out.collect()) == first
    twice = enrich(frame(spark, rows * 2), keyed, schema=keys(), effect=True).coalesce(1).collect()
    assert len({row.key for row in twice}) == 200, "also those of partitions that one task has all"
    again = enrich(frame(spark, rows), keyed, schema=keys(), effect=True)
    assert {row.key for row in again.collect()}.isdisjoint(key for _, key in first)


def test_a_micro_batch_that_is_run_again_has_the_keys_that_it_had(
    spark: SparkSession, tmp_path: Path
) -> None:
    seen: list[list[tuple[int, str]]] = []

    def failing(batch: Any, number: int) -> None:
        seen.append(sorted(tuple(row) for row in batch.collect()))
        if len(seen) == 2:
            raise RuntimeError("the sink is down")

    rows = [[{"key": "a", "ts": 0, "v": 1}] * 3, [{"key": "a", "ts": 0, "v": 1}] * 3]
    source = stream(spark, tmp_path / "in", rows)
    for life in range(2):
        out = enrich(source, keyed, schema=keys(), effect=True)
        query = out.writeStream.foreachBatch(failing).option("checkpointLocation", str(tmp_path / "cp"))
        running = query.trigger(availableNow=True).start()
        if life == 0:
            with pytest.raises(Exception, match="the sink is down"):
                running.awaitTermination(60)
        else:
            running.awaitTermination(60)

    assert [len({key for _, key in batch}) for batch in seen] == [3, 3, 3]
    assert seen[1] == seen[2], "planned anew, it goes on from Spark's checkpoint"
    assert {key for _, key in seen[0]}.isdisjoint(key for _, key in seen[1])


class Fatal(HttpLookup):
    """Charges, and for some rows has its worker killed when the charge is made and the answer not given."""

    marks: Path
    fatal: frozenset[int]

    async def invoke(self, value: dict[str, Any]) -> Any:
        answer = await super().invoke(value)
        if value["v"] in self.fatal:
            try:
                (self.marks / str(value["v"])).touch(exist_ok=False)
            except FileExistsError:  # it was killed for this one
                return answer
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


def test_a_service_that_knows_keys_does_its_work_once_though_workers_are_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [{"key": "a", "ts": 0, "v": number} for number in range(200)]
    with Till() as till:
        charge = Fatal(till.url + "/charge/{v}", method="POST", merge=lambda row, receipt: row | receipt)
        charge.marks, charge.fatal = tmp_path, frozenset({30, 70, 150})  # of two tasks, one of them twice
        fields = columns_of_receipts()
        out = enrich(frame(spark, rows), charge, schema=fields, effect=True, concurrency=10).collect()

        assert sorted(row.v for row in out) == list(range(200))
        assert {row.v: row.receipt for row in out} == {
            number: till.charged[keys[0]] for number, keys in till.calls.items()
        }
        assert len(till.charged) == 200, "as many effects as elements"
        assert all(len(set(keys)) == 1 for keys in till.calls.values())
        assert till.count() > 200, "calls were made again"
        assert len(list(tmp_path.iterdir())) == 3


def columns_of_receipts() -> StructType:
    from pyspark.sql.types import LongType

    return columns(v=LongType(), receipt=LongType())


def test_a_column_does_not_tell_its_rows_apart(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="effect: expected what tells rows from each other"):
        enrich_column(keyed, "string", effect=True)
