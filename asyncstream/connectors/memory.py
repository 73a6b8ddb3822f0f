"""
What is in this process: iterables as sources, lists and functions as sinks.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableSequence,
    Sequence,
)
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from asyncstream.async_wait.tasks import CANCEL_PATIENCE
from asyncstream.connectors.base import CountingSink, Sink, Source, SourceBatch
from asyncstream.connectors.frames import is_frame
from asyncstream.connectors.iteration import AsyncReader, IterationFailed, PlainReader, Reader
from asyncstream.elements import Timestamps
from asyncstream.errors import PipelineError, SourceError, UserFunctionError, describe_error, safe_repr
from asyncstream.validation import count, is_async_function, refuse, takes

log = logging.getLogger("asyncstream.sources")

__all__ = ("CallbackSink", "Items", "ListSink", "one_value")

T = TypeVar("T")


def one_value(items: object) -> str:
    """
    What to write in place of what can be iterated over and is one value all the same: a text, whose letters
    nobody means, a dict or a record. Nothing if it is none.
    """
    if isinstance(items, Mapping):
        return "give its .items() or .values() or, if it is one element, a list of it: [...]"
    is_record = isinstance(items, tuple) and hasattr(items, "_fields")
    if is_record or getattr(getattr(type(items), "__iter__", None), "__module__", None) == "pydantic.main":
        return "if it is one element, give a list of it: [...]"
    if isinstance(items, str | bytes | bytearray | memoryview):
        return "if it is one element, give a list of it: [...]; else split it, e.g. .splitlines()"
    return ""


Makes: TypeAlias = Callable[[], Iterable[T] | AsyncIterable[T]]


class Items(Source[T]):
    """
    Reads an iterable or an async iterable, whose items are the elements.

    What is there at once comes as one batch; no item waits for a batch to fill.

    A sequence can be replayed from a position, which is the number of elements read. Whether it is still the
    same sequence, only its length can tell: elements may be changed by those who work on them, so a check of
    what they are would refuse sequences that are right. Of other iterables the position says how many were
    read, and holds those that were taken and not read yet. A job that continues a stopped one, with this very
    source, goes on where they stand; a new process begins with what they give it.

    What gives its elements only once (a generator, an iterator) serves one run, and the job that continues
    it. In another run it is refused, instead of passing for an empty input. An async iterator that is no
    generator, one over a queue say, may be read on by any run until it ends.

    Args:
        items: a sequence, a generator, an async generator, anything else that can be iterated over, or a
            function without arguments that makes such a thing for each run. A generator is closed with the
            source, unless the job was stopped.
        batch: how many elements one read brings at most.

    Attributes:
        patience: seconds that an async iterable gets to end when it is cancelled; those of the job.
    """

    def __init__(self, items: Iterable[T] | AsyncIterable[T] | Makes[T], *, batch: int = 1000) -> None:
        self._make: Makes[T] | None = None
        if advice := one_value(items):
            raise refuse("items", "an iterable of elements", items, advice)
        if not isinstance(items, Iterable | AsyncIterable):
            if not callable(items) or isinstance(items, type) or is_async_function(items):
                raise refuse(
                    "items", "an iterable or an async iterable", items, "or a function that makes one"
                )
            takes("items", items)
            self._make = items
        self._items = items
        self._batch = count("batch", batch)
        self.patience = CANCEL_PATIENCE
        self._reader: Reader[T] | None = None
        self._left: Reader[T] | None = None  # where an earlier run left what cannot be begun anew
        self._is_spent = False
        self._suspended = False
        self._ended = False
        self._is_open = False
        self._start = 0

    @property
    def once(self) -> object | None:
        """What it reads, if that gives its elements only once: of two readers, each would have a part."""
        return self._items if isinstance(self._items, Iterator | AsyncGenerator) else None

    async def open(self) -> None:
        self._start = 0
        self._suspended = self._ended = False
        self._is_open = True
        if self._left is None:
            self._reader = self._begun()

    def _begun(self) -> Reader[T]:
        """A reader from the beginning on."""
        items = self._items
        if self._is_spent or _is_closed(items):
            raise self._refusal()
        if self._make is not None:
            items = self._make()
            if is_frame(items):  # or its columns would pass for its elements
                raise SourceError("the function gave a frame: give it to FrameSource, which reads rows")
            if advice := one_value(items):
                raise SourceError(
                    f"the function for the iterable gave {safe_repr(items)}, which is one value; {advice}"
                )
        if isinstance(items, AsyncIterable):
            return AsyncReader(items, self._batch, lambda: self.patience)
        if isinstance(items, Iterable):
            return PlainReader(items, self._batch)
        raise SourceError(
            f"the function for the iterable gave {safe_repr(items)} instead of an iterable or an async one"
        )

    def _refusal(self) -> SourceError:
        return SourceError(
            f"a {type(self._items).__name__} gives its elements once, and an earlier run has read it: give a "
            "list, a Source, or a function that makes a new one, as in pipeline.source(lambda: rows())"
        )

    async def _current(self) -> Reader[T]:
        """The reader; if it is not decided yet whether to go on where an earlier run left, it is now."""
        if self._reader is None:
            left = self._left
            if left is None or not self._is_open:
                raise SourceError("the source is not open")
            # of what no run has read, nothing is missing
            is_whole = left.is_feed() or not left.count
            if not is_whole and left.is_one_shot() and self._make is None:
                raise self._refusal()
            self._left = None
            left.resume()
            if is_whole:
                self._reader = left
            else:
                await left.close()
                self._reader = self._begun()
            if self._ended:
                self._reader.end()
        return self._reader

    async def read(self) -> SourceBatch[T] | None:
        reader = await self._current()
        try:
            values = await reader.read()
        except IterationFailed as failed:
            cause = failed.__cause__ or failed
            raise SourceError(
                f"the iterable failed after {self._start + reader.count} elements: {describe_error(cause)}"
            ) from cause
        return SourceBatch(values) if values else None

    def end(self) -> bool:
        self._ended = isinstance(self._reader or self._left, AsyncReader)
        if self._reader is not None:
            self._reader.end()
        return self._ended

    def position(self) -> int | dict[str, Any] | None:
        reader = self._reader or self._left
        if isinstance(self._items, Sequence):
            return self._start + (0 if reader is None else reader.count)
        if reader is None or not (reader.count or reader.taken):
            return None
        return {"read": reader.count, "taken": list(reader.taken)}

    def progress(self) -> float | None:
        if not isinstance(self._items, Sequence):
            return None
        read = self._start + (0 if self._reader is None else self._reader.count)
        return min(1.0, read / len(self._items)) if len(self._items) else 1.0

    async def can_seek(self, position: Any) -> None:
        items = self._items
        if isinstance(items, Sequence):
            if not isinstance(position, int) or not 0 <= position <= len(items):
                raise SourceError(
                    f"cannot go on at element {safe_repr(position)} of {len(items)}: give the same sequence "
                    "again, or begin at its start by another name for the source or restore='none'"
                )
        elif not isinstance(position, dict):
            raise SourceError(
                f"cannot go on at element {position} of a {type(items).__name__}: only of a sequence"
            )

    async def seek(self, position: Any) -> None:
        await self.can_seek(position)
        if isinstance(self._items, Sequence):
            self._reader = PlainReader(islice(self._items, position, None), self._batch)
            self._start = position
            return
        left = self._left
        if left is not None and left.count == position["read"]:
            left.resume()  # it still has what it had taken
            self._reader, self._left = left, None
            return
        reader = await self._current()
        reader.give_first(position["taken"])
        log.warning(
            "a %s cannot go on behind the %d elements that were read: it is read from where it stands",
            type(self._items).__name__,
            position["read"],
        )

    def is_replayable(self) -> bool:
        return isinstance(self._items, Sequence)

    def suspend(self) -> None:
        self._suspended = True
        if self._reader is not None:
            self._reader.suspend()

    def is_reopenable(self) -> bool:
        return isinstance(self._items, Sequence)

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        self._is_open = False
        if reader is None or isinstance(self._items, Sequence):
            return
        try:
            await reader.close()
        except IterationFailed as failed:
            cause = failed.__cause__ or failed
            raise SourceError(f"the iterable failed when closed: {describe_error(cause)}") from cause
        finally:
            if not reader.exhausted and (self._suspended or reader.is_feed()):
                self._left = reader
            else:
                self._is_spent = reader.touched and reader.is_one_shot() and self._make is None


def _is_closed(items: object) -> bool:
    """Whether this is a generator that can give nothing more."""
    if inspect.isgenerator(items):
        return items.gi_frame is None
    return inspect.isasyncgen(items) and items.ag_frame is None


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

    async def write_batch(self, values: Sequence[T]) -> None:
        self._target.extend(values)  # and never waits


class CallbackSink(CountingSink[T]):
    """
    Calls a function with each element, one after the other.

    Args:
        function: a plain or an async function of one element. What it returns is not looked at. The pipeline
            waits while an async one does. An element is taken when the function has returned, so one whose
            call is cancelled half-way is given to it again by the next job.
    """

    one_by_one = True

    def __init__(self, function: Callable[[T], Any]) -> None:
        if not callable(function):
            raise refuse("function", "a function of one element", function)
        takes("function", function, "element")
        self._function = function

    async def write(self, values: Sequence[T], timestamps: Timestamps) -> None:
        function = self._function
        self._taken = 0
        for value in values:
            try:
                result = function(value)
                if result is not None:
                    if inspect.isawaitable(result):
                        await result
                    elif inspect.isgenerator(result) or inspect.isasyncgen(result):
                        raise PipelineError(
                            "a function that serves as a sink has given a generator, of which nothing has "
                            "run; call for each element, or use flat_map before the sink"
                        )
                self._taken += 1
            except Exception as error:
                name = getattr(function, "__qualname__", type(function).__qualname__)
                raise UserFunctionError(name, value, error) from error
