"""
The slow service of the demo: planes, airports and weather by HTTP, as slow and as faulty as real ones.

    python -m examples.flights.api --port 0

prints the port it listens on. It answers `/planes/{tailnum}`, `/airports/{code}` and
`/weather/{origin}/{hour_ms}` with JSON, 404 for what is not in the tables, and `/stats` with what it has
done. What goes wrong depends on nothing but the seed, the path and how often the path was asked for, so a run
can be repeated, and asking again helps.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random

from aiohttp import web

from examples.flights.data import Row, load_airports, load_planes, load_weather

__all__ = ("Fate", "Manners", "application", "main", "serve_until_stopped", "serving", "tables_by_path")

FAULTS = ("unavailable", "throttled", "reset", "half")


@dataclass(frozen=True, slots=True)
class Fate:
    """
    What happens to one request.

    Attributes:
        kind: "good", "slow", "hanging", or one of `FAULTS`.
        seconds: how long it takes.
        retry_after: what a throttled client is told, in seconds.
    """

    kind: str
    seconds: float
    retry_after: int = 0


@dataclass(frozen=True, slots=True)
class Manners:
    """
    How the service behaves. Shares are of all requests, 0 to 1, and exclude each other.

    Attributes:
        seed: another one, another day.
        usual: least and most seconds that an answer takes.
        slow: share that takes between `slow_seconds`.
        hanging: share that takes `hanging_seconds`.
        faulty: share that fails: 503, 429, a connection reset or half an answer.
    """

    seed: int = 13
    usual: tuple[float, float] = (0.001, 0.005)
    slow: float = 0.009
    slow_seconds: tuple[float, float] = (0.1, 0.3)
    hanging: float = 0.001
    hanging_seconds: float = 10.0
    faulty: float = 0.005

    def fate(self, path: str, attempt: int) -> Fate:
        """What happens when `path` is asked for the `attempt`-th time; starts at 1."""
        random = Random(f"{self.seed} {path} {attempt}")
        luck = random.random()
        seconds = random.uniform(*self.usual)
        if luck < self.faulty:
            return Fate(random.choice(FAULTS), seconds, random.randint(0, 1))
        luck -= self.faulty
        if luck < self.hanging:
            return Fate("hanging", self.hanging_seconds)
        luck -= self.hanging
        if luck < self.slow:
            return Fate("slow", random.uniform(*self.slow_seconds))
        return Fate("good", seconds)


class _Service:
    """Answers from the tables, with manners."""

    def __init__(self, tables: Mapping[str, Row], manners: Manners) -> None:
        self._tables = tables
        self._manners = manners
        self._attempts: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()
        self._statuses: Counter[int] = Counter()
        self._in_flight = 0
        self._most_in_flight = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self._attempts[path] += 1
        fate = self._manners.fate(path, self._attempts[path])
        self._kinds[fate.kind] += 1
        self._in_flight += 1
        self._most_in_flight = max(self._most_in_flight, self._in_flight)
        try:
            await asyncio.sleep(fate.seconds)
        finally:
            self._in_flight -= 1
        if fate.kind == "reset":
            return _reset(request)
        response = self._response(path, fate)
        self._statuses[response.status] += 1
        return await _half(request, response) if fate.kind == "half" else response

    def _response(self, path: str, fate: Fate) -> web.Response:
        if fate.kind == "unavailable":
            return web.json_response({"error": "unavailable"}, status=503)
        if fate.kind == "throttled":
            wait = {"Retry-After": str(fate.retry_after)}
            return web.json_response({"error": "too many requests"}, status=429, headers=wait)
        found = self._tables.get(path)
        if found is None:
            return web.json_response({"error": f"nothing at {path}"}, status=404)
        return web.json_response(found)

    async def stats(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "requests": self._attempts.total(),
                "paths": len(self._attempts),
                "most_asked": max(self._attempts.values(), default=0),
                "in_flight": self._in_flight,
                "most_in_flight": self._most_in_flight,
                "kinds": dict(sorted(self._kinds.items())),
                "statuses": {str(status): times for status, times in sorted(self._statuses.items())},
            }
        )


def _reset(request: web.Request) -> web.Response:
    """Break the connection as a crashed process does: the client sees a reset, not an end."""
    if request.transport is not None:
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
    return web.Response()


async def _half(request: web.Request, response: web.Response) -> web.StreamResponse:
    """Promise the whole body, send half of it and hang up."""
    body = response.body
    assert isinstance(body, bytes)
    half = web.StreamResponse(status=response.status, headers={"Content-Type": "application/json"})
    half.content_length = len(body)
    await half.prepare(request)
    await half.write(body[: len(body) // 2])
    if request.transport is not None:
        request.transport.close()
    return half


def tables_by_path() -> dict[str, Row]:
    """All that the service knows, by the path where it is asked for."""
    found = {f"/planes/{tailnum}": plane for tailnum, plane in load_planes().items()}
    found |= {f"/airports/{code}": airport for code, airport in load_airports().items()}
    found |= {f"/weather/{origin}/{hour}": weather for (origin, hour), weather in load_weather().items()}
    return found


def application(manners: Manners | None = None, tables: Mapping[str, Row] | None = None) -> web.Application:
    """
    The service, ready to be served.

    Args:
        manners: how it behaves.
        tables: what it knows by path, if not `tables_by_path()`.
    """
    service = _Service(tables_by_path() if tables is None else tables, manners or Manners())
    app = web.Application()
    app.router.add_get("/stats", service.stats)
    for route in ("/planes/{tailnum}", "/airports/{code}", "/weather/{origin}/{hour_ms}"):
        app.router.add_get(route, service.answer)
    return app


@asynccontextmanager
async def serving(app: web.Application, port: int = 0) -> AsyncIterator[int]:
    """Serve `app` on this machine while the context lasts; gives the port, a free one for 0."""
    # a client that gives up a hanging request frees it, and closing does not wait for any
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def serve_until_stopped(port: int, manners: Manners) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with serving(application(manners), port) as listening:
        print(listening, flush=True)
        await stopped.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.flights.api", description="The demo's slow service."
    )
    parser.add_argument("--port", type=int, default=0, help="0, the default: a free one, which is printed")
    parser.add_argument("--seed", type=int, default=Manners().seed, help="decides what goes wrong")
    parser.add_argument("--well-behaved", action="store_true", help="nothing is slow, hanging or faulty")
    arguments = parser.parse_args()
    manners = Manners(seed=arguments.seed)
    if arguments.well_behaved:
        manners = replace(manners, slow=0, hanging=0, faulty=0)
    asyncio.run(serve_until_stopped(arguments.port, manners))


if __name__ == "__main__":
    main()
