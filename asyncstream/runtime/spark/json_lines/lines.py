"""
Whole lines of a file, some at a time, from any place between two of them.

A **place** says how many bytes are before it and what they add up to. That is what an offset of the stream is
made of, so that bytes which were planned for a micro-batch, and are other bytes when it is read or run again,
are found out. Of a compressed file, places count the bytes that come out of it.

Whatever is still being written ends in the middle of a line. Such a rest is left alone until it has got its
line end, or is a whole JSON object already: a part of one never parses as an object.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

import orjson

from asyncstream.connectors.lines import BOM, EXCERPT_BYTES
from asyncstream.errors import SourceError, describe_error

__all__ = ("Chunk", "LineReader", "Place", "Span", "count_lines", "is_compressed")

_BUFFER_BYTES: Final = 2**20


class Place(NamedTuple):
    """
    A place between two lines of a file.

    Attributes:
        offset: how many bytes are before it.
        checksum: their CRC-32.
        size: of the compressed file on disk that ends here; 0 of any other place.
    """

    offset: int = 0
    checksum: int = 0
    size: int = 0


class Span(NamedTuple):
    """
    Lines of a file.

    Attributes:
        path: of the file.
        begin: where the first of them begins.
        end: how many bytes are before the end of the last one; None: the end of the file.
        checksum: of all bytes before the end; None: not known.
    """

    path: str
    begin: Place
    end: int | None
    checksum: int | None

    def check(self, place: Place) -> None:
        """
        Compare where the lines should end with where they did; raises `SourceError` if they are not what they
        were when they were planned.
        """
        if self.checksum is not None and place[:2] != (self.end, self.checksum):
            raise SourceError(
                f"{self.path}: bytes {self.begin.offset} to {self.end} have changed since the micro-batch "
                "was planned; files may grow or be added, not change"
            )


class Chunk(NamedTuple):
    """
    Whole lines, one after the other.

    Attributes:
        data: their bytes; of a line that is too long, the beginning.
        begin: the offset of the first of them.
        end: the offset behind the last of them.
        too_long: it is one line, which is longer than the limit.
    """

    data: bytes
    begin: int
    end: int
    too_long: bool = False


class LineReader:
    """
    Reads a file from a place on; `place` is how far it has come.

    An uncompressed file is open only while it is read: there may be thousands that a stream goes back and
    forth between.

    Args:
        stop: the offset at which to stop; None: at the end of the file.
        max_line_bytes: a longer line is not held in memory.
        growing: the file may be in the middle of being written; the rest of a line at the end is left alone.
    """

    def __init__(
        self, path: str, place: Place, *, stop: int | None, max_line_bytes: int, growing: bool = False
    ) -> None:
        self.path = path
        self.place = place
        self.stop = sys.maxsize if stop is None else stop
        self._limit = max_line_bytes
        self._growing = growing
        self._unzipped: BinaryIO | None = None

    @classmethod
    def of(cls, span: Span, max_line_bytes: int) -> LineReader:
        return cls(span.path, span.begin, stop=span.end, max_line_bytes=max_line_bytes)

    def read(self, size: int) -> Chunk | None:
        """
        The next lines, or None at the end: `size` bytes, and what the last line has beyond them; raises
        `SourceError` if the file cannot be read.
        """
        begin = self.place
        room = self.stop - begin.offset
        if room <= 0:
            return None
        lines = b""
        with self._opened() as file:
            data = file.read(min(size, room))
            rest = b"" if data.endswith(b"\n") else file.readline(min(self._limit, room - len(data)))
            data += rest
            too_long = len(rest) == self._limit and not rest.endswith(b"\n")
            if not data.endswith(b"\n") and (too_long or not self._is_line(data)):
                data = data[: data.rfind(b"\n") + 1]
                if too_long and not data:
                    return self._skip(file)
            lines = data
        if not lines:
            return None
        self.place = Place(begin.offset + len(lines), zlib.crc32(lines, begin.checksum))
        return Chunk(lines, begin.offset, self.place.offset)

    def verify(self) -> None:
        """Read what is before the place, once more; raises `SourceError` if it is not what it was."""
        offset, checksum, _ = self.place
        self.place = Place()
        with self._opened() as file:
            while room := offset - self.place.offset:
                data = file.read(min(room, _BUFFER_BYTES))
                if not data:
                    break
                self.place = Place(self.place.offset + len(data), zlib.crc32(data, self.place.checksum))
        if self.place.offset < offset:
            raise SourceError(
                f"cannot go on at byte {offset} of {self.path}: it has only {self.place.offset}"
            )
        if self.place.checksum != checksum:
            raise SourceError(
                f"cannot go on at byte {offset} of {self.path}: what is before it has changed since it was "
                "read; write a new file instead, or start with a new checkpoint"
            )

    def close(self) -> None:
        if self._unzipped is not None:
            self._unzipped.close()
            self._unzipped = None

    def _is_line(self, data: bytes) -> bool:
        """Whether what follows the last line end is to be taken for a line."""
        if not self._growing:
            return True
        rest = data[data.rfind(b"\n") + 1 :]
        if self.place.offset == 0 and len(rest) == len(data):
            rest = rest.removeprefix(BOM)
        try:
            return isinstance(orjson.loads(rest), dict)
        except orjson.JSONDecodeError:
            return False

    def _skip(self, file: BinaryIO) -> Chunk | None:
        """Pass over the line that begins here."""
        begin = self.place
        file.seek(begin.offset)
        offset, checksum = begin.offset, begin.checksum
        excerpt = last = b""
        while not last.endswith(b"\n"):
            last = file.readline(min(_BUFFER_BYTES, self.stop - offset))
            if not last:
                if self._growing:
                    return None
                break
            excerpt = excerpt or last[:EXCERPT_BYTES]
            offset, checksum = offset + len(last), zlib.crc32(last, checksum)
        self.place = Place(offset, checksum)
        return Chunk(excerpt, begin.offset, offset, too_long=True)

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        """The file, at the place."""
        try:
            if is_compressed(self.path):
                # kept open: to find a place again, all before it must be unzipped
                if self._unzipped is None:
                    self._unzipped = cast(BinaryIO, gzip.open(self.path))  # noqa: SIM115
                self._unzipped.seek(self.place.offset)
                yield self._unzipped
            else:
                with open(self.path, "rb") as file:
                    file.seek(self.place.offset)
                    yield file
        except EOFError:
            self.close()
            if not self._growing:
                raise SourceError(f"cannot read {self.path}: the compressed file ends too early") from None
            # it is still being written, and what could be read of it was: there is nothing for now
        except (OSError, zlib.error) as error:
            self.close()
            raise SourceError(f"cannot read {self.path}: {describe_error(error)}") from error


def is_compressed(path: str) -> bool:
    return Path(path).suffix == ".gz"


def count_lines(path: str, begin: int, end: int) -> int:
    """How many lines end between two offsets."""
    lines = 0
    with gzip.open(path) if is_compressed(path) else open(path, "rb") as file:
        file.seek(begin)
        while begin < end and (data := file.read(min(end - begin, _BUFFER_BYTES))):
            lines += data.count(b"\n")
            begin += len(data)
    return lines
