"""
Locks on files, which the operating system takes back when a process ends, however it ends.
"""

from __future__ import annotations

import sys
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl

__all__ = ("lock",)


def lock(file: BinaryIO) -> bool:
    """
    Lock a file for as long as it is open; False if another has locked it.

    Where there are no locks (on Windows, on some file systems) it says True.
    """
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
