"""
Files that a job keeps for itself beside those of others: records of sinks, journals, the tally of an inbox.
"""

from __future__ import annotations

import os
from typing import Final

__all__ = ("open_own",)

_PLAIN: Final = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)


def open_own(path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
    """
    A descriptor of such a file, for bytes as they are. Raises `OSError` also for a link under its name, which
    somebody else has put there: what that leads to is not ours to write.
    """
    return os.open(path, flags | _PLAIN, mode)
