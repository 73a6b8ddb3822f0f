"""
Real HTTP: `HttpLookup` in a pipeline, next to a bare aiohttp loop with as many requests at once.

The server is a process of its own; it answers a small JSON after 5 ms.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import aiohttp
import orjson
from aiohttp import web

from asyncstream import Pipeline
from asyncstream.connectors.http import HttpLookup
from benchmarks.kit import Goal, compare, goals, results, run

__all__ = ("main",)

CONCURRENCY = 100
SECONDS = 0.005
BASE = "bare aiohttp"

Answers = list[dict[str, Any]]
Contender = Callable[[str, int], Awaitable[Answers]]


async def bare(url: str, requests: int) -> Answers:
    """As many workers as may run at once, on one iterator and one session."""
    numbers = iter(range(requests))
    answers: Answers = []

    async def worker() -> None:
        for number in numbers:
            async with session.get(f"{url}/{number}") as response:
                answers.append(orjson.loads(await response.read()))

    connector = aiohttp.TCPConnector(limit=CONCURRENCY)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(worker())
    return answers


def lookup(order: Literal["ordered", "unordered"]) -> Contender:
    """With all that the lookup does by default: retries, timeouts, errors by status."""

    async def contender(url: str, requests: int) -> Answers:
        answers: Answers = []
        pipeline = Pipeline()
        pipeline.source(range(requests)).async_map(
            HttpLookup(url + "/{}", concurrency=CONCURRENCY),
            order=order,
            concurrency=CONCURRENCY,
            timeout=30.0,
        ).to(answers)
        await pipeline.run()
        return answers

    return contender


def main(quick: bool = False) -> None:
    requests = 1_000 if quick else 5_000
    contenders: dict[str, Contender] = {
        BASE: bare,
        "HttpLookup": lookup("ordered"),
        "HttpLookup, unordered": lookup("unordered"),
    }
    with _server() as url:

        def variant(name: str, contender: Contender) -> Callable[[], tuple[str, int, Answers]]:
            async def answer() -> Answers:
                return await contender(url, requests)

            return lambda: (name, requests, run(answer()))

        measured = compare(
            {name: variant(name, contender) for name, contender in contenders.items()},
            base=BASE,
            turns=1 if quick else 5,
            count=_checked,
        )
    print(results(f"HTTP on loopback, answers after 5 ms, concurrency {CONCURRENCY}", measured, base=BASE))
    found = [
        Goal(f"HTTP: requests/s, {name} against bare aiohttp", measured[name].wall_ratio, 0.95)
        for name in contenders
        if name != BASE
    ]
    print(goals(found), flush=True)


def _checked(outcome: tuple[str, int, Answers]) -> int:
    name, requests, answers = outcome
    numbers = [answer["id"] for answer in answers]
    if name != "HttpLookup":
        numbers.sort()
    if numbers != list(range(requests)):
        raise AssertionError(f"{name}: wrong answers, or in the wrong order")
    return requests


# ------------------------------------------------------------------ the server


@contextmanager
def _server() -> Iterator[str]:
    """A server process; gives the address to ask."""
    command = [sys.executable, "-c", f"from {__name__} import serve; serve()"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/items"
        finally:
            process.terminate()


def serve() -> None:
    """Answer `/items/{id}` on a free port of the loopback, which is printed, until killed."""

    async def item(request: web.Request) -> web.Response:
        await asyncio.sleep(SECONDS)
        body = b'{"id": %b, "name": "item", "score": 0.5}' % request.match_info["id"].encode()
        return web.Response(body=body, content_type="application/json")

    async def listen() -> None:
        app = web.Application()
        app.router.add_get("/items/{id}", item)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()

    asyncio.run(listen())
