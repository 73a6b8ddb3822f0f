"""A place on disk for what operators and tables of tests remember; one for all, since opening costs."""

from __future__ import annotations

import atexit
import tempfile
from functools import cache
from typing import Final

import pytest

from asyncstream.operators.base import Operator
from asyncstream.state import Database, DiskRows, DiskState, Tables

__all__ = ("IN_MEMORY_AND_ON_DISK", "bring_away", "database", "keep_on_disk")

IN_MEMORY_AND_ON_DISK: Final = pytest.mark.parametrize(
    "on_disk",
    [
        pytest.param(False, id="memory"),
        pytest.param(True, id="disk", marks=[pytest.mark.slow, pytest.mark.once]),
    ],
)
"""
For recorded cases: what a table does is the same in both, so the quick tier and the newest Python have them
in memory.
"""


@cache
def database() -> Database:
    directory = tempfile.TemporaryDirectory()
    found = Database(DiskState(directory.name + "/state"))
    atexit.register(directory.cleanup)
    atexit.register(found.close)
    return found


def keep_on_disk(operator: Operator) -> None:
    """Have the oldest generation of all that an operator, which is not open yet, remembers there."""
    operator.tables.keep_old_in(lambda: DiskRows(database()))


def bring_away(tables: Tables) -> None:
    """Have no rows young: all there, but for newer values of what was read from there."""
    tables.cut()
    tables.merge()
