"""
Parquet files as sources: one file, or a directory of parts. Needs the extra [arrow].

Rows are read one batch after the other, so memory is bounded by one row group of the file, whatever its size.
A position is a file and a row in it, with a fingerprint of the file; a directory to which files were added
meanwhile, with names behind the others, is read on.

Reading happens in the event loop, as for files of lines.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict, TypeVar, Unpack, overload

from asyncstream.connectors.base import Source, SourceBatch
from asyncstream.connectors.files.arrow import parquet
from asyncstream.connectors.files.identity import difference, fingerprint
from asyncstream.connectors.lines import AnyPath, column_names, file_path, open_file
from asyncstream.connectors.models import Unfit, reader
from asyncstream.errors import SourceError, describe_error
from asyncstream.validation import count

__all__ = ("ParquetSource",)

T = TypeVar("T")
U = TypeVar("U")


class _Options(TypedDict, total=False):
    columns: Sequence[str] | None
    batch: int


class ParquetSource(Source[T]):
    """
    Reads the rows of a Parquet file as dicts, or those of a directory's files, in the order of their names.

    Files in it whose names begin with a dot or an underscore are left out, and so are those that do not end
    in `.parquet`.

    Args:
        path: the file, or the directory.
        model: a dataclass, NamedTuple, TypedDict or pydantic model of which each row is to become one; see
            `connectors.models`. A row that is none is a `SourceError`, after all before it were delivered.
        columns: read these only; None: all.
        batch: how many rows one read brings at most.

    Raises:
        MissingExtra: if pyarrow is not installed.
    """

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
        batch: int = 1000,
    ) -> None:
        self._parquet = parquet()
        self._path = file_path(path)
        self._model = None if model is None else reader(model)
        self._columns = None if columns is None else column_names(columns)
        self._batch = count("batch", batch)
        self._files: list[str] | None = None
        self._sizes: list[int] = []  # rows of each file
        self._at = 0  # the file, among these
        self._row = 0  # of it
        self._file: Any = None
        self._rows: Iterator[Any] = iter(())
        self._waiting: list[Any] = []  # rows that were taken from the file and not delivered

    async def open(self) -> None:
        try:
            self._files = self._listed()
            self._sizes = [self._parquet.read_metadata(file).num_rows for file in self._files]
        except (OSError, ValueError) as error:
            raise self._unreadable(self._path, error) from error
        self._go_to(0, 0)

    def _listed(self) -> list[str]:
        if not os.path.isdir(self._path):
            return [self._path]
        return [
            os.path.join(self._path, name)
            for name in sorted(os.listdir(self._path))
            if name.endswith(".parquet") and name[0] not in "._"
        ]

    def column_names(self) -> list[str]:
        """
        The columns of the first file; none if there is no file.

        Raises:
            SourceError: if it cannot be read.
        """
        try:
            files = self._listed()
            return list(self._parquet.read_schema(files[0]).names) if files else []
        except (OSError, ValueError) as error:
            raise self._unreadable(self._path, error) from error

    def _unreadable(self, path: str, error: Exception) -> SourceError:
        return SourceError(f"cannot read {path}: {describe_error(error)}")

    def _opened(self) -> list[str]:
        if self._files is None:
            raise SourceError(f"the source of {self._path} is not open")
        return self._files

    def _go_to(self, at: int, row: int) -> None:
        """The next row is this one of that file."""
        self._close_file()
        self._at, self._row = at, row

    def _close_file(self) -> None:
        file, self._file, self._waiting = self._file, None, []
        if file is not None:
            file.close()

    def _open_file(self, path: str) -> None:
        """Open a file where the next row is."""
        self._file = self._parquet.ParquetFile(path)
        metadata, before, group = self._file.metadata, 0, 0
        while group < metadata.num_row_groups:
            size = metadata.row_group(group).num_rows
            if before + size > self._row:
                break
            before, group = before + size, group + 1
        groups = range(group, metadata.num_row_groups)
        self._rows = self._file.iter_batches(
            self._batch, row_groups=list(groups), columns=self._columns, use_threads=False
        )
        skip = self._row - before
        while skip:
            rows = next(self._rows)
            self._waiting = rows.slice(min(skip, len(rows))).to_pylist()
            skip -= min(skip, len(rows))

    async def read(self) -> SourceBatch[T] | None:
        await asyncio.sleep(0)  # others get their turn, however long the file is
        files = self._opened()
        while self._at < len(files):
            path = files[self._at]
            try:
                if self._file is None:
                    self._open_file(path)
                rows = self._waiting
                if not rows and (batch := next(self._rows, None)) is not None:
                    rows = batch.to_pylist()
            except (OSError, ValueError) as error:
                raise self._unreadable(path, error) from error
            self._waiting = []
            if rows:
                return SourceBatch(self._values(rows, path))
            if self._at == len(files) - 1:
                return None  # and its end is the position: there may be more files another day
            self._go_to(self._at + 1, 0)
        return None

    def _values(self, rows: list[Any], path: str) -> list[Any]:
        if self._model is None:
            self._row += len(rows)
            return rows
        values: list[Any] = []
        for place, row in enumerate(rows):
            try:
                values.append(self._model(row))
            except Unfit as error:
                self._waiting = rows[place:]
                if values:  # they are delivered first; the next read finds it again
                    break
                raise SourceError(f"row {self._row + 1} of {path}: {error}") from error
        self._row += len(values)
        return values

    def progress(self) -> float | None:
        if self._files is None:
            return None
        read, total = sum(self._sizes[: self._at]) + self._row, sum(self._sizes)
        return min(1.0, read / total) if total else 1.0

    def position(self) -> dict[str, Any] | None:
        if self._files is None:
            return None
        if not self._files:
            return {"file": None, "row": 0}
        path = self._files[self._at]
        try:
            with open_file(path, "rb") as file:
                known = fingerprint(file, os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise self._unreadable(path, error) from error
        return {"file": os.path.basename(path), "row": self._row, **known}

    async def can_seek(self, position: dict[str, Any]) -> None:
        try:
            self._find(self._listed(), position)
        except OSError as error:
            raise self._unreadable(self._path, error) from error

    async def seek(self, position: dict[str, Any]) -> None:
        self._go_to(self._find(self._opened(), position), position["row"])

    def _find(self, files: list[str], position: dict[str, Any]) -> int:
        """Which of the files the position is in, if that is still the one that was read."""
        name = position["file"]
        if name is None:
            return 0
        found: str | None = "it is not there"
        for at, path in enumerate(files):
            if os.path.basename(path) == name:
                try:
                    with open_file(path, "rb") as file:
                        found = difference(file, position["size"], position)
                        if found is None and os.fstat(file.fileno()).st_size != position["size"]:
                            found = "it has grown"
                except OSError as error:
                    raise self._unreadable(path, error) from error
                if found is None:
                    return at
        raise SourceError(
            f"cannot go on at row {position['row']} of {name} of {self._path}: {found}. Put the file back "
            "that was read, or begin at the start by another name for the source or restore='none'"
        )

    async def close(self) -> None:
        self._close_file()
        self._files = None
