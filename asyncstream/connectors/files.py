"""
Files of lines as sinks: JSON lines and CSV. The sources are in `file_sources`.

Writing happens in the event loop: for a batch on a local disk that takes less time than handing it to a
thread and back.
"""

from __future__ import annotations

import asyncio
import csv
import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, BinaryIO, Final, Literal, TypeVar

import orjson

from asyncstream.arguments import choice
from asyncstream.connectors.base import TransactionalSink
from asyncstream.connectors.lines import (
    BOM,
    AnyPath,
    column_names,
    delimiter_of,
    file_path,
    open_file,
)
from asyncstream.connectors.lines import (
    RejectedLine as RejectedLine,  # where checkpoints of earlier versions look for it
)
from asyncstream.connectors.rows import Default, JsonWriter, RowWriter, why_unwritten
from asyncstream.elements import Timestamps
from asyncstream.errors import SinkError, describe_error

__all__ = ("CsvSink", "JsonLinesSink")

T = TypeVar("T")

_CRLF: Final = "\r\n"  # only a line end of the dialect is quoted inside a field, so CR must be one


class _FileSink(TransactionalSink[T]):
    """
    What JSON lines and CSV have in common; they differ in `_head` and `_encode`.

    With checkpoints, a position is a length of the file, and what is behind it is cut off again.
    """

    one_by_one = True

    def __init__(self, path: AnyPath, existing: str) -> None:
        self._path = file_path(path)
        self._existing = choice("existing", existing, ("refuse", "append", "overwrite"))
        self._file: BinaryIO | None = None
        self._needs_head = False  # not yet: until the first checkpoint stands, nothing is written
        self._is_new = False
        self._taken = 0

    async def open(self) -> None:
        await self._open(self._existing)
        self._write_head()

    async def recover(self, position: dict[str, int] | None) -> None:
        if position is not None:
            await self._open("recover", position["length"])
        elif self._existing == "refuse" and _is_empty(self._path):
            await self._open("overwrite")  # an earlier start that came to nothing
        else:
            await self._open(self._existing)

    async def _open(self, existing: str, length: int = 0) -> None:
        """Open the file, in one of the ways of `existing`, or cut off behind `length` to "recover"."""
        mode = {"refuse": "xb+", "append": "ab+", "overwrite": "wb+", "recover": "rb+"}[existing]
        try:
            if existing == "recover" and length == 0:
                mode = "ab+"  # it may not be there yet
            self._file, self._is_new = open_file(self._path, mode), True
            if existing == "recover":
                self._cut_off(self._file, length)
            elif self._file.tell() > 0:
                self._go_behind(self._file)
            self._needs_head = self._file.tell() == 0
        except FileExistsError:
            raise SinkError(f"{self._path} exists: pass existing='append' or existing='overwrite'") from None
        except OSError as error:
            await self.close()
            raise self._error(error) from error
        except SinkError:
            await self.close()
            raise

    def _cut_off(self, file: BinaryIO, length: int) -> None:
        size = file.seek(0, os.SEEK_END)
        if size < length:
            raise SinkError(
                f"cannot go on writing {self._path}: it has {size} bytes, and had {length} at the checkpoint"
            )
        file.truncate(length)
        file.seek(0, os.SEEK_END)

    def _go_behind(self, file: BinaryIO) -> None:
        """Check what is there already, and end its last line."""
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":  # or the first element would go on its last line
            file.write(b"\n")

    def _head(self) -> bytes:
        """What comes before the first element of an empty file."""
        return b""

    def _write_head(self) -> None:
        if self._needs_head:
            self._opened().write(self._head())
            self._needs_head = False

    @abstractmethod
    def _encode(self, value: T) -> bytes:
        """The line for one element, with its end; may raise anything."""

    async def write(self, values: Sequence[T], timestamps: Timestamps) -> None:
        file = self._opened()
        self._taken = 0
        try:
            if values:
                self._write_head()
            for self._taken, value in enumerate(values):  # which counts if it fails; it is never cut short
                try:
                    line = self._encode(value)
                except Exception as error:
                    raise SinkError(why_unwritten(value, self._path, error)) from error
                # one by one: orjson's buffers are large until they are freed, so a list of lines is slow
                file.write(line)
        except OSError as error:
            raise self._error(error) from error

    def taken(self) -> int:
        return self._taken

    async def flush(self) -> None:
        try:
            self._write_head()
            self._opened().flush()
        except OSError as error:
            raise self._error(error) from error

    async def prepare(self, epoch: int) -> dict[str, int]:
        file = self._opened()
        try:
            file.flush()
            length = file.tell()
            await asyncio.to_thread(self._sync, file)
        except OSError as error:
            raise self._error(error) from error
        return {"length": length}

    def _sync(self, file: BinaryIO) -> None:
        os.fsync(file.fileno())
        if self._is_new and os.name != "nt":  # its name is safe only once its directory is
            folder = os.open(os.path.dirname(os.path.abspath(self._path)), os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            self._is_new = False

    async def commit(self, epoch: int) -> None:
        """What is in the file is in the file."""

    async def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                raise self._error(error) from error

    def _opened(self) -> BinaryIO:
        if self._file is None:
            raise SinkError(f"the sink of {self._path} is not open")
        return self._file

    def _error(self, error: OSError) -> SinkError:
        folder = os.path.dirname(os.path.abspath(self._path))
        if not os.path.isdir(folder):
            return SinkError(f"cannot write {self._path}: there is no directory {folder}")
        return SinkError(f"cannot write {self._path}: {describe_error(error)}")


class JsonLinesSink(_FileSink[Any]):
    """
    Writes one JSON value per line: plain values, dates, numpy, dataclasses and other records, and the results
    of windows as flat objects; `asyncstream.connectors.rows` says how each is written.

    Args:
        path: the file; its directory must exist.
        default: makes of a value of your own type one that can be written; raises `TypeError` for others.
        existing: what to do with a file that is there already: "refuse", "append" or "overwrite". Not asked
            where a job goes on from a checkpoint: then it goes on with its file.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        default: Default | None = None,
        existing: Literal["refuse", "append", "overwrite"] = "refuse",
    ) -> None:
        super().__init__(path, existing)
        self._write_json = JsonWriter(default, orjson.OPT_APPEND_NEWLINE).write

    def _encode(self, value: Any) -> bytes:
        return self._write_json(value)


class CsvSink(_FileSink[Any]):
    """
    Writes mappings and other records, such as dataclasses and the results of windows, as CSV with a header.
    None becomes an empty field, a list JSON; `asyncstream.connectors.rows` says how other values are written.

    Args:
        path: the file; its directory must exist.
        columns: the keys to write, in order. An element must have all of them; others are left out. Of a
            window's result: `key`, `start`, `end`, the names of its aggregates.
        delimiter: what stands between two fields; one character.
        default: makes of a value of your own type one that can be written; raises `TypeError` for others.
        existing: what to do with a file that is there already: "refuse", "append" (its header must name
            the same columns) or "overwrite". Not asked where a job goes on from a checkpoint: then it goes on
            with its file.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        columns: Sequence[str],
        delimiter: str = ",",
        default: Default | None = None,
        existing: Literal["refuse", "append", "overwrite"] = "refuse",
    ) -> None:
        super().__init__(path, existing)
        self._columns = column_names(columns)
        self._rows = RowWriter(self._columns, default)
        # writerow gives what write gave: here the line itself
        self._writer = csv.writer(_Encoder(), delimiter=delimiter_of(delimiter), lineterminator=_CRLF)

    def _head(self) -> bytes:
        return self._row(self._columns)

    def _go_behind(self, file: BinaryIO) -> None:
        header = self._head()
        file.seek(0)
        found = file.readline(len(header) + len(BOM) + 1).removeprefix(BOM)
        if found.rstrip(b"\r\n") != header.rstrip(b"\n"):
            raise SinkError(
                f"cannot append to {self._path}: its header is {found.decode(errors='backslashreplace')!r}"
            )
        super()._go_behind(file)

    def _encode(self, value: Any) -> bytes:
        return self._row(self._rows.row(value))

    def _row(self, fields: Sequence[Any]) -> bytes:
        line: bytes = self._writer.writerow(fields)
        return line


class _Encoder:
    """What `csv.writer` writes to."""

    def write(self, line: str) -> bytes:
        return (line.removesuffix(_CRLF) + "\n").encode()


def _is_empty(path: str) -> bool:
    """Whether there is a file, with nothing in it."""
    try:
        return os.path.getsize(path) == 0
    except OSError:
        return False
