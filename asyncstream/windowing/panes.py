"""
Windows on a grid of time, for all keys together: tumbling, sliding and cumulative ones.

Theory. Normally an element is added once, to its *slice* (`assigners`), however many windows that is in, and
the result of a window is merged of its slices (`pane_store`). A window is *armed* by the first element of one
of its slices while it is still to fire, and fires for the keys that its slices hold.

* Where a slice ends after all that has fired, none of its windows has: that is the fast case. In the others
  the windows are looked at one by one, and those that have fired do so again at once.
* With the first element of which the aggregate says that its order matters (`is_order_free`), all that is
  held becomes whole windows, and each element is added to each of its windows in turn: *in order*. For each
  key the accumulators of the windows of a slice stand in one *row*, and one compiled loop goes along it.
* A trigger may count elements before a window's end or after it, and fire with every so many-th
  (`plan.Firings`). The counts stand in tables, by window. Windows that overlap are in order if they fire
  before their end: to merge each from its slices, time and again, would cost more than is shared.

Which windows have fired follows from how far event time had come when the operator last fired, `fired_ms`.
After a restore elements may come before it is known again how far that was, or it is not known at all: then
windows are to fire *again*, but only for the keys of those elements, which a table holds. Slices that windows
share cannot tell which of these have gone, so with the first such element all become whole. Or event time has
passed windows that have not fired, which they do with the next watermark, with what they have: their keys go
into that table with the first element that comes before, and what they share becomes whole, so that nothing
comes into them late.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby, product
from operator import itemgetter
from typing import Any, Final

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamps
from asyncstream.operators.base import pairs
from asyncstream.state import MISSING, Cell, Table
from asyncstream.state.keys import SOUND, check_key
from asyncstream.state.rows import Rows, run_through
from asyncstream.windowing.base import LATE, PlainWindowOperator, check_timestamp
from asyncstream.windowing.functions import OrderMatters
from asyncstream.windowing.pane_schedule import Schedule
from asyncstream.windowing.pane_store import PaneStore, Places, SliceRows
from asyncstream.windowing.partials import Partials
from asyncstream.windowing.plan import AT_END, RULES, WindowPlan
from asyncstream.windowing.windows import Span, max_timestamp, new_result

__all__ = ("PaneWindowOperator",)

_NOWHERE: Final[tuple[int, int, Rows, Any, Any, Any]] = (0, 0, {}, None, None, None)
"""
A slice that has nothing, its rows, what adds to one, what gives a key its own, and what counts an element of
a row (None: nothing does).
"""


class PaneWindowOperator(PlainWindowOperator):
    """
    Tumbling, sliding and cumulative windows with an aggregate that fire at their ends, or by count besides.

    Snapshot holds: accumulators of slices, or of windows, by key, and what a trigger counts of these.
    """

    keeps = "panes"

    def __init__(self, key_by: Callable[[Any], Any], plan: WindowPlan) -> None:
        super().__init__(key_by, plan)
        self._slicing = plan.slicing
        kept = self.tables
        self._panes = panes = PaneStore(plan, kept)
        self._aggregate = panes.aggregate
        self._fired_ms: float = MIN_TIMESTAMP
        self._in_order = not panes.can_share
        for name in ("fired_ms", "in_order"):
            kept.declare_cell(name, Cell.of(self, f"_{name}", RULES[name]))
        came_with = partial(setattr, self, "_lateness_before_ms")
        kept.declare_cell("lateness_ms", Cell(lambda: self._lateness_ms, came_with, RULES["lateness_ms"]))
        kept.on_cut(self._has_been_cut)
        kept.on_restored(self._restored)
        table = partial(Table, namespace_of=tuple)
        self._again = kept.declare(table("again"))
        # by window and key, as `WindowOperator` keeps what a trigger counts
        self._early, self._late = table("trigger/early/count"), table("trigger/late/count")
        if self._firings != AT_END:
            kept.declare(self._early)
            kept.declare(self._late)
        self._is_unsure = False  # whether `fired_ms` says too little of the windows behind event time
        self._lateness_before_ms = self._lateness_ms
        self._schedule = Schedule(self._lateness_ms)
        self._at_hand = _NOWHERE
        self._rows = SliceRows()

    # ------------------------------------------------------------------ elements

    def process(self, value: Any, timestamp: int | None) -> None:
        start, end, cells, add, row_of, count = self._at_hand
        if type(timestamp) is int and start <= timestamp < end:
            try:
                key = self._key_by(value)
                accumulator = cells.get(key, MISSING)
                if accumulator is MISSING:
                    accumulator = row_of(key, timestamp)
                cells[key] = accumulator = add(accumulator, value)
                if count is not None:
                    count(key, accumulator)
                    self._emitter.flush()
                return
            except OrderMatters:
                pass
            except BaseException as error:
                self._fail(value, timestamp, error)
        self.process_batch((value,), (timestamp,))

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        elements = pairs(values, timestamps)
        self._at_hand = _NOWHERE  # if an element fails, there may be later slices by then
        if self._is_unsure and values:
            self._make_sure()
        if not self._in_order:
            key_by = self._key_by
            if self._panes.slices.is_remote:
                keys, key_by = self._keys_ahead(values)
                self._panes.fetch(pairs(keys, timestamps))
            try:
                self._add_to_slices(elements, key_by)
                return
            except OrderMatters as found:
                self._emitter.flush()
                self._in_order = True
                self._tell_of_order()
                self._make_whole()
                elements = iter([*found.rest, *elements])
        self._add_in_order(elements)

    def _add_to_slices(self, elements: Iterator[tuple[Any, Any]], key_by: Callable[[Any], Any]) -> None:
        panes, settled, early = self._panes, max(self._watermark, self._fired_ms), self._firings.early
        add, create, numbers, table = panes.add, self._aggregate.create, panes.numbers, panes.slices
        emitter, result = self._emitter, self._aggregate.result
        ticks, most, tells = self._firings.ticks, early - 1, self._plan.process is not None
        counts: Rows = {}
        uncounted = 0
        start, end, cells, *_ = _NOWHERE  # the slice that the last element went into
        is_older = False
        value: Any = None
        timestamp: Any = 0
        try:
            for value, timestamp in elements:
                key = key_by(value)
                if not start <= timestamp < end:
                    check_timestamp(timestamp)
                    start, end = self._slicing.slice_at(timestamp)
                    if end - 1 <= settled or not self._has_slice(start, end):
                        self._add_behind(key, value, timestamp)
                        end = start
                        continue
                    place = (start, end)
                    if panes.has_epochs and start < panes.starts[-1]:
                        panes.put(place, key, value)
                        end = start
                        continue
                    cells = table.rows(place)
                    is_older = not table.is_remote and table.has_older_rows(place)  # or it was fetched
                    if early:
                        counts = self._early.rows(place)
                        uncounted = early if self._early.has_older_rows(place) else 0
                        emitter.timestamp = min(end - 1, MAX_TIMESTAMP)
                accumulator = cells.get(key, MISSING)
                if accumulator is MISSING:
                    if is_older:
                        accumulator = table.take((start, end), key)
                    if accumulator is MISSING:
                        if type(key) not in SOUND:
                            check_key(key)
                        accumulator = create()  # as `panes.begin`, which would be a call for each key
                        if numbers is not None:
                            accumulator.append(next(numbers))
                        if ticks:
                            self._begin((start, end), key, timestamp)
                cells[key] = accumulator = add(accumulator, value)
                if early:
                    counted = counts.get(key, uncounted)
                    if counted < most:
                        counts[key] = counted + 1
                    elif tells or counted != most:
                        self._count(self._early, early, (start, end), key, accumulator)
                    else:
                        if most:
                            counts[key] = 0
                        emitter.emit(new_result((key, start, end, result(accumulator))))
        except OrderMatters as found:
            found.rest = [(value, timestamp)]
            raise
        except BaseException as error:
            self._fail(value, timestamp, error)
        row_of = partial(self._accumulator_in, (start, end))
        count = partial(self._count, self._early, early, (start, end)) if early else None
        self._at_hand = (start, end, cells, add, row_of, count)
        self._emitter.flush()

    def _count(self, counts: Table, every: int, window: Span, key: Any, accumulator: Any) -> None:
        """Count an element of a window, which fires with every so many-th."""
        counted = 1
        if every > 1:
            before = counts.get(window, key)
            counted += 0 if before is MISSING else before
            counts.put(window, key, counted % every)
        if counted == every:
            self._emit_one(window, key, accumulator)

    def _accumulator_in(self, place: Span, key: Any, timestamp: int) -> Any:
        """That of a key in a slice, if it is not young; a new one, if there is none."""
        accumulator = self._panes.slices.take(place, key)
        if accumulator is MISSING:
            accumulator = self._panes.begin(key)
            if self._firings.ticks:
                self._begin(place, key, timestamp)
        return accumulator

    def _row_in(self, windows: list[Span], cells_of: list[Rows], key: Any, timestamp: int) -> list[Any]:
        """The accumulators of a key in whole windows, given their young rows, too."""
        if self._firings.ticks:
            for window in windows:
                self._begin(window, key, timestamp)
        own, places = self._panes.own, zip(windows, cells_of, strict=True)
        return [cells.get(key) or own(window, key) for window, cells in places]

    def _begin(self, window: Span, key: Any, timestamp: int) -> None:
        """A key comes into a window with this element; where windows tick, it does so from now on."""

    def _add_in_order(self, elements: Iterator[tuple[Any, Any]]) -> None:
        panes, key_by, add_each = self._panes, self._key_by, self._panes.add_each
        settled = max(self._watermark, self._fired_ms)
        start, end, rows, _, row_of, count = _NOWHERE
        value: Any = None
        timestamp: Any = 0
        try:
            for value, timestamp in elements:
                key = key_by(value)
                if not start <= timestamp < end:
                    check_timestamp(timestamp)
                    (start, end), windows = self._opened_at(timestamp)
                    if end - 1 <= settled or not windows:
                        self._add_behind(key, value, timestamp)
                        end = start
                        continue
                    rows = self._rows.of((start, end))
                    row_of = partial(self._row_in, windows, [panes.whole.rows(window) for window in windows])
                    count = self._counting(windows)
                row = rows.get(key, MISSING)
                if row is MISSING:
                    row = rows[key] = row_of(key, timestamp)
                add_each(row, value)
                if count is not None:
                    count(key, row)
        except BaseException as error:
            self._fail(value, timestamp, error)
        self._at_hand = (start, end, rows, add_each, row_of, count)
        self._emitter.flush()

    def _counting(self, windows: list[Span]) -> Callable[[Any, list[Any]], None] | None:
        """What counts an element in each of these windows, given its key and row; None: nothing does."""
        if not (every := self._firings.early):
            return None
        table, count, most = self._early, self._count, every - 1
        counts_of = [(window, table.rows(window), table.has_older_rows(window)) for window in windows]

        def count_each(key: Any, row: list[Any]) -> None:
            for (window, counts, has_older), accumulator in zip(counts_of, row, strict=True):
                counted = counts.get(key, every if has_older else 0)
                if counted < most:
                    counts[key] = counted + 1
                else:
                    count(table, every, window, key, accumulator)

        return count_each

    def take_in(self, partials: Partials) -> None:
        """Accept elements that are folded as `partials` says; the side output "late" is not read."""
        if self._is_unsure and partials:
            self._make_sure()
        known: dict[int, tuple[Span, list[Span]]] = {}
        for start, some in groupby(partials, itemgetter(0)):
            place, windows = known.get(start) or known.setdefault(start, self._opened_at(start))
            if not windows:
                self._drop_late(LATE, start, sum(count for _, _, count, _ in some))
                continue
            parts = [(key, accumulator) for _, key, _, accumulator in some]
            if self._in_order:
                for window, (key, accumulator) in product(windows, parts):
                    self._aggregate.merge(self._panes.own(window, key), accumulator)
            else:
                self._panes.join(place, parts)
            if max_timestamp(place) <= self._fired_ms:
                for (key, _), window in product(parts, windows):
                    self._fire_again(window, key)

    def _opened_at(self, timestamp: int) -> tuple[Span, list[Span]]:
        """The slice that has it, and those of its windows that are not late; there is room for them."""
        place = self._slicing.slice_at(timestamp)
        late_ms = self._watermark - self._lateness_ms
        windows = [one for one in self._slicing.windows_of(place[0]) if max_timestamp(one) > late_ms]
        if windows and not self._in_order:
            self._has_slice(*place)
        for window in windows:
            if self._in_order and window not in self._panes.windows:
                self._panes.windows.add(window)
                self._schedule.keep(window, window, "window")
            if max_timestamp(window) > self._watermark:
                self._schedule.arm(window)
        return place, windows

    def _has_slice(self, start: int, end: int) -> bool:
        """Whether there is a slice, from now on; not if it is in no window."""
        panes, schedule = self._panes, self._schedule
        if start in panes.ends:
            return True
        windows = self._slicing.windows_of(start)
        if not windows:
            return False
        place = bisect_left(panes.starts, start)
        before = panes.starts[place - 1] if place else -math.inf
        for window in [window for window in windows if window[0] > before]:  # the others have that slice, too
            if max_timestamp(window) > self._watermark:
                schedule.arm(window)
        panes.open((start, end))
        schedule.keep((start, end), max(windows), "slice")
        return True

    def _add_behind(self, key: Any, value: Any, timestamp: int) -> None:
        """Put an element into a slice of which windows may have fired, or which is none."""
        place, windows = self._opened_at(timestamp)
        if not windows:
            self._leave_out(value, timestamp, timestamp)
            return
        panes = self._panes
        if self._in_order:
            for window in windows:
                self._aggregate.add(panes.own(window, key), value)
        else:
            panes.put(place, key, value)
        for window in windows:
            if max_timestamp(window) <= self._watermark:
                if self._firings.late > 1 and window not in self._late:
                    self._schedule.keep(window, window, "window")
                self._count(self._late, self._firings.late, window, key, panes.merged(window, key))
                continue
            self._fire_again(window, key)
            self._begin(window, key, timestamp)
            if self._firings.early:
                self._count(self._early, self._firings.early, window, key, panes.merged(window, key))

    def _fire_again(self, window: Span, key: Any) -> None:
        """If a window has fired, have it fire once more for this key."""
        if max_timestamp(window) <= self._fired_ms and self._again.peek(window, key) is MISSING:
            self._again.put(window, key, None)

    def _forget_rows(self) -> None:
        """What was at hand is not young any more."""
        self._at_hand = _NOWHERE
        self._rows.clear()

    # ------------------------------------------------------------------ time

    def restore_watermark(self, timestamp: int) -> None:
        super().restore_watermark(timestamp)
        self._at_hand = _NOWHERE
        self._compare_watermark()

    def due_ms(self) -> int | None:
        return self._schedule.due_ms()

    def _firing(self, watermark: float) -> Iterator[None]:
        self._at_hand = _NOWHERE
        while (due := self._schedule.take(watermark)) is not None:
            if due.what == "fire":
                yield from self._firing_window(due.place)
            else:
                self._clean_up(due.place, due.what == "slice")
        self._panes.drop_starts()
        if watermark >= self._fired_ms or self._panes.is_empty():
            self._fired_ms = min(watermark, MAX_TIMESTAMP)
            self._is_unsure = False
        self._rows.forget_until(watermark)
        if self._in_order and self._panes.can_share and self._panes.is_empty():
            self._in_order = False

    def _firing_window(self, window: Span) -> Iterator[None]:
        self._early.drop(window)
        panes = self._panes
        keys: list[Any] | None = None
        if max_timestamp(window) > self._fired_ms:
            cells = panes.each(window)
        else:
            keys = list(self._again.whole(window))
            self._again.drop(window)
            cells = [(key, panes.merged(window, key)) for key in keys]
        emitting = self._emitting(window, cells)
        if panes.slices.is_remote:  # where nothing may change while rows are read
            run_through(emitting)
            yield
        else:
            yield from emitting
        if not self._lateness_ms:
            panes.forget(window, keys)

    def _clean_up(self, place: Span, is_slice: bool) -> None:
        """Let a slice go, or a whole window."""
        panes = self._panes
        if self._clears and (not is_slice or self._slicing.is_disjoint):
            for key, _ in (panes.slices if is_slice else panes.whole).each(place):
                self._clear(place, key)
        (panes.drop if is_slice else panes.drop_whole)(place)
        self._late.drop(place)

    def _make_sure(self) -> None:
        """Have it known of each window that event time has passed for which keys it is to fire."""
        self._is_unsure = False
        if not (self._in_order or self._slicing.is_disjoint):
            self._in_order = True
            self._make_whole()
        if self._watermark < self._fired_ms:
            return
        for window in self._schedule.armed:
            if self._fired_ms < max_timestamp(window) <= self._watermark:
                for key, _ in self._panes.each(window):
                    self._again.put(window, key, None)
        self._fired_ms = min(self._watermark, MAX_TIMESTAMP)

    def _make_whole(self) -> None:
        """Have whole windows in place of slices, but for those that have gone."""
        gone_ms = self._fired_ms - self._lateness_before_ms
        self._panes.make_whole(gone_ms, set(self._again.namespaces()))
        self._index()

    # ------------------------------------------------------------------ state

    def _has_been_cut(self) -> None:
        self._forget_rows()
        self._again.derived = None if self._is_unsure else (self._schedule, self._panes.places())

    def _restored(self) -> None:
        known: tuple[Schedule, Places] | None = self._again.derived
        if known and known[0] is not self._schedule and known[0].lateness_ms == self._lateness_ms:
            # the tables go on from an operator like this
            self._schedule, places = known
            self._panes.go_on(places)
        else:
            self._look_over()
        self._lateness_before_ms = self._lateness_ms
        self._compare_watermark()

    def _look_over(self) -> None:
        """The tables hold something else than before."""
        panes, is_disjoint = self._panes, self._slicing.is_disjoint
        panes.index()
        self._in_order = not panes.can_share or (self._in_order and bool(panes.windows))
        # windows that have gone, but not all of their slices, are not to come back in parts
        has_parts = self._lateness_before_ms < self._lateness_ms and not is_disjoint
        if panes.ends and (self._in_order or has_parts):
            self._make_whole()
        else:
            self._index()

    def _compare_watermark(self) -> None:
        """See whether the watermark agrees with what has fired."""
        is_behind = self._watermark < self._fired_ms
        is_due = self._schedule.fires_by(self._watermark)
        self._is_unsure = not (self._in_order or self._slicing.is_disjoint) if is_behind else is_due
        if not is_due and (not is_behind or self._panes.is_empty()):
            self._fired_ms = min(self._watermark, MAX_TIMESTAMP)
            self._is_unsure = False

    def _index(self) -> None:
        """Find out what there is, and what is to be done when."""
        self._forget_rows()
        panes = self._panes
        schedule = self._schedule = Schedule(self._lateness_ms)
        for window in panes.windows:
            schedule.keep(window, window, "window")
            if max_timestamp(window) > self._fired_ms:
                schedule.arm(window)
        for window in self._again.namespaces():
            schedule.arm(window)
        for window in self._late.namespaces():
            schedule.keep(window, window, "window")
        seen: set[Span] = set()
        for start in sorted(panes.ends):
            windows = self._slicing.windows_of(start)
            schedule.keep((start, panes.ends[start]), max(windows), "slice")
            for window in windows:
                if window in seen:
                    break  # and so are the others
                seen.add(window)
                if max_timestamp(window) > self._fired_ms:
                    schedule.arm(window)

    def _count_open(self) -> int:
        return len(self._panes)
