"""
Elements that other threads hand in: each waits with a ticket until it is accepted, or never is.

A ticket is a `concurrent.futures.Future`. The loop claims it in the moment in which the element is added, and
who gives up cancels it: only one of the two succeeds, so both sides know the same.
"""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import CancelledError, Future
from typing import Any

from asyncstream.aside import Tasks
from asyncstream.clock import monotonic_seconds
from asyncstream.connectors.submissions import Submissions
from asyncstream.errors import JobStopped

__all__ = ("Tickets", "no_room", "wait_in_thread")

LOOK_AGAIN = 1.0
"""Seconds between two looks whether the event loop that is to do something is still there."""


def wait_in_thread(done: Future[Any], loop: asyncio.AbstractEventLoop, seconds: float | None = None) -> None:
    """Wait for what an event loop is to do, for so long at most; not for one that was closed before."""
    until = math.inf if seconds is None else monotonic_seconds() + seconds
    while True:
        try:
            # unlike result(), this gives what it has raised, so a TimeoutError is that of the waiting
            done.exception(max(0.0, min(LOOK_AGAIN, until - monotonic_seconds())))
        except TimeoutError:
            if loop.is_closed() or monotonic_seconds() >= until:
                return
        except CancelledError:
            return
        else:
            return


class Tickets:
    """Those of one job."""

    def __init__(self) -> None:
        self._waiting: set[Future[bool]] = set()
        self._tasks = Tasks()
        self._is_closed = False

    def submit(
        self,
        to: Submissions[Any],
        value: Any,
        id: str | None,
        loop: asyncio.AbstractEventLoop,
        seconds: float | None,
    ) -> bool:
        """
        Hand in an element from another thread than that of `loop`; returns when it is accepted.

        Returns:
            Whether it is new.

        Raises:
            TimeoutError: if it was not in so many seconds.
            JobStopped: if no more is taken.
            CodecError, SourceError: if it cannot be kept.
        """
        ticket: Future[bool] = Future()
        self._waiting.add(ticket)  # before the look: who closes sets the flag first
        try:
            if self._is_closed:
                raise JobStopped("the job takes no more elements")
            try:
                loop.call_soon_threadsafe(self._begin, to, value, id, ticket)
            except RuntimeError:  # the loop is closed
                raise JobStopped("the job takes no more elements") from None
            wait_in_thread(ticket, loop, seconds)
            if not ticket.cancel():  # it is decided, or what was claimed is being made safe
                wait_in_thread(ticket, loop)
                if ticket.done():
                    return ticket.result()
            if loop.is_closed():
                raise JobStopped("the event loop of the job was closed under it")
            raise no_room(seconds)
        finally:
            ticket.cancel()  # of who is interrupted, by Ctrl-C, say
            self._waiting.discard(ticket)

    def _begin(self, to: Submissions[Any], value: Any, id: str | None, ticket: Future[bool]) -> None:
        self._tasks.start(self._hand_in(to, value, id, ticket))

    async def _hand_in(self, to: Submissions[Any], value: Any, id: str | None, ticket: Future[bool]) -> None:
        try:
            is_new = await to.submit(value, id=id, claim=ticket.set_running_or_notify_cancel)
        except asyncio.CancelledError:  # by the end of the loop
            _refuse(ticket, JobStopped("the job takes no more elements"))
            raise
        except Exception as error:  # of a codec or a tracer of the user's, too
            _refuse(ticket, error)
        else:
            if not ticket.cancelled():
                ticket.set_result(is_new)

    def refuse(self) -> None:
        """The job takes no more: tell all who wait, and all who come."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        for ticket in self._waiting.copy():  # in one step: other threads add to it
            _refuse(ticket, JobStopped("the job takes no more elements"))


def _refuse(ticket: Future[bool], error: Exception) -> None:
    if not ticket.done() and (ticket.running() or ticket.set_running_or_notify_cancel()):
        ticket.set_exception(error)


def no_room(seconds: float | None) -> TimeoutError:
    """The error for who has waited in vain, to be raised by the caller."""
    return TimeoutError(f"the pipeline had no room within {seconds or 0:g} s")
