"""
Locks on files, which the operating system takes back when a process ends, however it ends.

They belong to the open file, and a process that is forked has it open, too: it would hold them for as long as
it lives, though the one that took them were killed. So in such a process, a worker of a pool say, these files
are no more open.
"""

from __future__ import annotations

import os
import sys
from typing import BinaryIO
from weakref import WeakSet

if sys.platform != "win32":
    import fcntl

__all__ = ("lock",)

_locked: WeakSet[BinaryIO] = WeakSet()


def lock(file: BinaryIO) -> bool:
    """
    Lock a file for as long as it is open; False if another has locked it.

    Where there are no locks (on Windows, on some file systems) it says True.
    """
    if sys.platform == "win32":
        return True
    _locked.add(file)  # before it is: meanwhile another thread may fork
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _let_go() -> None:
    """Have nothing in the place of the files that the process before the fork has locked."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in _locked:
        if not file.closed:  # nor is what it has not written yet to be written twice
            os.dup2(nothing, file.fileno(), inheritable=False)
    os.close(nothing)


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_let_go)
