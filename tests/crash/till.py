"""
A service that charges, once for each idempotency key, and counts.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict

from aiohttp import web

__all__ = ("LATENCY", "Till")

LATENCY = 0.1
"""Seconds until the server answers."""

ON_THE_WAY = 0.1
"""Seconds for which an answer that was sent may not have been noted, while the client goes on asking."""


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
        self._asked = 0.0
        self._loop = asyncio.new_event_loop()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Till:
        self._thread.start()
        assert self._is_up.wait(60)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

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
        self._asked = time.monotonic()
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

    def unanswered_at(self, moment: float) -> int:
        """
        Calls whose answer had not arrived at that time of the clock, as far as the server can know.

        To be asked for when it is through with them: some may have been on the way to it. What it has sent
        since the client asked for something may be unread, however long ago on a busy machine.
        """
        heard_of = min(moment, self._asked)
        return len(self._running) + sum(sent > heard_of - ON_THE_WAY for sent in self._sent)
