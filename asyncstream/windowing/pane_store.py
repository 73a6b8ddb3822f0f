"""
The accumulators of slices, by slice and key, and of windows: what a window holds is merged of its slices.

Theory. A window may also be kept *whole*, where the order of its elements matters, where it fires before its
end, and where it was so in a snapshot of another kind of operator. What it holds of a key is then an
accumulator of its own, with those of its slices behind it; either may be missing.

Where windows overlap, the number of a key's first element stands behind its accumulator, in the same list: a
window's results come in the order in which its keys first came. And slices are merged by time, which for
aggregates that are `order_free` is as good as the order of elements. For those that join in order
(`joins_in_order`) it is as long as the elements of a key come slice by slice. With one that comes into a
slice before the key's latest an *epoch* of that key ends: its accumulators there and in later slices are
*closed*, and a new one is begun. So of those that are open each has begun after the last element of those in
earlier slices, and a closed one gets no more: no two have seen elements in turns, and they are merged in the
order of their numbers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Any, Final, NamedTuple

from asyncstream.state import MISSING, Cell, Table, Tables
from asyncstream.state.keys import SOUND, check_key
from asyncstream.state.rows import NO_ROWS, Rows
from asyncstream.windowing.aggregates import InPlace, in_place
from asyncstream.windowing.functions import AggregateFunction, can_merge
from asyncstream.windowing.pane_blocks import Blocks
from asyncstream.windowing.plan import AT_END, RULES, WindowPlan
from asyncstream.windowing.windows import Span, max_timestamp

__all__ = ("PaneStore", "Places", "SliceRows")

_NUMBER: Final = itemgetter(-1)
"""Of an accumulator in a slice, when its first element came."""

_SLICES_WITH_ROWS: Final = 4
"""As many as elements out of order alternate between."""

_FEW: Final = 500
"""As many starts are moved in a list before it costs more than to remember one that goes."""


class Places(NamedTuple):
    """Where a store has something: its `ends`, `starts` and `windows`."""

    ends: dict[int, int]
    starts: list[int]
    windows: set[Span]


class PaneStore:
    """
    The slices of one operator, and its whole windows.

    Attributes:
        slices: their accumulators; of a key that has closed ones, the latest.
        whole: those of whole windows.
        aggregate: makes, merges and reads accumulators.
        add_each: adds an element to those of several whole windows.
        add: adds an element to one of a slice; raises `OrderMatters` if that may not be done.
        can_share: whether windows can be merged of slices, or are slices themselves.
        has_epochs: whether an element in a slice before the latest is put there by `put`.
        numbers: gives the numbers of first elements; None: windows are slices themselves.
        ends: the end of each slice that there is, by its start.
        starts: theirs, in their order; none where each window is one slice, for those are found as they are.
        windows: the whole windows that there are.
    """

    def __init__(self, plan: WindowPlan, tables: Tables) -> None:
        slicing, aggregate = plan.slicing, plan.folding
        self._slicing = slicing
        self._is_disjoint = slicing.is_disjoint
        listed = in_place(aggregate)
        is_shared = can_merge(aggregate) and (aggregate.order_free or aggregate.joins_in_order)
        early, _, ticks = plan.firings or AT_END
        self.can_share = self._is_disjoint or (is_shared and not (early or ticks))
        self.has_epochs = is_shared and not (self._is_disjoint or aggregate.order_free)
        self.aggregate = aggregate if self._is_disjoint else listed
        self.add_each, self.gather = listed.add_each, listed.gather
        self.add: Callable[[Any, Any], Any] = aggregate.add if self._is_disjoint else listed.add_order_free
        save, load = (aggregate.save, aggregate.load) if self._is_disjoint else _numbered(listed)
        table = partial(Table, namespace_of=tuple)
        self.whole = tables.declare(table("open", save=listed.save, load=listed.load))
        self.slices = tables.declare(table("slices", save=save, load=load))
        save_all, load_all = lambda parts: [*map(save, parts)], lambda parts: [*map(load, parts)]
        self._closed = tables.declare(table("closed", save=save_all, load=load_all))
        self.numbers = None if self._is_disjoint else count()
        tables.declare_cell("number", Cell(self._next_number, self._count_from, RULES["number"]))
        self._overlap_ms = slicing.overlap_ms() if is_shared else (0, 0)
        self._gone: list[int] = []  # starts of slices that there are no more, which are in `starts` still
        self.go_on(Places({}, [], set()))

    def __len__(self) -> int:
        """How many accumulators there are."""
        return len(self.slices) + len(self._closed) + len(self.whole)

    def is_empty(self) -> bool:
        """Whether there is neither a slice nor a whole window."""
        return not self.ends and not self.windows

    def open(self, place: Span) -> None:
        """Have a slice from now on."""
        start, end = place
        self.ends[start] = end
        if not self._is_disjoint:
            insort(self.starts, start)

    def drop(self, place: Span) -> None:
        """Have no such slice; call `drop_starts` when all have gone that go together."""
        del self.ends[place[0]]
        if len(self.starts) > _FEW:
            self._gone.append(place[0])
        elif not self._is_disjoint:
            del self.starts[bisect_left(self.starts, place[0])]
        self._blocks.drop(place[0])
        self.slices.drop(place)
        self._closed.drop(place)

    def drop_starts(self) -> None:
        """Have those of no slice that has gone: at once, for one by one would move all behind each."""
        starts, gone = self.starts, iter(self._gone)
        start = next(gone, None)
        while start is not None:
            first = bisect_left(starts, start)
            start, past = next(gone, None), first + 1
            while past < len(starts) and starts[past] == start:
                start, past = next(gone, None), past + 1
            del starts[first:past]
        self._gone.clear()

    def drop_whole(self, window: Span) -> None:
        """Have no such whole window."""
        self.windows.discard(window)
        self.whole.drop(window)

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
            self.slices.fetch(place, some)

    def begin(self, key: Any) -> Any:
        """An accumulator for a key that has none in a slice."""
        if type(key) not in SOUND:
            check_key(key)
        accumulator = self.aggregate.create()
        if self.numbers is not None:
            accumulator.append(next(self.numbers))
        return accumulator

    def put(self, place: Span, key: Any, value: Any) -> None:
        """Put an element into a slice, which may be before the latest one."""
        table = self.slices
        self._blocks.drop(place[0])
        if self.has_epochs:
            later = self.starts[bisect_right(self.starts, place[0]) :]
            places = [(start, self.ends[start]) for start in later]
            known = [other for other in places if table.peek(other, key) is not MISSING]
            for other in (*known, place) if known else ():
                self._close(other, key)
        accumulator = table.get(place, key)
        if accumulator is MISSING:
            accumulator = self.begin(key)
        table.put(place, key, self.add(accumulator, value))

    def join(self, place: Span, parts: Iterable[tuple[Any, list[Any]]]) -> None:
        """Put folded elements into a slice, by key; their accumulators are given away."""
        table, merge, numbers = self.slices, self.aggregate.merge, self.numbers
        is_alone = not isinstance(self.aggregate, InPlace)
        self._blocks.drop(place[0])
        rows, has_older = table.rows(place), table.has_older_rows(place)
        for key, accumulator in parts:
            found = accumulator[0] if is_alone else accumulator
            before = rows.get(key, MISSING)
            if before is MISSING and has_older:
                before = table.take(place, key)
            if before is not MISSING:
                rows[key] = merge(before, found)
                continue
            if numbers is not None:
                found.append(next(numbers))
            if type(key) not in SOUND:
                check_key(key)
            rows[key] = found

    def _close(self, place: Span, key: Any) -> None:
        accumulator = self.slices.get(place, key)
        if accumulator is not MISSING:
            self.slices.remove(place, key)
            before = self._closed.get(place, key)
            self._closed.put(place, key, [accumulator] if before is MISSING else [*before, accumulator])

    # ------------------------------------------------------------------ windows

    def own(self, window: Span, key: Any) -> Any:
        """The accumulator of a key in a whole window, to be changed; it has one afterwards."""
        accumulator = self.whole.get(window, key)
        if accumulator is MISSING:
            accumulator = self.aggregate.create()
            self.whole.put(window, key, accumulator)
        return accumulator

    def forget(self, window: Span, keys: Iterable[Any] | None = None) -> None:
        """Hold nothing more of a window, or of these keys in it, but what it shares with others."""
        table = self.slices if self._is_disjoint else self.whole
        if keys is None:
            table.drop(window)
        for key in keys or ():
            table.remove(window, key)

    def young(self, window: Span) -> Rows:
        """What a window holds of some keys, to be read only, where windows are whole or slices."""
        return (self.slices if self._is_disjoint else self.whole).young.get(window, NO_ROWS)

    def merged(self, window: Span, key: Any) -> Any:
        """What a window holds of one key; to be read, not changed."""
        if self._is_disjoint:
            return self.slices.peek(window, key)
        own = self.whole.peek(window, key)
        if not self.ends:
            return own
        merge, merged = self.aggregate.merge, self.aggregate.create()
        if own is not MISSING:
            merged = merge(merged, own)
        parts = [part for place in self._cover(window) for part in self._parts(place, key)]
        for accumulator in sorted(parts, key=_NUMBER) if self.has_epochs else parts:
            merged = merge(merged, accumulator)
        return merged

    def each(self, window: Span) -> Iterable[tuple[Any, Any]]:
        """
        The keys of a window, with accumulators, in the order of their first elements.

        They are to be read, not changed: a key that is in one slice only still shares that one's.
        """
        slices, closed, blocks = self.slices, self._closed, self._blocks
        if self._is_disjoint:
            return slices.each(window)
        covered = self._cover(window, makes=not slices.is_remote)  # there memory is not to hold what is not
        places = [place for place in covered if place in slices or place in closed or blocks.rows(place)]
        if not places:
            return self.whole.each(window)
        if window in self.windows or any(place in closed for place in places):
            return self._in_turn(window, places).items()
        if len(places) == 1 and places[0] in slices:
            return slices.each(places[0])
        parts = [cells for place in places if (cells := self._rows(place))]
        follow = _follow_one_another(parts)
        found: Rows = dict(parts.pop(0)) if follow else dict.fromkeys(self._firsts(places))
        for cells in parts:
            self.gather(found, cells)
        return found.items()

    def _in_turn(self, window: Span, places: Iterable[Span]) -> Rows:
        """What a window holds itself, and slices and blocks after that in the order of the numbers."""
        create, merge = self.aggregate.create, self.aggregate.merge
        found = {key: merge(create(), own) for key, own in self.whole.each(window)}
        parts = [part for place in places for part in self._every(place)]
        for key, accumulator in sorted(parts, key=lambda part: _NUMBER(part[1])):
            found[key] = merge(found[key] if key in found else create(), accumulator)
        return found

    def _block(self, places: Iterable[Span]) -> Rows:
        """What some slices and blocks hold, as a block does; rows that are in one only are that one's."""
        places = list(places)
        if len(places) == 1:
            return self._rows(places[0])
        firsts = self._firsts(places)
        found: Rows = dict.fromkeys(firsts)
        for place in places:
            self.gather(found, self._rows(place))
        without_number = len(self.aggregate.create())
        for key, number in firsts.items():
            if len(found[key]) == without_number:
                found[key].append(number)
        return found

    def make_whole(self, gone_ms: float, pending: Container[Span]) -> None:
        """
        Keep windows whole that are made up of slices; there are no slices then. Those that ended by `gone_ms`
        are not to come back in parts, but for the `pending` ones.
        """
        merge = self.aggregate.merge
        parts = [(place[0], *part) for place in self.ends.items() for part in self._every(place)]
        for start, key, accumulator in sorted(parts, key=lambda part: _NUMBER(part[2])):
            for window in self._slicing.windows_of(start):
                if max_timestamp(window) > gone_ms or window in pending:
                    self.windows.add(window)
                    merge(self.own(window, key), accumulator)
        for place in list(self.ends.items()):
            self.drop(place)
        self.drop_starts()

    def _cover(self, window: Span, makes: bool = False) -> Iterable[Span]:
        """
        The slices and blocks that a window is made up of, by time; whether blocks may be made for it.

        Where one has closed accumulators there are slices only: what is closed goes between those of a block.
        """
        if len(self._closed):
            places = list(self._blocks.slices(window))
            if any(place in self._closed for place in places):
                return places
        return self._blocks.cover(window, makes)

    def _rows(self, place: Span) -> Rows:
        """Those of a block, or of a slice without closed ones; to be read only."""
        rows = self._blocks.rows(place)
        return self.slices.whole(place) if rows is None else rows

    def _every(self, place: Span) -> Iterator[tuple[Any, Any]]:
        """The accumulators in a slice or block, closed ones, too, each with its key."""
        for key, parts in self._closed.whole(place).items():
            yield from ((key, part) for part in parts)
        yield from self._rows(place).items()

    def _parts(self, place: Span, key: Any) -> Iterable[Any]:
        """The accumulators of a key in a slice or block, with numbers."""
        rows = self._blocks.rows(place)
        accumulator = self.slices.peek(place, key) if rows is None else rows.get(key, MISSING)
        closed = self._closed.peek(place, key)
        latest = () if accumulator is MISSING else (accumulator,)
        return latest if closed is MISSING else (*closed, *latest)

    def _firsts(self, places: Iterable[Span]) -> dict[Any, int]:
        """The keys of slices and blocks, with the numbers of their first elements, in the order of these."""
        firsts: dict[Any, int] = {}
        for place in places:
            for key, accumulator in self._every(place):
                number = accumulator[-1]
                if number < firsts.get(key, number + 1):
                    firsts[key] = number
        return dict(sorted(firsts.items(), key=itemgetter(1)))

    # ------------------------------------------------------------------ state

    def places(self) -> Places:
        """Where there is something, for a store that goes on with the tables of this one."""
        return Places(self.ends, self.starts, self.windows)

    def go_on(self, places: Places) -> None:
        """Have the slices and whole windows that another store has had."""
        self.ends, self.starts, self.windows = places
        self._blocks = Blocks(*self._overlap_ms, self.ends, self.starts, self._block)

    def index(self) -> None:
        """Find out which slices and whole windows there are."""
        self.ends.clear()
        for place in (*self.slices.namespaces(), *self._closed.namespaces()):
            if place != self._slicing.slice_at(place[0]):
                raise ValueError(f"{place} is no slice of these windows, as (start, end) in milliseconds")
            self.ends[place[0]] = place[1]
        self.starts[:] = () if self._is_disjoint else sorted(self.ends)
        self._gone.clear()
        self._blocks.clear()
        self.windows = set(self.whole.namespaces())

    def _next_number(self) -> int:
        number = 0 if self.numbers is None else next(self.numbers)
        self._count_from(number)
        return number

    def _count_from(self, number: int) -> None:
        if self.numbers is not None:
            self.numbers = count(number)


