"""Arrow's files, as tests find them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

__all__ = ("write_ipc",)

ipc = pytest.importorskip("pyarrow.ipc")


def write_ipc(table: Any, path: Path, *, chunk: int | None = None) -> None:
    """A file of a table in Arrow's IPC format, not compressed, with so many rows in a batch."""
    with ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=chunk)
