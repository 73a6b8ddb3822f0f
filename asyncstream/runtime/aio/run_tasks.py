"""
The tasks of a run: one for each source and sink, and those that supervise them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextvars import copy_context
from typing import Any

from asyncstream.aside import Tasks, is_at_work
from asyncstream.async_wait.tasks import end_tasks
from asyncstream.errors import AsyncStreamError, CheckpointError, InternalError, describe_error
from asyncstream.runtime.aio.inside import enter

__all__ = ("RunTasks",)


class RunTasks:
    """
    Starts tasks, has the run fail with the first of them that fails, and ends them in bounded time.

    Args:
        owner: the run, as `inside` knows it.
        patience: seconds in which a task must end that is cancelled again and again.
        failed: told of the error of a task, at once.
        ended: told when a task has ended, with the name of its step.

    Attributes:
        running: by task, the name of the step that it drives.
        migrated: steps whose state the user's functions have made, which may be to blame.
    """

    def __init__(
        self,
        owner: object,
        patience: float,
        failed: Callable[[BaseException], None],
        ended: Callable[[str, asyncio.Task[None]], None],
    ) -> None:
        self._owner = owner
        self._patience = patience
        self._failed = failed
        self._told = ended
        self.running: dict[asyncio.Task[None], str] = {}
        self.migrated: Collection[str] = ()
        self._stubborn: set[asyncio.Task[Any]] = set()
        self._helpers = Tasks()

    def remember_context(self) -> None:
        """Tasks that are started from now on have the context variables of this moment."""
        self._context = copy_context()

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the task of a step."""
        context = self._context.copy()
        context.run(enter, self._owner, f"step {name!r}")
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._watched(name, work), name=f"asyncstream {name}", context=context)
        self.running[task] = name
        task.add_done_callback(self._ended)

    async def _watched(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """
        Do the work of a task. The job fails with it at once, not when the loop sees that the task has ended:
        a checkpoint that is taken in between would lack the elements over which it failed.
        """
        me = asyncio.current_task()
        try:
            await work()
        except Exception as error:
            if not is_at_work(me):
                return
            if isinstance(error, AsyncStreamError):
                self._failed(error)
                raise
            broken = self._broken(f"behind step {name!r}: {describe_error(error)}")
            broken.__cause__ = error
            self._failed(broken)
            raise broken from error

    def _broken(self, what: str) -> AsyncStreamError:
        """The error for one that is nobody's own, and perhaps that of who has made state by hand."""
        if not self.migrated:
            return InternalError(what)
        steps = ", ".join(map(repr, self.migrated))
        return CheckpointError(
            f"{what}; migrate= has made the state of {steps}, in which everything must be as in what it was "
            "given, but for the values of your own"
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._told(self.running.pop(task), task)

    def help(self, work: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Run what supervises or serves the others: the run fails with it, and ends it when it is closed."""
        self._helpers.start(self._helped(work, *args))

    async def _helped(self, work: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        me = asyncio.current_task()
        try:
            await work(*args)
        except Exception as error:  # at once, as in `_watched`
            if is_at_work(me):
                self._failed(error)

    async def cancelled(self, tasks: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
        """Those of these tasks, cancelled once, that do not end when they are cancelled again and again."""
        if tasks:
            _, tasks = await asyncio.wait(tasks, timeout=min(1.0, self._patience))
        return await end_tasks(tasks, self._patience - 1)

    def leave_alone(self, stubborn: Iterable[asyncio.Task[None]]) -> list[str]:
        """Wait no more for these, that ignore their cancellation: the names of their steps."""
        stubborn = set(stubborn)
        self._stubborn |= stubborn
        return sorted(self.running[task] for task in stubborn)

    async def end_all(self) -> set[asyncio.Task[None]]:
        """End helpers, then the others; those that will not end."""
        await end_tasks(self._helpers, self._patience)
        return await end_tasks(set(self.running) - self._stubborn, self._patience)
