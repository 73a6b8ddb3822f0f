"""
What a stopped query has left in its checkpoint: the state of its key groups, and how far event time had come.

Read by Spark's own readers, which work over Spark Connect too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.errors import AsyncStreamError, CheckpointError
from asyncstream.plan import Graph
from asyncstream.runtime.spark.clocks import before
from asyncstream.runtime.spark.failures import reason_of
from asyncstream.runtime.spark.wire.batches import States
from asyncstream.runtime.spark.wire.values import Classes
from asyncstream.runtime.spark.worker.group_head import remembered

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

__all__ = ("HAVE_IT_END", "next_watermark_ms", "none_ended", "states_of")

HAVE_IT_END = "with the plan that the query had and .trigger(once=True)"
"""How a query ends what it has begun, whatever time it follows: by "availableNow" it may not end itself."""

METADATA = ("operatorId", "operatorName", "operatorProperties")

OURS, CHUNKS = '"operators"', '"chunks"'
"""State variables of ours, as Spark notes them."""


def states_of(
    spark: SparkSession, location: str, graph: Graph, keyed: int, classes: Classes
) -> tuple[list[States], int]:
    """
    What the steps of keyed stages remember, by their names, for each key group; and the last watermark that
    any of them saw, `MIN_TIMESTAMP` if there was none.

    Args:
        keyed: how many stages have state.
        classes: those of the script, as for `loads`.

    Raises:
        CheckpointError: if it cannot be read, or is not for these steps.
    """
    if not keyed:
        return [], MIN_TIMESTAMP
    with _reading(location):
        told = spark.read.format("state-metadata").load(location)
        found = told.select(*METADATA).distinct().orderBy("operatorId").collect()
        ours = [row for row in found if OURS in (row.operatorProperties or "")]
        if len(ours) != keyed:
            names = ", ".join(row.operatorName for row in found) or "none"
            raise CheckpointError(
                f"the query in {location} is not of this plan: it has {len(found)} operators with state "
                f"({names}), and this plan {keyed} of transformWithState; give it to the plan that made it, "
                "or, if that is this one, its folder 'state' is gone"
            )
        return _states_of(spark, location, graph, ours, classes)


def _states_of(
    spark: SparkSession, location: str, graph: Graph, operators: list[Row], classes: Classes
) -> tuple[list[States], int]:
    read = spark.read.format("statestore").option("path", location)
    read = read.option("flattenCollectionTypes", False)
    states, seen_ms = [], MIN_TIMESTAMP
    for operator in operators:
        of_stage = read.option("operatorId", operator.operatorId)
        chunks: dict[Any, list[Any]] = {}
        if CHUNKS in operator.operatorProperties:  # or a version has run the query that keeps no logs
            for row in of_stage.option("stateVarName", "chunks").load().collect():
                numbered = sorted((at.number, chunk) for at, chunk in row.map_value.items())
                chunks[row.key] = [chunk for _, chunk in numbered]
        for row in of_stage.option("stateVarName", "operators").load().collect():
            of_group, watermark_ms = remembered(graph, row.value.blob, chunks.get(row.key, []), classes)
            states.append(of_group)
            seen_ms = max(seen_ms, watermark_ms)
    return states, seen_ms


@contextmanager
def _reading(location: str) -> Iterator[None]:
    """What Spark says in this block of a checkpoint that it cannot read is said in words."""
    try:
        yield
    except AsyncStreamError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"cannot read what a query has left in {location}: {reason_of(error)}; expected the folder, with "
            "all that is in it, which a query of this plan had as its option checkpointLocation"
        ) from error


def none_ended(location: str) -> str:
    """What is said of a checkpoint without a micro-batch that has ended."""
    return (
        f"{location} holds no micro-batch that has ended: expected what a query of this plan had as its "
        f"option checkpointLocation; if this is that, have one end first, {HAVE_IT_END}; if there are no "
        "rows for one, there is no state either"
    )


def next_watermark_ms(spark: SparkSession, location: str) -> int:
    """The one that the next micro-batch of the query would have; raises as `states_of`."""
    from pyspark.sql import functions as columns

    with _reading(location):
        known = columns.get_json_object("value", "$.nextBatchWatermarkMs").cast("bigint")
        commits = spark.read.text(f"{location.rstrip('/')}/commits")  # it never goes down
        spark_ms = commits.agg(columns.max(known)).head()[0]
    if spark_ms is None:
        raise CheckpointError(none_ended(location))
    return before(spark_ms)
