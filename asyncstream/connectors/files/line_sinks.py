"""
Files of lines as sinks: what JSON lines and CSV (`csv_sink`) have in common, and JSON lines. The sources are
in `line_sources`.

Writing happens in the event loop: for a batch on a local disk that takes less time than handing it to a
thread and back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO, Final, Literal

from asyncstream.aside import aside
from asyncstream.connectors.base import CountingSink, TransactionalSink
from asyncstream.connectors.cancellation import carried_through
from asyncstream.connectors.files.claim import RECORD_BYTES, Claim, fenced, lost
from asyncstream.connectors.files.compression import (
    Compressing,
    Compression,
    compression_in,
    compression_of,
    unpacked,
)
from asyncstream.connectors.files.encodings import Encoding, JsonLines
from asyncstream.connectors.files.identity import difference, fingerprint
from asyncstream.connectors.files.storage import is_remote
from asyncstream.connectors.lines import BUFFER_BYTES, AnyPath, open_file
from asyncstream.connectors.rows import Default, why_unwritten
from asyncstream.connectors.writer import allowed_ahead
from asyncstream.elements import Timestamps
from asyncstream.errors import SinkBroken, SinkError, describe_error
from asyncstream.filesystem.folders import lasting, missing_folder, roomy, sync_folder
from asyncstream.filesystem.locks import lock
from asyncstream.validation import choice, file_path, refuse

__all__ = ("TOGETHER", "JsonLinesSink", "LineSink")

TOGETHER: Final = 128
"""Elements that are encoded at once; where one of them cannot be, it was for nothing."""


class LineSink(CountingSink[Any], TransactionalSink[Any]):
    """
    What JSON lines and CSV have in common; they differ in what makes the lines.

    With checkpoints, a position is a length of the file, with a fingerprint of what is before it; what is
    behind it is cut off again. So it can go back to any checkpoint. Whose the file is stands beside it:
    `claim`.
    """

    one_by_one = True

    def __init__(self, path: AnyPath, existing: str, compression: Compression, encoding: Encoding) -> None:
        self._encoding = encoding
        self._path = file_path("path", path)
        if is_remote(self._path):
            raise refuse(
                "path", "a file on a disk", path, "in an object store a sink writes a folder of files"
            )
        self._at = lasting(roomy("path", self._path, RECORD_BYTES))
        self._compression = compression_of(compression, self._path)
        self._packing: Compressing | None = None  # between what is written and the file
        self._existing = choice("existing", existing, ("refuse", "append", "overwrite"))
        self._claim = Claim(self._path)
        self._known: dict[str, Any] = {"length": 0}  # the last position, without its run
        self._run = ""
        self._file: BinaryIO | None = None
        self._is_closed = False
        self._needs_head = False  # not yet: until the first checkpoint stands, nothing is written
        self._is_new = False
        self._is_old = False  # what was there before still is, and goes when something else comes
        self._is_whole = True
        self._has_name = False  # it had when it was opened
        self._failure: OSError | None = None

    @property
    def place(self) -> str:
        """Where it writes, behind all links."""
        return self._claim.file

    async def open(self) -> None:
        self._is_closed = False
        self._is_whole = True
        self._open(self._existing)
        try:
            if not lock(self._opened()):
                raise self._held_by_another()
            with self._naming():
                self._claim.note_length(os.fstat(self._opened().fileno()).st_size)
        except SinkError:
            await self.close()
            raise
        self._is_old = self._existing == "overwrite"
        if not self._is_old:
            # in a thread: of what is compressed already all is read
            await carried_through(aside(partial(self._settle, self._existing)))
            self._write_head()

    def _let_old_go(self) -> None:
        """From now on the file has nothing of what was there before, if that is to be replaced."""
        if self._is_old:
            self._is_old = False
            self._settle(self._existing)

    async def fence(self) -> None:
        if self.writer is not None:
            await fenced(self._claim, self.writer)

    async def can_recover(self, position: dict[str, Any] | None) -> None:
        self._plan(position)

    def _plan(self, position: dict[str, Any] | None) -> tuple[str, int]:
        """
        How to go on from a position: in one of the ways of `existing`, or by cutting off behind a length.

        Changes nothing.

        Raises:
            SinkError: if it cannot be done.
        """
        record = self._claim.left_to(self.writer)
        try:
            size = os.path.getsize(self._at)
        except OSError:
            size = None
        if position is None:
            if record is None or not size or size <= record.base or self._existing == "overwrite":
                is_left_over = size == 0 and self._existing == "refuse"  # by a start that came to nothing
                way = "overwrite" if is_left_over else self._existing
                if way == "refuse" and size is not None:
                    # kept by a start that came to nothing, it counts as what was there before
                    if record is None or self.writer is None or self.writer.ahead != "allow_behind":
                        raise self._exists()
                    way = "append"
                if way == "append" and size and self._claim.is_damaged():
                    raise SinkError(
                        f"cannot write behind what is in {self._path}: its record, {self._claim.record}, "
                        "cannot be read, so it is not known whether a job that was cut off wrote a part of "
                        "it; take that out, if there is any, and delete the record"
                    )
                return way, 0
            length = record.base
        else:
            length = position["length"]
            self._check_content(position, size)
            if record is None or record.run == position.get("run", record.run):
                if record is not None and record.closed is not None and (size or 0) > record.closed:
                    raise SinkError(
                        f"cannot go on writing {self._path}: {(size or 0) - record.closed} bytes of another "
                        "writer are behind what was written; take them out, or they would be cut off"
                    )
                if not self._claim.stays(record, self.writer):
                    return "recover", length
        ahead = allowed_ahead(self.writer, self._path)
        return ("append", 0) if ahead == "allow_behind" else ("recover", length)

    def _check_content(self, position: dict[str, Any], size: int | None) -> None:
        """Refuse a file that is not the one that was written."""
        length = position["length"]
        found: str | None = "it is not there"
        if size is not None:
            with self._naming(), open_file(self._at, "rb") as file:
                found = difference(file, length, position)
        if found is not None and length:
            raise SinkError(
                f"cannot go on writing {self._path}, which had {length} bytes at the checkpoint: {found}. "
                "Put back the file that was written, or begin at the beginning, with restore='none'"
            )
        if length:
            self._check_form()

    def _check_form(self) -> None:
        """Refuse a file in which something is written in another way, for the code has changed say."""
        with self._naming(), open_file(self._at, "rb") as file:
            found = compression_in(file)
        if found != self._compression:
            raise SinkError(
                f"cannot write behind what is in {self._path}: its compression is {found}, and that of this "
                f"sink {self._compression}"
            )

    async def recover(self, position: dict[str, Any] | None) -> None:
        self._is_closed = self._is_old = False
        try:
            # a disk may take seconds to answer, and all others in the loop would wait for it
            with self._naming():
                await carried_through(aside(partial(self._go_on, position)))
        except SinkError:
            await self.close()
            raise

    def _go_on(self, position: dict[str, Any] | None) -> None:
        with self._claim.taking():
            way, length = self._plan(position)
            self._take(way, length, position)
            if self._is_closed and self._file is not None:  # closed while this was on its way
                self._file.close()

    def _take(self, way: str, length: int, position: dict[str, Any] | None) -> None:
        """Open the file as planned, as the only one who writes it."""
        record = self._claim.read()
        self._open(way, length)
        is_alone = lock(self._opened())
        if not is_alone and not self._claim.has_run_out(record, self.writer):
            raise self._held_by_another()
        if not is_alone or (record is not None and not record.is_left()):
            size = os.fstat(self._opened().fileno()).st_size
            keeps = {"recover": length, "append": size}.get(way, 0)
            self._opened().close()
            self._claim.replace_by_copy(keeps)
            self._open("append" if way == "overwrite" else way, length)
            if not lock(self._opened()):
                raise self._held_by_another()
        self._settle(way, length)
        base = self._opened().tell()
        self._known = {"length": base} if way != "recover" or position is None else position
        self._run = os.urandom(8).hex()
        if way == "recover" and position is not None:
            base = 0 if record is None else record.base
            self._run = position.get("run", self._run)
        self._claim.take(self._run, base, self.writer)

    def _open(self, way: str, length: int = 0) -> None:
        """Open the file, and leave it as it is."""
        modes = {"refuse": "xb+", "append": "ab+", "overwrite": "ab+", "recover": "rb+"}
        # without anything to keep, it may not be there yet
        mode = "ab+" if way == "recover" and length == 0 else modes[way]
        with self._naming():
            try:
                self._file, self._is_new, self._failure = open_file(self._at, mode), True, None
            except FileExistsError:
                raise self._exists() from None
            self._has_name = os.fstat(self._file.fileno()).st_nlink > 0

    def _settle(self, way: str, length: int = 0) -> None:
        """Bring the open file into the state in which it is written on."""
        file = self._opened()
        try:
            with self._naming():
                if way in ("recover", "overwrite"):
                    file.truncate(length)
                file.seek(0, os.SEEK_END)
                self._packing = None if self._compression is None else Compressing(file, self._compression)
                if way == "append" and file.tell() > 0:
                    self._check_form()
                    self._go_behind(file)
                self._needs_head = file.tell() == 0
        except SinkError:
            self._file = None
            file.close()
            raise

    def _exists(self) -> SinkError:
        return SinkError(f"{self._path} exists: pass existing='append' or existing='overwrite'")

    def _held_by_another(self) -> SinkError:
        return SinkError(
            f"{self._path} is being written by another sink, of this job or of another: one at a time may; "
            "unite streams before the sink"
        )

    def _go_behind(self, file: BinaryIO) -> None:
        """
        End the last line of what is there already. Raises `OSError` if that is compressed, and its last piece
        has no end: nobody could read what is behind it.
        """
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        if self._packing is not None:
            last = b""
            with self._written(complete=True) as written:
                while data := written.read(BUFFER_BYTES):
                    last = data[-1:]
        if last not in (b"\n", b""):  # or the first element would go on its last line
            (self._packing or file).write(b"\n")

    def _written(self, *, complete: bool) -> BinaryIO:
        """What is in the file, from its beginning on; as `unpacked`."""
        return unpacked(open_file(self._at, "rb"), self._compression, complete=complete)

    def _write_head(self) -> None:
        if self._needs_head and (head := self._encoding.head()):
            (self._packing or self._opened()).write(head)
            self._needs_head = False

    def _begin_with(self, value: Any) -> None:
        """Write what comes before an element, if it is the first."""
        self._write_head()

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self._taken = 0
        file = self._opened()
        self._check_named()
        self._let_old_go()
        into = file if self._packing is None else self._packing
        encoding = self._encoding
        try:
            if values:
                self._begin_with(values[0])
            for start in range(0, len(values), TOGETHER):
                self._taken = start  # which counts if it fails; it is never cut short
                part = values[start : start + TOGETHER]
                if (lines := encoding.lines(part)) is not None:
                    into.write(lines)
                    continue
                for self._taken, value in enumerate(part, start):
                    try:
                        line = encoding.line(value)
                    except Exception as error:
                        raise SinkError(why_unwritten(value, self._path, error)) from error
                    # one by one: orjson's buffers are large until they are freed, so a list of lines is slow
                    into.write(line)
        except OSError as error:
            raise self._broken(error) from error

    def cut_short(self) -> None:
        self._is_whole = False

    async def flush(self) -> None:
        if self._is_old and not self._is_whole:
            return
        try:
            self._let_old_go()
            self._write_head()
            self._end_piece()
            self._opened().flush()
        except OSError as error:
            raise self._broken(error) from error
        self._check_named()

    def _check_named(self) -> None:
        """See whether what is written can be found by some name; with checkpoints each commit sees to it."""
        if self._has_name and not self._claim.is_held and not os.fstat(self._opened().fileno()).st_nlink:
            raise SinkBroken(
                f"{self._path} was deleted, or replaced by another file, while it was written: what was "
                "written is lost"
            )

    async def prepare(self, epoch: int) -> dict[str, Any]:
        file = self._opened()
        if self._failure is not None:
            raise self._broken(self._failure)
        try:
            self._end_piece()
            file.flush()
            length = file.tell()
            await aside(lambda: self._sync(file))
            self._claim.check_ours(file)
            self._check_unchanged(file)
            self._known = {"length": length, **fingerprint(file, length)}
            return {**self._known, "run": self._run}
        except OSError as error:
            raise self._broken(error) from error

    def _check_unchanged(self, file: BinaryIO) -> None:
        """See whether what the last position was behind is there still: a log is cut where it is, say."""
        found = difference(file, self._known["length"], self._known)
        if found is not None:
            raise SinkBroken(
                f"{self._path}, of which {self._known['length']} bytes were written, was changed meanwhile: "
                f"{found}"
            )

    def _end_piece(self) -> None:
        if self._packing is not None:
            self._packing.finish()

    def _broken(self, error: OSError) -> SinkBroken:
        """What was written may be gone, whatever a second try says: the next run writes it anew."""
        self._failure = error
        return lost(self._error(error), self._claim.is_held)

    def _sync(self, file: BinaryIO) -> None:
        os.fsync(file.fileno())
        if self._is_new:
            sync_folder(os.path.dirname(self._at))
            self._is_new = False

    async def commit(self, epoch: int) -> None:
        """What is in the file is in the file, if it is still this job's."""
        self._claim.check_ours(self._opened())
        self._claim.show(self.writer)

    async def close(self) -> None:
        self._is_closed = True
        file, self._file = self._file, None
        if file is not None:
            try:
                self._end_piece()
                file.flush()
                if self._claim.is_held:
                    size = os.fstat(file.fileno()).st_size
                    # or the next job would find it being taken, if this is cancelled
                    await carried_through(aside(partial(self._claim.release, size)))
            except OSError as error:
                if self._failure is None:  # else it was said before
                    raise self._error(error) from error
            finally:
                with suppress(OSError):  # over what it holds, which was refused just now
                    file.close()

    def _opened(self) -> BinaryIO:
        if self._file is None:
            raise SinkError(f"the sink of {self._path} is not open")
        return self._file

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> SinkError:
        if (folder := missing_folder(self._at)) is not None:
            return SinkError(f"cannot write {self._path}: there is no directory {folder}")
        return SinkError(f"cannot write {self._path}: {describe_error(error)}")


class JsonLinesSink(LineSink):
    """
    Writes one JSON value per line: plain values, dates, numpy, dataclasses and other records, and the results
    of windows as flat objects; `asyncstream.connectors.rows` says how each is written.

    Args:
        path: the file; its directory must exist.
        default: makes of a value of your own type one that can be written; raises `TypeError` for others.
        existing: what to do with a file that is there already: "refuse", "append" or "overwrite". Not asked
            where a job goes on from a checkpoint: then it goes on with its file.
        compression: "gzip", "zstd" or None; "infer": by the ending `.gz` or `.zst` of its name. To append to
            such a file reads it once.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        default: Default | None = None,
        existing: Literal["refuse", "append", "overwrite"] = "refuse",
        compression: Compression = "infer",
    ) -> None:
        super().__init__(path, existing, compression, JsonLines(default))
