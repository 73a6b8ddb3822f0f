"""
Files of lines as sources: JSON lines and CSV.

Both read one line after the other from a buffered file, so memory is bounded by one batch and one
line, whatever the size of the file. They know the byte at which the next line begins: that is their
position, and a replay goes on exactly there. With it goes a fingerprint of what is before it (`identity`), so
that a file that was rotated, replaced or cut meanwhile is not read on as if it were the same.

What is after the last line end is a record if the file is `complete`. In a file that is still being written
it may be half a record, with half a number, half a line end or half a character, and only the user can know.
If a line was read as a whole and goes on later, that is an error: its beginning was delivered.

A compressed file (`compression`) is read in the same way: a place in it is one in what it holds.
"""

from __future__ import annotations

import csv
import io
import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, Final, Literal, TypedDict, TypeVar, Unpack, cast, overload

import orjson

from asyncstream.connectors.base import SourceBatch
from asyncstream.connectors.files.compression import Compression, Decompressing, compression_of
from asyncstream.connectors.files.identity import difference, fingerprint, has_shrunk
from asyncstream.connectors.files.reading import FileSource
from asyncstream.connectors.files.storage import size_of
from asyncstream.connectors.lines import (
    BUFFER_BYTES,
    AnyPath,
    LineGrew,
    Lines,
    Malformed,
    Place,
    RejectedLine,
    TooLong,
    column_names,
    delimiter_of,
    why_malformed,
)
from asyncstream.connectors.models import Unfit, reader
from asyncstream.errors import SourceError, describe_error
from asyncstream.validation import choice, count, function, refuse

__all__ = ("CsvSource", "JsonLinesSource")

log = logging.getLogger("asyncstream.sources")

T = TypeVar("T")
U = TypeVar("U")

_END: Final = object()
_NOTHING: Final = object()


class _Options(TypedDict, total=False):
    """What all sources of files take."""

    complete: bool
    if_changed: Literal["fail", "start_over"]
    on_malformed: Literal["fail", "reject"]
    batch: int
    max_line_bytes: int
    compression: Compression


class _CsvOptions(_Options, total=False):
    columns: Sequence[str] | None
    types: Mapping[str, Callable[[str], Any]] | None
    delimiter: str


