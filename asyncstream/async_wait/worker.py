"""
What the operator knows of one of its workers.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from enum import Enum
from typing import Any, Final

from asyncstream.async_wait.blocks import Call
from asyncstream.async_wait.promise import Promise
from asyncstream.operators.origins import Origin

__all__ = ("UNMADE", "Worker")


class _Unmade(Enum):
    UNMADE = "unmade"


UNMADE: Final = _Unmade.UNMADE
"""Stands for a promise that has not been needed yet."""


class Worker:
    """
    A long-lived task that makes calls, one at a time.

    Attributes:
        task: it runs here.
        base: the context variables that its next call is to find; a call that has left others was its last.
        promise: that of the element whose call it runs, UNMADE if it has not been needed yet, or None.
        call: the one it makes of an element of a block, or None.
        entry: of another call: the element, its timestamp, and, where that is tracked, where it comes from.
        parked: what it waits for when there is nothing to do, or None.
        doomed: we cancelled it, and whatever its call gives no longer counts; or it is being closed.
    """

    __slots__ = ("base", "call", "doomed", "entry", "parked", "promise", "task")

    task: asyncio.Task[None]
    base: Context
    entry: tuple[Any, Any, Origin | None]

    def __init__(self) -> None:
        self.promise: Promise | _Unmade | None = None
        self.call: Call | None = None
        self.parked: asyncio.Future[None] | None = None
        self.doomed = False

    def is_busy(self) -> bool:
        """Whether it makes a call."""
        return self.promise is not None or self.call is not None

    def element(self) -> Any:
        """Of the call that it makes, or made last."""
        return self.entry[0] if self.call is None else self.call[2]

    def known_promise(self) -> Promise | None:
        """Of the element whose call it makes, as far as there is one."""
        if self.call is not None:
            block, place, _ = self.call
            return block.promise_of(place)
        return self.promise if isinstance(self.promise, Promise) else None

    def is_asked_to_end(self, error: BaseException, halted: bool) -> bool:
        """
        Whether an error that came up from its call was thrown into its task, or asks the process to end;
        `halted`: the step cancels its workers.
        """
        if isinstance(error, asyncio.CancelledError):
            return halted or self.task.cancelling() > 0
        if isinstance(error, GeneratorExit):
            return asyncio.current_task(self.task.get_loop()) is not self.task
        return isinstance(error, KeyboardInterrupt | SystemExit)
