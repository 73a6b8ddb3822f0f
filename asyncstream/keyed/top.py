"""
The first n of each key by a value, kept up to date.

The rows of a key are a list in the order of their ranks; those that rank alike stay as they came. Where rows
only come, what has left the ranks never returns, so no more than these are kept. Where rows are also taken
back, all are kept, for any may move up.

What is said of a change, after Flink's Top-N in SQL. Without places, a row that enters displaces one
(`-D`, then `+I`). With places, or where the first places are left out, each place whose row has changed is
told, from the top (`-U`, `+U`), and one that is newly filled (`+I`) or empty (`-D`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from asyncstream.errors import CodecError
from asyncstream.keyed.base import KeyedStep
from asyncstream.keyed.changes import (
    CODEC,
    DELETE,
    INSERT,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    Change,
    ChangeLog,
    comes,
    is_same,
    new_change,
)
from asyncstream.operators.base import OperatorContext
from asyncstream.operators.spec import KeyBy, KeyedSpec
from asyncstream.state import MISSING, Cell, TimeToLive, ValueDescriptor
from asyncstream.state.keys import equals_itself
from asyncstream.state.schema import Schema, described

__all__ = ("Ranking", "Ranks", "Top", "TopSpec")

K = TypeVar("K")
T = TypeVar("T")

Row: TypeAlias = tuple[Any, Any]
"""What a row ranks by, and the row."""


class Ranking(NamedTuple, Generic[K, T]):
    """
    The first of a key, as they are now.

    Attributes:
        key: whose.
        values: in the order of their ranks.
    """

    key: K
    values: list[T]


@dataclass(frozen=True)
class Ranks:
    """
    Which rows are told, and how they rank.

    Attributes:
        by: gives what a row ranks by.
        order: "descending": the largest is the first.
        first, last: ranks, from 1, both included.
    """

    by: Callable[[Any], Any]
    order: Literal["ascending", "descending"]
    first: int
    last: int

    def place(self, rows: list[Row], by: Any) -> int:
        """
        Where a row that ranks by this goes: behind those before it and those that rank alike.

        NaN, and a tuple with one, ranks behind all else in either order: compared with it, no number would be
        before another.
        """
        low, high, descending = 0, len(rows), self.order == "descending"
        is_tuple = type(by) is tuple
        if not high or by != by or (is_tuple and not equals_itself(by)):
            return high
        behind = rows[-1][0]
        if behind != behind or (is_tuple and not equals_itself(behind)):
            while high and not equals_itself(rows[high - 1][0]):
                high -= 1
        elif not (behind < by if descending else by < behind):
            return high
        while low < high:
            middle = (low + high) // 2
            if rows[middle][0] < by if descending else by < rows[middle][0]:
                high = middle
            else:
                low = middle + 1
        return low

    def alike(self, rows: list[Row], by: Any) -> range:
        """The places of the rows that rank as this does; of NaN none."""
        end = self.place(rows, by)
        return range(bisect_left(rows, True, 0, end, key=lambda row: bool(row[0] == by)), end)


class Top(KeyedStep):
    """
    Emits, whenever an element changes the first of its key, what they are now, or a change log of it.

    Snapshot holds: the rows that may be told, by key.
    """

    def __init__(
        self,
        key_by: KeyBy,
        ranks: Ranks,
        ttl: TimeToLive | None,
        log: ChangeLog | None,
        *,
        ranked: bool,
        retracts: bool,
    ) -> None:
        super().__init__(key_by)
        self._ranks = ranks
        self._ttl = ttl
        self._log = log
        self._ranked = ranked
        self._by_place = ranked or ranks.first > 1
        self._retracts = retracts
        self._looks = ttl is None and not retracts  # a row that does not rank has nothing written again
        self._not_there = 0
        self.tables.declare_cell("not_there", Cell.of(self, "_not_there", "sum"))

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._rows = self._state.state(ValueDescriptor[Any]("rows", ttl=self._ttl))
        self._table = self.tables["state/rows"]

    def metrics(self) -> dict[str, int]:
        return {**super().metrics(), "not_there": self._not_there}

    def _take(self, value: Any, timestamp: int | None) -> None:
        if not self._retracts:
            self._add(value)
            return
        if type(value) is not Change:
            raise TypeError("expected a Change, for retracts=True says that these are changes")
        if comes(value):
            self._add(value.value)
        else:
            self._take_back(value.value)

    def _add(self, value: Any) -> None:
        """A row has come."""
        by, last, looks = self._ranks.by(value), self._ranks.last, self._looks
        held: Any = self._table.peek(None, self._state.key) if looks else self._rows.get()
        rows: list[Row] = [] if held is None or held is MISSING else held
        place = self._ranks.place(rows, by)
        if place >= last and not self._retracts:
            return
        if looks and rows:
            rows = self._table.get(None, self._state.key)
        row = (by, value)
        rows.insert(place, row)
        went = rows[last] if len(rows) > last else None
        if not self._retracts:
            del rows[last:]
        self._rows.set(rows)
        if place < last:
            self._tell(place, rows, row, went, entered=True)

    def _take_back(self, value: Any) -> None:
        """A row is gone: the first that is the same."""
        rows: list[Row] = self._rows.get() or []
        last = self._ranks.last
        # the same ranks alike, as a rule: among a million rows it is found at once
        place = _place_of(value, rows, self._ranks.alike(rows, self._ranks.by(value)))
        if place is None:
            self._not_there += 1
            return
        went = rows.pop(place)
        if rows:
            self._rows.set(rows)
        else:
            self._rows.clear()
        if place < last:
            self._tell(place, rows, rows[last - 1] if len(rows) >= last else None, went, entered=False)

    def _tell(
        self, place: int, rows: list[Row], came: Row | None, went: Row | None, *, entered: bool
    ) -> None:
        """
        Emit what has changed.

        Args:
            place: the first place that has, from 0: there a row has entered, or else left.
            rows: as they are now.
            came, went: the row that is told now, and the one that is not any more; None: there is none.
        """
        first, last = self._ranks.first - 1, self._ranks.last
        if self._log is None:
            if len(rows) + (came is None) > first:
                self._out.emit(Ranking(self._state.key, [value for _, value in rows[first:last]]))
        elif not self._by_place:
            if went is not None:
                self._out.emit(new_change((DELETE, went[1], None)))
            if came is not None:
                self._out.emit(new_change((INSERT, came[1], None)))
        else:
            after: list[Row | None] = [*rows[place:last]]
            before = [*after[1:], went] if entered else [went, *after]
            if came is None:
                after.append(None)
            for at, old, new in zip(count(place), before, after, strict=False):
                if at >= first:
                    self._tell_place(at, old, new, self._log)

    def _tell_place(self, at: int, before: Row | None, after: Row | None, log: ChangeLog) -> None:
        """Emit that another row is at a place now."""
        rank = at + 1 if self._ranked else None
        if before is not None and (log.update_before or after is None):
            self._out.emit(new_change((DELETE if after is None else UPDATE_BEFORE, before[1], rank)))
        if after is not None:
            self._out.emit(new_change((INSERT if before is None else UPDATE_AFTER, after[1], rank)))


def _place_of(value: Any, rows: list[Row], likely: Iterable[int]) -> int | None:
    """
    The place of the first row that is the same, of the `likely` places or of all; None: there is none.

    Of rows with NaN that is one of which a checkpoint keeps the same bytes: they are equal only while they
    hold the very same NaN, and after a restart they do not.
    """
    try:
        for place in chain(likely, range(len(rows))):
            if rows[place][1] == value:
                return place
    except (TypeError, ValueError):  # arrays among them
        return next((place for place, row in enumerate(rows) if is_same(row[1], value)), None)
    try:
        kept = CODEC.encode(value)
        if is_same(CODEC.decode(kept), value):
            return None
        return next((place for place, row in enumerate(rows) if CODEC.encode(row[1]) == kept), None)
    except CodecError:
        return None


@dataclass(frozen=True)
class TopSpec(KeyedSpec):
    """
    Keeps the first of each key.

    Attributes:
        key_by: gives the key of an element.
        ranks: which.
        ttl: how long a key is remembered whose rows do not change; None: for ever.
        log: emit a change log; None: rankings.
        ranked: with places.
        retracts: elements are changes, which may take rows back.
    """

    ranks: Ranks
    ttl: TimeToLive | None = None
    log: ChangeLog | None = None
    ranked: bool = False
    retracts: bool = False

    operator = Top

    def build(self) -> Top:
        return Top(self.key_by, self.ranks, self.ttl, self.log, ranked=self.ranked, retracts=self.retracts)

    @property
    def schema(self) -> Schema:
        ranks = self.ranks
        form = {"by": described(ranks.by), "order": ranks.order, "retracts": self.retracts}
        # of fewer rows than before the rest is cut off; of more, those that had been cut off are missing
        schema = Schema(form=form, settings={"last": ranks.last, "ttl": described(self.ttl)})
        return schema.reading({"by": ranks.by})

    @property
    def counters(self) -> tuple[str, ...]:
        return ("not_there",) if self.retracts else ()
