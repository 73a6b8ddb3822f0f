"""
What fails may be tried again: from the last checkpoint, after a pause, so many times.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from asyncstream.aside import wait_at_most
from asyncstream.checkpoint import Checkpoints
from asyncstream.checkpoint.timely import StoreFailed
from asyncstream.errors import CheckpointError, InternalError, PipelineError, SinkError, describe_error
from asyncstream.plan import Graph, SourceStep
from asyncstream.runtime.aio.job import Job, need_loop
from asyncstream.validation import Duration, count, duration_seconds

__all__ = ("Restarts", "run_with_restarts")

log = logging.getLogger("asyncstream.job")


@dataclass(frozen=True)
class Restarts:
    """
    How often a pipeline that fails goes on from its last checkpoint, and when.

    Every part is closed and opened again: sources seek their position, sinks recover, services reconnect.
    What would fail in the same way again is not tried: a wrong plan, a checkpoint that does not fit, a value
    that cannot be kept.

    Attributes:
        attempts: how many restarts there may be `within` that time; at least 1. With the next failure the
            last error is raised.
        within: a `timedelta` or seconds; None: ever.
        backoff: the pause before the first restart, a `timedelta` or seconds; doubled with each further one
            `within` that time. A random part of it, up to a half, is left out, so that many processes do not
            come back in step.
        longest: the longest pause.
    """

    attempts: int
    within: Duration | None = None
    backoff: Duration = 1.0
    longest: Duration = 60.0

    def __post_init__(self) -> None:
        count("attempts", self.attempts)
        if self.within is not None:
            duration_seconds("within", self.within)
        duration_seconds("backoff", self.backoff)
        duration_seconds("longest", self.longest)

    def pause(self, number: int) -> float:
        """Seconds before the restart that is the so-manieth `within` the time, from 1 on."""
        longest = duration_seconds("longest", self.longest)
        full = min(longest, duration_seconds("backoff", self.backoff) * 2.0 ** min(number - 1, 60))
        return full * random.uniform(0.5, 1.0)


def _check_sources(graph: Graph) -> None:
    for step in graph:
        if isinstance(step, SourceStep) and not step.source.is_reopenable():
            raise PipelineError(
                f"restart=: source {step.name!r} cannot be read again from a checkpoint: give a list, a file "
                "or a Source in place of what gives its elements once"
            )


async def run_with_restarts(
    start: Callable[[Checkpoints], Job],
    checkpoints: Checkpoints | None,
    restarts: Restarts,
    name: str,
    body: Callable[[Job], Awaitable[None]],
    stopping: asyncio.Event | None = None,
) -> None:
    """
    Run a job, and another one when it fails, until one comes to its end.

    Args:
        start: makes a job.
        checkpoints: for the first one; later ones go on from the newest.
        restarts: how often, and when.
        name: the pipeline's.
        body: what is done in the block of each.
        stopping: once it is set, a job that has failed is the last.

    Raises:
        PipelineError: if the plan cannot go on from a checkpoint in the same process, says why; or if no
            event loop of asyncio runs.
        AsyncStreamError: the last error, with a note, if there were too many; or one that is not worth it.
    """
    if checkpoints is None:
        raise PipelineError("restart= needs checkpoints=: without them a restart would begin at the start")
    need_loop()
    loop = asyncio.get_running_loop()
    stopping = stopping or asyncio.Event()
    within = None if restarts.within is None else duration_seconds("within", restarts.within)
    times: deque[float] = deque()
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    while True:
        job, was_opened = start(checkpoints), False
        _check_sources(job.graph)
        try:
            async with job:
                was_opened = True
                await body(job)
            return
        except Exception as error:
            if task is not None and task.cancelling() > before:  # while the job that failed was ending
                raise asyncio.CancelledError from error
            if error is not job.error or not _is_worth_it(error) or stopping.is_set():
                raise
            failure = error
            while times and within is not None and loop.time() - times[0] >= within:
                times.popleft()
            if len(times) == restarts.attempts:
                ending = "" if within is None else f" within {within:g} s"
                error.add_note(f"pipeline {name!r} had been restarted {len(times)} times{ending}")
                raise
            times.append(loop.time())
            pause = restarts.pause(len(times))
            log.warning(
                "pipeline %r: restart %d of %d in %.3g s, after: %s",
                name,
                len(times),
                restarts.attempts,
                pause,
                describe_error(error),
                extra={"pipeline": name, "restart": len(times), "wait_seconds": pause},
            )
        if was_opened:  # then its first checkpoint stands, whatever the user chose to begin with
            checkpoints = replace(checkpoints, restore="newest")
        await wait_at_most(stopping, pause)
        if stopping.is_set():
            raise failure


def _is_worth_it(error: Exception) -> bool:
    """Whether the same may go well another time."""
    if isinstance(error, CheckpointError):  # the store fails, or what it has does not fit
        return isinstance(error, StoreFailed) or _is_from_outside(error)
    return not isinstance(error, PipelineError | InternalError)


def _is_from_outside(error: BaseException) -> bool:
    cause = error.__cause__
    return cause is not None and (
        isinstance(cause, OSError | sqlite3.Error | SinkError | StoreFailed) or _is_from_outside(cause)
    )
