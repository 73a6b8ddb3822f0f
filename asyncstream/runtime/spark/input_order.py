"""
A stream of no rows, by which a query knows its inputs again.

Spark's checkpoint knows a stream by its place among all that a query reads, and by nothing else. That place
follows from the names of the sources, and from which of them share a watermark. So where a name has changed,
an input may be where another one was, and would be read from where that one had come to, without a word.

Hence where there are several, there is one more behind them, whose offset is their names in their order. When
a query is started again, Spark shows such a reader (one that takes no limit) the last offset in its
checkpoint before anything is read or noted, also if the micro-batch of that offset is to be run again.

Where Spark is told to know streams by names that their readers have, places do not matter.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asyncstream.errors import CheckpointError
from asyncstream.runtime.spark.session import register_format
from asyncstream.runtime.spark.worker.group_log import WAY_OUT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ("check_order", "goes_by_places", "order_of")

NAME = "asyncstream_inputs"

BY_NAME = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def goes_by_places(spark: SparkSession) -> bool:
    """Whether queries of the session know their inputs by places."""
    return bool(spark.conf.get(BY_NAME, "false") != "true")


def order_of(inputs: Sequence[str], spark: SparkSession, schema: StructType) -> DataFrame:
    """A stream of these columns that goes behind inputs of these names."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Inputs(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return NAME

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return Reader(json.loads(self.options["names"]))

    class Reader(DataSourceStreamReader):  # type: ignore[misc]
        def __init__(self, names: list[str]) -> None:
            self._names = names

        def initialOffset(self) -> dict[str, list[str]]:
            return {"inputs": self._names}

        def latestOffset(self) -> dict[str, list[str]]:
            return {"inputs": self._names}

        def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
            check_order(end["inputs"], self._names)
            return []

        def read(self, partition: InputPartition) -> Any:
            raise NotImplementedError  # there are none

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
