"""
Where the rows of a task come from, the same when Spark runs the task again.

A row's origin is its micro-batch and partition, and in it its content and how many rows of that content came
before it. Not its place: after a shuffle the rows of a partition come in another order when they are read
again. In a bounded job the plan stands in for the micro-batch, so a plan made anew is another job; a stream
that goes on from Spark's checkpoint is the same. Bounded jobs within `foreachBatch` are of its micro-batch,
and told apart by the pipeline's name.

One task may have the rows of several partitions, one after the other, each in a run of the stage of its own
that knows nothing of the others: `coalesce` behind the stage has it so. All have the number of the task's
partition then; so that of its own comes with each row, in a column that Spark makes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from asyncstream.operators.origins import Origin, Placed, digest, placed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql import DataFrame

__all__ = ("PARTITION", "RowOrigins", "of_one_partition", "root_of", "with_partition")

PARTITION: Final = "asyncstream partition"
"""The column that says which partition a row is of."""


def with_partition(frame: DataFrame) -> DataFrame:
    """The rows, of which each says what partition it is of."""
    return frame.selectExpr("*", f"spark_partition_id() AS `{PARTITION}`")


def of_one_partition(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """The rows as they were, and which partition they are of."""
    return batch.drop_columns([PARTITION]), batch.column(PARTITION)[0].as_py()


def root_of(plan: str, job: str, source: str, context: TaskContext | None) -> str:
    """
    What tells the rows of one task from all others.

    Args:
        plan: tells the plan from others.
        job: of a bounded job, its name, which tells it from others in one `foreachBatch`; of a stream "".
        source: what the rows are of.
        context: of the task.
    """
    if context is None:
        return digest(plan, source, size=8)
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    whole = (plan,) if query is None or batch is None else (query, batch, job) if job else (query, batch)
    return digest(*whole, source, context.partitionId(), size=8)


class RowOrigins:
    """
    The origins of the rows of one task, told from others by `root`; some hundred bytes are kept of each.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._seen: Counter[str] = Counter()

    def of(self, rows: Sequence[Any], partition: int) -> Placed:
        """Those of further rows of a partition, as timestamps that they do not have."""
        root, seen = self._root, self._seen
        origins: list[Origin | None] = []
        for row in rows:
            content = digest(partition, repr(row), size=12)
            origins.append((root, content, seen[content]))
            seen[content] += 1
        return placed(None, origins)
