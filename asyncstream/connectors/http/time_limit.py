"""
The longest that requests may take, the same for all of a lookup.

So they are due in the order in which they began: a queue and one timer of the event loop do for all of them,
for a fraction of what a timer for each costs the client. One that has ended stays in the queue, to be passed
over; when half of all are such, they go.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Final

__all__ = ("Bound", "TimeLimit")

_FEW: Final = 64
"""Requests that may stay there though they have ended, however few run."""

_CLOCK_SLACK: Final = 0.0005
"""Seconds by which one may be ended early: uvloop's clock ticks in milliseconds."""


class TimeLimit:
    """
    Ends what takes too long, as `asyncio.timeout` does; of the event loop that runs.

    Args:
        seconds: for each.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._begun: deque[Bound] = deque()
        self._most = _FEW
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> Bound:
        """Bounds one `with` block of the task that runs, from now on, which then raises `TimeoutError`."""
        bound = Bound(self._loop.time() + self._seconds)
        self._begun.append(bound)
        if len(self._begun) > self._most:
            self._begun = deque(one for one in self._begun if one.task is not None)
            self._most = 2 * len(self._begun) + _FEW
        if self._timer is None:
            self._timer = self._loop.call_at(bound.until, self._expire)
        return bound

    def close(self) -> None:
        """Nothing is ended any more."""
        self._begun.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time() + _CLOCK_SLACK
        while self._begun:
            bound = self._begun[0]
            if bound.task is not None:
                if bound.until > now:
                    self._timer = self._loop.call_at(bound.until, self._expire)
                    return
                bound.end()
            self._begun.popleft()


class Bound:
    """
    One block.

    Attributes:
        task: that is in it; None: it has been left.
        until: by the loop's time.
    """

    __slots__ = ("_before", "_is_late", "task", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        task = asyncio.current_task()
        assert task is not None, "requests are made in tasks"
        self.task: asyncio.Task[object] | None = task
        self._before = task.cancelling()
        self._is_late = False

    def end(self) -> None:
        """Its time is up."""
        if self.task is not None:
            self._is_late = True
            self.task.cancel()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self.task = self.task, None
        # who else has cancelled the task is to see it end
        is_ours = self._is_late and task is not None and task.uncancel() <= self._before
        if is_ours and isinstance(error, asyncio.CancelledError):
            raise TimeoutError from error
