"""What a source of Kafka reads, and what it says when it cannot; see `tests.servers.kafka`."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import ConsumerStoppedError, NoOffsetForPartitionError, OffsetOutOfRangeError

from asyncstream import Checkpoints, MemoryStore, Pipeline, PipelineError, SourceError
from asyncstream.connectors.kafka import KafkaRecord, KafkaSink, KafkaSource, RejectedRecord
from tests.servers.kafka import Kafka

pytestmark = pytest.mark.broker


def numbers(count: int, first: int = 0) -> list[bytes | None]:
    return [b"%d" % number for number in range(first, first + count)]


async def gathered(source: KafkaSource, **options: Any) -> list[Any]:
    """What a job reads until the source ends."""
    found: list[Any] = []
    pipeline = Pipeline("reading")
    pipeline.source(source, name="events").to(found, name="found")
    await pipeline.run(**options)
    return found


async def write_in_transactions(kafka: Kafka, topic: str, *commits: bool) -> None:
    """A record in each, that says whether it was committed."""
    producer = AIOKafkaProducer(bootstrap_servers=kafka.address, transactional_id=topic)
    await producer.start()
    for is_committed in commits:
        await producer.begin_transaction()
        await producer.send_and_wait(topic, json.dumps(is_committed).encode())
        await (producer.commit_transaction() if is_committed else producer.abort_transaction())
    await producer.stop()


async def read_up_to(source: KafkaSource, position: dict[str, int]) -> None:
    """Also to where there is no record, so that no read comes back."""
    reading = asyncio.create_task(read_on(source))
    async with asyncio.timeout(20):
        while source.position() != position:  # noqa: ASYNC110 - a real server
            await asyncio.sleep(0.01)
    reading.cancel()


async def test_a_record_brings_its_key_headers_time_and_place(kafka: Kafka) -> None:
    topic = await kafka.topic()
    headers = [("kind", b"new"), ("kind", b"last")]
    written_ms = time.time_ns() // 1_000_000 - 1234  # not of long ago: brokers delete what is old
    await kafka.fill(topic, [b'{"n": 1}'], key=b"k", headers=headers, timestamp_ms=written_ms)
    source = KafkaSource(topic, bootstrap_servers=kafka.address, records=True, stop_at_end=True)
    record = KafkaRecord({"n": 1}, b"k", tuple(headers), written_ms, topic, 0, 0)
    assert await gathered(source) == [record]


async def test_a_tombstone_is_none(kafka: Kafka) -> None:
    topic = await kafka.topic()
    await kafka.fill(topic, [b"1", None], key=b"k")
    assert await gathered(KafkaSource(topic, bootstrap_servers=kafka.address, stop_at_end=True)) == [1, None]


async def test_values_are_decoded_by_a_function_of_ones_own(kafka: Kafka) -> None:
    topic = await kafka.topic()
    await kafka.fill(topic, [b"a", b"b"])
    source = KafkaSource(topic, bootstrap_servers=kafka.address, stop_at_end=True, value=bytes.decode)
    assert await gathered(source) == ["a", "b"]


async def test_bad_records_go_to_the_rejected_output(kafka: Kafka) -> None:
    topic = await kafka.topic()
    await kafka.fill(topic, [b"1", b"{", b"2", b"", b"3"], key=b"k")
    found: list[Any] = []
    rejected: list[RejectedRecord] = []
    pipeline = Pipeline("reading")
    source = KafkaSource(topic, bootstrap_servers=kafka.address, stop_at_end=True, on_malformed="reject")
    events = pipeline.source(source)
    events.to(found)
    events.rejected.to(rejected)
    await pipeline.run()
    assert found == [1, 2, 3]
    assert [(bad.offset, bad.key, bad.value) for bad in rejected] == [(1, b"k", b"{"), (3, b"k", b"")]
    assert "JSONDecodeError" in rejected[0].reason


async def test_a_bad_record_fails_the_job_after_those_before_it_and_says_where_it_is(kafka: Kafka) -> None:
    topic = await kafka.topic()
    await kafka.fill(topic, [b"1", b"2", b"{", b"3"])
    found: list[Any] = []
    pipeline = Pipeline("reading")
    pipeline.source(KafkaSource(topic, bootstrap_servers=kafka.address), name="orders").to(found)
    with pytest.raises(SourceError, match=rf"step 'orders': offset 2 of {topic}-0 is no element.*reject"):
        await pipeline.run()
    assert found == [1, 2]


async def test_a_topic_that_is_not_there_is_told_of_by_the_step(kafka: Kafka) -> None:
    pipeline = Pipeline("reading")
    pipeline.source(KafkaSource("no-such", bootstrap_servers=kafka.address), name="orders").to([])
    with pytest.raises(SourceError, match=r"step 'orders': there is no topic 'no-such' at .*, or this user"):
        await pipeline.run()
    assert "no-such" not in await kafka.topics()


async def test_a_server_that_is_away_is_told_of_by_the_step() -> None:
    pipeline = Pipeline("reading")
    pipeline.source(KafkaSource("t", bootstrap_servers="127.0.0.1:1"), name="orders").to([])
    with pytest.raises(SourceError, match=r"step 'orders': cannot read 't' at 127.0.0.1:1: no broker can be"):
        await pipeline.run()


async def test_a_partition_that_is_not_there_is_told_of(kafka: Kafka) -> None:
    topic = await kafka.topic(2)
    source = KafkaSource(topic, bootstrap_servers=kafka.address, partitions={topic: [1, 2]})
    with pytest.raises(SourceError, match=r"has no partition 2; it has \[0, 1\]"):
        await gathered(source)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bootstrap_servers": []}, "bootstrap_servers"),
        ({"value": "xml"}, "value: expected 'json', 'bytes', 'text' or a function"),
        ({"partitions": {"other": [0]}}, "partitions"),
        ({"partitions": {}}, r"partitions: expected a mapping from each of \['t'\]"),
        ({"client": {"group_id": "g"}}, "'group_id' cannot be passed through"),
        ({"client": {"no_such_option": 1}}, "no_such_option"),
        ({"start": "now"}, "start"),
        ({"partitions": {"t": 0}}, r"partitions\['t'\]: expected numbers of partitions, at least one, got 0"),
        ({"group": "g", "handover": 10}, r"handover: expected less than the 10 s .*'rebalance_timeout_ms'"),
        (
            {"group": "g", "client": {"max_poll_interval_ms": 0}},
            "max_poll_interval_ms: expected milli",
        ),
    ],
)
async def test_wrong_settings_are_refused_when_the_source_is_made(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        KafkaSource("t", **{"bootstrap_servers": "localhost:9092", **options})


@pytest.mark.parametrize(
    "broker",
    [
        *("kafka://host:9092", "me:secret@host:9092", "sasl://me:secret@host:9092", "host:", ":9092"),
        *("host:port", "host:0", "host:65536", "host:9092/", "a host:9092", "a:1;b:2", "[::1:9092"),
    ],
)
@pytest.mark.parametrize("kind", [KafkaSource, KafkaSink])
def test_what_is_no_address_of_a_broker_is_refused_by_itself(kind: Any, broker: str) -> None:
    with pytest.raises(PipelineError, match=r"bootstrap_servers: expected 'host:port'.*client=") as raised:
        kind("t", bootstrap_servers=f"fine:9092, {broker}")
    assert "fine" not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_an_address_of_a_broker_may_have_many_forms() -> None:
    for broker in ("host", "host:9092", "a_b.c-d:1", "10.0.0.1:9092", "[::1]:9092", "[::1]", "::1"):
        KafkaSource("t", bootstrap_servers=["fine:9092", broker])


async def test_from_the_latest_on_the_first_checkpoint_says_what_that_was(kafka: Kafka) -> None:
    topic = await kafka.topic(2)
    await kafka.fill(topic, numbers(4), 2)
    store = MemoryStore()
    pipeline = Pipeline("reading")
    source = KafkaSource(topic, bootstrap_servers=kafka.address, start="latest")
    pipeline.source(source, name="events").to([], name="found")
    async with pipeline.start(checkpoints=Checkpoints(store=store, every=3600)) as job:
        await job.stop()
    await kafka.fill(topic, numbers(4, first=4), 2)
    again = KafkaSource(topic, bootstrap_servers=kafka.address, start="latest", stop_at_end=True)
    found = await gathered(again, checkpoints=Checkpoints(store=store, every=3600))
    assert sorted(found) == [4, 5, 6, 7]


async def test_it_does_not_go_on_in_another_topic_of_that_name(kafka: Kafka) -> None:
    topic = await kafka.topic()
    await kafka.fill(topic, numbers(3))
    source = KafkaSource(topic, bootstrap_servers=kafka.address)
    with pytest.raises(SourceError, match=r"cannot go on at offset 9 of .*: records were lost"):
        await source.can_seek({f"{topic}-0": 9})
    with pytest.raises(SourceError, match="this source does not read it"):
        await source.can_seek({f"{topic}-1": 0})


async def read_on(source: KafkaSource) -> None:
    while True:
        await source.read()


@pytest.mark.parametrize("group", [None, "readers"])
async def test_what_is_not_there_any_more_is_not_passed_over_while_it_reads(
    kafka: Kafka, group: str | None
) -> None:
    topic = await kafka.topic()
    await kafka.fill(topic, numbers(9))
    source = KafkaSource(topic, bootstrap_servers=kafka.address, group=group)
    await source.open()
    async with asyncio.timeout(60):
        while source.position() != {f"{topic}-0": 9}:
            await source.read()
        if group is not None:
            await source.acknowledge({f"{topic}-0": 9})
        await kafka.remake(topic)
        await kafka.fill(topic, numbers(3))
        with pytest.raises(SourceError, match=r"cannot go on at offset 9 of .*: .* the topic was made anew"):
            await read_on(source)
        await source.close()
        if group is not None:  # which is committed
            await source.open()
            with pytest.raises(SourceError, match=r"cannot go on at offset 9 of .*: .* made anew"):
                await read_on(source)
            await source.close()


async def test_a_member_that_is_opened_again_has_no_partitions_until_it_is_given_some(
    kafka: Kafka,
) -> None:
    topic = await kafka.topic()
    await kafka.fill(topic, numbers(3))
    source = KafkaSource(topic, bootstrap_servers=kafka.address, group=f"g-{topic}")
    await source.open()
    async with asyncio.timeout(60):
        while source.position() != {f"{topic}-0": 3}:
            await source.read()
    await source.acknowledge({f"{topic}-0": 2})
    await source.close()
    await source.open()
    await source.seek({f"{topic}-0": 3})
    await source.acknowledge({f"{topic}-0": 3})  # by a checkpoint, before the broker has dealt it out
    await source.close()


@pytest.mark.parametrize("position", [1, 2])
async def test_what_others_have_read_since_the_checkpoint_does_not_give_its_numbers_to_what_follows(
    kafka: Kafka, position: int
) -> None:
    topic = await kafka.topic()
    await kafka.fill(topic, numbers(4))
    source = KafkaSource(topic, bootstrap_servers=kafka.address, group=f"g-{topic}", batch=1)
    await source.open()
    async with asyncio.timeout(60):
        while source.position() != {f"{topic}-0": 2}:
            await source.read()
    await source.acknowledge({f"{topic}-0": 2})
    await source.close()
    await source.open()
    await source.seek({f"{topic}-0": position})
    async with asyncio.timeout(60):
        while not (batch := await source.read()) or not batch.values:
            pass
        following = await source.read()
    assert (batch.values, batch.started_over) == ([2], position < 2)
    assert following is not None
    assert not following.started_over
    await source.close()


async def test_where_the_client_begins_by_itself_as_a_member_is_no_matter() -> None:
    place = TopicPartition("t", 0)

    class Client:
        """Begins where the group is, or nowhere, before the source has said where; then something comes."""

        says: ClassVar[list[Exception]] = [
            NoOffsetForPartitionError(place),
            OffsetOutOfRangeError({place: 5}),
        ]

        async def getmany(self, timeout_ms: int, max_records: int) -> dict[Any, Any]:
            if self.says:
                raise self.says.pop()
            return {place: [SimpleNamespace(value=b"1", offset=7, timestamp=0)]}

        async def position(self, partition: TopicPartition) -> int:
            return 7

        def partitions_for_topic(self, topic: str) -> set[int]:
            return {0}

    source = KafkaSource("t", bootstrap_servers="localhost:9092", group="readers")
    source._consumer, source._is_member = Client(), True
    source._partitions, source._positions = {"t-0": place}, {"t-0": 7}  # of a checkpoint
    async with asyncio.timeout(60):
        batch = await source.read()
    assert batch is not None
    assert batch.values == [1]


async def test_partitions_are_splits_that_can_be_held(kafka: Kafka) -> None:
    topic = await kafka.topic(2)
    await kafka.fill(topic, numbers(10), 2)
    source = KafkaSource(topic, bootstrap_servers=kafka.address, stop_at_end=True, batch=2)
    await source.open()
    assert source.splits() == (f"{topic}-0", f"{topic}-1")
    source.hold({f"{topic}-0"})
    odd: list[int] = []
    while len(odd) < 5:
        batch = await source.read()
        assert batch is not None
        assert batch.split == f"{topic}-1"
        odd += batch.values
    assert odd == [1, 3, 5, 7, 9]
    source.hold(())
    even: list[int] = []
    while (batch := await source.read()) is not None:
        even += batch.values
    assert even == [0, 2, 4, 6, 8]
    await source.close()


async def test_a_source_whose_closing_is_cancelled_lets_go_of_the_broker(kafka: Kafka) -> None:
    topic = await kafka.topic()
    await kafka.fill(topic, numbers(3))
    source = KafkaSource(topic, bootstrap_servers=kafka.address, group=f"g-{topic}")
    await source.open()
    async with asyncio.timeout(60):
        await source.read()
        consumer = source._opened()
        closing = asyncio.create_task(source.close())
        await asyncio.sleep(0)  # it waits for the task that asks for records
        closing.cancel()
        await asyncio.wait({closing})
        with pytest.raises(ConsumerStoppedError):
            await consumer.getmany(timeout_ms=60_000)


@pytest.mark.usefixtures("tidy")
async def test_a_source_that_is_closed_does_not_wait_for_what_it_was_handing_over(kafka: Kafka) -> None:
    topic = await kafka.topic()
    await kafka.fill(topic, numbers(3))
    source = KafkaSource(topic, bootstrap_servers=kafka.address, group=f"g-{topic}", handover=9)
    await source.open()
    waits = asyncio.Event()
    source.checkpoint_soon = waits.set
    async with asyncio.timeout(60):
        while source.position() != {f"{topic}-0": 3}:
            await source.read()
        source._opened()._coordinator.request_rejoin()
        await waits.wait()
    async with asyncio.timeout(4):
        await source.close()


async def test_what_a_transaction_has_not_committed_is_not_read(kafka: Kafka) -> None:
    topic = await kafka.topic()
    await write_in_transactions(kafka, topic, True, False, True)
    assert await gathered(KafkaSource(topic, bootstrap_servers=kafka.address, stop_at_end=True)) == [
        True,
        True,
    ]


async def test_what_a_transaction_left_behind_may_be_deleted_before_a_restart(kafka: Kafka) -> None:
    topic = await kafka.topic()
    await write_in_transactions(kafka, topic, True, False)
    source = KafkaSource(topic, bootstrap_servers=kafka.address)
    await source.open()
    await read_up_to(source, {f"{topic}-0": 4})
    await kafka.empty(topic)
    await source.can_seek({f"{topic}-0": 4})
    await source.close()


async def test_what_a_transaction_left_behind_may_be_deleted_before_a_member_comes_back(kafka: Kafka) -> None:
    topic = await kafka.topic()
    await write_in_transactions(kafka, topic, True)
    source = KafkaSource(topic, bootstrap_servers=kafka.address, group=f"g-{topic}")
    await source.open()
    await read_up_to(source, {f"{topic}-0": 2})
    await source.acknowledge({f"{topic}-0": 2})
    await source.close()
    await kafka.empty(topic)
    await source.open()
    async with asyncio.timeout(20):
        while not source.splits():
            await source.read()
    assert source.position() == {f"{topic}-0": 2}
    await source.close()


async def test_a_member_commits_behind_what_a_transaction_left_behind(kafka: Kafka) -> None:
    topic = await kafka.topic()
    await write_in_transactions(kafka, topic, True, False)
    source = KafkaSource(topic, bootstrap_servers=kafka.address, group=f"g-{topic}")
    pipeline = Pipeline("quiet")
    pipeline.source(source, name="in").discard()
    async with pipeline.start() as job:
        async with asyncio.timeout(30):
            while (await kafka.committed(f"g-{topic}", topic, 1))[0] < 4:
                pass  # each look takes its time
        await job.stop()


async def test_a_partition_that_is_added_is_found_though_records_never_cease(kafka: Kafka) -> None:
    topic = await kafka.topic()
    source = KafkaSource(topic, bootstrap_servers=kafka.address, client={"metadata_max_age_ms": 100})
    await source.open()
    await kafka.widen(topic, 2)
    async with asyncio.timeout(20):
        while len(source.splits()) < 2:
            await kafka.fill(topic, [b"1"])
            await source.read()
    await source.close()


async def test_a_member_that_begins_with_the_latest_reads_a_partition_that_is_added_from_its_beginning(
    kafka: Kafka,
) -> None:
    topic = await kafka.topic()
    await kafka.fill(topic, numbers(3))
    source = KafkaSource(topic, bootstrap_servers=kafka.address, group=f"g-{topic}", start="latest")
    await source.open()
    async with asyncio.timeout(60):
        while not source.splits():
            await source.read()
        await kafka.widen(topic, 2)
        await kafka.fill(topic, numbers(10), 2)
        await source._opened()._client.force_metadata_update()  # else the member hears of it in minutes
        found: list[Any] = []
        while source.position() != {f"{topic}-0": 8, f"{topic}-1": 5}:
            batch = await source.read()
            found += batch.values if batch is not None else []
    assert sorted(found) == list(range(10))
    await source.close()


async def test_one_slow_call_stops_no_partition(kafka: Kafka) -> None:
    topic = await kafka.topic(3)
    await kafka.fill(topic, numbers(10_000), 3)
    release = asyncio.Event()

    async def call(number: int) -> int:
        if number == 0:
            await release.wait()
        return number

    done: list[int] = []
    everybody = asyncio.Event()

    def note(number: int) -> None:
        done.append(number)
        if len(done) == 9_999:
            everybody.set()

    pipeline = Pipeline("stuck")
    source = KafkaSource(topic, bootstrap_servers=kafka.address, stop_at_end=True)
    calls = pipeline.source(source, name="events").async_map(
        call, name="calls", order="unordered", concurrency=10
    )
    calls.to(note)
    async with pipeline.start() as job:
        await asyncio.wait_for(everybody.wait(), 60)
        assert 0 not in done
        release.set()
        await job.wait()
    assert sorted(done) == list(range(10_000))


async def test_a_partition_that_is_held_and_dealt_out_again_is_not_fetched() -> None:
    places = [TopicPartition("t", 0), TopicPartition("t", 1)]

    class Client:
        paused: ClassVar[list[TopicPartition]] = []

        async def committed(self, place: TopicPartition) -> int:
            return 5

        async def beginning_offsets(self, of: list[TopicPartition]) -> dict[TopicPartition, int]:
            return dict.fromkeys(of, 0)

        async def end_offsets(self, of: list[TopicPartition]) -> dict[TopicPartition, int]:
            return dict.fromkeys(of, 9)

        def seek(self, place: TopicPartition, offset: int) -> None: ...

        def pause(self, *partitions: TopicPartition) -> None:
            self.paused.extend(partitions)

    source = KafkaSource("t", bootstrap_servers="localhost:9092", group="readers")
    source._consumer, source._held = Client(), frozenset({"t-1"})
    await source._assigned(places)
    assert source.position() == {"t-0": 5, "t-1": 5}
    assert Client.paused == [places[1]]


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("more", [{"partitions": {"t": [0]}}, {"group": "readers"}])
async def test_a_topic_that_is_gone_for_good_is_told_of(more: dict[str, Any]) -> None:
    time = asyncio.get_running_loop().time
    began = time()

    class Client:
        """Of a topic that is gone for a moment, and later for good; the stand-ins make it anew."""

        async def getmany(self, timeout_ms: int, max_records: int) -> dict[Any, Any]:
            await asyncio.sleep(timeout_ms / 1000)
            return {}

        def partitions_for_topic(self, topic: str) -> set[int] | None:
            return {0} if 100 < time() - began < 200 else None

        async def force_metadata_update(self) -> None:
            pass

        _client = property(lambda self: self)

    source = KafkaSource("t", bootstrap_servers="localhost:9092", **more)
    source._consumer, source._is_member = Client(), True
    with pytest.raises(SourceError, match="there is no topic 't' any more"):
        await source.read()
    assert time() - began == pytest.approx(200 + 120, abs=1)


async def test_a_partition_that_another_topic_of_that_name_does_not_have_is_told_of(kafka: Kafka) -> None:
    topic = await kafka.topic(2)
    source = KafkaSource(topic, bootstrap_servers=kafka.address, client={"metadata_max_age_ms": 50})
    source._patience = 0.1
    await source.open()
    await kafka.remake(topic)  # of one partition
    async with asyncio.timeout(20):
        with pytest.raises(SourceError, match=f"there is no partition {topic}-1 any more"):
            await read_on(source)
    await source.close()


@pytest.mark.usefixtures("virtual_time")
async def test_a_topic_that_is_gone_for_a_moment_ends_nothing() -> None:
    time = asyncio.get_running_loop().time
    began = time()

    class Client:
        """Of two topics, of which one has always more, and of one the client hears only when it asks."""

        asked = 0

        async def getmany(self, timeout_ms: int, max_records: int) -> dict[Any, Any]:
            await asyncio.sleep(timeout_ms / 1000)
            return {TopicPartition("busy", 0): []} if 10 < time() - began < 500 else {}

        def partitions_for_topic(self, topic: str) -> set[int] | None:
            is_gone = not 10 < time() - began < 500 and (time() < began + 510 or not self.asked)
            return None if topic == "t" and is_gone else {0}

        async def force_metadata_update(self) -> None:
            self.asked += 1

        _client = property(lambda self: self)

    source = KafkaSource("busy", "t", bootstrap_servers="localhost:9092", group="readers")
    client = source._consumer = Client()
    source._is_member = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2000):
            await source.read()
    assert client.asked == 1
