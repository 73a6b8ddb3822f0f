"""
What goes on beside the event loop, and must not hold it: disk work in threads, a wait for an event that may
not come, tasks that somebody keeps.

A write to a dead network disk may never come back. A thread of asyncio's own pool that hangs in one keeps the
process from ending; a daemon thread does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, nullcontext, suppress
from functools import partial, wraps
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar
from weakref import ref

from anyio import CancelScope

__all__ = (
    "DiskThread",
    "Tasks",
    "aside",
    "can_go_on",
    "done_aside",
    "heed",
    "heed_the_end",
    "heeding",
    "in_a_thread",
    "in_its_loop",
    "is_at_work",
    "raisable",
    "running_loop",
    "to_its_end",
    "wait_at_most",
)

T = TypeVar("T")
P = ParamSpec("P")


async def aside(work: Callable[[], T]) -> T:
    """Do `work` in a thread. It goes on to its end there if the caller is cancelled."""
    done, run = _handed_over(work)
    Thread(target=run, name="asyncstream disk", daemon=True).start()
    return await done


def done_aside(work: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Have each call of a function, or a method, done as by `aside`."""

    @wraps(work)
    async def in_thread(*args: P.args, **kwargs: P.kwargs) -> T:
        return await aside(partial(work, *args, **kwargs))

    return in_thread


async def wait_at_most(event: asyncio.Event, seconds: float | None) -> None:
    """
    Wait until an event is set, or for so long.

    Args:
        event: what may come.
        seconds: how long; without any left, no longer than others take their turn. None: until it comes.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def to_its_end(
    future: asyncio.Future[Any], cancelled: Callable[[], object] | None = None
) -> asyncio.CancelledError | None:
    """
    Wait until a future is done, however often the caller is cancelled meanwhile.

    Args:
        future: of what is not to be left in the middle.
        cancelled: called each time that the caller is.

    Returns:
        What cancelled the caller last, to be raised now; None: nothing did.
    """
    last: asyncio.CancelledError | None = None
    while not future.done():
        try:
            # a scope of anyio's cancels who is in it in each pass of the loop, but for who is behind a shield
            with nullcontext() if last is None else CancelScope(shield=True):
                await asyncio.wait({future})
        except asyncio.CancelledError as error:
            last = error
            if cancelled is not None:
                cancelled()
    return last


@contextmanager
def in_a_thread() -> Iterator[None]:
    """
    What is awaited in this block is done by a thread that the loop knows nothing of: one whose time is
    virtual lets none pass meanwhile.
    """
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    loop.run_in_executor(_Elsewhere(ended), lambda: None)
    try:
        yield
    finally:
        if not loop.is_closed():  # else the waiting task is gone
            ended.set_result(None)


def heed(ended: asyncio.Future[Any]) -> None:
    """Mark what a future has ended with as seen: nobody waits for it any more, and that is no fault."""
    if not ended.cancelled():
        ended.exception()


def heed_the_end(future: asyncio.Future[Any]) -> None:
    """`heed`, now or when it ends: of one that has, the loop need not be asked to call anybody."""
    if future.done():
        heed(future)
    else:
        future.add_done_callback(heed)


def in_its_loop(future: asyncio.Future[Any]) -> bool:
    """Whether a future's loop runs here: else it has ended, and who waits for the future is collected."""
    return running_loop() is future.get_loop()


def can_go_on(loop: asyncio.AbstractEventLoop) -> Callable[[], bool]:
    """What tells whether an event loop can do something still, and does not keep it."""
    known = ref(loop)

    def ask() -> bool:
        found = known()
        return found is not None and not found.is_closed()

    return ask


def is_at_work(task: asyncio.Task[Any] | None) -> bool:
    """Whether a task runs now; else its coroutine is closed, as garbage, perhaps amid another task."""
    return task is not None and asyncio.current_task(task.get_loop()) is task


