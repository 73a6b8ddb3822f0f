"""
Files of lines: JSON lines and CSV, as source and as sink.

Both sources read one line after the other from a buffered file, so memory is bounded by one batch and one
line, whatever the size of the file. They know the byte at which the next line begins: that is their
position, and a replay goes on exactly there.

Reading and writing happen in the event loop. A batch from a local disk takes less time than handing it to
a thread and back, and a read that nobody can interrupt need not be undone when it is cancelled.
"""

from __future__ import annotations

import asyncio
import csv
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, Literal, TypeAlias, TypeVar, cast

import orjson

from asyncstream.arguments import choice, count, function, refuse
from asyncstream.connectors.base import Source, SourceBatch, TransactionalSink
from asyncstream.elements import Timestamps
from asyncstream.errors import SinkError, SourceError, describe_error, safe_repr

__all__ = (
    "BOM",
    "EXCERPT_BYTES",
    "CsvSink",
    "CsvSource",
    "JsonLinesSink",
    "JsonLinesSource",
    "RejectedLine",
    "why_malformed",
)

T = TypeVar("T")

AnyPath = str | os.PathLike[str]

BOM: Final = b"\xef\xbb\xbf"
_BUFFER_BYTES: Final = 256 * 1024  # enough that the system calls do not show in a profile
_CRLF: Final = "\r\n"  # only a line end of the dialect is quoted inside a field, so CR must be one
EXCERPT_BYTES: Final = 1000  # what is kept of a line that was too long to be kept


@dataclass(frozen=True, slots=True)
class RejectedLine:
    """
    A line that is no element.

    Attributes:
        path: the file.
        line_number: of its first line, if it is a CSV record of several; starts at 1.
        line: its text without the line end. Bytes that are not UTF-8 are shown as `\\xff`; of a line that is
            longer than the limit, the beginning.
        reason: what is wrong with it.
    """

    path: str
    line_number: int
    line: str
    reason: str


_Place: TypeAlias = tuple[int, int]
"""A place between two lines: how many bytes and how many lines are before it."""


class _Malformed(Exception):
    """Carries what is wrong with the lines between two places."""

    def __init__(self, begin: _Place, reason: str) -> None:
        super().__init__(reason)
        self.begin = begin
        self.line_number = begin[1] + 1
        self.reason = reason


class _TooLong(Exception):
    """A line, or a CSV record of several lines, is longer than the limit."""


class _Lines:
    """
    The lines of a file one by one: as bytes by `take`, or as text by iterating, as `csv.reader` does.

    Args:
        limit: the most bytes between a `mark` and the end of the line that is taken.
    """

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self.file = file
        self.limit = limit
        self._offset = 0
        self._lines = 0
        self._limit_offset = limit

    def mark(self) -> _Place:
        """The place before the next line, from where on the limit counts."""
        self._limit_offset = self._offset + self.limit
        return self._offset, self._lines

    def go_to(self, place: _Place) -> None:
        self._offset, self._lines = place
        self.file.seek(self._offset)
        self.mark()

    def take(self) -> bytes:
        """The next line with its end, empty at the end of the file. A line that is too long is skipped."""
        begin = self._offset
        line = self.file.readline(max(self._limit_offset - begin, 0) + 1)
        if not line:
            return line
        self._offset += len(line)
        self._lines += 1
        if self._offset > self._limit_offset:
            while not line.endswith(b"\n") and (line := self.file.readline(_BUFFER_BYTES)):
                self._offset += len(line)
            raise _TooLong(f"longer than {self.limit} bytes")
        return line.removeprefix(BOM) if begin == 0 else line

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self.take()
        if not line:
            raise StopIteration
        return line.decode()

    def text(self, begin: _Place, end: _Place) -> str:
        """What is written between two places."""
        size = end[0] - begin[0]
        self.file.seek(begin[0])
        data = self.file.read(size if size <= self.limit else min(size, EXCERPT_BYTES))
        self.file.seek(self._offset)
        return data.removesuffix(b"\n").removesuffix(b"\r").decode(errors="backslashreplace")


