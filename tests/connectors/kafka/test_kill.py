"""
Kafka to Kafka with async enrichment, in processes that are killed at any moment: what `read_committed`
readers find in the end is the input, once, in the order of each partition. What the server does not prove:
`tests.servers.kafka`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path

import pytest

from tests.connectors.kafka.processes import Process
from tests.servers.kafka import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

KILLS = int(os.environ.get("ASYNCSTREAM_KILLS", "8"))
PARTITIONS = 3


async def filled(kafka: Kafka, count: int) -> tuple[str, str]:
    """A topic to read, with so many records, and one to write."""
    read, write = await kafka.topic(PARTITIONS), await kafka.topic(PARTITIONS)
    await kafka.fill(read, [b'{"n": %d}' % number for number in range(count)], PARTITIONS)
    return read, write


async def written(kafka: Kafka, topic: str) -> list[list[int]]:
    """The numbers in a topic, by partition."""
    return [[json.loads(one.value)["n"] for one in records] for records in await kafka.records(topic)]


def in_order(count: int) -> list[list[int]]:
    return [list(range(partition, count, PARTITIONS)) for partition in range(PARTITIONS)]


async def test_killed_at_any_moment_it_writes_each_record_once_in_order(kafka: Kafka, tmp_path: Path) -> None:
    count = 400 * KILLS
    topics = await filled(kafka, count)
    chance = random.Random(KILLS)
    for _ in range(KILLS):
        process = Process(tmp_path, "job", kafka.address, *topics)
        await process.checkpoints()
        await asyncio.sleep(chance.random() * 0.2)  # of a real process
        process.kill()
    await Process(tmp_path, "job", kafka.address, *topics).ended()
    assert await written(kafka, topics[1]) == in_order(count)


async def test_of_three_members_one_is_killed_and_nothing_is_lost_or_doubled(
    kafka: Kafka, tmp_path: Path
) -> None:
    count = 1500
    topics = await filled(kafka, count)

    def start(number: int) -> Process:
        return Process(tmp_path, f"member-{number}", kafka.address, *topics, (number,))

    members = [start(number) for number in range(PARTITIONS)]
    await members[1].checkpoints()
    members[1].kill()
    members[1] = start(1)
    await asyncio.gather(*(member.ended() for member in members))
    assert await written(kafka, topics[1]) == in_order(count)
