"""
What all window operators share: what they count, whom they tell of late elements, how a window's result is
emitted, and what process functions work with.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Final

from asyncstream import eventtime
from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.errors import InternalError
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.exclusive import give_back, take
from asyncstream.operators.process import Emitter
from asyncstream.operators.results import FirstKeys, Kinds, not_a_value
from asyncstream.state import Cell
from asyncstream.timers import Timer, reached
from asyncstream.windowing.aggregates import InPlace
from asyncstream.windowing.contexts import FunctionContext
from asyncstream.windowing.functions import AggregateFunction
from asyncstream.windowing.plan import COUNTERS, Kept, WindowPlan
from asyncstream.windowing.upgrade import Contents, contents_of, kind_of
from asyncstream.windowing.windows import TimeWindow, Window, new_result

__all__ = ("LATE", "PlainWindowOperator", "WindowStep", "check_timestamp", "in_parts")

LATE = "late"
"""Tag of the side output for elements that came too late for all their windows."""

_PART: Final = 1_000
"""Keys whose results are made and handed on together; where not all is in memory, their accumulators too."""

check_timestamp = partial(eventtime.check_timestamp, "a window in event time")
"""Refuses what cannot be placed in time."""


class WindowStep(Operator):
    """
    Base of the window operators.

    Attributes:
        keeps: what this kind of operator keeps.
    """

    keeps: ClassVar[Kept]

    def __init__(self, key_by: Callable[[Any], Any], plan: WindowPlan) -> None:
        """
        Args:
            key_by: gives the key of an element; keys are hashable and compare by value.
            plan: what to do; its process function belongs to this operator alone.
        """
        super().__init__()
        self._key_by: Callable[[Any], Any] = FirstKeys(self, key_by)
        self._plan = plan
        self._lateness_ms = plan.allowed_lateness_ms if plan.assigner.event_time else 0
        self._emitter: Emitter[Any] = Emitter(self)
        self._kinds = Kinds()
        self._late_dropped = 0
        self._outside_windows = 0
        for name in COUNTERS:
            self.tables.declare_cell(name, Cell.of(self, f"_{name}", "sum"))

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        if self._plan.process is not None:
            take(self, self._plan.process)
        self._function_context = FunctionContext(
            self._emitter, self._reached, context.clock, self._plan.assigner.merging, self.tables
        )

    def close(self) -> None:
        if self._plan.process is not None:
            give_back(self, self._plan.process)

    def metrics(self) -> dict[str, int]:
        return {
            "windows_open": self._count_open(),
            "late_dropped": self._late_dropped,
            "outside_windows": self._outside_windows,
        }

    def snapshot(self) -> Any:
        self._function_context.purge()
        return super().snapshot()

    def upgraded(self, state: Any) -> Any:
        if kind_of(state) == self.keeps:
            return state
        return self._snapshot_of(contents_of(state, self._plan))

    @abstractmethod
    def _snapshot_of(self, found: Contents) -> Any:
        """What another kind of operator remembered, as a snapshot of this kind."""

    @abstractmethod
    def _reached(self) -> int:
        """The event time reached, milliseconds since the epoch."""

    @abstractmethod
    def _count_open(self) -> int:
        """About how many accumulators are held."""

    def _leave_out(self, value: Any, timestamp: int | None, time_ms: int) -> None:
        """An element that is in no window: too late for all of its own, or between two."""
        if not self._plan.assigner.event_time or time_ms + self._lateness_ms > reached(self._reached()):
            self._outside_windows += 1
            return
        tag, told = self._late_output(value)
        if tag in self.side:
            self._emitter.aside(tag, told, timestamp)
        else:
            self._late_dropped += 1

    def _late_output(self, value: Any) -> tuple[str, Any]:
        """Which side output a late element goes to if that is read, and as what."""
        return LATE, value

    def _process_window(self, key: Any, window: Window, contents: Any) -> None:
        """Have the process function handle a firing."""
        self._function_context.point_at(key, window)
        self._emitter.timestamp = min(window.max_timestamp, MAX_TIMESTAMP)
        process: Callable[..., object] = self._plan.process.process  # type: ignore[union-attr]
        result = process(key, contents, self._function_context, self._emitter)
        if result is not None and self._kinds.first_deferred([result]) is not None:
            raise not_a_value([result], "emit with out(...), and await in an async_map before or after")

    def _clear_window(self, key: Any, window: Window) -> None:
        """Have the process function, if there is one, clear its state of a window that goes."""
        if self._plan.process is not None:
            self._function_context.point_at(key, window)
            self._plan.process.clear(key, self._function_context)


class PlainWindowOperator(WindowStep):
    """
    Base of the operators that know of no triggers: in event time, a window fires once, when the watermark
    reaches its end, and after that with every element within the allowed lateness.

    They emit, complete and count as `WindowOperator` does, and give the same results in the same order.
    """

    def __init__(self, key_by: Callable[[Any], Any], plan: WindowPlan) -> None:
        super().__init__(key_by, plan)
        self._watermark: float = MIN_TIMESTAMP

    def advance_watermark(self, timestamp: int) -> None:
        self._watermark = reached(timestamp)
        self._fire(self._watermark)
        self._emitter.flush()
        super().advance_watermark(timestamp)

    def restore_watermark(self, timestamp: int) -> None:
        self._watermark = timestamp
        super().restore_watermark(timestamp)

    @abstractmethod
    def _fire(self, watermark: float) -> None:
        """Emit all windows that end by `watermark`, and let go those that are late by then."""

    def _reached(self) -> int:
        return int(min(self._watermark, MAX_TIMESTAMP))

    def _emit(
        self,
        start_ms: int,
        end_ms: int,
        cells: Collection[tuple[Any, Any]],
        aggregate: AggregateFunction[Any, Any],
    ) -> None:
        """Emit the results of one window for some keys, given as (key, accumulator)."""
        last_ms = min(end_ms - 1, MAX_TIMESTAMP)
        ended_by: BaseException | None = None
        if self._plan.process is None and isinstance(aggregate, InPlace):
            try:
                results = aggregate.results(start_ms, end_ms, cells)
            except Exception:  # the loop meets it, too, and finds the key
                pass
            except BaseException as error:  # and so it does here, unless it came from outside
                ended_by = error
            else:
                self._emitter.extend(results, last_ms)
                return
        window, results, key, result_of = TimeWindow(start_ms, end_ms), [], None, aggregate.result
        try:
            for key, held in cells:
                if self._plan.process is None:
                    results.append(new_result((key, start_ms, end_ms, result_of(held))))
                else:
                    self._process_window(key, window, result_of(held))
            self._emitter.relieve()
        except BaseException as error:
            self._emitter.extend(results, last_ms)
            self._emitter.flush()
            raise self.blame(Timer(end_ms - 1, key, window), error) from error
        self._emitter.extend(results, last_ms)
        if ended_by is not None:
            raise ended_by

    def _keys_ahead(self, values: Sequence[Any]) -> tuple[list[Any], Callable[[Any], Any]]:
        """
        The keys of elements, up to the first for which there is none, and what gives them again, one by one.

        That raises for the first element without a key what its key function has raised.
        """
        keys: list[Any] = []
        failure: BaseException | None = None
        try:
            for value in values:
                key = self._key_by(value)
                hash(key)
                keys.append(key)
        except BaseException as error:
            failure = error
        rest = iter(keys)

        def next_key(value: Any) -> Any:
            for key in rest:
                return key
            raise failure or InternalError("there are more elements than keys")

        return keys, next_key

    def _failed(self, value: Any, timestamp: int | None, error: BaseException) -> BaseException:
        """The error to raise when the loop over a batch met `error` at this element."""
        self._emitter.flush()
        if self._plan.assigner.needs_timestamp:
            try:
                check_timestamp(timestamp)
            except (TypeError, ValueError) as better:
                return self.blame(value, better)
        return self.blame(value, error)


def in_parts(cells: Iterable[tuple[Any, Any]]) -> Iterator[list[tuple[Any, Any]]]:
    """Some keys with accumulators at a time, so that neither results nor what is fetched for them pile up."""
    rest = iter(cells)
    while some := list(islice(rest, _PART)):
        yield some
