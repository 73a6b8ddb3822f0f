"""
Parquet and Arrow IPC as sources: one file, or a folder of them. Needs the extra [arrow].

Rows are read one batch after the other, so memory is bounded by one row group, or record batch, of the file,
whatever its size. A position is a file and a row in it, with a fingerprint of the file; a folder to which
files were added meanwhile, with names behind the others, is read on. Of those that were added before the
file of the position nothing would be read, so that is refused. They are told by how many files come before
it, so as to let go of those that were read: where as many were deleted as were added, it is not noticed.

A folder that is divided by columns, as in `out/day=2026-11-22/part-000001.parquet`, has these columns, too.
"""

from __future__ import annotations

import os
import posixpath
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar, Unpack, overload

from asyncstream.connectors.base import SourceBatch
from asyncstream.connectors.files.arrow import arrow_ipc, parquet
from asyncstream.connectors.files.identity import difference, fingerprint
from asyncstream.connectors.files.partitions import is_partition, partition_of, partitions_of
from asyncstream.connectors.files.reading import FileSource
from asyncstream.connectors.files.record_batches import RowReader, in_slices
from asyncstream.connectors.files.storage import size_of
from asyncstream.connectors.lines import AnyPath, column_names
from asyncstream.errors import SourceError
from asyncstream.validation import count

__all__ = ("ArrowIpcSource", "ColumnarSource", "ParquetSource")

T = TypeVar("T")
U = TypeVar("U")


class _Options(TypedDict, total=False):
    columns: Sequence[str] | None
    on_malformed: Literal["fail", "reject"]
    batch: int


class _Table(NamedTuple):
    """
    A file that is read.

    Attributes:
        batches: its record batches.
        skip: how many rows they begin before the one that was asked for.
        close: closes it.
    """

    batches: Iterator[Any]
    skip: int
    close: Callable[[], Any]


