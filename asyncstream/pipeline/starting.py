"""
Where a stream begins: at a source, or with what the program hands to the job.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any, TypeVar, overload

from asyncstream.checkpoint import Place
from asyncstream.connectors.base import Source
from asyncstream.connectors.durable import DurableSubmissions
from asyncstream.connectors.frames import Frame
from asyncstream.connectors.inbox import Inbox
from asyncstream.connectors.submissions import Submissions
from asyncstream.errors import PipelineError
from asyncstream.pipeline.missing_methods import Unfinished
from asyncstream.pipeline.sources_and_sinks import as_source, element_type
from asyncstream.pipeline.stream import Stream
from asyncstream.plan import Graph, Output, SourceStep
from asyncstream.validation import file_path

__all__ = ("SourceStream", "Starting")

T = TypeVar("T")


class Starting(Unfinished):
    """The methods of a pipeline that begin a stream."""

    _graph: Graph

    @overload
    def source(self, source: Source[T], *, name: str | None = None) -> SourceStream[T]: ...
    @overload
    def source(self, source: Frame, *, name: str | None = None) -> SourceStream[dict[str, Any]]: ...
    @overload
    def source(
        self,
        source: Iterable[T] | AsyncIterable[T] | Callable[[], AsyncIterable[T]] | Callable[[], Iterable[T]],
        *,
        name: str | None = None,
    ) -> SourceStream[T]: ...
    def source(self, source: Any, *, name: str | None = None) -> SourceStream[Any]:
        """
        Start a stream.

        Args:
            source: a `Source`; an iterable or async iterable of elements; a frame of Polars or pandas, a
                pyarrow table or a relation of DuckDB, whose rows are dicts; the receiving end of an anyio
                memory stream; or a function without arguments that makes one for each run, for what can be
                iterated over only once.
        """
        return SourceStream(self._graph, self._add("source", name, as_source(source)))

    @overload
    def submissions(
        self, *, limit: int = 1024, inbox: Inbox | Place | None = None, name: str | None = None
    ) -> Stream[Any]: ...
    @overload
    def submissions(
        self, of: type[T], *, limit: int = 1024, inbox: Inbox | Place | None = None, name: str | None = None
    ) -> Stream[T]: ...
    def submissions(
        self,
        of: type[Any] | None = None,
        *,
        limit: int = 1024,
        inbox: Inbox | Place | None = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """
        Start a stream of what is handed to `job.submit`; `limit` elements may wait, then it waits.

        Args:
            of: their type, for type checkers; elements are not looked at.
            inbox: keep each element on the disk, from before `submit` returns until a checkpoint covers it:
                an `Inbox`, or the path of its file. Such a job needs `checkpoints=`.
        """
        element_type(of)
        if inbox is None:
            return Stream(self._graph, self._add("submissions", name, Submissions(limit)))
        kept = inbox if isinstance(inbox, Inbox) else Inbox(file_path("inbox", inbox, "a database file"))
        return Stream(self._graph, self._add("submissions", name, DurableSubmissions(kept, limit)))

    def _add(self, kind: str, name: str | None, source: Source[Any]) -> Output:
        details: dict[str, object] = {"from": type(source).__name__} if kind == "source" else {}
        if isinstance(source, DurableSubmissions):
            details["inbox"] = source.inbox.path
        required = ("rejected",) if source.rejects else ()
        step = SourceStep(self._graph.name_for(kind, name), source, kind, required=required, details=details)
        self._graph.add(step)
        return Output(step.name)


class SourceStream(Stream[T]):
    """What comes out of a source: its elements, and on the side what it could not read as one."""

    @property
    def rejected(self) -> Stream[Any]:
        """What the source could not read as an element; needs a source that was told to reject."""
        step = self._graph[self._output.step]
        if not isinstance(step, SourceStep) or "rejected" not in step.required:
            raise PipelineError(
                f"source {step.name!r} rejects nothing; those of files and brokers do with "
                "on_malformed='reject', and one of several with rejects=True besides"
            )
        return Stream(self._graph, Output(self._output.step, "rejected"))
