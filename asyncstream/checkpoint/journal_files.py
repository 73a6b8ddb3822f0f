"""
Where the journal of finished calls lies: files that grow at their end, and are read once.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from asyncstream.aside import aside, done_aside
from asyncstream.filesystem.folders import contents, sync_folder
from asyncstream.filesystem.own_files import open_own

__all__ = ("FolderFiles", "JournalFiles")


class JournalFiles(Protocol):
    """
    Files by name. `append` is called in the event loop, and is to be quick.

    A checkpoint store that has a place for a journal has a method `journal_files` that gives these.
    """

    async def names(self) -> list[str]:
        """Those that are there."""

    async def read(self, name: str) -> bytes:
        """All of one."""

    def append(self, name: str, data: bytes) -> None:
        """Add to one, which is made if it is not there; survives the process, not yet the machine."""

    async def sync(self) -> None:
        """Bring all that was appended to the disk."""

    async def remove(self, name: str) -> None:
        """Delete one, if it is there."""

    def close(self) -> None:
        """Nothing follows."""


class FolderFiles:
    """
    Files of a directory, whose names begin with the prefix; without one, it is made with the first of them if
    its parent is there. Only the one that was added to last is open: there may be as many as checkpoints.
    """

    def __init__(self, folder: str | os.PathLike[str], prefix: str = "") -> None:
        self._folder = Path(folder)
        self._prefix = prefix
        self._open: dict[str, int] = {}
        self._dirty: set[str] = set()
        self._is_named = True  # the directory's own entries are on the disk

    def __del__(self) -> None:
        self.close()  # of a job that was never closed

    def __str__(self) -> str:
        return str(self._folder / f"{self._prefix}*")

    def _path(self, name: str) -> Path:
        return self._folder / f"{self._prefix}{name}"

    @done_aside
    def names(self) -> list[str]:
        try:
            found = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return [name.removeprefix(self._prefix) for name in found if name.startswith(self._prefix)]

    @done_aside
    def read(self, name: str) -> bytes:
        return contents(self._path(name))

    def append(self, name: str, data: bytes) -> None:
        file = self._open.get(name)
        if file is None:
            self.close()
            if not self._prefix:  # else it is that of a database, which is away with it
                self._folder.mkdir(exist_ok=True)
            # results of calls are readable for the owner only
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            # a pipe is refused at once, where nobody reads from it
            flags |= getattr(os, "O_NONBLOCK", 0)
            file = self._open[name] = open_own(self._path(name), flags)
            self._is_named = False
        self._dirty.add(name)
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(file, view) :]
        except OSError:
            written = len(data) - len(view)
            if written:  # the first part of a frame would be damage, with a whole one behind it
                os.ftruncate(file, os.fstat(file).st_size - written)
            raise

    async def sync(self) -> None:
        dirty, self._dirty = self._dirty, set()
        names, self._is_named = not self._is_named, True

        def work() -> None:
            for path in map(self._path, dirty):
                # opened once more, for it may be closed meanwhile; one that is gone is in a checkpoint
                with suppress(FileNotFoundError), path.open("rb+") as file:
                    os.fsync(file.fileno())
            if names:
                sync_folder(self._folder)

        await aside(work)

    async def remove(self, name: str) -> None:
        file = self._open.pop(name, None)
        self._dirty.discard(name)
        if file is not None:
            os.close(file)
        await aside(lambda: self._path(name).unlink(missing_ok=True))

    def close(self) -> None:
        while self._open:
            _, file = self._open.popitem()
            with suppress(OSError):
                os.close(file)
