"""
How errors of sources and sinks, at both ends of a running pipeline, come to name their step.
"""

from __future__ import annotations

import asyncio
from typing import Any

from asyncstream.aside import is_at_work
from asyncstream.async_wait.tasks import within
from asyncstream.connectors.base import Sink, Source
from asyncstream.errors import SinkBroken, SinkError, SourceError, UserFunctionError, describe_error

__all__ = ("close_in_time", "is_thrown_in", "naming")


class naming:
    """
    What a source or a sink raises in this block comes out as ours, and names the step.

    That goes for everything that user code can raise, so that nothing of it passes for a cancellation of ours
    or for an end.

    Args:
        step: its name.
        kind: of the error.
        is_awaiting: the block awaits, so that a cancellation may be one of the task.
    """

    # for each write: what `contextmanager` makes costs three calls more
    __slots__ = ("_is_awaiting", "_kind", "_step", "_task")

    def __init__(
        self, step: str, kind: type[SourceError] | type[SinkError], *, is_awaiting: bool = True
    ) -> None:
        self._step = step
        self._kind = kind
        self._is_awaiting = is_awaiting

    def __enter__(self) -> None:
        if self._is_awaiting:
            self._task = asyncio.current_task()

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        step, kind = self._step, self._kind
        if isinstance(error, UserFunctionError):  # of a function that serves as a sink, which knows no step
            cause = error.__cause__ or error
            raise UserFunctionError(step, error.element, cause) from cause
        if isinstance(error, KeyboardInterrupt | SystemExit):  # go up through the loop, to its caller
            return
        if self._is_awaiting and is_thrown_in(error, self._task):
            return
        text = str(error) if isinstance(error, kind) else describe_error(error)
        if isinstance(error, asyncio.CancelledError):
            text = "it was cancelled from inside"
        elif isinstance(error, TypeError) and "await" in text:  # as Python says of what cannot be awaited
            text += "; make the method an async def"
        raised = SinkBroken if isinstance(error, SinkBroken) else kind
        raise _of(step, raised, text) from error


def _of(step: str, kind: type[SourceError] | type[SinkError], text: str) -> SourceError | SinkError:
    error = kind(f"step {step!r}: {text}")
    error.step = step
    return error


def is_thrown_in(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """
    Whether what came up where a task awaits something was not raised there: the task is cancelled, or its
    coroutine is being collected as garbage, perhaps in the midst of what another task does.
    """
    if isinstance(error, GeneratorExit):
        return task is None or not is_at_work(task)
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


async def close_in_time(
    seconds: float, step: str, kind: type[SourceError] | type[SinkError], end: Source[Any] | Sink[Any]
) -> None:
    """Close a source or a sink; an error names the step if that takes longer than so many seconds."""

    async def close() -> None:
        with naming(step, kind):
            await end.close()

    try:
        await within(seconds, close())
    except TimeoutError as error:
        raise _of(step, kind, f"closing it: {error}") from error
