"""
Waits for the disk in a thread that nobody waits for.

A write to a dead network disk may never come back. A thread of asyncio's own pool that hangs in one keeps the
process from ending; a daemon thread does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

__all__ = ("DiskThread", "aside")

T = TypeVar("T")


async def aside(work: Callable[[], T]) -> T:
    """Do `work` in a thread. It goes on to its end there if the caller is cancelled."""
    done, run = _handed_over(work)
    Thread(target=run, name="asyncstream disk", daemon=True).start()
    return await done


class DiskThread:
    """A thread of one's own that does one piece of work after the other; begun with the first."""

    def __init__(self) -> None:
        self._works: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: Thread | None = None

    def do(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do `work` after all that was asked for before; goes on to its end if the future is cancelled."""
        done, run = _handed_over(work)
        self._works.put(run)
        if self._thread is None:
            self._thread = Thread(target=self._run, name="asyncstream disk", daemon=True)
            self._thread.start()
        return done

    def end(self) -> None:
        """Let the thread end when it has done what was asked for; nobody waits for it."""
        self._works.put(None)

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            work()


def _handed_over(work: Callable[[], T]) -> tuple[asyncio.Future[T], Callable[[], None]]:
    """A future of the running loop, and what a thread is to call to have `work` done for it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(how: Callable[[Any], None], what: Any) -> None:
        if not done.done():
            how(what)

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            outcome: tuple[Callable[[Any], None], Any] = (done.set_exception, error)
        else:
            outcome = (done.set_result, result)
        try:
            loop.call_soon_threadsafe(tell, *outcome)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass

    return done, run
