"""
Members of a consumer group share a topic: partitions move, nothing is lost, and nothing that is under way is
committed. What the server does not prove: `tests.servers.kafka`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaConnectionError

from asyncstream import Checkpoints, MemoryStore, Pipeline
from asyncstream.connectors.kafka import KafkaSink, KafkaSource
from asyncstream.errors import PipelineError, SourceError
from tests.connectors.kafka.processes import Process
from tests.servers.kafka import Kafka, group_server

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PARTITIONS = 3
QUICK = {"session_timeout_ms": 2500, "heartbeat_interval_ms": 200, "rebalance_timeout_ms": 10_000}
"""For a broker that waits for a session to end when members come and go. One may be taken for dead."""

PATIENT = QUICK | {"session_timeout_ms": 6000}
"""Where nobody may be taken for dead on a busy machine, as what is read twice then is the member's fault."""


def numbers(count: int, first: int = 0) -> list[bytes | None]:
    return [b"%d" % number for number in range(first, first + count)]


def member(kafka: Kafka, topic: str, client: dict[str, int]) -> KafkaSource:
    return KafkaSource(topic, bootstrap_servers=kafka.address, group=f"g-{topic}", client=client, batch=50)


async def read_on(source: KafkaSource) -> None:
    while True:
        await source.read()


