"""
Streams that were brought together, waiting to be told what to make of their elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from asyncstream.errors import PipelineError
from asyncstream.joins import (
    BroadcastSpec,
    CoProcessSpec,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
)
from asyncstream.operators.failures import OnError, on_error_choice
from asyncstream.operators.process_spec import KeyedFunctionSpec
from asyncstream.operators.spec import KeyBy, no_key
from asyncstream.pipeline.ending import shown_on_error
from asyncstream.pipeline.missing_methods import Unfinished, where_it_goes
from asyncstream.pipeline.stream import SideStreams, Stream
from asyncstream.shown import Shown
from asyncstream.validation import instance

__all__ = ("Broadcast", "Connected", "ConnectedToBroadcast", "Several", "connected")

T = TypeVar("T")
U = TypeVar("U")
Out = TypeVar("Out")


class Broadcast(Unfinished, Shown, Generic[T]):
    """A stream whose elements are for all keys of the one that it is connected with."""

    _comes_next = "bring it to a stream first: stream.connect(it).process(...)"

    def __init__(self, stream: Any) -> None:
        self._stream: Stream[T] = stream


class Several(Unfinished, Shown, Generic[T]):
    """More than two streams for one function."""

    _comes_next = "say first what to make of their elements: .process(...)"

    def __init__(self, streams: Sequence[Stream[Any]], keys: tuple[KeyBy, ...]) -> None:
        self._streams = streams
        self._keys = keys

    def process(
        self,
        function: KeyedCoProcessFunction[Any, Any, Out],
        *,
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> SideStreams[Out]:
        """
        Your own state machine for each key of all these streams, with state, timers and side outputs.

        What it sends aside with `ctx.side(tag, value)` comes out of `.side(tag)`, which must be read.

        Args:
            function: one object serves all keys, of this step alone; what belongs to a key is kept in state.
            on_error: what becomes of an element on which the function raises, as for `map`; what it had
                changed in state and timers by then stays. A timer is no element: `on_timer` must not fail.
        """
        of = KeyedCoProcessFunction
        own = getattr(type(function), "process_input", None) is not of.process_input
        needs = () if own else ("process_left", "process_right")
        instance("function", function, of, *needs, advice=where_it_goes(function))
        if len(self._streams) > 2 and not own:
            raise PipelineError(
                f"function: expected one that overrides process_input, for {len(self._streams)} streams; "
                f"{type(function).__name__} does not"
            )
        spec = CoProcessSpec(function, on_error_choice(on_error), self._keys)
        return _function_step("co_process", name, spec, self._streams)


class Connected(Several[T], Generic[T, U]):
    """Two streams for one function."""

    def process(
        self,
        function: KeyedCoProcessFunction[T, U, Out],
        *,
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> SideStreams[Out]:
        """As `Several.process`, with types: the function's left and right elements are these streams'."""
        return super().process(function, on_error=on_error, name=name)


class ConnectedToBroadcast(Unfinished, Shown, Generic[T, U]):
    """A stream, and one whose elements are for all its keys."""

    _comes_next = Several._comes_next

    def __init__(self, stream: Stream[T], rules: Stream[U]) -> None:
        self._streams = (stream, rules)
        self._key_by = stream._key() or no_key

    def process(
        self,
        function: KeyedBroadcastProcessFunction[T, U, Out],
        *,
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> SideStreams[Out]:
        """
        Your own state machine for each key, which also knows what was broadcast.

        An element sees the broadcast state as it is when the element arrives: neither stream is held back for
        the other.

        Args:
            function: as for `Connected.process`.
            on_error: the same, of an element of either stream.
        """
        needs = ("process_element", "process_broadcast")
        advice = where_it_goes(function)
        instance("function", function, KeyedBroadcastProcessFunction, *needs, advice=advice)
        spec = BroadcastSpec(function, on_error_choice(on_error), self._key_by)
        shown = {"broadcast_state": "in memory, grows until process_broadcast removes"}
        return _function_step("broadcast", name, spec, self._streams, shown)


def connected(stream: Any, others: Sequence[Any]) -> Any:
    """
    What `stream.connect(*others)` gives.

    Raises:
        PipelineError: if they are of several pipelines, or some of them are keyed and some are not.
    """
    if any(isinstance(other, Broadcast) for other in others):
        if len(others) > 1:
            raise PipelineError("connect: expected one broadcast stream alone, or streams that are none")
        rules = others[0]._stream
        stream._check_together("connect", rules)
        return ConnectedToBroadcast(stream, rules)
    stream._check_together("connect", *others)
    streams = (stream, *others)
    keys = [one._key() for one in streams]
    if None in keys and any(key is not None for key in keys):
        raise PipelineError(
            "connect: some of the streams are keyed and some are not; put .key_by(...) before each, or none"
        )
    key_of = tuple(key or no_key for key in keys)
    return Connected(streams, key_of) if len(streams) == 2 else Several(streams, key_of)


def _function_step(
    kind: str,
    name: str | None,
    spec: KeyedFunctionSpec,
    streams: Sequence[Stream[Any]],
    shown: Mapping[str, object] = MappingProxyType({}),
) -> SideStreams[Any]:
    first = streams[0]
    details = {"function": type(spec.function).__name__} | shown_on_error(spec.on_error) | {**shown}
    outputs = tuple(stream._output for stream in streams)
    output = first._step(kind, name, spec, details, outputs)
    return SideStreams(first._graph, output, spec.function.sides)
