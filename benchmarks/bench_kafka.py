"""
What reading and writing Kafka through a pipeline costs beside the bare client, aiokafka, with equal settings.

The server is the stand-in that the tests use, in memory, on this machine: it costs next to nothing, so nearly
all that is measured is the client's and ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from asyncstream import Checkpoints, MemoryStore, Pipeline
from asyncstream.connectors.kafka import KafkaSink, KafkaSource, KafkaTransactionalSink
from benchmarks.kit import Goal, compare, goals, results, run
from tests.servers.kafka import Kafka, transactional_server

__all__ = ("main",)

PARTITIONS = 4


def event(number: int) -> dict[str, Any]:
    return {"id": number, "customer": f"c{number % 100}", "items": [1, 2, 3], "price": number / 7}


@contextmanager
def server(count: int) -> Iterator[tuple[Kafka, str, str]]:
    """A server, a topic to read with so many records, and one to write."""
    with TemporaryDirectory() as folder:
        kafka = transactional_server(Path(folder))
        kafka.start()
        try:
            read, write = run(kafka.topic(PARTITIONS)), run(kafka.topic(PARTITIONS))
            run(kafka.fill(read, (orjson.dumps(event(number)) for number in range(count)), PARTITIONS))
            yield kafka, read, write
        finally:
            kafka.stop()


async def bare_read(kafka: Kafka, topic: str, count: int) -> int:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.address, isolation_level="read_committed", max_poll_records=1000
    )
    await consumer.start()
    consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
    await consumer.seek_to_beginning()
    found: list[Any] = []
    while len(found) < count:
        for records in (await consumer.getmany(timeout_ms=200)).values():
            found += [orjson.loads(record.value) for record in records]
    await consumer.stop()
    return len(found)


async def our_read(kafka: Kafka, topic: str, count: int) -> int:
    found: list[Any] = []
    pipeline = Pipeline("read")
    source = KafkaSource(topic, bootstrap_servers=kafka.address, stop_at_end=True)
    pipeline.source(source, name="events").to(found)
    await pipeline.run()
    return len(found)


async def bare_write(kafka: Kafka, topic: str, events: list[Any]) -> int:
    producer = AIOKafkaProducer(bootstrap_servers=kafka.address, enable_idempotence=True)
    await producer.start()
    for start in range(0, len(events), 1000):
        sent = [await producer.send(topic, orjson.dumps(one)) for one in events[start : start + 1000]]
        await asyncio.gather(*sent)
    await producer.stop()
    return len(events)


async def our_write(kafka: Kafka, topic: str, events: list[Any]) -> int:
    pipeline = Pipeline("write")
    pipeline.source(events, name="events").to(KafkaSink(topic, bootstrap_servers=kafka.address))
    await pipeline.run()
    return len(events)


async def bare_transactions(kafka: Kafka, topic: str, events: list[Any]) -> int:
    producer = AIOKafkaProducer(bootstrap_servers=kafka.address, transactional_id="bare")
    await producer.start()
    await producer.begin_transaction()
    sent = [await producer.send(topic, orjson.dumps(one)) for one in events]
    await producer.commit_transaction()
    await asyncio.gather(*sent)
    await producer.stop()
    return len(events)


async def our_transactions(kafka: Kafka, topic: str, events: list[Any]) -> int:
    pipeline = Pipeline("write")
    sink = KafkaTransactionalSink(topic, transactional_id="ours", bootstrap_servers=kafka.address)
    pipeline.source(events, name="events").to(sink, name="written")
    checkpoints = Checkpoints(store=MemoryStore(), every=1, ahead="allow_behind")
    await pipeline.run(checkpoints=checkpoints)
    return len(events)


Workload: TypeAlias = Callable[[], Coroutine[Any, Any, int]]


def done(workload: Workload) -> int:
    return run(workload())


def main(quick: bool = False) -> None:
    count, turns = (5_000, 1) if quick else (100_000, 5)
    events = [event(number) for number in range(count)]
    reached = []
    with server(count) as (kafka, read, write):
        workloads: dict[str, tuple[Workload, Workload]] = {
            "Reading": (
                partial(bare_read, kafka, read, count),
                partial(our_read, kafka, read, count),
            ),
            "Writing, at least once": (
                partial(bare_write, kafka, write, events),
                partial(our_write, kafka, write, events),
            ),
            "Writing in transactions, one a second": (
                partial(bare_transactions, kafka, write, events),
                partial(our_transactions, kafka, write, events),
            ),
        }
        for what, (bare, ours) in workloads.items():
            base = "aiokafka"
            measured = compare(
                {base: partial(done, bare), "asyncstream": partial(done, ours)}, base=base, turns=turns
            )
            print(results(what, measured, base=base))
            reached.append(Goal(f"{what}: of aiokafka's throughput", measured["asyncstream"].wall_ratio, 0.8))
    print(goals(reached))


if __name__ == "__main__":
    main()
