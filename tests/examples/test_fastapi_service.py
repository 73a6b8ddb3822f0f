"""
The FastAPI example over real sockets: 500 clients post at once while the service is told to end, and killed.

What was answered with 202 comes out once, whatever happened to the service, and so does what was posted again
because the answer was lost.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.servers.process import HOST, free_port
from tests.web.service import service

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

CLIENTS = 500
ENDS = int(os.environ.get("ASYNCSTREAM_KILLS", "6"))
"""How often the service is ended; by SIGTERM and SIGKILL in turns."""

PATIENCE = 60.0
"""Seconds within which the service ends when it is told to."""

NOON_MS = 1_748_779_200_000
"""The first of June 2025, 12:00 UTC."""


def example(state: Path, port: int = 0) -> Any:
    return service("-m", "examples.fastapi_service", env={"STATE": str(state), "PORT": str(port)})


def order(number: int) -> dict[str, Any]:
    at_ms = NOON_MS + number % 60_000
    return {"id": f"order {number}", "customer": f"c{number % 7}", "cents": number, "at_ms": at_ms}


class Clients:
    """
    Clients that post orders one after the other, each until it is accepted; and what they were told.

    Attributes:
        serves: whether there is a process; while there is none they wait.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.serves = asyncio.Event()
        self.accepted: set[str] = set()
        self.repeated = 0  # orders that had been accepted though the answer was lost
        self.refused: Counter[int] = Counter()
        self._session = session
        self._url = url
        self._numbers = count()
        self._leaves = False
        self._news = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._post_until_told())

    async def _post_until_told(self) -> None:
        while not self._leaves:
            new = order(next(self._numbers))
            while (told := await self.post(new)) is None:
                await asyncio.sleep(0.3)  # 500 that hurry would take the core that the service needs
                await self.serves.wait()
            self.repeated += not told
            self.accepted.add(new["id"])
            self._news.set()

    async def post(self, new: dict[str, Any]) -> bool | None:
        """Whether the service says that an order is new; None: it gave no such answer."""
        try:
            async with self._session.post(f"{self._url}/orders", json=new) as reply:
                if reply.status != 202:
                    self.refused[reply.status] += 1
                    return None
                told: bool = (await reply.json())["new"]
                return told
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            return None  # cut off: the order may have been accepted or not

    async def until(self, accepted: int) -> None:
        while len(self.accepted) < accepted:
            self._news.clear()
            await self._news.wait()

    def leave(self) -> None:
        """Post no more orders than those that are begun."""
        self._leaves = True


async def listen(session: aiohttp.ClientSession, url: str, heard: list[str]) -> None:
    """Hear of every rated order, as a browser does: whoever is cut off says where it was."""
    mark = ""
    while True:
        try:
            async with session.get(f"{url}/rated", headers={"Last-Event-ID": mark} if mark else {}) as reply:
                async for line in reply.content:
                    text = line.decode().rstrip("\n")
                    if text.startswith("id: "):
                        mark = text[4:]
                    elif text.startswith("data: ") and (found := json.loads(text[6:]).get("id")):
                        heard.append(found)
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.1)


async def at_rest(session: aiohttp.ClientSession, url: str) -> None:
    """Wait until nothing is under way in the pipeline."""
    while True:
        async with session.get(f"{url}/ops/status") as reply:
            steps = (await reply.json())["steps"]
        if not any(sum(step["waiting"].values()) for step in steps if step["kind"] != "submissions"):
            return
        await asyncio.sleep(0.05)


async def ended(process: asyncio.subprocess.Process, number: int) -> None:
    """End the service, which has so many seconds."""
    began = time.monotonic()
    process.send_signal(number)
    _, errors = await process.communicate()
    assert time.monotonic() - began < PATIENCE
    if number == signal.SIGTERM:
        assert process.returncode in (0, -signal.SIGTERM), errors.decode()
        assert b"Traceback" not in errors, errors.decode()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_was_accepted_comes_out_once_however_the_service_ends(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://{HOST}:{port}"
    heard: list[str] = []

    async def main() -> Clients:
        connector = aiohttp.TCPConnector(limit=0)
        session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=20))
        async with asyncio.timeout(580), AsyncExitStack() as stack:
            await stack.enter_async_context(session)
            clients = Clients(session, url)
            posting = asyncio.create_task(clients.run())
            listening = asyncio.create_task(listen(session, url, heard))
            for number in range(ENDS):
                async with example(tmp_path, port) as (process, _):
                    clients.serves.set()
                    await clients.until(len(clients.accepted) + 200 + 37 * number)
                    await ended(process, signal.SIGKILL if number % 2 else signal.SIGTERM)
                    clients.serves.clear()
            async with example(tmp_path, port) as (process, _):
                clients.serves.set()
                clients.leave()
                await posting
                for again in list(clients.accepted)[:50]:
                    assert await clients.post(order(int(again.split()[1]))) is False
                await at_rest(session, url)
                await ended(process, signal.SIGTERM)
            listening.cancel()
            await asyncio.wait({listening})
            return clients

    clients = asyncio.run(main())
    came = Counter(line["id"] for line in lines(tmp_path / "rated.jsonl"))
    assert len(clients.accepted) > ENDS * 200
    assert clients.accepted - set(came) == set()
    assert [each for each, times in came.items() if times > 1] == []
    assert set(came) == clients.accepted  # in the end every order was accepted
    assert set(clients.refused) <= {503}
    assert set(heard) <= set(came)


def test_orders_are_rated_counted_and_streamed(tmp_path: Path) -> None:
    async def events_of(reply: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
        async for line in reply.content:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            example(tmp_path) as (process, url),
            aiohttp.ClientSession() as session,
            session.get(f"{url}/rated", params={"customer": "c1"}) as listening,
        ):
            assert listening.headers["content-type"].startswith("text/event-stream")
            for number in range(10):
                async with session.post(f"{url}/orders", json=order(number)) as reply:
                    assert (reply.status, await reply.json()) == (202, {"new": True})
            async with session.post(f"{url}/orders", json=order(3)) as reply:
                assert (reply.status, await reply.json()) == (202, {"new": False})
            async with session.post(f"{url}/orders", json={"id": "x"}) as reply:
                assert reply.status == 422
            heard = events_of(listening)
            rated = [await anext(heard), await anext(heard)]
            assert sorted(each["id"] for each in rated) == ["order 1", "order 8"]
            for path, text in (("healthz", '"running"'), ("readyz", '"running"'), ("", "asyncstream")):
                async with session.get(f"{url}/ops/{path}") as reply:
                    assert reply.status == 200
                    assert text in await reply.text()
            async with session.get(f"{url}/ops/metrics") as reply:
                assert "asyncstream" in await reply.text()
            next_minute = order(11) | {"at_ms": NOON_MS + 120_000}
            async with session.post(f"{url}/orders", json=next_minute):
                pass
            await at_rest(session, url)
            await ended(process, signal.SIGTERM)

    asyncio.run(main())
    minutes = {line["key"]: line for line in lines(tmp_path / "minutes.jsonl")}
    assert {key: line["orders"] for key, line in minutes.items()} == {
        **dict.fromkeys(("c0", "c1", "c2"), 2),
        **dict.fromkeys(("c3", "c4", "c5", "c6"), 1),
    }
