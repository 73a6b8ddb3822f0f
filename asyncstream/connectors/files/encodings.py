"""
Elements as lines: of JSON; and of CSV, under a header of columns that are given, or found with the first
element.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import orjson

from asyncstream.connectors.lines import column_names, delimiter_of
from asyncstream.connectors.rows import (
    Default,
    JsonWriter,
    MoreColumns,
    RowWriter,
    check_names,
    record_of,
    without_fields,
)

__all__ = ("CsvLines", "Encoding", "JsonLines")

_CRLF: Final = "\r\n"  # only a line end of the dialect is quoted inside a field, so CR must be one


class Encoding(Protocol):
    """Makes lines of elements."""

    def head(self) -> bytes:
        """What comes before the first element of an empty file; nothing while that is not known."""

    def line(self, value: Any) -> bytes:
        """The line of an element, with its end; may raise anything."""

    def lines(self, values: Sequence[Any]) -> bytes | None:
        """The lines of elements, if that is quicker than one by one; None: ask for that of each."""


class JsonLines:
    """One JSON value per line."""

    def __init__(self, default: Default | None) -> None:
        self.line = JsonWriter(default, orjson.OPT_APPEND_NEWLINE).write

    def head(self) -> bytes:
        return b""

    def lines(self, values: Sequence[Any]) -> None:
        return None


class CsvLines:
    """Makes lines of elements, which must have all columns that are given; otherwise columns are found."""

    def __init__(self, columns: Sequence[str] | None, delimiter: str, default: Default | None) -> None:
        self._delimiter = delimiter_of(delimiter)
        self._default = default
        self._given = None if columns is None else column_names(columns)
        # writerow gives what write gave: here the line itself
        self._writer = csv.writer(_Encoder(), delimiter=self._delimiter, lineterminator=_CRLF)
        self._together = _Together()
        self._writer_of_many = csv.writer(self._together, delimiter=self._delimiter, lineterminator="\n")
        self.forget()

    def forget(self) -> None:
        """Columns that were found are those of another file."""
        self.columns = self._given or []
        self._found: frozenset[str] | None = None  # the columns, if they were not given
        self._rows = RowWriter(self.columns, self._default)

    @property
    def is_given(self) -> bool:
        return self._given is not None

    @property
    def is_known(self) -> bool:
        return self._given is not None or self._found is not None

    def find(self, value: Any, header: Sequence[str] = ()) -> None:
        """
        Take the columns of a header, or else of an element; raises `TypeError` if there is neither, or what
        `line` raises of an element, whose columns are not taken then.
        """
        columns = list(header)
        record = None if columns else record_of(value)
        if not columns:
            if not record:
                raise without_fields(value)
            check_names(record)
            columns = list(record)
        rows = RowWriter(columns, self._default)
        if record is not None:
            self._line(columns)
            self._line(rows.row(value))
        self.columns, self._found, self._rows = columns, frozenset(columns), rows

    def read_header(self, file: Iterable[bytes]) -> list[str]:
        """The header of a file, behind empty lines; nothing if there is none."""
        lines = (line.decode("utf-8-sig") for line in file)
        return next(filter(None, csv.reader(lines, delimiter=self._delimiter)), [])

    def head(self) -> bytes:
        """The header; nothing while the columns are not known."""
        return self._line(self.columns) if self.columns else b""

    def line(self, value: Any) -> bytes:
        """The line of an element, with its end; may raise anything. Columns that are not known are found."""
        if not self.is_known:
            self.find(value)
        if self._found is not None and (record := record_of(value)) is not None:
            if not record.keys() <= self._found:
                raise MoreColumns(record.keys() - self._found, "columns")
            value = {column: record.get(column) for column in self.columns}
        return self._line(self._rows.row(value))

    def lines(self, values: Sequence[Any]) -> bytes | None:
        """The lines of elements, if they are quickly made; None: ask for those of one after the other."""
        if not self.is_known:
            return None
        rows = self._rows.simple_rows(values)
        if rows is None or (self._found is not None and set(map(len, values)) != {len(self.columns)}):
            return None
        try:
            self._writer_of_many.writerows(rows)
            text = "".join(self._together.lines)
            # the one that writes a line at a time quotes it
            return None if "\r" in text else text.encode()
        except (ValueError, csv.Error):  # one of them cannot be written
            return None
        finally:
            self._together.lines.clear()

    def _line(self, fields: Sequence[Any]) -> bytes:
        line: bytes = self._writer.writerow(fields)
        return line


class _Together:
    """What `csv.writer` writes many lines to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.write = self.lines.append


class _Encoder:
    """What `csv.writer` writes to."""

    def write(self, line: str) -> bytes:
        return (line.removesuffix(_CRLF) + "\n").encode()
