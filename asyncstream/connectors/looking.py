"""
Opens SQLite databases to look at them, so that they stay as they are, byte for byte.

A job that was killed leaves changes in a log beside its database. An ordinary connection moves them into the
database when it is closed; one that may only read leaves both alone. Without a log there is nothing to move,
and an ordinary connection also takes away the empty log that it makes, which the other one would leave.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Literal

__all__ = ("looking_at",)


def looking_at(
    path: str, *, timeout: float, isolation_level: Literal["DEFERRED"] | None = "DEFERRED"
) -> sqlite3.Connection:
    """A connection to read from, and from nothing if `path` is ":memory:"; the rest as `sqlite3.connect`."""
    if os.path.exists(f"{path}-wal"):
        uri = f"{Path(path).absolute().as_uri()}?mode=ro"
        return sqlite3.connect(uri, timeout=timeout, isolation_level=isolation_level, uri=True)
    return sqlite3.connect(path, timeout=timeout, isolation_level=isolation_level)
