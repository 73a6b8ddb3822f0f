"""
What outlives a task in a Python worker: one event loop on a thread of its own, and the stages it has run.

Spark hands a worker a fresh copy of the user's functions with every task, hundreds of times in a stream. A
client session that is opened once per task is opened hundreds of times too. So the first copy that arrives is
kept, with the async functions that have been opened, and later copies of the same stage are not looked at.

A worker runs one task at a time. It is ended without a word, so nothing here can count on being closed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, TypeVar
from uuid import uuid4

from asyncstream.async_wait.tasks import CANCEL_PATIENCE, within
from asyncstream.errors import describe_error
from asyncstream.operators.functions import AsyncFunction, has_timeout_hook
from asyncstream.runtime.spark.stages import Stage

__all__ = ("LoopThread", "Resident", "loop_thread", "settle", "staying", "token_of")

logger = logging.getLogger(__name__)

T = TypeVar("T")

MOST_RESIDENTS = 16
"""Stages that a worker keeps; the one that was used longest ago is closed."""

LONG_LIVED = 16
"""Tasks of a worker after which looking at all that it has loaded costs little in comparison."""

MOST_READING = 64
"""Tasks that have read state after which it does, too: each leaves some hundred kilobytes, and a socket."""


class _Lent(AsyncFunction[Any, Any]):
    """An async function as a task sees it: opened by the first, closed by none."""

    def __init__(self, function: AsyncFunction[Any, Any]) -> None:
        self.function = function
        self._is_open = False
        self.invoke = function.invoke  # type: ignore[method-assign]
        self.metrics = function.metrics  # type: ignore[method-assign]
        self.counter_names = function.counter_names  # type: ignore[method-assign]
        if has_timeout_hook(function):
            self.timeout = function.timeout  # type: ignore[method-assign]

    async def open(self) -> None:
        if not self._is_open:
            try:
                await self.function.open()
            except BaseException:
                await self.function.close()
                raise
            self._is_open = True

    async def really_close(self) -> None:
        if self._is_open:
            self._is_open = False
            await self.function.close()


class Resident:
    """
    A stage that a worker keeps between tasks, in the copy that came first, with its open async functions.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._parts: dict[tuple[int, ...], Stage] = {}
        self._calling = {step.name: step for step in stage.steps if step.spec.calls is not None}
        self._lent: dict[int, _Lent] = {}  # by identity: functions compare as their classes like

    def lend(self, function: AsyncFunction[Any, Any]) -> AsyncFunction[Any, Any]:
        """The function of one step or several, to be opened once, by the first task that uses it."""
        return self._lent.setdefault(id(function), _Lent(function))

    def part(self, routes: tuple[int, ...], stage: Stage) -> Stage:
        """
        What elements of a source get to, in the copy that came first; of steps that others get to as well,
        those that call are the ones that these have opened.

        Args:
            routes: those from the source.
            stage: as much of it as has come for these.
        """
        part = self._parts.get(routes)
        if part is None:
            known = self._calling
            steps = (
                step if step.spec.calls is None else known.setdefault(step.name, step) for step in stage.steps
            )
            part = self._parts[routes] = replace(stage, steps=tuple(steps))
        return part

    async def close(self) -> None:
        """
        Close the functions that are open. What one raises, or that it does not end, does not concern the task
        that needs the place, which is of another stage and perhaps of another query.
        """
        for lent in self._lent.values():
            try:
                await within(CANCEL_PATIENCE, lent.really_close())
            except (Exception, KeyboardInterrupt, SystemExit, asyncio.CancelledError) as error:
                logger.warning("%r could not be closed: %s", lent.function, describe_error(error))


class LoopThread:
    """An event loop on a daemon thread, uvloop's where there is one."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._residents: OrderedDict[str, Resident] = OrderedDict()
        try:
            import uvloop

            self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        except ImportError:
            self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, name="asyncstream", daemon=True).start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._loop.is_closed():
            # a user's function that asks the process to end has ended its own task with that, which those
            # who wait for it are told by a loop that runs
            with suppress(KeyboardInterrupt, SystemExit):
                self._loop.run_forever()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` on the loop, and wait for it here."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # if it is the waiting that was interrupted
            raise

    def resident(self, token: str, stage: Stage) -> Resident:
        """The stage that goes by `token`, in the copy that came first, which may be this one."""
        resident = self._residents.get(token)
        if resident is None:
            resident = self._residents[token] = Resident(stage)
            if len(self._residents) > MOST_RESIDENTS:
                _, oldest = self._residents.popitem(last=False)
                self.call(oldest.close())
        self._residents.move_to_end(token)
        return resident


_of_this_process: LoopThread | None = None


def token_of(stages: Sequence[Stage]) -> str:
    """
    What these stages go by: the same for stages that are the same, also if they are planned again.

    In `foreachBatch` each micro-batch plans its own, and the client of the last one is to serve it.
    """
    from pyspark import cloudpickle

    try:
        return blake2b(cloudpickle.dumps(list(stages)), digest_size=16).hexdigest()
    except Exception:  # Spark will say what cannot be pickled
        return uuid4().hex


def loop_thread() -> LoopThread:
    """The one of this process; made on first use, and again in a process forked from one that has it."""
    global _of_this_process
    if _of_this_process is None or _of_this_process.process != os.getpid():
        _of_this_process = LoopThread()
    return _of_this_process


@dataclass
class _Tasks:
    """
    Those that a worker has begun.

    Attributes:
        process: the worker's; one that is forked from it has begun none.
        count: how many there are.
        next_look: how many there are when all is looked at again.
        reading: those that have read state since all was looked at, by their numbers.
    """

    process: int = 0
    count: int = 0
    next_look: int = LONG_LIVED
    reading: set[int] = field(default_factory=set)


_tasks = _Tasks()


def settle() -> None:
    """
    A task arrives: spare the garbage collector what this process has by now, most of which stays.

    PySpark has all garbage collected after every task. That looks at the modules of pandas and PyArrow, some
    60 ms of a core, and at all state that the worker keeps, half a second for a million keys. What is here
    when the next task arrives has been looked at and is no garbage. It may become such later: all of it is
    looked at again when four times as many tasks have begun, from the sixteenth on.

    To be called before PySpark has made what belongs to the task: that goes in circles, and is garbage when
    the task has ended, with its connection to Spark's state.
    """
    if _tasks.process != os.getpid():
        _tasks.process, _tasks.count, _tasks.next_look = os.getpid(), 0, LONG_LIVED
        _tasks.reading.clear()
    _tasks.count += 1
    is_late = _tasks.count == _tasks.next_look
    if is_late or len(_tasks.reading) == MOST_READING:
        _tasks.next_look *= 4 if is_late else 1
        _tasks.reading.clear()
        gc.unfreeze()
        gc.collect()
    gc.freeze()


@contextmanager
def staying() -> Iterator[None]:
    """
    What is made in this block stays from task to task: the garbage collector need not look at it, nor at
    what belongs to this task, which is looked at again when there have been many such.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        _tasks.reading.add(_tasks.count)
        if was_enabled:
            gc.enable()
