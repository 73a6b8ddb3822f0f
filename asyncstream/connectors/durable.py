"""
Submissions that are kept in an inbox: accepted once they are on the disk, by group commit.

Theory of operation
-------------------
`submit` puts an element among the *pending* ones. While one group is being committed, by a thread, the next
one gathers; it is committed as soon as the thread is free. So one element alone waits for one `fsync`, and
under load each `fsync` is shared by all who came during the one before: the busier, the cheaper. Where the
disk is quick, time is left between the beginnings of two: two milliseconds for each element of the group, up
to eight, so that one element alone hardly waits, and many share what a commit costs.

::

    pending ──group──> being committed ──safe──> waiting ──read──> the pipeline

What waits is in memory as well as on the disk, and bounded by `limit`; only what an earlier process left
behind is read from the disk. A group is as large as it has become, and elements are numbered in its order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from asyncstream.aside import DiskThread, aside, heed
from asyncstream.connectors.base import SourceBatch
from asyncstream.connectors.inbox import Inbox, InboxBroken, InboxFile, Submitted, check_inbox
from asyncstream.connectors.submissions import Submissions
from asyncstream.errors import CodecError, JobStopped, SourceError, describe_error
from asyncstream.operators.journey import Journey

__all__ = ("DurableSubmissions",)

T = TypeVar("T")

_READ = 1000
"""Elements that are read from the disk in one go."""

_GAP = 0.002
"""Seconds from one commit to the next, at least, for each of its elements: a commit costs 0.2 ms of CPU."""

_GAPS = 4
"""Elements of a group for which that is left, at most."""

_GROUP = 1000
"""Elements that are committed in one go, at most: ten milliseconds, whatever the limit is."""


@dataclass(eq=False, slots=True)
class _Pending:
    """An element that is not accepted yet, and where to say whether it is new."""

    value: Any
    submitted: Submitted
    is_new: asyncio.Future[bool]
    journey: Journey | None


class DurableSubmissions(Submissions[T]):
    """
    A source whose elements come from `job.submit`, and are kept in an inbox until a checkpoint covers them.
    """

    inbox: Inbox

    def __init__(self, inbox: Inbox, limit: int = 1024) -> None:
        super().__init__(limit)
        self.inbox = inbox
        self._file: InboxFile | None = None
        self._pending: list[_Pending] = []
        self._committing = 0  # how many are
        self._next = 0.0  # when the next group may be committed, by the loop's time
        self._is_due = False  # whether a timer is set for that
        self._behind = 0  # number of the last element that is on the disk only
        self._last = 0  # number of the last element that waits or was read
        self._read = 0  # number of the last element that was read
        self._identity = ""
        self._failure: SourceError | None = None

    async def open(self) -> None:
        await super().open()
        self._thread = DiskThread()
        self._failure = None
        self._pending, self._committing = [], 0
        self._next, self._is_due = 0.0, False
        try:
            self._file = await self._thread.make(lambda: InboxFile(self.inbox, self.writer), InboxFile.close)
        except BaseException:
            self._thread.end()
            raise
        self._identity, self._read = self._file.state.identity, self._file.state.forgotten
        self._behind = self._last = self._file.state.newest

    # ------------------------------------------------------------------ submitting

    async def submit(
        self,
        value: T,
        *,
        id: str | None = None,
        seconds: float | None = None,
        claim: Callable[[], bool] | None = None,
    ) -> bool:
        """
        Keep one element, and add it; waits while there is no room, and until it is safe.

        If the caller is cancelled before its group is being committed, the element is not accepted; from then
        on, it is.

        Args:
            value, id, seconds, claim: as for `Submissions`; the time is for the room, not for the disk.

        Raises:
            JobStopped: if no more is taken.
            TimeoutError: if there was no room in time.
            CodecError: if it cannot be kept.
            SourceError: if the inbox fails; of an `InboxBroken` it is uncertain whether it was accepted.
        """
        submitted = self.inbox.submitted(value, id)
        if self._ended or self._queue or not self._has_room():
            await self._wait_for_room(seconds)
        if self._failure is not None:
            raise _again(self._failure)
        if claim is not None and not claim():
            self._admit()
            return False
        is_new = asyncio.get_running_loop().create_future()
        pending = _Pending(value, submitted, is_new, self._followed())
        self._pending.append(pending)
        self._commit()
        try:
            return await pending.is_new
        except asyncio.CancelledError:
            if pending in self._pending:
                self._pending.remove(pending)
                self._admit()
            raise

    def _commit(self) -> None:
        """Begin to commit what is pending, unless a group is being committed: then that is the next one."""
        if self._committing or not self._pending or self._file is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._next and len(self._pending) < _GROUP:
            if not self._is_due:
                self._is_due = True
                loop.call_at(self._next, self._due)
            return
        group, self._pending = self._pending[:_GROUP], self._pending[_GROUP:]
        self._next = loop.time() + _GAP * min(len(group), _GAPS)
        self._committing = len(group)
        accept = partial(self._file.accept, [pending.submitted for pending in group])
        self._thread.do(accept).add_done_callback(partial(self._committed, group))

    def _due(self) -> None:
        self._is_due = False
        self._commit()

    def _committed(self, group: list[_Pending], done: asyncio.Future[list[bool]]) -> None:
        self._committing = 0
        failure = done.exception()
        if failure is None:
            for pending, is_new in zip(group, done.result(), strict=True):
                if is_new:
                    self._last += 1
                    self._add(pending.value, pending.journey)
                if not pending.is_new.done():
                    pending.is_new.set_result(is_new)
        else:
            told = failure if isinstance(failure, SourceError) else _unforeseen(failure)
            if isinstance(told, InboxBroken):
                self._failure = told
                group, self._pending = group + self._pending, []
            for pending in group:
                if not pending.is_new.done():
                    pending.is_new.set_exception(_again(told))
        self._arrived.set()
        self._admit()
        self._commit()

    def unread(self) -> int:
        on_disk = max(self._behind - self._read, 0)
        return on_disk + len(self._waiting) + len(self._pending) + self._committing

    # ------------------------------------------------------------------ reading

    async def read(self) -> SourceBatch[T] | None:
        if self._read < self._behind:
            rows = partial(self._opened().rows, self._read, self._behind, _READ)
            try:
                found = await self._thread.do(rows)
            except CodecError as error:
                raise SourceError(
                    f"the inbox {self.inbox.path} holds an element that cannot be read: {error}"
                ) from error
            self._read = found[-1][0]
            self._admit()
            return SourceBatch([value for _, value in found])
        batch = await super().read()
        if batch is not None:
            self._read = self._last
        return batch

    def _is_through(self) -> bool:
        if self._failure is not None:
            raise self._failure
        return self._ended and not self._pending and not self._committing

    def position(self) -> dict[str, Any]:
        return {"inbox": self._identity, "read": self._read}

    async def can_seek(self, position: dict[str, Any]) -> None:
        await aside(partial(check_inbox, self.inbox, position, self.writer))

    async def seek(self, position: dict[str, Any]) -> None:
        self._opened().state.check_position(position, self.inbox.path)
        self._read = position["read"]

    async def forget(self, position: dict[str, Any]) -> None:
        forget = partial(self._opened().forget, position["read"], self.writer)
        while await self._thread.do(forget):
            pass  # what is submitted meanwhile is committed between two parts

    def is_replayable(self) -> bool:
        return True

    async def close(self) -> None:
        await super().close()
        file = self._file
        if file is None:
            return
        try:
            while self._pending or self._committing:  # who waits for these is told first
                self._arrived.clear()
                await self._arrived.wait()
        finally:
            self._file = None
            closing = self._thread.do(file.close)
            closing.add_done_callback(heed)
            self._thread.end()
            for pending in self._pending:  # the disk takes longer than the job waits
                if not pending.is_new.done():
                    pending.is_new.set_exception(JobStopped("the job ended before its inbox had the element"))
            self._pending = []
        await closing

    def _opened(self) -> InboxFile:
        if self._file is None:
            raise SourceError(f"the inbox {self.inbox.path} is not open")
        return self._file


def _again(failure: SourceError) -> SourceError:
    """The same failure, for one more to be told of it."""
    told = type(failure)(str(failure))
    told.__cause__ = failure
    return told


def _unforeseen(failure: BaseException) -> SourceError:
    told = InboxBroken(f"the inbox failed: {describe_error(failure)}")
    told.__cause__ = failure
    return told
