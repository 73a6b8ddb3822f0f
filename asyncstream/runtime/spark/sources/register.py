"""
What users call to have a source of theirs as a format of Spark's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pickle import PicklingError
from typing import TYPE_CHECKING, Any

from asyncstream.codec import JsonCodec
from asyncstream.connectors import Source
from asyncstream.errors import PipelineError, describe_error
from asyncstream.runtime.spark.schemas import struct_type
from asyncstream.runtime.spark.session import need_session
from asyncstream.runtime.spark.sources.pulled import Offset
from asyncstream.validation import Duration, count, duration_seconds, function, refuse, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ("SourceSettings", "register_source")

MOST_ROWS = "maxRowsPerTrigger"

STARTING = "startingOffsets"


@dataclass(frozen=True)
class SourceSettings:
    """
    What is known of a source that is registered.

    Attributes:
        make: gives a new source.
        name: of the format.
        schema: the columns.
        max_rows: of a micro-batch.
        quiet_seconds: of silence after which there is nothing more, with `trigger(availableNow=True)`.
    """

    make: Callable[[], Source[Any]]
    name: str
    schema: StructType
    max_rows: int
    quiet_seconds: float

    def most(self, options: Mapping[str, str]) -> int:
        """The rows of a micro-batch, by the options of a reader."""
        known = {MOST_ROWS.lower(), STARTING.lower()}
        unknown = [name for name in options if name.lower() not in known]
        if unknown:
            raise PipelineError(
                f"format {self.name!r} has no option {unknown[0]!r}; there are {MOST_ROWS!r} and "
                f"{STARTING!r}: the source has its own where it is made"
            )
        given = options.get(MOST_ROWS)
        if given is None:
            return self.max_rows
        return count(MOST_ROWS, int(given) if given.isdecimal() else given)

    def starting(self, options: Mapping[str, str], *, streaming: bool) -> Offset | None:
        """Where a stream without a checkpoint begins, by a reader's options; None: where the source does."""
        given = options.get(STARTING)
        if given is None or given.lower() == "earliest":
            return None
        if not streaming:
            raise PipelineError(f"{STARTING}: a bounded DataFrame has all rows of the source")
        try:
            offset = json.loads(given)
            position = offset["position"]
            if position is not None:
                JsonCodec().decode(position.encode())
        except Exception:
            raise refuse(
                STARTING,
                "'earliest', or an offset of this format, as a query's progress tells it: "
                '\'{"position": "1200", "rows": {}}\'',
                given,
                "where the source ends ('latest') only reading it tells",
            ) from None
        return {"position": position, "rows": {}}


def register_source(
    spark: SparkSession,
    make: Callable[[], Source[Any]],
    *,
    schema: StructType | str,
    name: str = "asyncstream",
    max_rows_per_trigger: int = 10_000,
    quiet: Duration = 5.0,
) -> None:
    """
    Have a source of asyncstream as a format of Spark's, from pip alone.

        register_source(spark, lambda: SqliteSource("shop.db", "prices"), schema="name string, price double")
        spark.readStream.format("asyncstream").load()

    As a stream, the source is read in the driver, and each micro-batch has a partition for each split of it
    that brought something. The offsets in Spark's checkpoint are the positions of the source: a query that is
    started again goes on from them, and a micro-batch that is run again has the same rows. So it must be a
    source that can be read again from a position. It is told what is done for good once Spark has noted down
    the micro-batch. A source that has come to its end gives nothing more until the query is started again.

    As a bounded DataFrame (`spark.read`), the source must come to its end. Each part of a `SplitSource` or
    `GlobSource` is read by a task of its own, any other source by one task.

    All rows of a stream pass through one process, the driver: good for tests, for tables, and for streams
    that one process can read. Where Spark has a connector of its own, Kafka's for one, that one reads in all
    tasks at once.

    Args:
        spark: the session.
        make: gives a new source; pickled, and called where the source is read.
        schema: the columns, also as text: "id bigint, name string". An element is a dict, a NamedTuple, a
            dataclass or a Row that has each of them, None where there is no value; or anything, if there is
            only one column.
        name: of the format. A name that is registered again means the new source from then on.
        max_rows_per_trigger: a micro-batch has no further read of the source when it has so many rows;
            `.option("maxRowsPerTrigger", ...)` says otherwise for one reader, and `.option("startingOffsets",
            ...)` where its first query begins: at an offset that the progress of another has told.
        quiet: with `trigger(availableNow=True)`, a source without an end has nothing more when it has given
            nothing for so long: a `timedelta` or seconds.

    Raises:
        PipelineError: if an argument is not as described.
        MissingExtra: if PySpark is not installed.
    """
    need_session("spark", spark)
    function("make", make)
    source = make()
    if not isinstance(source, Source):
        raise refuse("make", "a function that gives a Source", source)
    if source.needs_writer or source.hands_over:
        raise PipelineError(
            f"make: {type(source).__name__} shares out what it reads, and what it has given is done when a "
            "checkpoint of asyncstream has it, which a query of Spark's has not: a micro-batch that is run "
            "again would lack rows, or have others; take a source that reads from a position, as "
            "RedisStreamSource, NatsStreamSource and KafkaSource without group= do, or write what comes into "
            "a file, a table or a log first"
        )
    if source.rejects:
        raise PipelineError(
            "make: a source with on_malformed='reject' has an output for that, which a DataFrame has not"
        )
    settings = SourceSettings(
        make,
        text("name", name),
        struct_type("schema", schema),
        count("max_rows_per_trigger", max_rows_per_trigger),
        duration_seconds("quiet", quiet),
    )
    from asyncstream.runtime.spark.sources.format import format_of

    try:
        spark.dataSource.register(format_of(settings))
    except PicklingError as error:
        told = describe_error(error.__context__ or error)
        raise PipelineError(
            f"make: the function cannot be sent to Spark: {told}; have it make inside what cannot be pickled"
        ) from error
