"""
Windows on a grid of time, for all keys together: tumbling, sliding and cumulative ones.

Theory. Normally an element is added once, to its *slice* (`slices`, `slice_store`), however many windows that
is in, and the result of a window is merged of its slices. A window is *armed* by the first element of one of
its slices while it is still to fire, and fires for the keys that its slices hold.

* Where a slice ends after the watermark, none of its windows has fired: that is the fast case. In the others
  the windows are looked at one by one, and those that have fired do so again at once.
* Slices are merged by time, not in the order of their elements. For sums of integers that is the same; for
  sums of floats, whose digits hang on the grouping, for texts or for a NaN among numbers it is not. So the
  aggregate says of each element whether order matters with it (`AggregateFunction.is_order_free`). With the
  first such element all that is held becomes whole windows, and each element is added to each of its windows
  in turn: *in order*. Elements of one slice are in the same windows, so for each key the accumulators of
  these stand in one *row*, and one compiled loop goes along it.
* A trigger may count elements before a window's end or after it, and fire with every so many-th
  (`plan.Firings`). For windows that do not overlap the counts stand in tables beside the accumulators.

A whole window has its accumulators in two tables: *open* while it is to fire for their keys, *done* after
that, within the allowed lateness. Whole windows may also lie beside slices, with which they are merged when
they fire: a snapshot of another kind of operator has nothing else.

Which windows have fired follows from how far event time had come when the operator last fired, `fired_ms`.
After a restore elements may come before it is known again how far that was, or it is not known at all: then
windows are to fire again, but only for the keys of those elements. Slices cannot tell that, so with the first
such element they become whole windows, of which those of a key that has fired are done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, Final

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamps
from asyncstream.errors import InternalError
from asyncstream.operators.base import pairs
from asyncstream.state import MISSING, Cell, Table
from asyncstream.state.keys import SOUND, check_key
from asyncstream.state.rows import Rows
from asyncstream.timers import Timer
from asyncstream.windowing.aggregates import in_place
from asyncstream.windowing.functions import OrderMatters, clears
from asyncstream.windowing.plan import AT_END, WindowPlan
from asyncstream.windowing.slice_store import SliceStore
from asyncstream.windowing.slices import SliceRows, Span, slicing_of
from asyncstream.windowing.step import PlainWindowOperator, check_timestamp, in_parts
from asyncstream.windowing.upgrade import RULES, Contents, as_windows
from asyncstream.windowing.windows import TimeWindow

__all__ = ("PaneWindowOperator",)

_NOWHERE: Final[tuple[int, int, Rows]] = (0, 0, {})

_COUNTS: Final = "trigger/"
"""Where counters of elements are kept, by window and key: as `WindowOperator` keeps what a trigger counts."""


class PaneWindowOperator(PlainWindowOperator):
    """
    Tumbling, sliding and cumulative windows with an aggregate and the default trigger.

    Snapshot holds: accumulators of slices, or of windows, by key.
    """

    keeps = "panes"

    def __init__(self, key_by: Callable[[Any], Any], plan: WindowPlan) -> None:
        super().__init__(key_by, plan)
        aggregate, firings = plan.folding, plan.firings
        if plan.kept != self.keeps or firings is None:
            raise InternalError(f"{type(self).__name__} cannot do {plan!r}")
        self._in_place = listed = in_place(aggregate)
        self._slicing = slicing_of(plan.assigner)
        kept = self.tables
        self._slices = slices = SliceStore(self._slicing, aggregate, kept)
        table = partial(Table, namespace_of=tuple, may_be_away=True)
        save, load = listed.save, listed.load
        self._open = kept.declare(table("open", save=save, load=load))
        self._done = kept.declare(table("done", save=save, load=load))
        self._fired_ms: float = MIN_TIMESTAMP
        self._in_order = not slices.can_share
        for name in ("fired_ms", "in_order"):
            kept.declare_cell(name, Cell.of(self, f"_{name}", RULES[name]))
        came_with = partial(setattr, self, "_lateness_before_ms")
        kept.declare_cell("lateness_ms", Cell(lambda: self._lateness_ms, came_with, RULES["lateness_ms"]))
        kept.on_cut(self._forget_rows)
        self._firings = firings
        self._clears = plan.process is not None and clears(plan.process)
        self._early, self._late = table(f"{_COUNTS}early/count"), table(f"{_COUNTS}late/count")
        if firings != AT_END:
            kept.declare(self._early)
            kept.declare(self._late)
        self._is_unsure = False  # whether windows that have fired may be to fire again
        self._lateness_before_ms = self._lateness_ms
        self._armed: set[Span] = set()
        self._to_fire: list[Span] = []  # windows, as (end, start)
        self._to_clean: list[tuple[int, Span, bool]] = []  # when, what, whether it is a slice
        self._at_hand = _NOWHERE
        self._add_at_hand: Callable[[Any, Any], Any] = slices.add
        self._rows = SliceRows()

    # ------------------------------------------------------------------ elements

    def process(self, value: Any, timestamp: int | None) -> None:
        start, end, cells = self._at_hand
        if type(timestamp) is int and start <= timestamp < end:
            try:
                key = self._key_by(value)
                held = cells.get(key, MISSING)
                if held is not MISSING:
                    cells[key] = self._add_at_hand(held, value)
                    return
            except OrderMatters:
                pass
            except BaseException as error:
                raise self._failed(value, timestamp, error) from error
        self.process_batch((value,), (timestamp,))

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        elements = pairs(values, timestamps)
        if self._is_unsure and values:
            self._make_whole()
        if not self._in_order:
            key_by = self._fetched(values, timestamps) if self._slices.table.is_remote else self._key_by
            try:
                self._add_to_slices(elements, key_by)
                return
            except OrderMatters as found:
                self._emitter.flush()
                self._in_order = True
                self._make_whole()
                elements = iter([*found.rest, *elements])
        self._add_in_order(elements)

    def _fetched(self, values: Sequence[Any], timestamps: Timestamps) -> Callable[[Any], Any]:
        """Have the accumulators in slices of these elements in memory; gives their keys, one by one."""
        keys, key_by = self._keys_ahead(values)
        start, end, place = 0, 0, (0, 0)
        places = []
        for key, (_, timestamp) in zip(keys, pairs(values, timestamps), strict=False):
            if type(timestamp) is not int:
                break  # which is refused at its turn
            if not start <= timestamp < end:
                place = start, end = self._slicing.slice_at(timestamp)
            places.append((place, key))
        self._slices.table.fetch(places)
        return key_by

    def _add_to_slices(self, elements: Iterator[tuple[Any, Any]], key_by: Callable[[Any], Any]) -> None:
        slices, watermark, early = self._slices, self._watermark, self._firings.early
        add, create, numbers, table = slices.add, slices.aggregate.create, slices.numbers, slices.table
        counts: Rows = {}
        uncounted: int | None = None
        start, end, cells = _NOWHERE  # the slice that the last element went into
        is_older = False
        value: Any = None
        timestamp: Any = 0
        try:
            for value, timestamp in elements:
                key = key_by(value)
                if not start <= timestamp < end:
                    check_timestamp(timestamp)
                    start, end = self._slicing.slice_at(timestamp)
                    if end - 1 <= watermark or not self._has_slice(start, end):
                        self._add_behind(start, end, key, value, timestamp)
                        end = start
                        continue
                    place = (start, end)
                    if slices.has_epochs and start < slices.newest:
                        slices.put(place, key, value)
                        end = start
                        continue
                    cells = table.rows(place)
                    is_older = not table.is_remote and table.has_older_rows(place)  # or it was fetched
                    if early:
                        counts = self._early.rows(place)
                        uncounted = None if self._early.has_older_rows(place) else 0
                held = cells.get(key, MISSING)
                if held is MISSING:
                    if is_older:
                        held = table.take((start, end), key)
                    if held is MISSING:
                        if type(key) not in SOUND:
                            check_key(key)
                        held = create()
                        if numbers is not None:
                            held.append(next(numbers))
                cells[key] = held = add(held, value)
                if early:
                    counted = counts.get(key, uncounted)
                    if counted is None or counted + 1 >= early:
                        self._count(self._early, early, (start, end), key, held)
                    else:
                        counts[key] = counted + 1
        except OrderMatters as found:
            found.rest = [(value, timestamp)]
            raise
        except BaseException as error:
            raise self._failed(value, timestamp, error) from error
        if not early:
            self._at_hand, self._add_at_hand = (start, end, cells), add
        self._emitter.flush()

    def _count(self, counts: Table, every: int, window: Span, key: Any, held: Any) -> None:
        """Count an element of a window, which fires with every so many-th."""
        counted = 1
        if every > 1:
            before = counts.get(window, key)
            counted += 0 if before is MISSING else before
            counts.put(window, key, counted % every)
        if counted == every:
            self._emit_window(window, [(key, held)])

    def _emit_window(self, window: Span, cells: list[tuple[Any, Any]]) -> None:
        """Emit the results of a window for some keys, whose accumulators are as all are now."""
        self._emit(*window, cells, self._in_place if self._in_order else self._slices.aggregate)

    def _add_in_order(self, elements: Iterator[tuple[Any, Any]]) -> None:
        key_by, add_each = self._key_by, self._in_place.add_each
        watermark, early = self._watermark, self._firings.early
        start, end, rows = _NOWHERE
        windows: Iterable[Span] = ()
        cells_of: list[Rows] = []
        value: Any = None
        timestamp: Any = 0
        try:
            for value, timestamp in elements:
                key = key_by(value)
                if not start <= timestamp < end:
                    check_timestamp(timestamp)
                    start, end = self._slicing.slice_at(timestamp)
                    windows = self._slicing.windows_of(start)
                    if end - 1 <= watermark or not windows:
                        self._add_behind_in_order(windows, key, value, timestamp)
                        end = start
                        continue
                    rows = self._rows.of((start, end))
                    cells_of = [self._opened(window) for window in windows]
                row = rows.get(key, MISSING)
                if row is MISSING:
                    row = rows[key] = [
                        cells.get(key) or self._held_by(window, key)
                        for window, cells in zip(windows, cells_of, strict=True)
                    ]
                add_each(row, value)
                if early:
                    self._count(self._early, early, (start, end), key, row[0])
        except BaseException as error:
            raise self._failed(value, timestamp, error) from error
        if not early:
            self._at_hand, self._add_at_hand = (start, end, rows), add_each
        self._emitter.flush()

    def _has_slice(self, start: int, end: int) -> bool:
        """Whether there is a slice, from now on; not if it is in no window."""
        if start in self._slices.ends:
            return True
        windows = self._slicing.windows_of(start)
        for window in windows:
            if window[1] - 1 > self._watermark:
                self._arm(window)
        if windows:
            self._slices.open((start, end))
            heappush(self._to_clean, self._cleaning_of(start, end))
        return bool(windows)

    def _add_behind(self, start: int, end: int, key: Any, value: Any, timestamp: int) -> None:
        """Put an element into a slice that has ended, or is none: some of its windows may have fired."""
        windows = [window for window in self._slicing.windows_of(start) if not self._is_late(window)]
        if not windows:
            self._leave_out(value, timestamp, timestamp)
            return
        self._has_slice(start, end)
        slices = self._slices
        slices.put((start, end), key, value)
        for window in windows:
            if window[1] - 1 <= self._watermark:
                held = slices.merged(window, key, self._kept(window, key))
                self._count(self._late, self._firings.late, window, key, held)
            else:
                self._arm(window)

    def _add_behind_in_order(self, windows: Iterable[Span], key: Any, value: Any, timestamp: int) -> None:
        """The same for whole windows."""
        placed = False
        for window in windows:
            if window[1] - 1 > self._watermark:
                held = self._opened(window).get(key) or self._held_by(window, key)
                self._in_place.add(held, value)
            elif not self._is_late(window):
                self._add_late(window, key, value)
            else:
                continue
            placed = True
        if not placed:
            self._leave_out(value, timestamp, timestamp)

    def _add_late(self, window: Span, key: Any, value: Any) -> None:
        """Put an element into a whole window that has fired, which makes it fire again."""
        held = self._done.get(window, key)
        held = self._in_place.add(self._in_place.create() if held is MISSING else held, value)
        self._put_done(window, {key: held})
        self._count(self._late, self._firings.late, window, key, held)

    def _opened(self, window: Span) -> Rows:
        """The young accumulators of a whole window that is to fire, by key."""
        self._arm(window)
        return self._open.rows(window)

    def _held_by(self, window: Span, key: Any) -> Any:
        """The accumulator of a key in such a window, which has no young one."""
        held = self._open.take(window, key)
        if held is MISSING:
            held = self._done.get(window, key)
            if held is MISSING:
                held = self._in_place.create()
            else:
                self._done.remove(window, key)
            self._open.put(window, key, held)
        return held

    def _forget_rows(self) -> None:
        """What was at hand is not young any more."""
        self._at_hand = _NOWHERE
        self._rows.clear()

    # ------------------------------------------------------------------ time

    def advance_watermark(self, timestamp: int) -> None:
        self._at_hand = _NOWHERE
        super().advance_watermark(timestamp)

    def restore_watermark(self, timestamp: int) -> None:
        super().restore_watermark(timestamp)
        self._at_hand = _NOWHERE
        self._compare_watermark()

    def due_ms(self) -> int | None:
        due = [end - 1 for end, _ in self._to_fire[:1]] + [when for when, _, _ in self._to_clean[:1]]
        return min(due, default=None)

    def _fire(self, watermark: float) -> None:
        to_fire, to_clean = self._to_fire, self._to_clean
        while to_fire or to_clean:
            end_ms: float = to_fire[0][0] - 1 if to_fire else math.inf
            clean_ms: float = to_clean[0][0] if to_clean else math.inf
            if min(end_ms, clean_ms) > watermark:
                break
            # without lateness a window goes when it has fired
            if end_ms < clean_ms or (end_ms == clean_ms and not self._lateness_ms):
                end, start = heappop(to_fire)
                self._fire_window((start, end))
            else:
                _, place, is_slice = heappop(to_clean)
                self._clean_up(place, is_slice)
        if watermark >= self._fired_ms or not self._slices.ends:
            self._fired_ms = min(watermark, MAX_TIMESTAMP)
            self._is_unsure = False
        self._rows.forget_until(watermark)
        if self._in_order and self._slices.can_share and not to_fire and not to_clean:
            self._in_order = False

    def _fire_window(self, window: Span) -> None:
        self._armed.discard(window)
        self._early.drop(window)
        cells = self._open.each(window) if self._in_order else self._of_slices(window)
        if self._clears and not self._lateness_ms:
            for key, held in cells:
                self._emit_window(window, [(key, held)])
                self._clear(window, key)
        else:
            for some in in_parts(cells):
                self._emit_window(window, some)
        if window in self._open:
            if self._lateness_ms:
                self._put_done(window, self._open.adopt(window))
            self._open.drop(window)

    def _clean_up(self, place: Span, is_slice: bool) -> None:
        """Let a slice go, or a whole window that has fired."""
        table = self._slices.table if is_slice else self._done
        if self._clears and self._lateness_ms:
            for key, _ in table.each(place):
                self._clear(place, key)
        if is_slice:
            self._slices.drop(place)
        else:
            self._done.drop(place)
        self._late.drop(place)

    def _clear(self, window: Span, key: Any) -> None:
        """Tell the process function that a window goes."""
        try:
            self._clear_window(key, TimeWindow(*window))
        except BaseException as error:
            self._emitter.flush()
            raise self.blame(Timer(window[1] - 1, key, TimeWindow(*window)), error) from error

    def _arm(self, window: Span) -> None:
        if window not in self._armed:
            self._armed.add(window)
            heappush(self._to_fire, (window[1], window[0]))

    def _put_done(self, window: Span, cells: Rows) -> None:
        if window in self._done:
            self._done.rows(window).update(cells)
        else:
            self._done.young[window] = cells
            heappush(self._to_clean, (window[1] - 1 + self._lateness_ms, window, False))

    def _cleaning_of(self, start: int, end: int) -> tuple[int, Span, bool]:
        return self._slicing.last_end(start) - 1 + self._lateness_ms, (start, end), True

    def _is_late(self, window: Span) -> bool:
        return window[1] - 1 + self._lateness_ms <= self._watermark

    # ------------------------------------------------------------------ whole windows

    def _of_slices(self, window: Span) -> Iterable[tuple[Any, Any]]:
        """The keys, with accumulators, for which a window of slices is to fire."""
        if window in self._open or window in self._done:
            return self._slices.each(window, self._open.whole(window), partial(self._kept, window))
        return self._slices.each(window)

    def _kept(self, window: Span, key: Any) -> Any:
        """What a whole window, perhaps beside slices, holds."""
        held = self._open.peek(window, key)
        return self._done.peek(window, key) if held is MISSING else held

    def _make_whole(self) -> None:
        """Have whole windows in place of slices."""
        self._is_unsure = False
        self._in_order |= self._slicing.is_disjoint
        fired, merge = self._fired_ms, self._in_place.merge
        for window, cells in self._slices.into_windows().items():
            if window[1] - 1 + self._lateness_before_ms <= fired:
                continue
            is_open = window[1] - 1 > fired or window in self._armed
            for key, held in cells.items():
                before = self._kept(window, key)
                if before is not MISSING:
                    held = merge(merge(self._in_place.create(), before), held)
                if is_open:
                    self._done.remove(window, key)
                (self._open if is_open else self._done).put(window, key, held)
        self._fired_ms = min(self._watermark, MAX_TIMESTAMP)
        self._index()

    # ------------------------------------------------------------------ state

    def restored(self) -> None:
        has_whole = next(self._open.namespaces(), None) or next(self._done.namespaces(), None)
        self._in_order = not self._slices.can_share or (
            bool(has_whole) and (self._in_order or self._slicing.is_disjoint)
        )
        self._index()
        # windows that have gone, but not all of their slices, are not to come back in parts
        has_parts = self._lateness_before_ms < self._lateness_ms and not self._slicing.is_disjoint
        if self._slices.ends and (self._in_order or has_parts):
            self._make_whole()
        self._lateness_before_ms = self._lateness_ms
        self._compare_watermark()

    def _compare_watermark(self) -> None:
        """See whether the watermark agrees with what has fired."""
        self._is_unsure = bool(self._slices.ends) and self._watermark < self._fired_ms
        is_due = bool(self._to_fire) and self._to_fire[0][0] - 1 <= self._watermark
        if not self._is_unsure and not is_due:
            self._fired_ms = min(self._watermark, MAX_TIMESTAMP)

    def _index(self) -> None:
        """Find out what there is, and what is to be done when."""
        self._forget_rows()
        self._slices.index()
        ends = self._slices.ends
        self._to_clean = [self._cleaning_of(*place) for place in ends.items()]
        for start, end in self._done.namespaces():
            self._to_clean.append((end - 1 + self._lateness_ms, (start, end), False))
        self._armed = set(self._open.namespaces())
        seen: set[Span] = set()
        for start in sorted(ends):
            for window in self._slicing.windows_of(start):
                if window in seen:
                    break  # and so are the others
                seen.add(window)
                if window[1] - 1 > self._fired_ms:
                    self._armed.add(window)
        self._to_fire = [(end, start) for start, end in self._armed]
        heapify(self._to_fire)
        heapify(self._to_clean)

    def _snapshot_of(self, found: Contents) -> Any:
        return as_windows(found, self._plan, MIN_TIMESTAMP)

    def _count_open(self) -> int:
        return len(self._slices) + len(self._open) + len(self._done)
