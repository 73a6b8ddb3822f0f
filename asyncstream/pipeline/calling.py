"""
The methods of a stream that call something for its elements, and wait for what it gives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack

from asyncstream.async_wait import (
    AsyncWaitOptions,
    AsyncWaitSettings,
    AsyncWaitSpec,
    BatchJobsSpec,
    BatchSettings,
    OutputOrder,
)
from asyncstream.guards.in_threads import THREADS, InThreads
from asyncstream.operators.failures import OnError
from asyncstream.operators.functions import AsyncFunction
from asyncstream.pipeline.ending import shown_on_error
from asyncstream.pipeline.handle import Handle
from asyncstream.plan import Input
from asyncstream.validation import Duration, check_options, refuse

if TYPE_CHECKING:
    from anyio import CapacityLimiter

    from asyncstream.pipeline.stream import AsyncResults, Stream

__all__ = ("Calling",)

T = TypeVar("T")
U = TypeVar("U")
J = TypeVar("J")

_OF_CALLS: Final = tuple(AsyncWaitOptions.__annotations__)
_OF_THREADS: Final = ("threads", *(option for option in _OF_CALLS if option != "concurrency"))
"""The options of async steps, and of those whose calls are made in threads."""


class Calling(Handle[T]):
    """The methods of a stream that call something for its elements."""

    def async_map(
        self,
        fn: Callable[[T], Awaitable[U]] | AsyncFunction[T, U],
        *,
        name: str | None = None,
        **options: Unpack[AsyncWaitOptions],
    ) -> AsyncResults[U]:
        """
        Each element becomes `await fn(element)`; many calls run at once.

        Args:
            fn: an `async def` of one element, or an `AsyncFunction`.
            options: see `AsyncWaitOptions`: `order`, `concurrency`, `buffer`, `timeout`, `on_timeout`,
                `on_error`, `isolation`, `replay`, `copy_input`, `effect`, `journal`.

        Raises:
            PipelineError: if an argument is not as described.
        """
        return self._async_step("async_map", name, fn, options)

    def async_flat_map(
        self,
        fn: Callable[[T], Awaitable[Iterable[U]]] | AsyncFunction[T, Iterable[U]],
        *,
        name: str | None = None,
        **options: Unpack[AsyncWaitOptions],
    ) -> AsyncResults[U]:
        """
        Each element becomes any number of elements: those of the iterable that `await fn(element)` gives.

        Everything else is as for `async_map`.
        """
        return self._async_step("async_flat_map", name, fn, options)

    def thread_map(
        self,
        fn: Callable[[T], U],
        *,
        threads: int | CapacityLimiter = THREADS,
        name: str | None = None,
        **options: Unpack[AsyncWaitOptions],
    ) -> AsyncResults[U]:
        """
        Each element becomes `fn(element)`, called in a thread, where it may block; many calls run at once.

        It is `async_map` with `guards.in_threads(fn, threads=threads)`; give that to `async_map` or
        `async_flat_map` yourself to put guards around it. Checkpoints remain usable when the function becomes
        an `async def`.

        A thread cannot be ended from outside: a call that has timed out keeps its thread until it returns,
        and shows as `overdue` in the metrics; a stop waits for running calls, as for anything that ignores
        its cancellation. The function may call `anyio.from_thread.check_cancelled()` to see if it is still
        wanted.

        Args:
            fn: a plain function of one element.
            threads: how many calls may run at once; or an `anyio.CapacityLimiter` that is shared with others.
            options: as for `async_map`, without `concurrency`.

        Raises:
            PipelineError: if an argument is not as described.
        """
        if "concurrency" in options:
            advice = "threads= says how many calls run at once"
            raise refuse("concurrency", "none for thread_map", options["concurrency"], advice)
        check_options("thread_map", options, _OF_THREADS)
        function = InThreads(fn, threads=threads)
        return self._async_step("async_map", name, function, {**options, "concurrency": function.threads})

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
        from asyncstream.pipeline.stream import Stream

        settings = BatchSettings.checked(submit, poll, fetch, size, every, wait, jobs, order, on_error)
        shown: dict[str, object] = {"size": size, "every": every, "jobs": jobs, "order": settings.order.value}
        details = shown | shown_on_error(on_error)
        output = self._step("async_batch", name, BatchJobsSpec(settings), details)
        return Stream(self._graph, output)

    def _async_step(
        self, kind: str, name: str | None, fn: Any, options: AsyncWaitOptions
    ) -> AsyncResults[Any]:
        from asyncstream.pipeline.stream import (
            AsyncResults,  # which are streams, with the methods of this class
        )

        check_options(kind, options, _OF_CALLS)
        checked: dict[str, Any] = {**options}  # by the settings, which take what users may pass
        settings = AsyncWaitSettings(fn, key_by=self._key(), flat=kind == "async_flat_map", **checked)
        spec = AsyncWaitSpec(settings)
        if spec.needs_origins:
            argument = "effect" if settings.effect else "journal"
            self._graph.check_origins([Input(self._output)], argument=argument)
        details = {
            "fn": fn,
            "order": settings.order.value,
            "concurrency": settings.concurrency,
            "buffer": settings.buffer_size,
            "timeout": settings.timeout,
        }
        return AsyncResults(self._graph, self._step(kind, name, spec, details))
