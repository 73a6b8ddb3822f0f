"""
anyio's memory object streams as a source and as a sink: `pipeline.source(receive)`, `stream.to(send)`.

An element is handed from task to task: what waits is bounded by the stream's own buffer, and who is quick
waits for who is slow, on either side of the pipeline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic, TypeVar

from anyio import BrokenResourceError, CancelScope, ClosedResourceError, EndOfStream, WouldBlock
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from asyncstream.connectors.base import CountingSink, Source, SourceBatch
from asyncstream.elements import Timestamps
from asyncstream.errors import SinkBroken, SinkError, SourceError
from asyncstream.validation import count, flag, refuse

__all__ = ("MemoryStreamSink", "MemoryStreamSource")

T = TypeVar("T")


class MemoryStreamSource(Source[T], Generic[T]):
    """
    Reads what is sent into a memory stream, until all who send have closed their end.

    It reads through a clone: the stream that it is given stays open, and a later job may read on. Elements
    live in this process only, so a crash takes away what was read since the last checkpoint.

    Args:
        stream: the receiving end.
        batch: how many elements one read brings at most. None waits for a batch to fill.
    """

    def __init__(self, stream: MemoryObjectReceiveStream[T], *, batch: int = 1000) -> None:
        if not isinstance(stream, MemoryObjectReceiveStream):
            raise refuse("stream", "the receiving end of an anyio memory stream", stream)
        self._stream = stream
        self._batch = count("batch", batch)
        self._own: MemoryObjectReceiveStream[T] | None = None
        self._receiving: asyncio.Task[T] | None = None
        self._waiting: CancelScope | None = None  # what that task does
        self._taken: list[T] = []  # and not read

    async def open(self) -> None:
        try:
            self._own = self._stream.clone()
        except ClosedResourceError:
            raise SourceError(
                "the memory stream is closed at this end: nothing more can be received"
            ) from None

    async def read(self) -> SourceBatch[T] | None:
        own = self._own
        if own is None:
            raise SourceError("the source is not open")
        if not self._taken and self._receiving is None:
            self._take_what_is_there(own)
        if not self._taken:
            # in a task of its own: an element that is handed over as this read is cancelled is not lost
            if self._receiving is None:
                self._waiting = CancelScope()
                self._receiving = asyncio.create_task(self._receive(own, self._waiting))
            await asyncio.wait({self._receiving})
            if not self._take_received():
                return None
            self._take_what_is_there(own)
        values, self._taken = self._taken, []
        return SourceBatch(values)

    async def _receive(self, own: MemoryObjectReceiveStream[T], waiting: CancelScope) -> T:
        with waiting:
            return await own.receive()
        raise ClosedResourceError

    def _take_what_is_there(self, own: MemoryObjectReceiveStream[T]) -> None:
        try:
            while len(self._taken) < self._batch:
                self._taken.append(own.receive_nowait())
        except (WouldBlock, EndOfStream, ClosedResourceError):
            pass

    def _take_received(self) -> bool:
        """Whether the wait has ended with an element."""
        receiving, self._receiving = self._receiving, None
        if receiving is None or receiving.cancelled():
            return False
        if isinstance(receiving.exception(), EndOfStream | ClosedResourceError):
            return False
        self._taken.append(receiving.result())
        return True

    def end(self) -> bool:
        if self._own is not None:
            self._close(self._own)
        return True

    def _close(self, own: MemoryObjectReceiveStream[T]) -> None:
        own.close()
        if self._waiting is not None:
            # anyio before 4.15 wakes nobody who waits there; unlike a task's, a scope's cancellation does not
            # throw away what is handed over already
            self._waiting.cancel()

    async def close(self) -> None:
        own, self._own = self._own, None
        if own is None:
            return
        self._close(own)
        if self._receiving is not None:
            await asyncio.wait({self._receiving})
            self._take_received()  # for the next run


class MemoryStreamSink(CountingSink[T], Generic[T]):
    """
    Sends elements into a memory stream, and waits while its buffer is full.

    An element is taken when it is in the buffer, or with who receives. One whose send is cancelled at the
    moment in which it is received may come a second time.

    Args:
        stream: the sending end.
        close: close it when the job ends, so that who receives comes to the end. False: it stays open, for
            another job to go on with; its owner closes it.
    """

    one_by_one = True

    def __init__(self, stream: MemoryObjectSendStream[T], *, close: bool = True) -> None:
        if not isinstance(stream, MemoryObjectSendStream):
            raise refuse("stream", "the sending end of an anyio memory stream", stream)
        self._stream = stream
        self._closes = flag("close", close)
        self._own: MemoryObjectSendStream[T] | None = None

    async def open(self) -> None:
        try:
            self._own = self._stream.clone()
        except ClosedResourceError:
            raise SinkError(
                "the memory stream is closed at this end, as an earlier job leaves it; for several jobs pass "
                "MemoryStreamSink(stream, close=False)"
            ) from None

    async def write(self, values: Sequence[T], timestamps: Timestamps) -> None:
        own, self._taken = self._own, 0
        if own is None:
            raise SinkError("the sink is not open")
        try:
            for value in values:
                try:
                    own.send_nowait(value)  # without the turn of the loop that `send` takes
                except WouldBlock:
                    await own.send(value)
                self._taken += 1
        except BrokenResourceError:
            raise SinkBroken("there is no receiver: the other end of the memory stream is closed") from None

    async def close(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            own.close()
            if self._closes:
                self._stream.close()
