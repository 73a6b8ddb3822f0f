"""
The files of an epoch while they are written: each for a folder, under a name that no reader looks at.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

from asyncstream.connectors.files.storage import Storage

__all__ = ("PartFiles", "PartWriter")

_OPEN_FILES: Final = 64
"""Parts that are written at a time; with more values of `partition_by`, some end before the epoch does."""


class PartWriter(Protocol):
    """Writes one file."""

    def write(self, rows: Any) -> object:
        """Write what `Collected.take` gave for it."""

    def close(self) -> object:
        """Write the end of the file, and leave it open."""


class _Part(NamedTuple):
    """A file that is being written."""

    path: str
    file: BinaryIO
    writer: PartWriter


class PartFiles:
    """
    Files that are being written, and those that wait for their last names.

    Args:
        storage: where they are.
        new_name: gives the path of a new file, for what goes to a folder.
        writing_to: gives what writes to a new file, whose first rows it is given.

    Attributes:
        ended: the folder and the path of each file whose end is written.
    """

    def __init__(
        self,
        storage: Storage,
        new_name: Callable[[str], str],
        writing_to: Callable[[BinaryIO, Any], PartWriter],
    ) -> None:
        self._storage = storage
        self._new_name = new_name
        self._writing_to = writing_to
        self._written: dict[str, _Part] = {}  # by their folders, the one that was written to last at the end
        self.ended: list[tuple[str, str]] = []

    def are_there(self) -> bool:
        """Whether there are any."""
        return bool(self._written or self.ended)

    def write(self, folder: str, rows: Any) -> None:
        """Write rows to the file of a folder, which is begun if need be."""
        part = self._written.pop(folder, None)
        if part is None:
            if len(self._written) >= _OPEN_FILES:
                self._end(next(iter(self._written)))
            part = self._begun(self._new_name(folder), rows)
        self._written[folder] = part
        part.writer.write(rows)

    def _begun(self, path: str, rows: Any) -> _Part:
        """A new file, of which these are the first rows."""
        file = self._storage.create(path)
        try:
            return _Part(path, file, self._writing_to(file, rows))
        except BaseException:  # of a type that the format has not, say
            file.close()
            self._storage.remove(path)
            raise

    def _end(self, folder: str) -> None:
        part = self._written.pop(folder)
        self.ended.append((folder, part.path))
        part.writer.close()
        part.file.close()

    def end(self) -> None:
        """Write the end of each file."""
        for folder in list(self._written):
            self._end(folder)

    def throw_away(self, errors: tuple[type[Exception], ...]) -> None:
        """Close and remove them all, as far as that can be done; `errors` are what is raised where not."""
        for part in self._written.values():
            with suppress(*errors):
                part.writer.close()
            with suppress(*errors):
                part.file.close()
        for path in [part.path for part in self._written.values()] + [path for _, path in self.ended]:
            with suppress(*errors):
                self._storage.remove(path)
        self._written, self.ended = {}, []
