"""
The result of a bounded job as a frame: what `stream.to_arrow()`, `to_polars()` and `to_pandas()` give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from asyncstream.connectors.frames import FrameSink
from asyncstream.plan import Graph

if TYPE_CHECKING:
    from asyncstream.pipeline.pipeline import Pipeline

__all__ = ("FrameResult",)

F = TypeVar("F")


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
