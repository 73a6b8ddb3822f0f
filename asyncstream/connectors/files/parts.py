"""
The parts of a folder that a sink writes: what they are called, and which are there.

    .<random>.unfinished             is being written
    .part-000007-<random>.parquet    prepared: hidden from readers, and complete
    part-000007-<random>.parquet     committed

What is random in a name tells a part from another one of its number, which a job that went on from elsewhere
has written. A part that is in a folder of its own, `day=2026-11-22` say, has that before its name. What is in
a folder of another name may be another sink's.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence
from typing import Final

from asyncstream.connectors.files.partitions import is_partition
from asyncstream.connectors.files.storage import Storage

__all__ = ("Parts", "hidden", "is_shown", "shown", "unfinished")

_UNFINISHED: Final = ".unfinished"


def unfinished() -> str:
    """A new name for a file that is being written."""
    return f".{os.urandom(4).hex()}{_UNFINISHED}"


class Parts:
    """
    The parts of one folder.

    Args:
        path: of the folder.
        storage: where that is.
        ending: of new parts.
        other_endings: of files that are parts, too.
    """

    def __init__(self, path: str, storage: Storage, ending: str, other_endings: Sequence[str]) -> None:
        self._path = path
        self._storage = storage
        self._ending = ending
        endings = "|".join(map(re.escape, [ending, *other_endings]))
        self._named = re.compile(rf"(?:.*/)?\.?part-(\d{{6,}})-[0-9a-f]{{8}}(?:{endings})")

    def place(self, name: str) -> str:
        """The path of what has this name in the folder, which is "" there."""
        return self._storage.join(self._path, name) if name else self._path

    def named(self, folder: str, number: int) -> str:
        """A new name for a part of this number, in a folder of its own or in ""."""
        return posixpath.join(folder, f"part-{number:06}-{os.urandom(4).hex()}{self._ending}")

    def number(self, name: str) -> int:
        """That of a part, from 1 on; 0: it is none."""
        match = self._named.fullmatch(name)
        return 0 if match is None else int(match[1])

    def found(self) -> list[str]:
        """The names of those that are there, hidden ones included, in order."""
        names = self._names()
        parts = filter(self.number, names)
        # one that is there under both names was being committed when a process died
        return sorted((name for name in parts if is_shown(name) or shown(name) not in names), key=self._order)

    def clear(self, stays: int) -> tuple[list[str], int]:
        """
        Delete all behind the first ones, and what is unfinished. The last is deleted first, so that none is
        missing before one that is there, whenever the process dies.

        Returns:
            The last names of those that stay; and how many of them, at the least, are committed for good: one
            that is hidden as well may not be there as a whole under its last name.
        """
        kept = [shown(name) for name in self.found()[:stays]]
        names = self._names()
        staying = {*kept, *map(hidden, kept)}
        for name in sorted(names, key=self._order, reverse=True):
            is_unfinished = not is_shown(name) and name.endswith(_UNFINISHED)
            if (self.number(name) and name not in staying) or is_unfinished:
                self._storage.remove(self.place(name))
        committed = next((place for place, name in enumerate(kept) if hidden(name) in names), len(kept))
        return kept, committed

    def _names(self) -> set[str]:
        """Of all files that may be its own."""
        return {name for name in self._storage.names(self._path) if is_partition(posixpath.dirname(name))}

    def _order(self, name: str) -> tuple[int, str]:
        return self.number(name), name


def shown(name: str) -> str:
    """The last name of a part."""
    folder, own = posixpath.split(name)
    return posixpath.join(folder, own.removeprefix("."))


def hidden(name: str) -> str:
    """The name of a part that is prepared."""
    folder, own = posixpath.split(name)
    return posixpath.join(folder, f".{own}")


def is_shown(name: str) -> bool:
    return posixpath.basename(name)[0] != "."
