"""
Iterates over iterables and async iterables, batch by batch, for `Items`.

What an iterable has given is in one of two places: read, or `taken` and still to be read. An error of the
iterable's own, of whatever kind, is raised by the read after the last element, as `IterationFailed`: it never
passes for the end. Between two runs a reader can be left where it is (`suspend`) and taken up again
(`resume`).
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextvars import copy_context
from itertools import islice
from typing import Generic, TypeVar

from asyncstream.aside import is_at_work
from asyncstream.async_wait.tasks import end_tasks
from asyncstream.errors import describe_error

__all__ = ("AsyncReader", "IterationFailed", "PlainReader", "Reader")

T = TypeVar("T")

_CLOSED_MEANWHILE = "the generator was closed meanwhile, as an event loop does with those left at its end"


class IterationFailed(Exception):
    """Carries, as its cause, what an iterable raised."""


class Reader(ABC, Generic[T]):
    """
    Reads one iterable, from wherever it stands to its end.

    Attributes:
        count: how many elements have been read.
        taken: what the iterable has given and is not read yet.
        touched: whether the iterable was asked for anything yet.
        exhausted: whether it can give nothing more: it has ended, has failed or was closed.
    """

    def __init__(self) -> None:
        self.count = 0
        self.taken: list[T] = []
        self.touched = False
        self.exhausted = False
        self._error: BaseException | None = None

    async def read(self) -> list[T]:
        """
        The next elements; none at the end. Raises `IterationFailed` if the iterable failed, once all before
        that were read.
        """
        await self._fill()
        values, self.taken = self.taken, []
        if not values and self._error is not None:
            raise IterationFailed from self._error
        self.count += len(values)
        return values

    def _fail(self, error: BaseException) -> None:
        self.exhausted = True
        self._error = error

    def give_first(self, values: Sequence[T]) -> None:
        """Read these again before anything else."""
        self.taken[:0] = values

    @abstractmethod
    async def _fill(self) -> None:
        """Wait until something is taken, or nothing follows."""

    @abstractmethod
    def is_feed(self) -> bool:
        """Whether the iterable only hands on what comes from elsewhere, and outlives its reader."""

    @abstractmethod
    def is_one_shot(self) -> bool:
        """Whether the iterable cannot be iterated over again from its beginning."""

    def end(self) -> None:
        """Take no more: `read` gives what there is, and then nothing."""

    def suspend(self) -> None:
        """Leave the iterable where it is; `close` follows, and perhaps `resume`."""

    def resume(self) -> None:
        """Go on after `suspend` or `end`."""

    @abstractmethod
    async def close(self) -> None:
        """
        End what runs; close a generator, unless it was suspended. Raises `IterationFailed` if the iterable
        failed over it.
        """


class PlainReader(Reader[T]):
    """Reads an iterable."""

    def __init__(self, items: Iterable[T], batch: int) -> None:
        super().__init__()
        self._items = items
        self._iterator = iter(items)
        self._batch = batch
        self._suspended = False

    async def _fill(self) -> None:
        await asyncio.sleep(0)  # others get their turn, however long the iterable is
        if self.exhausted or self.taken:
            return
        self.touched = True
        try:
            # not list(islice(...)): that loses what it has when an item fails
            self.taken.extend(islice(self._iterator, self._batch))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # also a cancellation: nothing is awaited here that it could be for
            self._fail(error)
        else:
            self.exhausted = not self.taken

    def is_feed(self) -> bool:
        return False

    def is_one_shot(self) -> bool:
        return self._iterator is self._items

    def suspend(self) -> None:
        self._suspended = True

    def resume(self) -> None:
        self._suspended = False
        if inspect.isgenerator(self._iterator) and self._iterator.gi_frame is None and not self.exhausted:
            self._fail(RuntimeError(_CLOSED_MEANWHILE))

    async def close(self) -> None:
        if self.touched and not self._suspended and inspect.isgenerator(self._iterator):
            self.exhausted = True
            try:
                self._iterator.close()
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                raise IterationFailed from error


class AsyncReader(Reader[T]):
    """
    Reads an async iterable in batches of what is there at once.

    A task of its own iterates, and it alone: what the iterable does with tasks, timeouts and context
    variables works as in a plain `async for`, and a cancelled `read` does not reach it. It goes on only
    while there is a reader, so it is ahead of the reader by one item at most: the one that it was waiting for
    when a `read` was cancelled or had enough. While the iterable does not suspend, the task goes on and
    fills the batch; as soon as it does, the reader gets its turn and takes what there is.

    A cancellation would end a generator for good, so a suspended one, or what holds one as an attribute, is
    left to wait for its next item, which is then in `taken`. Any other iterator is cancelled: it must not go
    on taking what may never be asked for.

    Args:
        patience: gives the seconds for which the iterable may ignore that it is cancelled.
    """

    def __init__(self, items: AsyncIterable[T], batch: int, patience: Callable[[], float]) -> None:
        super().__init__()
        self._patience = patience
        self._items = items
        self._batch = batch
        self._iterator: AsyncIterator[T] | None = None
        self._context = copy_context()  # one for all tasks, as the iterable would have in an `async for`
        self._suspended = False
        self._ending = False
        self._begin()

    def _begin(self) -> None:
        self._arrived = asyncio.Event()  # there is something to take, or nothing follows
        self._wanted = asyncio.Event()  # there is a reader, and the batch is not full
        self._resting = True  # the iterable is not being waited for
        if self.taken or self.exhausted:
            self._arrived.set()
        self._task = asyncio.create_task(self._iterate(), context=self._context)

    async def _fill(self) -> None:
        self._wanted.set()
        try:
            await self._arrived.wait()
        finally:
            self._wanted.clear()
        if self._ending:
            await self._stop()
        elif not self.exhausted:
            self._arrived.clear()

    async def _iterate(self) -> None:
        me = asyncio.current_task()
        try:
            await self._rest()
            if not self.exhausted:
                await self._take()
        except (KeyboardInterrupt, SystemExit) as error:
            # goes up through the loop from here; a reader that still runs must not take it for the end
            self._fail(RuntimeError(f"it was interrupted: {describe_error(error)}"))
            raise
        except asyncio.CancelledError:
            if not self._suspended and not self._ending:
                self._fail(RuntimeError("it was cancelled from inside"))
        except BaseException as error:
            self._fail(error)
        finally:
            if is_at_work(me):
                self._arrived.set()

    async def _rest(self) -> None:
        """Wait until an item is wanted; does not suspend if one is."""
        if not self._wanted.is_set():
            self._resting = True
            await self._wanted.wait()
        self._resting = False

    async def _take(self) -> None:
        """Take items until the iterable or its reader ends."""
        self.touched = True
        if self._iterator is None:
            self._iterator = aiter(self._items)
        iterator = self._iterator
        try:
            while True:
                try:
                    item = await anext(iterator)
                except StopAsyncIteration:
                    self.exhausted = True
                    return
                self.taken.append(item)
                self._arrived.set()
                if self._suspended or self._ending:
                    return
                if len(self.taken) >= self._batch:
                    self._wanted.clear()
                if not self._wanted.is_set():
                    await self._rest()
        finally:
            if not self._suspended and inspect.isasyncgen(iterator):
                self.exhausted = True
                if is_at_work(self._task):  # else it is collected, and the generator with it
                    await iterator.aclose()

    def is_feed(self) -> bool:
        return self.is_one_shot() and not _is_made_of_generator(self._iterator)

    def is_one_shot(self) -> bool:
        # before it was asked for an iterator, the iterable is as good as new
        return self._iterator is self._items

    def give_first(self, values: Sequence[T]) -> None:
        super().give_first(values)
        if self.taken:
            self._arrived.set()

    def end(self) -> None:
        if not self._ending:
            self._ending = True
            self._task.cancel()
            self._arrived.set()

    def suspend(self) -> None:
        self._suspended = True
        if self._resting or not _is_made_of_generator(self._iterator):
            self._task.cancel()

    def resume(self) -> None:
        self._suspended = self._ending = False
        if inspect.isasyncgen(self._iterator) and self._iterator.ag_frame is None and not self.exhausted:
            self._fail(RuntimeError(_CLOSED_MEANWHILE))
        if self._task.done():
            self._begin()

    async def close(self) -> None:
        known = self._error
        if not self._suspended:
            self.end()
        if not self._suspended or self._resting or not _is_made_of_generator(self._iterator):
            await self._stop()
        if self._error is not known and self._error is not None:
            raise IterationFailed from self._error

    async def _stop(self) -> None:
        """Wait until the task, which was cancelled, has ended."""
        _, running = await asyncio.wait({self._task}, timeout=1)  # a second cancellation disturbs a clean end
        patience = self._patience()
        if await end_tasks(running, patience):
            self._fail(TimeoutError(f"it ignored its cancellation for {patience:g} s"))


def _is_made_of_generator(iterator: object) -> bool:
    """Whether a cancelled wait for the next item would be the end of this iterator."""
    parts = getattr(iterator, "__dict__", {}).values()
    return inspect.isasyncgen(iterator) or any(map(inspect.isasyncgen, parts))
