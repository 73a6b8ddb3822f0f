"""
Where a stream ends in the user's own program: results shared out, published to all, or given as answers.
"""

from __future__ import annotations

import asyncio
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from asyncstream.connectors.base import CountingSink
from asyncstream.elements import Timestamps
from asyncstream.errors import JobStopped, UserFunctionError
from asyncstream.operators.functions import FailedCall
from asyncstream.validation import choice, count, function

__all__ = (
    "Answers",
    "Outlet",
    "Publication",
    "Published",
    "Results",
    "ResultsHandle",
    "Slow",
    "Subscription",
)

T = TypeVar("T")


class Outlet(CountingSink[T], Generic[T]):
    """A sink whose elements the program that runs the job takes out itself; kept in memory only."""

    def __init__(self) -> None:
        self._ended = True  # until a job opens it
        self._bounded = True
        self._error: BaseException | None = None

    async def open(self) -> None:
        self._ended = False
        self._bounded = True
        self._error = None
        self._taken = 0
        self._room = asyncio.Event()

    def unbind(self, error: BaseException | None = None) -> None:
        """
        The job drains, or has failed with `error`.

        What can still come is bounded, and the consumer may be gone: `write` waits for room no more.
        """
        self._bounded = False
        self._error = error
        self._room.set()

    async def flush(self) -> None:
        self._end()

    async def close(self) -> None:
        self._end()

    def _end(self) -> None:
        """No more elements come."""
        if not self._ended:
            self._ended = True
            self._tell_end()

    @abstractmethod
    def _tell_end(self) -> None:
        """Tell those who wait that no more elements come."""


# ---------------------------------------------------------------------- results: each goes to one


class Results(Outlet[T]):
    """
    A sink whose elements are taken out by `job.results`.

    Args:
        limit: how many results may wait to be taken; then the pipeline waits. No longer holds once the
            job drains or has failed, for then what can still come is bounded, and a reader may be gone.
    """

    def __init__(self, limit: int = 1024) -> None:
        super().__init__()
        self._limit = count("limit", limit)
        self._results: deque[T] = deque()

    async def open(self) -> None:
        await super().open()
        self._results.clear()
        self._arrived = asyncio.Event()

    async def write(self, values: Sequence[T], timestamps: Timestamps) -> None:
        self._results.extend(values)
        self._taken = len(values)  # whatever it waits for from now on
        self._arrived.set()
        while self._bounded and len(self._results) >= self._limit:
            self._room.clear()
            await self._room.wait()

    def stream(self) -> AsyncIterator[T]:
        """The results as they come, until the job ends; then its error is raised if it failed."""
        return _Taking(self)

    async def take(self, taking: _Taking[T]) -> T:
        """The next result; raises the job's error, once, or `StopAsyncIteration` if none is to come."""
        while not taking.has_ended:
            if self._results:
                self._room.set()
                return self._results.popleft()
            if not self._ended:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            taking.has_ended = True
            if self._error is not None:
                raise self._error
        raise StopAsyncIteration

    def untaken(self) -> list[T]:
        """The results that have not been taken yet."""
        return list(self._results)

    def _tell_end(self) -> None:
        self._arrived.set()


class _Taking(AsyncIterator[T]):
    """
    Takes results out. No generator: who is cancelled while it waits for one, by a timeout say, may ask again.
    """

    def __init__(self, results: Results[T]) -> None:
        self._results = results
        self.has_ended = False

    def __anext__(self) -> Awaitable[T]:
        return self._results.take(self)

    async def aclose(self) -> None:
        """Take no more, as of a generator: for `contextlib.aclosing`."""
        self.has_ended = True


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


# ---------------------------------------------------------------------- published: each goes to all


Slow: TypeAlias = Literal["drop", "hold"]
"""What becomes of a subscriber that is too slow: it misses elements, or the pipeline waits for it."""


class Publication(Outlet[T]):
    """
    A sink whose elements all subscribers get that are there at that moment, each at its own pace.

    It knows its subscribers by weak references: one that is not iterated over any more is none, and holds
    nothing up.
    """

    def __init__(self) -> None:
        super().__init__()
        self._subscriptions: weakref.WeakSet[Subscription[T]] = weakref.WeakSet()

    async def open(self) -> None:
        await super().open()
        self._subscriptions.clear()

    def subscribe(
        self, filter: Callable[[T], object] | None = None, buffer: int = 100, slow: Slow = "drop"
    ) -> Subscription[T]:
        """A new subscriber, who gets what comes from now on."""
        subscription = Subscription(filter, buffer, slow, self._room)
        if self._ended:
            subscription.end(self._error)
        else:
            self._subscriptions.add(subscription)
        return subscription

    async def write(self, values: Sequence[T], timestamps: Timestamps) -> None:
        self._taken = 0
        for value in values:
            while self._bounded and any(subscription.is_full() for subscription in self._subscriptions):
                self._room.clear()
                await self._room.wait()
            self._offer(value)
            self._taken += 1

    def _offer(self, value: T) -> None:
        # by itself: the variable of a loop in `write` would keep the last subscriber while that waits
        for subscription in tuple(self._subscriptions):  # a filter may subscribe
            subscription.offer(value)

    def _tell_end(self) -> None:
        for subscription in self._subscriptions:
            subscription.end(self._error)


