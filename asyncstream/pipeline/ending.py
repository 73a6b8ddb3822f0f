"""
Where a stream ends: in a sink, or in the program that runs the job.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from asyncstream.connectors.base import Sink
from asyncstream.connectors.frames import FrameSink
from asyncstream.connectors.memory import CallbackSink
from asyncstream.connectors.outlets import Answers, Publication, Published, Results, ResultsHandle
from asyncstream.errors import MissingExtra
from asyncstream.operators.failures import OnError, on_error_choice, routed_to
from asyncstream.operators.functions import FailedCall
from asyncstream.pipeline.handle import Handle
from asyncstream.pipeline.missing_methods import Unfinished
from asyncstream.pipeline.sources_and_sinks import as_sink
from asyncstream.plan import Graph, Input, Output, SinkStep
from asyncstream.shown import name_of
from asyncstream.validation import Fields, selector

if TYPE_CHECKING:
    import polars
    from anyio.streams.memory import MemoryObjectSendStream

    from asyncstream.pipeline.pipeline import Pipeline
    from asyncstream.pipeline.stream import Stream

__all__ = ("Ending", "FrameResult", "StreamEnd", "shown_on_error")

T = TypeVar("T")
F = TypeVar("F")


class Ending(Handle[T]):
    """The methods of a stream that end it."""

    def to(
        self,
        sink: Sink[T] | MutableSequence[T] | MemoryObjectSendStream[T] | Callable[[T], object],
        *,
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> StreamEnd:
        """
        End the stream in a sink.

        Args:
            sink: a `Sink`, a list to append to, the sending end of an anyio memory stream (closed when the
                job ends), or a function of one element (plain or `async def`).
            on_error: what to do with an element that the sink fails on: "fail" the pipeline, "skip" the
                element (counted), "route" it to `.failed` of what this returns, as a `FailedCall`. If the
                sink cannot say which element of a write failed, they are written again one by one, except
                those that are `taken`. A transactional sink in a job with checkpoints cannot "route".
        """
        target = as_sink(sink)
        details = {"to": name_of(sink) or type(target).__name__} | shown_on_error(on_error_choice(on_error))
        step = SinkStep(
            self._graph.name_for("sink", name),
            target,
            (Input(self._output),),
            "sink",
            routed_to(on_error),
            on_error,
            details,
        )
        self._graph.add(step)
        return StreamEnd(self._graph, step)

    def results(self, *, limit: int = 1024, name: str | None = None) -> ResultsHandle[T]:
        """
        End the stream in `job.results()`; `limit` results may wait there, then the pipeline waits.

        Returns a handle for `job.results(...)`, from which type checkers know the type of the results.
        """
        results = Results[T](limit)
        return ResultsHandle(self._end("results", name, results), results)

    def publish(self, *, name: str | None = None) -> Published[T]:
        """
        End the stream in `job.subscribe()`: each subscriber gets all elements that come while it subscribes.

        Without a subscriber, an element is lost; after a crash, elements may come a second time.
        Returns a handle for `job.subscribe(...)`, from which type checkers know the type of the elements.
        """
        publication = Publication[T]()
        return Published(self._end("publish", name, publication), publication)

    @overload
    def answers(
        self: Ending[FailedCall],
        by: Callable[[Any], Any] | Fields,
        *,
        asked_by: Callable[[Any], Any] | Fields | None = None,
        name: str | None = None,
    ) -> None: ...
    @overload
    def answers(
        self,
        by: Callable[[T], Any] | Fields,
        *,
        asked_by: Callable[[Any], Any] | Fields | None = None,
        name: str | None = None,
    ) -> None: ...
    def answers(
        self,
        by: Callable[[Any], Any] | Fields,
        *,
        asked_by: Callable[[Any], Any] | Fields | None = None,
        name: str | None = None,
    ) -> None:
        """
        End the stream in `job.ask()`: each element answers the `ask` whose event has the same key.

        An element that no `ask` waits for is dropped. Several streams may end like this: the first answer
        counts. If `.failed` of a step ends like this, `ask` raises what the step's function raised.

        Args:
            by: the key of an answer, and of the event that was asked: a function, the name of a field, or
                names; of `.failed`, that of the element that failed. It must be unique among the elements in
                flight.
            asked_by: the key of the event that was asked, if it is computed differently.
        """
        key_of = selector("by", by)
        asked = key_of if asked_by is None else selector("asked_by", asked_by)
        self._end("answers", name, Answers(key_of, asked))

    def to_arrow(self, *, schema: Any = None, name: str | None = None) -> FrameResult[Any]:
        """
        End the stream in a `pyarrow.Table`, of a job whose input ends: `await stream.to_arrow().run()`.

        Elements are mappings and other records, as for `ParquetSink`, and are kept in memory.

        Args:
            schema: of pyarrow. None: that of the elements.

        Raises:
            MissingExtra: if pyarrow is not installed.
        """
        return self._to_frame("to_arrow", schema, name, lambda table: table)

    def to_polars(self, *, schema: Any = None, name: str | None = None) -> FrameResult[polars.DataFrame]:
        """
        End the stream in a `polars.DataFrame`; else as `to_arrow`.

        Raises:
            MissingExtra: if Polars or pyarrow is not installed.
        """
        if find_spec("polars") is None:
            raise MissingExtra("to_polars", "polars")

        def converted(table: Any) -> Any:
            import polars

            return polars.from_arrow(table)

        return self._to_frame("to_polars", schema, name, converted)

    def to_pandas(self, *, schema: Any = None, name: str | None = None) -> FrameResult[Any]:
        """
        End the stream in a `pandas.DataFrame`; else as `to_arrow`.

        Raises:
            MissingExtra: if pandas or pyarrow is not installed.
        """
        if find_spec("pandas") is None:
            raise MissingExtra("to_pandas", "pandas")
        return self._to_frame("to_pandas", schema, name, lambda table: table.to_pandas())

    def _to_frame(
        self, kind: str, schema: Any, name: str | None, convert: Callable[[Any], Any]
    ) -> FrameResult[Any]:
        sink = FrameSink(schema)
        self._end(kind, name, sink)
        return FrameResult(self._graph, sink, convert)

    def discard(self, *, name: str | None = None) -> None:
        """End the stream: its elements are not needed."""
        self._end("discard", name, CallbackSink(_ignore))

    def _end(self, kind: str, name: str | None, sink: Sink[Any]) -> str:
        name = self._graph.name_for(kind, name)
        self._graph.add(SinkStep(name, sink, (Input(self._output),), kind))
        return name


class StreamEnd(Unfinished):
    """The sink that a stream ends in: on the side, the elements that it refused."""

    _comes_next = "a stream ends there: keep what is before it in a variable, and go on from that"

    def __init__(self, graph: Graph, step: SinkStep) -> None:
        self._graph = graph
        self._step = step

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._step.name!r}>"

    @property
    def failed(self) -> Stream[FailedCall]:
        """The elements that the sink failed on; needs `on_error="route"`."""
        from asyncstream.pipeline.stream import Stream

        return Stream[Any](self._graph, Output(self._step.name)).failed


class FrameResult(Generic[F]):
    """
    Where a stream ends in a frame: `run` runs the pipeline and gives it.

        frame = await flights.async_map(with_plane).to_polars().run()

    Of a pipeline that ends in several places, or that is run in another way, `result()` is the frame
    afterwards.
    """

    def __init__(self, graph: Graph, sink: FrameSink, convert: Callable[[Any], F]) -> None:
        self._graph = graph
        self._sink = sink
        self._convert = convert

    def result(self) -> F:
        """
        The frame, of the last run that has come to the end of its input.

        Raises:
            SinkError: if there is none.
        """
        return self._convert(self._sink.table())

    async def run(self, **options: Any) -> F:
        """
        Run the pipeline to its end, and give the frame.

        Args:
            options: as for `Pipeline.run`.

        Raises:
            AsyncStreamError: as `Pipeline.run`.
        """
        await self._pipeline().run(**options)
        return self.result()

    def run_blocking(self, **options: Any) -> F:
        """
        The same in an event loop of its own, for programs that have none.

        Args:
            options: as for `Pipeline.run_blocking`.
        """
        self._pipeline().run_blocking(**options)
        return self.result()

    def _pipeline(self) -> Pipeline:
        from asyncstream.pipeline.pipeline import Pipeline  # which is made of streams

        return Pipeline._of(self._graph)


def shown_on_error(on_error: OnError) -> dict[str, object]:
    """How the choice is shown with a step's settings."""
    return {} if on_error == "fail" else {"on_error": on_error}


def _ignore(element: object) -> None:
    pass
