"""
The pipeline's ends inside the user's own program: elements handed in one by one, results taken out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from asyncstream.arguments import count, refuse, text
from asyncstream.connectors.base import Sink, Source, SourceBatch
from asyncstream.connectors.inbox import Inbox
from asyncstream.elements import Timestamps
from asyncstream.errors import JobStopped, PipelineError

__all__ = ("Results", "ResultsHandle", "Submissions")

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
    """

    inbox: Inbox | None = None

    def __init__(self, limit: int = 1024) -> None:
        self._limit = count("limit", limit)
        self._waiting: deque[T] = deque()
        self._ended = True  # until a job opens it
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        self._waiting.clear()
        self._ended = False
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._turn = asyncio.Lock()  # first come, first served: waking all who wait would favour the quick

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
        async with asyncio.timeout(seconds), self._turn:
            if not await self._may_add(claim):
                return False
            self._waiting.append(value)
            self._arrived.set()
        return True

    def check(self, durable: object, id: object) -> None:
        """
        See whether this source takes what is asked for.

        Args:
            durable: whether the element is to be kept on the disk; None: as the source does.
            id: of the element; None: it has none.

        Raises:
            PipelineError: if it does not.
        """
        if id is not None and len(text("id", id)) > _LONGEST_ID:
            raise refuse("id", f"a text of at most {_LONGEST_ID} characters", id)
        if durable is not None and not isinstance(durable, bool):
            raise refuse("durable", "True or False", durable)
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

    async def _may_add(self, claim: Callable[[], bool] | None) -> bool:
        """Wait for room; whether the element is still to be added then."""
        while not self._ended and self.unread() >= self._limit:
            self._room.clear()
            await self._room.wait()
        if self._ended:
            raise JobStopped("the job takes no more elements")
        return claim is None or claim()

    def unread(self) -> int:
        return len(self._waiting)

    def has_room(self) -> bool:
        """Whether `submit` would not wait for room."""
        return self.unread() < self._limit and not self._turn.locked()

    def end(self) -> bool:
        if not self._ended:
            self._ended = True
            self._arrived.set()
            self._room.set()
        return True

    async def read(self) -> SourceBatch[T] | None:
        while not self._waiting:
            if self._is_through():
                return None
            self._arrived.clear()
            await self._arrived.wait()
        values = list(self._waiting)
        self._waiting.clear()
        self._room.set()
        return SourceBatch(values)

    def _is_through(self) -> bool:
        """Whether nothing more can come."""
        return self._ended

    def position(self) -> Any:
        return list(self._waiting)

    async def seek(self, position: Any) -> None:
        self._waiting.extend(position)
        self._arrived.set()

    def is_replayable(self) -> bool:
        return False  # what waits here is kept, but not what has been read

    def is_reopenable(self) -> bool:
        return False  # who submits knows one job only

    async def close(self) -> None:
        self.end()


class Results(Sink[T], Generic[T]):
    """
    A sink whose elements are taken out by `job.results`.

    Args:
        limit: how many results may wait to be taken; then the pipeline waits. No longer holds once the
            job drains or has failed, for then what can still come is bounded, and a reader may be gone.
    """

    def __init__(self, limit: int = 1024) -> None:
        self._limit = count("limit", limit)
        self._results: deque[T] = deque()
        self._ended = True

    async def open(self) -> None:
        self._results.clear()
        self._ended = False
        self._bounded = True
        self._error: BaseException | None = None
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._taken = 0

    def taken(self) -> int:
        return self._taken

    async def write(self, values: Sequence[T], timestamps: Timestamps) -> None:
        self._results.extend(values)
        self._taken = len(values)  # whatever it waits for from now on
        self._arrived.set()
        while self._bounded and len(self._results) >= self._limit:
            self._room.clear()
            await self._room.wait()

    async def stream(self) -> AsyncIterator[T]:
        """The results as they come, until the job ends; then its error is raised if it failed."""
        while True:
            while not self._results:
                if self._ended:
                    if self._error is not None:
                        raise self._error
                    return
                self._arrived.clear()
                await self._arrived.wait()
            result = self._results.popleft()
            self._room.set()
            yield result

    def untaken(self) -> list[T]:
        """The results that nobody has taken yet."""
        return list(self._results)

    def unbind(self, error: BaseException | None = None) -> None:
        """The job drains, or has failed with `error`."""
        self._bounded = False
        self._error = error
        self._room.set()

    async def flush(self) -> None:
        self._end()

    async def close(self) -> None:
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._arrived.set()


@dataclass(frozen=True, eq=False)
class ResultsHandle(Generic[T]):
    """
    Where a stream of T ends in `job.results(handle)`, which gives them with their type.

    Attributes:
        name: of the step.
        sink: where they wait to be taken.
    """

    name: str
    sink: Results[T]
