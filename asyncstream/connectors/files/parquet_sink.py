"""
Parquet files as sinks. The source is in `parquet_source`. Needs the extra [arrow].

A Parquet file cannot be appended to: it can be read when its end is written, and is done then. So a job
without checkpoints writes one file, under another name until all is in it. A job with checkpoints writes a
directory, which everything that reads Parquet takes for one table: each epoch is a part of its own:

    .<random>.unfinished          is being written
    .part-000007-<random>.parquet    prepared: hidden from readers, and complete
    part-000007-<random>.parquet     committed

To commit is to rename, to take back is to delete, so the sink can go back to any checkpoint. What is random
in a name tells a part from another one of its number, which a job that went on from elsewhere has written.
Whose the directory is stands beside it: `claim`.

Writing happens in the event loop, as for files of lines.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Literal

from asyncstream.aside import aside
from asyncstream.connectors.base import TransactionalSink, ahead_of_checkpoint
from asyncstream.connectors.files.arrow import Tables, parquet
from asyncstream.connectors.files.claim import Claim, Record, fenced
from asyncstream.connectors.lines import AnyPath, column_names, file_path
from asyncstream.connectors.rows import Default, why_unwritten
from asyncstream.elements import Timestamps
from asyncstream.errors import SinkBroken, SinkError, describe_error
from asyncstream.validation import choice, count, refuse

__all__ = ("ParquetSink",)

_PART: Final = re.compile(r"\.?(part-(\d{6,})-[0-9a-f]{8}\.parquet)")

_UNFINISHED: Final = ".unfinished"

_ERRORS: Final = (OSError, ValueError, TypeError, LookupError, NotImplementedError)
"""Of disks, and of Arrow, whose own are among these."""


class ParquetSink(TransactionalSink[Any]):
    """
    Writes mappings and other records, such as dataclasses and the results of windows, as Parquet: to one
    file, or in a job with checkpoints to a directory of files.

    Args:
        path: the file or directory; the directory it is in must exist.
        schema: of pyarrow. None: that of the elements up to the first row group or checkpoint, or of what is
            gone on with; later ones must fit, and what they lack is null. A column that is empty until then
            holds text.
        columns: take these of each element, which must have them; others are left out. None: all.
        default: makes of a value of your own type one that can be written; raises `TypeError` for others.
        existing: what to do with what is there already: "refuse" or "overwrite". Not asked where a job goes
            on from a checkpoint.
        row_group: how many rows are collected and written together; they are in memory meanwhile.

    Raises:
        MissingExtra: if pyarrow is not installed.
    """

    one_by_one = True

    def __init__(
        self,
        path: AnyPath,
        *,
        schema: Any = None,
        columns: Sequence[str] | None = None,
        default: Default | None = None,
        existing: Literal["refuse", "overwrite"] = "refuse",
        row_group: int = 20_000,
    ) -> None:
        self._parquet = parquet()
        self._path = file_path(path)
        if schema is not None and not hasattr(schema, "empty_table"):
            raise refuse("schema", "a pyarrow.Schema", schema)
        if schema is not None and columns is not None:
            raise refuse("columns", "none, for a schema names them", columns)
        self._given = schema
        self._columns = None if columns is None else column_names(columns)
        if schema is not None:
            self._columns = list(schema.names)
        self._default = default
        self._existing = choice("existing", existing, ("refuse", "overwrite"))
        self._row_group = count("row_group", row_group)
        self._claim = Claim(self._path)
        Tables(self._columns, schema, default)  # refuses what `default` must not be
        self._tables: Tables | None = None
        self._writer: Any = None
        self._unfinished = ""  # the file that is being written
        self._run = ""
        self._parts: list[str] = []  # by their last names, prepared ones included
        self._committed = 0  # of these
        self._ends: dict[int, int] = {}  # how many there are at the end of an epoch
        self._has_epochs = False
        self._failure: Exception | None = None
        self._taken = 0

    # ------------------------------------------------------------------ one file

    async def open(self) -> None:
        if os.path.isdir(self._path):  # noqa: ASYNC240 - as quick as all else that is done here
            raise SinkError(f"{self._path} is a directory: only a job with checkpoints writes one")
        if self._existing == "refuse" and os.path.exists(self._path):  # noqa: ASYNC240
            raise self._exists()
        self._begin(None)
        self._has_epochs = False

    def _begin(self, schema: Any) -> None:
        folder = os.path.dirname(os.path.abspath(self._path))
        if not os.path.isdir(folder):
            raise SinkError(f"cannot write {self._path}: there is no directory {folder}")
        known = self._given if schema is None else schema
        self._tables = Tables(self._columns, known, self._default)
        self._failure, self._unfinished = None, ""

    def _exists(self) -> SinkError:
        return SinkError(f"{self._path} exists: pass existing='overwrite' to replace it")

    def _finish(self) -> None:
        """Give what was written its name; for a job without checkpoints."""
        if self._tables is None or self._has_epochs:
            return
        self._write_group()
        self._close_writer()
        os.replace(self._unfinished, self._path)
        self._tables = None

    # ------------------------------------------------------------------ going on

    async def fence(self) -> None:
        if self.writer is not None:
            await fenced(self._claim, self.writer)

    async def can_recover(self, position: dict[str, Any] | None) -> None:
        self._plan(position)

    def _plan(self, position: dict[str, Any] | None) -> int:
        """
        How many of the parts stay; changes nothing.

        Raises:
            SinkError: if it cannot go on from there.
        """
        record = self._claim.read()
        if self.writer is not None and record is not None:
            self.writer.check_follows(record.holder(), self._path, record.fence)
        if os.path.exists(self._path) and not os.path.isdir(self._path):
            raise SinkError(
                f"{self._path} is a file, and a job with checkpoints writes a directory of that name: move it"
            )
        parts = self._found()
        visible = sum(name[0] != "." for name in parts)
        if position is None:
            if self._existing == "overwrite" or not visible:
                return 0
            if record is None:
                raise self._exists()
            stays = 0
        else:
            stays = int(position["parts"])
            names = [name.removeprefix(".") for name in parts]
            if stays and names[stays - 1 : stays] != [position["last"]]:
                raise SinkError(
                    f"{self._path} lacks results that were there at the checkpoint, or has others in their "
                    "place: since then a job went on from an earlier one, or it is another directory"
                )
            if record is None or record.run == position["run"]:
                return stays
        ahead = "refuse" if self.writer is None else self.writer.ahead
        if ahead == "refuse":
            raise ahead_of_checkpoint(self._path)
        return visible if ahead == "allow_behind" else stays

    def _found(self) -> list[str]:
        """The names of the parts that are there, hidden ones included, in order."""
        try:
            names = os.listdir(self._path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._error(error) from error
        found = [(int(match[2]), match[1], name) for name in names if (match := _PART.fullmatch(name))]
        return [name for _, _, name in sorted(found)]

    async def recover(self, position: dict[str, Any] | None) -> None:
        try:
            with self._claim.taking():
                self._take(self._plan(position), position)
        except _ERRORS as error:
            raise self._error(error) from error

    def _take(self, stays: int, position: dict[str, Any] | None) -> None:
        """Bring the directory into the state of a position, as the only one who writes it."""
        os.makedirs(self._path, exist_ok=True)
        parts = self._found()
        for name in os.listdir(self._path):
            if name in parts[stays:] or (name[0] == "." and name.endswith(_UNFINISHED)):
                os.unlink(os.path.join(self._path, name))
        self._parts = [self._show(name) for name in parts[:stays]]
        self._committed, self._ends = stays, {}
        self._sync_folder()
        schema = self._parquet.read_schema(self._part(self._parts[-1])) if self._parts else None
        self._begin(schema)
        self._has_epochs = True
        self._run = os.urandom(8).hex() if position is None else position["run"]
        lease = None if self.writer is None else self.writer.lease.to_json().decode()
        self._claim.write(Record(self._run, 0, lease))

    def _part(self, name: str) -> str:
        return os.path.join(self._path, name)

    def _show(self, name: str) -> str:
        """Commit a part, if it is not yet; gives its last name."""
        shown = name.removeprefix(".")
        if shown != name:
            os.rename(self._part(name), self._part(shown))
        return shown

    def _sync_folder(self) -> None:
        if os.name != "nt":
            folder = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    # ------------------------------------------------------------------ writing

    def _opened(self) -> Tables:
        if self._tables is None:
            raise SinkError(f"the sink of {self._path} is not open")
        return self._tables

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        tables = self._opened()
        self._taken = 0
        self._taken, error = tables.add(values)
        if error is not None:
            raise SinkError(why_unwritten(values[self._taken], self._path, error)) from error
        if tables.rows >= self._row_group:
            self._writing(self._write_group)

    def taken(self) -> int:
        return self._taken

    def _write_group(self) -> None:
        """Write what is collected; without anything, at least a file."""
        tables = self._opened()
        if self._writer is None:
            table = tables.take()
            folder, name = os.path.split(os.path.abspath(self._path))
            random = os.urandom(4).hex()
            if self._has_epochs:
                self._unfinished = self._part(f".{random}{_UNFINISHED}")
            else:
                self._unfinished = os.path.join(folder, f".{name}.{random}{_UNFINISHED}")
            self._writer = self._parquet.ParquetWriter(self._unfinished, table.schema)
            self._writer.write_table(table)
        elif tables.rows:
            self._writer.write_table(tables.take())

    def _close_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _writing(self, work: Any) -> Any:
        """Do work by which what was taken comes to the disk, or may be lost."""
        if self._failure is not None:
            raise self._broken(self._failure)
        try:
            return work()
        except _ERRORS as error:
            raise self._broken(error) from error

    def _broken(self, error: Exception) -> SinkBroken:
        self._failure = error
        return SinkBroken(
            f"{self._error(error)}; what was written since the last checkpoint is lost, and is written "
            "again by the next run"
        )

    async def flush(self) -> None:
        self._opened()
        if not self._has_epochs:
            self._writing(self._finish)

    # ------------------------------------------------------------------ epochs

    async def prepare(self, epoch: int) -> dict[str, Any]:
        tables = self._opened()
        if tables.rows or self._writer is not None:
            self._writing(self._write_group)
            self._writing(self._close_writer)
            path = self._unfinished
            try:
                await aside(lambda: _sync(path))
            except OSError as error:
                raise self._broken(error) from error
            self._writing(self._hide)
        self._claim.check_record()
        self._ends[epoch] = len(self._parts)
        return {
            "run": self._run,
            "parts": len(self._parts),
            "last": self._parts[-1] if self._parts else None,
        }

    def _hide(self) -> None:
        """Make the file that is written a part that is prepared."""
        with self._claim.taking():
            self._claim.check_record()
            number = int(_PART.fullmatch(self._parts[-1])[2]) + 1 if self._parts else 1  # type: ignore[index]
            name = f"part-{number:06}-{os.urandom(4).hex()}.parquet"
            os.rename(self._unfinished, self._part(f".{name}"))
            self._sync_folder()
            self._parts.append(name)

    async def commit(self, epoch: int) -> None:
        end = self._ends.pop(epoch, len(self._parts))
        try:
            with self._claim.taking():
                self._claim.check_record()
                for name in self._parts[self._committed : end]:
                    self._show(f".{name}")
                    self._committed += 1
                self._sync_folder()
        except OSError as error:
            raise self._error(error) from error

    async def close(self) -> None:
        tables, has_epochs = self._tables, self._has_epochs
        try:
            if tables is not None and self._failure is None:
                if not has_epochs:
                    self._finish()
                elif self._writer is not None:
                    self._writer.close()
        except _ERRORS as error:
            raise self._error(error) from error
        finally:
            self._tables = self._writer = None
            if self._unfinished:
                with suppress(OSError):
                    os.unlink(self._unfinished)  # of a part that no checkpoint knows; else it has its name
            if tables is not None and has_epochs:
                self._claim.release(len(self._parts))

    def _error(self, error: Exception) -> SinkError:
        return SinkError(f"cannot write {self._path}: {describe_error(error)}")


def _sync(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
