"""
The fluent face: what a user types between a source and a sink.

A `Stream` is a handle on one output of one step. Every method adds a step to the plan, checks its
arguments at once, and returns the stream that comes out. Nothing runs before the pipeline is started.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, overload

from asyncstream.async_wait import AsyncWaitOptions, AsyncWaitSettings, AsyncWaitSpec
from asyncstream.errors import PipelineError
from asyncstream.eventtime import IngestionTime, WatermarkStrategy
from asyncstream.guards.guard import Guard, written
from asyncstream.guards.in_threads import THREADS, InThreads
from asyncstream.operators.basic import Branch, CheckKey, Filter, FlatMap, Map, PerElement, PerElementSpec
from asyncstream.operators.failures import FAILED, OnError, on_error_choice
from asyncstream.operators.functions import AsyncFunction, FailedCall
from asyncstream.operators.ingestion import IngestionTimeSpec
from asyncstream.operators.spec import EventTime, Spec
from asyncstream.operators.timestamps import AdvanceWhenQuietSpec, EventTimeSpec
from asyncstream.operators.union import UnionSpec
from asyncstream.pipeline.batching import Batching
from asyncstream.pipeline.ending import Ending, shown_on_error
from asyncstream.pipeline.joining import Joining
from asyncstream.pipeline.missing_methods import Fluent
from asyncstream.pipeline.sources_and_sinks import element_type
from asyncstream.pipeline.tabling import Tabling
from asyncstream.pipeline.windowing import Windowing
from asyncstream.plan import Graph, Input, OperatorStep, Output
from asyncstream.shown import shown_length
from asyncstream.validation import (
    Duration,
    Fields,
    check_options,
    choice,
    duration_ms,
    instance,
    refuse,
    selector,
    text,
)

if TYPE_CHECKING:
    from anyio import CapacityLimiter

    from asyncstream.pipeline.keyed import KeyedStream

__all__ = ("AsyncResults", "SideStreams", "Stream")

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K")

_OF_CALLS: Final = tuple(AsyncWaitOptions.__annotations__)
_OF_THREADS: Final = ("threads", *(option for option in _OF_CALLS if option != "concurrency"))
"""The options of async steps, and of those whose calls are made in threads."""


class Stream(Fluent, Joining[T], Tabling[T], Batching[T], Windowing[T], Ending[T]):
    """
    A stream of elements of type T.

    All steps take `name=`: it must be unique in the pipeline, and names the step in errors, metrics and
    snapshots. A step without one gets a name from its kind and position.
    """

    def __init__(self, graph: Graph, output: Output) -> None:
        self._graph = graph
        self._output = output

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._output}>"

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
        if isinstance(timestamp, WatermarkStrategy):
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

    # ------------------------------------------------------------------ async calls

    def async_map(
        self,
        fn: Callable[[T], Awaitable[U]] | AsyncFunction[T, U],
        *,
        name: str | None = None,
        **options: Unpack[AsyncWaitOptions],
    ) -> AsyncResults[U]:
        """
        Each element becomes `await fn(element)`; many calls run at once.

        Args:
            fn: an `async def` of one element, or an `AsyncFunction`.
            options: see `AsyncWaitOptions`: `order`, `concurrency`, `buffer`, `timeout`, `on_timeout`,
                `on_error`, `isolation`, `replay`, `copy_input`, `effect`, `journal`.

        Raises:
            PipelineError: if an argument is not as described.
        """
        return self._async_step("async_map", name, fn, options)

    def async_flat_map(
        self,
        fn: Callable[[T], Awaitable[Iterable[U]]] | AsyncFunction[T, Iterable[U]],
        *,
        name: str | None = None,
        **options: Unpack[AsyncWaitOptions],
    ) -> AsyncResults[U]:
        """
        Each element becomes any number of elements: those of the iterable that `await fn(element)` gives.

        Everything else is as for `async_map`.
        """
        return self._async_step("async_flat_map", name, fn, options)

    def thread_map(
        self,
        fn: Callable[[T], U],
        *,
        threads: int | CapacityLimiter = THREADS,
        name: str | None = None,
        **options: Unpack[AsyncWaitOptions],
    ) -> AsyncResults[U]:
        """
        Each element becomes `fn(element)`, called in a thread, where it may block; many calls run at once.

        It is `async_map` with `guards.in_threads(fn, threads=threads)`; give that to `async_map` or
        `async_flat_map` yourself to put guards around it. Checkpoints remain usable when the function becomes
        an `async def`.

        A thread cannot be ended from outside: a call that has timed out keeps its thread until it returns,
        and shows as `overdue` in the metrics; a stop waits for running calls, as for anything that ignores
        its cancellation. The function may call `anyio.from_thread.check_cancelled()` to see if it is still
        wanted.

        Args:
            fn: a plain function of one element.
            threads: how many calls may run at once; or an `anyio.CapacityLimiter` that is shared with others.
            options: as for `async_map`, without `concurrency`.

        Raises:
            PipelineError: if an argument is not as described.
        """
        if "concurrency" in options:
            advice = "threads= says how many calls run at once"
            raise refuse("concurrency", "none for thread_map", options["concurrency"], advice)
        check_options("thread_map", options, _OF_THREADS)
        function = InThreads(fn, threads=threads)
        return self._async_step("async_map", name, function, {**options, "concurrency": function.threads})

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

    def _check_together(self, what: str, *others: object) -> None:
        """
        Refuse what this stream cannot be brought together with.

        Raises:
            PipelineError: if there is none, or one of them is no stream, or belongs to another pipeline.
        """
        if not others:
            raise PipelineError(f"{what}: expected at least one other stream, got none")
        for other in others:
            if not isinstance(other, Stream):
                several = "give them one by one, not in a list" if isinstance(other, list | tuple) else ""
                raise refuse(what, "a stream", other, several)
            if other._graph is not self._graph:
                raise PipelineError(f"{what}: {other!r} belongs to another pipeline")

    def _per_element(
        self,
        kind: str,
        applies: type[PerElement],
        fn: object,
        on_error: OnError,
        name: str | None,
    ) -> Stream[Any]:
        function = selector("fn", fn, yields=kind == "flat_map", gives=kind != "map")
        spec = PerElementSpec(applies, function, on_error_choice(on_error))
        return Stream(self._graph, self._step(kind, name, spec, {"fn": fn} | shown_on_error(on_error)))

    def _step(
        self,
        kind: str,
        name: str | None,
        spec: Spec,
        details: Mapping[str, object],
        outputs: tuple[Output, ...] = (),
    ) -> Output:
        """Add a step that reads this stream, or these outputs, one for each of its ports."""
        name = self._graph.name_for(kind, name)
        shown = {key: _shown(value) for key, value in details.items()}
        read = outputs or (self._output,)
        compared = len(read) > 1 and any(key is not None for key in spec.keys)
        known = [self._graph.known_as(output) if compared else () for output in read]
        inputs = tuple(Input(*each) for each in zip(read, spec.keys, known, strict=True))
        self._graph.add(OperatorStep(name, kind, inputs, spec, shown))
        return Output(name)

    def _routed(self, tag: str, argument: str) -> Stream[FailedCall]:
        step = self._graph[self._output.step]
        if tag not in step.required:
            raise PipelineError(f"step {step.name!r} sends nothing to .{tag}; give it {argument}='route'")
        return Stream(self._graph, Output(step.name, tag))

    def _key(self) -> Callable[[Any], Any] | None:
        return None

    def _async_step(
        self, kind: str, name: str | None, fn: Any, options: AsyncWaitOptions
    ) -> AsyncResults[Any]:
        check_options(kind, options, _OF_CALLS)
        checked: dict[str, Any] = {**options}  # by the settings, which take what users may pass
        settings = AsyncWaitSettings(fn, key_by=self._key(), flat=kind == "async_flat_map", **checked)
        spec = AsyncWaitSpec(settings)
        if spec.needs_origins:
            argument = "effect" if settings.effect else "journal"
            self._graph.check_origins([Input(self._output)], argument=argument)
        details = {
            "fn": fn,
            "order": settings.order.value,
            "concurrency": settings.concurrency,
            "buffer": settings.buffer_size,
            "timeout": settings.timeout,
        }
        return AsyncResults(self._graph, self._step(kind, name, spec, details))


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


def _shown(value: object) -> object:
    """How a setting is shown: functions by their name, guards around them as they are written."""
    if isinstance(value, InThreads):
        return f"{_shown(value.fn)} in threads"
    if isinstance(value, Guard):
        return f"{written(type(value))}({_shown(value.inner)})"
    if isinstance(value, AsyncFunction):
        return type(value).__name__
    if isinstance(value, partial):
        return _shown(value.func)
    if isinstance(value, timedelta):
        return shown_length(value)
    return getattr(value, "__name__", type(value).__name__) if callable(value) else value
