"""
Fast sliding windows that overlap: each element is added once, however many windows it is in.

Theory. A slice (`cuts`) holds an accumulator for each key; a window's result merges those of its slices,
which needs an aggregate that is `order_free`. A window is *armed* by the first element of one of its slices
while it is still to fire, and fires for the keys that its slices hold.

* Where a slice ends after the watermark, none of its windows has fired: that is the fast case. In the
  others the windows are looked at one by one, and those that have fired do so again at once.
* A window's results come in the order in which its keys first came. A slice keeps the number of each key's
  first element; only where slices were filled in turns need they be sorted.
* A snapshot holds whole windows. What a restore brings cannot be cut into slices again, so it is *kept* by
  window and merged in when that fires. Of a kept window, the keys that had not fired are *due*; the others
  fire only if an element comes for them, which may be before it is known again how far event time had come.
* A slice goes when the last of its windows is late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain, count, islice
from typing import Any

from asyncstream.elements import Timestamps
from asyncstream.operators.base import pairs
from asyncstream.state import Frozen, freeze, freeze_items
from asyncstream.windowing.cuts import Cuts
from asyncstream.windowing.functions import OrderMatters
from asyncstream.windowing.operator import check_timestamp
from asyncstream.windowing.plain import MISSING, NONE_AT_HAND, PlainWindowOperator
from asyncstream.windowing.plan import WindowPlan
from asyncstream.windowing.windows import TimeWindow

__all__ = ("SlicedWindowOperator",)


class _Slice:
    """
    The accumulators of one slice.

    Attributes:
        held: accumulator by key.
        numbers: by key, the number of its first element here; they rise in the order of `held`.
    """

    __slots__ = ("held", "numbers")

    def __init__(self) -> None:
        self.held: dict[Any, Any] = {}
        self.numbers: dict[Any, int] = {}


class _Kept:
    """
    What a restore brought of one window.

    Attributes:
        held: accumulator by key.
        due: keys that are to fire whether or not an element comes, in order; of no use once they have.
    """

    __slots__ = ("due", "held")

    def __init__(self) -> None:
        self.held: dict[Any, Any] = {}
        self.due: dict[Any, None] = {}


class SlicedWindowOperator(PlainWindowOperator):
    """Sliding windows whose slide is shorter than their size."""

    def __init__(self, key_by: Callable[[Any], Any], plan: WindowPlan) -> None:
        super().__init__(key_by, plan)
        self._cuts = cuts = Cuts(plan.assigner)
        self._size_ms, self._slide_ms, self._cut_ms = cuts.size_ms, cuts.slide_ms, cuts.cut_ms
        self._add = plan.aggregate.add_order_free  # type: ignore[union-attr]
        self._slices: dict[int, _Slice] = {}
        self._kept: dict[int, _Kept] = {}
        self._armed: set[int] = set()
        self._to_fire: list[int] = []
        self._to_clean: list[int] = []
        self._numbers = count()

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        key_by, add, create = self._key_by, self._add, self._aggregate.create
        elements = pairs(values, timestamps)
        watermark, numbers = self._watermark, self._numbers
        start, end, cells = NONE_AT_HAND  # the slice that the last element went into
        firsts: dict[Any, int] = {}
        value: Any = None
        timestamp: Any = 0
        try:
            for value, timestamp in elements:
                key = key_by(value)
                if not start <= timestamp < end:
                    check_timestamp(timestamp)
                    start, end = self._cuts.slice_at(timestamp)
                    if end - 1 <= watermark:
                        self._add_behind(start, key, value, timestamp)
                        end = start
                        continue
                    at_hand = self._slices.get(start)
                    if at_hand is None:
                        at_hand = self._new_slice(start)
                        for window in self._cuts.windows_of(start):
                            self._arm(window)
                    cells, firsts = at_hand.held, at_hand.numbers
                held = cells.get(key, MISSING)
                if held is MISSING:
                    cells[key] = add(create(), value)
                    firsts[key] = next(numbers)
                else:
                    cells[key] = add(held, value)
        except OrderMatters as found:
            self._emitter.flush()
            found.rest = [(value, timestamp), *elements]
            raise
        except BaseException as error:
            raise self._failed(value, timestamp, error) from error
        self._at_hand = (start, end, cells)
        self._emitter.flush()

    def _slices_of(self, window: int) -> Iterator[_Slice]:
        """The slices that there are of a window, by time."""
        found, end = self._slices, window + self._size_ms
        starts: Iterable[int] = range(window, end, self._slide_ms)
        if len(found) < self._size_ms // self._slide_ms:
            starts = sorted(start for start in found if window <= start < end)
        elif self._cut_ms:
            starts = chain.from_iterable((start, start + self._cut_ms) for start in starts)
        for start in starts:
            if start < end and start in found and found[start].held:
                yield found[start]

    def _new_slice(self, start: int) -> _Slice:
        made = self._slices[start] = _Slice()
        heappush(self._to_clean, start)
        return made

    def _arm(self, window: int) -> None:
        if window not in self._armed:
            self._armed.add(window)
            heappush(self._to_fire, window)

    def _is_late(self, window: int) -> bool:
        return window + self._size_ms - 1 + self._lateness_ms <= self._watermark

    def _add_behind(self, start: int, key: Any, value: Any, timestamp: int) -> None:
        """Put an element into a slice that has ended: some of its windows may have fired or be late."""
        windows = [window for window in self._cuts.windows_of(start) if not self._is_late(window)]
        if not windows:
            self._leave_out(value, timestamp, timestamp)
            return
        place = self._slices.get(start) or self._new_slice(start)
        is_first = key not in place.held
        place.held[key] = self._add(self._aggregate.create() if is_first else place.held[key], value)
        if is_first:
            place.numbers[key] = next(self._numbers)
        for window in windows:
            if window + self._size_ms - 1 <= self._watermark:
                self._emit(window, window + self._size_ms, [(key, self._merged(window, key))])
            else:
                self._arm(window)

    def _merged(self, window: int, key: Any) -> Any:
        """The accumulator of one key over a whole window; to be read, not changed."""
        merge, merged = self._aggregate.merge, self._aggregate.create()
        kept = self._kept.get(window)
        if kept is not None and key in kept.held:
            merged = merge(merged, kept.held[key])
        for place in self._slices_of(window):
            if key in place.held:
                merged = merge(merged, place.held[key])
        return merged

    def _to_emit(self, window: int) -> dict[Any, Any]:
        """
        The accumulators, by key, for which a window is to fire, in the order of their first elements.

        They are to be read, not changed: a key that is in one slice only still shares that one's.
        """
        slices = list(self._slices_of(window))
        kept = self._kept.get(window)
        if kept is not None:
            keys = {**kept.due, **self._in_order(slices)}
            return {key: self._merged(window, key) for key in keys}
        if len(slices) == 1:
            return slices[0].held
        merge, create = self._aggregate.merge, self._aggregate.create
        found = self._in_order(slices)
        own: set[Any] = set()  # keys whose accumulator is no longer that of a slice
        for place in slices:
            for key, held in place.held.items():
                present = found[key]
                if present is MISSING:
                    found[key] = held
                elif key in own:
                    found[key] = merge(present, held)
                else:
                    own.add(key)
                    found[key] = merge(merge(create(), present), held)
        return found

    def _in_order(self, slices: list[_Slice]) -> dict[Any, Any]:
        """The keys of some slices in the order of their first elements, each with `MISSING`."""
        keys: dict[Any, Any] = {}
        last = -1
        for place in slices:
            if next(iter(place.numbers.values())) < last:
                break
            last = next(reversed(place.numbers.values()))
            keys.update(dict.fromkeys(place.held, MISSING))
        else:
            return keys  # each had all its keys before the next had its first
        firsts: dict[Any, int] = {}
        for place in slices:
            for key, number in place.numbers.items():
                if number < firsts.get(key, number + 1):
                    firsts[key] = number
        return dict.fromkeys(sorted(firsts, key=firsts.__getitem__), MISSING)

    def _fire(self, watermark: float) -> None:
        size = self._size_ms
        while self._to_fire and self._to_fire[0] + size - 1 <= watermark:
            window = heappop(self._to_fire)
            self._armed.remove(window)
            self._emit(window, window + size, self._to_emit(window).items())
        while self._to_clean and self._is_late(self._cuts.windows_of(self._to_clean[0])[0]):
            del self._slices[heappop(self._to_clean)]
        while self._kept and self._is_late(oldest := next(iter(self._kept))):
            del self._kept[oldest]

    def _held(self) -> Iterator[tuple[TimeWindow, bool, Iterable[tuple[Any, Any]]]]:
        windows = {window for start in self._slices for window in self._cuts.windows_of(start)} | set(
            self._kept
        )
        for start in sorted(windows):
            if self._is_late(start):
                continue
            window = TimeWindow(start, start + self._size_ms)
            pending = self._to_emit(start) if start in self._armed else {}
            yield window, True, pending.items()
            keys = dict.fromkeys(key for place in self._slices_of(start) for key in place.held)
            if start in self._kept:
                keys.update(dict.fromkeys(self._kept[start].held))
            yield window, False, [(key, self._merged(start, key)) for key in keys if key not in pending]

    def _give(self) -> Any:
        slices = {start: (self._saved(place.held), place.numbers) for start, place in self._slices.items()}
        kept = {start: (self._saved(window.held), window.due) for start, window in self._kept.items()}
        return slices, kept, self._armed, next(self._numbers)

    def _take(self, held: Any) -> None:
        slices, kept, self._armed, number = held
        self._numbers = count(number)
        for start, (cells, numbers) in slices.items():
            place = self._slices[start] = _Slice()
            place.held, place.numbers = self._loaded(cells), numbers
        for start, (cells, due) in kept.items():
            window = self._kept[start] = _Kept()
            window.held, window.due = self._loaded(cells), due
        self._to_fire, self._to_clean = sorted(self._armed), sorted(self._slices)

    def due_ms(self) -> int | None:
        due = [window + self._size_ms - 1 for window in self._to_fire[:1]]
        newest = [self._cuts.windows_of(start)[0] for start in self._to_clean[:1]]
        late = [*newest, *islice(self._kept, 1)]
        return min([*due, *(window + self._size_ms - 1 + self._lateness_ms for window in late)], default=None)

    def _freeze(self) -> list[Frozen[Any]]:
        parts = [freeze([list(self._slices), list(self._kept), self._armed])]
        for place in self._slices.values():
            parts += [freeze_items(place.held.items()), freeze_items(place.numbers.items())]
        for kept in self._kept.values():
            parts += [freeze_items(kept.held.items()), freeze_items(kept.due)]
        return parts

    def _thaw(self, parts: list[Any]) -> None:
        rest = iter(parts)
        slices, kept, self._armed = next(rest)
        for start in slices:
            place = self._slices[start] = _Slice()
            place.held, place.numbers = dict(next(rest)), dict(next(rest))
        for start in kept:
            window = self._kept[start] = _Kept()
            window.held, window.due = dict(next(rest)), dict.fromkeys(next(rest))

    def _take_up(self, state: Any) -> None:
        for kept in (self._slices, self._kept, self._armed, self._to_fire, self._to_clean):
            kept.clear()
        for key, window, held, pending in self._cells_of(state):
            found = self._kept.setdefault(window.start_ms, _Kept())
            found.held[key] = held
            if pending:
                found.due[key] = None
                self._arm(window.start_ms)
        self._kept = dict(sorted(self._kept.items()))

    def _count_open(self) -> int:
        kept = sum(len(window.held) for window in self._kept.values())
        return kept + sum(len(place.held) for place in self._slices.values())
