"""
Files of lines as sources: what JSON lines and CSV (`csv_source`) have in common, and JSON lines.

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

import logging
from abc import abstractmethod
from collections.abc import Callable
from operator import length_hint
from typing import Any, BinaryIO, Final, Literal, TypedDict, TypeVar, Unpack, overload

import orjson

from asyncstream.connectors.base import SourceBatch
from asyncstream.connectors.files.compression import Compression, Decompressing, compression_of
from asyncstream.connectors.files.identity import EXTENT, changed_at, difference, fingerprint, has_shrunk
from asyncstream.connectors.files.reading import FileSource
from asyncstream.connectors.files.storage import size_of
from asyncstream.connectors.json_values import are_for_loads, loads
from asyncstream.connectors.lines import (
    AnyPath,
    LineGrew,
    Lines,
    Malformed,
    Place,
    RejectedLine,
    TooLong,
    buffered,
    why_malformed,
)
from asyncstream.connectors.models import Unfit, reader
from asyncstream.errors import SourceError
from asyncstream.validation import choice, count, flag

__all__ = ("EMPTY_LINES", "END", "NOTHING", "JsonLinesSource", "LineSource", "Options")

log = logging.getLogger("asyncstream.sources")

T = TypeVar("T")
U = TypeVar("U")

END: Final = object()
NOTHING: Final = object()
_MORE: Final = object()

_BATCH_BYTES: Final = 2**22
"""Behind so many one read ends: a thousand long lines may be more than memory has room for."""

EMPTY_LINES: Final = 10_000
"""Lines without an element behind which one read ends: a file may hold a billion of them, and be small."""

_WORTHWHILE: Final = 64
"""Elements; looking ahead takes as long as reading some of them one by one."""


class Options(TypedDict, total=False):
    """What all sources of files take."""

    complete: bool
    if_changed: Literal["fail", "start_over"]
    on_malformed: Literal["fail", "reject"]
    batch: int
    max_line_bytes: int
    compression: Compression


class LineSource(FileSource[T]):
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
        self._complete = flag("complete", complete)
        self._starts_over = choice("if_changed", if_changed, ("fail", "start_over")) == "start_over"
        self.rejects = choice("on_malformed", on_malformed, ("fail", "reject")) == "reject"
        self._batch = count("batch", batch)
        self._limit = count("max_line_bytes", max_line_bytes)
        self._file: BinaryIO | None = None
        self._packed: Decompressing | None = None  # what is between the file and its lines
        self._lines: Lines | None = None
        self._first: Place = (0, 0)  # behind what comes before the first element
        self._destination: Place | None = None  # where it is still to go
        self._size = 0  # of the file as it was opened
        self._changed_at: tuple[int, ...] | None = None  # when it was looked at last; None: that is not known
        self._known: dict[str, Any] = {}  # of what was read by then, if anything was
        self._head: str | None = None  # of an object in a store, which is not to be fetched again for it

    def _open(self) -> None:
        self._head = self._destination = None
        self._file = self._storage.read(self._path)
        self._size = size_of(self._file)
        self._changed_at, self._known = changed_at(self._file), {}
        if self._compression is not None:
            self._packed = Decompressing(self._file, self._compression, complete=self._complete)
        self._lines = Lines(buffered(self._packed or self._file), self._limit, complete=self._complete)
        self._begin(self._lines)
        self._first = self._lines.mark()

    def _begin(self, lines: Lines) -> None:
        """Read what comes before the first element."""

    @abstractmethod
    def _next(self, lines: Lines, begin: Place) -> T | object:
        """
        The next element; `NOTHING` for an empty line at `begin`; `END` at the end of the file. Raises
        `Malformed` for lines that are no element. The next one begins after them, or `lines` is amid one.
        """

    def _ahead(self, lines: Lines, most: int) -> list[T]:
        """The next elements, as far as they are quickly read; `_next` is asked for the one behind them."""
        return []

    def _read(self) -> SourceBatch[T] | None:
        lines = self._opened()
        values: list[Any] = []
        rejected: list[RejectedLine] = []
        is_through = False
        began = lines.mark()
        try:
            while True:
                begin = lines.mark()
                room = self._batch - len(values) - len(rejected)
                empty = begin[1] - began[1] - len(values) - len(rejected)
                if room <= 0 or begin[0] - began[0] >= _BATCH_BYTES or empty >= EMPTY_LINES:
                    break
                # what is behind a malformed line may be malformed as well: then looking ahead is for nothing
                if room >= _WORTHWHILE and not rejected:
                    values += self._ahead(lines, room)
                    if lines.offset > begin[0]:
                        continue
                try:
                    value = (self._pass_over if lines.is_amid else self._next)(lines, begin)
                except Malformed as malformed:
                    if self.rejects:
                        if not lines.is_amid:
                            rejected.append(self._rejected(lines, malformed))
                        continue
                    lines.go_to(begin)
                    if values:  # they are delivered first; the next read finds it again
                        break
                    raise self._error(malformed) from malformed
                if value is _MORE:
                    break
                if value is END:
                    self._check_size(lines)
                    self._check_end()
                    is_through = True
                    break
                if value is not NOTHING:
                    values.append(value)
        except LineGrew as error:
            raise SourceError(
                f"{self._path}, {error}: it was read as a whole line, because the file ended there, and has "
                "grown since; pass complete=False for a file that is still being written"
            ) from error
        self._check_unchanged(lines)
        return None if is_through and not values and not rejected else SourceBatch(values, None, rejected)

    def _pass_over(self, lines: Lines, begin: Place) -> object:
        """What `_next` would say of a line that is too long; `_MORE` if a part of it has still to be read."""
        try:
            return _MORE if lines.pass_over() else END
        except TooLong as error:
            raise Malformed(begin, why_malformed(error)) from error

    def _rejected(self, lines: Lines, malformed: Malformed) -> RejectedLine:
        text = lines.text(malformed.begin, lines.mark())
        return RejectedLine(self._path, malformed.line_number, text, malformed.reason)

    def _error(self, malformed: Malformed) -> SourceError:
        return SourceError(
            f"{self._path}, line {malformed.line_number}: {malformed.reason}; on_malformed='reject' sends "
            "such lines to .rejected"
        )

    def _place(self) -> dict[str, Any] | None:
        if self._lines is None or self._file is None:
            return None
        offset, count = self._lines.mark()
        self._check_size(self._lines)
        self._check_unchanged(self._lines)  # or the position would go with what is there now
        behind = self._in_file(offset)
        place = {"offset": offset, "lines": count}
        if self._packed is not None:
            place["packed"] = behind
        known = fingerprint(self._file, behind, self._head)
        if not self._storage.is_remote:
            self._known = {"behind": behind, **known}
        elif behind >= EXTENT:
            self._head = known["head"]
        return place | known

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

    def _check_unchanged(self, lines: Lines) -> None:
        """
        It may have been written anew where it is, by a log rotation say: what comes then is of another file,
        and begins amid a line.
        """
        assert self._file is not None
        now = changed_at(self._file)
        if self._known and now == self._changed_at:
            return
        if self._known:
            found = difference(self._file, self._known["behind"], self._known)
            if found is not None:
                raise SourceError(f"{self._path} was rewritten while it was read: {found}")
        if now is not None:
            behind = self._in_file(lines.mark()[0])
            self._changed_at, self._known = now, {"behind": behind, **fingerprint(self._file, behind)}

    def _check_end(self) -> None:
        """It may have been cut behind what was read, too, amid a line say: this is not its end then."""
        assert self._file is not None
        size = size_of(self._file)
        if size < self._size:
            raise SourceError(f"{self._path} was cut to {size} bytes, of {self._size}, while it was read")

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
        self._opened()
        assert self._file is not None
        self._check_compression(position)
        offset = position["offset"]
        found = difference(self._file, position.get("packed", offset), position)
        if found is not None and not self._starts_over:
            raise self._changed(offset, found)
        self.started_over = found is not None
        if found is not None:
            log.warning("%s is read from its beginning, not from byte %d: %s", self._path, offset, found)
        elif "head" not in position:
            log.warning("%s: the position is of an earlier version; only the size was checked", self._path)
        elif has_shrunk(self._file, position):
            log.warning("%s is shorter than it was: something behind byte %d is gone", self._path, offset)
        if found is None and offset > self._first[0]:
            self._destination = (offset, position["lines"])

    def _is_on_its_way(self) -> bool:
        if (place := self._destination) is None:
            return False
        if self._packed is not None and self._packed.is_behind(place[0]):
            return True
        self._destination = None
        self._opened().go_to(place)
        return False

    def _opened(self) -> Lines:
        if self._lines is None:
            raise SourceError(f"the source of {self._path} is not open")
        return self._lines

    def _close(self) -> None:
        file, self._file, self._packed = self._file, None, None
        lines, self._lines = self._lines, None
        if lines is not None:
            lines.file.close()  # first: to drop what reads ahead of an open file is a warning
        if file is not None:
            file.close()


class JsonLinesSource(LineSource[T]):
    """
    Reads a file with one JSON value per line: UTF-8, lines that end in \\n or \\r\\n, empty ones skipped.

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
        batch: how many values one read brings at most; fewer of long lines: about 4 MiB.
        max_line_bytes: a longer line is malformed; it is never held in memory.
        compression: "gzip", "zstd" or None; "infer": by the ending `.gz` or `.zst` of its name.
    """

    @overload
    def __init__(self: JsonLinesSource[Any], path: AnyPath, **options: Unpack[Options]) -> None: ...
    @overload
    def __init__(
        self: JsonLinesSource[U], path: AnyPath, *, model: type[U], **options: Unpack[Options]
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
                return NOTHING
            if not line:
                return END
            value = loads(line)
            return value if self._model is None else self._model(value)
        except (orjson.JSONDecodeError, TooLong, Unfit) as error:
            raise Malformed(begin, why_malformed(error)) from error

    def _ahead(self, lines: Lines, most: int) -> list[Any]:
        found = lines.ahead()
        if not found:
            return []
        parts = found.split(b"\n", most)
        rest = len(parts.pop())
        read: Callable[[bytes], Any] = loads if are_for_loads(found, parts) else orjson.loads
        if (model := self._model) is not None:
            decode, read = read, lambda line: model(decode(line))
        values: list[Any] = []
        left = iter(parts)
        while length_hint(left):
            try:
                values.extend(map(read, left))
            except (orjson.JSONDecodeError, Unfit):  # which leaves the values before it
                at = len(parts) - length_hint(left) - 1
                if parts[at].strip():
                    rest += sum(map(len, parts[at:])) + len(parts) - at
                    del parts[at:]
                    break
        lines.skip(len(found) - rest, len(parts))
        return values
