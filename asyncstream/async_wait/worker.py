"""
What the operator knows of one of its workers.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any

from asyncstream.aside import is_at_work
from asyncstream.async_wait.blocks import Call
from asyncstream.async_wait.promise import Promise

__all__ = ("Worker",)


class Worker:
    """
    A long-lived task that makes calls, one at a time.

    Attributes:
        task: it runs here.
        base: the context variables that its next call is to find; a call that has left others was its last.
        call: the one it makes of an element of a block, or None.
        promise: that of the element whose call it makes, if it is of no block, or None.
        value: that element; what has left its queue does not know it any more.
        parked: what it waits for when there is nothing to do, or None: whether it is needed again.
        doomed: we cancelled it, and whatever its call gives no longer counts; or it is being closed.
        again: cancels it once more, should it go on then; None: it was never cancelled.
    """

    __slots__ = ("again", "base", "call", "doomed", "parked", "promise", "task", "value")

    task: asyncio.Task[None]
    base: Context

    def __init__(self) -> None:
        self.call: Call | None = None
        self.promise: Promise | None = None
        self.value: Any = None
        self.parked: asyncio.Future[bool] | None = None
        self.doomed = False
        self.again: asyncio.TimerHandle | None = None

    def go_on(self, needed: bool) -> None:
        """It waits no more."""
        if self.parked is not None and not self.parked.done():  # else: cancelled by who kept its task
            self.parked.set_result(needed)

    def is_busy(self) -> bool:
        """Whether it makes a call."""
        return self.promise is not None or self.call is not None

    def element(self) -> Any:
        """Of the call that it makes, or made last."""
        return self.value if self.call is None else self.call[2]

    def held_promise(self) -> Promise:
        """Of the element whose call it makes; there is one."""
        if self.call is not None:
            block, place, _ = self.call
            return block.promise_of(place)
        assert self.promise is not None
        return self.promise

    def is_asked_to_end(self, error: BaseException, halted: bool) -> bool:
        """
        Whether an error that came up from its call was thrown into its task, or asks the process to end;
        `halted`: the step cancels its workers.
        """
        if not is_at_work(self.task):  # it is collected, and this is what the call makes of that
            return True
        if isinstance(error, asyncio.CancelledError):
            return halted or self.task.cancelling() > 0
        return isinstance(error, KeyboardInterrupt | SystemExit)
