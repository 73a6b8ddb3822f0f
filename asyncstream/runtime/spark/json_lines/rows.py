"""
Rows of a stretch, as a task reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncstream.connectors.lines import RejectedLine
from asyncstream.errors import SourceError
from asyncstream.runtime.spark.json_lines.columns import REJECTED, JsonColumns, Malformed, too_long
from asyncstream.runtime.spark.json_lines.lines import Chunk, LineReader, count_lines
from asyncstream.runtime.spark.json_lines.order import Stretch
from asyncstream.runtime.spark.json_lines.settings import ReadSettings
from asyncstream.runtime.spark.wire.arrow_types import arrow_schema
from asyncstream.runtime.spark.wire.rows import ROWS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ("RowReader",)

_CHUNK_BYTES = 2**20


class _Part(NamedTuple):
    """Lines of a file."""

    path: str
    chunk: Chunk


class RowReader:
    """Reads rows as Arrow batches; the schema has the column for rejected lines if there is to be one."""

    def __init__(self, settings: ReadSettings, schema: StructType) -> None:
        from pyspark.sql.types import StructType

        self._settings = settings
        self._rejects = settings.on_malformed == "reject"
        columns = schema[:-1] if self._rejects else schema
        self._columns = JsonColumns(StructType(list(columns)), settings.time, settings.max_line_bytes)
        self._counted: dict[str, tuple[int, int]] = {}
        self._arrow = arrow_schema(schema)

    def in_order(self, stretch: Stretch) -> Iterator[pa.RecordBatch]:
        """
        The rows of a stretch in the order of event time; those of the same time in the order of files. Raises
        `SourceError` if a line is malformed, or the files are not what they were.
        """
        yield from self._batches(self._sorted(self._rows(list(self._parts(stretch)))))

    def as_they_come(self, stretch: Stretch) -> Iterator[pa.RecordBatch]:
        """The rows in the order in which they stand in the files."""
        for part in self._parts(stretch):
            yield from self._batches(self._rows([part]))

    def _parts(self, stretch: Stretch) -> Iterator[_Part]:
        for span in stretch:
            reader = LineReader.of(span, self._settings.max_line_bytes)
            try:
                while (chunk := reader.read(_CHUNK_BYTES)) is not None:
                    yield _Part(span.path, chunk)
            finally:
                reader.close()
            span.check(reader.place)

    def _rows(self, parts: Sequence[_Part]) -> pa.Table:
        import pyarrow as pa

        if not any(part.chunk.too_long for part in parts):
            lines = [part.chunk.data for part in parts]
            batch = self._columns.batch(lines[0] if len(lines) == 1 else b"".join(map(_ended, lines)))
            if batch is not None:
                return pa.Table.from_batches([self._with_rejected(batch, {})], self._arrow)
        return pa.Table.from_batches(map(self._one_by_one, parts), self._arrow)

    def _one_by_one(self, part: _Part) -> pa.RecordBatch:
        path, chunk = part
        limit = self._settings.max_line_bytes
        if chunk.too_long:
            rows: list[Any] = [Malformed(chunk.data, too_long(limit))]
            ends = [len(chunk.data)]
        else:
            rows, ends = self._columns.rows(chunk.data, at_start=chunk.begin == 0)
        rejected: dict[int, dict[str, Any]] = {}
        for number, (row, end) in enumerate(zip(rows, ends, strict=True)):
            if not isinstance(row, Malformed):
                continue
            line = self._first_line(path, chunk.begin) + chunk.data.count(b"\n", 0, end - 1)
            if not self._rejects:
                raise SourceError(f"{path}, line {line}: {row.reason}")
            text = row.line.removesuffix(b"\n").removesuffix(b"\r").decode(errors="backslashreplace")
            rejected[number] = asdict(RejectedLine(path, line, text, row.reason))
            rows[number] = {}
        return self._with_rejected(self._columns.batch_of(rows), rejected)

    def _first_line(self, path: str, offset: int) -> int:
        """The number of the line that begins there; starts at 1. Counted only for an error message."""
        begin, line = self._counted.get(path, (0, 1))
        if offset != begin:
            line += count_lines(path, begin, offset)
            self._counted[path] = offset, line
        return line

    def _with_rejected(self, batch: pa.RecordBatch, rejected: dict[int, dict[str, Any]]) -> pa.RecordBatch:
        import pyarrow as pa

        if not self._rejects:
            return batch
        kind = self._arrow.field(REJECTED).type
        lines = [rejected.get(number) for number in range(batch.num_rows)] if rejected else None
        column = pa.nulls(batch.num_rows, kind) if lines is None else pa.array(lines, kind)
        return pa.RecordBatch.from_arrays([*batch.columns, column], schema=self._arrow)

    def _sorted(self, rows: pa.Table) -> pa.Table:
        import pyarrow.compute as pc

        time = self._settings.time
        if time is None:
            return rows
        # Arrow's sort is stable; a line without a time goes last, for it has no place of its own
        return rows.take(pc.sort_indices(rows.column(time)))

    def _batches(self, rows: pa.Table) -> Iterable[pa.RecordBatch]:
        batches: list[pa.RecordBatch] = rows.combine_chunks().to_batches(ROWS)
        return batches


def _ended(lines: bytes) -> bytes:
    return lines if lines.endswith(b"\n") else lines + b"\n"