class _LineSource(FileSource[T]):
    """What JSON lines and CSV have in common; they differ in `_next`."""

    def __init__(
        self,
        path: AnyPath,
        complete: bool,
        if_changed: str,
        on_malformed: str,
        batch: int,
        max_line_bytes: int,
        compression: Compression,
    ) -> None:
        super().__init__(path)
        self._compression = compression_of(compression, self._path)
        self._complete = choice("complete", complete, (True, False))
        self._starts_over = choice("if_changed", if_changed, ("fail", "start_over")) == "start_over"
        self.rejects = choice("on_malformed", on_malformed, ("fail", "reject")) == "reject"
        self._batch = count("batch", batch)
        self._limit = count("max_line_bytes", max_line_bytes)
        self._file: BinaryIO | None = None
        self._packed: Decompressing | None = None  # what is between the file and its lines
        self._lines: Lines | None = None
        self._first: Place = (0, 0)  # behind what comes before the first element

    def _open(self) -> None:
        self._file = file = self._storage.read(self._path)
        if self._compression is not None:
            self._packed = Decompressing(file, self._compression, complete=self._complete)
            file = cast(BinaryIO, io.BufferedReader(self._packed, BUFFER_BYTES))
        self._lines = Lines(file, self._limit, complete=self._complete)
        self._begin(self._lines)
        self._first = self._lines.mark()

    def _begin(self, lines: Lines) -> None:
        """Read what comes before the first element."""

    @abstractmethod
    def _next(self, lines: Lines, begin: Place) -> T | object:
        """
        The next element; `_NOTHING` for an empty line at `begin`; `_END` at the end of the file.

        Raises:
            Malformed: for lines that are no element. The next one begins after them.
        """

    def _read(self) -> SourceBatch[T] | None:
        lines = self._opened()
        values: list[Any] = []
        rejected: list[RejectedLine] = []
        try:
            while len(values) + len(rejected) < self._batch:
                begin = lines.mark()
                try:
                    value = self._next(lines, begin)
                except Malformed as malformed:
                    if self.rejects:
                        rejected.append(self._rejected(lines, malformed))
                        continue
                    lines.go_to(begin)
                    if values:  # they are delivered first; the next read finds it again
                        break
                    raise self._error(malformed) from malformed.__cause__
                if value is _END:
                    self._check_size(lines)
                    break
                if value is not _NOTHING:
                    values.append(value)
        except LineGrew as error:
            raise SourceError(
                f"{self._path}, {error}: it was read as a whole line, for the file ended there, and now goes "
                "on; pass complete=False for a file that is still being written"
            ) from error
        return SourceBatch(values, None, rejected) if values or rejected else None

    def _rejected(self, lines: Lines, malformed: Malformed) -> RejectedLine:
        text = lines.text(malformed.begin, lines.mark())
        return RejectedLine(self._path, malformed.line_number, text, malformed.reason)

    def _error(self, malformed: Malformed) -> SourceError:
        return SourceError(f"{self._path}, line {malformed.line_number}: {malformed.reason}")

    def _place(self) -> dict[str, Any] | None:
        if self._lines is None or self._file is None:
            return None
        offset, count = self._lines.mark()
        try:
            self._check_size(self._lines)
            place = {"offset": offset, "lines": count}
            if self._packed is not None:
                place["packed"] = self._in_file(offset)
            return place | fingerprint(self._file, self._in_file(offset))
        except OSError as error:
            raise self._unreadable(self._path, error) from error

    def _in_file(self, offset: int) -> int:
        """How many bytes of the file itself are behind, when so many of what it holds are."""
        return offset if self._packed is None else self._packed.packed_before(offset)

    def progress(self) -> float | None:
        if self._lines is None or self._file is None or self._storage.is_remote:
            return None
        size = size_of(self._file)
        return min(1.0, self._in_file(self._lines.offset) / size) if size else 1.0

    def _check_size(self, lines: Lines) -> None:
        """The file that is open may have been cut; then there is no going on in it."""
        assert self._file is not None
        offset = self._in_file(lines.mark()[0])
        size = size_of(self._file)
        if size < offset:
            raise SourceError(f"{self._path} was cut to {size} bytes, when {offset} had been read")

    def _check(self, position: dict[str, Any]) -> None:
        if self._starts_over:
            return
        self._check_compression(position)
        with self._storage.read(self._path) as file:
            found = difference(file, position.get("packed", position["offset"]), position)
        if found is not None:
            raise self._changed(position["offset"], found)

    def _check_compression(self, position: dict[str, Any]) -> None:
        if ("packed" in position) != (self._compression is not None):
            raise SourceError(
                f"cannot go on in {self._path}: compression= is another one than it was at the checkpoint"
            )

    def _changed(self, offset: int, found: str) -> SourceError:
        return SourceError(
            f"cannot go on at byte {offset} of {self._path}: {found}. Put the file back that was read, or "
            "pass if_changed='start_over' to read this one from its beginning"
        )

    def _go_on(self, position: dict[str, Any]) -> None:
        lines = self._opened()
        assert self._file is not None
        self._check_compression(position)
        offset = position["offset"]
        found = difference(self._file, position.get("packed", offset), position)
        shrunk = found is None and has_shrunk(self._file, position)
        if found is None and offset > self._first[0]:
            lines.go_to((offset, position["lines"]))
        if found is not None:
            if not self._starts_over:
                raise self._changed(offset, found)
            self.started_over = True
            log.warning("%s is read from its beginning, not from byte %d: %s", self._path, offset, found)
        elif "head" not in position:
            log.warning("%s: the position is of an earlier version; only the size was checked", self._path)
        elif shrunk:
            log.warning("%s is shorter than it was: something behind byte %d is gone", self._path, offset)

    def _opened(self) -> Lines:
        if self._lines is None:
            raise SourceError(f"the source of {self._path} is not open")
        return self._lines

    def _close(self) -> None:
        file, self._file, self._lines, self._packed = self._file, None, None, None
        if file is not None:
            file.close()


class JsonLinesSource(_LineSource[T]):
    """
    Reads a file with one JSON value per line: UTF-8, any line ends, empty lines skipped.

    Args:
        path: the file; also one of an object store, such as "s3://bucket/name", by the extra [fsspec].
        model: a dataclass, NamedTuple, TypedDict or pydantic model of which each line is to become one; see
            `connectors.models`. A line that is none is malformed.
        complete: what is after the last line end is a record too. False: the file is still being written, and
            what has no line end yet is no record yet; the source ends before it, and a job that goes on from
            there reads it once it is whole.
        if_changed: where a job goes on from a checkpoint, and the file is no longer the one that was read:
            "fail" with `SourceError`, or "start_over" from its beginning.
        on_malformed: "fail" with `SourceError`, after all elements before the line were delivered; or
            "reject": the line goes to the source's `rejected` output as a `RejectedLine`.
        batch: how many values one read brings at most.
        max_line_bytes: a longer line is malformed; it is never held in memory.
        compression: "gzip", "zstd" or None; "infer": by the ending `.gz` or `.zst` of its name.
    """

    @overload
    def __init__(self: JsonLinesSource[Any], path: AnyPath, **options: Unpack[_Options]) -> None: ...
    @overload
    def __init__(
        self: JsonLinesSource[U], path: AnyPath, *, model: type[U], **options: Unpack[_Options]
    ) -> None: ...
    def __init__(
        self,
        path: AnyPath,
        *,
        model: Any = None,
        complete: bool = True,
        if_changed: Literal["fail", "start_over"] = "fail",
        on_malformed: Literal["fail", "reject"] = "fail",
        batch: int = 1000,
        max_line_bytes: int = 16 * 2**20,
        compression: Compression = "infer",
    ) -> None:
        super().__init__(path, complete, if_changed, on_malformed, batch, max_line_bytes, compression)
        self._model = None if model is None else reader(model)

    def _next(self, lines: Lines, begin: Place) -> Any:
        try:
            line = lines.take()
            if line.isspace():
                return _NOTHING
            if not line:
                return _END
            value = orjson.loads(line)
            return value if self._model is None else self._model(value)
        except (orjson.JSONDecodeError, TooLong, Unfit) as error:
            raise Malformed(begin, why_malformed(error)) from error


