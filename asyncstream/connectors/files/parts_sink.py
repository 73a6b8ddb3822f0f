"""
Sinks that write a folder of files: each epoch of a job is files of its own.

Files of columns cannot be appended to: one can be read when its end is written, and is done then. Nor can any
file of an object store. So each epoch has parts of its own, and everything that reads such files takes the
folder for one table. How they are called is in `parts`.

To commit is to rename, to take back is to delete, so the sink can go back to any checkpoint. A position is
the last part before it: those before that one may have been taken away by others meanwhile.
With `partition_by` each part is in the folder of its values, `day=2026-11-22/part-000007-...`, and an epoch
has at least one for each. Whose the folder is stands beside it: `claim`.

A job without checkpoints writes one file, under another name until all is in it; or, where that cannot be,
parts that are shown at the end. If it fails, what was there before stays as it is.

On a disk, writing happens in the event loop, as for files of lines; to an object store, in a thread.
"""

from __future__ import annotations

import logging
import os
import posixpath
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO, Final, Protocol, TypeVar

from asyncstream.aside import aside
from asyncstream.connectors.base import CountingSink, TransactionalSink
from asyncstream.connectors.files.claim import RECORD_BYTES, Claim, claim_of, fenced, lost
from asyncstream.connectors.files.part_files import PartFiles, PartWriter
from asyncstream.connectors.files.partitions import is_partition
from asyncstream.connectors.files.parts import Parts, hidden, is_shown, shown, unfinished
from asyncstream.connectors.files.storage import Work, storage_of
from asyncstream.connectors.lines import AnyPath, column_names
from asyncstream.connectors.rows import why_unwritten
from asyncstream.connectors.writer import allowed_ahead
from asyncstream.elements import Timestamps
from asyncstream.errors import SinkBroken, SinkError, describe_error, told_as
from asyncstream.filesystem.folders import missing_folder, roomy
from asyncstream.validation import choice, count, file_path

__all__ = ("Collected", "PartsSink")

log = logging.getLogger("asyncstream.sinks")

T = TypeVar("T")

_ERRORS: Final = (ValueError, TypeError, LookupError, NotImplementedError)
"""Of Arrow, whose own are among these."""


class Collected(Protocol):
    """Elements that are collected until they are written; `rows` of them."""

    @property
    def rows(self) -> int: ...

    def add(self, values: Sequence[Any]) -> tuple[int, Exception | None]:
        """Collect elements; gives how many were, and why the next one does not fit, if it does not."""

    def take(self) -> Iterable[tuple[str, Any]]:
        """What was collected, by the folders that it goes to; without partitions one, though it be empty."""


