"""
`--dashboard PORT`: the live page of `asyncstream.web` about the job of this process, for this machine only.

It is served by aiohttp, in the event loop of the job, so it needs no extra and no handler of signals. Any
user of this machine can open it, unless it is given a token. A page of another site that has its name point
to this machine cannot: requests must be made to the machine itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from yarl import URL

import asyncstream.web as pages
from asyncstream.errors import PipelineError, describe_error
from asyncstream.runtime.aio.job import Job

if TYPE_CHECKING:
    # its server is imported where it is used: it takes as long to import as the rest of the command line
    from aiohttp import web

__all__ = ("Dashboard", "serving")

HOST = "127.0.0.1"

NAMES = frozenset({HOST, "localhost", "::1"})
"""What this machine is called by itself; the port may be another one, forwarded by ssh say."""

PATIENCE = 1.0
"""Seconds that those who watch get at the end; their stream has ended with the job."""


class Dashboard:
    """What is served, to requests that bring the token if there is one."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._app: Any = None

    def watch(self, job: Job) -> None:
        """From now on it is about this job."""
        self._app = pages.app(job, token=self._token)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request as the ASGI application does."""
        from aiohttp import web

        if not _is_for_us(request.host):
            raise web.HTTPForbidden(text="this is for the machine itself\n")
        if self._app is None:
            raise web.HTTPServiceUnavailable(text="the job is not there yet\n", headers={"Retry-After": "1"})
        answer = web.StreamResponse()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer.set_status(message["status"])
                for name, value in message["headers"]:
                    answer.headers.add(name.decode("latin-1"), value.decode("latin-1"))
                await answer.prepare(request)
                return
            if message.get("body"):
                await answer.write(message["body"])
            if not message.get("more_body"):
                await answer.write_eof()

        await self._app(_scope(request), _receiver(), send)
        return answer


def _is_for_us(host: str) -> bool:
    """Whether a request that names this host, and perhaps a port, is made to the machine itself."""
    try:
        return URL(f"http://{host}").host in NAMES
    except ValueError:
        return False


def _scope(request: web.Request) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": f"{request.version.major}.{request.version.minor}",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.raw_path.encode(),
        "query_string": request.rel_url.raw_query_string.encode(),
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.raw_headers],
        "state": {},
    }


def _receiver() -> Callable[[], Any]:
    """Gives an empty body, and then nothing: the handler is cancelled when its client is gone."""
    has_body = True

    async def receive() -> dict[str, Any]:
        nonlocal has_body
        if not has_body:
            await asyncio.get_running_loop().create_future()
        has_body = False
        return {"type": "http.request", "body": b"", "more_body": False}

    return receive


@asynccontextmanager
async def serving(
    port: int | None, token: str | None, say: Callable[[str], None]
) -> AsyncIterator[Dashboard]:
    """
    Serve a dashboard while the block runs.

    Args:
        port: on this one; 0: on any that is free; None: on none.
        token: what requests must bring; None: nothing.
        say: told where it is.

    Raises:
        PipelineError: if it cannot be served there.
    """
    dashboard = Dashboard(token)
    if port is None:
        yield dashboard
        return
    from aiohttp import web

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", dashboard.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=PATIENCE, handler_cancellation=True)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, HOST, port).start()
        except OSError as error:
            raise PipelineError(f"--dashboard {port}: {describe_error(error)}") from error
        address = f"http://{HOST}:{runner.addresses[0][1]}/"
        say(f"dashboard at {address}{'' if token is None else ', which asks for the token'}")
        yield dashboard
    finally:
        await runner.cleanup()
