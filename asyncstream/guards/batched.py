"""
Batching: many elements become one call.

A batch is open until it is full or its time is up; then it is sent, as a task of its own. Each element
waits on its own future, so one that is cancelled or timed out leaves an open batch, or is passed over
when the answers of a sent one come. A sent batch all of whose callers are gone is cancelled.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, Generic, Protocol, TypeVar, cast, overload

from asyncstream.guards.guard import Background, Call, Guard, delivery, end, fail, usable_as_decorator
from asyncstream.guards.retry import of_no_attempt
from asyncstream.operators.call_context import KEEP
from asyncstream.operators.functions import AsyncFunction, has_timeout_hook
from asyncstream.validation import Duration, count, duration_seconds

__all__ = ("Batched", "batched")

In = TypeVar("In")
Out = TypeVar("Out")


class _Batch(Generic[In, Out]):
    """Elements that go together, by the future on which each waits; in order of arrival."""

    __slots__ = ("keep", "loop", "places", "task", "timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.keep = KEEP.get()  # of all jobs that they are of
        self.places: dict[asyncio.Future[Out], In] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[Sequence[Out | Exception]] | None = None

    def deliver(self, task: asyncio.Task[Sequence[Out | Exception]]) -> None:
        """Give all who wait what the call has ended with."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        answers: Iterable[Any] = task.result() if error is None else repeat(error, len(self.places))
        for place, answer in zip(self.places, answers, strict=True):
            if issubclass(type(answer), BaseException):  # not of its __class__, which may do anything
                fail(place, answer)
            elif not place.done():
                place.set_result(answer)


class Batched(Guard[In, Out]):
    """
    Gathers elements, calls `fn` with a list of them, and hands each the answer at its place in the result.

    An element's answer that is an exception is raised for that element alone. If `fn` itself raises, or
    gives another number of answers than it was given elements, all elements of the batch fail.

    A batch needs company: it waits for `wait` whenever fewer than `size` elements are under way, so give
    the step a concurrency of a few times `size`.

    Args:
        fn: an async function of a list of elements, which returns as many answers.
        size: elements of a batch at most.
        wait: how long a batch stays open for more after its first element.
    """

    counted = ("batches", "batched")

    def __init__(
        self, fn: Call[list[In], Sequence[Out | Exception]], *, size: int = 100, wait: Duration = 0.01
    ) -> None:
        super().__init__(cast("Call[In, Out]", fn))
        self._send = cast("Callable[[list[In]], Awaitable[Sequence[Out | Exception]]]", self._call)
        if isinstance(fn, AsyncFunction) and has_timeout_hook(fn):
            self.__dict__["timeout"] = lambda value: fn.timeout([value])[0]
        self._size = count("size", size)
        self._wait = duration_seconds("wait", wait, zero=True)
        self._open: _Batch[In, Out] | None = None
        self._background = Background()

    async def invoke(self, value: In) -> Out:
        loop = get_running_loop()
        batch = self._open
        if batch is None or batch.loop is not loop:
            batch = self._open = _Batch(loop)
            batch.timer = loop.call_later(self._wait, self._close_batch, batch)
        elif batch.keep is not (keep := KEEP.get()):
            batch.keep |= keep
        place: asyncio.Future[Out] = loop.create_future()
        batch.places[place] = value
        if len(batch.places) == self._size:
            self._close_batch(batch)
        try:
            return await delivery(place)
        except asyncio.CancelledError:
            await self._leave(batch, place)
            raise

    def _close_batch(self, batch: _Batch[In, Out]) -> None:
        """Send `batch`, if a caller is left in it."""
        if batch is self._open:
            self._open = None
        if batch.timer is not None:
            batch.timer.cancel()
        if batch.places:
            self._counts["batches"] += 1
            self._counts["batched"] += len(batch.places)
            batch.task = self._background.start(self._run(list(batch.places.values()), batch.keep))
            batch.task.add_done_callback(batch.deliver)

    async def _leave(self, batch: _Batch[In, Out], place: asyncio.Future[Out]) -> None:
        """Take a cancelled caller out."""
        if batch.task is None:
            batch.places.pop(place, None)
            if not batch.places and batch is self._open:
                self._close_batch(batch)
        elif not batch.task.done() and all(place.done() for place in batch.places):
            await end(batch.task)

    async def _run(self, values: list[In], keep: frozenset[Callable[[], None]]) -> Sequence[Out | Exception]:
        size = len(values)  # before the function makes something else of its list
        of_no_attempt()
        KEEP.set(keep)
        answers: Any = await self._send(values)
        if isinstance(answers, Sequence) and not isinstance(answers, str | bytes | bytearray):
            answers = list(answers)  # here, where what it raises is told to all who wait
            if len(answers) == size:
                return cast("Sequence[Out | Exception]", answers)
            got = str(len(answers))
        else:
            got = f"a {type(answers).__name__}"
        raise TypeError(f"a batched function must give a list of one answer per element: {size}, got {got}")

    async def stop(self) -> None:
        if self._open is not None and self._open.loop is get_running_loop():
            for place in self._open.places:
                place.cancel()
            self._open.places.clear()
            self._close_batch(self._open)
        await self._background.stop()


class _Maker(Protocol):
    """A `GuardMaker` whose function is one of a list."""

    @overload
    def __call__(
        self, fn: Call[list[In], Sequence[Out | Exception]], /, *, size: int = 100, wait: Duration = 0.01
    ) -> Batched[In, Out]: ...

    @overload
    def __call__(
        self, *, size: int = 100, wait: Duration = 0.01
    ) -> Callable[[Call[list[In], Sequence[Out | Exception]]], Batched[In, Out]]: ...


batched = cast("_Maker", usable_as_decorator(Batched))
