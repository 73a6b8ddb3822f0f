"""Real HTTP from Spark's workers, counted at the server."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

from asyncstream import AsyncFunction
from asyncstream.guards import Retry
from asyncstream.runtime.spark import enrich
from tests.spark.cluster import columns, stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCHES, ROWS, CONCURRENCY, SLOTS = 5, 60, 8, 2


class Client(AsyncFunction[dict[str, Any], dict[str, Any]]):
    """Asks a server, over connections that it keeps."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def open(self) -> None:
        headers = {"Worker": str(os.getpid())}
        self.session = aiohttp.ClientSession(raise_for_status=True, headers=headers)

    async def invoke(self, value: dict[str, Any]) -> dict[str, Any]:
        async with self.session.get(f"{self.url}/{value['v']}") as reply:
            return {"v": int(await reply.text())}

    async def close(self) -> None:
        await self.session.close()


class Server:
    """
    Fails for every fourth number, once or twice.

    Attributes:
        asked: how often, by number.
        connections: over which each worker has asked.
        most: requests under way at once.
    """

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()
        self.connections: dict[str, set[Any]] = {}
        self.running = self.most = 0

    async def answer(self, request: web.Request) -> web.Response:
        number = int(request.match_info["v"])
        self.asked[number] += 1
        self.connections.setdefault(request.headers["Worker"], set()).add(request.transport)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.005)
        self.running -= 1
        if self.asked[number] <= failures(number):
            raise web.HTTPServiceUnavailable
        return web.Response(text=str(number))


def failures(number: int) -> int:
    return 1 + number % 8 // 4 if number % 4 == 0 else 0


@contextmanager
def serving(server: Server) -> Iterator[str]:
    """Its URL; from a thread of its own, since Spark blocks this one."""
    loop = asyncio.new_event_loop()
    app = web.Application()
    app.router.add_get("/{v}", server.answer)
    runner = web.AppRunner(app)

    async def start() -> str:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    url = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield url
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def test_connections_stay_open_across_micro_batches_and_retries_lose_no_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.sql.types import LongType

    server = Server()
    found: list[int] = []
    batches = [
        [{"key": "k", "ts": v, "v": v} for v in range(batch * ROWS, (batch + 1) * ROWS)]
        for batch in range(BATCHES)
    ]
    with serving(server) as url:
        source = stream(spark, tmp_path / "in", batches).repartition(SLOTS)
        patient = Retry(Client(url), attempts=5, wait_initial=0.01)
        schema = columns(v=LongType())
        out = enrich(source, patient, schema=schema, concurrency=CONCURRENCY, order="unordered")

        def write(batch: DataFrame, number: int) -> None:
            found.extend(row.v for row in batch.collect())

        writer = out.writeStream.foreachBatch(write).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        assert writer.trigger(availableNow=True).start().awaitTermination(60) is not False
    assert sorted(found) == list(range(BATCHES * ROWS))
    assert server.asked == {number: 1 + failures(number) for number in found}
    assert server.most <= CONCURRENCY * SLOTS
    # Spark may have more workers than slots, and take turns with them
    assert all(len(connections) <= CONCURRENCY for connections in server.connections.values())
    assert len(server.connections) < BATCHES * SLOTS
