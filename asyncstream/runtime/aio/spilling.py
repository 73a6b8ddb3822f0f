"""
Brings what steps remember to disk, so that memory holds what was touched lately and no more.

Theory. Of each step the young rows are counted now and then. When they have become many, they are cut, as for
a checkpoint, encoded into the next one if there are checkpoints, and merged into the rows on disk, in
slices. Meanwhile new rows become young; the fuller they get, the larger are the slices, so that merging
never falls behind.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final
from weakref import ref

from asyncstream.long_work import in_slices
from asyncstream.operators.base import Operator
from asyncstream.runtime.aio.checkpoints import Checkpointer
from asyncstream.state import DiskRows, StateBackend, Tables

__all__ = ("Spilling",)

LOOK_SECONDS: Final = 0.05
"""Seconds between two looks."""


class Spilling:
    """
    What one run keeps on disk.

    Args:
        fail: told when the place cannot be used any more.

    Raises:
        StateError: if the place that the user chose cannot be used.
        MissingExtra: if what it needs is not installed.
    """

    def __init__(
        self, settings: StateBackend, checkpointer: Checkpointer | None, fail: Callable[[BaseException], None]
    ) -> None:
        _give_up_left()
        self._database = settings.open()
        self._owner = os.getpid(), asyncio.get_running_loop()
        self._held = ref(self, _held.discard)
        _held.add(self._held)
        self._database.on_failure = fail
        self._limit = settings.young_rows
        self._checkpointer = checkpointer
        if checkpointer is not None:
            checkpointer.tables.rows = self.rows
            checkpointer.tables.is_full = self.is_full

    def rows(self, step: str = "") -> DiskRows:
        """For one table."""
        return DiskRows(self._database, step)

    def take(self, step: str, operator: Operator) -> None:
        """Keep on disk what the operator of this step, which is not open yet, remembers."""
        operator.tables.keep_old_in(partial(self.rows, step))

    def is_full(self, tables: Tables) -> bool:
        """Whether there are so many young rows that they are to be brought to disk."""
        return tables.weight() >= self._limit

    async def run(self, operators: Mapping[str, Operator]) -> None:
        """Look now and then, for as long as the job runs."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            full = [name for name, operator in operators.items() if self.is_full(operator.tables)]
            if not full:
                continue
            if self._checkpointer is not None:
                await self._checkpointer.tables.spill(full)
                continue
            for name in full:
                tables = operators[name].tables
                tables.cut()
                await in_slices(tables.merging(), partial(self.is_full, tables))

    def close(self, operators: Mapping[str, Operator]) -> None:
        """Give the place up; of the tables only their sizes are known then."""
        for operator in operators.values():
            operator.tables.leave()
        _held.discard(self._held)
        self._database.close()


_held: set[ref[Spilling]] = set()
"""Of runs that have not given their place up; a plain set, for others may be added while this is listed."""


def _give_up_left() -> None:
    """Give up the places of those whose event loop was closed in the middle: they cannot do so any more."""
    for held in list(_held):
        spilling = held()
        if spilling is None:
            continue
        process, loop = spilling._owner
        if process == os.getpid() and loop.is_closed():
            with suppress(KeyError):  # another thread does
                _held.remove(held)
                spilling._database.close()
