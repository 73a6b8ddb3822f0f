"""
Fast windows of fixed length that each keep accumulators of their own, whether they overlap or not.

Theory. A window is *open* until it fires, and *done* from then to its clean-up. Each is a dict from key to
accumulator, in the order in which the keys first came, which is the order of their results.

A key of a done window goes back to the open one if an element comes for it after a restore, because then
the watermark is before all time again and the window is to fire once more for that key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Any

from asyncstream.errors import InternalError
from asyncstream.state import Frozen, freeze, freeze_items
from asyncstream.windowing.assigners import SlidingWindows, TumblingWindows
from asyncstream.windowing.plain import PlainWindowOperator
from asyncstream.windowing.plan import WindowPlan
from asyncstream.windowing.windows import TimeWindow

__all__ = ("WholeWindowOperator",)


class WholeWindowOperator(PlainWindowOperator):
    """Base of the operators that add each element to each of its windows."""

    def __init__(self, key_by: Callable[[Any], Any], plan: WindowPlan) -> None:
        super().__init__(key_by, plan)
        assigner = plan.assigner
        if isinstance(assigner, TumblingWindows):
            self._slide_ms = assigner.size_ms
        elif isinstance(assigner, SlidingWindows):
            self._slide_ms = assigner.slide_ms
        else:
            raise InternalError(f"windows of {type(assigner).__name__} have no length")
        self._size_ms = assigner.size_ms
        self._offset_ms = assigner.offset_ms
        self._open: dict[int, dict[Any, Any]] = {}
        self._done: dict[int, dict[Any, Any]] = {}
        self._to_fire: list[int] = []
        self._to_clean: list[int] = []

    def _opened(self, start: int) -> dict[Any, Any]:
        cells = self._open.get(start)
        if cells is None:
            cells = self._open[start] = {}
            heappush(self._to_fire, start)
        return cells

    def _add_late(self, start: int, key: Any, value: Any) -> None:
        """Put an element into a window that has fired, which makes it fire again."""
        done = self._done.get(start)
        if done is None:
            done = self._keep_done(start, {})
        held = self._aggregate.add(done[key] if key in done else self._aggregate.create(), value)
        done[key] = held
        self._emit(start, start + self._size_ms, [(key, held)])

    def _keep_done(self, start: int, cells: dict[Any, Any]) -> dict[Any, Any]:
        done = self._done.get(start)
        if done is None:
            self._done[start] = cells
            heappush(self._to_clean, start)
            return cells
        done.update(cells)
        return done

    def _fire(self, watermark: float) -> None:
        size = self._size_ms
        while self._to_fire and self._to_fire[0] + size - 1 <= watermark:
            start = heappop(self._to_fire)
            cells = self._open.pop(start)
            self._emit(start, start + size, cells.items())
            if self._lateness_ms:
                self._keep_done(start, cells)
        while self._to_clean and self._to_clean[0] + size - 1 + self._lateness_ms <= watermark:
            del self._done[heappop(self._to_clean)]

    def _held(self) -> Iterator[tuple[TimeWindow, bool, Iterable[tuple[Any, Any]]]]:
        for windows, pending in ((self._open, True), (self._done, False)):
            for start, cells in windows.items():
                yield TimeWindow(start, start + self._size_ms), pending, cells.items()

    def _give(self) -> Any:
        return [
            {start: self._saved(cells) for start, cells in windows.items()}
            for windows in (self._open, self._done)
        ]

    def _take(self, held: Any) -> None:
        self._open, self._done = (
            {start: self._loaded(cells) for start, cells in windows.items()} for windows in held
        )
        self._to_fire, self._to_clean = sorted(self._open), sorted(self._done)

    def due_ms(self) -> int | None:
        due = [start + self._size_ms - 1 for start in self._to_fire[:1]]
        due += [start + self._size_ms - 1 + self._lateness_ms for start in self._to_clean[:1]]
        return min(due, default=None)

    def _freeze(self) -> list[Frozen[Any]]:
        parts = []
        for windows in (self._open, self._done):
            parts.append(freeze(list(windows)))
            parts += [freeze_items(cells.items()) for cells in windows.values()]
        return parts

    def _thaw(self, parts: list[Any]) -> None:
        rest = iter(parts)
        for windows in (self._open, self._done):
            for start in next(rest):
                windows[start] = dict(next(rest))

    def _take_up(self, state: Any) -> None:
        for kept in (self._open, self._done, self._to_fire, self._to_clean):
            kept.clear()
        load = self._aggregate.load
        found: dict[int, dict[Any, Any]] = {}
        for key, (start, _), held in state["contents"]:
            cells = found.get(start)
            if cells is None:
                cells = found[start] = {}
            cells[key] = load(held)
        for timestamp, key, (start, end) in state["timers"]["event"]:
            if timestamp == end - 1 and key in found.get(start, ()):
                self._opened(start)[key] = found[start].pop(key)
        for start, cells in found.items():
            if cells:
                self._keep_done(start, cells)

    def _count_open(self) -> int:
        return sum(map(len, self._open.values())) + sum(map(len, self._done.values()))
