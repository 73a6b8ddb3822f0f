"""
Cuts a graph into the stages that Spark runs one after the other.

Spark knows no side outputs and recomputes a DataFrame for each of its readers, so a pipeline of any shape
becomes one straight line of stages. What a step emits for a reader in a later stage, or outside, travels
under the number of its `Route`; the stages between hand it on unopened.

    rows ─▶ plain ─▶ keyed ─▶ plain ─▶ keyed ─▶ plain ─▶ rows      a stream
    rows ─▶ plain ─▶ shuffled ─▶ shuffled ─▶ rows                  a bounded job

The stages of a stream alternate, because state lives in an operator of Spark's that can run nothing else.
In a bounded job state is in memory, and a keyed step takes the plain ones behind it into its stage.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum

from asyncstream.operators.spec import KeyBy
from asyncstream.plan import Graph, OperatorStep, Output, SinkStep, SourceStep, Step

__all__ = ("Reach", "Route", "Stage", "StageKind", "reached", "stages_of")


class StageKind(Enum):
    """How Spark runs a stage."""

    PLAIN = 0
    """Where the elements are."""

    KEYED = 1
    """With Spark's state, by key group."""

    SHUFFLED = 2
    """After all elements of a key have been brought together."""


class Reach(Enum):
    """Which key groups an element gets to."""

    ONE = 0
    """That of its key, or any if it has none."""

    FIRST = 1
    """The first, which speaks for all keys."""

    OTHERS = 2
    """All but the first, which overhear it."""


@dataclass(frozen=True, eq=False)
class Route:
    """
    From an output to a reader that is not in the same stage.

    Attributes:
        number: what elements on it are marked with.
        reader: name of the reading step.
        port: which of its inputs this is, counted from 0.
        key_by: what the reader needs to have brought together, or None.
        is_table: the reader looks things up in what comes by it: that comes first of what comes together.
        reach: which key groups it leads to. What is for all keys has two routes.
    """

    number: int
    output: Output
    reader: str
    port: int = 0
    key_by: KeyBy | None = None
    is_table: bool = False
    reach: Reach = Reach.ONE


@dataclass(frozen=True, eq=False)
class Stage:
    """Steps that run together, in topological order, and the routes that end and that begin here."""

    kind: StageKind
    steps: tuple[OperatorStep, ...]
    entries: tuple[Route, ...]
    exits: tuple[Route, ...]


def stages_of(graph: Graph, *, streaming: bool) -> list[Stage]:
    """The stages of `graph` in the order in which they run; the first reads the sources."""
    level: dict[str, int] = {}
    for step in graph:
        before = max((level[one.output.step] for one in step.inputs), default=0)
        level[step.name] = _level(step, before, streaming) if isinstance(step, OperatorStep) else before
    routes = _routes(graph, level)
    stages = []
    for number in sorted({0, *(level[step.name] for step in graph if isinstance(step, OperatorStep))}):
        inside = {
            step.name for step in graph if level[step.name] == number and not isinstance(step, SinkStep)
        }
        stages.append(
            Stage(
                StageKind(number % len(StageKind)),
                tuple(step for step in graph if isinstance(step, OperatorStep) and step.name in inside),
                tuple(route for route in routes if route.reader in inside),
                tuple(route for route in routes if _begins_in(route, inside, graph)),
            )
        )
    return stages


def reached(stage: Stage, routes: Collection[int]) -> Stage:
    """
    What elements of a source can get to in the first stage, and no more: of a union, the inputs they come by.

    A task reads one source. If each were sent all, and had the operators and ended them, a job of many
    sources would cost far more than each of them alone.

    Args:
        routes: those from the source.
    """
    inside = {route.output.step for route in (*stage.entries, *stage.exits) if route.number in routes}
    steps, ports = [], {}
    for step in stage.steps:
        fed = [port for port, one in enumerate(step.inputs) if one.output.step in inside]
        if not fed:
            continue
        inside.add(step.name)
        ports[step.name] = fed
        if len(fed) < len(step.inputs):  # a union: others have keys, and are in no first stage
            inputs = tuple(step.inputs[port] for port in fed)
            step = replace(step, inputs=inputs, spec=step.spec.of_ports(fed))
        steps.append(step)
    return Stage(
        stage.kind,
        tuple(steps),
        tuple(
            replace(route, port=ports[route.reader].index(route.port))
            for route in stage.entries
            if route.number in routes
        ),
        tuple(route for route in stage.exits if route.output.step in inside),
    )


def _level(step: OperatorStep, before: int, streaming: bool) -> int:
    """A level's remainder by three is the kind of its stage; the smallest level that suits the step."""
    if step.is_keyed:
        in_state = streaming and step.spec.calls is None
        kind = StageKind.KEYED if in_state else StageKind.SHUFFLED
        return before + (kind.value - before - 1) % 3 + 1
    return before + 2 if before % 3 == StageKind.KEYED.value else before


def _routes(graph: Graph, level: dict[str, int]) -> list[Route]:
    routes: list[Route] = []
    for step in graph:
        for port, (source, key_by) in enumerate((one.output, one.key_by) for one in step.inputs):
            from_source = isinstance(graph[source.step], SourceStep)
            if isinstance(step, SinkStep) or level[source.step] != level[step.name] or from_source:
                is_table = isinstance(step, OperatorStep) and step.spec.table_port == port
                for reach in _reaches(step, key_by):
                    routes.append(Route(len(routes), source, step.name, port, key_by, is_table, reach))
    return routes


def _reaches(step: Step, key_by: KeyBy | None) -> tuple[Reach, ...]:
    is_for_all = isinstance(step, OperatorStep) and step.spec.overhears and key_by is None
    return (Reach.FIRST, Reach.OTHERS) if is_for_all else (Reach.ONE,)


def _begins_in(route: Route, inside: set[str], graph: Graph) -> bool:
    if route.output.step not in inside:
        return False
    # what a source gives a step of the first stage is pushed into it, and begins nowhere
    return not (isinstance(graph[route.output.step], SourceStep) and route.reader in inside)