class SliceRows:
    """
    Accumulators by slice and key: for each window of the slice that of the key, in one row.

    So an element is added to all of its windows in one loop, without a look at any of them. A row is good as
    long as its accumulators are where they were found.
    """

    __slots__ = ("_slices",)

    def __init__(self) -> None:
        self._slices: dict[Span, Rows] = {}

    def of(self, place: Span) -> Rows:
        """The rows of a slice by key, to be read and written."""
        rows = self._slices.get(place)
        if rows is None:
            if len(self._slices) == _SLICES_WITH_ROWS:
                del self._slices[next(iter(self._slices))]
            rows = self._slices[place] = {}
        return rows

    def forget(self, key: Any) -> None:
        """Have no rows of a key."""
        for rows in self._slices.values():
            rows.pop(key, None)

    def forget_until(self, time_ms: float) -> None:
        """Have no rows of slices that have ended by then."""
        self._slices = {place: rows for place, rows in self._slices.items() if max_timestamp(place) > time_ms}

    def clear(self) -> None:
        """Have no rows."""
        self._slices.clear()


def _follow_one_another(slices: Sequence[Rows]) -> bool:
    """Whether there are slices, each of which had all its keys before the next had its first."""
    last = -1
    for cells in slices:
        if next(iter(cells.values()))[-1] < last:
            return False
        last = next(reversed(cells.values()))[-1]
    return bool(slices)


def _numbered(aggregate: AggregateFunction[Any, Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`save` and `load` for accumulators in lists, behind each of which stands a number."""
    save, load = aggregate.save, aggregate.load
    return lambda accumulator: [save(accumulator), accumulator[-1]], lambda kept: [*load(kept[0]), kept[1]]
