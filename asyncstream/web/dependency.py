"""
The job of a service as a dependency of FastAPI's: `async def accept(order: Order, job: JobDep): ...`.
"""

# no postponed annotations: FastAPI reads those of a function that is made where FastAPI is there
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from asyncstream.errors import MissingExtra, PipelineError
from asyncstream.runtime.aio import Job
from asyncstream.web.lifespan import JOB

__all__ = ("JobDep", "job_of")

if TYPE_CHECKING:
    JobDep: TypeAlias = Annotated[Job, "as FastAPI gives it, from the state of the service"]


def job_of(state: Any, key: str = JOB) -> Job:
    """
    The job that `lifespan` put into the state of a service.

    Args:
        state: a mapping, or an object with attributes such as `request.state`.
        key: as for `lifespan`.

    Raises:
        PipelineError: if there is none.
    """
    job = state.get(key) if isinstance(state, dict) else getattr(state, key, None)
    if not isinstance(job, Job):
        options = "" if key == JOB else f", key={key!r}"
        raise PipelineError(
            f"the service has no job as {key!r} in its state; give the service "
            f"lifespan=asyncstream.web.lifespan(pipeline{options})"
        )
    return job


@cache
def _job_dep() -> Any:
    try:
        from fastapi import Depends
        from starlette.requests import HTTPConnection
    except ImportError as error:
        raise MissingExtra("asyncstream.web.JobDep", "web", error) from error

    async def job(connection: HTTPConnection) -> Job:  # async: FastAPI runs a plain one in a thread
        return job_of(connection.state)

    return Annotated[Job, Depends(job)]


def __getattr__(name: str) -> Any:
    if name == "JobDep":
        return _job_dep()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