class PartsSink(CountingSink[Any], TransactionalSink[Any]):
    """
    What such sinks have in common; they differ in what is in a file. If `is_file`, a job without checkpoints
    writes one; otherwise always a folder. Files with `other_endings` are parts of it, too.
    """

    one_by_one = True

    def __init__(
        self,
        path: AnyPath,
        existing: str,
        partition_by: str | Sequence[str] | None,
        row_group: int,
        ending: str,
        *,
        is_file: bool,
        other_endings: Sequence[str] = (),
    ) -> None:
        self._path = file_path("path", path)
        self._storage = storage_of(self._path)
        self._existing = choice("existing", existing, ("refuse", "overwrite"))
        given = [partition_by] if isinstance(partition_by, str) else partition_by
        self._partition_by = [] if given is None else column_names(given, "partition_by")
        self._row_group = count("row_group", row_group)
        self._folder = Parts(self._path, self._storage, ending, other_endings)
        self._is_file = is_file and not self._partition_by
        if not self._storage.is_remote:
            roomy("path", self._path, len(f".{unfinished()}") if self._is_file else RECORD_BYTES)
        self._errors: tuple[type[Exception], ...] = (*_ERRORS, *self._storage.errors)
        self._work = Work(self._storage)
        self._claim: Claim = claim_of(self._path)
        self._is_whole = True
        self._begin()

    def _begin(self) -> None:
        self._collected: Collected | None = None
        self._files = PartFiles(self._storage, self._unfinished, self._writing_to)  # of this epoch
        self._run = ""
        self._parts: list[str] = []  # by their last names, prepared ones included
        self._committed = 0  # of these
        self._ends: dict[int, int] = {}  # how many there are at the end of an epoch
        self._has_epochs = False
        self._failure: Exception | None = None

    @abstractmethod
    def _collecting(self, part: str | None) -> Collected:
        """Something new to collect in, to go on after this part; raises what `_errors` says."""

    @abstractmethod
    def _writing_to(self, file: BinaryIO, rows: Any) -> PartWriter:
        """What writes to a new file, of which these are the first rows."""

    @property
    def place(self) -> str:
        """Where it writes, behind all links."""
        return self._claim.file

    def holds(self, place: str) -> bool:
        """Whether that is where it writes, a folder in there that is a partition, or a part."""
        name = place.removeprefix(self._storage.join(self.place, ""))
        is_inside = name != place
        return place == self.place or (is_inside and (is_partition(name) or self._folder.number(name) > 0))

    # ------------------------------------------------------------------ without checkpoints

    async def open(self) -> None:
        self._is_whole = True
        await self._do(self._open)

    def _open(self) -> None:
        if self._is_file and (self._path.endswith("/") or self._storage.is_folder(self._path)):
            raise SinkError(f"{self._path} is a directory: only a job with checkpoints writes one")
        if not self._is_file:
            self._check_folder()
        self._check_existing()
        self._check_place()
        self._begin()
        if not self._is_file:
            self._storage.make_folder(self._path)
        self._collected = self._collecting(None)

    def _check_existing(self) -> None:
        """Refuse what is there already, if that is not to be replaced, or is another job's."""
        self._claim.check_left()
        if self._existing == "refuse" and (
            self._storage.exists(self._path) if self._is_file else any(map(is_shown, self._folder.found()))
        ):
            raise self._exists()

    def _check_place(self) -> None:
        folder = None if self._storage.is_remote else missing_folder(self._storage.resolved(self._path))
        if folder is not None:
            raise SinkError(f"cannot write {self._path}: there is no directory {folder}")

    def _check_folder(self) -> None:
        if self._storage.exists(self._path) and not self._storage.is_folder(self._path):
            who = "a job with checkpoints" if self._is_file else "this sink"
            raise SinkError(f"{self._path} is a file, and {who} writes a directory of that name: move it")

    def _exists(self) -> SinkError:
        return SinkError(f"{self._path} exists: pass existing='overwrite' to replace it")

    def _finish(self) -> None:
        """Give what was written its name; for a job without checkpoints."""
        if self._collected is None or self._has_epochs:
            return
        self._end_parts()
        replaced = [] if self._is_file else self._folder.found()
        self._check_existing()  # another job may have written meanwhile
        if self._is_file:
            ((_, path),) = self._files.ended
            self._storage.rename(path, self.place)
            self._files.ended = []
        else:
            self._hide()
            self._check_alone(replaced)
            for name in replaced:
                self._storage.remove(self._folder.place(name))
            self._show(len(self._parts))
        self._collected = None

    def _check_alone(self, replaced: list[str]) -> None:
        """
        Refuse what another job has put there since: of two that end at one moment, the second to come to this
        finds the parts of the first, be they hidden still or not, or has taken them away before.
        """
        ours = list(map(hidden, self._parts))
        if set(self._folder.found()).difference(replaced, ours):
            self._collected = None  # closing it is no second try
            for name in ours:
                with suppress(FileNotFoundError):
                    self._storage.remove(self._folder.place(name))
            raise SinkError(f"{self._path} is being written by another job: one at a time may")

    # ------------------------------------------------------------------ going on

    async def fence(self) -> None:
        if self.writer is not None:
            await fenced(self._claim, self.writer)

    async def can_recover(self, position: dict[str, Any] | None) -> None:
        await self._do(partial(self._plan, position))

    def _plan(self, position: dict[str, Any] | None) -> int:
        """How many of the parts stay; changes nothing. Raises `SinkError` if it cannot go on from there."""
        record = self._claim.left_to(self.writer)
        self._check_folder()
        parts = self._folder.found()
        visible = sum(map(is_shown, parts))
        if position is None:
            if self._existing == "overwrite" or not visible:
                return 0
            if record is None:
                raise self._exists()
            stays = 0
        else:
            last = position["last"]
            names = [None, *map(shown, parts)]
            if last not in names:
                raise SinkError(
                    f"{self._path} lacks {last}, the last file of the checkpoint: it was taken away, or a "
                    "job went on from an earlier one since, or it is another directory. Put the file back, "
                    "or begin at the beginning, with restore='none'"
                )
            stays = names.index(last)
            is_own = record is None or record.run == position["run"]
            if is_own and not self._claim.stays(record, self.writer):
                return stays
        return visible if allowed_ahead(self.writer, self._path) == "allow_behind" else stays

    async def recover(self, position: dict[str, Any] | None) -> None:
        await self._do(partial(self._recover, position))

    def _recover(self, position: dict[str, Any] | None) -> None:
        self._check_place()
        with self._claim.taking():
            self._take(self._plan(position), position)

    def _take(self, stays: int, position: dict[str, Any] | None) -> None:
        """Bring the folder into the state of a position, as the only one who writes it."""
        self._begin()
        self._storage.make_folder(self._path)
        self._parts, self._committed = self._folder.clear(stays)
        if position is not None and stays < position["parts"]:
            found = f"{stays} of the {position['parts']}"
            log.warning("%s has %s files of the checkpoint; others were taken away", self._path, found)
        self._show(stays)
        self._collected = self._collecting(self._parts[-1] if self._parts else None)
        self._has_epochs = True
        last = self._parts[-1] if self._parts else None
        if position is not None and last == position["last"]:
            self._run = position["run"]
        else:  # what others have written is kept, or there is nothing
            self._run = os.urandom(8).hex()
        self._claim.take(self._run, 0, self.writer)

    def _show(self, end: int) -> None:
        """Commit the parts up to this one."""
        folders = {""}
        for name in self._parts[self._committed : end]:
            try:
                self._storage.rename(self._folder.place(hidden(name)), self._folder.place(name))
            except FileNotFoundError:
                if not self._storage.exists(self._folder.place(name)):
                    raise
            folders.add(posixpath.dirname(name))
            self._committed += 1
        for folder in folders:
            self._storage.settle(self._folder.place(folder))

    # ------------------------------------------------------------------ writing

    def _opened(self) -> Collected:
        if self._collected is None:
            raise SinkError(f"the sink of {self._path} is not open")
        return self._collected

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self._taken = 0
        collected = self._opened()
        self._taken, error = collected.add(values)
        if error is not None:
            raise SinkError(why_unwritten(values[self._taken], self._path, error)) from error
        if collected.rows >= self._row_group:
            with self._writing():
                await self._work.do(self._write_rows)

    def _write_rows(self) -> None:
        """Write what is collected; without anything, at least a file."""
        collected = self._opened()
        if collected.rows or not self._files.are_there():
            for folder, rows in collected.take():
                self._files.write(folder, rows)

    def _unfinished(self, folder: str) -> str:
        name = unfinished()
        if self._is_file and not self._has_epochs:
            return self._storage.beside(self.place, name)
        return self._folder.place(posixpath.join(folder, name))

    def _end_parts(self) -> None:
        """Write what is collected, and the end of each file."""
        self._write_rows()
        self._files.end()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """In this block what was taken comes to the disk, or may be lost."""
        if self._failure is not None:
            raise self._broken(self._failure)
        try:
            yield
        except SinkError:
            raise
        except self._errors as error:
            raise self._broken(error) from error

    def _broken(self, error: Exception) -> SinkBroken:
        self._failure = error
        return lost(f"cannot write {self._path}: {describe_error(error)}", self._has_epochs)

    def cut_short(self) -> None:
        self._is_whole = False

    async def flush(self) -> None:
        self._opened()
        if self._is_whole and not self._has_epochs:
            with self._writing():
                await self._work.do(self._finish)

    # ------------------------------------------------------------------ epochs

    async def prepare(self, epoch: int) -> dict[str, Any]:
        collected = self._opened()
        if collected.rows or self._files.are_there():
            with self._writing():
                await self._work.do(self._end_parts)
                # in a thread: a disk may take seconds to say that it has them
                await aside(partial(self._sync, [path for _, path in self._files.ended]))
                await self._work.do(self._hide_ours)
        await self._work.do(self._claim.check_record)
        self._ends[epoch] = len(self._parts)
        return {"run": self._run, "parts": len(self._parts), "last": self._parts[-1] if self._parts else None}

    def _sync(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._storage.sync(path)

    def _hide_ours(self) -> None:
        with self._claim.taking():
            self._claim.check_record()
            self._hide()

    def _hide(self) -> None:
        """Make the files that were written parts that are prepared."""
        last = self._folder.number(self._parts[-1]) if self._parts else 0
        for number, (folder, path) in enumerate(self._files.ended, last + 1):
            name = self._folder.named(folder, number)
            self._storage.rename(path, self._folder.place(hidden(name)))
            self._storage.settle(self._folder.place(folder))
            self._parts.append(name)
        self._files.ended = []

    async def commit(self, epoch: int) -> None:
        end = self._ends.pop(epoch, len(self._parts))
        await self._do(partial(self._commit, end))

    def _commit(self, end: int) -> None:
        with self._claim.taking():
            self._claim.check_record()
            self._show(end)
        self._claim.show(self.writer)

    async def close(self) -> None:
        try:
            await self._do(self._close)
        finally:
            self._work.end()

    def _close(self) -> None:
        collected, has_epochs = self._collected, self._has_epochs
        try:
            if collected is not None and self._failure is None and self._is_whole and not has_epochs:
                self._finish()
        finally:
            self._collected = None
            self._files.throw_away(self._errors)  # of an epoch that no checkpoint knows
            if collected is not None and has_epochs:
                self._claim.release(len(self._parts))

    async def _do(self, work: Callable[[], T]) -> T:
        with told_as(SinkError, f"write {self._path}", *self._errors):
            return await self._work.do(work)
