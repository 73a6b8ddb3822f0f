"""
Whether some code runs inside a job: in one of its steps, or in a task that a step has started.

Who waits there for the end of the job waits for itself. A context variable tells, for it is inherited by
every task and thread that the user's code starts. It is about all jobs at once: a step of one may run
another.

The variable does not hold the job: a task that a step starts may live long after it, such as that with which
a client reads its connection, and so may timers that are cancelled. They would keep all that the job
remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from weakref import ref

from asyncstream.errors import PipelineError

__all__ = ("enter", "refuse_inside")

_inside: ContextVar[Mapping[ref[object], str]] = ContextVar("asyncstream_inside", default={})  # noqa: B039 - never changed


def enter(job: object, part: str) -> None:
    """From now on this context, and those made from it, are inside `part` ("step 'x'") of `job`."""
    _inside.set({**_inside.get(), ref(job): part})


def refuse_inside(job: object, method: str) -> None:
    """Refuse a wait for the end of `job`, if it is called from inside; raises `PipelineError` if it is."""
    part = _inside.get().get(ref(job))
    if part is not None:
        raise PipelineError(
            f"job.{method}() was called inside {part} of the same job, and would wait for itself; have the "
            "code around the job call it: it can wait for an asyncio.Event that the step sets"
        )
