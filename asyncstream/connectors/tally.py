"""
How many elements an inbox has accepted, written down apart from its database.

SQLite takes damage in its log for the log's end, and a log that is gone for an empty one: what was accepted
and lies behind is lost, and the database does not know. So the number of the last element stands in a small
file beside it, from the first one that a job accepts until it ends. It is not brought to the disk: with the
machine's power a part of it may go, and then it says too little, never too much.
"""

from __future__ import annotations

import os
from contextlib import suppress
from zlib import crc32

from asyncstream.filesystem.own_files import open_own

__all__ = ("Tally",)


class Tally:
    """
    The number of the last element that an inbox has accepted. That it cannot be read or written is no error.

    Args:
        path: of the inbox.

    Attributes:
        path: of the file.
    """

    def __init__(self, path: str) -> None:
        self.path = f"{os.path.abspath(path)}-newest"  # the program may go to another folder
        self._file: int | None = None

    def __del__(self) -> None:
        self.close(all_is_safe=False)  # of a job that was never closed

    def read(self, identity: str) -> int:
        """What it says of the inbox with this identity; 0: nothing."""
        try:
            with open(self.path, "rb") as file:
                line = file.read(1000)
            number = int(line.split()[0])
            return number if line == _line(identity, number) else 0
        except (OSError, ValueError, IndexError):
            return 0

    def write(self, identity: str, newest: int) -> None:
        """This is the last one now."""
        with suppress(OSError):
            if self._file is None:
                self._file = open_own(self.path, os.O_WRONLY | os.O_CREAT)
            os.lseek(self._file, 0, os.SEEK_SET)
            os.write(self._file, _line(identity, newest))

    def close(self, *, all_is_safe: bool) -> None:
        """Nothing more is accepted; if all is in the database itself, nothing need be known any more."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
        if all_is_safe:
            with suppress(OSError):
                os.unlink(self.path)


def _line(identity: str, newest: int) -> bytes:
    """One of the same length for each number."""
    text = f"{newest:020} {identity}".encode()
    return b"%s %08x\n" % (text, crc32(text))
