"""
The steps of a plan, named: what each of them does, what it reads, and what it remembers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from asyncstream.connectors.base import Sink, Source, TransactionalSink
from asyncstream.connectors.memory import Items
from asyncstream.operators.failures import OnError
from asyncstream.operators.spec import KeyBy, Spec, no_key
from asyncstream.state.schema import Schema

__all__ = ("Input", "OperatorStep", "Output", "SinkStep", "SourceStep", "Step", "ends_of")


@dataclass(frozen=True, slots=True)
class Output:
    """
    One output of a step: what a reader reads.

    Attributes:
        step: name of the step.
        tag: None for the main output, else the side output's tag.
    """

    step: str
    tag: str | None = None

    def __str__(self) -> str:
        return self.step if self.tag is None else f"{self.step}.{self.tag}"


@dataclass(frozen=True, slots=True)
class Input:
    """
    What one port of a step reads; the place in the step's `inputs` is the number of the port.

    Attributes:
        output: whose elements.
        key_by: gives the key of an element, where one operator must see all elements of a key, in order;
            None: any operator of the step may work on any element.
        known_as: what `Graph.known_as` gives of it.
    """

    output: Output
    key_by: KeyBy | None = None
    known_as: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class SourceStep:
    """
    Elements enter here.

    Attributes:
        name: unique in the graph.
        source: where elements come from.
        kind: the method that has added it, as it is shown.
        inputs: none.
        required: tags that must have a reader.
        details: settings worth showing, by name.
    """

    name: str
    source: Source[Any]
    kind: str = "source"
    inputs: tuple[Input, ...] = ()
    required: tuple[str, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def schema(self) -> Schema | None:
        """What its position means; None: it has none."""
        if type(self.source).position is Source.position:
            return None
        return Schema({"source": type(self.source).__name__})


@dataclass(frozen=True, eq=False)
class OperatorStep:
    """
    Elements are worked on here.

    Attributes:
        name: unique in the graph.
        kind: the method that has added it, as it is shown.
        inputs: what it reads, by port.
        spec: what it does; builds its operators, with a port for each input, and answers for them.
        details: settings worth showing, by name.
        schema: what its operator remembers, as that is when the step is planned: a run may change what the
            user's objects hold. None: nothing.
    """

    name: str
    kind: str
    inputs: tuple[Input, ...]
    spec: Spec
    details: Mapping[str, object] = field(default_factory=dict)
    schema: Schema | None = field(init=False)

    def __post_init__(self) -> None:
        spec, schema = self.spec, self.spec.schema
        if schema is not None and spec.calls is None:  # what waits for calls finds its key again
            names = ("key",) if len(spec.keys) == 1 else ("key of the left", "key of the right")
            schema = schema.reading(dict(zip(names, spec.keys, strict=False)))
            if keys := [key for key in spec.keys if key is not None]:
                schema = schema.grouped(any(key is not no_key for key in keys))
                schema = schema.joining([one.known_as for one in self.inputs])
        object.__setattr__(self, "schema", schema)  # frozen: only here

    @property
    def required(self) -> tuple[str, ...]:
        """Tags that must have a reader, because elements would vanish without one."""
        return self.spec.required

    @property
    def is_keyed(self) -> bool:
        """Whether an operator must see all elements of a key."""
        return any(one.key_by is not None for one in self.inputs)


@dataclass(frozen=True, eq=False)
class SinkStep:
    """
    Elements leave here.

    Attributes:
        name: unique in the graph.
        sink: where elements go.
        inputs: what it reads.
        kind: the method that has added it, as it is shown.
        details: settings worth showing, by name.
        required: tags that must have a reader: "failed", if it is told what the sink refuses.
        on_error: what becomes of an element that the sink refuses.
    """

    name: str
    sink: Sink[Any]
    inputs: tuple[Input, ...]
    kind: str = "sink"
    required: tuple[str, ...] = ()
    on_error: OnError = "fail"
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def schema(self) -> Schema | None:
        """What waits to be written, or where a transactional sink stands; None: it is not missed."""
        if self.kind == "discard":
            return None
        is_bound = isinstance(self.sink, TransactionalSink)
        return Schema({"sink": type(self.sink).__name__} if is_bound else {})


Step: TypeAlias = SourceStep | OperatorStep | SinkStep


def ends_of(step: Step) -> Iterator[object]:
    """What serves a step alone: its source and what that reads once, its sink, an object with user's code."""
    if isinstance(step, SourceStep):
        yield step.source
        if isinstance(step.source, Items) and step.source.once is not None:
            yield step.source.once
    elif isinstance(step, SinkStep):
        yield step.sink
    elif step.spec.owns is not None:
        yield step.spec.owns