class ColumnarSource(FileSource[T]):
    """What Parquet and Arrow IPC have in common; they differ in how a file is opened."""

    _errors = (ValueError,)
    _endings: tuple[str, ...]

    def __init__(
        self, path: AnyPath, model: Any, columns: Sequence[str] | None, on_malformed: str, batch: int
    ) -> None:
        super().__init__(path)
        self._rows: RowReader[T] = RowReader(model, on_malformed)
        self.rejects = self._rows.rejects
        self._columns = None if columns is None else column_names(columns)
        self._batch = count("batch", batch)
        self._is_open = False
        self._files: list[str] = []  # by their names in the folder; of a single file: ""
        self._partitions: list[dict[str, Any]] = []  # of each file
        self._at = 0  # the file, among these
        self._close_table: Callable[[], Any] | None = None  # that is open
        self._known: dict[str, Any] = {}  # the fingerprint of the one that is open

    @abstractmethod
    def _begin(self, path: str, row: int, columns: list[str] | None) -> _Table:
        """Open a file where this row is."""

    @abstractmethod
    def _names(self, path: str) -> list[str]:
        """The columns of a file."""

    # ------------------------------------------------------------------ which files

    def _listed(self) -> list[str]:
        if not self._storage.is_folder(self._path):
            return [""]
        # by their own names first: those that a sink adds to any partition come behind the others
        found = [name for name in self._storage.names(self._path) if self._is_read(name)]
        found = self._storage.apart(self._path, found)
        return sorted(found, key=lambda name: (posixpath.basename(name), name))

    def _is_read(self, name: str) -> bool:
        folder, own = posixpath.split(name)
        return is_partition(folder) and own.endswith(self._endings) and own[0] not in "._"

    def _path_of(self, name: str) -> str:
        return self._storage.join(self._path, name) if name else self._path

    def _open(self) -> None:
        self._files = self._listed()
        self._partitions = partitions_of(self._files)
        if self._files == [""] and not self._storage.exists(self._path):
            raise SourceError(f"cannot read {self._path}: it is not there")
        self._check_columns()
        self._is_open = True
        self._go_to(0, 0)

    def _check_columns(self) -> None:
        """Refuse columns that no file has; those that a file lacks are not in its rows."""
        missing = list(self._columns or ())
        there: dict[str, None] = {}
        for name in self._files:
            if not missing:
                return
            there |= dict.fromkeys([*self._in_file(name, self._names), *partition_of(name)])
            # Parquet takes the path of a field inside a column as well
            missing = [
                column for column in missing if column not in there and column.split(".")[0] not in there
            ]
        if missing and self._files:
            raise SourceError(f"{self._path}: no column {missing[0]!r} for columns=, there are {list(there)}")

    def _in_file(self, name: str, work: Callable[[str], U]) -> U:
        """What work on the path of a file gives; what fails names this file."""
        path = self._path_of(name)
        with self._naming(path):
            return work(path)

    def column_names(self) -> list[str]:
        """The columns of the first file, none without one; raises `SourceError` if it cannot be read."""
        with self._naming():
            files = self._listed()
            return [*self._in_file(files[0], self._names), *partition_of(files[0])] if files else []

    # ------------------------------------------------------------------ reading

    def _go_to(self, at: int, row: int) -> None:
        """The next row is this one of that file."""
        self._close_file()
        self._at = at
        self._rows.begin("", iter(()), row)
        self._known = {}

    def _close_file(self) -> None:
        close, self._close_table = self._close_table, None
        if close is not None:
            close()

    def _open_file(self, path: str) -> None:
        row, columns, partition = self._rows.row, self._columns, self._partitions[self._at]
        if columns is not None:
            partition = {column: partition[column] for column in columns if column in partition}
            columns = [column for column in columns if column not in partition]
        self._known = self._identity(path)  # first: it refuses a pipe
        table = self._begin(path, row, columns)
        self._close_table = table.close
        self._rows.begin(path, table.batches, row, table.skip, partition)

    def _identity(self, path: str) -> dict[str, Any]:
        with self._storage.read(path) as file:
            return fingerprint(file, size_of(file))

    def _read(self) -> SourceBatch[T] | None:
        if not self._is_open:
            raise SourceError(f"the source of {self._path} is not open")
        while self._at < len(self._files):
            batch = self._in_file(self._files[self._at], self._read_file)
            if batch is not None:
                return batch
            if self._at == len(self._files) - 1:
                return None  # and its end is the position: there may be more files another day
            self._go_to(self._at + 1, 0)
        return None

    def _read_file(self, path: str) -> SourceBatch[T] | None:
        if self._close_table is None:
            self._open_file(path)
        return self._rows.read()

    # ------------------------------------------------------------------ positions

    def _place(self) -> dict[str, Any] | None:
        if not self._is_open:
            return None
        if not self._files:
            return {"file": None, "row": 0}
        name = self._files[self._at]
        known = self._known = self._known or self._in_file(name, self._identity)
        return {"file": self._called(name), "row": self._rows.row, "before": self._at, **known}

    def _called(self, name: str) -> str:
        return name or os.path.basename(self._path)

    def _check(self, position: dict[str, Any]) -> None:
        self._find(self._listed(), position)

    def _go_on(self, position: dict[str, Any]) -> None:
        self._go_to(self._find(self._files, position), position["row"])

    def _find(self, files: list[str], position: dict[str, Any]) -> int:
        """Which of the files the position is in, if that is still the one that was read."""
        name = position["file"]
        if name is None:
            return 0
        found: str | None = "it is not there"
        wish = "Put the file back that was read"
        for at, file_name in enumerate(files):
            if self._called(file_name) == name:
                with self._storage.read(self._path_of(file_name)) as file:
                    found = difference(file, position["size"], position)
                    if found is None and size_of(file) != position["size"]:
                        found = "it has grown"
                if found is None and at > position.get("before", at):
                    found = "files were added whose names come before its own, and would never be read"
                    wish = "Give them names that come behind it"
                if found is None:
                    return at
        raise SourceError(
            f"cannot go on at row {position['row']} of {name} of {self._path}: {found}. {wish}, or begin at "
            "the start by another name for the source or restore='none'"
        )

    def _close(self) -> None:
        self._close_file()
        self._is_open = False


