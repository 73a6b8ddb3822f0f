"""
The files that match a pattern, as the splits of one source.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from asyncstream.aside import done_aside
from asyncstream.connectors.base import Source
from asyncstream.connectors.files.storage import is_remote
from asyncstream.connectors.splits import SplitSource
from asyncstream.filesystem.folders import by_their_own_names, lasting
from asyncstream.validation import Duration, duration_seconds, refuse, text

__all__ = ("GlobSource",)

T = TypeVar("T")


class GlobSource(SplitSource[T]):
    """
    Reads all files that match a pattern, each as a split, in the order of their names.

        GlobSource("in/*.jsonl", JsonLinesSource)
        GlobSource("in/**/*.csv", lambda path: CsvSource(path, delimiter=";"), watch=timedelta(seconds=5))
        GlobSource("in/*.csv", lambda path: CsvSource(path, on_malformed="reject"), rejects=True)

    A file is read when it is there under its name, so a new one is to be written under another name, and
    renamed. A file that has been read to its end is not looked at again, even if it grows, nor for what
    `complete=False` has left of it: one that grows is to be read by itself. A symbolic link to a file, or to
    a folder of files, that the pattern matches as well is left out. A job that goes on knows files by their
    names as the pattern gives them: by a pattern for another folder, or for the same one by another path, all
    are read anew.

    Args:
        pattern: as for `glob.glob`; `**` is any number of folders. Of files on a disk: those of an object
            store are read by a `SplitSource` whose function names them.
        make: gives the source of one file, by its path.
        watch: how often to look for new files: a `timedelta` or seconds; None: once, at the beginning, and
            the source ends with the last file. If there is none, a warning says so.
        parallel, rejects: as for `SplitSource`.
    """

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        make: Callable[[str], Source[T]],
        *,
        watch: Duration | None = None,
        parallel: int = 4,
        rejects: bool = False,
    ) -> None:
        path = text("pattern", os.fspath(pattern) if isinstance(pattern, os.PathLike) else pattern)
        if is_remote(path):
            raise refuse(
                "pattern",
                "one of files on a disk",
                pattern,
                "for an object store, SplitSource(make, names) with a function that gives its files",
            )

        self._here = lasting("")
        self._nothing = f"no file matches {path!r}"
        every = None if watch is None else duration_seconds("watch", watch)
        find = done_aside(partial(_files, path, self._here))
        super().__init__(make, find, every=every, parallel=parallel, rejects=rejects)

    def part(self, name: str) -> Source[T]:
        # in another folder than this was made in, the name leads elsewhere
        return super().part(name if lasting("") == self._here else os.path.join(self._here, name))


def _files(pattern: str, folder: str) -> list[str]:
    """The files that match, in the order of their names; the pattern goes from a folder."""
    found: dict[str, os.stat_result] = {}
    for path in sorted(glob.iglob(pattern, root_dir=folder, recursive=True)):
        try:
            known = os.stat(os.path.join(folder, path))
        except OSError:  # taken away a moment ago, or a link that leads nowhere
            continue
        if stat.S_ISREG(known.st_mode):
            found[path] = known
    return list(by_their_own_names(found, folder))
