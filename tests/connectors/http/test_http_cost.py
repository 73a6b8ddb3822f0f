"""What a request costs beside the client, in what no load changes: how many calls are made of ours."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import asyncstream
from asyncstream.connectors.http import HttpLookup
from tests.connectors.http.services import echo, run, serve

OURS = str(Path(asyncstream.__file__).parent)

REQUESTS = 10


def test_usual_request_makes_few_calls() -> None:
    """Each is for all requests; what few of them need is to be asked for by those alone."""

    async def main() -> Counter[str]:
        frames: set[FrameType] = set()  # a coroutine that goes on has the one with which it began

        def note(frame: FrameType, event: str, _: Any) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(OURS):
                frames.add(frame)

        async with serve(echo) as address, HttpLookup(f"{address}/planes/{{}}") as lookup:
            await lookup.invoke("first")  # which makes the connection
            sys.setprofile(note)
            try:
                for number in range(REQUESTS):
                    await lookup.invoke(number)
            finally:
                sys.setprofile(None)
        return Counter(frame.f_code.co_qualname for frame in frames)

    made = run(main())
    assert sum(made.values()) <= 15 * REQUESTS, made.most_common()
