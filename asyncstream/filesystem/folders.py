"""
Folders, whose names have to be brought to the disk as the bytes of files have, and may be several of a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ("by_their_own_names", "sync_folder")


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """
    Bring to the disk which files a folder has: until then a power cut may undo a new name.

    On Windows, where a folder cannot be opened, nothing is done.
    """
    if os.name == "nt":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


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
