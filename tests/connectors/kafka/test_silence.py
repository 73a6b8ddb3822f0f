"""Brokers that are gone: no wait is without an end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncstream import Pipeline, Sink, SinkError
from asyncstream.connectors import cancellation
from asyncstream.connectors.kafka import KafkaSink, KafkaSource, KafkaTransactionalSink, client, transactions
from tests.servers.kafka import Kafka, transactional_server

pytestmark = [pytest.mark.broker, pytest.mark.slow]

QUICK = {"request_timeout_ms": 500}


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Kafka]:
    """A server of the test's own, to be held and killed."""
    server = transactional_server(tmp_path)
    with server.running():
        yield server


def plain(topic: str, address: str) -> Sink[Any]:
    return KafkaSink(topic, bootstrap_servers=address, client=QUICK)


def transactional(topic: str, address: str) -> Sink[Any]:
    return KafkaTransactionalSink(topic, transactional_id="t", bootstrap_servers=address, client=QUICK)


MAKE = pytest.mark.parametrize("make", [plain, transactional])


@MAKE
async def test_a_write_ends_though_the_broker_does_not_come_back(
    own: Kafka, make: Callable[[str, str], Sink[Any]]
) -> None:
    topic = await own.topic()

    async def call(number: int) -> int:
        own.kill()
        return number

    pipeline = Pipeline("gone")
    numbers = pipeline.source([1, 2, 3], name="in").async_map(call, name="call", concurrency=1)
    numbers.to(make(topic, own.address), name="out")
    with pytest.raises(SinkError, match=f"step 'out': cannot write to '{topic}' at .*answer"):
        await asyncio.wait_for(pipeline.run(), 60)


@MAKE
async def test_a_job_whose_broker_is_gone_can_be_stopped(
    own: Kafka, make: Callable[[str, str], Sink[Any]]
) -> None:
    topic = await own.topic()
    sink = make(topic, own.address)
    await sink.open()
    own.kill()
    writing = asyncio.ensure_future(sink.write([1, 2, 3], None))
    await asyncio.sleep(0.1)  # of a real server
    writing.cancel()
    with pytest.raises((asyncio.CancelledError, SinkError)):
        await asyncio.wait_for(writing, 30)
    await asyncio.wait_for(sink.close(), 30)


@MAKE
@pytest.mark.usefixtures("tidy", "others_gone")
async def test_what_a_sink_had_not_written_when_it_was_closed_it_does_not_try_again(
    own: Kafka, monkeypatch: pytest.MonkeyPatch, make: Callable[[str, str], Sink[Any]]
) -> None:
    for module in (cancellation, transactions):
        monkeypatch.setattr(module, "_PATIENCE", 0.1)
    monkeypatch.setattr(client, "_FAREWELL", 0.1)
    sink = make(await own.topic(), own.address)
    await sink.open()
    own.kill()
    writing = asyncio.ensure_future(sink.write([1, 2, 3], None))
    await asyncio.sleep(0.1)  # of a real client
    writing.cancel()
    await asyncio.wait({writing}, timeout=20)
    await asyncio.wait_for(sink.close(), 20)
    del sink, writing
    gc.collect()  # when it is told of a future that nobody has looked at


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_a_write_that_the_client_has_no_room_for_is_given_up(
    own: Kafka, monkeypatch: pytest.MonkeyPatch, is_transactional: bool
) -> None:
    topic = await own.topic()
    for module in (cancellation, transactions):
        monkeypatch.setattr(module, "_PATIENCE", 0.1)
    # a broker may be silent for minutes
    sink: Sink[Any] = KafkaSink(topic, bootstrap_servers=own.address)
    if is_transactional:
        sink = KafkaTransactionalSink(topic, transactional_id="t", bootstrap_servers=own.address)
    await sink.open()
    with own.held():
        writing = asyncio.ensure_future(sink.write(["1" * 1000] * 100, None))
        await asyncio.sleep(0.1)  # of a real server
        writing.cancel()
        await asyncio.wait({writing}, timeout=20)
        assert writing.cancelled()
    assert sink.taken() == 0
    await asyncio.wait_for(sink.close(), 30)


async def test_a_transaction_is_aborted_however_often_its_write_is_cancelled(own: Kafka) -> None:
    sink = KafkaTransactionalSink(await own.topic(), transactional_id="t", bootstrap_servers=own.address)
    await sink.open()
    begun, goes_on, aborted = asyncio.Event(), asyncio.Event(), asyncio.Event()
    producer = sink._slots[0].producer
    abort = producer.abort_transaction

    async def slowly() -> None:
        begun.set()
        await goes_on.wait()
        await abort()
        aborted.set()

    producer.abort_transaction = slowly
    with own.held():
        writing = asyncio.ensure_future(sink.write([1, 2, 3], None))
        await asyncio.sleep(0.1)  # of a real server
        writing.cancel()
        await asyncio.wait_for(begun.wait(), 30)
        for _ in range(2):
            writing.cancel()
            await asyncio.sleep(0)
    goes_on.set()
    await asyncio.wait({writing}, timeout=30)
    assert writing.cancelled()
    assert aborted.is_set()
    await sink.write([4], None)  # by the same producer
    assert sink.taken() == 1
    await sink.close()


async def test_a_source_whose_broker_is_gone_is_closed_without_an_error(own: Kafka) -> None:
    topic = await own.topic()
    await own.fill(topic, [b"1", b"2"])
    source = KafkaSource(topic, bootstrap_servers=own.address, client=QUICK)
    await source.open()
    batch = await source.read()
    assert batch is not None
    own.kill()
    reading = asyncio.ensure_future(source.read())
    await asyncio.sleep(1)  # of a real client, which tries to connect again
    reading.cancel()
    await asyncio.wait_for(source.close(), 30)
