"""
DataFrames from folders of JSON lines, and back.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from asyncstream.errors import PipelineError
from asyncstream.runtime.spark.json_lines.columns import REJECTED, check_columns, with_rejected
from asyncstream.runtime.spark.json_lines.settings import FORMAT, ReadSettings, folder_path
from asyncstream.runtime.spark.micro_batch import Writing, number_of, query_of
from asyncstream.runtime.spark.schemas import struct_type
from asyncstream.runtime.spark.session import (
    need_frame,
    need_pyspark,
    need_session,
    register_format,
    shuffle_partitions,
)
from asyncstream.validation import choice, refuse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

__all__ = ("read_json_lines", "stream_json_lines", "write_json_lines")

AnyPath = str | os.PathLike[str]
OnMalformed = Literal["fail", "reject"]

MAX_LINE_BYTES = 16 * 2**20
"""As of the embedded source."""


def read_json_lines(
    spark: SparkSession,
    path: AnyPath,
    *,
    schema: StructType | str,
    time: str | None = None,
    on_malformed: OnMalformed = "fail",
    max_line_bytes: int = MAX_LINE_BYTES,
    partitions: int | None = None,
) -> DataFrame:
    """
    The lines that are in the files now, as a bounded DataFrame.

    Args:
        spark: the session.
        path: a folder, whose `*.jsonl` and `*.jsonl.gz` are read; a file; or a pattern such as
            `logs/*/events-*.jsonl`. Driver and workers must see it alike.
        schema: the columns, also as text ("id bigint, name string"), of types that JSON has values for. A
            value must be of its column's type; times are texts in ISO 8601. What is missing is null; what is
            in the lines besides is left out.
        time: the column that tells when an event happened, a number or a time: a line without it is
            malformed, and files are read in the order of their first event.
        on_malformed: "fail", naming file and line; or "reject": there is one more column, `rejected`, which
            holds a malformed line as a `RejectedLine` (path, line_number, line, reason) and is null
            otherwise; in the row of a rejected line all other columns are null.
        max_line_bytes: a longer line is malformed; it is never held in memory.
        partitions: among how many tasks the files are divided at least; Spark's setting
            `spark.sql.shuffle.partitions` by default.

    Raises:
        PipelineError: if an argument is not as described.
        MissingExtra: if PySpark is not installed.
    """
    return _read(
        spark,
        path,
        schema,
        streaming=False,
        time=time,
        on_malformed=on_malformed,
        max_line_bytes=max_line_bytes,
        partitions=partitions,
    )


def stream_json_lines(
    spark: SparkSession,
    path: AnyPath,
    *,
    schema: StructType | str,
    time: str | None = None,
    max_rows_per_trigger: int | None = 100_000,
    max_bytes_per_trigger: int | None = None,
    max_files_per_trigger: int | None = None,
    on_malformed: OnMalformed = "fail",
    max_line_bytes: int = MAX_LINE_BYTES,
    partitions: int | None = None,
) -> DataFrame:
    """
    The lines of files to which lines and files are added, as a stream in the order of event time.

    Each micro-batch has the earliest rows, by event time, of those that are there and were not read yet.
    If every file is in order, nothing is late, whatever the order of the files; otherwise no row is later
    in the stream than it is in its file. An event that is written after later ones were read comes late.

    A micro-batch that is run again after a crash has the same rows. Files may grow, may be added, and may be
    taken away once they were read; the query fails if one got shorter, or was changed where it was read
    already. The beginning of a line at the end of a file is left until the line is complete. Compressed
    files do not grow: each is added as a whole; since a task unzips it from its start, many small ones are
    better than a large one.

    Args:
        spark: the session.
        path, schema: as for `read_json_lines`.
        time: the column that tells when an event happened, a number or a time; a line without it is
            malformed. None: files are read in the order of their names.
        on_malformed, max_line_bytes: as for `read_json_lines`.
        max_rows_per_trigger: how many lines a micro-batch has at most, but one at least. None: no limit.
        max_bytes_per_trigger: how many bytes of lines. None: no limit.
        max_files_per_trigger: from how many files they come. None: no limit.
        partitions: how many tasks read a micro-batch, if it is large enough; Spark's setting
            `spark.sql.shuffle.partitions` by default. The first one reads the earliest rows.

    Raises:
        PipelineError: if an argument is not as described.
        MissingExtra: if PySpark is not installed.
    """
    return _read(
        spark,
        path,
        schema,
        streaming=True,
        time=time,
        on_malformed=on_malformed,
        max_line_bytes=max_line_bytes,
        partitions=partitions,
        max_rows_per_trigger=max_rows_per_trigger,
        max_bytes_per_trigger=max_bytes_per_trigger,
        max_files_per_trigger=max_files_per_trigger,
    )


def write_json_lines(
    df: DataFrame, path: AnyPath, *, existing: Literal["refuse", "append"] = "refuse"
) -> DataFrameWriter | DataStreamWriter:
    """
    A writer of rows as JSON lines, with a file for each micro-batch: exactly once.

        write_json_lines(df, "out").option("checkpointLocation", "checkpoint").start()

    Every `*.jsonl` in the folder is complete: it appears in one step, when the micro-batch has been computed.
    One that Spark runs again after a crash replaces its file, which has the same rows if what computes them
    gives the same. A micro-batch without rows has no file. Names sort in the order of micro-batches. Times
    are written in UTC; NaN and infinity, for which JSON has no number, become null.

    A bounded DataFrame is one such file: `write_json_lines(df, "out").save()`. In `foreachBatch` and
    `plan.write_stream` it is the micro-batch's (not so through Spark Connect, where a second one is refused).
    Large results are better written by Spark's own `df.write.json`, which does not bring them together.

    Args:
        df: the rows, bounded or streaming.
        path: the folder; made if it is not there. Driver and workers must see it alike. Each output needs
            one of its own.
        existing: what to do with JSON lines that another query or job has written there: "refuse" or
            "append".

    Raises:
        PipelineError: if an argument is not as described, or JSON has no values for the type of a column; or
            other rows of the micro-batch have been given to the folder, whose file these would replace.
    """
    need_pyspark()
    need_frame("df", df)
    check_columns(df.schema)
    choice("existing", existing, ("refuse", "append"))
    folder = os.path.abspath(folder_path(path, pattern=False))
    number = None if df.isStreaming else number_of(df)
    if number is not None:
        writing = Writing(f"folder {folder}", query_of(df), df, number)
        writing.check_first("unite the outputs, or give each a folder of its own")
        writing.done()
    _register(df.sparkSession)
    writer: Any = df.writeStream if df.isStreaming else df.write.mode("append")
    return writer.format(FORMAT).option("path", folder).option("existing", existing)


def _read(
    spark: SparkSession,
    path: AnyPath,
    schema: StructType | str,
    *,
    streaming: bool,
    partitions: int | None,
    **options: Any,
) -> DataFrame:
    """`options` are the other settings."""
    need_session("spark", spark)
    columns = check_columns(struct_type("schema", schema))
    _check_time(columns, options["time"])
    if partitions is None:
        partitions = shuffle_partitions(spark)
    folder = os.path.abspath(folder_path(path))
    settings = ReadSettings(folder, partitions=partitions, **options)
    if settings.on_malformed == "reject":
        if REJECTED in columns.fieldNames():
            raise refuse(
                "schema", f"no column {REJECTED!r}, which holds rejected lines", columns.fieldNames()
            )
        columns = with_rejected(columns)
    _register(spark)
    reader = spark.readStream if streaming else spark.read
    return reader.format(FORMAT).schema(columns).options(**settings.options()).load()


def _check_time(schema: StructType, time: str | None) -> None:
    from pyspark.sql.types import NumericType, TimestampNTZType, TimestampType

    if time is None:
        return
    if time not in schema.fieldNames():
        raise refuse("time", f"one of the columns {schema.fieldNames()}", time)
    kind = schema[time].dataType
    if not isinstance(kind, NumericType | TimestampType | TimestampNTZType):
        raise PipelineError(f"time: column {time!r} is {kind}; expected a number or a time")


def _register(spark: SparkSession) -> None:
    from asyncstream.runtime.spark.json_lines.format import JsonLinesFormat

    register_format(spark, JsonLinesFormat)