async def until(is_so: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not await is_so():
            pass  # each look takes its time


async def test_nothing_is_committed_behind_a_call_that_hangs(kafka_groups: Kafka) -> None:
    topic = await kafka_groups.topic(PARTITIONS)
    await kafka_groups.fill(topic, numbers(3000), PARTITIONS)
    hangs = asyncio.Event()
    done: list[int] = []

    async def call(number: int) -> int:
        if number == 1500:  # offset 500 of partition 0
            await hangs.wait()
        return number

    pipeline = Pipeline("stuck")
    calls = pipeline.source(member(kafka_groups, topic, QUICK), name="numbers").async_map(
        call, order="unordered", concurrency=20
    )
    calls.to(done)

    async def committed() -> dict[int, int]:
        return await kafka_groups.committed(f"g-{topic}", topic, PARTITIONS)

    async def all_but_one() -> bool:
        await asyncio.sleep(0.05)  # of a real server
        return len(set(done)) == 2999  # who was taken for dead reads again what is not committed

    async with pipeline.start() as job:
        await until(all_but_one)
        assert (await committed())[0] <= 500
        hangs.set()

        async def all_are_committed() -> bool:
            return await committed() == dict.fromkeys(range(PARTITIONS), 1000)

        await until(all_are_committed)
        await job.stop()


async def test_a_partition_is_handed_over_when_what_was_read_of_it_is_done(kafka_groups: Kafka) -> None:
    topic = await kafka_groups.topic(PARTITIONS)
    await kafka_groups.fill(topic, numbers(30_000), PARTITIONS)
    seen: dict[str, list[int]] = {"first": [], "second": []}

    def build(name: str) -> Pipeline:
        async def call(number: int) -> int:
            await asyncio.sleep(0.002)  # of a real server
            return number

        pipeline = Pipeline(name)
        calls = pipeline.source(member(kafka_groups, topic, PATIENT), name="numbers").async_map(
            call, name="calls", concurrency=4
        )
        calls.to(seen[name].append, name="seen")
        return pipeline

    def kept() -> Checkpoints:
        return Checkpoints(store=MemoryStore(), every=3600)  # those that are asked for must do

    def have_read(name: str) -> Callable[[], Awaitable[bool]]:
        async def look() -> bool:
            await asyncio.sleep(0.01)  # of a real server
            return len(seen[name]) > 100

        return look

    async with build("first").start(checkpoints=kept()) as first:
        await until(have_read("first"))
        async with build("second").start(checkpoints=kept()) as second:
            await until(have_read("second"))
            both = sorted(seen["first"] + seen["second"])
            for partition in range(PARTITIONS):
                read = [number for number in both if number % PARTITIONS == partition]
                assert read == list(range(partition, partition + len(read) * PARTITIONS, PARTITIONS))
            await second.stop()
        await first.stop()


@pytest.mark.parametrize("kept", [None, 1])
async def test_where_a_group_begins_with_the_latest_is_written_down_before_a_member_can_die(
    kafka_groups: Kafka, kept: int | None
) -> None:
    topic = await kafka_groups.topic(1)
    for _ in range(2):
        await kafka_groups.fill(topic, numbers(1))
    source = KafkaSource(
        topic, bootstrap_servers=kafka_groups.address, group=f"g-{topic}", client=QUICK, start="latest"
    )
    await source.open()
    if kept is not None:  # by a checkpoint; what was committed is gone, after a week without a member say
        await source.seek({f"{topic}-0": kept})
    async with asyncio.timeout(60):
        while not source.splits():
            await source.read()
    assert await kafka_groups.committed(f"g-{topic}", topic, 1) == {0: 2 if kept is None else kept}
    await source.close()


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_a_broker_that_has_forgotten_all_is_told_of(
    tmp_path: Path, start: Literal["earliest", "latest"]
) -> None:
    with group_server(tmp_path).running() as own:
        topic = await own.topic(1)
        source = KafkaSource(
            topic, bootstrap_servers=own.address, group=f"g-{topic}", client=PATIENT, start=start
        )
        await source.open()
        async with asyncio.timeout(60):
            while not source.splits():
                await source.read()
            await own.fill(topic, numbers(9))
            while source.position() != {f"{topic}-0": 9}:
                await source.read()
            await source.acknowledge({f"{topic}-0": 9})
            own.kill()
            own.start()
            await own.topic(1, topic)
            await own.fill(topic, numbers(3))
            with pytest.raises(SourceError, match=r"cannot go on at offset 9 of .* the topic was made anew"):
                await read_on(source)
        await source.close()


async def copy(folder: Path, id: str, address: str, read: str, write: str) -> None:
    """A member that copies a topic until it is killed."""

    async def call(number: int) -> dict[str, Any]:
        await asyncio.sleep(0.002)
        return {"n": number, "by": id}

    pipeline = Pipeline(id)
    source = KafkaSource(read, bootstrap_servers=address, group=f"g-{read}", client=QUICK, batch=20)
    calls = pipeline.source(source, name="numbers").async_map(call, name="calls", concurrency=2)
    calls.to(KafkaSink(write, bootstrap_servers=address, idempotent=False), name="written")
    await pipeline.run()


async def test_of_three_members_one_is_killed_and_nothing_is_lost(
    kafka_groups: Kafka, tmp_path: Path
) -> None:
    count = 0
    read, write = await kafka_groups.topic(PARTITIONS), await kafka_groups.topic()
    members = [
        Process(tmp_path, f"m{number}", kafka_groups.address, read, write, work=copy) for number in range(3)
    ]
    try:

        async def found() -> list[dict[str, Any]]:
            return [
                json.loads(value or b"") for value in await kafka_groups.values(write, "read_uncommitted")
            ]

        async def has_written() -> bool:
            nonlocal count  # there is more to do until all have something of it, however late they come
            await kafka_groups.fill(read, numbers(500, count), PARTITIONS)
            count += 500
            return any(one["by"] == "m1" for one in await found())

        await until(has_written)
        members[1].kill()

        async def all_are_there() -> bool:
            return len({one["n"] for one in await found()}) == count

        await until(all_are_there, 100)
    finally:
        for process in members:
            process.kill()


async def test_what_could_not_be_committed_is_the_next_time(
    kafka_groups: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await kafka_groups.topic(1)
    await kafka_groups.fill(topic, numbers(3))
    source = member(kafka_groups, topic, PATIENT)
    await source.open()
    async with asyncio.timeout(60):
        while source.position() != {f"{topic}-0": 3}:
            await source.read()

    async def fails(*args: object) -> None:
        raise KafkaConnectionError

    with monkeypatch.context() as away:
        away.setattr(AIOKafkaConsumer, "commit", fails)
        with pytest.raises(SourceError, match="cannot commit offsets of group"):
            await source.acknowledge({f"{topic}-0": 3})
    await source.acknowledge({f"{topic}-0": 3})
    assert await kafka_groups.committed(f"g-{topic}", topic, 1) == {0: 3}
    await source.close()


def test_a_group_has_no_partitions_of_its_own() -> None:
    with pytest.raises(PipelineError, match="group: expected neither partitions= nor stop_at_end="):
        KafkaSource("t", bootstrap_servers="localhost:9092", group="g", stop_at_end=True)
