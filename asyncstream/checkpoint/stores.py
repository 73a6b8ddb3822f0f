"""
Where checkpoints are kept: in memory, in a directory, in an SQLite file.

A store keeps bytes under numbers and knows nothing of what they mean. What it must get right is that a
checkpoint is there as a whole or not at all, also if the machine stops in the middle, and that it stays there
once `save` has returned.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from asyncstream.arguments import refuse
from asyncstream.errors import CheckpointError, describe_error

__all__ = ("CheckpointStore", "DirectoryStore", "MemoryStore", "SqliteStore")

T = TypeVar("T")


@runtime_checkable
class CheckpointStore(Protocol):
    """Keeps checkpoints, each under its number. One job at a time uses a store."""

    async def save(self, number: int, data: bytes) -> None:
        """
        Keep `data`. When this returns it is safe; if it does not return, `data` is there as a whole, or not.

        May raise anything: the pipeline goes on, and tries again with the next checkpoint.
        """

    async def load(self, number: int) -> bytes:
        """What is kept under `number`; raises `CheckpointError` if nothing is."""

    async def numbers(self) -> list[int]:
        """The numbers of all checkpoints, in ascending order."""

    async def delete(self, number: int) -> None:
        """Forget a checkpoint; nothing happens if there is none."""


class MemoryStore:
    """Keeps checkpoints for as long as it lives itself: for tests."""

    def __init__(self) -> None:
        self._kept: dict[int, bytes] = {}

    def __str__(self) -> str:
        return "memory"

    async def save(self, number: int, data: bytes) -> None:
        self._kept[number] = data

    async def load(self, number: int) -> bytes:
        if number not in self._kept:
            raise CheckpointError(f"there is no checkpoint {number}")
        return self._kept[number]

    async def numbers(self) -> list[int]:
        return sorted(self._kept)

    async def delete(self, number: int) -> None:
        self._kept.pop(number, None)


class DirectoryStore:
    """
    Keeps each checkpoint as a file of a directory, named `00000042.checkpoint`.

    A file is written under another name, brought to the disk, and renamed; then the directory is brought to
    the disk. So a file with such a name is whole, unless the disk itself lost something.

    Args:
        path: the directory; made with the first checkpoint if its parent is there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise refuse("path", "the path of a directory", path)
        self._path = Path(path)

    def __str__(self) -> str:
        return str(self._path)

    async def save(self, number: int, data: bytes) -> None:
        await asyncio.to_thread(self._save, number, data)

    def _save(self, number: int, data: bytes) -> None:
        self._path.mkdir(exist_ok=True)
        file, temporary = tempfile.mkstemp(dir=self._path, prefix=f"{number:08}.", suffix=_UNFINISHED)
        try:
            with open(file, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, self._file(number))
        except BaseException:
            os.unlink(temporary)
            raise
        self._sync()

    def _sync(self) -> None:
        """Bring the directory itself to the disk, or a rename may be undone by a power cut."""
        if os.name == "nt":  # where a directory cannot be opened
            return
        folder = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    async def load(self, number: int) -> bytes:
        return await asyncio.to_thread(self._load, number)

    def _load(self, number: int) -> bytes:
        try:
            return self._file(number).read_bytes()
        except FileNotFoundError:
            raise CheckpointError(f"there is no checkpoint {number} in {self._path}") from None

    async def numbers(self) -> list[int]:
        return await asyncio.to_thread(self._numbers)

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self._path)
        except FileNotFoundError:
            return []
        stems = (name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    async def delete(self, number: int) -> None:
        await asyncio.to_thread(self._delete, number)

    def _delete(self, number: int) -> None:
        self._file(number).unlink(missing_ok=True)
        # what a crash left behind in the middle of a write that is older than this one
        for leftover in self._path.glob(f"*{_UNFINISHED}"):
            stem = leftover.name.partition(".")[0]
            if stem.isdecimal() and int(stem) <= number:
                leftover.unlink(missing_ok=True)

    def _file(self, number: int) -> Path:
        return self._path / f"{number:08}{_ENDING}"


_ENDING = ".checkpoint"
_UNFINISHED = ".unfinished"


class SqliteStore:
    """
    Keeps checkpoints in a table of an SQLite database, in WAL mode, every write brought to the disk.

    Args:
        path: the database file; made if it is not there.
        table: the table's name; made if it is not there.
    """

    def __init__(self, path: str | os.PathLike[str], *, table: str = "asyncstream_checkpoints") -> None:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise refuse("path", "the path of a database file", path)
        if not isinstance(table, str) or not table.isidentifier():
            raise refuse("table", "a name of letters, digits and underscores", table)
        self._path = os.fspath(path)
        self._table = table

    def __str__(self) -> str:
        return str(self._path)

    async def save(self, number: int, data: bytes) -> None:
        await self._do(
            lambda database: database.execute(
                f"INSERT OR REPLACE INTO {self._table} VALUES (?, ?)", (number, data)
            )
        )

    async def load(self, number: int) -> bytes:
        query = f"SELECT data FROM {self._table} WHERE number = ?"
        row = await self._do(lambda database: database.execute(query, (number,)).fetchone())
        if row is None:
            raise CheckpointError(f"there is no checkpoint {number} in {self._path}")
        return bytes(row[0])

    async def numbers(self) -> list[int]:
        query = f"SELECT number FROM {self._table} ORDER BY number"
        return [row[0] for row in await self._do(lambda database: database.execute(query).fetchall())]

    async def delete(self, number: int) -> None:
        statement = f"DELETE FROM {self._table} WHERE number = ?"
        await self._do(lambda database: database.execute(statement, (number,)))

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.to_thread(self._transaction, work)

    def _transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        # a connection each time: it may be another thread, and what is wrong with the file shows at once
        try:
            with closing(sqlite3.connect(self._path)) as database, database:
                database.execute("PRAGMA journal_mode=WAL")
                database.execute("PRAGMA synchronous=FULL")
                database.execute(
                    f"CREATE TABLE IF NOT EXISTS {self._table} "
                    "(number INTEGER PRIMARY KEY, data BLOB NOT NULL)"
                )
                return work(database)
        except sqlite3.Error as error:
            raise CheckpointError(f"{self._path}: {describe_error(error)}") from error
