"""
Lines of a file, one after the other, each with its place: what the file sources stand on.

Memory is bounded by one line, whatever the size of the file, and a line by a limit.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BufferedReader
from typing import Any, BinaryIO, Final, TypeAlias, cast

import orjson

from asyncstream.validation import refuse

__all__ = (
    "BOM",
    "BUFFER_BYTES",
    "EXCERPT_BYTES",
    "AnyPath",
    "LineGrew",
    "Lines",
    "Malformed",
    "Place",
    "RejectedLine",
    "TooLong",
    "buffered",
    "column_names",
    "delimiter_of",
    "open_file",
    "why_malformed",
)

AnyPath = str | os.PathLike[str]

BOM: Final = b"\xef\xbb\xbf"
_LINE_FEED: Final = 10
BUFFER_BYTES: Final = 256 * 1024  # enough that the system calls do not show in a profile
EXCERPT_BYTES: Final = 1000  # what is kept of a line that was too long to be kept
_PASSED_BYTES: Final = 2**20  # of such a line, in one go


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


Place: TypeAlias = tuple[int, int]
"""A place between two lines: how many bytes and how many lines are before it."""


class Malformed(Exception):
    """Carries what is wrong with the lines between two places."""

    def __init__(self, begin: Place, reason: str) -> None:
        super().__init__(reason)
        self.begin = begin
        self.line_number = begin[1] + 1
        self.reason = reason


class TooLong(Exception):
    """A line, or a CSV record of several lines, is longer than the limit."""


class LineGrew(Exception):
    """A line that was taken as a whole, for the file ended there, goes on."""


class Lines:
    """
    The lines of a file one by one: as bytes by `take`, or as text by iterating, as `csv.reader` does.

    Args:
        file: at its beginning.
        limit: the most bytes between a `mark` and the end of the line that is taken.
        complete: what is after the last line end is a line too; otherwise it is not there yet.

    Attributes:
        at_end: whether the end of the file was met since the last `mark`.
    """

    def __init__(self, file: BufferedReader, limit: int, *, complete: bool = True) -> None:
        self.file = file
        self.limit = limit
        self.complete = complete
        self.at_end = False
        self._is_open_end = False  # the last line taken had no end
        self._offset = 0
        self._lines = 0
        self._limit_offset = limit
        self._passed = 0  # of a line that is too long, the first so many bytes
        self._beginning = b""  # of the last such line

    @property
    def is_amid(self) -> bool:
        """Whether `take` has met a line that is too long, which is for `pass_over` now."""
        return self._passed > 0

    def mark(self) -> Place:
        """The place before the next line, from where on the limit counts."""
        self._limit_offset = self._offset + self.limit
        self.at_end = False
        return self._offset, self._lines

    @property
    def offset(self) -> int:
        """How many bytes are before the next line."""
        return self._offset

    def go_to(self, place: Place) -> None:
        self._offset, self._lines = place
        self._passed = 0
        is_behind_mark = False
        if self._offset == len(BOM):
            self.file.seek(0)
            is_behind_mark = self.file.read(len(BOM)) == BOM
        self.file.seek(max(self._offset - 1, 0))
        self._is_open_end = self._offset > 0 and self.file.read(1) != b"\n" and not is_behind_mark
        self.mark()

    def take(self) -> bytes:
        """
        The next line with its end, empty at the end of the file.

        Raises:
            TooLong: for a line that is; it is not taken.
            LineGrew: if the line before was none.
        """
        if self._is_open_end:
            self._end_line()
        begin = self._offset
        line = self.file.readline(max(self._limit_offset - begin, EXCERPT_BYTES) + 1)
        end = begin + len(line)
        if end > self._limit_offset:
            self._passed, self._beginning = len(line.removesuffix(b"\n")), line[:EXCERPT_BYTES]
            raise TooLong(f"longer than {self.limit} bytes")
        if not line or line[-1] != _LINE_FEED:  # the end of the file
            self.at_end = True
            if not self.complete:
                self.file.seek(begin)
                return b""
            self._is_open_end = self._is_open_end or (end > begin and line != BOM)
        if end == begin:
            return b""
        self._offset = end
        self._lines += 1
        return line.removeprefix(BOM) if begin == 0 else line

    def pass_over(self) -> bool:
        """
        Pass over a part of a line that is too long; False if it has no end yet, and is no line so far.

        Raises:
            TooLong: when the line is taken, with its last part.
        """
        self.file.seek(self._offset + self._passed)
        most = self._passed + _PASSED_BYTES
        while self._passed < most:
            part = self.file.readline(BUFFER_BYTES)
            self._passed += len(part)
            if not part or part[-1] == _LINE_FEED:
                break
        else:
            return True
        if not part:
            self.at_end = True
            if not self.complete:
                self.go_to((self._offset, self._lines))
                return False
        self._is_open_end = not part
        self._offset, self._lines, self._passed = self._offset + self._passed, self._lines + 1, 0
        raise TooLong(f"longer than {self.limit} bytes")

    def _end_line(self) -> None:
        """Take the line end, if by now there is one, of the last line, which had none."""
        found = self.file.read(2)
        length = 1 if found.startswith(b"\n") else 2 if found == b"\r\n" else 0
        self.file.seek(self._offset + length)
        if length:
            self._offset += length
            self._limit_offset += length
            self._is_open_end = False
        elif found not in (b"", b"\r"):
            raise LineGrew(f"line {self._lines}")

    def ahead(self) -> bytes:
        """
        Some lines that are in memory already, each with its end, and together not over the limit; `skip`
        takes them. Nothing where `take` must look closer at the next one.
        """
        if self._offset == 0 or self._is_open_end or self.is_amid:
            return b""
        found = self.file.peek()
        return found[: found.rfind(b"\n", 0, self.limit) + 1]

    def skip(self, size: int, lines: int) -> None:
        """Take so many lines of `ahead`, which have so many bytes."""
        self.file.seek(size, os.SEEK_CUR)
        self._offset += size
        self._lines += lines
        self.mark()

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> str:
        line = self.take()
        if not line:
            raise StopIteration
        return line.decode()

    def text(self, begin: Place, end: Place) -> str:
        """What is written between two places, if that is one line, or not over the limit."""
        size = end[0] - begin[0]
        if size > self.limit:
            data = self._beginning
        else:
            self.file.seek(begin[0])
            data = self.file.read(size)
            self.file.seek(self._offset)
        return data.removesuffix(b"\n").removesuffix(b"\r").decode(errors="backslashreplace")


def buffered(file: Any) -> BufferedReader:
    """A file as one that knows what is in memory of it."""
    return file if isinstance(file, BufferedReader) else BufferedReader(file, BUFFER_BYTES)


def open_file(path: str, mode: str) -> BinaryIO:
    return cast(BinaryIO, open(path, mode, buffering=BUFFER_BYTES))


def why_malformed(error: Exception) -> str:
    """What a `RejectedLine` says of a line at which one of these was raised."""
    if isinstance(error, orjson.JSONDecodeError):
        whole = "; a value must be whole on its line" if "end of data" in error.msg else ""
        return f"not JSON: {error.msg}, at character {error.colno}{whole}"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: {error.reason}"
    if isinstance(error, csv.Error):
        longer = "; csv.field_size_limit(n) allows longer ones" if "field limit" in str(error) else ""
        return f"not CSV: {error}{longer}"
    return str(error)


def column_names(columns: Sequence[str], argument: str = "columns") -> list[str]:
    has_order = isinstance(columns, Iterable) and not isinstance(columns, str | set | frozenset)
    names = list(columns) if has_order else []
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise refuse(argument, "a list of different names", columns)
    return names


def delimiter_of(delimiter: Any) -> str:
    is_one = isinstance(delimiter, str) and len(delimiter) == 1 and delimiter not in '"\r\n'
    if not is_one or "\ud800" <= delimiter <= "\udfff":  # half of one, which is not in UTF-8
        raise refuse("delimiter", "one character, neither a quote nor a line end", delimiter)
    return str(delimiter)
