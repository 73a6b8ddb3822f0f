"""
The source and the sink as Spark knows them: subclasses of its own classes.

This is the one module that needs PySpark to be imported, for Spark looks for these classes by name, in the
driver and in workers. What they do is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from asyncstream.errors import PipelineError, SinkError
from asyncstream.runtime.spark.json_lines.columns import check_columns
from asyncstream.runtime.spark.json_lines.micro_batches import START, MicroBatches, Offset, bounded_slices
from asyncstream.runtime.spark.json_lines.rows import RowReader
from asyncstream.runtime.spark.json_lines.settings import FORMAT, Limits, ReadSettings
from asyncstream.runtime.spark.json_lines.sink import BatchFolder, Written

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ("BoundedReader", "BoundedWriter", "JsonLinesFormat", "StreamReader", "StreamWriter", "TaskWritten")


class JsonLinesFormat(DataSource):
    """What is registered with a session; the functions of this package give it its options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def reader(self, schema: StructType) -> BoundedReader:
        return BoundedReader(ReadSettings.from_options(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(ReadSettings.from_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BoundedWriter:
        if overwrite:
            raise PipelineError("mode 'overwrite': what is in the folder is not replaced; remove it first")
        return BoundedWriter(self._folder(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        if overwrite:
            raise PipelineError(
                "output mode 'complete': each micro-batch has a file of its own; use 'append'"
            )
        return StreamWriter(self._folder(schema))

    def _folder(self, schema: StructType) -> BatchFolder:
        check_columns(schema)
        return BatchFolder(self.options["path"], self.options["existing"])


class BoundedReader(DataSourceReader):
    """All that is there when the query is planned."""

    def __init__(self, settings: ReadSettings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(each) for each in bounded_slices(self._settings, self._schema)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows = RowReader(self._settings, self._schema)
        for stretch in partition.value:
            yield from rows.as_they_come(stretch)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: Spark has one of these in the driver, for as long as the query runs, and one in each task."""

    def __init__(self, settings: ReadSettings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema
        self._micro_batches: MicroBatches | None = None

    def initialOffset(self) -> Offset:
        return START

    def getDefaultReadLimit(self) -> ReadLimit:
        limits = self._settings.limits
        if limits.rows is not None:
            return ReadMaxRows(limits.rows)
        if limits.bytes is not None:
            return ReadMaxBytes(limits.bytes)
        return ReadAllAvailable() if limits.files is None else ReadMaxFiles(limits.files)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        # Spark passes on one limit of what may be several, or asks for all that is there
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self._settings.limits
        return self._planner().latest(start, limits)

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner().end_here()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return [InputPartition(each) for each in self._planner().slices(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows = RowReader(self._settings, self._schema)
        for stretch in partition.value:
            yield from rows.in_order(stretch)

    def _planner(self) -> MicroBatches:
        if self._micro_batches is None:
            self._micro_batches = MicroBatches(self._settings, self._schema)
        return self._micro_batches


class TaskWritten(WriterCommitMessage):
    """What a task tells the driver."""

    def __init__(self, written: Written) -> None:
        self.written = written


class _Ending:
    """What becomes of what tasks have written; of `batchId`, which streams are told, the tasks knew too."""

    _folder: BatchFolder

    def commit(self, messages: Sequence[TaskWritten | None], batchId: int = 0) -> None:
        self._folder.commit(_written(messages))

    def abort(self, messages: Sequence[TaskWritten | None], batchId: int = 0) -> None:
        self._folder.abort(_written(messages))


class BoundedWriter(_Ending, DataSourceArrowWriter):
    """
    Writes a bounded DataFrame: in `foreachBatch` as the micro-batch of the stream that it belongs to, else as
    the only one of a query of its own.
    """

    def __init__(self, folder: BatchFolder) -> None:
        self._folder = folder
        self._job = uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        return _write(self._folder, iterator, alone=self._job)


class StreamWriter(_Ending, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def __init__(self, folder: BatchFolder) -> None:
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        return _write(self._folder, iterator)


def _write(folder: BatchFolder, batches: Iterator[pa.RecordBatch], alone: str | None = None) -> TaskWritten:
    """What a task does; `alone` is the query, if Spark does not know of one."""
    from pyspark import TaskContext

    task = TaskContext.get()
    query = task.getLocalProperty("sql.streaming.queryId") or alone
    number = task.getLocalProperty("streaming.sql.batchId") or (alone and "0")
    if query is None or number is None:
        raise SinkError("Spark does not tell which query and micro-batch this is")
    return TaskWritten(folder.write(query, int(number), task.partitionId(), batches))


def _written(messages: Sequence[TaskWritten | None]) -> list[Written]:
    return [message.written for message in messages if message is not None]
