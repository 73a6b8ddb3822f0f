"""
The files and folders of one pipeline: two steps that write to one take away what the other has written, and
who writes to a file that is read on replaces, or never comes to the end of, what is to be read.

It is seen before anything is opened. Links are followed; a name that leads to a file by a hard link, or in
other letters where the disk knows no capital ones, is not recognized.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asyncstream.connectors.dead_letters import DeadLetterSource
from asyncstream.connectors.files.line_sinks import LineSink
from asyncstream.connectors.files.parts_sink import PartsSink
from asyncstream.connectors.files.reading import FileSource
from asyncstream.errors import PipelineError
from asyncstream.plan.graph import Graph
from asyncstream.plan.steps import SinkStep, SourceStep

__all__ = ("check_places",)


def check_places(graph: Graph, *, keeps: bool) -> None:
    """
    Refuse steps that are in each other's way.

    Args:
        graph: the steps of a pipeline.
        keeps: whether it is to keep checkpoints. Without, a folder is replaced only when all is read.

    Raises:
        PipelineError: if two write to one file or folder, or one writes to what another one reads.
    """
    sinks = list(_sinks(graph))
    for number, (step, sink) in enumerate(sinks):
        for other, another in sinks[:number]:
            if _meet(sink, another, keeps=keeps):
                raise PipelineError(
                    f"steps {other!r} and {step!r} both write to {sink.place}: one at a time may; give each "
                    "a place of its own, or unite the streams before the sink"
                )
    for reading, source in _sources(graph):
        for step, sink in sinks:
            if _is_read(source, sink, keeps=keeps):
                raise PipelineError(
                    f"step {step!r} writes to what step {reading!r} reads, {source.place}: write elsewhere, "
                    "and give that its name when the pipeline has ended"
                )


def _sources(graph: Graph) -> Iterator[tuple[str, FileSource[Any]]]:
    for step in graph:
        if isinstance(step, SourceStep):
            source = step.source.letters if isinstance(step.source, DeadLetterSource) else step.source
            if isinstance(source, FileSource):
                yield step.name, source


def _sinks(graph: Graph) -> Iterator[tuple[str, LineSink | PartsSink]]:
    for step in graph:
        if isinstance(step, SinkStep) and isinstance(step.sink, LineSink | PartsSink):
            yield step.name, step.sink


def _meet(one: LineSink | PartsSink, other: LineSink | PartsSink, *, keeps: bool) -> bool:
    """Whether they write to one file; or to one folder, or one that is a partition of the other."""
    if one.place == other.place:
        return not keeps  # else they say so themselves, by the record that lies beside it
    return any(isinstance(a, PartsSink) and a.holds(b.place) for a, b in ((one, other), (other, one)))


def _is_read(source: FileSource[Any], sink: LineSink | PartsSink, *, keeps: bool) -> bool:
    if isinstance(sink, LineSink):
        return source.place == sink.place
    return keeps and sink.holds(source.place)
