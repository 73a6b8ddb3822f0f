"""
A process that pays for its calls is killed twenty times, with no checkpoint in between. A real server counts:
only calls that ran when the process was killed are made again, and all of them carry the keys that they had.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from tests.crash.journal_app import ELEMENTS
from tests.crash.kills import PATIENCE, ROOT

KILLS = 20

LATENCY = 0.1
"""Seconds until the server answers."""

ON_THE_WAY = 0.05
"""Seconds for which an answer that was sent may not have arrived, on a busy machine."""


class Till:
    """
    A service that counts, in a thread of its own.

    Attributes:
        calls: by the order's number, the keys that came with its calls.
        charged: by key, the number of its receipt: what the service does once.
    """

    def __init__(self) -> None:
        self.calls: defaultdict[int, list[str]] = defaultdict(list)
        self.charged: dict[str, int] = {}
        self.url = ""
        self._running: set[object] = set()
        self._sent: list[float] = []
        self._loop = asyncio.new_event_loop()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Till:
        self._thread.start()
        assert self._is_up.wait(10)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._begin())
        self._is_up.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _begin(self) -> None:
        app = web.Application()
        app.router.add_post("/charge/{id}", self._charge)
        self._runner = runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def _charge(self, request: web.Request) -> web.Response:
        key = request.headers["Idempotency-Key"]
        self.calls[int(request.match_info["id"])].append(key)
        receipt = self.charged.setdefault(key, len(self.charged))
        call = object()
        self._running.add(call)
        try:
            await asyncio.sleep(LATENCY)
        finally:
            self._running.discard(call)
            self._sent.append(time.monotonic())
        return web.json_response({"receipt": receipt})

    def count(self) -> int:
        """Calls so far."""
        return sum(map(len, self.calls.values()))

    def unanswered(self) -> int:
        """Calls whose answer has not arrived, as far as the server can know."""
        lately = time.monotonic() - ON_THE_WAY
        return len(self._running) + sum(sent > lately for sent in self._sent)


@pytest.fixture
def till() -> Iterator[Till]:
    with Till() as running:
        yield running


def start(folder: Path, till: Till) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.crash.journal_app", str(folder), till.url]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)


@pytest.mark.timeout(600)
def test_no_call_is_paid_for_twice_unless_it_ran_at_a_kill(till: Till, tmp_path: Path) -> None:
    chance = random.Random(15)
    unanswered = 0
    for _ in range(KILLS):
        before, process = till.count(), start(tmp_path, till)
        until = time.monotonic() + PATIENCE
        while till.count() == before and process.poll() is None and time.monotonic() < until:
            time.sleep(0.005)  # of a real process
        time.sleep(chance.uniform(0.0, 0.6))
        assert process.poll() is None, (process.stderr or sys.stderr).read()
        unanswered += till.unanswered()
        process.kill()
        process.communicate()
        time.sleep(2 * LATENCY)  # the server does not know that nobody listens
    assert till.count() < ELEMENTS, "there is something left to do"
    last = start(tmp_path, till)
    _, errors = last.communicate(timeout=PATIENCE)
    assert last.returncode == 0, errors.decode()

    receipts = [json.loads(line) for line in (tmp_path / "receipts.jsonl").read_text().splitlines()]
    assert sorted(receipt["id"] for receipt in receipts) == list(range(ELEMENTS))
    assert sorted(receipt["receipt"] for receipt in receipts) == list(range(ELEMENTS))
    assert all(len(set(keys)) == 1 for keys in till.calls.values())
    assert len(till.charged) == ELEMENTS
    repeated = till.count() - ELEMENTS
    assert repeated <= unanswered
    assert unanswered < 40 * KILLS
    sizes = [file.stat().st_size for file in (tmp_path / "state").glob("calls-*")]
    assert sum(sizes) < 200 * ELEMENTS
