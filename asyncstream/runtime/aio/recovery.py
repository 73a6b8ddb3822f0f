"""
Finds the checkpoint to go on from, and asks all concerned before anything is changed.

Recovery has two phases. First the store is read, the newest whole checkpoint that the settings allow is
chosen, its state is matched with the steps, and every sink and source is asked whether it can go on from
there. Only when all agree, they do it. So a start that is refused leaves everything as it was, and can be
tried again with other settings, or with a checkpoint that was mended from a backup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncstream.checkpoint import CheckpointInfo, Checkpoints, History, fit, match
from asyncstream.checkpoint.format import Role
from asyncstream.connectors.base import TransactionalSink, Writer
from asyncstream.errors import CheckpointError, SinkError, SourceError
from asyncstream.plan import Graph, SinkStep
from asyncstream.runtime.aio.endpoints import SinkOperator, naming
from asyncstream.runtime.aio.wiring import Wiring

__all__ = ("Found", "choose", "transactional_sinks")


@dataclass(frozen=True)
class Found:
    """
    Where a job goes on from.

    Attributes:
        info: the checkpoint; None: from the beginning.
        states: by role, and by the name that the step has now, what was kept of it.
    """

    info: CheckpointInfo | None = None
    states: Mapping[Role, dict[str, Any]] = field(
        default_factory=lambda: {"operator": {}, "source": {}, "sink": {}}
    )


def transactional_sinks(wiring: Wiring) -> Iterator[tuple[str, SinkOperator, TransactionalSink[Any]]]:
    """By name, the sinks of a job that take part in its checkpoints."""
    for name, operator in wiring.operators.items():
        if isinstance(operator, SinkOperator) and isinstance(operator.sink, TransactionalSink):
            yield name, operator, operator.sink


async def choose(
    settings: Checkpoints, history: History, graph: Graph, pipeline: str, wiring: Wiring, writer: Writer
) -> Found:
    """
    The checkpoint to go on from, on which all agree. Changes nothing.

    Args:
        pipeline: its name.
        writer: for whom the sinks are to write.

    Raises:
        CheckpointError: if it cannot be read, or does not fit the pipeline.
        SinkError: if a sink cannot go on from there.
        SourceError: if a source cannot.
    """
    found = await _find(settings, history, graph, pipeline, wiring)
    refusals: list[SinkError | SourceError] = []
    for name, _, sink in transactional_sinks(wiring):
        sink.writer = writer
        try:
            with naming(name, SinkError):
                await sink.can_recover(found.states["sink"].get(name))
        except SinkError as refusal:
            refusals.append(refusal)
    for name, position in found.states["source"].items():
        try:
            with naming(name, SourceError):
                await wiring.sources[name].source.can_seek(position)
        except SourceError as refusal:
            refusals.append(refusal)
    if len(refusals) > 1:
        raise type(refusals[0])("; ".join(map(str, refusals))) from refusals[0]
    if refusals:
        raise refusals[0]
    return found


async def _find(
    settings: Checkpoints, history: History, graph: Graph, pipeline: str, wiring: Wiring
) -> Found:
    if settings.restore == "none":
        for info in (await history.infos()).values():
            if isinstance(info, CheckpointInfo):
                _check_pipeline(info, settings, pipeline)
        return Found()
    if settings.restore == "newest":
        read = await history.read_newest()
    else:
        read = await history.read(settings.restore)
    if read is None:
        return Found()
    info, kept = read
    _check_pipeline(info, settings, pipeline)
    sinks = {name for name, _, _ in transactional_sinks(wiring)}
    names = match(
        info,
        settings,
        {step.name: step.kind for step in graph},
        lambda name, step: step.role != "sink" or name in sinks,
    )
    found = Found(info)
    ends = {step.name for step in graph if isinstance(step, SinkStep)}
    for old, name in names.items():
        was = info.steps[old]
        # elements that wait for a sink are no matter of its own
        now = None if was.role == "operator" and name in ends else graph[name].schema
        found.states[was.role][name] = fit(info, settings, old, name, kept[old], now)
    return found


def _check_pipeline(info: CheckpointInfo, settings: Checkpoints, pipeline: str) -> None:
    """Two pipelines in one store would take each other's positions for their own, and delete them."""
    if info.pipeline not in (pipeline, settings.pipeline_was):
        raise CheckpointError(
            f"checkpoint {info.id} in {settings.store} is of pipeline {info.pipeline!r}, and this is "
            f"{pipeline!r}: give each pipeline a store of its own; if it was renamed, say so: "
            f"Checkpoints(pipeline_was={info.pipeline!r})"
        )
