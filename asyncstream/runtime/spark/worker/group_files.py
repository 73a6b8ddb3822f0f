"""
The tables of large key groups in files, one for a group, which the workers of an executor hand to each other.

Spark hands the groups of a partition now to this worker, now to that, and all of them may be more than a
worker has memory for (`group_memory`). A worker that does not hold the tables of a group has to read all of
its log, though a micro-batch touches a few keys. So they lie in a file, of which rows are read that are
touched.

A file goes by the token of the position in the log (`group_log`) at which its tables are. It is taken by
giving it another name, in which of all workers one alone succeeds, and when its tables are at the next
position it is named after that. So it is found at its position only, and once: whatever Spark runs twice or
gives up, and whatever a killed worker was at, finds no file, or is found by nothing, and the log is read. A
file that is damaged, a full disk and a directory that is gone are no errors either.

The files lie in the executor's own directory, which Spark removes with the executor. Until then a worker that
does not find the file of a log removes others of that log; and what nothing has touched for an hour goes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from asyncstream.clock import SystemClock
from asyncstream.errors import describe_error
from asyncstream.runtime.spark.wire.values import Classes, dumps, loads
from asyncstream.runtime.spark.worker.group_log import Position
from asyncstream.state import DiskRows, StoredFile, Table, Tables

__all__ = ("GroupFile", "GroupFiles")

logger = logging.getLogger(__name__)

STALE_MS: Final = 3_600_000
"""Milliseconds after which a file that nothing has touched is removed: it costs one look into the log."""

_SWEEP_MS: Final = 600_000
"""Milliseconds between two looks for such files."""

_HASHES: Final = hash(("asyncstream", b"state", None))
"""Rows are found by the hashes of their keys: this tells processes apart that hash otherwise."""

_numbers = count()
_swept_ms: dict[str, int] = {}
_refused: set[bytes] = set()
"""Logs of which this worker could not bring the tables into a file."""


class GroupFile:
    """
    The tables of one group, taken.

    Attributes:
        tables: by step; those of `Tables` that another has handed on.

    Args:
        path: where the file is while it is taken.
        classes: as for `loads`.

    Raises:
        Exception: if it cannot be used.
    """

    def __init__(self, path: str, classes: Classes) -> None:
        self._path = path
        self._stored = StoredFile(path, dumps, partial(loads, classes=classes))
        self._rows: dict[tuple[str, str], DiskRows] = {}
        self.tables: dict[str, Tables] = {}

    def read(self) -> None:
        """Have `tables` of what is in the file; raises `Exception` if it cannot be used."""
        hashes, self._stored.tables, about = self._stored.loads(self._stored.about() or b"")
        if hashes != _HASHES:
            raise ValueError("it is of a process that hashes otherwise")
        for step, kept in about.items():
            self.tables[step] = of_step = Tables()
            for name, compound, kept_rows in kept:
                rows = self._rows[step, name] = DiskRows.reopened(self._stored, kept_rows)
                table = of_step.declare(Table(name, compound=compound, old=rows))
                table.has_older = len(rows) > 0

    @property
    def is_broken(self) -> bool:
        """Whether rows may be gone, so what has been done with them is good for nothing."""
        return self._stored.broken is not None

    def hand_on(self, tables: Mapping[str, Tables], path: str) -> bool:
        """
        Have these tables, which have just been merged, in the file, for others to find there; whether that
        could be done.

        Args:
            path: where others look for it.
        """
        try:
            about = {step: [self._about(step, table) for table in tables[step].every()] for step in tables}
            self._stored.hand_on(self._stored.dumps((_HASHES, self._stored.tables, about)))
            os.rename(self._path, path)
        except Exception as error:
            logger.warning("the state of a key group is read anew: %s", describe_error(error))
            self.discard()
            return False
        return True

    def _about(self, step: str, table: Table) -> tuple[str, bool, Any]:
        rows = self._rows.get((step, table.name)) if table.is_remote else None
        if rows is None:
            rows = DiskRows(self._stored)
            table.bring_old_to(rows)
        return table.name, table.compound, rows.kept()

    def discard(self) -> None:
        """Have no such file."""
        self._stored.close()
        with suppress(OSError):
            os.unlink(self._path)


class GroupFiles:
    """Where a worker finds the files of groups."""

    def __init__(self, classes: Classes) -> None:
        self._classes = classes
        self._directories = _directories()

    def take(self, position: Position) -> GroupFile | None:
        """The file whose tables are at this position, if there is one; nothing else finds it from now on."""
        if not self._directories or not position.log or position.is_small:
            return None
        path, mine = self._path(position), self._own_path(position)
        try:
            os.rename(path, mine)
        except OSError:
            self._remove(position)
            return None
        found = self._opened(mine)
        if found is not None:
            try:
                found.read()
            except Exception as error:
                logger.warning("the state of a key group is read anew: %s", describe_error(error))
                found.discard()
                return None
        return found

    def keep(self, file: GroupFile | None, position: Position, tables: Mapping[str, Tables]) -> bool:
        """
        Hand on tables that are at this position and have just been merged, unless they are few rows or cannot
        be kept in a file. Whether this has been seen to; otherwise they are in memory, and may be held there.

        Args:
            file: the one that they are in; None: they are in memory.
        """
        if file is not None:
            if position.is_small:
                file.discard()
            else:
                file.hand_on(tables, self._path(position))
            return True
        if not self._directories or position.is_small or position.log in _refused:
            return False
        file = self._opened(self._own_path(position))
        if file is None:
            return False
        if not file.hand_on(tables, self._path(position)):
            _refused.add(position.log)
        return True

    def _opened(self, path: str) -> GroupFile | None:
        try:
            return GroupFile(path, self._classes)
        except Exception as error:
            logger.warning("the state of a key group cannot be kept in a file: %s", describe_error(error))
            with suppress(OSError):
                os.unlink(path)
            return None

    def _path(self, position: Position) -> str:
        directory = self._directories[position.log[0] % len(self._directories)]
        return f"{directory}/{position.log.hex()}.{position.token.hex()}"

    def _own_path(self, position: Position) -> str:
        return f"{self._path(position)}.{os.getpid()}.{next(_numbers)}"

    def _remove(self, position: Position) -> None:
        """What there is of this log, of positions that are not to be found any more."""
        path = Path(self._path(position))
        with suppress(OSError):
            for other in path.parent.glob(f"{position.log.hex()}.*"):
                other.unlink()


def _directories() -> list[str]:
    """Those of the executor that runs this worker, one on each of the disks that it was given."""
    found = []
    for local in filter(None, os.environ.get("SPARK_LOCAL_DIRS", "").split(",")):
        directory = f"{local}/asyncstream-state"
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError:
            continue
        _sweep(directory)
        found.append(directory)
    return found


def _sweep(directory: str) -> None:
    """Remove what is stale, if that has not been done lately."""
    now_ms = SystemClock().now_ms()
    if now_ms - _swept_ms.get(directory, 0) < _SWEEP_MS:
        return
    _swept_ms[directory] = now_ms
    for path in Path(directory).iterdir():
        with suppress(OSError):  # another worker was quicker
            if path.stat().st_mtime * 1000 < now_ms - STALE_MS:
                path.unlink()
