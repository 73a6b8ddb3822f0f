"""
Files of events as one sequence in the order of event time, cut into micro-batches.

Each file is read in its own order, and of the next rows of all files the one with the earliest **key** comes
first. The key of a row is the latest event time in its file up to there. So merging adds no disorder: what is
read before a row is ahead of it by no more than what stands before it in its own file.

Only event times are looked at here, in the driver, and what becomes of them is places in files. The rows
themselves are read by tasks, from place to place, in **stretches** of some thousand rows.
"""

from __future__ import annotations

import heapq
import math
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from asyncstream.runtime.spark.json_lines.columns import JsonColumns, split_lines
from asyncstream.runtime.spark.json_lines.lines import Chunk, LineReader, Place, Span, is_compressed
from asyncstream.runtime.spark.json_lines.settings import Limits
from asyncstream.runtime.spark.wire.rows import ROWS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ("EventTimes", "Stretch", "Upcoming", "merge")

Stretch = tuple[Span, ...]
"""Rows of some files that belong together in the order of event time."""

STRETCH_BYTES: Final = 8 * 2**20
"""At so many bytes a stretch has enough, if not at `ROWS` rows."""

_CHUNK_BYTES: Final = 256 * 1024  # best for Arrow's parser; small enough that a thousand files fit in memory


class EventTimes:
    """
    Finds the keys of rows.

    Args:
        schema: the columns.
        time: the column that tells when an event happened; None: rows stay as they are in the files, and
            files follow each other by name.
    """

    def __init__(self, schema: StructType, time: str | None, max_line_bytes: int) -> None:
        from pyspark.sql.types import StructType

        self._columns = (
            None if time is None else JsonColumns(StructType([schema[time]]), time, max_line_bytes)
        )

    def rows(self, chunk: Chunk, latest: float) -> tuple[list[float], list[int]]:
        """
        For each row its key, and how many bytes of the chunk are before its end.

        Args:
            latest: the key of the row before. A line without a time gets the key of the row before it.
        """
        import numpy as np

        data = chunk.data
        if chunk.too_long:
            return [latest], [chunk.end - chunk.begin]
        if self._columns is None:
            ends = [end for line, end in split_lines(data) if line and not line.isspace()]
            return [latest] * len(ends), ends
        batch = self._columns.batch(data)
        if batch is not None:
            ends = (np.flatnonzero(np.frombuffer(data, np.uint8) == 10) + 1).tolist()
            if not data.endswith(b"\n"):
                ends.append(len(data))
            times = _numbers(batch)
        else:
            rows, ends = self._columns.rows(data, at_start=chunk.begin == 0)
            known = [number for number, row in enumerate(rows) if isinstance(row, dict)]
            times = np.full(len(rows), -math.inf, object)
            times[known] = _numbers(self._columns.batch_of([row for row in rows if isinstance(row, dict)]))
        if not len(times):
            return [], []
        keys = np.maximum.accumulate(times)
        return np.maximum(keys, latest).tolist() if keys[0] < latest else keys.tolist(), ends


def _numbers(batch: Any) -> Any:
    """The only column, as an array of numbers that are in the order of what they stand for."""
    import pyarrow as pa

    column = batch.column(0)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return column.to_numpy(zero_copy_only=False)


