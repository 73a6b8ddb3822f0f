"""
The accumulators of windows that are kept whole, by window and key, where they cannot be merged of slices.

A whole window has its accumulators in two tables: *open* while it is to fire for their keys, *done* after
that, within the allowed lateness.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from asyncstream.state import MISSING, Table, Tables
from asyncstream.state.rows import Rows
from asyncstream.windowing.aggregates import InPlace
from asyncstream.windowing.slices import Span

__all__ = ("WindowStore",)


class WindowStore:
    """
    The whole windows of one operator.

    Attributes:
        open: the accumulators for whose keys a window is to fire.
        done: those for whose keys it has fired.
    """

    def __init__(self, aggregate: InPlace, tables: Tables) -> None:
        """
        Args:
            aggregate: what makes the accumulators.
            tables: of the operator.
        """
        table = partial(Table, namespace_of=tuple, may_be_away=True, save=aggregate.save, load=aggregate.load)
        self.open = tables.declare(table("open"))
        self.done = tables.declare(table("done"))
        self._create = aggregate.create

    def __len__(self) -> int:
        """How many accumulators there are."""
        return len(self.open) + len(self.done)

    def __contains__(self, window: Span) -> bool:
        """Whether there may be accumulators of a window."""
        return window in self.open or window in self.done

    def is_empty(self) -> bool:
        """Whether there is no accumulator."""
        return next(self.open.namespaces(), None) is None and next(self.done.namespaces(), None) is None

    def peek(self, window: Span, key: Any) -> Any:
        """The accumulator of a key, to be read only, or `MISSING`."""
        held = self.open.peek(window, key)
        return self.done.peek(window, key) if held is MISSING else held

    def reopen(self, window: Span, key: Any) -> Any:
        """The accumulator of a key that has no young one in `open`, where it is afterwards."""
        held = self.open.take(window, key)
        if held is MISSING:
            held = self.done.get(window, key)
            if held is MISSING:
                held = self._create()
            else:
                self.done.remove(window, key)
            self.open.put(window, key, held)
        return held

    def put(self, window: Span, key: Any, held: Any, is_open: bool) -> None:
        """Have an accumulator of a key that is in the other table no more if it is open."""
        if is_open:
            self.done.remove(window, key)
        (self.open if is_open else self.done).put(window, key, held)

    def put_done(self, window: Span, cells: Rows) -> bool:
        """Have fired for the keys of these accumulators; whether it is the first time for the window."""
        if window in self.done:
            self.done.rows(window).update(cells)
            return False
        self.done.young[window] = cells
        return True
