"""
A pipeline that runs from the start of a service to its end: `FastAPI(lifespan=lifespan(pipeline))`.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeAlias

from asyncstream.checkpoint import Checkpoints, Place
from asyncstream.checkpoint.settings import checkpoints_of
from asyncstream.long_work import is_frozen
from asyncstream.pipeline import Pipeline
from asyncstream.runtime.aio import OPEN_SECONDS, Job
from asyncstream.runtime.aio.process import GRACE
from asyncstream.validation import Duration, count, duration_seconds, instance, text
from asyncstream.web.ending import Ending, told_to_end
from asyncstream.web.events import REPLAY, relay_all

__all__ = ("JOB", "Lifespan", "lifespan")

JOB = "job"
"""Where in the state of a service its job is, unless another key is given."""

Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[dict[str, Job]]]
"""What Starlette and FastAPI take as `lifespan=`."""


def lifespan(
    pipeline: Pipeline,
    *,
    checkpoints: Checkpoints | Place | None = None,
    grace: Duration = GRACE,
    open_timeout: Duration = OPEN_SECONDS,
    replay: int = REPLAY,
    key: str = JOB,
) -> Lifespan:
    """
    Run a pipeline for as long as a service lives; its job is `request.state.job`, or a `JobDep`.

        app = FastAPI(lifespan=asyncstream.web.lifespan(pipeline, checkpoints="state"))

    The service starts when the job runs, and does not if the job cannot, or the process is told to end before
    (`JobStopped`). When it is told to (SIGTERM, Ctrl-C) the job is ended at once: it takes in nothing more,
    running calls get `grace`, streams of events are ended behind the last result, and so the server has no
    connection left to wait for. With checkpoints the job is stopped with a last one, else it is drained.

    What is in memory when the service starts is frozen for the garbage collector (`gc.freeze`) until it ends,
    unless the program has done so itself: modules, models and restored state stay, and to look through them
    again and again would hold requests up, for 40 ms with FastAPI alone.

    A job that fails leaves the service running, so that it can tell: `/healthz` and `/readyz` of
    `asyncstream.web.app` do, and what is submitted is refused.

    In a lifespan of your own: `async with asyncstream.web.lifespan(pipeline)(app) as state: yield state`.

    Args:
        pipeline: what to run. One service at a time runs it, in one process: a server with several workers
            needs checkpoints and sinks for each of them.
        checkpoints: as for `pipeline.start`.
        grace: how long running calls may go on when the service is to end: a `timedelta` or seconds.
        open_timeout: as for `pipeline.start`.
        replay: how many events of each `stream.publish()` are kept for clients of `events` that are slow or
            come back; 0: none, before the first client comes.
        key: under which name in the state the job is, for a service with several.
    """
    instance("pipeline", pipeline, Pipeline)
    kept = None if checkpoints is None else checkpoints_of("checkpoints", checkpoints)
    seconds = duration_seconds("grace", grace, zero=True)
    duration_seconds("open_timeout", open_timeout)
    count("replay", replay, least=0)
    key = text("key", key)

    @asynccontextmanager
    async def running(app: Any) -> AsyncIterator[dict[str, Job]]:
        job = pipeline.start(checkpoints=kept, open_timeout=open_timeout)
        ending = Ending(job, keeps=kept is not None, grace=seconds)
        async with AsyncExitStack() as leaving:
            leaving.enter_context(told_to_end(ending.begin))
            await ending.open(leaving.enter_async_context(job))
            relay_all(job, replay)
            leaving.enter_context(_frozen())
            try:
                yield {key: job}
                ending.begin()
            finally:
                await ending.wait()

    return running


@contextmanager
def _frozen() -> Iterator[None]:
    """Let the garbage collector leave out what is there now."""
    if is_frozen():  # by the program, and for it to undo
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
