"""
Parquet and Arrow IPC as sinks: a file, or in a job with checkpoints a folder. Needs the extra [arrow].

How epochs become files is told in `parts_sink`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Literal

from asyncstream.connectors.files.arrow import Tables, arrow_ipc, parquet
from asyncstream.connectors.files.part_files import PartWriter
from asyncstream.connectors.files.partitions import longest_in, parted
from asyncstream.connectors.files.parts_sink import Collected, PartsSink
from asyncstream.connectors.lines import AnyPath, column_names
from asyncstream.connectors.rows import Default
from asyncstream.validation import choice, refuse

__all__ = ("ArrowIpcSink", "ColumnarSink", "ParquetSink")


class _Columns:
    """Collects elements as Arrow tables; columns of `partition_by` are in the names of folders."""

    def __init__(self, partition_by: Sequence[str], longest: int, tables: Tables) -> None:
        self._partition_by = partition_by
        self._longest = longest
        self._tables = tables
        self._folders: list[str] = []  # of the elements, with a partition

    @property
    def rows(self) -> int:
        return self._tables.rows

    def add(self, values: Sequence[Any]) -> tuple[int, Exception | None]:
        if not self._partition_by:
            return self._tables.add(values)
        folders, rows = [], []
        refused: Exception | None = None
        for value in values:
            try:
                folder, row = parted(value, self._partition_by, self._longest)
            except Exception as error:
                refused = error
                break
            folders.append(folder)
            rows.append(row)
        taken, unfit = self._tables.add(rows)
        self._folders += folders[:taken]
        return taken, unfit or refused

    def take(self) -> Iterator[tuple[str, Any]]:
        table = self._tables.take()
        if not self._partition_by:
            yield "", table
            return
        folders, self._folders = self._folders, []
        places: dict[str, list[int]] = {}
        for place, folder in enumerate(folders):
            places.setdefault(folder, []).append(place)
        for folder, own in places.items():
            yield folder, table.take(own)


class ColumnarSink(PartsSink):
    """What Parquet and Arrow IPC have in common; they differ in what reads a schema, and writes a file."""

    def __init__(
        self,
        path: AnyPath,
        schema: Any,
        columns: Sequence[str] | None,
        default: Default | None,
        existing: str,
        partition_by: str | Sequence[str] | None,
        row_group: int,
        ending: str,
    ) -> None:
        super().__init__(path, existing, partition_by, row_group, ending, is_file=True)
        if schema is not None and not hasattr(schema, "empty_table"):
            raise refuse("schema", "a pyarrow.Schema", schema)
        if schema is not None and columns is not None:
            raise refuse("columns", "none, for a schema names them", columns)
        given = None if columns is None else column_names(columns)
        if schema is not None:
            given = list(schema.names)
        self._columns = given
        if given is not None:
            for column in self._partition_by:
                if column not in given:
                    raise refuse("partition_by", f"some of the columns {given}", column)
            self._columns = [column for column in given if column not in self._partition_by]
        self._schema = schema
        if schema is not None and self._partition_by:
            self._schema = schema.empty_table().select(self._columns).schema
        self._default = default
        Tables(self._columns, self._schema, default)  # refuses what `default` must not be

    def _collecting(self, part: str | None) -> Collected:
        schema = self._schema
        if schema is None and part is not None:
            with self._storage.read(self._folder.place(part)) as file:
                schema = self._schema_of(file)
        tables = Tables(self._columns, schema, self._default, was_found=self._schema is None)
        return _Columns(self._partition_by, longest_in(self._path), tables)

    @abstractmethod
    def _schema_of(self, file: BinaryIO) -> Any:
        """The schema of a file that was written."""


class ParquetSink(ColumnarSink):
    """
    Writes mappings and other records, such as dataclasses and the results of windows, as Parquet: to one
    file, or in a job with checkpoints to a folder of files.

    Args:
        path: the file or folder; the folder it is in must exist. Also of an object store, such as
            "s3://bucket/name", by the extra [fsspec].
        schema: of pyarrow; values become what it says, a datetime a date or one of coarser units, but a
            number that would lose its fraction, or become infinite, is refused. None: that of the elements up
            to the first row group or checkpoint, or of what is gone on with; later ones must fit, and what
            they lack is null. A column that is empty until then holds text.
        columns: take these of each element, which must have them; others are left out. None: all.
        default: makes of a value of your own type one that can be written; raises `TypeError` for others.
        existing: what to do with what is there already: "refuse" or "overwrite". Not asked where a job goes
            on from a checkpoint.
        partition_by: a column, or several, whose values say which folder an element goes to, `day=2026-11-22`
            say; always writes a folder.
        row_group: how many rows are collected and written together; they are in memory meanwhile. Divided by
            `partition_by`, row groups are smaller.
        compression: of pyarrow: "snappy", "zstd", "gzip", "lz4", "brotli" or "none".

    Raises:
        MissingExtra: if pyarrow is not installed.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        schema: Any = None,
        columns: Sequence[str] | None = None,
        default: Default | None = None,
        existing: Literal["refuse", "overwrite"] = "refuse",
        partition_by: str | Sequence[str] | None = None,
        row_group: int = 20_000,
        compression: Literal["snappy", "zstd", "gzip", "lz4", "brotli", "none"] = "snappy",
    ) -> None:
        self._parquet = parquet()
        known = ("snappy", "zstd", "gzip", "lz4", "brotli", "none")
        self._compression = choice("compression", compression, known)
        super().__init__(path, schema, columns, default, existing, partition_by, row_group, ".parquet")

    def _schema_of(self, file: BinaryIO) -> Any:
        return self._parquet.read_schema(file)

    def _writing_to(self, file: BinaryIO, rows: Any) -> PartWriter:
        writer: PartWriter = self._parquet.ParquetWriter(file, rows.schema, compression=self._compression)
        return writer


class ArrowIpcSink(ColumnarSink):
    """
    Writes mappings and other records as Arrow IPC (Feather's second version): to one file, or in a job with
    checkpoints to a folder of files.

    Args:
        path, columns, schema: as for `ParquetSink`.
        row_group: how many rows are collected and written together, as a record batch.
        compression: of pyarrow: "lz4", "zstd" or "none".
        default, existing, partition_by: as for `ParquetSink`.

    Raises:
        MissingExtra: if pyarrow is not installed.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        schema: Any = None,
        columns: Sequence[str] | None = None,
        default: Default | None = None,
        existing: Literal["refuse", "overwrite"] = "refuse",
        partition_by: str | Sequence[str] | None = None,
        row_group: int = 20_000,
        compression: Literal["lz4", "zstd", "none"] = "lz4",
    ) -> None:
        self._ipc = arrow_ipc()
        found = choice("compression", compression, ("lz4", "zstd", "none"))
        self._options = self._ipc.IpcWriteOptions(compression=None if found == "none" else found)
        super().__init__(path, schema, columns, default, existing, partition_by, row_group, ".arrow")

    def _schema_of(self, file: BinaryIO) -> Any:
        return self._ipc.open_file(file).schema

    def _writing_to(self, file: BinaryIO, rows: Any) -> PartWriter:
        writer: PartWriter = self._ipc.new_file(file, rows.schema, options=self._options)
        return writer
