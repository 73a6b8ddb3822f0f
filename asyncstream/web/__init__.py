"""
A pipeline in a web service: read `lifespan` (it runs as long as the service does), `ending` (how it ends in
time), `load_limit`, `events` (results to browsers), then `app` (health, metrics, status and a live page).

Everything is plain ASGI, so it works in Starlette, in FastAPI and alone; only `JobDep` needs FastAPI.
"""

from typing import TYPE_CHECKING, Any

from asyncstream.web.app import app
from asyncstream.web.events import EventStream, events
from asyncstream.web.lifespan import lifespan
from asyncstream.web.load_limit import LoadLimit

if TYPE_CHECKING:
    from asyncstream.web.dependency import JobDep

__all__ = ("EventStream", "JobDep", "LoadLimit", "app", "events", "lifespan")


def __getattr__(name: str) -> Any:
    if name == "JobDep":
        from asyncstream.web.dependency import JobDep

        return JobDep
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
