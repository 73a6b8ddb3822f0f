"""
Cuts what a source gives into micro-batches that can be read again.

A source tells where it stands only behind what it has given, so the driver reads: a micro-batch is what came
from one position to another, and it is kept until the next one. An offset says where its micro-batch ends,
and how many elements of each split are in it::

    {"position": "1200", "rows": {"": 200}}      the position in the words of the JSON codec

The count is what a micro-batch is read again by, after a crash: the reads of a source need not be cut as they
were, and what comes of several splits need not be mixed as it was, but each split is in order. So the same
elements are in it, of each split in the same order.

Spark notes where a micro-batch ends. Where the first one begins it asks again, of another driver too, and a
source that begins with what comes next stands elsewhere by then. So the end of the first one says, besides,
from which position it was read: `"from"`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from asyncstream.aside import heed
from asyncstream.async_wait.tasks import CANCEL_PATIENCE, end_tasks, within
from asyncstream.codec import JsonCodec
from asyncstream.connectors import Source, SourceBatch
from asyncstream.connectors.conduct import fault_of
from asyncstream.errors import CodecError, SourceError, describe_error, safe_repr

__all__ = ("Offset", "Pulled", "Splits")

logger = logging.getLogger(__name__)

Offset = dict[str, Any]

Splits = Mapping[str, list[Any]]
"""The elements of a micro-batch by the split that they are of; those of a source without splits by ""."""

SILENT_SECONDS: Final = 60.0
"""How long what was read once may take to come again."""


class Pulled:
    """
    The micro-batches of one source; all methods run on one event loop.

    Args:
        make: gives a new source.
        wait_seconds: how long a micro-batch waits for elements, and is filled.
    """

    def __init__(self, make: Callable[[], Source[Any]], wait_seconds: float) -> None:
        self._make = make
        self._wait = wait_seconds
        self._codec = JsonCodec()
        self._source: Source[Any] | None = None
        self._reading: asyncio.Task[SourceBatch[Any] | None] | None = None
        self._initial: Offset | None = None
        self._at: Offset | None = None  # where the source stands; None: not at the end of a micro-batch
        self._has_ended = False
        self._last: tuple[Offset, Offset, Splits] | None = None

    async def initial(self, starting: Offset | None = None) -> Offset:
        """
        Where a query begins that has no checkpoint; Spark asks more than once, and does not note it.

        Args:
            starting: there, if the query says so; else where the source does.
        """
        if self._initial is None and starting is not None:
            self._initial = starting
        if self._initial is None:
            source = await self._opened()
            self._initial = self._at = self._offset(source.position(), {})
        return self._initial

    async def latest(self, start: Offset, most: int | None, wait_seconds: float | None = None) -> Offset:
        """
        Read the micro-batch that begins at `start`.

        Args:
            most: it is full when it has so many elements; one read is not divided. None: when no more come.
            wait_seconds: how long to wait for the first element, if not as usual.

        Returns:
            Where it ends; `start` if nothing has come.

        Raises:
            SourceError: if the source cannot be read, or not from `start`, or does not tell where it stands.
        """
        if self._at != start:
            await self._go_to(start)
        self._at = None
        found: dict[str, list[Any]] = {}
        count, end, loop = 0, start, asyncio.get_running_loop()
        until = loop.time() + (self._wait if wait_seconds is None else wait_seconds)
        while not self._has_ended and (most is None or count < most):
            batch = await self._next(until - loop.time())
            if batch is None:
                break
            if not batch.values:
                continue
            if not count:
                until = min(until, loop.time() + self._wait)
            found.setdefault(batch.split or "", []).extend(batch.values)
            count += len(batch.values)
            assert self._source is not None
            end = self._offset(self._source.position(), {name: len(each) for name, each in found.items()})
        if found and end["position"] == start["position"]:  # and Spark would see nothing new
            first = safe_repr(next(iter(found.values()))[0])
            raise SourceError(
                f"{self._name} has given elements, {first} first, and stands where it stood before: only "
                "what moves its position on can be read again"
            )
        if found and start == self._initial:
            end["from"] = start["position"]
        self._at = end
        if found:
            self._last = start, end, found
        return end

    async def values(self, start: Offset, end: Offset) -> Splits:
        """
        The elements of a micro-batch; they are read again if it is not the last one that was. Raises
        `SourceError` if they do not come again.
        """
        if self._last is not None and self._last[:2] == (start, end):
            return self._last[2]
        await self._go_to({"position": end["from"], "rows": {}} if "from" in end else start)
        self._at = None
        missing: Counter[str] = Counter(end["rows"])
        found: dict[str, list[Any]] = {name: [] for name in missing}
        held: set[str] = set()
        while missing.total():
            batch = await self._next(SILENT_SECONDS)
            if batch is None:
                why = "has ended" if self._has_ended else f"has given nothing for {SILENT_SECONDS:.0f} s"
                raise SourceError(
                    f"{self._name} {why}, and {missing.total()} elements of a micro-batch that Spark runs "
                    "again have not come: it is not what was read then"
                )
            name = batch.split or ""
            taken = batch.values[: missing[name]]
            found.setdefault(name, []).extend(taken)
            missing[name] -= len(taken)
            if len(taken) < len(batch.values) and batch.split is not None and self._source is not None:
                held.add(batch.split)
                self._source.hold(held)
        return {name: each for name, each in found.items() if each}

    async def more(self) -> Sequence[Any] | None:
        """What comes next, however long that takes; None: the source is at its end."""
        batch = await self._next(None)
        return None if batch is None else batch.values

    async def done(self, end: Offset) -> None:
        """All before `end` is done for good. If the source fails over that, the next call says it again."""
        source = self._source
        if source is None or end["position"] is None:
            return
        position = self._codec.decode(end["position"].encode())
        try:
            if source.acknowledges():
                await source.acknowledge(position)
            await source.forget(position)
        except Exception as error:
            logger.warning("%s was not told what is done: %s", self._name, describe_error(error))

    async def close(self) -> None:
        """Let go of the source; raises `TimeoutError` if it does not close."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.add_done_callback(heed)
            await end_tasks({reading})
        source, self._source = self._source, None
        if source is not None:
            await within(CANCEL_PATIENCE, source.close())

    # ------------------------------------------------------------------ inside

    async def _opened(self) -> Source[Any]:
        await self.close()
        source = self._make()
        self._has_ended = False
        self._source = source  # to be closed, also if it does not open
        await source.open()
        return source

    async def _go_to(self, offset: Offset) -> None:
        source = await self._opened()
        if offset["position"] is not None:
            position = self._codec.decode(offset["position"].encode())
            await source.can_seek(position)
            await source.seek(position)
        self._at = offset

    async def _next(self, seconds: float | None) -> SourceBatch[Any] | None:
        """What the source gives next; None if it gives nothing in this time, or has ended."""
        assert self._source is not None
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._source.read())
        await asyncio.wait({self._reading}, timeout=seconds and max(seconds, 0.0))
        if not self._reading.done():
            return None  # what it waits for is for the next micro-batch
        reading, self._reading = self._reading, None
        batch = reading.result()
        self._has_ended = batch is None
        if batch is None:
            return None
        if (fault := fault_of(batch, self._source.rejects)) is not None:
            raise SourceError(f"{self._name}: {fault}")
        if batch.rejected:
            raise SourceError(
                f"{self._name} has rejected what is no element, and a DataFrame has no output for that: "
                "leave on_malformed='reject' out"
            )
        return batch

    @property
    def _name(self) -> str:
        return type(self._source).__name__

    def _offset(self, position: Any, rows: Mapping[str, int]) -> Offset:
        try:
            said = None if position is None else self._codec.encode(position).decode()
        except CodecError as error:
            raise SourceError(
                f"{self._name} stands at {safe_repr(position, 200)}, which no offset of Spark's can hold: "
                f"position(){error.path} is to be made of plain values, dataclasses or NamedTuples"
            ) from error
        return {"position": said, "rows": dict(rows)}
