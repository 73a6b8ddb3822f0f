"""
What all window operators share: what they count, whom they tell of late elements, how a window's result is
emitted, and what process functions work with.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar, Final, NoReturn

from asyncstream import eventtime
from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.errors import InternalError
from asyncstream.operators.base import OperatorContext
from asyncstream.operators.emitting import BURST, BufferedEmitter
from asyncstream.operators.exclusive import give_back, take
from asyncstream.operators.results import FirstKeys, Kinds, nothing_returned
from asyncstream.operators.timed import MayBeLate
from asyncstream.state import Cell
from asyncstream.state.timer_queue import Timer
from asyncstream.timers import reached
from asyncstream.windowing.aggregates import InPlace
from asyncstream.windowing.functions import AggregateFunction, WindowContext, clears
from asyncstream.windowing.fused_aggregates import Results
from asyncstream.windowing.plan import COUNTERS, Kept, WindowPlan
from asyncstream.windowing.upgrade import upgraded
from asyncstream.windowing.windows import Span, TimeWindow, Window, max_timestamp, new_result

__all__ = ("LATE", "PlainWindowOperator", "WindowStep", "check_timestamp")

log = logging.getLogger("asyncstream.time")

_MANY: Final = 12
"""Windows of one element, of which it is worth saying that they share no work."""

LATE = "late"
"""Tag of the side output for elements that came too late for all their windows."""

check_timestamp = partial(eventtime.check_timestamp, "a window in event time")
"""Refuses what cannot be placed in time."""


class WindowStep(MayBeLate):
    """Base of the window operators, with what each kind `keeps`."""

    keeps: ClassVar[Kept]

    _told_of_untimed = _told_of_order = False  # of the class: attributes of each operator would be dear

    def __init__(self, key_by: Callable[[Any], Any], plan: WindowPlan) -> None:
        """The process function of the plan belongs to this operator alone."""
        super().__init__()
        self._key_by: Callable[[Any], Any] = FirstKeys(self, key_by)
        self._plan = plan
        self._lateness_ms = plan.allowed_lateness_ms if plan.assigner.event_time else 0
        self._emitter = BufferedEmitter(self)
        self._kinds = Kinds()
        self._outside_windows = 0
        for name in COUNTERS:
            self.tables.declare_cell(name, Cell.of(self, f"_{name}", "sum"))

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        if self._plan.process is not None:
            take(self, context.name, self._plan.process)
        self._function_context = WindowContext(
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

    def fail_on(self, value: object, error: BaseException) -> NoReturn:
        self._emitter.flush()  # what could be emitted goes before
        super().fail_on(value, error)

    def upgraded(self, state: Any) -> Any:
        return upgraded(state, self._plan, self.keeps)

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
            self._drop_late(tag, timestamp)

    def _untimed(self) -> int:
        """When an element without a timestamp is, of windows that take it, as Flink's sessions do."""
        if not self._told_of_untimed:
            self._told_of_untimed = True
            log.warning(
                "step %r: an element without a timestamp is at the beginning of event time; "
                'put .event_time(...) before it, or give the windows time="processing"',
                self.context.name,
                extra={"step": self.context.name},
            )
        return MIN_TIMESTAMP

    def _tell_of_order(self) -> None:
        """The first value has come with which windows that overlap share no more work."""
        step_ms, longest_ms = self._plan.slicing.overlap_ms()
        if not self._told_of_order and longest_ms >= _MANY * step_ms > 0:
            self._told_of_order = True
            log.warning(
                "step %r adds elements to each of their %d windows one by one, as the results hang on their "
                "order (sums of floats: the last digit); where that does not matter, exact=False, as in "
                'Sum("price", exact=False), has windows share the work',
                self.context.name,
                longest_ms // step_ms,
                extra={"step": self.context.name},
            )

    def _late_output(self, value: Any) -> tuple[str, Any]:
        """Which side output a late element goes to if that is read, and as what."""
        return LATE, value

    def _process_window(self, key: Any, window: Window, contents: Any) -> None:
        """Have the process function handle a firing."""
        self._function_context.point_at(key, window)
        self._emitter.timestamp = min(window.max_timestamp, MAX_TIMESTAMP)
        process: Callable[..., object] = self._plan.process.process  # type: ignore[union-attr]
        result = process(key, contents, self._function_context, self._emitter.emit)
        if result is not None:
            nothing_returned(result, self._kinds, self.context.name)

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

    _aggregate: AggregateFunction[Any, Any]
    """Reads the accumulators of windows."""

    def __init__(self, key_by: Callable[[Any], Any], plan: WindowPlan) -> None:
        super().__init__(key_by, plan)
        if plan.kept != self.keeps or (firings := plan.firings) is None:
            raise InternalError(f"{type(self).__name__} cannot do {plan!r}")
        self._firings = firings
        self._clears = plan.process is not None and clears(plan.process)
        self._watermark: float = MIN_TIMESTAMP

    works_off = True

    def advance_watermark(self, timestamp: int) -> None:
        self._watermark = reached(timestamp)
        self.context.work_off(self._advancing(timestamp))

    def _advancing(self, timestamp: int) -> Iterator[None]:
        yield from self._firing(self._watermark)
        self._emitter.flush()
        super().advance_watermark(timestamp)

    def restore_watermark(self, timestamp: int) -> None:
        self._watermark = reached(timestamp)
        super().restore_watermark(timestamp)

    @abstractmethod
    def _firing(self, watermark: float) -> Iterator[None]:
        """Emits all windows that end by `watermark`, and lets go those that are late by then, in slices."""

    def _reached(self) -> int:
        return int(min(self._watermark, MAX_TIMESTAMP))

    def _emitting(self, window: Span, cells: Iterable[tuple[Any, Any]]) -> Iterator[None]:
        """Emits the results of a window at its end for some keys, given as (key, accumulator), in slices."""
        aggregate = self._aggregate
        results: Results = self._results
        if self._plan.process is None and isinstance(aggregate, InPlace):
            results = aggregate.results
        last_ms, rest = min(max_timestamp(window), MAX_TIMESTAMP), iter(cells)
        for first in rest:
            made: list[Any] = []
            failure = results(*window, chain((first,), islice(rest, BURST - 1)), made.append)
            self._emitter.extend(made, last_ms)
            if failure is not None:
                self._fail_at(window, *failure)
            yield

    def _results(
        self, start_ms: int, end_ms: int, cells: Iterable[tuple[Any, Any]], emit: Callable[[Any], None]
    ) -> tuple[Any, BaseException] | None:
        """As `Results`; a process function emits them, and is told of windows that go with this."""
        key, window, process = None, TimeWindow(start_ms, end_ms), self._plan.process
        result_of, goes = self._aggregate.result, self._clears and not self._lateness_ms
        try:
            for key, accumulator in cells:
                if process is None:
                    emit(new_result((key, start_ms, end_ms, result_of(accumulator))))
                    continue
                self._process_window(key, window, result_of(accumulator))
                if goes:
                    process.clear(key, self._function_context)
        except BaseException as error:
            return key, error
        return None

    def _emit_one(self, window: Span, key: Any, accumulator: Any) -> None:
        """Emit the result of one window for one key."""
        start_ms, end_ms = window
        self._emitter.timestamp = min(end_ms - 1, MAX_TIMESTAMP)
        try:
            contents = self._aggregate.result(accumulator)
            if self._plan.process is None:
                self._emitter.emit(new_result((key, start_ms, end_ms, contents)))
            else:
                self._process_window(key, TimeWindow(*window), contents)
        except BaseException as error:
            self._fail_at(window, key, error)
        self._emitter.relieve()

    def _clear(self, window: Span, key: Any) -> None:
        """Tell the process function that a window goes."""
        try:
            self._clear_window(key, TimeWindow(*window))
        except BaseException as error:
            self._fail_at(window, key, error)

    def _fail_at(self, window: Span, key: Any, error: BaseException) -> NoReturn:
        """Fail over a window that could not emit its result for `key`, or go."""
        self.fail_on(Timer(max_timestamp(window), key, TimeWindow(*window)), error)

    def _keys_ahead(self, values: Sequence[Any]) -> tuple[list[Any], Callable[[Any], Any]]:
        """
        The keys of elements, up to the first for which there is none, and what gives them again, one by one.

        That raises for the first element without a key what its key function has raised.
        """
        keys: list[Any] = []
        failure: BaseException | None = None
        key_by = self._key_by
        try:
            for value in values:
                key = key_by(value)
                hash(key)
                keys.append(key)
        except BaseException as error:
            failure = error

        ahead = iter(keys)

        def again(value: Any) -> Any:
            for key in ahead:
                return key
            raise failure  # type: ignore[misc]

        return keys, partial(next, ahead) if failure is None else again  # of whatever element

    def _fail(self, value: Any, timestamp: int | None, error: BaseException) -> NoReturn:
        """Fail over this element, at which the loop over a batch met `error`."""
        if self._plan.assigner.needs_timestamp:
            try:
                check_timestamp(timestamp)
            except (TypeError, ValueError) as better:
                self.fail_on(value, better)
        self.fail_on(value, error)
