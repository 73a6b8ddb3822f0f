"""
The method of a stream that hands its elements to a provider in jobs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from asyncstream.async_wait import BatchJobsSpec, BatchSettings, OutputOrder
from asyncstream.operators.failures import OnError
from asyncstream.operators.functions import AsyncFunction
from asyncstream.pipeline.ending import shown_on_error
from asyncstream.plan import Graph
from asyncstream.validation import Duration

if TYPE_CHECKING:
    from asyncstream.pipeline.stream import Stream

__all__ = ("Batching",)

T = TypeVar("T")
U = TypeVar("U")
J = TypeVar("J")


class Batching(Generic[T]):
    """The method of a stream that hands its elements to a provider in jobs."""

    _graph: Graph

    def async_batch(
        self,
        submit: Callable[[list[T], str], Awaitable[J]],
        poll: Callable[[J], Awaitable[object]] | AsyncFunction[J, object],
        fetch: Callable[[J], Awaitable[Iterable[U]]] | AsyncFunction[J, Iterable[U]],
        *,
        size: int,
        every: Duration = 60.0,
        wait: Duration | None = None,
        jobs: int = 20,
        order: OutputOrder | Literal["ordered", "unordered", "event_time"] = "ordered",
        on_error: OnError = "fail",
        name: str | None = None,
    ) -> Stream[U]:
        """
        Hand elements to a provider in jobs that take minutes to hours, and emit their results.

        Jobs that are under way are in the checkpoints, with their elements. With checkpoints, a job is
        submitted only when one has it, and another follows at once, so a process that is killed while it
        waits submits nothing again; one that is killed while it submits does so again, with the same key.

        Args:
            submit: an `async def` of a list of elements and a key, a text that is the same whenever this job
                is submitted, and no other's. It gives what the provider knows the job by, which checkpoints
                keep. It must do its work once for one key: pass it on as idempotency key, or look for a job
                that has it in its metadata.
            poll: an `async def` of what `submit` gave: whether the job is done. One that fails raises.
            fetch: an `async def` of the same: the answers of a job that is done, one for each element, in
                order. An exception in place of an answer is that element's error.
            size: elements of a job, at most.
            every: how long to wait before asking again how a job stands.
            wait: how long after its first element a job is submitted although it has fewer than `size`; by
                default as `every`. At the end of the input it is at once.
            jobs: how many may be under way; then elements wait.
            order: "ordered" as the elements came, "unordered" as jobs are done, or "event_time", that between
                watermarks.
            on_error: what becomes of elements without an answer, one by one or all of a job of which
                `submit`, `poll` or `fetch` raised an `Exception`: as for `map`. A cancellation that is not
                the pipeline's own fails it: it says nothing of the job at the provider. Wrap `poll` and
                `fetch` in `retry`, or a network that fails for a moment gives up a job.

        Raises:
            PipelineError: if an argument is not as described.
        """
        settings = BatchSettings.checked(submit, poll, fetch, size, every, wait, jobs, order, on_error)
        from asyncstream.pipeline.stream import Stream

        shown: dict[str, object] = {"size": size, "every": every, "jobs": jobs, "order": settings.order.value}
        details = shown | shown_on_error(on_error)
        stream = cast("Stream[Any]", self)
        output = stream._step("async_batch", name, BatchJobsSpec(settings), details)
        return Stream(self._graph, output)
