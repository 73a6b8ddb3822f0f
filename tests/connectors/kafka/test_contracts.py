"""Source and sinks of Kafka keep the contracts; see `tests.servers.kafka` for what this proves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

import pytest

from asyncstream.connectors.kafka import KafkaSink, KafkaSource, KafkaTransactionalSink
from asyncstream.testing import Check, sink_contract, source_contract
from tests.servers.kafka import Kafka

pytestmark = pytest.mark.broker

ROWS: list[dict[str, Any]] = [{"n": number, "text": "x" * number} for number in range(24)]


class Server:
    """The one that the checks go to: they are made before it is started."""

    kafka: Kafka
    topics: ClassVar[set[str]] = set()
    """Those that are known to be there."""


@pytest.fixture(autouse=True)
def server(kafka: Kafka) -> None:
    Server.kafka = kafka


def topic_of(folder: Path) -> str:
    return "t" + blake2b(str(folder).encode(), digest_size=8).hexdigest()


def apart(work: Callable[[], Any]) -> None:
    """Run a coroutine function in a loop of its own, from within a running one."""
    import threading

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    thread.join()


def prepare(folder: Path) -> None:
    async def fill() -> None:
        topic = await Server.kafka.topic(3, topic_of(folder))
        await Server.kafka.fill(topic, [json.dumps(row).encode() for row in ROWS], 3)

    apart(fill)


def source(folder: Path) -> KafkaSource:
    servers = Server.kafka.address
    return KafkaSource(topic_of(folder), bootstrap_servers=servers, stop_at_end=True, batch=4)


async def read(folder: Path) -> list[Any]:
    return [json.loads(value or b"") for value in await Server.kafka.values(topic_of(folder))]


def made(folder: Path) -> str:
    topic = topic_of(folder)

    async def make() -> None:
        if topic not in await Server.kafka.topics():
            await Server.kafka.topic(1, topic)

    if topic not in Server.topics:
        apart(make)
        Server.topics.add(topic)
    return topic


def transactional(folder: Path) -> KafkaTransactionalSink:
    topic = made(folder)
    return KafkaTransactionalSink(topic, transactional_id=topic, bootstrap_servers=Server.kafka.address)


def at_least_once(folder: Path) -> KafkaSink:
    return KafkaSink(made(folder), bootstrap_servers=Server.kafka.address)


@pytest.mark.parametrize(
    "check", source_contract(source, ROWS, prepare=prepare, split_of=lambda row: row["n"] % 3), ids=str
)
async def test_source(check: Check, tmp_path: Path) -> None:
    await check(tmp_path)


@pytest.mark.parametrize("check", sink_contract(at_least_once, read, ROWS, transactional=False), ids=str)
async def test_sink(check: Check, tmp_path: Path) -> None:
    await check(tmp_path)


TRANSACTIONAL = [
    check
    for check in sink_contract(transactional, read, ROWS, rewinds=False)
    # half a minute on a busy machine; test_kill has processes end in calls, at moments of chance
    if check.name != "crashes_within_calls_lose_and_double_nothing"
]


@pytest.mark.parametrize("check", TRANSACTIONAL, ids=str)
async def test_transactional_sink(check: Check, tmp_path: Path) -> None:
    await check(tmp_path)