async def heeding(call: Awaitable[T]) -> T:
    """
    What a client gives. Raises `CancelledError` if the caller was cancelled meanwhile, whatever the client
    makes of that: `asyncio.wait_for` of Python 3.11, by which many bound a request, forgets it at times.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        found = await call
    except Exception as error:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError from error
        raise
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
    return found


def raisable(error: BaseException) -> BaseException:
    """An error as a future can hold it, which no `StopIteration` is: who waits would wait for ever."""
    if not isinstance(error, StopIteration):
        return error
    held = RuntimeError(repr(error))
    held.__cause__ = error
    return held


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Tasks(set[asyncio.Task[Any]]):
    """Those that run, with an owner that keeps them alive: the loop itself references tasks only weakly."""

    def start(self, coroutine: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Run `coroutine` as one of them, until it ends."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self.keep(task)
        return task

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Have one that runs be one of them, until it ends."""
        self.add(task)
        task.add_done_callback(self.discard)


class DiskThread:
    """
    A thread of one's own that does one piece of work after the other; begun with the first. When it has ended
    another one is begun with the next, which is not done before all that was asked for until then. It also
    ends with its owner, if that is gone without having ended it: its event loop was closed, say.
    """

    def __init__(self) -> None:
        self._works: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._before: Thread | None = None

    def __reduce__(self) -> Any:
        """A copy has a thread of its own, so that what is not in use yet can be copied and pickled."""
        return DiskThread, ()

    def __del__(self) -> None:
        if self._thread is not None:
            self._works.put(None)

    def do(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """
        Do `work` after all that was asked for before; goes on to its end if the future is cancelled.

        Raises `RuntimeError` if the system gives no thread; the next call asks for one again.
        """
        if self._thread is None:
            work_off = partial(_work_off, self._works, self._before)
            thread = Thread(target=work_off, name="asyncstream disk", daemon=True)
            thread.start()
            self._thread = thread
        done, run = _handed_over(work)
        self._works.put(run)
        return done

    async def make(self, make: Callable[[], T], unmake: Callable[[T], object]) -> T:
        """As `do`, for what is to be let go by `unmake`, here too, if the caller is cancelled meanwhile."""
        made: list[T] = []
        done = self.do(lambda: made.append(make()))
        try:
            await done
        except BaseException:
            if in_its_loop(done):
                self.do(lambda: [unmake(one) for one in made])
            raise
        return made[0]

    def end(self) -> None:
        """Let the thread end when its work is done; returns at once."""
        if self._thread is not None:
            self._works.put(None)
            self._before, self._thread, self._works = self._thread, None, SimpleQueue()


def _work_off(works: SimpleQueue[Callable[[], None] | None], before: Thread | None) -> None:
    """The thread of a `DiskThread`, behind the one before it."""
    if before is not None:
        before.join()
    while (work := works.get()) is not None:
        work()
        del work  # with what it gave, which would stay until there is something else to do


def _handed_over(work: Callable[[], T]) -> tuple[asyncio.Future[T], Callable[[], None]]:
    """A future of the running loop, and what a thread is to call to have `work` done for it."""
    loop = asyncio.get_running_loop()
    handed = _Handed(loop)
    # by the loop's own way to a thread, so that one whose time is virtual lets none pass meanwhile
    return loop.run_in_executor(handed, work), handed.run


class _Elsewhere(Executor):
    """Does nothing itself: what it is asked for is done when a future of the loop's is."""

    def __init__(self, ended: asyncio.Future[None]) -> None:
        self._ended = ended

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return self._ended  # which the loop takes as it is: a `Future` would come back by way of its socket


class _Handed(Executor):
    """Takes one piece of work, for a thread to come and do."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done: Future[Any] = Future()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._work = fn
        self._done.set_running_or_notify_cancel()  # a cancellation ends the wait, not the work
        return self._done

    def run(self) -> None:
        try:
            result = self._work()
        except BaseException as error:
            tell: Callable[[Any], None] = self._done.set_exception
            outcome: Any = raisable(error)
        else:
            tell, outcome = self._done.set_result, result
        if not self._loop.is_closed():  # else the waiting task is gone
            tell(outcome)
