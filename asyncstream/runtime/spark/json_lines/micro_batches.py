"""
Which lines are a micro-batch of a stream, and which task reads them.

An offset of the stream is, for each file that has been begun, the place up to which it has been read. Two of
them are all there is to know about a micro-batch, however the files have grown since, and each place carries
the checksum of what is before it. So a micro-batch that Spark runs again after a crash has the same rows, or
fails because a file has been changed.

A file is known by its path below the folder. It may grow, and may be taken away when it has been read; then
its place is forgotten, which keeps offsets small.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from glob import glob, has_magic
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from asyncstream.errors import SourceError, describe_error
from asyncstream.filesystem.folders import by_their_own_names
from asyncstream.runtime.spark.json_lines.lines import LineReader, Place, Span, is_compressed
from asyncstream.runtime.spark.json_lines.order import EventTimes, Stretch, Upcoming, merge
from asyncstream.runtime.spark.json_lines.settings import Limits, ReadSettings

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ("START", "MicroBatches", "Offset", "bounded_slices")

Offset = dict[str, dict[str, list[int]]]

START: Final[Offset] = {"files": {}}
"""The offset before everything."""

LARGEST_PIECE: Final = 128 * 2**20  # bytes; as much of a file as Spark gives to one task
SMALLEST_PIECE: Final = 4 * 2**20


class MicroBatches:
    """Plans the micro-batches of a stream, in the driver."""

    def __init__(self, settings: ReadSettings, schema: StructType) -> None:
        self._settings = settings
        self._times = EventTimes(schema, settings.time, settings.max_line_bytes)
        self._folder = _Folder(settings.path)
        self._last_sizes: dict[str, int] | None = None
        self._upcoming: dict[str, Upcoming] = {}
        self._verified: dict[str, int] = {}
        self._planned: tuple[Offset, Offset, list[Stretch]] | None = None

    def end_here(self) -> None:
        """What is added to the folder from now on is not read."""
        self._last_sizes = {name: stat.st_size for name, stat in self._folder.files().items()}

    def latest(self, start: Offset, limits: Limits) -> Offset:
        """
        The offset at which a micro-batch from `start` on ends; `start` itself if there is nothing to read.
        Raises `SourceError` if a file cannot be read, or has been changed where it was read already.
        """
        there = self._folder.files()
        files = []
        for name, stat in there.items():
            place = Place(*start["files"].get(name, ()))
            if (upcoming := self._look_at(name, stat, place)) is not None:
                files.append(upcoming)
        stretches = merge(files, limits)
        if not stretches:
            return start
        places = {name: place for name, place in start["files"].items() if name in there}
        places |= {file.name: list(file.place) for file in files if file.place.offset}
        end = {"files": dict(sorted(places.items()))}
        self._planned = start, end, stretches
        return end

    def slices(self, start: Offset, end: Offset) -> list[list[Stretch]]:
        """What each task of a micro-batch reads; each slice comes before the next in event time."""
        if self._planned is None or self._planned[:2] != (start, end):
            self._planned = start, end, self._replan(start, end)
        stretches = self._planned[2]
        tasks = min(self._settings.partitions, len(stretches))  # none, if a stream begins before its files
        cuts = [task * len(stretches) // (tasks or 1) for task in range(tasks + 1)]
        return [stretches[a:b] for a, b in pairwise(cuts)]

    def _look_at(self, name: str, stat: os.stat_result, place: Place) -> Upcoming | None:
        """The file from the place on, if there is anything to read."""
        path, size = self._folder.path(name), stat.st_size
        if not is_compressed(path) and size < place.offset:
            raise SourceError(f"cannot go on at byte {place.offset} of {path}: it has only {size}")
        if self._last_sizes is not None:
            if name not in self._last_sizes or (is_compressed(path) and size != self._last_sizes[name]):
                return None
            size = min(size, self._last_sizes[name])
        if size == (place.size if is_compressed(path) else place.offset):
            self._upcoming.pop(name, None)
            return None
        upcoming = self._upcoming.get(name)
        if place.offset and self._verified.get(name) != stat.st_ino:
            # a stream that has been started again, or another file under the name of one that was read
            reader = self._reader(path, place, None)
            reader.verify()
            reader.close()
            upcoming = None
        self._verified[name] = stat.st_ino
        if upcoming is None or upcoming.place[:2] != place[:2]:
            stop = None if is_compressed(path) else size
            upcoming = Upcoming(name, self._reader(path, place, stop), self._times, size)
            self._upcoming[name] = upcoming
        else:
            upcoming.grow(size)
        return None if upcoming.key is None else upcoming

    def _replan(self, start: Offset, end: Offset) -> list[Stretch]:
        """A micro-batch that was planned before the driver was started again."""
        files = []
        for name, place in end["files"].items():
            begin, stop = Place(*start["files"].get(name, ())), Place(*place)
            if stop.offset > begin.offset:
                span = Span(self._folder.path(name), begin, stop.offset, stop.checksum)
                reader = LineReader.of(span, self._settings.max_line_bytes)
                files.append((span, Upcoming(name, reader, self._times, stop.size)))
        stretches = merge([file for _, file in files], Limits())
        for span, file in files:
            span.check(file.place)
        return stretches

    def _reader(self, path: str, place: Place, stop: int | None) -> LineReader:
        limit = self._settings.max_line_bytes
        return LineReader(path, place, stop=stop, max_line_bytes=limit, growing=True)


def bounded_slices(settings: ReadSettings, schema: StructType) -> list[list[Stretch]]:
    """
    All there is now, divided among tasks: files in the order of their first event time, the large in pieces.
    """
    times, folder = EventTimes(schema, settings.time, settings.max_line_bytes), _Folder(settings.path)
    files = []
    for name, stat in folder.files().items():
        path = folder.path(name)
        stop = None if is_compressed(path) else stat.st_size
        reader = LineReader(path, Place(), stop=stop, max_line_bytes=settings.max_line_bytes)
        upcoming = Upcoming(name, reader, times, stat.st_size)
        reader.close()
        if upcoming.key is not None:
            files.append((upcoming.key, name, path, stat.st_size))
    total = sum(size for *_, size in files)
    enough = max(total // settings.partitions, 1)
    piece = min(max(enough, SMALLEST_PIECE), LARGEST_PIECE)
    slices: list[list[Stretch]] = [[]]
    taken = 0
    for _, _, path, size in sorted(files):
        for span in _pieces(path, size, piece):
            if taken >= enough:
                slices.append([])
                taken = 0
            slices[-1].append((span,))
            taken += size if span.end is None else span.end - span.begin.offset
    return slices


def _pieces(path: str, size: int, piece: int) -> Sequence[Span]:
    """A file in pieces of whole lines."""
    if is_compressed(path):
        return [Span(path, Place(), None, None)]
    cuts = [0]
    with open(path, "rb") as file:
        while cuts[-1] + piece < size:
            file.seek(cuts[-1] + piece - 1)
            file.readline()
            cuts.append(min(file.tell(), size))
    ends = [*cuts[1:], size]
    return [Span(path, Place(begin), end, None) for begin, end in zip(cuts, ends, strict=True) if end > begin]


class _Folder:
    """The files that are to be read: those of a folder, those that match a pattern, or a single one."""

    def __init__(self, path: str) -> None:
        self._pattern: str | None = None
        if has_magic(path):
            parts = Path(path).parts
            fixed = next(number for number, part in enumerate(parts) if has_magic(part))
            self._root, self._pattern = os.path.join(*parts[:fixed] or "."), os.path.join(*parts[fixed:])
        else:
            self._root = path

    def path(self, name: str) -> str:
        return os.path.join(self._root, name) if name else self._root

    def files(self) -> Mapping[str, os.stat_result]:
        """By their paths below the folder; hidden ones are left out, and links to the others."""
        try:
            if self._pattern is not None:
                names: Any = glob(self._pattern, root_dir=self._root, recursive=True)
            elif os.path.isdir(self._root):
                names = [name for name in os.listdir(self._root) if _is_json_lines(name)]
            else:
                names = [""]
            found = {name: stat for name in sorted(names) if (stat := self._stat(name)) is not None}
        except OSError as error:
            raise SourceError(f"cannot read {self._root}: {describe_error(error)}") from error
        return {name: found[name] for name in by_their_own_names(found, self._root)}

    def _stat(self, name: str) -> os.stat_result | None:
        """What is known about a file, or None if it is not one."""
        path = self.path(name)
        try:
            stat = os.stat(path)
        except FileNotFoundError:
            if not name:
                raise
            return None  # it was taken away a moment ago
        return stat if os.path.isfile(path) else None


def _is_json_lines(name: str) -> bool:
    return name.endswith((".jsonl", ".jsonl.gz")) and not name.startswith(".")