_END: Final = object()
_NOTHING: Final = object()


class _FileSource(Source[T]):
    """What JSON lines and CSV have in common; they differ in `_next`."""

    def __init__(self, path: AnyPath, on_malformed: str, batch: int, max_line_bytes: int) -> None:
        self._path = _path(path)
        self.rejects = choice("on_malformed", on_malformed, ("fail", "reject")) == "reject"
        self._batch = count("batch", batch)
        self._limit = count("max_line_bytes", max_line_bytes)
        self._lines: _Lines | None = None

    async def open(self) -> None:
        try:
            self._lines = _Lines(_open(self._path, "rb"), self._limit)
            self._begin(self._lines)
        except OSError as error:
            await self.close()
            raise SourceError(f"cannot read {self._path}: {describe_error(error)}") from error
        except SourceError:
            await self.close()
            raise

    def _begin(self, lines: _Lines) -> None:
        """Read what comes before the first element."""

    @abstractmethod
    def _next(self, lines: _Lines, begin: _Place) -> T | object:
        """
        The next element; `_NOTHING` for an empty line at `begin`; `_END` at the end of the file.

        Raises:
            _Malformed: for lines that are no element. The next one begins after them.
        """

    async def read(self) -> SourceBatch[T] | None:
        await asyncio.sleep(0)  # others get their turn, however long the file is
        lines = self._opened()
        values: list[Any] = []
        rejected: list[RejectedLine] = []
        try:
            while len(values) + len(rejected) < self._batch:
                begin = lines.mark()
                try:
                    value = self._next(lines, begin)
                except _Malformed as malformed:
                    if self.rejects:
                        rejected.append(self._rejected(lines, malformed))
                        continue
                    lines.go_to(begin)
                    if values:  # they are delivered first; the next read finds it again
                        break
                    raise self._error(malformed) from malformed.__cause__
                if value is _END:
                    break
                if value is not _NOTHING:
                    values.append(value)
        except OSError as error:
            raise SourceError(f"cannot read {self._path}: {describe_error(error)}") from error
        return SourceBatch(values, None, rejected) if values or rejected else None

    def _rejected(self, lines: _Lines, malformed: _Malformed) -> RejectedLine:
        text = lines.text(malformed.begin, lines.mark())
        return RejectedLine(self._path, malformed.line_number, text, malformed.reason)

    def _error(self, malformed: _Malformed) -> SourceError:
        return SourceError(f"{self._path}, line {malformed.line_number}: {malformed.reason}")

    def position(self) -> dict[str, int] | None:
        if self._lines is None:
            return None
        offset, lines = self._lines.mark()
        return {"offset": offset, "lines": lines}

    async def seek(self, position: dict[str, int]) -> None:
        lines = self._opened()
        offset = position["offset"]
        size = os.fstat(lines.file.fileno()).st_size
        if offset > size:
            raise SourceError(f"cannot go on at byte {offset} of {self._path}: it has only {size}")
        lines.go_to((offset, position["lines"]))

    def _opened(self) -> _Lines:
        if self._lines is None:
            raise SourceError(f"the source of {self._path} is not open")
        return self._lines

    async def close(self) -> None:
        if self._lines is not None:
            self._lines.file.close()
            self._lines = None


