"""
Makes the operators of one run from a graph, and connects them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from asyncstream.connectors import Sink, TransactionalSink
from asyncstream.operators.base import Operator
from asyncstream.operators.flow import Gate
from asyncstream.operators.spec import ClockUse
from asyncstream.plan import Graph, OperatorStep, Output, SinkStep, SourceStep, Wiring, left_behind
from asyncstream.runtime.aio.reading import SourceDriver
from asyncstream.runtime.aio.writing import SinkOperator

__all__ = ("RunWiring",)

REJECTED = "rejected"
"""Tag of the output on which a source sends what it could not read."""


class RunWiring:
    """
    The parts of one run.

    Attributes:
        operators: by step name, in topological order; sources have none.
        intakes: those of them that have an inbox.
        sinks: those of them that write to a sink.
        sources: by step name.
        feeders: for each sink, those whose refused elements can reach it.
    """

    def __init__(self, graph: Graph, has_room: Callable[[Operator], None]) -> None:
        """
        `has_room` is told of each operator that had no room for what the clock makes it emit, and has again.
        """
        self._graph = graph
        self.operators: dict[str, Operator] = {}
        self.sinks: dict[str, SinkOperator] = {}
        for step in graph:
            if isinstance(step, OperatorStep):
                self.operators[step.name] = step.spec.make()
            elif isinstance(step, SinkStep):
                self.operators[step.name] = self.sinks[step.name] = SinkOperator(step.sink, step.on_error)
        self._connections = connections = Wiring(graph, self.operators)
        self.intakes = connections.intakes
        self.sources = {
            step.name: SourceDriver(
                step.name,
                step.source,
                connections.reader_of(Output(step.name)),
                connections.reader_of(Output(step.name, REJECTED)),
                left_behind(graph, step.name) if step.source.hands_over else (),
            )
            for step in graph
            if isinstance(step, SourceStep)
        }
        for name, source in self.sources.items():
            connections.hold_back(source.gate, connections.readers_of(name))
        self._rooms: dict[str, Gate] = {}
        for name, intake in self.intakes.items():
            connections.hold_back(intake.emitting, connections.readers_of(name))
        for step in graph:
            if isinstance(step, OperatorStep) and step.spec.clock is not ClockUse.NONE:
                room = self._rooms[step.name] = Gate(partial(has_room, self.operators[step.name]))
                connections.hold_back(room, connections.readers_of(step.name))
        self.feeders: dict[str, set[str]] = {name: set() for name in self.sinks}
        for name in self.feeders:
            for step in graph.behind(name):
                if isinstance(step, SinkStep):
                    self.feeders[step.name].add(name)
        self._forget_earlier_jobs()

    def _forget_earlier_jobs(self) -> None:
        """Its ends were told for whom they work if there were checkpoints; this one may do without."""
        for driver in self.sources.values():
            if driver.source.writer is not None:
                driver.source.writer = driver.source.checkpoint_soon = None
        for operator in self.sinks.values():
            if isinstance(operator.sink, TransactionalSink) and operator.sink.writer is not None:
                operator.sink.writer = None

    def parts(self) -> dict[str, SourceDriver | Operator]:
        """What runs each step, by its name: the sources, then the others."""
        return {**self.sources, **self.operators}

    def has_room(self, name: str) -> bool:
        """Whether the inboxes that this step's results get into have room."""
        return name not in self._rooms or self._rooms[name].is_open()

    def is_held(self, name: str) -> bool:
        """Whether a driver whose pushes reach this step may not push now."""
        return not all(gate.is_open() for gate in self._connections.gates.get(name, ()))

    def cut_short(self, failed: Callable[[BaseException], object]) -> None:
        """Tell sinks that they do not get all; `failed` is told what one raises over that."""
        for sink in self.ends(Sink):
            try:
                sink.cut_short()
            except Exception as error:
                failed(error)

    def ends(self, kind: type[Any]) -> Iterator[Any]:
        """The sources and sinks of this class that were given to the pipeline."""
        for step in self._graph:
            end = getattr(step, "source", None) or getattr(step, "sink", None)
            if isinstance(end, kind):
                yield end
