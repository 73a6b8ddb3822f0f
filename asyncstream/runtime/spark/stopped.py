"""
What a stopped query has left in its checkpoint: the state of its key groups, and how far event time had come.

Read by Spark's own readers, which work over Spark Connect too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncstream.plan import Graph
from asyncstream.runtime.spark.clocks import before
from asyncstream.runtime.spark.wire.batches import States
from asyncstream.runtime.spark.wire.values import Classes
from asyncstream.runtime.spark.worker.group_head import remembered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ("next_watermark_ms", "states_of")


def states_of(spark: SparkSession, location: str, graph: Graph, keyed: int, classes: Classes) -> list[States]:
    """
    What the steps of keyed stages remember, by their names, for each key group.

    Args:
        keyed: how many stages have state.
        classes: those of the script, as for `loads`.

    Raises:
        CheckpointError: if it is not for these steps.
    """
    read = spark.read.format("statestore").option("path", location)
    read = read.option("flattenCollectionTypes", False)
    states = []
    for number in range(keyed):
        of_stage = read.option("operatorId", number)
        chunks: dict[Any, list[Any]] = {}
        if _has_chunks(spark, location, number):
            for row in of_stage.option("stateVarName", "chunks").load().collect():
                numbered = sorted((at.number, chunk) for at, chunk in row.map_value.items())
                chunks[row.key] = [chunk for _, chunk in numbered]
        for row in of_stage.option("stateVarName", "operators").load().collect():
            states.append(remembered(graph, row.value.blob, chunks.get(row.key, []), classes))
    return states


def _has_chunks(spark: SparkSession, location: str, number: int) -> bool:
    """Whether the query was run by a version that keeps logs in chunks."""
    metadata = spark.read.format("state-metadata").load(location)
    told = metadata.where(metadata.operatorId == number).select("operatorProperties").head()
    return told is not None and '"chunks"' in told[0]


def next_watermark_ms(spark: SparkSession, location: str) -> int:
    """The one that the next micro-batch of the query would have."""
    from pyspark.sql import functions as columns

    known = columns.get_json_object("value", "$.nextBatchWatermarkMs").cast("bigint")
    commits = spark.read.text(f"{location.rstrip('/')}/commits")  # it never goes down
    spark_ms = commits.agg(columns.max(known)).head()[0]
    return before(spark_ms or 0)
