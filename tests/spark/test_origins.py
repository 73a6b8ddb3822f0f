"""Idempotency keys on Spark: the same when a task is run again, and one for each row. No session, no Java."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from asyncstream import Pipeline, PipelineError, call_context
from asyncstream.runtime.spark.compatibility import refuse_unknown
from asyncstream.runtime.spark.worker.origins import PARTITION, RowOrigins, root_of
from asyncstream.runtime.spark.worker.tasks import StageTask, run_stage
from tests.spark.tasks import batch, one_stage


class Context:
    """Stands in for a `TaskContext`."""

    def __init__(self, partition: int, properties: dict[str, str]) -> None:
        self._partition = partition
        self._properties = properties

    def partitionId(self) -> int:
        return self._partition

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)


async def keyed(row: dict[str, Any]) -> dict[str, Any]:
    return {"v": int(call_context().idempotency_key[:15], 16)}


def task(**options: Any) -> StageTask:
    pipeline = Pipeline("shop")
    pipeline.source([]).filter(lambda row: row["v"] >= 0).async_map(keyed, name="charge", **options).to(
        [], name="out"
    )
    return replace(one_stage(pipeline, "out"), pipeline="shop", asked=("plan", "shop", "source"))


def keys(task: StageTask, *batches: Sequence[int], partition: int = 0) -> list[int]:
    rows = [batch(*numbers) for numbers in batches]
    parts = [each.append_column(PARTITION, pa.array([partition] * each.num_rows)) for each in rows]
    found = run_stage(task, iter(parts))
    return [key for part in found for key in part.column("v").to_pylist()]


def test_a_task_that_is_run_again_has_the_same_keys_whatever_the_order_of_its_rows() -> None:
    first = keys(task(effect=True), [1, 2, 2], [3, -1, 1])

    assert len(set(first)) == 5, "rows that are equal have keys of their own"
    assert keys(task(effect=True), [1, 2, 2], [3, -1, 1]) == first
    assert sorted(keys(task(effect=True), [3, 1, 2], [2, 1])) == sorted(first)


def test_rows_of_several_partitions_in_one_task_have_keys_of_their_own() -> None:
    assert set(keys(task(effect=True), [1, 2])).isdisjoint(keys(task(effect=True), [1, 2], partition=1))


def test_what_tells_rows_apart_may_be_said() -> None:
    assert len(set(keys(task(effect="v"), [1, 2, 2]))) == 2


def test_partitions_sources_batches_and_plans_have_roots_of_their_own() -> None:
    def root(
        plan: str, source: str, partition: int, query: str | None = None, number: int = 0, job: str = ""
    ) -> str:
        properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(number)}
        context: Any = Context(partition, {} if query is None else properties)  # type: ignore[arg-type]
        return root_of(plan, job, source, context)

    found = [
        root("plan", "rows", 0),
        root("plan", "rows", 1),
        root("plan", "more", 0),
        root("other", "rows", 0),
    ]
    found += [root("plan", "rows", 0, "q"), root("plan", "rows", 0, "q", 1), root("plan", "rows", 0, "r")]
    # bounded jobs, each planned anew with each try, within one `foreachBatch`
    found += [root("plan", "rows", 0, "q", job="shop"), root("more", "rows", 0, "q", job="stock")]
    assert len(set(found)) == len(found)
    assert root("again", "rows", 0, "q", job="shop") == root("plan", "rows", 0, "q", job="shop")
    # a stream that goes on from Spark's checkpoint is planned anew
    assert root("other", "rows", 0, "q") == root("plan", "rows", 0, "q")


def test_rows_are_told_apart_by_their_content_also_where_it_looks_alike() -> None:
    origins = RowOrigins("root").of([{"v": 1}, {"v": "1"}, {"v": True}, {"w": 1}, {"v": 1}], 0)

    assert len(set(origins.origins)) == 5


@pytest.mark.parametrize("streaming", [False, True])
def test_a_step_behind_keys_is_refused(streaming: bool) -> None:
    pipeline = Pipeline()
    rows: Any = pipeline.source([], name="rows").key_by("v")
    rows.async_map(keyed, order="per_key", name="first").async_map(keyed, name="charge", effect=True).to([])
    with pytest.raises(PipelineError, match="step 'charge': effect=True goes by the rows"):
        refuse_unknown(pipeline._graph, streaming=streaming, processing_time=False)
