"""
Time to live: when each entry of a state was written, and what has outlived its time.

Theory
------
A table keeps plain values; what is here keeps, beside them, when they were written: one time for a value, one
for each element of a list, one for each entry of a map, so that lists and maps age piece by piece. An entry
has expired from `written + ttl` on. Written times are kept, not times of expiry, so that a time to live that
was changed between two runs holds for what is there already.

What has expired is never read, whether or not it still lies in memory. It leaves memory when its cell is
read, when a snapshot is taken, and by *visits*: each write looks at the cells that have waited longest. A
cell is queued once, when it is first written, and again after a visit that left something of it. So the queue
is as long as the table, a write moves nothing in it, and what is never read again is gone after at most twice
its time to live, if writes go on.

Rejected: a timer for each entry (as dear as the entry itself); a scan of the table now and then (a pause).

After Flink's StateTtlConfig, without two of its slips: an emptiness check counts live entries only, and no
mode reads expired entries for as long as they happen to lie around.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Generic, TypeAlias, TypeVar

from asyncstream.state.descriptors import TimeToLive

__all__ = ("Ages", "Cell", "ListAges", "MapAges", "ValueAges")

VISITS: Final = 2
"""Cells that one write looks at: more than one, so that clean-up overtakes growth."""

Cell: TypeAlias = tuple[Any, Any]
"""Key and namespace."""

W = TypeVar("W", int, list[int], dict[Any, int])


class Ages(ABC, Generic[W]):
    """
    When the entries of one table were written.

    Attributes:
        written: for each cell of the table, in milliseconds since the epoch; the form is the subclass's.

    Args:
        ttl: how long entries live.
        now_ms: tells processing time, milliseconds since the epoch.
        cells: the table itself; expired entries are removed from it.
    """

    def __init__(self, ttl: TimeToLive, now_ms: Callable[[], int], cells: dict[Cell, Any]) -> None:
        self.written: dict[Cell, W] = {}
        self._ttl_ms = ttl.duration_ms
        self._refreshes = ttl.refresh == "on_read"
        self._now_ms = now_ms
        self._cells = cells
        self._visits: OrderedDict[Cell, int] = OrderedDict()  # when each cell is to be looked at
        self._next_visit_ms = 0  # or later

    def is_live(self, cell: Cell) -> bool:
        """Whether anything is left of `cell`, which is in the table; removes what has expired."""
        return self._clean(cell, self._now_ms() - self._ttl_ms)

    def write(self, cell: Cell, entry: Any = None) -> None:
        """Note that `cell` was written, or the entry `entry` of a map."""
        now_ms = self._now_ms()
        self._note(cell, entry, now_ms)
        if cell not in self._visits:
            self._visits[cell] = now_ms + self._ttl_ms
        if now_ms >= self._next_visit_ms:
            self._visit(now_ms)

    def merge(self, cell: Cell, written: W, *, is_new: bool) -> None:
        """Note that a cell with these times was moved to `cell`, or, unless that `is_new`, merged into it."""
        self._join(cell, written, is_new)
        self._visits.setdefault(cell, self._now_ms() + self._ttl_ms)

    def read(self, cell: Cell) -> bool:
        """As `is_live`, and note that all that is live was read."""
        now_ms = self._now_ms()
        if not self._clean(cell, now_ms - self._ttl_ms):
            return False
        if self._refreshes:
            self.written[cell] = self._spread(cell, now_ms)
        return True

    def remove(self, cell: Cell) -> None:
        """Note that `cell` is gone from the table."""
        self.written.pop(cell, None)
        self._visits.pop(cell, None)

    def restore(self, cell: Cell, written: Any, *, is_expiry: bool) -> None:
        """
        Take up a cell from a snapshot.

        Args:
            written: what `written` held for it; one time for the whole cell; or None if it was kept without a
                time to live, which then begins now.
            is_expiry: `written` is when the whole cell expires: so wrote versions before 0.2.
        """
        now_ms = self._now_ms()
        if is_expiry and written is not None:
            written -= self._ttl_ms
        is_whole = written is None or isinstance(written, int)
        self.written[cell] = (
            self._spread(cell, now_ms if written is None else written) if is_whole else written
        )
        self._visits[cell] = now_ms + self._ttl_ms

    def purge(self) -> None:
        """Remove all that has expired."""
        horizon_ms = self._now_ms() - self._ttl_ms
        for cell in list(self.written):
            self._clean(cell, horizon_ms)

    def clear(self) -> None:
        """Forget all."""
        self.written.clear()
        self._visits.clear()

    def _visit(self, now_ms: int) -> None:
        for _ in range(VISITS):
            cell, self._next_visit_ms = next(iter(self._visits.items()))  # one has just been written
            if self._next_visit_ms > now_ms:
                return
            if self._clean(cell, now_ms - self._ttl_ms):
                self._visits[cell] = now_ms + self._ttl_ms
                self._visits.move_to_end(cell)

    def _clean(self, cell: Cell, horizon_ms: int) -> bool:
        if self._expire(cell, horizon_ms):
            return True
        self.remove(cell)
        del self._cells[cell]
        return False

    @abstractmethod
    def _expire(self, cell: Cell, horizon_ms: int) -> bool:
        """Remove what of `cell` was written at `horizon_ms` or before; false if nothing would be left."""

    @abstractmethod
    def _note(self, cell: Cell, entry: Any, now_ms: int) -> None:
        """Note a write."""

    def _join(self, cell: Cell, written: W, is_new: bool) -> None:
        self.written[cell] = written if is_new else self._spread(cell, self._now_ms())

    @abstractmethod
    def _spread(self, cell: Cell, written_ms: int) -> W:
        """The form of one time for all that is in `cell`."""


class ValueAges(Ages[int]):
    """One time for each cell."""

    def _expire(self, cell: Cell, horizon_ms: int) -> bool:
        return self.written[cell] > horizon_ms

    def _note(self, cell: Cell, entry: Any, now_ms: int) -> None:
        self.written[cell] = now_ms

    def _spread(self, cell: Cell, written_ms: int) -> int:
        return written_ms


class ListAges(Ages[list[int]]):
    """A time for each element of a list."""

    def _expire(self, cell: Cell, horizon_ms: int) -> bool:
        written = self.written[cell]
        if min(written) > horizon_ms:
            return True
        if max(written) <= horizon_ms:
            return False
        values = self._cells[cell]
        live = [at for at, written_ms in enumerate(written) if written_ms > horizon_ms]
        values[:] = [values[at] for at in live]
        written[:] = [written[at] for at in live]
        return True

    def _note(self, cell: Cell, entry: Any, now_ms: int) -> None:
        """What has come to the end of the list is new."""
        written = self.written.setdefault(cell, [])
        written += [now_ms] * (len(self._cells[cell]) - len(written))

    def _join(self, cell: Cell, written: list[int], is_new: bool) -> None:
        self.written[cell] = written if is_new else self.written[cell] + written

    def _spread(self, cell: Cell, written_ms: int) -> list[int]:
        return [written_ms] * len(self._cells[cell])


class MapAges(Ages[dict[Any, int]]):
    """A time for each entry of a map."""

    def is_live_entry(self, cell: Cell, entry: Any) -> bool:
        """Whether `entry` of `cell` is live; both are there. Removes it otherwise, and looks at no other."""
        written, now_ms = self.written[cell], self._now_ms()
        if written[entry] > now_ms - self._ttl_ms:
            if self._refreshes:
                written[entry] = now_ms
            return True
        self.remove_entry(cell, entry)
        return False

    def remove_entry(self, cell: Cell, entry: Any) -> None:
        """Remove `entry`, and the cell with the last one."""
        del self._cells[cell][entry], self.written[cell][entry]
        if not self._cells[cell]:
            self.remove(cell)
            del self._cells[cell]

    def _expire(self, cell: Cell, horizon_ms: int) -> bool:
        written, values = self.written[cell], self._cells[cell]
        expired = [entry for entry, written_ms in written.items() if written_ms <= horizon_ms]
        if len(expired) == len(written):
            return False
        for entry in expired:
            del written[entry], values[entry]
        return True

    def _note(self, cell: Cell, entry: Any, now_ms: int) -> None:
        self.written.setdefault(cell, {})[entry] = now_ms

    def _spread(self, cell: Cell, written_ms: int) -> dict[Any, int]:
        return dict.fromkeys(self._cells[cell], written_ms)
