"""
CSV files as sources.

Records are read in one of two ways, with one result. Well-formed ones are read together, of all the lines
that are in memory: nearly all of the work is that of the `csv` module. What it stumbles over, and a record
whose end is not in memory yet, is read line by line: only so is it known where a malformed one begins and
ends.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from itertools import islice, repeat, takewhile
from typing import Any, Literal, TypeVar, Unpack, overload

from asyncstream.connectors.files.compression import Compression
from asyncstream.connectors.files.line_sources import EMPTY_LINES, END, NOTHING, LineSource, Options
from asyncstream.connectors.lines import (
    AnyPath,
    Lines,
    Malformed,
    Place,
    TooLong,
    column_names,
    delimiter_of,
    why_malformed,
)
from asyncstream.connectors.models import Unfit, reader
from asyncstream.errors import SourceError, describe_error
from asyncstream.validation import function, refuse

__all__ = ("CsvSource",)

T = TypeVar("T")
U = TypeVar("U")


class _CsvOptions(Options, total=False):
    columns: Sequence[str] | None
    types: Mapping[str, Callable[[str], Any]] | None
    delimiter: str


class CsvSource(LineSource[T]):
    """
    Reads a CSV file as dicts of str: UTF-8, lines that end in \\n or \\r\\n, also within quoted fields.

    A record that cannot be read, say because a quote is never closed, costs its first line: reading goes on
    with the line after it. In a file that is not `complete`, a quote that is never closed looks like one
    whose end is still to be written.

    Args:
        path: the file; also one of an object store, such as "s3://bucket/name", by the extra [fsspec].
        model: a dataclass, NamedTuple, TypedDict or pydantic model of which each record is to become one; see
            `connectors.models`. A record that is none is malformed.
        columns: their names, if the file does not begin with them. None: they are in its first line that is
            not empty, of the first 10,000.
        types: functions that make a value of a field's text, by column. Where one raises, the record is
            malformed.
        delimiter: what stands between two fields; one character.
        complete, if_changed, batch, compression: as for `JsonLinesSource`.
        on_malformed: "fail" with `SourceError`, after all elements before the record were delivered; or
            "reject": the record goes to the source's `rejected` output as a `RejectedLine`.
        max_line_bytes: a longer record is malformed; it is never held in memory. A single field may have
            `csv.field_size_limit()` characters, 131,072 unless you raise it.
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
        if types is not None and not isinstance(types, Mapping):
            raise refuse("types", "functions by the names of columns", types)
        self._types = {
            column: function(f"types[{column!r}]", convert, "text")
            for column, convert in (types or {}).items()
        }
        self._delimiter = delimiter_of(delimiter)
        if self._given_columns is not None and (unknown := self._types.keys() - set(self._given_columns)):
            raise refuse("types", f"some of the columns {self._given_columns}", min(unknown))

    def _begin(self, lines: Lines) -> None:
        self._reader = csv.reader(lines, delimiter=self._delimiter, strict=True)
        if self._given_columns is None:
            try:
                self._columns = self._first_record(lines)
            except Malformed as malformed:
                raise SourceError(
                    f"{self._path}, line {malformed.line_number}: {malformed.reason}; there is no header to "
                    "be read: write the file as UTF-8 with lines that end in \\n, or name columns="
                ) from malformed.__cause__
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
            return END
        fields = self._record(lines, begin)
        if fields is None:
            return END
        return self._element(fields, begin) if fields else NOTHING

    def _element(self, fields: list[str], begin: Place = (0, 0)) -> Any:
        """What the fields of a record become that begins there, if they are well formed."""
        if len(fields) != len(self._columns):
            raise Malformed(begin, f"{len(fields)} fields instead of {len(self._columns)}")
        record: dict[str, Any] = dict(zip(self._columns, fields, strict=False))  # they are as many
        for column, convert in self._types.items():
            try:
                record[column] = convert(record[column])
            except Exception as error:
                raise Malformed(begin, f"column {column!r}: {describe_error(error)}") from error
        try:
            return record if self._model is None else self._model(record)
        except Unfit as error:
            raise Malformed(begin, str(error)) from error

    def _ahead(self, lines: Lines, most: int) -> list[Any]:
        found = lines.ahead()
        if not found or not self._columns:
            return []
        records = _Records(found, self._delimiter)
        rows: list[list[str]] = []
        is_cut = False
        try:
            rows.extend(islice(records, most))
        except (UnicodeDecodeError, csv.Error):  # which leaves the rows before it
            is_cut = True
        values = self._elements(rows)
        if is_cut or len(values) < len(rows):
            records = _Records(found, self._delimiter)
            records.pass_by(len(values))
        lines.skip(records.bytes, records.lines)
        return values

    def _elements(self, rows: list[list[str]]) -> list[Any]:
        """What the fields of records become, up to the first that is malformed."""
        if not self._types and self._model is None:
            width = len(self._columns)
            if set(map(len, rows)) != {width}:
                rows = list(takewhile(lambda fields: len(fields) == width, rows))
            return list(map(dict, map(zip, repeat(self._columns), rows)))
        values: list[Any] = []
        with suppress(Malformed):
            values.extend(map(self._element, rows))
        return values

    def _first_record(self, lines: Lines) -> list[str]:
        """The fields of the first record; none if there is none."""
        for _ in range(EMPTY_LINES):
            fields = self._record(lines, lines.mark())
            if fields is None or fields:
                return fields or []
        raise SourceError(f"{self._path}: no header, but {EMPTY_LINES} empty lines; name columns=")

    def _record(self, lines: Lines, begin: Place) -> list[str] | None:
        """The fields of the record that begins here, none of an empty line; None at the end of the file."""
        try:
            return next(self._reader, None)
        except (UnicodeDecodeError, csv.Error, TooLong) as error:
            if lines.at_end and not lines.complete:  # inside quotes: its end is still to be written
                lines.go_to(begin)
                return None
            if lines.offset > begin[0] or not lines.is_amid:  # else it is the first line that is too long
                lines.go_to(begin)
                with suppress(TooLong):
                    lines.take()
            raise Malformed(begin, why_malformed(error)) from error


class _Records:
    """The records of some lines, and what has been read of these."""

    def __init__(self, lines: bytes, delimiter: str) -> None:
        self._source = BytesIO(lines)
        self._reader = csv.reader(map(bytes.decode, self._source), delimiter=delimiter, strict=True)

    def __iter__(self) -> Iterator[list[str]]:
        return filter(None, self._reader)  # without the empty lines

    def pass_by(self, records: int) -> None:
        for _ in islice(self, records):
            pass

    @property
    def bytes(self) -> int:
        return self._source.tell()

    @property
    def lines(self) -> int:
        return self._reader.line_num
