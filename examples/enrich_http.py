"""
Ask a web API about each event, and lose none while it misbehaves.

    python examples/enrich_http.py

The service below knows planes by their tail number. Now and then it is overloaded, out of order, or hangs
up in the middle of a sentence. Nothing of that is seen in the result; the report says how much there was.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["asyncstream"]
#
# [tool.uv.sources]
# asyncstream = { path = "..", editable = true }
# ///

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from asyncstream import FailedCall, Pipeline
from asyncstream.connectors.http import HttpLookup
from asyncstream.guards import Breaker

FLIGHTS = [{"flight": f"AS{number}", "tailnum": f"N{number * 7 % 150:03}"} for number in range(600)]


def with_plane(flight: dict[str, Any], plane: dict[str, Any] | None) -> dict[str, Any]:
    """The flight and what is known of its plane: None if the service does not know it (404)."""
    return flight | (plane or {"model": None})


async def main() -> list[dict[str, Any]]:
    enriched: list[dict[str, Any]] = []
    given_up: list[FailedCall] = []
    async with planes_service() as url:
        lookup = HttpLookup(
            url + "/planes/{tailnum}",
            merge=with_plane,
            concurrency=50,
            timeout=0.5,  # of one attempt
            attempts=8,
            retry_options={"wait_initial": 0.02},
            rate=2_000,  # requests per second
            breaker=Breaker(failure_ratio=0.8, open_for=0.2),
            cache_ttl=60,
        )
        pipeline = Pipeline("planes")
        results = pipeline.source(FLIGHTS).async_map(lookup, concurrency=50, on_error="route", name="plane")
        results.to(enriched)
        results.failed.to(given_up)  # or to a file: asyncstream.connectors.to_dead_letter
        await pipeline.run()
    report(enriched, given_up, lookup.metrics())
    return enriched


def report(enriched: list[dict[str, Any]], given_up: list[FailedCall], metrics: dict[str, int]) -> None:
    unknown = sum(flight["model"] is None for flight in enriched)
    print(f"{len(enriched)} flights enriched, {unknown} of them with unknown planes")
    print(f"{len(given_up)} flights given up")
    print(f"{metrics['requests']} requests, {metrics['retries']} of them retries")
    print(f"{metrics['coalesced']} flights shared a request under way, {metrics['cached']} an answer kept")


@asynccontextmanager
async def planes_service() -> AsyncIterator[str]:
    """A small web server on this machine that behaves badly one time in four; gives its address."""
    dice = random.Random(13)

    async def plane(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.005)
        match dice.choice(["well"] * 9 + ["busy", "broken", "gone"]):
            case "busy":
                return web.Response(status=429, headers={"Retry-After": "0.05"})
            case "broken":
                return web.Response(status=503)
            case "gone" if request.transport is not None:
                request.transport.abort()
        tailnum = request.match_info["tailnum"]
        if tailnum.endswith("9"):
            return web.Response(status=404)
        return web.json_response({"tailnum": tailnum, "model": f"A3{tailnum[-1]}0", "seats": 150})

    app = web.Application()
    app.router.add_get("/planes/{tailnum}", plane)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
