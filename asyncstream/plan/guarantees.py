"""
What holds, with checkpoints, on the way from each source to each sink; known before anything runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from asyncstream.connectors.base import TransactionalSink
from asyncstream.connectors.memory import ListSink
from asyncstream.connectors.outlets import Outlet
from asyncstream.plan.graph import Graph
from asyncstream.plan.steps import OperatorStep, SinkStep, SourceStep

__all__ = ("Guarantee", "Level", "guarantees", "left_behind")

Level: TypeAlias = Literal["exactly once", "at least once", "at most once", "none"]


@dataclass(frozen=True, slots=True)
class Guarantee:
    """
    What a crash does to the results on one way through a pipeline, in a job with checkpoints.

    Attributes:
        source: name of the source.
        sink: name of the sink.
        level: "exactly once": nothing is lost or doubled. "at least once": results may come twice. "at most
            once": elements may be lost. "none": both.
        reason: why it is not better; empty for "exactly once".
    """

    source: str
    sink: str
    level: Level
    reason: str = ""

    def __str__(self) -> str:
        ending = f": {self.reason}" if self.reason else ""
        return f"{self.source} -> {self.sink}  {self.level}{ending}"


_LEVELS: dict[tuple[bool, bool], Level] = {
    (True, True): "exactly once",
    (True, False): "at least once",
    (False, True): "at most once",
    (False, False): "none",
}


def guarantees(graph: Graph) -> list[Guarantee]:
    """
    One for each source and each sink that it reaches, in the order of the steps.

    Args:
        graph: the steps of a pipeline.
    """
    sources = [step for step in graph if isinstance(step, SourceStep)]
    return [
        _guarantee(graph, source, sink)
        for source in sources
        for sink in graph.behind(source.name)
        if isinstance(sink, SinkStep) and sink.kind != "discard"
    ]


def _guarantee(graph: Graph, source: SourceStep, sink: SinkStep) -> Guarantee:
    """What holds on the way from this source to this sink."""
    keeps = source.source.is_replayable()
    repeats = source.source.hands_over or not isinstance(sink.sink, TransactionalSink)
    reasons = []
    if not keeps:
        reasons.append("what the source gave since the last checkpoint cannot be read again")
    if isinstance(sink.sink, Outlet | ListSink):
        reasons.append("results are kept in memory only")
    elif source.source.hands_over:
        reasons.append("what a job that has died had not acknowledged another one reads again")
        if steps := left_behind(graph, source.name, sink.name):
            names = " and ".join(map(repr, steps))
            reasons.append(f"what {names} remembers of a split does not move with it")
    elif repeats:
        reasons.append("the sink cannot take back what it wrote since the last checkpoint")
    return Guarantee(source.name, sink.name, _LEVELS[keeps, not repeats], "; ".join(reasons))


def left_behind(graph: Graph, source: str, sink: str | None = None) -> list[str]:
    """
    The names of the steps that remember elements of a source longer than calls for them are under way. Where
    splits move to other jobs, calls are brought to an end first; what these steps remember stays.

    Args:
        graph: the steps of a pipeline.
        source: the name of its step.
        sink: look at those only that lead to this sink; None: at all.
    """
    return [
        step.name
        for step in graph.behind(source)
        if isinstance(step, OperatorStep)
        and step.schema is not None
        and step.spec.calls is None
        and not step.spec.keeps_only_watermarks
        and (sink is None or any(one.name == sink for one in graph.behind(step.name)))
    ]
