"""The FastAPI example, driven over a real socket and ended with SIGTERM while events are in flight."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def service(journal: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The service in a process of its own, on any free port; its process and its address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.fastapi_service"),
        cwd=ROOT,
        env={**os.environ, "JOURNAL": str(journal), "PORT": "0"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        while (line := (await process.stderr.readline()).decode()) and "running on" not in line:
            pass
        found = re.search(r"http://[\d.]+:\d+", line)
        assert found, "the service did not come up"
        yield process, found[0]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def healthy(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with session.get(f"{url}/health") as reply:
        assert reply.status == 200
        found: dict[str, Any] = await reply.json()
        return found


async def events_of(stream: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The server-sent events, until the server ends the stream."""
    while line := await stream.readline():
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


async def all_of(events: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event async for event in events]


def test_no_accepted_event_is_lost_when_the_service_is_told_to_end(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    accepted: set[int] = set()
    last: list[dict[str, Any]] = []

    async def post(session: aiohttp.ClientSession, url: str, ids: range) -> None:
        events = [{"id": number, "airport": "EWR"} for number in ids]
        try:
            async with session.post(f"{url}/events", json=events) as reply:
                if reply.status == 202:
                    assert await reply.json() == {"accepted": len(ids)}
                    accepted.update(ids)
        except aiohttp.ClientError:
            pass  # cut off: nobody told us that these were accepted

    async def main() -> None:
        async with (
            asyncio.timeout(30),
            service(journal) as (process, url),
            aiohttp.ClientSession() as session,
        ):
            assert (await healthy(session, url))["status"] == "ok"
            listener = await session.get(f"{url}/results")
            assert listener.content_type == "text/event-stream"
            assert await listener.content.readline() == b": listening\n"

            async with session.post(f"{url}/events", json={"id": -1, "airport": "JFK"}) as reply:
                assert (reply.status, await reply.json()) == (202, {"accepted": 1})
            heard = events_of(listener.content)
            assert await anext(heard) == {"id": -1, "airport": "JFK", "weather": "clear"}
            listening = asyncio.create_task(all_of(heard))

            posts = [
                asyncio.create_task(post(session, url, range(start, start + 50)))
                for start in range(0, 4000, 50)
            ]
            for answered in asyncio.as_completed(posts):
                await answered
                if len(accepted) >= 200:
                    break
            for _ in range(100):  # what was accepted a moment ago may not have come to the calls yet
                steps = (await healthy(session, url))["steps"]
                if steps["weather"]["running"]:
                    break
            assert steps["weather"]["running"] > 0  # there is something to lose
            process.send_signal(signal.SIGTERM)
            await asyncio.gather(*posts)
            last.extend(await listening)
            _, errors = await process.communicate()
            listener.close()
            assert process.returncode in (0, -signal.SIGTERM), errors.decode()
            assert b"Traceback" not in errors, errors.decode()

    asyncio.run(main())
    results = [json.loads(line) for line in journal.read_text().splitlines()]
    ids = [result["id"] for result in results]
    assert len(ids) == len(set(ids))
    assert accepted <= set(ids)
    assert all(result["weather"] in ("rain", "clear") for result in results)
    # who listened has heard everything, also what came after the service was told to end
    assert [result["id"] for result in last] == [number for number in ids if number != -1]


def test_client_waits_while_the_pipeline_has_no_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(30),
            service(tmp_path / "journal.jsonl") as (process, url),
            aiohttp.ClientSession() as session,
        ):
            await healthy(session, url)
            events = [{"id": number} for number in range(4000)]
            seen: list[int] = []

            async def watch() -> None:
                while True:
                    steps = (await healthy(session, url))["steps"]
                    seen.append(steps["submissions"]["read"] - steps["journal"]["written"])
                    await asyncio.sleep(0.02)

            watching = asyncio.create_task(watch())
            async with session.post(f"{url}/events", json=events) as reply:
                assert await reply.json() == {"accepted": 4000}
            watching.cancel()
            await asyncio.wait({watching})
            assert len(seen) > 3
            assert max(seen) < 2500  # what was read and not written stayed bounded

            async with session.post(f"{url}/events", json="text") as reply:
                assert reply.status == 422
            process.send_signal(signal.SIGTERM)
            await process.communicate()

    asyncio.run(main())
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 4000
