"""A cache in a real Redis: between two lives, between processes, full, and away."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
from typing import Any

import pytest

from asyncstream import PipelineError
from asyncstream.errors import MissingExtra
from asyncstream.guards import RedisCache, cached
from tests.guards.services import Flaky
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.broker

redis = pytest.importorskip("redis")


async def test_what_was_answered_in_an_earlier_life_is_not_asked_for(redis_url: str) -> None:
    service = Flaky(0)
    for life in range(2):
        async with cached(service, store=redis_url) as guarded:
            assert [await guarded(value) for value in range(500)] == list(range(500))
            assert guarded.metrics()["cache_stored"] == (500 if life else 0)
    assert len(service.times) == 500


async def test_the_server_forgets_what_is_of_no_more_use(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)
    async with cached(Flaky(0), store=redis_url, ttl=5, stale_for=3, stale_if_error=100) as guarded:
        await guarded(1)
    async with cached(Flaky(0), store=redis_url, name="for ever", ttl=None) as guarded:
        await guarded(1)
    lives = sorted(client.pttl(key) for key in client.scan_iter("asyncstream:cache:answer:*"))
    assert lives[0] == -1
    assert 100_000 < lives[1] <= 105_000
    client.close()


async def test_one_process_of_all_makes_the_call(redis_url: str) -> None:
    service = Flaky(1, takes=0.05)
    guards = [cached(service, store=redis_url, lease=30) for _ in range(3)]
    for guard in guards:
        await guard.open()
    found = await asyncio.gather(*(guard(1) for guard in guards for _ in range(2)), return_exceptions=True)
    assert len(service.times) == 2, "the first one failed"
    assert service.most_running == 1
    assert [answer for answer in found if not isinstance(answer, OSError)] == [1] * 4
    for guard in guards:
        await guard.close()
    client = redis.Redis.from_url(redis_url)
    assert list(client.scan_iter("asyncstream:cache:lease:*")) == []
    client.close()


async def test_a_lease_of_somebody_else_is_not_given_back(redis_url: str) -> None:
    one, other = RedisCache(redis_url), RedisCache(redis_url)
    await one.open()
    await other.open()
    key = b"k" * 16
    assert await one.lease(key, 20)
    while not await other.lease(key, 60_000):  # noqa: ASYNC110 - of the server's time
        await asyncio.sleep(0.005)
    one.release(key)
    await asyncio.sleep(0.05)
    assert not await one.lease(key, 60_000)
    await one.close()
    await other.close()


async def test_it_does_not_grow_beyond_its_size(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)
    service = Flaky(0)
    async with cached(service, store=RedisCache(redis_url, size=100)) as guarded:
        for value in range(400):
            await guarded(value)
            if value % 60 == 0:
                await asyncio.sleep(0.02)
    assert len(list(client.scan_iter("asyncstream:cache:answer:*"))) == 100
    assert client.zcard("asyncstream:cache:by-age") == 100
    async with cached(service, store=redis_url) as guarded:
        for value in range(300, 400):
            await guarded(value)
    assert len(service.times) == 400
    client.close()


async def test_a_server_that_is_away_costs_calls_and_nothing_else(
    redis_server: RedisServer, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    service = Flaky(0)
    async with cached(service, store=redis_url, size=1, lease=10) as guarded:
        await guarded(1)
        redis_server.kill()
        try:
            with caplog.at_level(logging.WARNING):
                for value in (2, 3, 2):
                    assert await guarded(value) == value
            assert caplog.text.count("Redis (asyncstream:cache): the cache goes on without it") == 1
        finally:
            redis_server.start()
        calls = len(service.times)
        for _ in range(1000):  # until it is looked at again
            await guarded(4)
            await guarded(5)
            if len(service.times) == calls:
                break
            calls = len(service.times)
            await asyncio.sleep(0.01)
        assert await guarded(4) == 4


async def test_it_can_be_sent_to_another_process(redis_url: str) -> None:
    store: RedisCache = pickle.loads(pickle.dumps(RedisCache(redis_url)))
    await store.open()
    store.put(b"k" * 16, b"answer", 60_000)
    await store.close()
    assert str(store) == "Redis (asyncstream:cache)", "an address may hold a password"


def test_what_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: Any
    for wrong in (3, "http://localhost", ""):
        with pytest.raises(PipelineError, match="url: expected the address of a Redis server"):
            RedisCache(wrong)
    with pytest.raises(PipelineError, match="prefix"):
        RedisCache("redis://localhost", prefix="")
    with pytest.raises(PipelineError, match="timeout"):
        RedisCache("redis://localhost", timeout=0)
    monkeypatch.setitem(sys.modules, "redis.asyncio.connection", None)
    with pytest.raises(MissingExtra, match=r"asyncstream\[redis\]"):
        RedisCache("redis://localhost")


async def test_a_caller_that_is_cancelled_while_it_asks_ends_so(redis_url: str) -> None:
    """By Python 3.11 the client goes on if it is cancelled while it sends."""

    async def fetch(number: int) -> int:
        return number

    async with cached(fetch, store=redis_url) as guard:
        await guard(0)  # there is a connection
        for turns in range(1, 9):
            asking = asyncio.ensure_future(guard(turns))
            for _ in range(turns):
                await asyncio.sleep(0)
            if asking.cancel():
                async with asyncio.timeout(60):
                    await asyncio.wait({asking})
                assert asking.cancelled(), f"after {turns} turns"
