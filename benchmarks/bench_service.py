"""
The FastAPI example over HTTP: how long a post takes until it is answered with 202, at a steady rate.

The service is a process of its own and this one is its clients, so two cores are in use. Each order is on the
disk before it is answered, then rated, written to a file, counted in windows and streamed. Of latencies the
least of several runs is taken, for neighbours only add to them.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from tempfile import TemporaryDirectory

import orjson

from benchmarks.kit import Goal, goals, run, table

__all__ = ("main",)

RATES = (250, 500, 1000)
"""Posts a second."""

CONNECTIONS = 100

WARM = 200
"""Posts before it is measured."""

HEAD = b"POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
ANSWER = b'{"new":true}'


@asynccontextmanager
async def example() -> AsyncIterator[str]:
    """The example in a process of its own: its address."""
    with TemporaryDirectory() as state:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "examples.fastapi_service"),
            env={**os.environ, "STATE": state, "PORT": "0"},
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        while not (found := re.search(rb"running on (\S+)", line := await process.stderr.readline())):
            assert line, "the example did not come up"
        rest = asyncio.create_task(process.stderr.read())
        try:
            yield found[1].decode()
        finally:
            process.terminate()
            await process.wait()
            await rest


class Connection(asyncio.Protocol):
    """
    A kept-alive connection for one post at a time, with a request that is bytes already.

    A whole HTTP client takes as much of a core for a post as the service does, and the two would wait for
    each other.
    """

    def __init__(self) -> None:
        self._received = b""
        self._answered: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def post(self, order: bytes, answered: Callable[[], None]) -> None:
        self._answered = answered
        self.transport.write(HEAD % len(order) + order)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end or len(body) < len(ANSWER):
            return
        assert (head[:12], body) == (b"HTTP/1.1 202", ANSWER), self._received
        self._received, answered, self._answered = b"", self._answered, None
        assert answered is not None
        answered()


class Clients:
    """
    Posts orders by connections that are free; when none is, orders wait.

    Attributes:
        taken: latencies of those that were answered, ms.
    """

    def __init__(self, free: Iterable[Connection]) -> None:
        self._free = deque(free)
        self._waiting: deque[tuple[int, float]] = deque()
        self._answered = asyncio.Event()
        self.taken: list[float] = []

    def post(self, number: int, due: float) -> None:
        """An order that is due at this time, in seconds of `time.perf_counter`; `taken` gets its latency."""
        if not self._free:
            self._waiting.append((number, due))
            return
        connection = self._free.popleft()

        def answered() -> None:
            self.taken.append((time.perf_counter() - due) * 1000)
            self._answered.set()
            self._free.append(connection)
            if self._waiting:
                self.post(*self._waiting.popleft())

        order = {
            "id": f"order {number}",
            "customer": f"c{number % 50}",
            "cents": number,
            "at_ms": 10**12 + number,
        }
        connection.post(orjson.dumps(order), answered)

    async def until(self, count: int) -> None:
        """Wait for so many answers."""
        async with asyncio.timeout(60):
            while len(self.taken) < count:
                self._answered.clear()
                await self._answered.wait()


async def latencies(rate: int, seconds: float) -> tuple[float, float, float]:
    """Median, 99th percentile and maximum, in ms, from the moment at which a post was due."""
    async with example() as url:
        host, port = url.removeprefix("http://").split(":")
        connect = partial(asyncio.get_running_loop().create_connection, Connection, host, int(port))
        clients = Clients([(await connect())[1] for _ in range(CONNECTIONS)])
        for number in range(WARM):
            clients.post(-1 - number, 0.0)
            await asyncio.sleep(0.002)
        await clients.until(WARM)
        clients.taken.clear()
        began = time.perf_counter()
        count = int(rate * seconds)
        for number in range(count):
            due = began + number / rate
            if (early := due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            clients.post(number, due)
        await clients.until(count)
    cuts = statistics.quantiles(clients.taken, n=100)
    return cuts[49], cuts[98], max(clients.taken)


def main(quick: bool = False) -> None:
    rows, p99 = [], 0.0
    for rate in RATES:
        turns = [run(latencies(rate, 1 if quick else 5)) for _ in range(1 if quick else 5)]
        median, p99, longest = (min(turn[place] for turn in turns) for place in range(3))
        rows.append((f"{rate:,}", f"{median:.1f}", f"{p99:.1f}", f"{longest:.1f}"))
    print("#### Posts to the FastAPI example\n")
    print(table(("posts a second", "median, ms", "p99, ms", "longest, ms"), rows), "\n")
    print(goals([Goal(f"p99 at {RATES[-1]:,} a second, ms", p99, 50, at_most=True, form="{:.1f}")]))


if __name__ == "__main__":
    main()