class ParquetSource(ColumnarSource[T]):
    """
    Reads the rows of a Parquet file as dicts, or those of a folder's files, in the order of their names.

    Files in it whose names begin with a dot or an underscore are left out, and so are those that do not end
    in `.parquet`, and symbolic links to others in it, or to folders of them.
    New files need names behind those that were read.

    Args:
        path: the file, or the folder; also of an object store, such as "s3://bucket/name", by the extra
            [fsspec].
        model: a dataclass, NamedTuple, TypedDict or pydantic model of which each row is to become one; see
            `connectors.models`. A row that is none is malformed, and so is one with a value that is nothing
            in Python, such as a date after 9999.
        columns: read these only; None: all.
        on_malformed: "fail" with `SourceError`, after all rows before it were delivered; or "reject": the row
            goes to the source's `rejected` output as a `RejectedRow`.
        batch: how many rows one read brings at most.

    Raises:
        MissingExtra: if pyarrow is not installed.
    """

    _endings = (".parquet",)

    @overload
    def __init__(self: ParquetSource[dict[str, Any]], path: AnyPath, **options: Unpack[_Options]) -> None: ...
    @overload
    def __init__(
        self: ParquetSource[U], path: AnyPath, *, model: type[U], **options: Unpack[_Options]
    ) -> None: ...
    def __init__(
        self,
        path: AnyPath,
        *,
        model: Any = None,
        columns: Sequence[str] | None = None,
        on_malformed: Literal["fail", "reject"] = "fail",
        batch: int = 1000,
    ) -> None:
        self._parquet = parquet()
        self._sizes: list[int] = []  # bytes of each file, if these are on a disk
        self._rows_here = 0  # in the file that was opened last
        super().__init__(path, model, columns, on_malformed, batch)

    def _open(self) -> None:
        super()._open()
        self._sizes, self._rows_here = [], 0
        if not self._storage.is_remote:  # or it would be asked for each
            self._sizes = [self._in_file(name, self._size) for name in self._files]

    def _size(self, path: str) -> int:
        return os.path.getsize(self._storage.resolved(path))

    def progress(self) -> float | None:
        if not self._is_open or not self._sizes:
            return None
        here = self._rows.row / self._rows_here if self._rows_here else 0.0
        read, whole = sum(self._sizes[: self._at]) + here * self._sizes[self._at], sum(self._sizes)
        return min(1.0, read / whole) if whole else 1.0

    def _names(self, path: str) -> list[str]:
        with self._storage.read(path) as file:
            return list(self._parquet.read_schema(file).names)

    def _begin(self, path: str, row: int, columns: list[str] | None) -> _Table:
        from pyarrow import OSFile

        path = self._storage.resolved(path)
        source: Any = self._storage.read(path) if self._storage.is_remote else OSFile(path)
        try:
            # what Spark writes by default has no unit: of nanoseconds, years after 2262 would be others
            file = self._parquet.ParquetFile(source, coerce_int96_timestamp_unit="us")
        except BaseException:
            source.close()
            raise
        metadata, before, group = file.metadata, 0, 0
        self._rows_here = metadata.num_rows
        while group < metadata.num_row_groups:
            size = metadata.row_group(group).num_rows
            if before + size > row:
                break
            before, group = before + size, group + 1
        groups = list(range(group, metadata.num_row_groups))
        batches = file.iter_batches(self._batch, row_groups=groups, columns=columns, use_threads=False)
        return _Table(batches, row - before, partial(file.close, force=True))


class ArrowIpcSource(ColumnarSource[T]):
    """
    Reads the rows of an Arrow IPC file (Feather's second version) as dicts, or those of a folder's files, in
    the order of their names. A file of the streaming format will do as well.

    Files in it whose names begin with a dot or an underscore are left out, and so are those that do not end
    in `.arrow`, `.arrows`, `.feather` or `.ipc`, and symbolic links to others in it, or to folders of them.
    New files need names behind those that were read.

    Args:
        path: the file, or the folder; also of an object store, by the extra [fsspec].
        model: as for `ParquetSource`.
        columns: read these only; None: all.
        on_malformed: as for `ParquetSource`.
        batch: how many rows one read brings at most; a record batch of the file is in memory as a whole.

    Raises:
        MissingExtra: if pyarrow is not installed.
    """

    _endings = (".arrow", ".arrows", ".feather", ".ipc")

    @overload
    def __init__(
        self: ArrowIpcSource[dict[str, Any]], path: AnyPath, **options: Unpack[_Options]
    ) -> None: ...
    @overload
    def __init__(
        self: ArrowIpcSource[U], path: AnyPath, *, model: type[U], **options: Unpack[_Options]
    ) -> None: ...
    def __init__(
        self,
        path: AnyPath,
        *,
        model: Any = None,
        columns: Sequence[str] | None = None,
        on_malformed: Literal["fail", "reject"] = "fail",
        batch: int = 1000,
    ) -> None:
        self._ipc = arrow_ipc()
        super().__init__(path, model, columns, on_malformed, batch)

    def _names(self, path: str) -> list[str]:
        with self._storage.read(path) as file:
            return list(self._reader(file, None).schema.names)

    def _reader(self, file: Any, columns: list[str] | None) -> Any:
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        options = {}
        opened = self._ipc.open_file if is_file else self._ipc.open_stream
        if columns is not None:
            names = opened(file).schema.names
            file.seek(0)
            fields = [place for place, name in enumerate(names) if name in columns]
            options["options"] = self._ipc.IpcReadOptions(included_fields=fields)
        return opened(file, **options)

    def _begin(self, path: str, row: int, columns: list[str] | None) -> _Table:
        file = self._storage.read(path)
        try:
            found = self._reader(file, columns)
        except BaseException:
            file.close()
            raise
        if hasattr(found, "get_batch"):
            batches: Iterator[Any] = (found.get_batch(number) for number in range(found.num_record_batches))
        else:
            batches = iter(found)
        if columns is not None and not set(columns) & set(found.schema.names):
            batches = (batch.select([]) for batch in batches)  # no fields are all of them to Arrow
        return _Table(in_slices(batches, self._batch), row, file.close)
