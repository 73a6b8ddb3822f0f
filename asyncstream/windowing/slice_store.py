"""
The accumulators of slices, by slice and key, and the windows that are merged of them.

Theory. Where slices make up windows together, the number of a key's first element stands behind its
accumulator, in the same list: a window's results come in the order in which its keys first came.

Slices are merged by time, not in the order of their elements. For aggregates that are `order_free` that is
the same. Others join in order (`AggregateFunction.joins_in_order`): a list of all elements, or the last one.
It is the same for them as long as the elements of a key come slice by slice. With one that comes into a slice
before the key's latest an *epoch* of that key ends: its accumulators in all slices are *closed*, and new ones
begun. So no two of a key's accumulators have seen elements in turns, and in the order of their numbers they
are merged as their elements came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Any, Final

from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.state import MISSING, Cell, Table, Tables
from asyncstream.state.rows import Rows
from asyncstream.windowing.aggregates import in_place
from asyncstream.windowing.functions import AggregateFunction, can_merge
from asyncstream.windowing.slices import Slicing, Span
from asyncstream.windowing.upgrade import RULES, numbered, whole_windows

__all__ = ("SliceStore",)

_NUMBER: Final = itemgetter(-1)
"""Of an accumulator in a slice, when its first element came."""


class SliceStore:
    """
    The slices of one operator.

    Attributes:
        table: their accumulators; of a key that has closed ones, the latest.
        aggregate: makes, merges and reads accumulators of slices.
        add: adds an element to one; raises `OrderMatters` if that may not be done.
        can_share: whether windows can be merged of slices, or are slices themselves.
        has_epochs: whether an element in a slice before the latest is put there by `put`.
        numbers: gives the numbers of first elements; None: windows are slices themselves.
        ends: the end of each slice that there is, by its start.
        newest: no slice starts after this.
    """

    def __init__(self, slicing: Slicing, aggregate: AggregateFunction[Any, Any], tables: Tables) -> None:
        """
        Args:
            aggregate: what the plan folds elements with.
            tables: of the operator.
        """
        self._slicing = slicing
        self._folding = aggregate
        self._is_disjoint = slicing.is_disjoint
        listed = in_place(aggregate)
        is_shared = can_merge(aggregate) and (aggregate.order_free or aggregate.joins_in_order)
        self.can_share = self._is_disjoint or is_shared
        self.has_epochs = is_shared and not (self._is_disjoint or aggregate.order_free)
        self.aggregate = aggregate if self._is_disjoint else listed
        self.gather = listed.gather
        self.add: Callable[[Any, Any], Any] = aggregate.add if self._is_disjoint else listed.add_order_free
        save, load = (aggregate.save, aggregate.load) if self._is_disjoint else numbered(listed)
        table = partial(Table, namespace_of=tuple, may_be_away=True)
        self.table = tables.declare(table("slices", save=save, load=load))
        save, load = partial(_mapped, save), partial(_mapped, load)
        self._closed = tables.declare(table("closed", save=save, load=load))
        self.numbers = None if self._is_disjoint else count()
        tables.declare_cell("number", Cell(self._next_number, self._count_from, RULES["number"]))
        self.ends: dict[int, int] = {}
        self.newest = MIN_TIMESTAMP

    def __len__(self) -> int:
        """How many accumulators there are."""
        return len(self.table) + len(self._closed)

    def open(self, place: Span) -> None:
        """Have a slice from now on."""
        start, self.ends[start] = place
        self.newest = max(self.newest, start)

    def drop(self, place: Span) -> None:
        """Have no such slice."""
        del self.ends[place[0]]
        self.table.drop(place)
        self._closed.drop(place)

    def fetch(self, elements: Iterable[tuple[Any, Any]]) -> None:
        """Have the accumulators in slices of elements, given as (key, timestamp), in memory."""
        start, end = 0, 0
        some: list[Any] = []
        keys_in: dict[Span, list[Any]] = {}
        for key, timestamp in elements:
            if type(timestamp) is not int:
                break  # which is refused at its turn
            if not start <= timestamp < end:
                place = start, end = self._slicing.slice_at(timestamp)
                some = keys_in.setdefault(place, [])
            some.append(key)
        for place, some in keys_in.items():
            self.table.fetch(place, some)

    def put(self, place: Span, key: Any, value: Any) -> None:
        """Put an element into a slice, which may be before the latest one."""
        table = self.table
        if self.has_epochs:
            others = [(start, end) for start, end in self.ends.items() if start != place[0]]
            is_behind = any(table.peek(other, key) is not MISSING for other in others if other > place)
            for other in (*others, place) if is_behind else ():
                self._close(other, key)
        held = table.get(place, key)
        if held is MISSING:
            held = self.aggregate.create()
            if self.numbers is not None:
                held.append(next(self.numbers))
        table.put(place, key, self.add(held, value))

    def _close(self, place: Span, key: Any) -> None:
        held = self.table.get(place, key)
        if held is not MISSING:
            self.table.remove(place, key)
            before = self._closed.get(place, key)
            self._closed.put(place, key, [held] if before is MISSING else [*before, held])

    # ------------------------------------------------------------------ windows

    def merged(self, window: Span, key: Any, beside: Any = MISSING) -> Any:
        """
        The accumulator of one key over a whole window; to be read, not changed.

        Args:
            beside: what the window holds besides its slices, from before them.
        """
        if self._is_disjoint:
            return self.table.peek(window, key)
        merge, merged = self.aggregate.merge, self.aggregate.create()
        if beside is not MISSING:
            merged = merge(merged, beside)
        parts = [held for place in self._slices_of(window) for held in self._parts(place, key)]
        for held in sorted(parts, key=_NUMBER) if self.has_epochs else parts:
            merged = merge(merged, held)
        return merged

    def each(
        self, window: Span, keys: Iterable[Any] = (), beside: Callable[[Any], Any] | None = None
    ) -> Iterable[tuple[Any, Any]]:
        """
        The keys of a window, with accumulators, in the order of their first elements.

        They are to be read, not changed: a key that is in one slice only still shares that one's.

        Args:
            keys: those that come before the keys of slices.
            beside: gives what the window holds of a key besides its slices; None: it holds nothing.
        """
        places = [place for place in self._slices_of(window) if self._has_rows(place)]
        if beside is not None or any(place in self._closed for place in places):
            every = {**dict.fromkeys(keys), **self._firsts(places)}
            held_by = beside or _nothing
            return {key: self.merged(window, key, held_by(key)) for key in every}.items()
        if len(places) == 1:
            return self.table.each(places[0])
        slices = [cells for place in places if (cells := self.table.whole(place))]
        found: Rows = dict(slices.pop(0)) if _follow_one_another(slices) else self._firsts(places)
        for cells in slices:
            self.gather(found, cells)
        return found.items()

    def into_windows(self) -> dict[Span, dict[Any, Any]]:
        """By window and key the accumulators, in lists, of all windows; there are no slices then."""
        places = [place for place in self.ends.items() if self._has_rows(place)]
        slices = {place: self.table.adopt(place) for place in places}
        closed = {place: self._closed.adopt(place) for place in places}
        found = whole_windows(self._slicing, self._folding, slices, closed)
        for place in places:
            self.drop(place)
        return found

    def _slices_of(self, window: Span) -> Iterator[Span]:
        """The slices that there are of a window, by time."""
        ends = self.ends
        for start in self._slicing.starts_in(window, ends):
            if start in ends:
                yield start, ends[start]

    def _parts(self, place: Span, key: Any) -> Iterable[Any]:
        """The accumulators of a key in a slice, with numbers."""
        held = self.table.peek(place, key)
        closed = self._closed.peek(place, key)
        latest = () if held is MISSING else (held,)
        return latest if closed is MISSING else (*closed, *latest)

    def _has_rows(self, place: Span) -> bool:
        return place in self.table or place in self._closed

    def _firsts(self, places: Iterable[Span]) -> Rows:
        """The keys of some slices in the order of their first elements, each with None."""
        firsts: dict[Any, int] = {}
        for place in places:
            numbers = [(key, held[-1]) for key, held in self.table.whole(place).items()]
            numbers += ((key, parts[0][-1]) for key, parts in self._closed.whole(place).items())
            for key, number in numbers:
                if number < firsts.get(key, number + 1):
                    firsts[key] = number
        return dict.fromkeys(sorted(firsts, key=firsts.__getitem__))

    # ------------------------------------------------------------------ state

    def index(self) -> None:
        """Find out which slices there are."""
        self.ends = dict([*self.table.namespaces(), *self._closed.namespaces()])
        self.newest = max(self.ends, default=MIN_TIMESTAMP)

    def _next_number(self) -> int:
        number = 0 if self.numbers is None else next(self.numbers)
        self._count_from(number)
        return number

    def _count_from(self, number: int) -> None:
        if self.numbers is not None:
            self.numbers = count(number)


def _follow_one_another(slices: Sequence[Rows]) -> bool:
    """Whether there are slices, each of which had all its keys before the next had its first."""
    last = -1
    for cells in slices:
        if next(iter(cells.values()))[-1] < last:
            return False
        last = next(reversed(cells.values()))[-1]
    return bool(slices)


def _nothing(key: Any) -> Any:
    return MISSING


def _mapped(function: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
    return [function(value) for value in values]