class Subscription(Generic[T]):
    """
    What `job.subscribe` gives: the elements as they come, for `async for`.

    Ends when the job does, with its error if it has failed. It is over as well when it is left: by `close`,
    at the end of `async with`, or when the last reference to it is gone.

    Attributes:
        missed: how many elements this subscriber has missed, because it was too slow.
    """

    def __init__(
        self, filter: Callable[[T], object] | None, buffer: int, slow: Slow, room: asyncio.Event
    ) -> None:
        """
        Args:
            filter: says of an element whether it is wanted; None: all are.
            buffer: how many elements may wait to be taken.
            slow: what happens when one more comes.
            room: set when one is taken.
        """
        self.missed = 0
        self._filter = None if filter is None else function("filter", filter, "element")
        self._buffer = count("buffer", buffer)
        self._holds = choice("slow", slow, ("drop", "hold")) == "hold"
        self._items: deque[T] = deque()
        self._arrived = asyncio.Event()
        self._ended = False
        self._error: BaseException | None = None
        self._room = room
        weakref.finalize(self, _tell, asyncio.get_running_loop(), room).atexit = False

    def is_full(self) -> bool:
        """Whether the pipeline is to wait for this subscriber."""
        return self._holds and not self._ended and len(self._items) >= self._buffer

    def offer(self, value: T) -> None:
        """Give it an element, if it wants it; an older one is missed if there is no room."""
        if self._ended:
            return
        try:
            if self._filter is not None and not self._filter(value):
                return
        except Exception as error:  # the subscriber's own, and only the subscriber is told
            self.end(error)
            return
        if len(self._items) >= self._buffer and not self._holds:
            self._items.popleft()
            self.missed += 1
        self._items.append(value)
        self._arrived.set()

    def end(self, error: BaseException | None = None) -> None:
        """No more elements come; what has come can still be taken."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._arrived.set()
            self._room.set()

    def close(self) -> None:
        """Leave: take nothing more, and hold nothing up."""
        self._items.clear()
        self.end()

    def __aiter__(self) -> Subscription[T]:
        return self

    async def __anext__(self) -> T:
        while not self._items:
            if self._ended:
                error, self._error = self._error, None
                if error is not None:
                    raise error
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        item = self._items.popleft()
        self._room.set()
        return item

    async def __aenter__(self) -> Subscription[T]:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()


def _tell(loop: asyncio.AbstractEventLoop, room: asyncio.Event) -> None:
    """A subscriber is gone: there may be room now. Called in any thread, by the garbage collector."""
    try:
        loop.call_soon_threadsafe(room.set)
    except RuntimeError:  # the loop is closed, with all that waited in it
        pass


@dataclass(frozen=True, eq=False)
class Published(Generic[T]):
    """
    Where a stream of T ends in `job.subscribe(handle)`, which gives the elements with their type.

    Attributes:
        name: of the step.
        sink: what gives them to its subscribers.
    """

    name: str
    sink: Publication[T]


# ---------------------------------------------------------------------- answers: each goes to who asked


class Answers(Outlet[Any]):
    """
    A sink whose elements answer what was asked by `job.ask`.

    An element answers all who wait for its key at that moment. An element without a waiting caller is let go.

    Args:
        by: gives the key of an answer; of a `FailedCall`, of the element that failed.
        asked_by: gives the key of what was asked.
    """

    def __init__(self, by: Callable[[Any], Any], asked_by: Callable[[Any], Any]) -> None:
        super().__init__()
        self._by = by
        self._asked_by = asked_by
        self._waiting: dict[Any, list[asyncio.Future[Any]]] = {}

    async def open(self) -> None:
        await super().open()
        self._waiting.clear()

    def key_of(self, question: Any) -> Any:
        """What tells the answer to this element from others; raises whatever the user's function does."""
        key = self._asked_by(question)
        hash(key)
        return key

    def expect(self, key: Any, answer: asyncio.Future[Any]) -> None:
        """Give the next element of this key to `answer`, unless that is done by then."""
        if self._ended and not answer.done():
            answer.set_exception(self._over())
        self._waiting.setdefault(key, []).append(answer)

    def give_up(self, key: Any, answer: asyncio.Future[Any]) -> None:
        """Forget this answer: its caller is gone, or it has come."""
        waiting = self._waiting.get(key, [])
        if answer in waiting:
            waiting.remove(answer)
        if not waiting:
            self._waiting.pop(key, None)

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self._taken = 0
        for value in values:
            try:
                key = self._by(value.value if isinstance(value, FailedCall) else value)
                waiting = self._waiting.pop(key, ())
            except Exception as error:
                raise UserFunctionError("answers", value, error) from error
            for answer in waiting:
                if not answer.done():
                    answer.set_result(value)
            self._taken += 1

    def unbind(self, error: BaseException | None = None) -> None:
        super().unbind(error)
        if error is not None:
            self._tell_end()

    def _tell_end(self) -> None:
        for waiting in self._waiting.values():
            for answer in waiting:
                if not answer.done():
                    answer.set_exception(self._over())
        self._waiting.clear()

    def _over(self) -> JobStopped:
        stopped = JobStopped("the job has ended, and nothing more is answered")
        stopped.__cause__ = self._error
        return stopped
