"""
Folders, of which the names have to be brought to the disk as the bytes of files have.
"""

from __future__ import annotations

import os

__all__ = ("sync_folder",)


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
