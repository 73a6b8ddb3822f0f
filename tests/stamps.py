"""When files of a process that runs were last written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ("newest_ns",)


def newest_ns(files: Iterable[Path]) -> int:
    """The time of the file written last, 0 of none: who writes them may remove one between two looks."""
    stamps = [0]
    for file in files:
        with suppress(FileNotFoundError):
            stamps.append(os.stat(file).st_mtime_ns)
    return max(stamps)
