"""
Elements for outputs become rows: where they are emitted, unless they are few, or where an output is read.

Rows take a tenth of the time that it takes to pickle elements and to read them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asyncstream.runtime.spark.wire.batches import Leaving
from asyncstream.runtime.spark.wire.columns import FEW, Finished
from asyncstream.runtime.spark.wire.envelope import entering
from asyncstream.runtime.spark.wire.originals import Originals
from asyncstream.runtime.spark.wire.rows import BATCH_BYTES, ROWS, RowWriter
from asyncstream.runtime.spark.worker.connection import acknowledge
from asyncstream.runtime.spark.worker.operators import telling_the_cause

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ("OutputRows", "OutputTask", "in_columns", "row_writers", "write_rows")


@dataclass(frozen=True)
class OutputTask:
    """Elements that become rows of these columns: those of a sink, by the number of the route to it."""

    name: str
    route: int
    schema: StructType


def row_writers(outputs: Iterable[OutputTask]) -> dict[int, RowWriter]:
    """What makes the rows of each output, by the number of the route to it."""
    return {output.route: RowWriter(output.name, output.schema) for output in outputs}


def in_columns(leaving: Iterable[Leaving], outputs: Mapping[int, RowWriter]) -> Iterator[Leaving]:
    """What leaves a stage, with the rows of outputs in place of their elements, unless these are few."""
    for item in leaving:
        writer = outputs.get(item.route.number)
        if writer is None or len(item.values) < FEW:
            yield item
            continue
        for batch in writer.batches(item.values):
            yield item._replace(values=Finished(batch), timestamps=(), watermarks=None)


def write_rows(output: OutputTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The elements in envelopes for `output`, as rows; a generator given to `mapInArrow`."""
    acknowledge()
    writer = OutputRows(output)
    with telling_the_cause():
        for batch in batches:
            yield from writer.hand_on(batch, range(batch.num_rows))
        yield from writer.rest()


class OutputRows:
    """
    Writes what leaves the last stage as the rows of an output.

    Those of some blocks leave as one Arrow batch, each of which costs as much as a hundred rows.

    Args:
        originals: those of the rows that the elements may be.
    """

    def __init__(self, output: OutputTask, originals: Originals | None = None) -> None:
        self._route = output.route
        self._writer = RowWriter(output.name, output.schema, originals)
        self._written: list[pa.RecordBatch] = []
        self._count = self._size = 0

    def hand_on(self, batch: pa.RecordBatch, rows: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """What is in those rows of a batch of envelopes."""
        routes = batch.column("route").to_pylist()
        payloads = batch.column("payload")
        for row in rows:
            if routes[row] == self._route:
                for entered in entering(self._route, payloads[row].as_py()):
                    yield from self._write(entered.values)

    def write(
        self, leaving: Iterable[Leaving], event_time_ms: int, counts: Mapping[int, int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        for item in leaving:
            if item.route.number == self._route:
                yield from self._write(item.values)

    def _write(self, elements: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        for batch in self._writer.batches(elements):
            self._written.append(batch)
            self._count += batch.num_rows
            self._size += batch.nbytes
            if self._count >= ROWS or self._size >= BATCH_BYTES:
                yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What has been written and not been given."""
        import pyarrow as pa

        written, self._written, self._count, self._size = self._written, [], 0, 0
        if written:
            yield written[0] if len(written) == 1 else pa.concat_batches(written)
