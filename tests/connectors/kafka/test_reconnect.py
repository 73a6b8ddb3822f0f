"""
A server that goes away and comes back: the restart policy reconnects, and nothing is lost or doubled. The
stand-in keeps its data only when it is stopped in an orderly way; see `tests.servers.kafka`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncstream import Checkpoints, MemoryStore, Pipeline, Restarts
from asyncstream.connectors.kafka import KafkaSink, KafkaSource
from tests.servers.kafka import Kafka, transactional_server

pytestmark = [pytest.mark.broker, pytest.mark.slow]

QUICK = {"request_timeout_ms": 1000}


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Kafka]:
    """A server of the test's own, to be stopped."""
    server = transactional_server(tmp_path)
    server.start()
    yield server
    server.stop()


async def test_a_job_goes_on_when_the_server_is_back(own: Kafka) -> None:
    read, write = await own.topic(), await own.topic()
    await own.fill(read, [b"%d" % number for number in range(100)])
    begun, away = asyncio.Event(), asyncio.Event()

    async def call(number: int) -> int:
        if number == 50:
            begun.set()
            await away.wait()
        return number

    pipeline = Pipeline("away")
    source = KafkaSource(read, bootstrap_servers=own.address, stop_at_end=True, batch=10, client=QUICK)
    calls = pipeline.source(source, name="numbers").async_map(call, name="calls", concurrency=1)
    calls.to(KafkaSink(write, bootstrap_servers=own.address, client=QUICK), name="written")
    running = asyncio.create_task(
        pipeline.run(
            checkpoints=Checkpoints(store=MemoryStore(), every=0.1),
            restart=Restarts(attempts=200, backoff=0.2, longest=0.5),
        )
    )
    await begun.wait()
    own.stop()
    away.set()
    await asyncio.sleep(0.5)  # of a real server
    own.start()
    await asyncio.wait_for(running, 100)
    assert sorted({int(value or b"") for value in await own.values(write)}) == list(range(100))
