"""
Connects the operators of one run as the graph says, for any runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from asyncstream.operators.base import DISCARD, Fanout, Operator
from asyncstream.operators.flow import Gate, Intake
from asyncstream.plan.graph import Graph
from asyncstream.plan.steps import Output, Step

__all__ = ("Wiring",)


class Wiring:
    """
    The operators of a graph, each connected to those that read it.

    Args:
        graph: what to connect; a source has no operator.
        operators: one for each other step, by its name.
        entrance: gives what to push into in place of an input of a step of this name; None: into the input
            itself.

    Attributes:
        intakes: the operators with an inbox, by step name, in the order of the graph.
        gates: those of the drivers whose pushes reach a step, by its name.
    """

    def __init__(
        self,
        graph: Graph,
        operators: Mapping[str, Operator],
        entrance: Callable[[str, Operator], Operator] | None = None,
    ) -> None:
        self._graph = graph
        self._operators = operators
        self._entrance = entrance
        self.intakes = {name: part for name, part in operators.items() if isinstance(part, Intake)}
        self.gates: dict[str, tuple[Gate, ...]] = {}
        for name, operator in operators.items():
            operator.out = self.reader_of(Output(name))
            operator.side = {
                output.tag: self.reader_of(output)
                for output in graph.outputs(graph[name])
                if output.tag is not None
            }

    def reader_of(self, output: Output) -> Operator:
        """What to push the elements of `output` into."""
        readers = [self.port_of(step.name, port) for step, port in self._graph.ports(output)]
        if not readers:
            return DISCARD
        return readers[0] if len(readers) == 1 else Fanout(readers)

    def port_of(self, name: str, number: int) -> Operator:
        """What to push the elements of the step's input `number` into."""
        port = self._operators[name].port(number)
        return port if self._entrance is None else self._entrance(name, port)

    def readers_of(self, name: str) -> list[Step]:
        """The steps that read any output of the step."""
        step = self._graph[name]
        return [reader for output in self._graph.outputs(step) for reader, _ in self._graph.ports(output)]

    def hold_back(self, gate: Gate, readers: Iterable[Step]) -> None:
        """Have the first inboxes at or behind `readers` hold `gate` while they are full."""
        ahead = list(readers)
        seen: set[str] = set()
        while ahead:
            step = ahead.pop()
            if step.name in seen:
                continue
            seen.add(step.name)
            self.gates[step.name] = (*self.gates.get(step.name, ()), gate)
            intake = self.intakes.get(step.name)
            if intake is not None:
                intake.gates = (*intake.gates, gate)
            else:
                ahead += self.readers_of(step.name)
