"""
A segment of a pipeline, opened by hand: what a harness drives.

The only module of `testing` that knows how operators are made, opened, looked at and restored: whatever else
is here pushes into `heads`, and reads what the segment's outputs have given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from asyncstream.checkpoint.segments import encode_snapshot
from asyncstream.clock import Clock
from asyncstream.codec import Codec
from asyncstream.connectors.memory import Items, ListSink
from asyncstream.elements import MIN_TIMESTAMP, Control, EndOfInput, IdleStatus, Timestamps, Watermark
from asyncstream.errors import CheckpointError, CodecError, PipelineError, describe_error
from asyncstream.operators.base import Operator, OperatorContext, pairs
from asyncstream.operators.flow import Attended
from asyncstream.pipeline import Stream
from asyncstream.plan import Graph, OperatorStep, Output, SinkStep, SourceStep, Wiring
from asyncstream.state.schema import Schema, adapted
from asyncstream.validation import refuse

__all__ = (
    "Element",
    "Emitted",
    "Outlet",
    "Parts",
    "Segment",
    "State",
    "parts_of_operator",
    "parts_of_stream",
)

RESULTS = "results"
"""Name of the step that reads what a segment gives."""


@dataclass(frozen=True, slots=True)
class Element:
    """
    An element that came out.

    Attributes:
        value: the element itself.
        timestamp: milliseconds since the epoch, or None.
        side: the tag of the side output that it came out of; None for the main output.
    """

    value: Any
    timestamp: int | None = None
    side: str | None = None


Emitted: TypeAlias = Element | Control
"""What comes out: elements, watermarks, idleness, the end."""


State: TypeAlias = tuple[str, str, bytes, Any]
"""
The name of a step, what it does, what it remembers, written by a codec, and what that consists of, as plain
JSON.
"""


class Outlet:
    """
    What has come out of a segment.

    Attributes:
        emitted: elements, and the control elements of the main output, in order.
        watermark: the last one, milliseconds since the epoch.
        is_idle: whether what comes out is not to be waited for.
    """

    def __init__(self) -> None:
        self.emitted: list[Emitted] = []
        self.watermark = MIN_TIMESTAMP
        self.is_idle = False


class _Reader(Operator):
    """Writes down the elements of one output."""

    def __init__(self, outlet: Outlet, side: str | None = None) -> None:
        super().__init__()
        self._outlet = outlet
        self._side = side

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        side = self._side
        self._outlet.emitted += [Element(value, at_ms, side) for value, at_ms in pairs(values, timestamps)]


class _MainReader(_Reader):
    """Writes down the control elements, too: every output gets the same."""

    def advance_watermark(self, timestamp: int) -> None:
        self._outlet.watermark = timestamp
        self._outlet.emitted.append(Watermark(timestamp))

    def restore_watermark(self, timestamp: int) -> None:
        self._outlet.watermark = timestamp

    def set_idle(self, idle: bool) -> None:
        self._outlet.is_idle = idle
        self._outlet.emitted.append(IdleStatus(idle))

    def end_input(self) -> None:
        self._outlet.emitted.append(EndOfInput())


class _Sides(dict[str, Operator]):
    """The side outputs of an operator, of which those that have no other reader are written down."""

    def __init__(self, read: Mapping[str, Operator], outlet: Outlet) -> None:
        super().__init__(read)
        self._outlet = outlet

    def __contains__(self, tag: object) -> bool:
        return True

    def __missing__(self, tag: str) -> Operator:
        reader = self[tag] = _Reader(self._outlet, tag)
        return reader

    def get(self, tag: str, default: Any = None) -> Any:
        return self[tag]


@dataclass(frozen=True)
class Parts:
    """
    Operators that are connected, and not open yet.

    Attributes:
        operators: by the name of their step, in topological order.
        heads: what to push into, for each input.
        kinds: what the steps do, by name, as a checkpoint notes it.
        schemas: what the steps remember, by name.
    """

    operators: dict[str, Operator]
    heads: tuple[Operator, ...]
    kinds: Mapping[str, str]
    schemas: Mapping[str, Schema | None]


def parts_of_operator(name: str, operator: Operator, outlet: Outlet) -> Parts:
    """A single operator, whose main output is written down."""
    operator.out = _MainReader(outlet)
    return Parts({name: operator}, (operator,), {}, {})


def parts_of_stream(make: Callable[..., Stream[Any]], inputs: int, outlet: Outlet) -> Parts:
    """
    The steps that `make` puts between the streams that it is given and the one that it returns.

    Args:
        make: is given a stream for each input.
        inputs: how many.
        outlet: where what comes out is written down.

    Raises:
        PipelineError: if there is a step that waits, a source, or a sink.
    """
    graph = Graph()
    names = [f"input {number}" for number in range(inputs)]
    for name in names:
        graph.add(SourceStep(name, Items(())))
    end = make(*(Stream(graph, Output(name)) for name in names))
    if not isinstance(end, Stream):
        raise refuse("what", "a function that returns a stream", end)
    end.to(ListSink([]), name=RESULTS)
    operators: dict[str, Operator] = {}
    for step in graph:
        if isinstance(step, OperatorStep):
            operators[step.name] = operator = step.spec.make()
            if isinstance(operator, Attended):
                raise PipelineError(
                    f"step {step.name!r}: a harness drives what is done at once, this one waits for calls; "
                    "run a whole pipeline on virtual time instead (asyncstream.testing.run_virtual)"
                )
        elif step.name == RESULTS:
            operators[step.name] = _MainReader(outlet)
        elif isinstance(step, SinkStep):
            if step.kind != "discard":
                raise PipelineError(
                    f"step {step.name!r}: a harness collects what comes out, also of side outputs; "
                    "leave out the sinks"
                )
            operators[step.name] = Operator()
        elif step.name not in names:
            raise PipelineError(
                f"step {step.name!r}: a harness brings the inputs; make its streams arguments of the function"
            )
    wiring = Wiring(graph, operators)
    heads = tuple(wiring.reader_of(Output(name)) for name in names)
    kinds, schemas = ({step.name: getattr(step, part) for step in graph} for part in ("kind", "schema"))
    return Parts(operators, heads, kinds, schemas)


class Segment:
    """
    Operators at work.

    Args:
        parts: what to open.
        outlet: where what comes out of side outputs is written down.
        clock: processing time.
        wake_at: is told of an operator that it is to be woken, and when, in milliseconds since the epoch.

    Attributes:
        heads: what to push into, for each input.
        operators: by the name of their step.
    """

    def __init__(
        self, parts: Parts, outlet: Outlet, clock: Clock, wake_at: Callable[[Operator, int], None]
    ) -> None:
        self.heads = parts.heads
        self.operators = parts.operators
        self._kinds = parts.kinds
        self._schemas = parts.schemas
        self._opened: list[Operator] = []
        for operator in parts.operators.values():
            operator.side = _Sides(operator.side, outlet)
        try:
            # tail first: an operator may emit as soon as it is open
            for name, operator in reversed(parts.operators.items()):
                self._opened.append(operator)  # before it is: also what fails to open is closed
                wake = partial(wake_at, operator)
                context = OperatorContext(name, clock=clock, wake_at=wake, keeps_checkpoints=True)
                operator.open(context)
        except BaseException:
            self.close()
            raise

    def states(self, codec: Codec) -> Iterator[State]:
        """
        What the operators remember, as a checkpoint would hold it; raises `CheckpointError` if that cannot be
        kept, naming the step.
        """
        for name, operator in self.operators.items():
            if name in self._schemas and self._schemas[name] is None:
                continue
            try:
                state = operator.capture().thaw()
                if state is not None:
                    schema, kind = self._schemas.get(name), self._kinds.get(name, "")
                    plain = None if schema is None else schema.plain()
                    yield name, kind, _bytes_of(name, state, codec), plain
            except CheckpointError:
                raise
            except Exception as error:  # of any class in there
                raise CheckpointError(
                    f"step {name!r} cannot be kept in a checkpoint: {describe_error(error)}"
                ) from error

    def restore(self, kept: Iterable[State], codec: Codec) -> None:
        """
        Go on with what others remembered; nothing has been pushed yet.

        Raises:
            PipelineError: if there is state of a step that is not here.
            CheckpointError: if a step has changed and cannot use what it remembered.
        """
        states = {name: part for name, *part in kept}
        unknown = ", ".join(name for name in states if name not in self.operators)
        if unknown:
            raise PipelineError(f"the snapshot holds state of steps that are not here: {unknown}")
        for name, operator in reversed(self.operators.items()):
            if name in states:
                was, data, schema = states[name]
                if was != (now := self._kinds.get(name, "")):
                    raise CheckpointError(f"{name!r} was a step {was!r}, and is a step {now!r}")
                operator.restore(adapted(name, codec.decode(data), schema, self._schemas.get(name)))
        for operator in reversed(self.operators.values()):
            operator.resume()

    def close(self) -> None:
        """Close every operator that was opened, once."""
        while self._opened:
            self._opened.pop(0).close()


def _bytes_of(step: str, state: Any, codec: Codec) -> bytes:
    try:
        return codec.encode(state)
    except CodecError:
        encode_snapshot(step, state, codec)  # says in which key and field
        raise
