"""
A stream of no rows, by which a query knows its inputs again.

Spark's checkpoint knows a stream by its place among all that a query reads, and by nothing else. That place
follows from the names of the sources, and from which of them share a watermark. So where a name has changed,
an input may be where another one was, and would be read from where that one had come to, without a word.

Hence where there are several, there is one more ahead of them, whose offset is their names in their order.
When a query is started again, Spark shows its reader the last offset in the checkpoint before it asks the
others what they have, and notes anything. A micro-batch that is in the checkpoint already, and is to be run
again, Spark runs before that: there keyed steps look at what their state says of the inputs
(`worker.group_head`), and without such nothing tells until the next.

Where Spark is told to know streams by names that their readers have, places do not matter.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from asyncstream.errors import CheckpointError
from asyncstream.plan import Graph
from asyncstream.runtime.spark.clocks import Timed, timed_inputs
from asyncstream.runtime.spark.session import register_format
from asyncstream.runtime.spark.worker.group_log import WAY_OUT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ("check_order", "in_places", "order_of", "places_told")

NAME = "asyncstream_inputs"

BY_NAME = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def in_places(graph: Graph, inputs: Iterable[str]) -> list[tuple[Timed, list[str]]]:
    """Inputs in their order, but for those that share a watermark, which are together."""
    names = list(inputs)
    every = sorted(timed_inputs(graph), key=lambda timed: [name not in timed.inputs for name in names])
    return [(timed, [name for name in names if name in timed.inputs]) for timed in every]


def places_told(graph: Graph, inputs: Collection[str], spark: SparkSession) -> tuple[str, ...]:
    """The names that a stream tells of, in their places; none where nothing hangs on these."""
    if len(inputs) < 2 or spark.conf.get(BY_NAME, "false") == "true":
        return ()
    return tuple(name for _, names in in_places(graph, sorted(inputs)) for name in names)


def order_of(inputs: Sequence[str], spark: SparkSession, schema: StructType) -> DataFrame:
    """A stream of these columns that goes ahead of inputs of these names."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    class Inputs(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return NAME

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return Reader(json.loads(self.options["names"]))

    class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
        def __init__(self, names: list[str]) -> None:
            self._names = names

        def initialOffset(self) -> dict[str, list[str]]:
            return {"inputs": self._names}

        def latestOffset(self, start: dict[str, list[str]], limit: Any) -> dict[str, list[str]]:
            check_order(start["inputs"], self._names)
            return {"inputs": self._names}

        def partitions(self, start: Any, end: dict[str, list[str]]) -> Sequence[InputPartition]:
            check_order(end["inputs"], self._names)
            return []

        def prepareForTriggerAvailableNow(self) -> None:
            """There is nothing that could be added."""

        def read(self, partition: InputPartition) -> Any:
            return iter(())

    register_format(spark, Inputs)
    reader = spark.readStream.format(NAME).schema(schema)
    return reader.option("names", json.dumps(list(inputs))).load()


def check_order(were: Sequence[str], names: Sequence[str]) -> None:
    """
    Raises `CheckpointError` if one of these inputs may be where another one was.

    A single name that is new is that of the one which is gone, if all others are in their places.
    """
    elsewhere = [name for name in names if name in were and were.index(name) != names.index(name)]
    if elsewhere or len(set(names) - set(were)) > 1:
        raise CheckpointError(
            f"Spark's checkpoint knows the inputs of a query by their places, where there were "
            f"{_listed(were)}, and there are {_listed(names)}: one would be read from where another had come "
            f"to; {WAY_OUT}"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
