"""A service over HTTP that behaves as a test tells it to, and jobs that ask it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from ssl import SSLContext
from typing import Any, TypeVar

import pytest
from aiohttp import web

from asyncstream.connectors.base import Source
from asyncstream.connectors.http import HttpLookup
from asyncstream.errors import HttpError

T = TypeVar("T")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

QUICK: dict[str, Any] = {"wait_initial": 0.001, "wait_max": 0.01}


@asynccontextmanager
async def serve(handler: Handler, tls: SSLContext | None = None) -> AsyncIterator[str]:
    """Serves every path with `handler`, by TLS if told how; gives the address."""

    async def route(request: web.Request) -> web.StreamResponse:
        return await handler(request)  # aiohttp takes functions only

    app = web.Application()
    app.router.add_route("*", "/{name:.*}", route)
    # handler_cancellation: a handler that hangs ends when its client hangs up
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def echo(request: web.Request) -> web.StreamResponse:
    return web.json_response({"name": request.match_info["name"], "raw": request.raw_path})


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(main, 60))


def answer(handler: Handler, value: object = "x", url: str = "/{}", **options: Any) -> Any:
    """What a lookup of `value` gives."""

    async def main() -> Any:
        async with serve(handler) as address, HttpLookup(address + url, **options) as lookup:
            return await lookup.invoke(value)

    return run(main())


def failure(handler: Handler, **options: Any) -> HttpError:
    """The error that one request raises."""
    with pytest.raises(HttpError) as caught:
        answer(handler, **{"attempts": 1, **options})
    return caught.value


def status(code: int, **headers: str) -> Handler:
    async def respond(request: web.Request) -> web.StreamResponse:
        return web.Response(
            status=code, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )

    return respond


async def read_all(source: Source[Any], position: Any = None) -> list[Any]:
    """The elements of a source that comes to an end, behind a position."""
    await source.open()
    if position is not None:
        await source.seek(position)
    values: list[Any] = []
    try:
        async with asyncio.timeout(60):
            while (batch := await source.read()) is not None:
                values += batch.values
    finally:
        await source.close()
    return values
