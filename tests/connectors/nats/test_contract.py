"""JetStream keeps the contracts of sources and sinks, against a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from hashlib import sha1
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import nats
import pytest

from asyncstream.connectors import NatsConsumerSource, NatsSink, NatsStreamSource
from asyncstream.testing import Check, sink_contract, source_contract
from tests.servers.nats import NatsServer

pytestmark = pytest.mark.broker

T = TypeVar("T")

ELEMENTS = [{"n": number, "text": "x" * number} for number in range(24)]

PLACE: dict[str, str] = {}
"""Where the server is: a contract is written down before there is one."""


@pytest.fixture(autouse=True)
def place(nats_server: NatsServer) -> Iterator[None]:
    PLACE["url"] = nats_server.url
    yield
    PLACE.clear()


def elsewhere(work: Coroutine[Any, Any, T]) -> T:
    """Run something in a loop of its own, though one is running."""
    found: list[T] = []
    thread = Thread(target=lambda: found.append(asyncio.run(work)))
    thread.start()
    thread.join()
    return found[0]


def stream_of(folder: Path) -> str:
    return f"s{sha1(str(folder).encode()).hexdigest()[:16]}"


async def publish(name: str, elements: list[Any]) -> None:
    client = await nats.connect(PLACE["url"])
    await client.jetstream().add_stream(name=name, subjects=[name])
    for element in elements:
        await client.jetstream().publish(name, json.dumps(element).encode())
    await client.close()


def write(folder: Path) -> None:
    elsewhere(publish(stream_of(folder), ELEMENTS))


async def read(folder: Path) -> list[Any]:
    client = await nats.connect(PLACE["url"])
    js = client.jetstream()
    found = []
    for number in range(1, (await js.stream_info(stream_of(folder))).state.last_seq + 1):
        message = await js.get_msg(stream_of(folder), number)
        found.append(json.loads(message.data or b""))
    await client.close()
    return found


def log(folder: Path) -> NatsStreamSource[Any]:
    return NatsStreamSource(PLACE["url"], stream_of(folder), batch=5)


def consumer(folder: Path) -> NatsConsumerSource[Any]:
    return NatsConsumerSource(PLACE["url"], stream_of(folder), durable="d", batch=5, ack_wait=0.5)


def sink(folder: Path) -> NatsSink:
    elsewhere(publish(stream_of(folder), []))
    return NatsSink(PLACE["url"], stream_of(folder), id="n")


@pytest.mark.parametrize("check", source_contract(log, ELEMENTS, prepare=write, ends=False), ids=str)
async def test_log(check: Check, tmp_path: Path) -> None:
    await check(tmp_path)


@pytest.mark.parametrize(
    "check",
    source_contract(consumer, ELEMENTS, prepare=write, ends=False, replays_in_order=False),
    ids=str,
)
async def test_consumer(check: Check, tmp_path: Path) -> None:
    await check(tmp_path)


@pytest.mark.parametrize("check", sink_contract(sink, read, ELEMENTS, transactional=False), ids=str)
async def test_sink(check: Check, tmp_path: Path) -> None:
    await check(tmp_path)
