"""
What is in this process: iterables as sources, lists and functions as sinks.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, Callable, Iterable, MutableSequence, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

from asyncstream.arguments import count, refuse
from asyncstream.connectors.base import Sink, Source, SourceBatch
from asyncstream.elements import Timestamps
from asyncstream.errors import SourceError, UserFunctionError, describe_error

__all__ = ("CallbackSink", "Items", "ListSink")

T = TypeVar("T")


class Items(Source[T]):
    """
    Reads an iterable or an async iterable, whose items are the elements.

    What is there at once comes as one batch; no item waits for a batch to fill. A sequence can be replayed
    from a position, which is the number of elements read; other iterables have none.

    Args:
        items: a sequence, a generator, an async generator, or anything else that can be iterated over.
            Generators are closed with the source.
        batch: how many elements one read brings at most.
    """

    def __init__(self, items: Iterable[T] | AsyncIterable[T], *, batch: int = 1000) -> None:
        if not isinstance(items, Iterable | AsyncIterable):
            raise refuse("items", "an iterable or an async iterable", items)
        self._items = items
        self._batch = count("batch", batch)
        self._reader: _Iteration[T] | _AsyncIteration[T] | None = None
        self._read = 0

    async def open(self) -> None:
        self._read = 0
        if isinstance(self._items, AsyncIterable):
            self._reader = _AsyncIteration(self._items, self._batch)
        else:
            self._reader = _Iteration(self._items, self._batch)

    async def read(self) -> SourceBatch[T] | None:
        if self._reader is None:
            raise SourceError("the source is not open")
        try:
            values = await self._reader.read()
        except Exception as error:
            raise SourceError(
                f"the iterable failed after {self._read} elements: {describe_error(error)}"
            ) from error
        self._read += len(values)
        return SourceBatch(values) if values else None

    def end(self) -> bool:
        if isinstance(self._reader, _AsyncIteration):
            self._reader.end()
            return True
        return False

    def position(self) -> int | None:
        return self._read if isinstance(self._items, Sequence) else None

    async def seek(self, position: int) -> None:
        if not isinstance(self._items, Sequence):
            raise SourceError(
                f"cannot go on at element {position} of a {type(self._items).__name__}: only of a sequence"
            )
        if not 0 <= position <= len(self._items):
            raise SourceError(f"cannot go on at element {position} of {len(self._items)}")
        self._reader = _Iteration(islice(self._items, position, None), self._batch)
        self._read = position

    def is_replayable(self) -> bool:
        return isinstance(self._items, Sequence)

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            try:
                await reader.close()
            except Exception as error:
                raise SourceError(f"the iterable failed when closed: {describe_error(error)}") from error


class _Iteration(Generic[T]):
    """Reads an iterable in batches."""

    def __init__(self, items: Iterable[T], batch: int) -> None:
        self._items = iter(items)
        self._batch = batch
        self._error: Exception | None = None

    async def read(self) -> list[T]:
        """The next items; none at the end."""
        await asyncio.sleep(0)  # others get their turn, however long the iterable is
        values: list[T] = []
        if self._error is None:
            try:
                # not list(islice(...)): that loses what it has when an item fails
                values.extend(islice(self._items, self._batch))
            except Exception as error:
                self._error = error
        if self._error is not None and not values:
            raise self._error
        return values

    async def close(self) -> None:
        if inspect.isgenerator(self._items):
            self._items.close()


class _AsyncIteration(Generic[T]):
    """
    Reads an async iterable in batches of what is there at once.

    A task of its own iterates, and it alone: what the iterable does with tasks, timeouts and context
    variables works as in a plain `async for`, and a cancelled `read` does not reach it. It goes on only
    while somebody reads, so it is ahead of the reader by one item at most: the one that it was waiting for
    when a `read` was cancelled or had enough. While the iterable does not suspend, the task goes on and
    fills the batch; as soon as it does, the reader gets its turn and takes what there is.
    """

    def __init__(self, items: AsyncIterable[T], batch: int) -> None:
        self._items = items
        self._batch = batch
        self._taken: list[T] = []
        self._arrived = asyncio.Event()  # there is something to take, or nothing follows
        self._wanted = asyncio.Event()  # somebody reads, and the batch is not full
        self._error: Exception | None = None
        self._ended = False
        self._closing = False
        self._task = asyncio.create_task(self._iterate())

    async def read(self) -> list[T]:
        """The next items; none at the end."""
        self._wanted.set()
        try:
            await self._arrived.wait()
        finally:
            self._wanted.clear()
        values, self._taken = self._taken, []
        if not self._ended:
            self._arrived.clear()
        elif self._error is not None and not values:
            raise self._error
        return values

    async def _iterate(self) -> None:
        try:
            await self._wanted.wait()
            iterator = aiter(self._items)
            try:
                async for item in iterator:
                    self._taken.append(item)
                    self._arrived.set()
                    if len(self._taken) >= self._batch:
                        self._wanted.clear()
                    await self._wanted.wait()  # does not suspend while it is set
            finally:
                if inspect.isasyncgen(iterator):
                    await iterator.aclose()
        except asyncio.CancelledError:
            if not self._closing:  # then it is the iterable's own, and must not pass for the end of input
                self._error = RuntimeError("it was cancelled from inside")
        except Exception as error:
            self._error = error
        finally:
            self._ended = True
            self._arrived.set()

    def end(self) -> None:
        """Iterate no further; `read` gives what there is, and then nothing."""
        self._closing = True
        self._task.cancel()

    async def close(self) -> None:
        known = self._error
        self.end()
        await asyncio.wait({self._task})
        if self._error is not known and self._error is not None:
            raise self._error


class ListSink(Sink[T]):
    """
    Appends the elements to a list.

    Args:
        target: the list.
    """

    def __init__(self, target: MutableSequence[T]) -> None:
        if not isinstance(target, MutableSequence):
            raise refuse("target", "a list", target)
        self._target = target

    async def write(self, values: Sequence[T], timestamps: Timestamps) -> None:
        self._target.extend(values)


class CallbackSink(Sink[T]):
    """
    Calls a function with each element, one after the other.

    Args:
        function: a plain or an async function of one element. What it returns is not looked at. The pipeline
            waits while an async one does.
    """

    def __init__(self, function: Callable[[T], Any]) -> None:
        if not callable(function):
            raise refuse("function", "a function of one element", function)
        self._function = function

    async def write(self, values: Sequence[T], timestamps: Timestamps) -> None:
        function = self._function
        for value in values:
            try:
                result = function(value)
                if result is not None and inspect.isawaitable(result):
                    await result
            except Exception as error:
                name = getattr(function, "__qualname__", type(function).__qualname__)
                raise UserFunctionError(name, value, error) from error
