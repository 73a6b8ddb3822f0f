"""
The fluent face: what a user types between a source and a sink.

A `Stream` is a handle on one output of one step. Every method adds a step to the plan, checks its
arguments at once, and returns the stream that comes out. Nothing runs before the pipeline is started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload

from asyncstream.errors import PipelineError
from asyncstream.eventtime import IngestionTime, WatermarkStrategy
from asyncstream.operators.basic import Branch, CheckKey, Filter, FlatMap, Map, PerElement, PerElementSpec
from asyncstream.operators.failures import FAILED, OnError, on_error_choice
from asyncstream.operators.functions import FailedCall
from asyncstream.operators.ingestion import IngestionTimeSpec
from asyncstream.operators.quiet import AdvanceWhenQuietSpec
from asyncstream.operators.spec import EventTime
from asyncstream.operators.timestamps import EventTimeSpec
from asyncstream.operators.union import UnionSpec
from asyncstream.pipeline.calling import Calling
from asyncstream.pipeline.ending import Ending, shown_on_error
from asyncstream.pipeline.joining import Joining
from asyncstream.pipeline.sources_and_sinks import element_type
from asyncstream.pipeline.tabling import Tabling
from asyncstream.pipeline.windowing import Windowing
from asyncstream.plan import Graph, Output
from asyncstream.validation import Duration, Fields, choice, duration_ms, instance, refuse, selector, text

if TYPE_CHECKING:
    from asyncstream.pipeline.keyed import KeyedStream

__all__ = ("AsyncResults", "SideStreams", "Stream")

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K")


class Stream(Joining[T], Tabling[T], Calling[T], Windowing[T], Ending[T]):
    """
    A stream of elements of type T.

    All steps take `name=`: it must be unique in the pipeline, and names the step in errors, metrics and
    snapshots. A step without one gets a name from its kind and position.
    """

    @property
    def failed(self) -> Stream[FailedCall]:
        """The elements on which the step's function raised; needs `on_error="route"`."""
        return self._routed(FAILED, "on_error")

    # ------------------------------------------------------------------ one element at a time

    @overload
    def map(
        self, fn: Callable[[T], U], *, on_error: OnError = "fail", name: str | None = None
    ) -> Stream[U]: ...
    @overload
    def map(self, fn: Fields, *, on_error: OnError = "fail", name: str | None = None) -> Stream[Any]: ...
    def map(self, fn: Any, *, on_error: OnError = "fail", name: str | None = None) -> Stream[Any]:
        """
        Each element becomes `fn(element)`.

        Args:
            fn: a function, or the name of a field: a key of a mapping, an attribute of anything else. A tuple
                of names gives the tuple of their values.
            on_error: what to do if `fn` raises an `Exception` for an element: "fail" the pipeline, "skip" the
                element (counted), "route" it to `.failed` as a `FailedCall`.
        """
        return self._per_element("map", Map, fn, on_error, name)

    def filter(
        self, fn: Callable[[T], object] | str, *, on_error: OnError = "fail", name: str | None = None
    ) -> Stream[T]:
        """
        Keep the elements for which `fn(element)` is true.

        Args:
            fn: a function, or the name of a field.
            on_error: as for `map`.
        """
        return self._per_element("filter", Filter, fn, on_error, name)

    @overload
    def flat_map(
        self, fn: Callable[[T], Iterable[U]], *, on_error: OnError = "fail", name: str | None = None
    ) -> Stream[U]: ...
    @overload
    def flat_map(self, fn: str, *, on_error: OnError = "fail", name: str | None = None) -> Stream[Any]: ...
    def flat_map(self, fn: Any, *, on_error: OnError = "fail", name: str | None = None) -> Stream[Any]:
        """
        Each element becomes any number of elements: those that `fn(element)` returns or yields.

        If it fails half-way through an element, nothing of that element is emitted.

        Args:
            fn: a function, or the name of a field that holds an iterable.
            on_error: as for `map`.
        """
        return self._per_element("flat_map", FlatMap, fn, on_error, name)

    def branch(
        self, fn: Callable[[T], object] | str, *, on_error: OnError = "fail", name: str | None = None
    ) -> tuple[Stream[T], Stream[T]]:
        """
        Two streams: the elements for which `fn(element)` is true, and the others.

        Args:
            fn: a function, or the name of a field.
            on_error: as for `map`; `.failed` is that of the first stream.
        """
        main: Stream[T] = self._per_element("branch", Branch, fn, on_error, name)
        return main, Stream(self._graph, Output(main._output.step, Branch.OTHERS))

    def union(self, *others: Stream[T], name: str | None = None) -> Stream[T]:
        """
        This stream and the others as one.

        Elements pass in the order in which they arrive; the watermark is that of the slowest stream that is
        not idle.
        """
        self._check_together("union", *others)
        outputs = (self._output, *(other._output for other in others))
        spec = UnionSpec(tuple(map(str, outputs)))
        return Stream(self._graph, self._step("union", name, spec, {}, outputs))

    @overload
    def event_time(
        self,
        timestamp: Callable[[T], int | datetime] | str,
        watermarks: WatermarkStrategy,
        *,
        idle_after: Duration | None = None,
        max_drift: Duration | None = None,
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> Stream[T]: ...

    @overload
    def event_time(self, timestamp: IngestionTime, *, name: str | None = None) -> Stream[T]: ...

    @overload
    def event_time(self, *, watermarks: IngestionTime, name: str | None = None) -> Stream[T]: ...

    def event_time(
        self,
        timestamp: Callable[[T], int | datetime] | str | IngestionTime | None = None,
        watermarks: WatermarkStrategy | None = None,
        *,
        idle_after: Duration | None = None,
        max_drift: Duration | None = None,
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> Stream[T]:
        """
        Give elements their event time, and the stream its watermarks.

            events.event_time("at_ms", BoundedOutOfOrderness(5))
            events.event_time(IngestionTime())

        Args:
            timestamp: when an element happened: a function, or the name of a field, that gives milliseconds
                since the epoch or an aware `datetime`. Not with `IngestionTime`.
            watermarks: how late elements may come, e.g. `BoundedOutOfOrderness(timedelta(seconds=5))`.
            idle_after: after this long without an element (processing time; a `timedelta` or seconds), the
                stream is idle: others it is joined with do not wait for it. In a source with splits, such as
                partitions, each split has its own watermark, the stream has the smallest, and each split is
                idle or not by itself; only `map`, `filter`, `flat_map` or `branch` may stand between.
            max_drift: how far (event time; a `timedelta` or seconds) one split may be ahead of the slowest
                before it waits. Needs `idle_after`: otherwise a silent split would hold up all others.
            on_error: what to do with an element for which `timestamp` raises, or gives no point in time: as
                for `map`. Such an element moves no watermark.
        """
        if isinstance(timestamp, IngestionTime) and watermarks is None:
            timestamp, watermarks = None, timestamp
        if isinstance(watermarks, IngestionTime):
            if (timestamp, idle_after, max_drift, on_error) != (None, None, None, "fail"):
                raise PipelineError(
                    "with IngestionTime the time of an element is that of the clock: no timestamp is read, "
                    "so none can fail, and event time goes on without elements; write "
                    f"event_time({watermarks}) without timestamp=, idle_after=, max_drift= and on_error="
                )
            details = {"watermarks": watermarks}
            return Stream(self._graph, self._step("event_time", name, IngestionTimeSpec(watermarks), details))
        kind = timestamp if isinstance(timestamp, type) else type(timestamp)
        if issubclass(kind, WatermarkStrategy):
            advice = f"it goes behind that: event_time('at_ms', {timestamp})"
            raise refuse("timestamp", "what tells when an element was", timestamp, advice)
        read = selector("timestamp", timestamp, gives=True)
        advice = "e.g. BoundedOutOfOrderness(timedelta(...))"
        strategy = instance("watermarks", watermarks, WatermarkStrategy, advice=advice)
        idle_ms = None if idle_after is None else duration_ms("idle_after", idle_after)
        drift_ms = None if max_drift is None else duration_ms("max_drift", max_drift)
        if drift_ms is not None and idle_ms is None:
            raise PipelineError(
                "max_drift needs idle_after=: where splits wait for the slowest, one that has fallen silent "
                "would hold up the others for ever"
            )
        spec = EventTimeSpec(read, EventTime(strategy, idle_ms, drift_ms), on_error_choice(on_error))
        shown = {"watermarks": watermarks, "idle_after": idle_after} | shown_on_error(on_error)
        if max_drift is not None:
            shown["max_drift"] = max_drift
        return Stream(self._graph, self._step("event_time", name, spec, shown))

    def advance_when_quiet(self, after: Duration, *, name: str | None = None) -> Stream[T]:
        """
        Let event time advance with the clock while no element comes, so that windows still close.

        The watermark then advances from the last one. Elements that come later with an older timestamp are
        late, so another run may give other results: choose `after` well above usual silences.

        Args:
            after: how long without an element (processing time; a `timedelta` or seconds).
        """
        spec = AdvanceWhenQuietSpec(duration_ms("after", after))
        return Stream(self._graph, self._step("advance_when_quiet", name, spec, {"after": after}))

    # ------------------------------------------------------------------ keys and windows

    @overload
    def key_by(
        self, key: Callable[[T], K], *, on_error: OnError = "fail", name: str | None = None
    ) -> KeyedStream[K, T]: ...
    @overload
    def key_by(
        self, key: Fields, *, on_error: OnError = "fail", name: str | None = None
    ) -> KeyedStream[Any, T]: ...
    def key_by(
        self, key: Any, *others: object, on_error: OnError = "fail", name: str | None = None
    ) -> KeyedStream[Any, T]:
        """
        Make the next steps work per key: `key(element)`, which must be hashable and equal itself (NaN does
        not).

        Each step that needs the key of an element computes it again.

        Args:
            key: a function, or the name of a field; for a tuple of names, the key is the tuple of their
                values. A name is taken literally: "a.b" is the field of that name; for a nested field
                give a function, `lambda element: element["a"]["b"]`.
            others: none; several names are given as one tuple.
            on_error: what to do with an element for which `key` raises, or gives what cannot be a key: as for
                `map`. With "skip" and "route", an extra step checks each key first; `name` is its name.
        """
        from asyncstream.pipeline.keyed import KeyedStream  # which is made of the streams of this module

        if others:
            raise refuse("key", "one key", (key, *others), "of several fields a tuple: key_by(('a', 'b'))")
        output, fn = self._output, selector("key", key)
        if on_error_choice(on_error) != "fail":
            output = self._per_element("key_by", CheckKey, fn, on_error, name)._output
        elif name is not None:
            raise refuse("name", "none, for key_by adds no step unless it is given on_error", name)
        return KeyedStream(self._graph, output, fn)

    # ------------------------------------------------------------------ inside

    def _per_element(
        self, kind: str, applies: type[PerElement], fn: object, on_error: OnError, name: str | None
    ) -> Stream[Any]:
        function = selector("fn", fn, yields=kind == "flat_map", gives=kind != "map")
        spec = PerElementSpec(applies, function, on_error_choice(on_error))
        return Stream(self._graph, self._step(kind, name, spec, {"fn": fn} | shown_on_error(on_error)))

    def _routed(self, tag: str, argument: str) -> Stream[FailedCall]:
        step = self._graph[self._output.step]
        if tag not in step.required:
            raise PipelineError(f"step {step.name!r} sends nothing to .{tag}; give it {argument}='route'")
        return Stream(self._graph, Output(step.name, tag))


class AsyncResults(Stream[T]):
    """
    What comes out of an async step: its results, and on the side the elements that gave none.
    """

    @property
    def timed_out(self) -> Stream[FailedCall]:
        """The elements whose call took longer than `timeout`; needs `on_timeout="route"`."""
        return self._routed("timed_out", "on_timeout")


class SideStreams(Stream[T]):
    """
    What comes out of a step with side outputs of its own naming.

    Args:
        sides: the tags that there are; None: only the step's function knows.
    """

    def __init__(self, graph: Graph, output: Output, sides: tuple[str, ...] | None = None) -> None:
        super().__init__(graph, output)
        self._sides = sides

    @overload
    def side(self, tag: str) -> Stream[Any]: ...
    @overload
    def side(self, tag: str, *, of: type[U]) -> Stream[U]: ...
    def side(self, tag: str, *, of: type[Any] | None = None) -> Stream[Any]:
        """
        What the step sent to its side output `tag`.

        Args:
            of: the type of its elements, for type checkers; elements are not looked at.

        Raises:
            PipelineError: if the step is known to send nothing there.
        """
        element_type(of)
        if self._sides is not None:
            choice("tag", tag, self._sides)
        return Stream(self._graph, Output(self._output.step, text("tag", tag)))
