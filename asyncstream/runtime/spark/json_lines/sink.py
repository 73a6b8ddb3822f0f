"""
A folder with a file for each micro-batch, which is there as a whole or not at all.

A task writes its rows into a hidden subfolder. When all tasks have ended, the driver makes one file of theirs
and gives it the name of the micro-batch, in one step. A micro-batch that Spark runs again after a crash gets
the same name, so that its file replaces the one before. What crashed tasks left in the subfolder goes when a
later micro-batch is committed.

The name begins with that of the query, which Spark keeps in the checkpoint: a query that is started afresh
cannot replace what another one has written.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from asyncstream.errors import SinkError, describe_error
from asyncstream.filesystem.folders import sync_folder
from asyncstream.runtime.spark.json_lines.columns import lines_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ("BatchFolder", "Written")

UNFINISHED: Final = ".unfinished"

_BUFFER_BYTES: Final = 2**20


class Written(NamedTuple):
    """What a task has written, of a partition of a micro-batch of a query; without rows there is no file."""

    query: str
    number: int
    partition: int
    path: str | None


class BatchFolder:
    """
    Args:
        path: the folder; made if it is not there. Driver and workers must see it alike.
        existing: what to do if others have written to it: "refuse" or "append".
    """

    def __init__(self, path: str, existing: str) -> None:
        self._folder = Path(path)
        self._existing = existing

    def write(self, query: str, number: int, partition: int, batches: Iterable[pa.RecordBatch]) -> Written:
        """Write the rows of a task aside; raises `SinkError` if they cannot be written."""
        path = self._aside(query, number, f"{partition:05}-{uuid4().hex[:8]}")
        rows = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb", buffering=_BUFFER_BYTES) as file:
                for batch in batches:
                    rows += batch.num_rows
                    file.writelines(lines_of(batch))
                file.flush()
                os.fsync(file.fileno())
        except Exception as error:
            path.unlink(missing_ok=True)
            if isinstance(error, OSError | TypeError):  # TypeError: of orjson
                raise SinkError(f"cannot write {path}: {describe_error(error)}") from error
            raise
        if not rows:
            path.unlink()
        return Written(query, number, partition, str(path) if rows else None)

    def commit(self, written: Sequence[Written]) -> None:
        """
        Make what the tasks have written the file of their micro-batch, in place of the one it had before;
        raises `SinkError` if that fails, or if others, or later micro-batches, have written to the folder.
        """
        if not written:
            return
        query, number, *_ = written[0]
        parts = [each.path for each in sorted(written, key=lambda each: each.partition) if each.path]
        final = self._folder / f"{_prefix(query)}{number:08}.jsonl"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._check_others(query, number)
            if parts:
                whole = parts[0] if len(parts) == 1 else self._joined(query, number, parts)
                os.replace(whole, final)
            else:
                final.unlink(missing_ok=True)
            sync_folder(self._folder)
            self._clean(query, number)
        except OSError as error:
            raise SinkError(f"cannot write {final}: {describe_error(error)}") from error

    def abort(self, written: Sequence[Written]) -> None:
        """Remove what the tasks have written."""
        if written:
            self._clean(written[0].query, written[0].number)

    def _check_others(self, query: str, number: int) -> None:
        for name in os.listdir(self._folder):
            if not name.endswith((".jsonl", ".jsonl.gz")) or name.startswith("."):
                continue
            if name.startswith(_prefix(query)):
                other = name.removeprefix(_prefix(query)).partition(".")[0]
                if other.isdecimal() and int(other) > number:
                    raise SinkError(
                        f"{self._folder} holds {name} of a later micro-batch than {number}, so Spark "
                        "goes on from an older copy of the checkpoint: start from the one that belongs to "
                        f"the folder, or remove what {number} and later ones have written"
                    )
            elif self._existing != "append":
                raise SinkError(
                    f"{self._folder} holds what others have written, such as {name}: take another folder, or "
                    "pass existing='append'; a query that goes on needs the checkpoint it had"
                )

    def _joined(self, query: str, number: int, parts: Sequence[str]) -> Path:
        whole = self._aside(query, number, "whole")
        with whole.open("wb") as file:
            for part in parts:
                with open(part, "rb") as source:
                    shutil.copyfileobj(source, file, _BUFFER_BYTES)
            file.flush()
            os.fsync(file.fileno())
        return whole

    def _clean(self, query: str, number: int) -> None:
        """Remove what was written aside for this micro-batch and for those before it."""
        prefix = _prefix(query)
        for path in (self._folder / UNFINISHED).glob(f"{prefix}*"):
            if int(path.name.removeprefix(prefix).split("-")[0]) <= number:
                path.unlink(missing_ok=True)

    def _aside(self, query: str, number: int, name: str) -> Path:
        return self._folder / UNFINISHED / f"{_prefix(query)}{number:08}-{name}"


def _prefix(query: str) -> str:
    return f"{query[:8]}-"
