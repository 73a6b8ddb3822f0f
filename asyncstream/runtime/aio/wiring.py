"""
Makes the operators of one run from a graph, and connects them.
"""

from __future__ import annotations

from asyncstream.async_wait import AsyncWaitOperator
from asyncstream.operators.base import DISCARD, Fanout, Operator
from asyncstream.operators.flow import Gate, Intake
from asyncstream.operators.union import Union
from asyncstream.plan import Graph, OperatorStep, Output, SinkStep, SourceStep, Step
from asyncstream.runtime.aio.endpoints import SinkOperator, SourceDriver

__all__ = ("Wiring",)

REJECTED = "rejected"
"""Tag of the output on which a source sends what it could not read."""


class Wiring:
    """
    The parts of one run.

    Attributes:
        operators: by step name, in topological order; sources have none.
        sources: by step name.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ports: dict[str, int] = {}
        self.operators: dict[str, Operator] = {}
        for step in graph:
            if isinstance(step, OperatorStep):
                self.operators[step.name] = step.make()
            elif isinstance(step, SinkStep):
                self.operators[step.name] = SinkOperator(step.sink)
        for step in graph:
            operator = self.operators.get(step.name)
            if operator is not None:
                operator.out = self._reader_of(Output(step.name))
                operator.side = {
                    output.tag: self._reader_of(output)
                    for output in graph.outputs(step)
                    if output.tag is not None
                }
        self.sources = {
            step.name: SourceDriver(
                step.source, self._reader_of(Output(step.name)), self._reader_of(Output(step.name, REJECTED))
            )
            for step in graph
            if isinstance(step, SourceStep)
        }
        self._connect_gates()

    def _reader_of(self, output: Output) -> Operator:
        readers = [self._input_of(step) for step in self._graph.readers(output)]
        if not readers:
            return DISCARD
        return readers[0] if len(readers) == 1 else Fanout(readers)

    def _input_of(self, step: Step) -> Operator:
        operator = self.operators[step.name]
        if not isinstance(operator, Union):
            return operator
        # every reading of a union's input takes the next of its ports
        port = self._ports[step.name] = self._ports.get(step.name, -1) + 1
        return operator.ports[port]

    def _connect_gates(self) -> None:
        drivers: list[tuple[Step, Gate]] = [
            (self._graph[name], source.gate) for name, source in self.sources.items()
        ]
        for name, operator in self.operators.items():
            if isinstance(operator, AsyncWaitOperator):
                drivers.append((self._graph[name], operator.emitting))
        for step, gate in drivers:
            for intake in self._intakes_behind(step):
                intake.gates = (*intake.gates, gate)

    def _intakes_behind(self, step: Step) -> set[Intake]:
        """The inboxes that what this step emits can reach without passing another inbox."""
        found: set[Intake] = set()
        ahead = [step]
        seen = set()
        while ahead:
            for output in self._graph.outputs(ahead.pop()):
                for reader in self._graph.readers(output):
                    operator = self.operators[reader.name]
                    if isinstance(operator, Intake):
                        found.add(operator)
                    elif reader.name not in seen:
                        seen.add(reader.name)
                        ahead.append(reader)
        return found
