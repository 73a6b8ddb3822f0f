"""
A registered source as Spark knows it: subclasses of its own classes.

This module needs PySpark to be imported, for Spark looks for these classes by name, in the driver and in
workers. What they do is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Never

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from asyncstream.connectors import Source, SplitSource
from asyncstream.errors import AsyncStreamError, PipelineError, SourceError, describe_error
from asyncstream.runtime.spark.sources.pulled import Offset, Pulled
from asyncstream.runtime.spark.sources.register import SourceSettings
from asyncstream.runtime.spark.wire.columns import streamed
from asyncstream.runtime.spark.wire.rows import RowWriter
from asyncstream.runtime.spark.worker.loop import loop_thread
from asyncstream.runtime.spark.worker.operators import telling_the_cause

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ("BoundedReader", "SourceFormat", "StreamReader", "format_of")

WAIT_SECONDS = 0.2
"""How long a micro-batch waits for its first row, and is filled: Spark asks again at once."""


class SourceFormat(DataSource):
    """What is registered with a session."""

    settings: ClassVar[SourceSettings]

    @classmethod
    def name(cls) -> str:
        return cls.settings.name

    def schema(self) -> StructType:
        return self.settings.schema

    def reader(self, schema: StructType) -> BoundedReader:
        self.settings.most(self.options)
        self.settings.starting(self.options, streaming=False)
        return BoundedReader(self.settings, schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        most = self.settings.most(self.options)
        return StreamReader(self.settings, schema, most, self.settings.starting(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> Never:
        raise self._only_read()

    def streamWriter(self, schema: StructType, overwrite: bool) -> Never:
        raise self._only_read()

    def _only_read(self) -> PipelineError:
        return PipelineError(
            f"format {self.settings.name!r} can only be read; to write each micro-batch once, give "
            "once_in_database, once_in_folders or once_in_delta to foreachBatch, or use a writer of Spark's"
        )


def format_of(settings: SourceSettings) -> type[SourceFormat]:
    """A class of its own for each source: Spark makes the instances."""
    return type("RegisteredSource", (SourceFormat,), {"settings": settings})


class BoundedReader(DataSourceReader):
    """Reads a source to its end."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        self._make = settings.make
        self._name = settings.name
        self._writer = RowWriter(f"source {settings.name}", schema)

    def partitions(self) -> Sequence[InputPartition]:
        with _naming(self._name):
            source = self._make()
            if not isinstance(source, SplitSource):
                return [InputPartition(None)]
            return [InputPartition(name) for name in loop_thread().call(source.names())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        def make() -> Source[Any]:
            source = self._make()
            return source.part(partition.value) if isinstance(source, SplitSource) else source

        loop, pulled = loop_thread(), Pulled(make, WAIT_SECONDS)
        with _naming(self._name):
            try:
                loop.call(pulled.initial())
                while (values := loop.call(pulled.more())) is not None:
                    yield from self._writer.batches(values)
            finally:
                loop.call(pulled.close())


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    A stream: Spark has one of these in the driver, for as long as the query runs, and one in each task.

    What is in a micro-batch travels to its tasks with the partitions, as Arrow.
    """

    def __init__(
        self, settings: SourceSettings, schema: StructType, most: int, starting: Offset | None
    ) -> None:
        if not settings.make().is_replayable():
            raise PipelineError(
                f"format {settings.name!r}: the source cannot be read again from a position, so a query "
                "that is started again would lose rows, or have them twice; take one that has positions, "
                "or write what comes into a file, a table or a log first"
            )
        self._settings = settings
        self._writer = RowWriter(f"source {settings.name}", schema)
        self._most = most
        self._starting = starting
        self._wait: float | None = None
        self._is_done = False
        self._made: Pulled | None = None

    def initialOffset(self) -> Offset:
        with _naming(self._settings.name):
            return loop_thread().call(self._pulled.initial(self._starting))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._wait = self._settings.quiet_seconds

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        if self._is_done:
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        with _naming(self._settings.name):
            end = loop_thread().call(self._pulled.latest(start, most, self._wait))
        self._is_done = self._wait is not None and end == start
        return end

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        with _naming(self._settings.name):
            splits = loop_thread().call(self._pulled.values(start, end))
            return [InputPartition(streamed(list(self._writer.batches(each)))) for each in splits.values()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_stream(partition.value) as batches:
            yield from batches

    def commit(self, end: Offset) -> None:
        with _naming(self._settings.name):
            loop_thread().call(self._pulled.done(end))

    def stop(self) -> None:
        if self._made is not None:
            loop_thread().call(self._made.close())

    @property
    def _pulled(self) -> Pulled:
        if self._made is None:
            self._made = Pulled(self._settings.make, WAIT_SECONDS)
        return self._made


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """What a source raises in this block is told as ours, and by the name of its format."""
    with telling_the_cause():
        try:
            yield
        except SourceError as error:
            raise SourceError(f"source {name!r}: {error}") from error.__cause__
        except AsyncStreamError:
            raise
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            raise SourceError(f"source {name!r}: {describe_error(error)}") from error
