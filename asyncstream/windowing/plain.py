"""
What the fast window operators share.

They do what `WindowOperator` does where a plan is `plain`: event time, the default trigger, no evictor, an
aggregate and no process function. Then there is no trigger to ask: a window fires once, when the watermark
reaches its end, and after that with every element within the allowed lateness. So one timer serves all
keys of a window, and nothing is looked up per element but the accumulator.

They give the same results in the same order as `WindowOperator`, which `tests/properties` holds them to, and
their snapshots are its snapshots: a pipeline may change operators between two runs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.errors import InternalError
from asyncstream.operators.base import Operator
from asyncstream.operators.process import Emitter
from asyncstream.operators.results import FirstKeys
from asyncstream.state import Frozen
from asyncstream.timers import Timer, reached
from asyncstream.windowing.aggregates import Aggregates
from asyncstream.windowing.functions import AggregateFunction, OrderMatters
from asyncstream.windowing.operator import LATE, check_timestamp
from asyncstream.windowing.plan import SNAPSHOT, WindowPlan
from asyncstream.windowing.windows import TimeWindow, WindowResult

__all__ = ("MISSING", "NONE_AT_HAND", "Cell", "PlainWindowOperator")

_new_result = partial(tuple.__new__, WindowResult)
"""`WindowResult(...)` from a tuple, without the detour through its generated `__new__`: half the time."""


MISSING: Any = object()

NONE_AT_HAND: tuple[int, int, dict[Any, Any]] = (0, 0, {})


class Cell(NamedTuple):
    """
    One window of one key, as snapshots know it.

    Attributes:
        key: whose window.
        window: which one.
        held: its accumulator.
        pending: whether it is still to fire at its end.
    """

    key: Any
    window: TimeWindow
    held: Any
    pending: bool


class PlainWindowOperator(Operator):
    """
    Base of the fast window operators; emits, completes and counts as `WindowOperator` does.

    Snapshot holds: the accumulator of each window and key, and whether it is still to fire.
    """

    layout = SNAPSHOT

    def __init__(self, key_by: Callable[[Any], Any], plan: WindowPlan) -> None:
        """
        Args:
            key_by: gives the key of an element; keys are hashable and compare by value.
            plan: what to do.
        """
        super().__init__()
        if not plan.plain or plan.aggregate is None:
            raise InternalError(f"{type(self).__name__} cannot do {plan!r}")
        self._key_by: Callable[[Any], Any] = FirstKeys(self, key_by)
        self._plan = plan
        self._aggregate = plan.aggregate
        self._add: Callable[[Any, Any], Any] = plan.aggregate.add
        self._is_own_form = _keeps_accumulators_as_they_are(plan.aggregate)
        self._lateness_ms = plan.allowed_lateness_ms
        self._watermark: float = MIN_TIMESTAMP
        # (start, end, accumulators by key) of where the last element went, if the next may just follow it
        self._at_hand: tuple[int, int, dict[Any, Any]] = NONE_AT_HAND
        self._emitter: Emitter[WindowResult] = Emitter(self)
        self._late_dropped = 0
        self._outside_windows = 0

    def process(self, value: Any, timestamp: int | None) -> None:
        start, end, cells = self._at_hand
        if type(timestamp) is int and start <= timestamp < end:
            try:
                key = self._key_by(value)
                held = cells.get(key, MISSING)
                if held is not MISSING:
                    cells[key] = self._add(held, value)
                    return
            except OrderMatters as found:
                found.rest = [(value, timestamp)]
                raise
            except BaseException as error:
                raise self._failed(value, timestamp, error) from error
        self.process_batch((value,), (timestamp,))

    def advance_watermark(self, timestamp: int) -> None:
        self._watermark = reached(timestamp)
        self._at_hand = NONE_AT_HAND
        self._fire(self._watermark)
        self._emitter.flush()
        super().advance_watermark(timestamp)

    def restore_watermark(self, timestamp: int) -> None:
        self._watermark = timestamp
        self._at_hand = NONE_AT_HAND
        super().restore_watermark(timestamp)

    def snapshot(self) -> Any:
        save = self._aggregate.save
        contents: list[Any] = []
        sessions: list[Any] = []
        timers: list[Any] = []
        for window, pending, cells in self._held():
            plain = list(window)
            entries = [[key, plain, save(held)] for key, held in cells]
            contents += entries
            if self._plan.assigner.merging:
                sessions += [[entry[0], plain, plain] for entry in entries]
            cleanup_ms = window.max_timestamp + self._lateness_ms
            if pending:
                timers += [[window.max_timestamp, entry[0], plain] for entry in entries]
            if not (pending and self._lateness_ms == 0):
                timers += [[cleanup_ms, entry[0], plain] for entry in entries]
        timers.sort(key=lambda timer: timer[0])
        return {
            "contents": contents,
            "merging": sessions,
            "timers": {"event": timers, "processing": []},
            "trigger": {},
            "key": {},
            "window": {},
            "anchor_ms": None,
            "late_dropped": self._late_dropped,
            "outside_windows": self._outside_windows,
        }

    def capture(self) -> Frozen[Any]:
        """What is held is copied as it is; the snapshot, which takes longer, a twin makes of the copy."""
        parts = self._freeze()
        if any(part.is_live for part in parts):
            return super().capture()
        watermark, late, outside = self._watermark, self._late_dropped, self._outside_windows

        def thaw() -> Any:
            twin = type(self)(self._key_by, self._plan)
            twin._watermark, twin._late_dropped, twin._outside_windows = watermark, late, outside
            twin._thaw([part.thaw() for part in parts])
            return twin.snapshot()

        return Frozen(thaw, sum(part.size for part in parts))

    @abstractmethod
    def _freeze(self) -> list[Frozen[Any]]:
        """Copies of what is held, for `_thaw`."""

    @abstractmethod
    def _thaw(self, parts: list[Any]) -> None:
        """Hold what another one held: just enough for a snapshot."""

    def restore(self, state: Any) -> None:
        self._late_dropped = state["late_dropped"]
        self._outside_windows = state["outside_windows"]
        self._at_hand = NONE_AT_HAND
        self._take_up(state)

    def go_on_at(self, watermark: int) -> None:
        """Go on in the place of an operator that has passed this watermark on."""
        self._watermark = reached(watermark)

    def hand_over(self) -> Any:
        return self._late_dropped, self._outside_windows, self._give()

    def take_over(self, state: Any) -> None:
        self._late_dropped, self._outside_windows, held = state
        self._at_hand = NONE_AT_HAND
        self._take(held)

    def _saved(self, cells: dict[Any, Any]) -> dict[Any, Any]:
        """Accumulators by key, to be given away."""
        if self._is_own_form:
            return cells
        save = self._aggregate.save
        return {key: save(held) for key, held in cells.items()}

    def _loaded(self, cells: dict[Any, Any]) -> dict[Any, Any]:
        """What `_saved` gave."""
        if self._is_own_form:
            return cells
        load = self._aggregate.load
        return {key: load(held) for key, held in cells.items()}

    @abstractmethod
    def _give(self) -> Any:
        """What is held, for `_take`; accumulators as `_saved` gives them."""

    @abstractmethod
    def _take(self, held: Any) -> None:
        """Hold what another one gave, which holds nothing else."""

    def _cells_of(self, state: Any) -> Iterator[Cell]:
        """What a snapshot holds: what is pending first, in the order in which it will fire."""
        load = self._aggregate.load
        names = {(key, tuple(place)): tuple(window) for key, window, place in state["merging"]}
        contents: dict[tuple[Any, Any], Any] = {}
        for key, place, held in state["contents"]:
            window = tuple(place)
            contents[key, names.get((key, window), window)] = load(held)
        for timestamp, key, place in state["timers"]["event"]:
            plain = tuple(place)
            if timestamp == plain[1] - 1 and (key, plain) in contents:
                yield Cell(key, TimeWindow(*plain), contents.pop((key, plain)), True)
        for (key, plain), held in contents.items():
            yield Cell(key, TimeWindow(*plain), held, False)

    def metrics(self) -> dict[str, int]:
        return {
            "windows_open": self._count_open(),
            "late_dropped": self._late_dropped,
            "outside_windows": self._outside_windows,
        }

    @abstractmethod
    def _fire(self, watermark: float) -> None:
        """Emit all windows that end by `watermark`, and let go those that are late by then."""

    @abstractmethod
    def _held(self) -> Iterator[tuple[TimeWindow, bool, Iterable[tuple[Any, Any]]]]:
        """
        For each window whether it is pending, and (key, accumulator) of those for whom it is.

        The pending ones that end together come in the order in which they will fire.
        """

    @abstractmethod
    def _take_up(self, state: Any) -> None:
        """Hold what a snapshot holds, instead of what is here."""

    @abstractmethod
    def _count_open(self) -> int:
        """About how many accumulators are held."""

    def _emit(self, start_ms: int, end_ms: int, cells: Iterable[tuple[Any, Any]]) -> None:
        """Emit the results of one window for some keys, given as (key, accumulator)."""
        result_of = self._aggregate.result
        results: list[WindowResult] = []
        key: Any = None
        try:
            for key, held in cells:
                results.append(_new_result((key, start_ms, end_ms, result_of(held))))
        except BaseException as error:
            self._emitter.extend(results, end_ms - 1)
            self._emitter.flush()
            raise self.blame(Timer(end_ms - 1, key, TimeWindow(start_ms, end_ms)), error) from error
        self._emitter.extend(results, min(end_ms - 1, MAX_TIMESTAMP))

    def _leave_out(self, value: Any, timestamp: int | None, time_ms: int) -> None:
        """An element that is in no window: too late for all of its own, or between two."""
        if time_ms + self._lateness_ms > self._watermark:
            self._outside_windows += 1
        elif LATE in self.side:
            self._emitter.aside(LATE, value, timestamp)
        else:
            self._late_dropped += 1

    def _failed(self, value: Any, timestamp: int | None, error: BaseException) -> BaseException:
        """The error to raise when the loop over a batch met `error` at this element."""
        self._emitter.flush()
        if self._plan.assigner.needs_timestamp:
            try:
                check_timestamp(timestamp)
            except (TypeError, ValueError) as better:
                return self.blame(value, better)
        return self.blame(value, error)


def _keeps_accumulators_as_they_are(aggregate: AggregateFunction[Any, Any]) -> bool:
    """Whether an accumulator can be pickled as it is: nobody has said how else to save it."""
    parts = aggregate.parts.values() if isinstance(aggregate, Aggregates) else (aggregate,)
    return all(type(part).save is AggregateFunction.save for part in parts)
