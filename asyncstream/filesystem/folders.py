"""
Folders, whose names have to be brought to the disk as the bytes of files have, may be several of a file, and
need not be those of files at all.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from asyncstream.validation import refuse

__all__ = ("by_their_own_names", "contents", "lasting", "missing_folder", "roomy", "sync_folder")

_LONGEST: Final = 255
"""Bytes of a name, on nearly all disks."""

_NOT_FOR_FOLDERS: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""What some network disks and those in user space answer who wants a folder brought to the disk."""


def roomy(name: str, path: str, beside: int) -> str:
    """
    `path`, of a file or folder beside which there are others whose names are longer by up to so many bytes.

    Raises:
        PipelineError: if those would be too long for a disk; it calls the path by `name`.
    """
    own = os.path.basename(path.rstrip("/"))
    if len(os.fsencode(own)) > _LONGEST - beside:
        raise refuse(
            name,
            f"a name of at most {_LONGEST - beside} bytes",
            own,
            "files beside it have that name and more, in 255 bytes",
        )
    return path


def lasting(path: str) -> str:
    """The same file, whatever folder the program goes to later."""
    try:
        return os.path.join(os.getcwd(), path)
    except FileNotFoundError:  # its folder is gone, and so is what the path leads to from there
        return path


def contents(path: str | os.PathLike[str]) -> bytes:
    """
    All of a file. Raises `OSError`, with ENXIO if there is no file of that name but a pipe, a socket or a
    device: to read from those may take for ever.
    """
    with open(path, "rb", opener=_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.ENXIO, "it is no file", os.fspath(path))
        return file.read()


def _at_once(path: str, flags: int) -> int:
    """Open without a wait for who writes to a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """
    Bring to the disk which files a folder has: until then a power cut may undo a new name.

    On Windows, where a folder cannot be opened, and on disks that do so for files only, nothing is done.
    """
    if os.name == "nt":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in _NOT_FOR_FOLDERS:
            raise
    finally:
        os.close(opened)


def missing_folder(path: str) -> str | None:
    """The folder in which a file is to be written, if it is not there. Of one out of reach, others tell."""
    try:
        folder = os.path.dirname(os.path.abspath(path))
    except FileNotFoundError:  # the one that the program is in is gone
        return os.curdir
    try:
        is_there = stat.S_ISDIR(os.stat(folder).st_mode)
    except OSError as error:
        is_there = not isinstance(error, FileNotFoundError | NotADirectoryError)
    return None if is_there else folder


def by_their_own_names(found: Mapping[str, os.stat_result], folder: str = "") -> Iterator[str]:
    """
    The paths, without those that lead to a file by more symbolic links than another path of it does: what a
    link shows a second time is there once. Two links to a file that is elsewhere are two, as hard links are.

    Args:
        found: what is known about the file at each path, links followed.
        folder: where the paths begin.
    """
    same: dict[tuple[int, int], list[str]] = {}
    for path, known in found.items():
        same.setdefault((known.st_dev, known.st_ino), []).append(path)
    left_out: set[str] = set()
    for paths in same.values():
        if len(paths) > 1:
            links = {path: _links(os.path.join(folder, path)) for path in paths}
            left_out.update(path for path in paths if links[path] > min(links.values()))
    return (path for path in found if path not in left_out)


def _links(path: str) -> int:
    """How many symbolic links are on the way."""
    place = Path(path)
    return sum(part.is_symlink() for part in (place, *place.parents))
