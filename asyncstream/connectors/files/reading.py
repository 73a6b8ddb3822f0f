"""
What sources of files have in common: from a disk they read in the event loop, from elsewhere in a thread.

A batch from a local disk takes less time than handing it to a thread and back, and a read that cannot
interrupt need not be undone when it is cancelled. What comes over a network is read in one thread. A read
that is cancelled leaves the thread what it does; the next one takes what has come of it, and until then the
position is the one before.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

from asyncstream.aside import aside, heed
from asyncstream.connectors.base import Source, SourceBatch
from asyncstream.connectors.files.storage import Work, storage_of
from asyncstream.connectors.lines import AnyPath
from asyncstream.errors import SourceError, told_as
from asyncstream.validation import file_path

__all__ = ("FileSource",)

T = TypeVar("T")
U = TypeVar("U")


class FileSource(Source[T]):
    """
    A source of one file, or of a folder's, on a disk or in an object store: "s3://bucket/name". Raises
    `MissingExtra` if that needs fsspec, and it is not installed.
    """

    _errors: tuple[type[Exception], ...] = ()
    """Of the format, besides those of the storage."""

    def __init__(self, path: AnyPath) -> None:
        self._path = file_path("path", path)
        self._storage = storage_of(self._path)
        self._errors = (*self._errors, *self._storage.errors)
        self._work = Work(self._storage)
        self._reading: asyncio.Future[tuple[SourceBatch[T] | None, Any]] | None = None
        self._behind: Any = None  # the position behind what the thread has read and `read` has given

    @property
    def place(self) -> str:
        """What it reads, behind all links."""
        return self._storage.behind_links(self._path)

    def _naming(self, path: str = "") -> AbstractContextManager[None]:
        """What fails in this block comes out naming a file, or else all that is read."""
        return told_as(SourceError, f"read {path or self._path}", *self._errors)

    async def _do(self, work: Callable[[], U]) -> U:
        with self._naming():
            return await self._work.do(work)

    async def open(self) -> None:
        self._reading = None
        try:
            await self._do(self._open)
            if self._storage.is_remote:
                self._behind = await self._do(self._place)
        except BaseException:
            await self.close()
            raise

    async def read(self) -> SourceBatch[T] | None:
        if not self._storage.is_remote:
            while True:
                await asyncio.sleep(0)  # others get their turn, however long the file is
                batch = await self._do(self._read)
                if _is_worth_it(batch):
                    return batch
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._do(lambda: (self._some(), self._place())))
            self._reading.add_done_callback(heed)
        reading = self._reading
        await asyncio.wait({reading})
        self._reading = None
        batch, self._behind = reading.result()
        return batch

    def _some(self) -> SourceBatch[T] | None:
        while not _is_worth_it(batch := self._read()):
            pass
        return batch

    def position(self) -> Any:
        if self._storage.is_remote:
            return self._behind
        with self._naming():
            return self._place()

    async def can_seek(self, position: Any) -> None:
        check = partial(self._check, position)
        with self._naming():
            # not in the source's own thread: it may never be opened, nor closed
            await (aside(check) if self._storage.is_remote else self._work.do(check))

    async def seek(self, position: Any) -> None:
        await self._do(partial(self._go_on, position))
        while True:
            await asyncio.sleep(0)  # others get their turn, however far it is
            if not await self._do(self._is_on_its_way):
                break
        self._behind = position

    async def close(self) -> None:
        self._reading = None
        try:
            await self._work.do(self._close)
        finally:
            self._work.end()

    # ------------------------------------------------------------------ what each does, in a thread or not

    @abstractmethod
    def _open(self) -> None:
        """Open it at its beginning."""

    @abstractmethod
    def _read(self) -> SourceBatch[T] | None:
        """The next batch, without anything in it if it has read much and found nothing; None at the end."""

    @abstractmethod
    def _place(self) -> Any:
        """The position behind the last batch; None if it is not open."""

    @abstractmethod
    def _check(self, position: Any) -> None:
        """Raises `SourceError` if it cannot go on from there; it may not be open yet."""

    @abstractmethod
    def _go_on(self, position: Any) -> None:
        """Go on from there, or be on the way."""

    def _is_on_its_way(self) -> bool:
        """Go a part of a long way to where it is to go on; False: it is there."""
        return False

    @abstractmethod
    def _close(self) -> None:
        """Close what is open."""


def _is_worth_it(batch: SourceBatch[Any] | None) -> bool:
    """Whether a batch is to be given: there is something in it, or it says that this is the end."""
    return batch is None or bool(batch.values or batch.rejected)
