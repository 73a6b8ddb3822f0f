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
import signal
import traceback
import warnings
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.connectors.kafka import app
from tests.servers.kafka import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

KILLS = int(os.environ.get("ASYNCSTREAM_KILLS", "8"))
PARTITIONS = 3
PATIENCE = 60.0


async def filled(kafka: Kafka, count: int) -> tuple[str, str]:
    """A topic to read, with so many records, and one to write."""
    read, write = await kafka.topic(PARTITIONS), await kafka.topic(PARTITIONS)
    await kafka.fill(read, [b'{"n": %d}' % number for number in range(count)], PARTITIONS)
    return read, write


class Process:
    """One run of the pipeline, forked: nothing is imported again."""

    def __init__(self, folder: Path, id: str, *arguments: Any) -> None:
        self._kept = folder / id
        self._has_ended = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child does not use
            self._child = os.fork()
        if not self._child:
            self._run(folder, id, *arguments)

    def _run(self, *arguments: Any) -> NoReturn:
        try:
            asyncio.new_event_loop().run_until_complete(app.main(*arguments))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def is_running(self) -> bool:
        self._has_ended = self._has_ended or os.waitpid(self._child, os.WNOHANG)[0] != 0
        return not self._has_ended

    async def checkpoints(self) -> None:
        """Until there is a new one: processes are as slow as the machine is busy."""
        before = self._newest_ns()
        async with asyncio.timeout(PATIENCE):
            while self._newest_ns() == before and self.is_running():  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)

    def _newest_ns(self) -> int:
        return max((path.stat().st_mtime_ns for path in self._kept.glob("*.checkpoint")), default=0)

    def kill(self) -> None:
        if not self._has_ended:
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)

    async def ended(self) -> None:
        _, status = await asyncio.to_thread(os.waitpid, self._child, 0)
        assert status == 0


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