class JsonLinesSource(_FileSource[Any]):
    """
    Reads a file with one JSON value per line: UTF-8, any line ends, empty lines skipped.

    Args:
        path: the file.
        on_malformed: "fail" with `SourceError`, after all elements before the line were delivered; or
            "reject": the line goes to the source's `rejected` output as a `RejectedLine`.
        batch: how many values one read brings at most.
        max_line_bytes: a longer line is malformed; it is never held in memory.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        on_malformed: Literal["fail", "reject"] = "fail",
        batch: int = 1000,
        max_line_bytes: int = 16 * 2**20,
    ) -> None:
        super().__init__(path, on_malformed, batch, max_line_bytes)

    def _next(self, lines: _Lines, begin: _Place) -> Any:
        try:
            line = lines.take()
            if line.isspace():
                return _NOTHING
            return orjson.loads(line) if line else _END
        except (orjson.JSONDecodeError, _TooLong) as error:
            raise _Malformed(begin, why_malformed(error)) from error


class CsvSource(_FileSource[dict[str, Any]]):
    """
    Reads a CSV file as dicts of str: UTF-8, any line ends, quoted fields may contain line ends.

    A record that cannot be read, say because a quote is never closed, costs its first line: reading goes on
    with the line after it.

    Args:
        path: the file.
        columns: their names, if the file does not begin with them.
        types: functions that make a value of a field's text, by column. Where one raises, the record is
            malformed.
        delimiter: what stands between two fields; one character.
        on_malformed: "fail" with `SourceError`, after all elements before the record were delivered; or
            "reject": the record goes to the source's `rejected` output as a `RejectedLine`.
        batch: how many values one read brings at most.
        max_line_bytes: a longer record is malformed; it is never held in memory. A single field may have
            `csv.field_size_limit()` characters.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        columns: Sequence[str] | None = None,
        types: Mapping[str, Callable[[str], Any]] | None = None,
        delimiter: str = ",",
        on_malformed: Literal["fail", "reject"] = "fail",
        batch: int = 1000,
        max_line_bytes: int = 2**20,
    ) -> None:
        super().__init__(path, on_malformed, batch, max_line_bytes)
        self._given_columns = None if columns is None else _columns(columns)
        self._types = {
            column: function(f"types[{column!r}]", convert) for column, convert in dict(types or {}).items()
        }
        self._delimiter = _delimiter(delimiter)
        if self._given_columns is not None and (unknown := self._types.keys() - set(self._given_columns)):
            raise refuse("types", f"some of the columns {self._given_columns}", min(unknown))

    def _begin(self, lines: _Lines) -> None:
        self._reader = csv.reader(lines, delimiter=self._delimiter, strict=True)
        if self._given_columns is None:
            try:
                _, self._columns = self._record(lines, lines.mark())
            except _Malformed as malformed:
                raise self._error(malformed) from malformed.__cause__
        else:
            self._columns = list(self._given_columns)
        twice = [column for column, times in Counter(self._columns).items() if times > 1]
        if twice:
            raise SourceError(f"{self._path}: the header names {', '.join(map(repr, twice))} more than once")
        if self._columns and (unknown := self._types.keys() - set(self._columns)):
            raise SourceError(
                f"{self._path}: no column {min(unknown)!r} for types=, there are {self._columns}"
            )

    def _next(self, lines: _Lines, begin: _Place) -> Any:
        begin, fields = self._record(lines, begin)
        if not fields:
            return _END
        if len(fields) != len(self._columns):
            raise _Malformed(begin, f"{len(fields)} fields instead of {len(self._columns)}")
        record: dict[str, Any] = dict(zip(self._columns, fields, strict=True))
        for column, convert in self._types.items():
            try:
                record[column] = convert(record[column])
            except Exception as error:
                raise _Malformed(begin, f"column {column!r}: {describe_error(error)}") from error
        return record

    def _record(self, lines: _Lines, begin: _Place) -> tuple[_Place, list[str]]:
        """Where the next record at or after `begin` begins, and its fields: none at the end of the file."""
        try:
            for fields in self._reader:
                if fields:
                    return begin, fields
                begin = lines.mark()  # it was an empty line
        except (UnicodeDecodeError, csv.Error, _TooLong) as error:
            self._skip_line(lines, begin)
            raise _Malformed(begin, why_malformed(error)) from error
        return begin, []

    @staticmethod
    def _skip_line(lines: _Lines, begin: _Place) -> None:
        lines.go_to(begin)
        try:
            lines.take()
        except _TooLong:
            pass


