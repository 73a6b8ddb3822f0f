"""
Fast sliding windows that overlap, where the order of elements matters: each is added to all its windows.

So each window's accumulator sees its elements one by one in the order in which they came, and a sum of
floats is what it is in `WindowOperator`, to the last digit. An element takes one addition for each window it
is in, and there is an accumulator for each window and key. What makes it fast is that all elements of a slice
(`cuts`) are in the same windows: for each key the accumulators of these stand in one *row*, and one compiled
loop goes along it.

Rows only refer to what the windows hold, and are forgotten at will. Those of a few slices are kept: of as
many as elements out of order alternate between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from asyncstream.elements import Timestamps
from asyncstream.operators.base import pairs
from asyncstream.windowing.aggregates import Aggregates, InPlace
from asyncstream.windowing.cuts import Cuts
from asyncstream.windowing.operator import check_timestamp
from asyncstream.windowing.plain import MISSING, NONE_AT_HAND
from asyncstream.windowing.plan import WindowPlan
from asyncstream.windowing.whole import WholeWindowOperator

__all__ = ("OverlappingWindowOperator",)

_SLICES_WITH_ROWS = 4


class OverlappingWindowOperator(WholeWindowOperator):
    """Sliding windows whose slide is shorter than their size, for any aggregate."""

    def __init__(self, key_by: Callable[[Any], Any], plan: WindowPlan) -> None:
        super().__init__(key_by, plan)
        self._cuts = Cuts(plan.assigner)
        aggregate = plan.aggregate
        in_place = aggregate if isinstance(aggregate, Aggregates) else InPlace(aggregate)  # type: ignore[arg-type]
        self._aggregate = in_place
        self._add = in_place.add_each
        self._rows: dict[tuple[int, int], dict[Any, Any]] = {}  # by (start, end) of a slice, then by key

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        key_by, add_each = self._key_by, self._add
        watermark = self._watermark
        start, end, rows = NONE_AT_HAND  # the slice that the last element went into
        value: Any = None
        timestamp: Any = 0
        try:
            for value, timestamp in pairs(values, timestamps):
                key = key_by(value)
                if not start <= timestamp < end:
                    check_timestamp(timestamp)
                    start, end = self._cuts.slice_at(timestamp)
                    if end - 1 <= watermark:
                        self._add_behind(start, key, value, timestamp)
                        end = start
                        continue
                    rows = self._rows_of(start, end)
                row = rows.get(key, MISSING)
                if row is MISSING:
                    row = rows[key] = [self._held_by(window, key) for window in self._cuts.windows_of(start)]
                add_each(row, value)
        except BaseException as error:
            raise self._failed(value, timestamp, error) from error
        self._at_hand = (start, end, rows)
        self._emitter.flush()

    def _rows_of(self, start: int, end: int) -> dict[Any, Any]:
        rows = self._rows.get((start, end))
        if rows is None:
            if len(self._rows) == _SLICES_WITH_ROWS:
                del self._rows[next(iter(self._rows))]
            rows = self._rows[start, end] = {}
        return rows

    def _held_by(self, window: int, key: Any) -> list[Any]:
        """The accumulator of a key in a window that is to fire."""
        cells = self._opened(window)
        if key not in cells:
            done = self._done.get(window)
            cells[key] = done.pop(key) if done and key in done else self._aggregate.create()
        held: list[Any] = cells[key]
        return held

    def _add_behind(self, start: int, key: Any, value: Any, timestamp: int) -> None:
        """Add an element of a slice that has ended: some of its windows may have fired or be late."""
        placed = False
        for window in self._cuts.windows_of(start):
            end_ms = window + self._size_ms
            if end_ms - 1 > self._watermark:
                self._add((self._held_by(window, key),), value)
            elif end_ms - 1 + self._lateness_ms > self._watermark:
                self._add_late(window, key, value)
            else:
                continue
            placed = True
        if not placed:
            self._leave_out(value, timestamp, timestamp)

    def _fire(self, watermark: float) -> None:
        super()._fire(watermark)
        self._rows = {place: rows for place, rows in self._rows.items() if place[1] - 1 > watermark}

    def _take_up(self, state: Any) -> None:
        self._rows.clear()
        super()._take_up(state)