class CsvSource(_LineSource[T]):
    """
    Reads a CSV file as dicts of str: UTF-8, any line ends, quoted fields may contain line ends.

    A record that cannot be read, say because a quote is never closed, costs its first line: reading goes on
    with the line after it. In a file that is not `complete`, a quote that is never closed looks like one
    whose end is still to be written.

    Args:
        path: the file; also one of an object store, such as "s3://bucket/name", by the extra [fsspec].
        model: a dataclass, NamedTuple, TypedDict or pydantic model of which each record is to become one; see
            `connectors.models`. A record that is none is malformed.
        columns: their names, if the file does not begin with them.
        types: functions that make a value of a field's text, by column. Where one raises, the record is
            malformed.
        delimiter: what stands between two fields; one character.
        complete: what is after the last line end is a record too. False: the file is still being written, and
            what has no line end yet is no record yet; the source ends before it, and a job that goes on from
            there reads it once it is whole.
        if_changed: where a job goes on from a checkpoint, and the file is no longer the one that was read:
            "fail" with `SourceError`, or "start_over" from its beginning.
        on_malformed: "fail" with `SourceError`, after all elements before the record were delivered; or
            "reject": the record goes to the source's `rejected` output as a `RejectedLine`.
        batch: how many values one read brings at most.
        max_line_bytes: a longer record is malformed; it is never held in memory. A single field may have
            `csv.field_size_limit()` characters.
        compression: "gzip", "zstd" or None; "infer": by the ending `.gz` or `.zst` of its name.
    """

    @overload
    def __init__(self: CsvSource[dict[str, Any]], path: AnyPath, **options: Unpack[_CsvOptions]) -> None: ...
    @overload
    def __init__(
        self: CsvSource[U], path: AnyPath, *, model: type[U], **options: Unpack[_CsvOptions]
    ) -> None: ...
    def __init__(
        self,
        path: AnyPath,
        *,
        model: Any = None,
        columns: Sequence[str] | None = None,
        types: Mapping[str, Callable[[str], Any]] | None = None,
        delimiter: str = ",",
        complete: bool = True,
        if_changed: Literal["fail", "start_over"] = "fail",
        on_malformed: Literal["fail", "reject"] = "fail",
        batch: int = 1000,
        max_line_bytes: int = 2**20,
        compression: Compression = "infer",
    ) -> None:
        super().__init__(path, complete, if_changed, on_malformed, batch, max_line_bytes, compression)
        self._model = None if model is None else reader(model, is_text=True)
        self._given_columns = None if columns is None else column_names(columns)
        self._types = {
            column: function(f"types[{column!r}]", convert) for column, convert in dict(types or {}).items()
        }
        self._delimiter = delimiter_of(delimiter)
        if self._given_columns is not None and (unknown := self._types.keys() - set(self._given_columns)):
            raise refuse("types", f"some of the columns {self._given_columns}", min(unknown))

    def _begin(self, lines: Lines) -> None:
        self._reader = csv.reader(lines, delimiter=self._delimiter, strict=True)
        if self._given_columns is None:
            try:
                _, self._columns = self._record(lines, lines.mark())
            except Malformed as malformed:
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

    def _next(self, lines: Lines, begin: Place) -> Any:
        if not self._columns:  # there was no header, and who knows what has been written since
            return _END
        begin, fields = self._record(lines, begin)
        if not fields:
            return _END
        if len(fields) != len(self._columns):
            raise Malformed(begin, f"{len(fields)} fields instead of {len(self._columns)}")
        record: dict[str, Any] = dict(zip(self._columns, fields, strict=True))
        for column, convert in self._types.items():
            try:
                record[column] = convert(record[column])
            except Exception as error:
                raise Malformed(begin, f"column {column!r}: {describe_error(error)}") from error
        try:
            return record if self._model is None else self._model(record)
        except Unfit as error:
            raise Malformed(begin, str(error)) from error

    def _record(self, lines: Lines, begin: Place) -> tuple[Place, list[str]]:
        """Where the next record at or after `begin` begins, and its fields: none at the end of the file."""
        try:
            for fields in self._reader:
                if fields:
                    return begin, fields
                begin = lines.mark()  # it was an empty line
        except (UnicodeDecodeError, csv.Error, TooLong) as error:
            if lines.at_end and not lines.complete:  # inside quotes: its end is still to be written
                lines.go_to(begin)
                return begin, []
            self._skip_line(lines, begin)
            raise Malformed(begin, why_malformed(error)) from error
        return begin, []

    @staticmethod
    def _skip_line(lines: Lines, begin: Place) -> None:
        lines.go_to(begin)
        try:
            lines.take()
        except TooLong:
            pass
