"""
A stream of one row, which Spark reads once in the life of a query, with the first micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from asyncstream.runtime.spark.session import register_format

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ("one_row",)

NAME = "asyncstream_one_row"


def one_row(spark: SparkSession, *, streaming: bool) -> DataFrame:
    """A DataFrame of one row without columns of interest."""
    if not streaming:
        return spark.range(0, 1, 1, 1)
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    class OneRow(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> str:
            return "id bigint"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return Reader()

    class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
        def initialOffset(self) -> dict[str, int]:
            return {"read": 0}

        def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
            return {"read": 1}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(number) for number in range(start["read"], end["read"])]

        def prepareForTriggerAvailableNow(self) -> None:
            """One row there is from the beginning, and never more."""

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            yield (0,)

    register_format(spark, OneRow)
    return spark.readStream.format(NAME).load()