class _FileSink(TransactionalSink[T]):
    """
    What JSON lines and CSV have in common; they differ in `_head` and `_encode`.

    With checkpoints, a position is a length of the file, and what is behind it is cut off again.
    """

    def __init__(self, path: AnyPath, existing: str) -> None:
        self._path = _path(path)
        self._existing = choice("existing", existing, ("refuse", "append", "overwrite"))
        self._file: BinaryIO | None = None
        self._needs_head = False  # not yet: until the first checkpoint stands, nothing is written
        self._is_new = False

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
            self._file, self._is_new = _open(self._path, mode), True
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
        try:
            if values:
                self._write_head()
            for value in values:
                try:
                    line = self._encode(value)
                except Exception as error:
                    raise SinkError(
                        f"cannot write {safe_repr(value)} to {self._path}: {describe_error(error)}"
                    ) from error
                # one by one: orjson's buffers are large until they are freed, so a list of lines is slow
                file.write(line)
        except OSError as error:
            raise self._error(error) from error

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
    Writes one JSON value per line: whatever orjson encodes, which includes dataclasses, datetimes and UUIDs.

    Args:
        path: the file; its directory must exist.
        existing: what to do with a file that is there already: "refuse", "append" or "overwrite". Not asked
            where a job goes on from a checkpoint: then it goes on with its file.
    """

    def __init__(
        self, path: AnyPath, *, existing: Literal["refuse", "append", "overwrite"] = "refuse"
    ) -> None:
        super().__init__(path, existing)

    def _encode(self, value: Any) -> bytes:
        return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


class CsvSink(_FileSink[Mapping[str, Any]]):
    """
    Writes mappings as CSV, with a header; None becomes an empty field.

    Args:
        path: the file; its directory must exist.
        columns: the keys to write, in order. An element must have all of them; others are left out.
        delimiter: what stands between two fields; one character.
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
        existing: Literal["refuse", "append", "overwrite"] = "refuse",
    ) -> None:
        super().__init__(path, existing)
        self._columns = _columns(columns)
        # writerow gives what write gave: here the line itself
        self._writer = csv.writer(_Encoder(), delimiter=_delimiter(delimiter), lineterminator=_CRLF)

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

    def _encode(self, value: Mapping[str, Any]) -> bytes:
        return self._row([value[column] for column in self._columns])

    def _row(self, fields: Sequence[Any]) -> bytes:
        line: bytes = self._writer.writerow(fields)
        return line


class _Encoder:
    """What `csv.writer` writes to."""

    def write(self, line: str) -> bytes:
        return (line.removesuffix(_CRLF) + "\n").encode()


def _open(path: str, mode: str) -> BinaryIO:
    return cast(BinaryIO, open(path, mode, buffering=_BUFFER_BYTES))


def _is_empty(path: str) -> bool:
    """Whether there is a file, with nothing in it."""
    try:
        return os.path.getsize(path) == 0
    except OSError:
        return False


def why_malformed(error: Exception) -> str:
    """What a `RejectedLine` says of a line at which one of these was raised."""
    if isinstance(error, orjson.JSONDecodeError):
        return f"not JSON: {error.msg}, at character {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: {error.reason}"
    return f"not CSV: {error}" if isinstance(error, csv.Error) else str(error)


def _path(path: object) -> str:
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise refuse("path", "the path of a file", path)
    return str(os.fspath(path))


def _columns(columns: Sequence[str]) -> list[str]:
    names = [] if isinstance(columns, str) else list(columns)
    if not names or len(set(names)) != len(names) or not all(isinstance(name, str) for name in names):
        raise refuse("columns", "a list of different names", columns)
    return names


def _delimiter(delimiter: Any) -> str:
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n':
        raise refuse("delimiter", "one character, neither a quote nor a line end", delimiter)
    return delimiter
