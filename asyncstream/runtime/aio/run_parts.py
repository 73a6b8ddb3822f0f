"""
The parts of a run, what drives its sources and its operators: opened one after the other, each in bounded
time, and closed the other way round. What fails is named by its step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from asyncstream.aside import heed, in_its_loop, to_its_end
from asyncstream.async_wait.tasks import end_tasks
from asyncstream.errors import AsyncStreamError, UserFunctionError, tells_its_step
from asyncstream.operators.base import Operator
from asyncstream.operators.flow import Attended
from asyncstream.operators.whereabouts import RecentFailures
from asyncstream.runtime.aio.inside import enter
from asyncstream.runtime.aio.naming import is_thrown_in
from asyncstream.runtime.aio.reading import SourceDriver

__all__ = ("RunParts",)

log = logging.getLogger("asyncstream.job")


class RunParts:
    """
    The parts of one run.

    Args:
        seconds: what each part gets to open.
        patience: seconds in which it must end when it is cancelled.

    Attributes:
        begun: those whose opening was begun, each with its step, in this order: also what fails to open is
            closed.
        current: the step that is being opened, or closed.
        is_over: they are being closed.
    """

    def __init__(self, owner: object, pipeline: str, seconds: float, patience: float) -> None:
        self._owner = owner
        self._pipeline = pipeline
        self._seconds = seconds
        self._patience = patience
        self._overdue: asyncio.Future[tuple[str, type[AsyncStreamError]]] | None = None
        self.begun: list[tuple[str, SourceDriver | Operator]] = []
        self.current = "a checkpoint"
        self.is_over = False

    async def open_in_time(self, work: Coroutine[Any, Any, None]) -> None:
        """
        Do what opens all parts, unless one of them takes too long.

        Raises:
            AsyncStreamError: names the step that failed, or took too long.
        """
        # in a task of its own: who opens this job must be able to give up, whatever a step does
        loop = asyncio.get_running_loop()
        overdue = self._overdue = loop.create_future()
        opening = loop.create_task(work, name="asyncstream open")
        opening.add_done_callback(heed)  # an exit goes up through the loop, and not to who waits here
        stubborn: set[asyncio.Task[Any]] = set()
        cancelled: asyncio.CancelledError | None = None
        try:
            waited: set[asyncio.Future[Any]] = {opening, overdue}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not opening.done() and in_its_loop(opening):
                ending = loop.create_task(end_tasks({opening}, self._patience))
                cancelled = await to_its_end(ending)  # nothing is closed that is still being opened
                stubborn = ending.result()
            if stubborn:
                log.error(
                    "pipeline %r: step %r ignored its cancellation while it was opened",
                    self._pipeline,
                    self.current,
                )
        if cancelled is not None:
            raise cancelled
        if overdue.done():
            step, kind = overdue.result()
            error = TimeoutError(f"it did not open within {self._seconds:g} s")
            if kind is UserFunctionError:
                raise UserFunctionError(step, None, error, when="when it was opened")
            raise kind(f"step {step!r}: {error}")
        opening.result()

    @contextmanager
    def opening(
        self, part: SourceDriver | Operator, step: str, kind: type[AsyncStreamError]
    ) -> Iterator[None]:
        """This block opens `part` of `step`; if that takes too long, a `kind` of error is raised."""
        self.begun.append((step, part))
        with self.bounded(step, kind):
            yield

    @contextmanager
    def bounded(self, step: str, kind: type[AsyncStreamError]) -> Iterator[None]:
        """This block does what belongs to the opening of `step`, in the time that a part gets for that."""
        enter(self._owner, f"step {step!r}")
        before, self.current = self.current, step
        timer = asyncio.get_running_loop().call_later(self._seconds, self._note_overdue, step, kind)
        try:
            with _naming_function(step, "when it was opened"):
                yield
        finally:
            timer.cancel()
            self.current = before

    def _note_overdue(self, step: str, kind: type[AsyncStreamError]) -> None:
        if self._overdue is not None and not self._overdue.done():
            self._overdue.set_result((step, kind))

    def closings(self) -> Iterator[Coroutine[Any, Any, None]]:
        """What closes each, from head to tail, to be awaited before the next is asked for."""
        for step, part in reversed(self.begun):
            self.current, self.is_over = step, True
            enter(self._owner, f"step {step!r}")
            yield part.stop(self._patience) if isinstance(part, SourceDriver) else _close(step, part)


async def _close(step: str, operator: Operator) -> None:
    with _naming_function(step, "when it was closed"):
        try:
            if isinstance(operator, Attended):
                await operator.stop()
        finally:
            operator.close()
            if isinstance(operator.recent_failures, RecentFailures):
                operator.recent_failures.say_rest()


@contextmanager
def _naming_function(step: str, when: str) -> Iterator[None]:
    """What the user's part of an operator raises in this block comes out naming the step."""
    task = asyncio.current_task()
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        if tells_its_step(error) or is_thrown_in(error, task):
            raise
        raise UserFunctionError(step, None, error, when=when) from error
