"""What a request costs beside the client's own work, in what no load changes: how many calls are made."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import aiohttp
import orjson

import asyncstream
from asyncstream.connectors.http import HttpLookup
from tests.connectors.http.services import echo, run, serve

OURS = str(Path(asyncstream.__file__).parent)
CLIENT = str(Path(aiohttp.__file__).parent)

REQUESTS = 10


async def calls_for_each(ask: Callable[[int], Awaitable[Any]]) -> tuple[float, float]:
    """Those of the client's functions, the server's included, and of ours; and ours alone."""
    frames: set[FrameType] = set()  # a coroutine that goes on has the one with which it began

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            frames.add(frame)

    await ask(0)  # which makes the connection
    sys.setprofile(note)
    try:
        for number in range(REQUESTS):
            await ask(number)
    finally:
        sys.setprofile(None)
    places = [frame.f_code.co_filename for frame in frames]
    ours = sum(place.startswith(OURS) for place in places)
    return (ours + sum(place.startswith(CLIENT) for place in places)) / REQUESTS, ours / REQUESTS


def test_usual_request_makes_few_calls() -> None:
    """Each is for all requests; what few of them need is to be asked for by those alone."""

    async def main() -> None:
        async with serve(echo) as address, aiohttp.ClientSession() as session:

            async def bare(number: int) -> Any:
                async with session.get(f"{address}/planes/{number}") as response:
                    return orjson.loads(await response.read())

            async with HttpLookup(f"{address}/planes/{{}}") as lookup:
                all_bare, _ = await calls_for_each(bare)
                all_made, ours = await calls_for_each(lookup.invoke)
        assert ours <= 19
        assert all_made - all_bare <= 5  # the others are in place of the client's

    run(main())
