"""
`Pipeline`: where a user starts, and what they run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable
from typing import Any, Literal, TypeVar, overload

from asyncstream.arguments import choice, refuse, text
from asyncstream.clock import Clock
from asyncstream.connectors.base import Source
from asyncstream.connectors.memory import Items
from asyncstream.connectors.submissions import Submissions
from asyncstream.errors import MissingExtra, PipelineError
from asyncstream.pipeline.stream import Stream
from asyncstream.plan import Graph, Output, SourceStep, as_mermaid, as_text
from asyncstream.runtime.aio import Job, JobSnapshot

__all__ = ("Pipeline", "SourceStream")

T = TypeVar("T")


class Pipeline:
    """
    A plan of sources, steps and sinks, built by method calls and run any number of times.

        pipeline = Pipeline("flights")
        pipeline.source(flights).async_map(with_plane).to(results)
        await pipeline.run()

    Args:
        name: what it is called in descriptions.
    """

    def __init__(self, name: str = "pipeline") -> None:
        self.name = text("name", name)
        self._graph = Graph()

    def __repr__(self) -> str:
        return f"<Pipeline {self.name!r} of {len(list(self._graph))} steps>"

    # ------------------------------------------------------------------ sources

    @overload
    def source(self, source: Source[T], *, name: str | None = None) -> SourceStream[T]: ...
    @overload
    def source(self, source: Iterable[T], *, name: str | None = None) -> SourceStream[T]: ...
    @overload
    def source(self, source: AsyncIterable[T], *, name: str | None = None) -> SourceStream[T]: ...
    def source(self, source: Any, *, name: str | None = None) -> SourceStream[Any]:
        """
        Start a stream.

        Args:
            source: a `Source`, or an iterable or async iterable of elements.
        """
        if not isinstance(source, Source):
            if isinstance(source, str | bytes) or not isinstance(source, Iterable | AsyncIterable):
                raise refuse("source", "a Source, an iterable or an async iterable", source)
            source = Items(source)
        return SourceStream(self._graph, self._add("source", name, source))

    def submissions(self, *, limit: int = 1024, name: str | None = None) -> Stream[Any]:
        """Start a stream of what is handed to `job.submit`; `limit` elements may wait, then it waits."""
        return Stream(self._graph, self._add("submissions", name, Submissions(limit)))

    def _add(self, kind: str, name: str | None, source: Source[Any]) -> Output:
        details = {"from": type(source).__name__} if kind == "source" else {}
        step = SourceStep(self._graph.name_for(kind, name), source, kind, details=details)
        self._graph.add(step)
        return Output(step.name)

    # ------------------------------------------------------------------ running

    def start(self, *, clock: Clock | None = None, snapshot: JobSnapshot | None = None) -> Job:
        """
        A job that runs this pipeline in the current event loop: `async with pipeline.start() as job:`.

        Args:
            clock: processing time; the system's by default.
            snapshot: go on where an earlier job of this pipeline was stopped.

        Raises:
            PipelineError: if the plan cannot run or would lose elements.
        """
        self._graph.check()
        return Job(self._graph, clock=clock, snapshot=snapshot)

    async def run(self, *, clock: Clock | None = None) -> None:
        """
        Run until every source has come to its end and everything is written.

        Raises:
            PipelineError: if the plan cannot run or would lose elements.
            UserFunctionError: if a function of yours failed; names the step and carries the element.
            SourceError, SinkError: if one of them failed.
        """
        async with self.start(clock=clock) as job:
            await job.wait()

    def run_blocking(self, *, uvloop: bool = False) -> None:
        """
        Run to the end in an event loop of its own, for programs that have none.

        Args:
            uvloop: use uvloop, which takes a third off the cost of calls that wait.

        Raises:
            MissingExtra: if uvloop is not installed; and what `run` raises.
        """
        factory = None
        if uvloop:
            try:
                import uvloop as library
            except ImportError:
                raise MissingExtra("uvloop=True", "uvloop") from None
            factory = library.new_event_loop
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(self.run())
        else:
            raise PipelineError("run_blocking: an event loop is running here; use `await pipeline.run()`")

    # ------------------------------------------------------------------ looking at it

    def describe(self, format: Literal["text", "mermaid"] = "text") -> str:
        """The steps with their settings, as text or as a Mermaid flowchart."""
        choice("format", format, ("text", "mermaid"))
        return as_text(self._graph, self.name) if format == "text" else as_mermaid(self._graph)


class SourceStream(Stream[T]):
    """What comes out of a source: its elements, and on the side what it could not read as one."""

    @property
    def rejected(self) -> Stream[Any]:
        """What the source rejected; empty unless the source was told to reject."""
        return Stream(self._graph, Output(self._output.step, "rejected"))
