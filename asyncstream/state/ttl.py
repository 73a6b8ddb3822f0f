"""
Time to live: when each entry of a state was written, and what has outlived its time.

Theory
------
A second table beside that of the values keeps when they were written: one time for a value, for each element
of a list, for each entry of a map. An entry has expired from `written + ttl` on; so a time to live that was
changed between two runs holds for what is there already.

What has expired is never read. It leaves memory when its row is read, when a snapshot is taken, and by
*visits*: each write looks at the rows that have waited longest. A row is queued once, when it is first
written, and again after a visit that left something of it. So the queue is as long as the table, a write
moves nothing in it, and what is never read again is gone after at most twice its time to live, if in that
time there is a write for every two rows; after a flood of keys and few writes it stays for longer. Rejected:
a timer for each entry (as dear as the entry itself); a scan of the table (a pause).

After Flink's StateTtlConfig; but no mode reads expired entries, nor do they count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from asyncstream.state.generations import Delta
from asyncstream.state.rows import MISSING, SLICE, run_through
from asyncstream.state.table import Table
from asyncstream.validation import Duration, choice, duration_ms

__all__ = ("Ages", "Row", "ListAges", "MapAges", "TimeToLive", "ValueAges")

VISITS: Final = 2
"""Rows that one write looks at: more than one, so that clean-up overtakes growth."""

Row: TypeAlias = tuple[Any, Any]
"""Namespace and key; for each element they are given one by one, since `*row` doubles the time of a call."""

W = TypeVar("W", int, list[int], dict[Any, int])


@dataclass(frozen=True)
class TimeToLive:
    """
    How long entries of a piece of state live, in processing time.

    Attributes:
        duration: how long after it was written an entry expires: a `timedelta` or seconds. A change holds for
            entries of a restored checkpoint, too.
        refresh: "on_write": only a write begins a new life; "on_read": a read does so, too: of a map's entry
            (`get`, `in`) for that entry, of a list or all of a map for everything live in it. `len` reads
            nothing.
    """

    duration: Duration
    refresh: Literal["on_write", "on_read"] = "on_write"

    def __post_init__(self) -> None:
        duration_ms("duration of TimeToLive", self.duration)
        choice("refresh of TimeToLive", self.refresh, ("on_write", "on_read"))

    @property
    def duration_ms(self) -> int:
        """`duration` in whole milliseconds."""
        return duration_ms("duration of TimeToLive", self.duration)


class Ages(ABC, Generic[W]):
    """
    When the entries of one table were written.

    Args:
        rows: the table itself; expired entries are removed from it.
        written: for each row of that when it was written, milliseconds since the epoch; the form is the
            subclass's.
    """

    def __init__(self, ttl: TimeToLive, now_ms: Callable[[], int], rows: Table, written: Table) -> None:
        self._ttl_ms = ttl.duration_ms
        self._refreshes = ttl.refresh == "on_read"
        self._now_ms = now_ms
        self._rows = rows
        self._written = written
        self._visits: OrderedDict[Row, int] = OrderedDict()  # when each row is to be looked at
        self._next_visit_ms = 0  # or later
        run_through(self.rebuilding())

    def written(self, row: Row) -> W:
        """When the entries of `row`, which is in the table, were written."""
        found: W = self._written.get(row[0], row[1])
        return found

    def is_live(self, row: Row) -> bool:
        """Whether anything is left of `row`, which is in the table; removes what has expired."""
        return self._clean(row, self._now_ms() - self._ttl_ms)

    def write(self, row: Row, entry: Any = None) -> None:
        """Note that `row` was written, or the entry `entry` of a map."""
        now_ms = self._now_ms()
        self._note(row, entry, now_ms)
        if row not in self._visits:
            self._visits[row] = now_ms + self._ttl_ms
        if now_ms >= self._next_visit_ms:
            self._visit(now_ms)

    def merge(self, row: Row, written: W, *, is_new: bool) -> None:
        """Note that a row with these times was moved to `row`, or, unless that `is_new`, merged into it."""
        self._written.put(*row, written if is_new else self._joined(row, written))
        self._visits.setdefault(row, self._now_ms() + self._ttl_ms)

    def read(self, row: Row) -> bool:
        """As `is_live`, and note that all that is live was read."""
        now_ms = self._now_ms()
        if not self._expire(row, now_ms - self._ttl_ms):
            self._drop(row)
            return False
        if self._refreshes:
            self._written.put(*row, self._spread(row, now_ms))
        return True

    def remove(self, row: Row) -> None:
        """Note that `row` is gone from the table."""
        self._written.remove(*row)
        self._visits.pop(row, None)

    def purge(self) -> None:
        """Remove all that has expired."""
        horizon_ms = self._now_ms() - self._ttl_ms
        for namespace in list(self._written.namespaces()):
            for key in list(self._written.whole(namespace)):
                self._clean((namespace, key), horizon_ms)

    def rebuilding(self) -> Iterator[None]:
        """
        The tables hold other rows than before; to live, those without a time begin now. In slices.

        Of rows that go on from one like this, it is known when they are to be looked at.
        """
        before: Ages[W] | None = self._written.derived
        self._written.derived = self
        if before is not None and before is not self:
            self._visits, self._next_visit_ms = before._visits, before._next_visit_ms
            return
        now_ms = self._now_ms()
        self._visits.clear()
        for number, (namespace, key, _) in enumerate(self._rows.unordered()):
            if number % SLICE == 0:
                yield
            row = (namespace, key)
            written = self._written.peek(*row)
            if written is MISSING or (isinstance(written, int) and not self._is_whole):
                self._written.put(*row, self._spread(row, now_ms if written is MISSING else written))
            self._visits[row] = now_ms + self._ttl_ms

    def follow(self, table: Table, delta: Delta) -> None:
        """Have a table apply what others have changed, with the times from which these visits follow."""
        namespace_of, load_key, visits = table.namespace_of, table.load_key, self._visits
        for namespace in map(namespace_of, delta.dropped):
            for key in table.whole(namespace):
                visits.pop((namespace, key), None)
        for namespace, keys in delta.gone.items():
            for key in keys:
                visits.pop((namespace_of(namespace), load_key(key)), None)
        due_ms = next(reversed(visits.values()), 0)  # too early for new ones, and in order
        for namespace, rows in delta.rows.items():
            for key in rows:
                visits.setdefault((namespace_of(namespace), load_key(key)), due_ms)
        table.apply(delta)

    def _visit(self, now_ms: int) -> None:
        for _ in range(VISITS):
            row, self._next_visit_ms = next(iter(self._visits.items()))  # one has just been written
            if self._next_visit_ms > now_ms:
                return
            if self._clean(row, now_ms - self._ttl_ms):
                self._visits[row] = now_ms + self._ttl_ms
                self._visits.move_to_end(row)

    def _clean(self, row: Row, horizon_ms: int) -> bool:
        if self._expire(row, horizon_ms):
            return True
        self._drop(row)
        return False

    def _drop(self, row: Row) -> None:
        self.remove(row)
        self._rows.remove(*row)

    _is_whole = False
    """Whether there is one time for all of a row."""

    @abstractmethod
    def _expire(self, row: Row, horizon_ms: int) -> bool:
        """Remove what of `row` was written at `horizon_ms` or before; false if nothing would be left."""

    @abstractmethod
    def _note(self, row: Row, entry: Any, now_ms: int) -> None:
        """Note a write."""

    def _joined(self, row: Row, written: W) -> W:
        """The times of `row` when one with these has been merged into it."""
        return self._spread(row, self._now_ms())

    @abstractmethod
    def _spread(self, row: Row, written_ms: int) -> W:
        """The form of one time for all that is in `row`."""


class ValueAges(Ages[int]):
    """One time for each row."""

    _is_whole = True

    def _expire(self, row: Row, horizon_ms: int) -> bool:
        return bool(self._written.get(row[0], row[1]) > horizon_ms)

    def _note(self, row: Row, entry: Any, now_ms: int) -> None:
        self._written.put(row[0], row[1], now_ms)

    def _spread(self, row: Row, written_ms: int) -> int:
        return written_ms


class ListAges(Ages[list[int]]):
    """A time for each element of a list."""

    def _expire(self, row: Row, horizon_ms: int) -> bool:
        written = self.written(row)
        if min(written) > horizon_ms:
            return True
        if max(written) <= horizon_ms:
            return False
        values = self._rows.get(*row)
        live = [at for at, written_ms in enumerate(written) if written_ms > horizon_ms]
        values[:] = [values[at] for at in live]
        written[:] = [written[at] for at in live]
        return True

    def _note(self, row: Row, entry: Any, now_ms: int) -> None:
        """What has come to the end of the list is new."""
        written = self._written.get(row[0], row[1])
        if written is MISSING:
            written = []
            self._written.put(*row, written)
        written += [now_ms] * (len(self._rows.get(row[0], row[1])) - len(written))

    def _joined(self, row: Row, written: list[int]) -> list[int]:
        return self.written(row) + written

    def _spread(self, row: Row, written_ms: int) -> list[int]:
        return [written_ms] * len(self._rows.peek(*row))


class MapAges(Ages[dict[Any, int]]):
    """A time for each entry of a map."""

    def is_live_entry(self, row: Row, entry: Any) -> bool:
        """Whether `entry` of `row` is live; both are there. Removes it otherwise, and looks at no other."""
        written, now_ms = self.written(row), self._now_ms()
        if written[entry] > now_ms - self._ttl_ms:
            if self._refreshes:
                written[entry] = now_ms
            return True
        self.remove_entry(row, entry)
        return False

    def remove_entry(self, row: Row, entry: Any) -> None:
        """Remove `entry`, and the row with the last one."""
        values = self._rows.get(*row)
        del values[entry], self.written(row)[entry]
        if not values:
            self.remove(row)
            self._rows.remove(*row)

    def _expire(self, row: Row, horizon_ms: int) -> bool:
        written, values = self.written(row), self._rows.get(*row)
        expired = [entry for entry, written_ms in written.items() if written_ms <= horizon_ms]
        if len(expired) == len(written):
            return False
        for entry in expired:
            del written[entry], values[entry]
        return True

    def _note(self, row: Row, entry: Any, now_ms: int) -> None:
        written = self._written.get(row[0], row[1])
        if written is MISSING:
            self._written.put(*row, {entry: now_ms})
        else:
            written[entry] = now_ms

    def _spread(self, row: Row, written_ms: int) -> dict[Any, int]:
        return dict.fromkeys(self._rows.peek(*row), written_ms)
