"""
The fluent face of keys, windows and timers.

    stream.key_by(...).window(SlidingWindows(60, 10)).allowed_lateness(5).aggregate(n=Count())

A `WindowedStream` only collects settings; the method that says what to compute adds the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar, overload

from asyncstream.errors import safe_repr
from asyncstream.operators.failures import OnError, on_error_choice
from asyncstream.operators.process import KeyedProcessFunction
from asyncstream.operators.process_spec import ProcessSpec
from asyncstream.pipeline.ending import shown_on_error
from asyncstream.pipeline.missing_methods import Unfinished, where_it_goes
from asyncstream.pipeline.per_key import PerKey
from asyncstream.pipeline.stream import SideStreams, Stream
from asyncstream.shown import shown_ms
from asyncstream.validation import Duration, duration_ms, instance, refuse
from asyncstream.windowing import (
    LATE,
    AggregateFunction,
    Aggregates,
    Evictor,
    ProcessWindowFunction,
    Reduce,
    Trigger,
    WindowAssigner,
    WindowPlan,
    WindowResult,
    WindowSpec,
)
from asyncstream.windowing.policies import EXPIRED, SKIPPED

__all__ = ("KeyedStream", "PolicyResults", "WindowResults", "WindowedStream", "shown_plan")

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K")


class KeyedStream(PerKey[K, T]):
    """A stream whose elements have a key: the next steps keep order, state and windows per key."""

    def process(
        self, function: KeyedProcessFunction[T, U], *, on_error: OnError = "fail", name: str | None = None
    ) -> SideStreams[U]:
        """
        Your own state machine for each key, with state, timers and side outputs.

        What it sends with `ctx.side(tag, value)` comes out of `.side(tag)`, which must be read.

        Args:
            function: one object serves all keys, of this step alone; what belongs to a key is kept in state.
            on_error: what becomes of an element on which `process_element` raises, as for `map`; what it had
                changed in state and timers by then stays. A timer is no element: `on_timer` must not fail.
        """
        advice = where_it_goes(function, "for a plain function use map or flat_map")
        instance("function", function, KeyedProcessFunction, "process_element", advice=advice)
        spec = ProcessSpec(function, on_error_choice(on_error), self._key_by)
        details = {"function": type(function).__name__} | shown_on_error(on_error)
        return SideStreams(self._graph, self._step("process", name, spec, details), function.sides)

    def window(self, assigner: WindowAssigner) -> WindowedStream[K, T]:
        """Group the elements of each key by windows: `TumblingWindows(60)`, `SessionWindows(1800)`, …"""
        return WindowedStream(self, self._key_by, WindowPlan(assigner))

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream[K, T]:
        """
        Group the elements of each key by number.

        Args:
            size: elements in a window, at least 1.
            slide: the last `size` elements after every `slide`-th; None: each element is in one window.
        """
        return WindowedStream(self, self._key_by, WindowPlan.counting(size, slide))


class WindowedStream(Unfinished, Generic[K, T]):
    """
    Elements grouped by windows, waiting to be told what to compute.

    There is no `on_error` here: an aggregate that raises may have changed what it had folded from other
    elements, and what a firing works on are many. Refuse elements before the windows, in a `map` with it.
    """

    _comes_next = "say first what to compute of the windows: .aggregate(...), .reduce(...), .collect()"

    def __init__(self, stream: Stream[T], key: Callable[[T], K], plan: WindowPlan) -> None:
        self._stream = stream
        self._key_by = key
        self._plan = plan

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._stream._output}, window={safe_repr(self._plan.assigner)}>"

    def _with(self, **changes: Any) -> WindowedStream[K, T]:
        return WindowedStream(self._stream, self._key_by, replace(self._plan, **changes))

    def trigger(self, trigger: Trigger) -> WindowedStream[K, T]:
        """Make windows fire at other moments, instead of or besides their end."""
        return self._with(trigger=trigger)

    def evictor(self, evictor: Evictor) -> WindowedStream[K, T]:
        """Remove elements from a window before or after it fires."""
        return self._with(evictor=evictor)

    def allowed_lateness(self, lateness: Duration) -> WindowedStream[K, T]:
        """
        Keep each window this long after its end: a late element then fires it again.

        Args:
            lateness: in event time; a `timedelta` or seconds, at least 0.
        """
        return self._with(allowed_lateness_ms=duration_ms("allowed_lateness", lateness, zero=True))

    @overload
    def aggregate(
        self, function: AggregateFunction[T, U], *, process: None = None, name: str | None = None
    ) -> WindowResults[WindowResult[K, U]]: ...
    @overload
    def aggregate(
        self,
        function: AggregateFunction[T, Any] | None = None,
        *,
        process: ProcessWindowFunction[U],
        name: str | None = None,
        **aggregates: AggregateFunction[T, Any],
    ) -> WindowResults[U]: ...
    @overload
    def aggregate(
        self,
        function: None = None,
        *,
        process: None = None,
        name: str | None = None,
        **aggregates: AggregateFunction[T, Any],
    ) -> WindowResults[WindowResult[K, dict[str, Any]]]: ...
    def aggregate(
        self,
        function: AggregateFunction[T, Any] | None = None,
        *unnamed: AggregateFunction[T, Any],
        process: ProcessWindowFunction[Any] | None = None,
        name: str | None = None,
        **aggregates: AggregateFunction[T, Any],
    ) -> WindowResults[Any]:
        """
        Fold the elements of each window as they come: `.aggregate(n=Count(), total=Sum("amount"))`.

        Emits a `WindowResult` per firing, whose value is a dict with a result for each name; or the
        result of `function`, if one is given instead of names.

        Args:
            function: one aggregate, instead of named ones.
            unnamed: none; several have names.
            process: makes of the aggregate's result what is emitted instead; an object of this step alone.
        """
        if unnamed or (function is None) == (not aggregates):
            got = tuple(aggregates) if function is None else (function, *unnamed, *aggregates)
            advice = "e.g. aggregate(n=Count()), or aggregate(Count()); name= is that of the step"
            raise refuse("aggregate", "named aggregates or one AggregateFunction", got, advice)
        folding = Aggregates(**aggregates) if function is None else function
        return self._add("aggregate", name, folding, process)

    def reduce(
        self, fn: Callable[[T, T], T], *, name: str | None = None
    ) -> WindowResults[WindowResult[K, T]]:
        """Fold the elements of each window into one of their type; emits a `WindowResult` per firing."""
        return self._add("reduce", name, Reduce(fn), None)

    def process(self, function: ProcessWindowFunction[U], *, name: str | None = None) -> WindowResults[U]:
        """
        Hand all elements of a window to your own code when it fires.

        Args:
            function: one object serves all keys, of this step alone.
        """
        if not isinstance(function, ProcessWindowFunction):
            raise refuse(
                "function",
                "a ProcessWindowFunction",
                function,
                where_it_goes(function, "for a plain function use collect() and map"),
            )
        return self._add("process_window", name, None, function)

    def collect(self, *, name: str | None = None) -> WindowResults[WindowResult[K, list[T]]]:
        """Emit the elements of each window as a list, in a `WindowResult`."""
        return self._add("collect", name, None, None)

    def _add(
        self,
        kind: str,
        name: str | None,
        aggregate: AggregateFunction[Any, Any] | None,
        process: ProcessWindowFunction[Any] | None,
    ) -> WindowResults[Any]:
        plan = replace(self._plan, aggregate=aggregate, process=process)
        own = () if process is None else process.sides
        output = self._stream._step(kind, name, WindowSpec(self._key_by, plan), shown_plan(plan))
        return WindowResults(self._stream._graph, output, None if own is None else (LATE, *own))


class WindowResults(SideStreams[T]):
    """Results of windows; `.late` has the elements that came too late for them."""

    @property
    def late(self) -> Stream[Any]:
        """The elements that came too late for all their windows; counted if this has no reader."""
        return self.side(LATE)


class PolicyResults(WindowResults[T]):
    """What comes out of policy windows."""

    @property
    def skipped(self) -> Stream[Any]:
        """The elements that were accepted and fell between two windows."""
        return self.side(SKIPPED)

    @property
    def expired(self) -> Stream[Any]:
        """The elements that no later window can hold."""
        return self.side(EXPIRED)


def shown_plan(plan: WindowPlan) -> dict[str, object]:
    """How windows are shown with a step's settings."""
    return {
        "window": safe_repr(plan.assigner),
        "trigger": plan.trigger and safe_repr(plan.trigger),
        "evictor": plan.evictor and safe_repr(plan.evictor),
        "allowed_lateness": shown_ms(plan.allowed_lateness_ms) or None,
    }
