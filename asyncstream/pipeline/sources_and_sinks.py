"""
What users may give as the source or the sink of a stream (an iterable, a list, a function), made into one;
and as the type of its elements.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import os
import queue
from collections.abc import AsyncIterable, Iterable, Mapping, MutableSequence, MutableSet
from types import UnionType
from typing import Any, Literal, get_origin

from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from asyncstream.connectors.base import Sink, Source, TransactionalSink
from asyncstream.connectors.conduct import way_to_write
from asyncstream.connectors.frames import FrameSource, is_frame
from asyncstream.connectors.memory import CallbackSink, Items, ListSink, one_value
from asyncstream.connectors.memory_streams import MemoryStreamSink, MemoryStreamSource
from asyncstream.errors import safe_repr
from asyncstream.pipeline.missing_methods import Fluent
from asyncstream.validation import is_async_function, overrides, refuse, takes

__all__ = ("as_sink", "as_source", "element_type")


def as_source(source: Any) -> Source[Any]:
    """A `Source`, an iterable, a frame, a memory stream, or a function of an iterable, as a source."""
    if isinstance(source, Source):
        overrides("source", source, Source)
        return source
    if isinstance(source, MemoryObjectReceiveStream):
        return MemoryStreamSource(source)
    if is_frame(source):
        return FrameSource(source)
    is_one = one_value(source)
    if isinstance(source, Fluent):
        advice = "a stream goes on by its own methods, and several become one by .union(...)"
        raise refuse("source", "what gives elements from outside", source, advice)
    if is_one or not (
        isinstance(source, Iterable | AsyncIterable)
        or (callable(source) and not is_async_function(source) and not isinstance(source, type))
    ):
        several = "or a function that makes one of these; for a single element give a list of it: [...]"
        advice = "; ".join(filter(None, (_of_file(source, "Source"), is_one)))
        advice = advice or _not_yet(source) or several
        raise refuse("source", "a Source, an iterable or an async iterable", source, advice)
    if callable(source) and not isinstance(source, Iterable | AsyncIterable):
        takes("source", source)
    return Items(source)


def as_sink(sink: Any) -> Sink[Any]:
    """A `Sink`, a list, a memory stream or a function of one element, as a sink."""
    if isinstance(sink, Sink):
        if way_to_write(sink) is None:
            advice = (
                "define write(values, timestamps), or write_batch(values) if it does not look at timestamps"
            )
            raise refuse("sink", "a Sink with a way to write", sink, advice)
        overrides("sink", sink, TransactionalSink if isinstance(sink, TransactionalSink) else Sink)
        return sink
    if isinstance(sink, MemoryObjectSendStream):
        return MemoryStreamSink(sink)
    if isinstance(sink, MutableSequence):
        return ListSink(sink)
    runs_nothing = inspect.isgeneratorfunction(sink) or inspect.isasyncgenfunction(sink)  # but yields
    if callable(sink) and not isinstance(sink, type) and not runs_nothing:
        takes("sink", sink, "element")
        return CallbackSink(sink)
    advice = _of_file(sink, "Sink") or next(
        (say for kind, say in _METHODS.items() if isinstance(sink, kind)), ""
    )
    raise refuse("sink", "a Sink, a list or a function of one element", sink, advice)


def _not_yet(source: object) -> str:
    """The advice for what gives its elements only when awaited, or asked one by one; else nothing."""
    if isinstance(source, asyncio.Queue | queue.Queue):
        return "for what your program puts in use pipeline.submissions() and job.submit(element)"
    if inspect.iscoroutine(source) or is_async_function(source):
        return "await it before and give what it returns, or write an async def that yields each element"
    if hasattr(type(source), "collect"):  # a LazyFrame of Polars, a DataFrame of Spark
        return "call its .collect() and give what it returns"
    return ""


def _of_file(path: object, end: Literal["Source", "Sink"]) -> str:
    """What reads or writes a file; nothing if `path` is none."""
    if not isinstance(path, str | os.PathLike):
        return ""
    kind = _KINDS.get(os.path.splitext(os.fsdecode(path))[1].lower())
    shown = safe_repr(os.fspath(path))
    found = [f"{kind}{end}({shown})"] if kind else [f"{each}{end}(path)" for each in _KINDS.values()]
    return f"for a file {' or '.join(found)}"


_METHODS: Mapping[type, str] = {
    MutableSet: "give its method, .add",
    asyncio.Queue: "give its method, .put",
    io.IOBase: "give its method, .write",
}
"""What takes elements by a method."""

_KINDS = {".csv": "Csv", ".jsonl": "JsonLines", ".parquet": "Parquet"}


def element_type(of: object) -> None:
    """Refuse as `of`, which says the type of elements to type checkers, what those take for no class."""
    bare = get_origin(of) or of  # of `dict[str, int]`: dict
    if of is not None and (not isinstance(bare, type) or bare is UnionType):
        expected = "a class, such as Order or dict[str, int]"
        raise refuse("of", expected, of, "for another type annotate the stream, as Stream[int | str]")
