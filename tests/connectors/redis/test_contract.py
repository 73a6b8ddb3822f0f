"""Redis Streams keep the contracts of sources and sinks, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from asyncstream.connectors import RedisGroupSource, RedisStreamSink, RedisStreamSource
from asyncstream.testing import Check, sink_contract, source_contract
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.broker

ELEMENTS = [{"n": number, "text": "x" * number} for number in range(24)]

PLACE: dict[str, str] = {}
"""Where the server is: a contract is written down before there is one."""


@pytest.fixture(autouse=True)
def place(redis_server: RedisServer) -> Iterator[None]:
    PLACE["url"] = redis_server.url
    yield
    PLACE.clear()


def client() -> Redis:
    return Redis.from_url(PLACE["url"])


def write(folder: Path) -> None:
    with client() as redis:
        for element in ELEMENTS:
            redis.xadd(str(folder), {"data": json.dumps(element)})


def read(folder: Path) -> list[Any]:
    with client() as redis:
        found: Any = redis.xrange(str(folder))
    return [json.loads(fields[b"data"]) for _, fields in found]


def log(folder: Path) -> RedisStreamSource[Any]:
    return RedisStreamSource(PLACE["url"], str(folder), batch=5)


def group(folder: Path) -> RedisGroupSource[Any]:
    return RedisGroupSource(PLACE["url"], str(folder), group="g", batch=5)


def sink(folder: Path) -> RedisStreamSink:
    return RedisStreamSink(PLACE["url"], str(folder))


def sink_with_ids(folder: Path) -> RedisStreamSink:
    return RedisStreamSink(PLACE["url"], str(folder), id="n")


@pytest.mark.parametrize("check", source_contract(log, ELEMENTS, prepare=write, ends=False), ids=str)
async def test_log(check: Check, tmp_path: Path) -> None:
    await check(tmp_path)


@pytest.mark.parametrize("check", source_contract(group, ELEMENTS, prepare=write, ends=False), ids=str)
async def test_group(check: Check, tmp_path: Path) -> None:
    await check(tmp_path)


@pytest.mark.parametrize("check", sink_contract(sink, read, ELEMENTS, transactional=False), ids=str)
async def test_sink(check: Check, tmp_path: Path) -> None:
    await check(tmp_path)


@pytest.mark.parametrize("check", sink_contract(sink_with_ids, read, ELEMENTS, transactional=False), ids=str)
async def test_sink_with_ids(check: Check, tmp_path: Path) -> None:
    await check(tmp_path)