class Upcoming:
    """
    The next rows of a file, of which only keys and places are kept.

    Attributes:
        name: breaks ties between files.
        key: of the next row; None: there is none, for now.

    Args:
        size: of the file on disk.
    """

    def __init__(self, name: str, reader: LineReader, times: EventTimes, size: int) -> None:
        self.name = name
        self.path = reader.path
        self.key: float | None = None
        self._reader = reader
        self._times = times
        self._size = size
        self._latest = -math.inf
        # what has been read ahead: keys and ends of rows, and their bytes, which begin at an offset
        self._keys: list[float] = []
        self._ends: list[int] = []
        self._data = b""
        self._begin = 0
        self._next = 0  # which of the rows is the next
        self._summed, self._checksum = 0, 0  # so many of the bytes are in the checksum
        self._load(1)  # one line, for there may be many files whose turn comes much later

    @property
    def place(self) -> Place:
        """The place before the next row."""
        if self._next == len(self._keys):
            return self._reader.place
        if self._next:
            end = self._ends[self._next - 1]
            if end > self._summed:
                self._checksum = zlib.crc32(self._data[self._summed : end], self._checksum)
                self._summed = end
        return Place(self._begin + self._summed, self._checksum)

    def grow(self, size: int) -> None:
        """The file on disk has this size now."""
        if size != self._size:
            self._size = size
            if not is_compressed(self.path):
                self._reader.stop = size
            if self.key is None:
                self._load(_CHUNK_BYTES)

    def take(self, other: tuple[Any, ...] | None, rows: int, size: float) -> tuple[int, int]:
        """
        Go past the rows that come before those of another file; how many they are, and of how many bytes.

        Args:
            other: the key of the other file's next row, and its name; None: there is no other.
            rows: go past so many at most; at least 1.
            size: go past so many bytes at most.
        """
        stop = len(self._keys)
        if other is not None:
            bisect = bisect_right if self.name < other[1] else bisect_left
            stop = bisect(self._keys, other[0], self._next)
        stop = min(stop, self._next + rows)
        begin = self._ends[self._next - 1] if self._next else 0
        if self._ends[stop - 1] - begin > size:
            stop = bisect_right(self._ends, begin + size, self._next)
        taken, taken_bytes = stop - self._next, (self._ends[stop - 1] if stop else 0) - begin
        self._next = stop
        if stop == len(self._keys):
            self._load(_CHUNK_BYTES)
        elif taken:
            self.key = self._keys[stop]
        return taken, taken_bytes

    def _load(self, size: int) -> None:
        self._keys, self._ends, self._data = [], [], b""
        self._next = self._summed = 0
        self.key = None
        while self.key is None:
            self._begin, self._checksum, _ = self._reader.place
            chunk = self._reader.read(size)
            if chunk is None:
                if is_compressed(self.path):
                    self._reader.place = self._reader.place._replace(size=self._size)
                self._reader.close()
                return
            self._keys, self._ends = self._times.rows(chunk, self._latest)
            if self._keys:
                self._data = chunk.data
                self.key, self._latest = self._keys[0], self._keys[-1]


def merge(files: Iterable[Upcoming], limits: Limits) -> list[Stretch]:
    """
    Go past the next rows of all files, in order and within the limits; at least one, if there is one.
    """
    heap: list[tuple[Any, ...]] = [(file.key, file.name, file) for file in files if file.key is not None]
    heapq.heapify(heap)
    rows = math.inf if limits.rows is None else limits.rows
    size = math.inf if limits.bytes is None else limits.bytes
    touched: set[str] = set()
    stretches = _Stretches()
    while heap and rows > 0:
        _, name, file = heap[0]
        if name not in touched and len(touched) == limits.files:
            break
        stretches.begin(file)
        other = min(heap[1:3], default=None)
        taken, taken_bytes = file.take(other, int(min(rows, stretches.room())), size)
        if not taken:
            if touched:
                break
            taken, taken_bytes = file.take(other, 1, math.inf)  # or the stream would stand still
        touched.add(name)
        stretches.add(taken, taken_bytes)
        rows, size = rows - taken, size - taken_bytes
        if file.key is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (file.key, name, file))
    return stretches.close()


class _Stretches:
    """Collects rows until they are enough for a stretch."""

    def __init__(self) -> None:
        self._closed: list[Stretch] = []
        self._begins: dict[str, tuple[Upcoming, Place]] = {}
        self._rows = self._bytes = 0

    def room(self) -> int:
        """How many rows the open stretch can take."""
        return ROWS - self._rows

    def begin(self, file: Upcoming) -> None:
        """What is added next is of this file."""
        if file.name not in self._begins:
            self._begins[file.name] = file, file.place

    def add(self, rows: int, size: int) -> None:
        self._rows += rows
        self._bytes += size
        if self._rows == ROWS or self._bytes >= STRETCH_BYTES:
            self.close()

    def close(self) -> list[Stretch]:
        """The stretches, none of them open."""
        if self._rows:
            spans = ((file, begin, file.place) for file, begin in self._begins.values())
            stretch = tuple(
                Span(file.path, begin, end.offset, end.checksum)
                for file, begin, end in spans
                if end.offset > begin.offset
            )
            self._closed.append(stretch)
        self._begins.clear()
        self._rows = self._bytes = 0
        return self._closed
