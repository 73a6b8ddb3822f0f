"""
A source inside the user's own program: elements handed in one by one. What takes results out is in `outlets`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from asyncstream.codec.depth import check_depth
from asyncstream.connectors.base import Source, SourceBatch
from asyncstream.connectors.inbox import Inbox
from asyncstream.connectors.json_values import LEVELS
from asyncstream.errors import CodecError, JobStopped, PipelineError, SourceError, safe_repr
from asyncstream.operators.journey import Journey
from asyncstream.validation import count, flag, refuse, text

__all__ = ("Submissions",)

T = TypeVar("T")

_LONGEST_ID = 200
"""Characters of an element's id: ids are kept for days."""


class Submissions(Source[T], Generic[T]):
    """
    A source whose elements come from `job.submit`.

    Args:
        limit: how many elements may wait to be read; then `submit` waits.

    Attributes:
        inbox: where accepted elements are kept; None: in memory only.
        begin_journey: asked for each element, in the context of who submits it, whether to follow it.
    """

    inbox: Inbox | None = None
    begin_journey: Callable[[], Journey | None] | None = None

    def __init__(self, limit: int = 1024) -> None:
        self._limit = count("limit", limit)
        self._waiting: deque[T] = deque()
        self._journeys: dict[int, Journey] = {}  # by the place in `_waiting`
        self._ended = True  # until a job opens it
        self._queue: deque[asyncio.Future[None]] = deque()  # who waits for room: first come, first served
        self._admitted = 0  # of these, who was told that there is room, and has not used it yet

    async def open(self) -> None:
        self._waiting.clear()
        self._journeys = {}
        self._ended = False
        self._arrived = asyncio.Event()
        self._queue.clear()
        self._admitted = 0

    async def submit(
        self,
        value: T,
        *,
        id: str | None = None,
        seconds: float | None = None,
        claim: Callable[[], bool] | None = None,
    ) -> bool:
        """
        Add one element; waits while there is no room.

        Args:
            value: the element.
            id: what tells it from others; only with an inbox.
            seconds: how long to wait for room; None: as long as it takes.
            claim: asked when there is room, whether it is still to be added.

        Returns:
            Whether it was added: one of this id may have been before, and it may be claimed no more.

        Raises:
            JobStopped: if no more is taken.
            TimeoutError: if there was no room in time.
        """
        if self._ended or self._queue or not self._has_room():
            await self._wait_for_room(seconds)
        if claim is not None and not claim():
            self._admit()
            return False
        self._add(value, self._followed())
        self._arrived.set()
        return True

    def _followed(self) -> Journey | None:
        return None if self.begin_journey is None else self.begin_journey()

    def _add(self, value: T, journey: Journey | None) -> None:
        if journey is not None:
            self._journeys[len(self._waiting)] = journey
        self._waiting.append(value)

    def check(self, value: object, durable: object, id: object) -> None:
        """
        See whether this source takes what is asked for.

        Args:
            value: the element.
            durable: whether the element is to be kept on the disk; None: as the source does.
            id: of the element; None: it has none.

        Raises:
            PipelineError: if it does not.
            CodecError: if the element is nested so deep that no checkpoint could hold it, and there are some.
        """
        if self.writer is not None:
            try:
                check_depth(value, LEVELS)
            except TypeError as error:
                raise CodecError(f"cannot keep what is submitted: {error}") from None
        if id is not None and len(text("id", id)) > _LONGEST_ID:
            raise refuse("id", f"a text of at most {_LONGEST_ID} characters", id)
        if durable is not None:
            flag("durable", durable)
        if self.inbox is None and (durable or id is not None):
            raise PipelineError(
                f"{'durable=True' if durable else 'id='} needs an inbox to keep elements in: "
                "pipeline.submissions(inbox='inbox.sqlite', name=...)"
            )
        if self.inbox is not None and durable is False:
            raise PipelineError(
                "durable=False: this source has an inbox, which keeps all that is submitted to it; take "
                "another pipeline.submissions() for what may be lost"
            )

    def _has_room(self) -> bool:
        return self.unread() + self._admitted < self._limit

    async def _wait_for_room(self, seconds: float | None) -> None:
        """Returns when it is one's turn, and there is room; raises as `submit`."""
        if not self._ended:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            try:
                async with asyncio.timeout(seconds):
                    await turn
            except BaseException:
                if turn in self._queue:
                    self._queue.remove(turn)
                elif not turn.cancelled():  # it was one's turn, too late
                    self._admitted -= 1
                    self._admit()
                raise
            self._admitted -= 1
        if self._ended:
            raise JobStopped("the job takes no more elements")

    def _admit(self) -> None:
        """Tell those who wait, in order, as far as there is room; or that nothing more is taken."""
        while self._queue and (self._ended or self._has_room()):
            turn = self._queue.popleft()
            if not turn.done():  # cancelled in this pass of the loop
                turn.set_result(None)
                self._admitted += 1

    def unread(self) -> int:
        return len(self._waiting)

    def end(self) -> bool:
        if not self._ended:
            self._ended = True
            self._arrived.set()
            self._admit()
        return True

    async def read(self) -> SourceBatch[T] | None:
        while not self._waiting:
            if self._is_through():
                return None
            self._arrived.clear()
            await self._arrived.wait()
        values, journeys = list(self._waiting), self._journeys
        self._waiting.clear()
        self._journeys = {}
        self._admit()
        return SourceBatch(values, journeys=journeys)

    def _is_through(self) -> bool:
        """Whether nothing more can come."""
        return self._ended

    def position(self) -> Any:
        return list(self._waiting)

    async def can_seek(self, position: Any) -> None:
        if type(position) is not list:
            raise SourceError(f"expected a list of the elements that wait, got {safe_repr(position)}")

    async def seek(self, position: Any) -> None:
        self._waiting.extend(position)
        self._arrived.set()

    def is_replayable(self) -> bool:
        return False  # what waits here is kept, but not what has been read

    def is_reopenable(self) -> bool:
        return False  # who submits knows one job only

    async def close(self) -> None:
        self.end()
