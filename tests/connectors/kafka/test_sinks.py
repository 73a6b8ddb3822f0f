"""What sinks for Kafka write, and what they say when they cannot; see `tests.servers.kafka`."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from aiokafka import codec
from aiokafka.errors import (
    KafkaConnectionError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownError,
    UnknownTopicOrPartitionError,
)

from asyncstream import AscendingTimestamps, Checkpoints, DirectoryStore, FailedCall, MemoryStore, Pipeline
from asyncstream.connectors.kafka import KafkaRecord, KafkaSink, KafkaSource, KafkaTransactionalSink
from asyncstream.errors import CheckpointError, PipelineError, SinkBroken, SinkError, UserFunctionError
from tests.servers.kafka import Kafka

pytestmark = pytest.mark.broker


async def run(elements: list[Any], sink: Any, **options: Any) -> None:
    pipeline = Pipeline("writing")
    pipeline.source(elements, name="elements").to(sink, name="written")
    await pipeline.run(**options)


async def test_key_headers_partition_and_time_are_written(kafka: Kafka) -> None:
    topic = await kafka.topic(2)
    sink = KafkaSink(
        topic,
        bootstrap_servers=kafka.address,
        key=lambda row: f"k{row['n']}",
        headers=lambda row: {"kind": b"new"},
        partition=lambda row: row["n"] % 2,
    )
    pipeline = Pipeline("writing")
    rows = pipeline.source([{"n": 1}, {"n": 2}])
    rows.event_time(lambda row: row["n"] * 1000, AscendingTimestamps()).to(sink)
    await pipeline.run()
    even, odd = await kafka.records(topic)
    assert [(one.key, one.value, one.timestamp, one.headers) for one in (*even, *odd)] == [
        (b"k2", b'{"n":2}', 2000, (("kind", b"new"),)),
        (b"k1", b'{"n":1}', 1000, (("kind", b"new"),)),
    ]


async def test_a_record_says_itself_where_it_goes(kafka: Kafka) -> None:
    topic = await kafka.topic(2)
    records = [
        KafkaRecord({"n": 1}, b"k", (("h", b"x"),), 5, partition=1),
        KafkaRecord(None, b"k", partition=1),
    ]
    await run(records, KafkaSink(topic, bootstrap_servers=kafka.address))
    _, found = await kafka.records(topic)
    assert [(one.key, one.value, one.headers) for one in found] == [
        (b"k", b'{"n":1}', (("h", b"x"),)),
        (b"k", None, ()),
    ]
    assert found[0].timestamp == 5


async def test_what_cannot_be_encoded_is_routed_and_the_rest_is_written(kafka: Kafka) -> None:
    topic = await kafka.topic()
    failed: list[FailedCall] = []
    pipeline = Pipeline("writing")
    sink = KafkaSink(topic, bootstrap_servers=kafka.address, value="bytes")
    written = pipeline.source([b"1", 2, b"3", None, b"5"]).to(sink, on_error="route")
    written.failed.to(failed)
    await pipeline.run()
    assert await kafka.values(topic) == [b"1", b"3", b"5"]
    assert [one.value for one in failed] == [2, None]
    assert "value='json' writes JSON" in str(failed[0].error)
    assert "a tombstone (None) needs a key" in str(failed[1].error)


async def test_what_cannot_be_encoded_is_left_out_of_a_transaction(kafka: Kafka) -> None:
    topic = await kafka.topic()
    sink = KafkaTransactionalSink(
        topic, transactional_id=topic, bootstrap_servers=kafka.address, value="bytes"
    )
    pipeline = Pipeline("writing")
    pipeline.source([b"1", 2, b"3"], name="values").to(sink, name="written", on_error="skip")
    await pipeline.run(checkpoints=Checkpoints(store=MemoryStore(), every=3600))
    assert await kafka.values(topic) == [b"1", b"3"]


async def test_a_record_that_a_transaction_is_refused_for_has_a_way_out(kafka: Kafka) -> None:
    topic = await kafka.topic(max_message_bytes="1000")

    async def write(client: dict[str, int]) -> None:
        sink = KafkaTransactionalSink(
            topic, transactional_id=topic, bootstrap_servers=kafka.address, client=client
        )
        pipeline = Pipeline("writing")
        pipeline.source([1, "2" * 3000, 3], name="in").to(sink, name="written", on_error="skip")
        await pipeline.run(checkpoints=Checkpoints(store=MemoryStore(), every=60))

    with pytest.raises(CheckpointError, match=r"too large, give client=\{'max_request_size': \.\.\.\}"):
        await write({})
    await write({"max_request_size": 1000})
    assert await kafka.values(topic) == [b"1", b"3"]


@pytest.mark.parametrize("transactional", [False, True])
async def test_a_record_that_cannot_be_is_refused_by_itself(kafka: Kafka, transactional: bool) -> None:
    topic = await kafka.topic()
    sink: KafkaSink | KafkaTransactionalSink = KafkaSink(topic, bootstrap_servers=kafka.address)
    if transactional:
        sink = KafkaTransactionalSink(topic, transactional_id=topic, bootstrap_servers=kafka.address)
    odd: dict[str, list[Any]] = {
        "topic": ["no such", "a/b", "t" * 250, "..", 5, "\ud800"],
        "headers": [(("\ud800", b""),), (("name", "text"),), {None: b""}, 5],
        "key": ["text", 5],
        "partition": ["0", -1, 99, 0.0],
        "timestamp_ms": [2**70, "now"],
    }
    pipeline, failed = Pipeline("writing"), list[Any]()
    records = [KafkaRecord(0, **{field: value}) for field, values in odd.items() for value in values]
    elements = [part for record in records for part in (record, 1)]
    written = pipeline.source(elements, name="in").to(sink, name="written", on_error="route")
    written.failed.to(failed, name="failed")
    async with asyncio.timeout(60):
        await pipeline.run()
    assert await kafka.values(topic) == [b"1"] * len(records)
    assert [call.value for call in failed] == records
    said = {repr(call.value): str(call.error) for call in failed}
    assert "expected headers, pairs or a mapping" in said[repr(KafkaRecord(0, headers=5))]  # type: ignore[arg-type]
    assert said[repr(KafkaRecord(0, partition=-1))] == "expected the number of a partition, got -1"


async def test_a_wrong_codec_fails_the_step_by_name(kafka: Kafka) -> None:
    topic = await kafka.topic()
    with pytest.raises(UserFunctionError, match=r"step 'written'.*expected bytes, got dict"):
        await run([{"n": 1}], KafkaSink(topic, bootstrap_servers=kafka.address, value="bytes"))


@pytest.mark.parametrize("kind", [KafkaSink, KafkaTransactionalSink])
async def test_a_topic_that_is_not_there_is_told_of_by_the_step(kafka: Kafka, kind: Any) -> None:
    options = {} if kind is KafkaSink else {"transactional_id": "no-such"}
    with pytest.raises(SinkError, match="step 'written': there is no topic 'no-such' at"):
        await run([1], kind("no-such", bootstrap_servers=kafka.address, **options))
    assert "no-such" not in await kafka.topics()


async def test_a_server_that_is_away_is_told_of_by_the_step() -> None:
    with pytest.raises(SinkError, match=r"step 'written': cannot write to 't' at 127.0.0.1:1: no broker"):
        await run([1], KafkaSink("t", bootstrap_servers="127.0.0.1:1"))


@pytest.mark.usefixtures("tidy", "others_gone")
async def test_of_many_records_that_fail_together_each_is_heard_of() -> None:
    class Refusing:
        async def send(self, *record: Any, **more: Any) -> asyncio.Future[None]:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(KafkaConnectionError())
            return future

    sink = KafkaSink("t", bootstrap_servers="localhost:9092")
    sink._producer = Refusing()
    with pytest.raises(SinkError, match="cannot write to 't' at localhost:9092"):
        await sink.write([1, 2, 3], None)
    del sink
    gc.collect()  # when it is told of a future that nobody has looked at


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UnknownTopicOrPartitionError(), SinkBroken),  # as a broker says it
        (TopicAuthorizationFailedError("t"), SinkBroken),
        (TopicAuthorizationFailedError("other"), SinkError),
        (RecordListTooLargeError(), SinkError),
        (UnknownError(), SinkBroken),
    ],
)
async def test_what_a_broker_says_of_the_topic_is_not_over_a_record(error: Exception, kind: type) -> None:
    class Refusing:
        async def send(self, *record: Any, **more: Any) -> asyncio.Future[None]:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
            return future

    sink = KafkaSink("t", bootstrap_servers="localhost:9092", idempotent=False)
    sink._producer = Refusing()
    with pytest.raises(SinkError) as raised:
        await sink.write([1], None)
    assert type(raised.value) is kind


async def test_what_decides_over_losses_is_not_passed_through() -> None:
    with pytest.raises(PipelineError, match="'acks' cannot be passed through"):
        KafkaSink("t", bootstrap_servers="localhost:9092", client={"acks": 0})


@pytest.mark.parametrize("kind", [KafkaSink, KafkaSource])
async def test_a_topic_that_kafka_cannot_have_is_refused_when_it_is_named(kind: Any) -> None:
    with pytest.raises(PipelineError, match=r"expected the name of a topic, .*, got 'no such'"):
        kind("no such", bootstrap_servers="localhost:9092")


async def test_a_compression_that_cannot_be_is_refused_when_the_sink_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make(compression: str) -> None:
        KafkaSink("t", bootstrap_servers="localhost:9092", client={"compression_type": compression})

    make("gzip")
    with pytest.raises(PipelineError, match=r"compression_type: expected one of 'gzip', .*, got 'rar'"):
        make("rar")
    monkeypatch.setattr(codec, "has_lz4", lambda: False)
    with pytest.raises(PipelineError, match=r"compression_type='lz4' needs .* pip install 'aiokafka\[all\]'"):
        make("lz4")


@pytest.mark.parametrize("kind", [KafkaSink, KafkaSource])
@pytest.mark.parametrize("wrong", [None, "1 s", 0])
async def test_how_long_a_request_may_take_is_a_number(kind: Any, wrong: object) -> None:
    with pytest.raises(PipelineError, match="request_timeout_ms: expected milliseconds, got"):
        kind("t", bootstrap_servers="localhost:9092", client={"request_timeout_ms": wrong})


async def test_an_epoch_is_seen_as_a_whole(kafka: Kafka) -> None:
    topic = await kafka.topic()
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def numbers() -> Any:
        for number in range(10):
            yield number
        arrived.set()
        await go_on.wait()

    pipeline = Pipeline("writing")
    sink = KafkaTransactionalSink(topic, transactional_id=topic, bootstrap_servers=kafka.address)
    pipeline.source(numbers, name="numbers").to(sink, name="written")
    async with pipeline.start(checkpoints=Checkpoints(store=MemoryStore(), every=None)) as job:
        await arrived.wait()
        async with asyncio.timeout(60):
            while len(await kafka.values(topic, "read_uncommitted")) < 10:
                pass
        assert await kafka.values(topic) == []
        await job.checkpoint()
        assert await kafka.values(topic) == [b"%d" % number for number in range(10)]
        go_on.set()
        await job.wait()


async def test_of_two_jobs_with_one_transactional_id_the_first_is_fenced(
    kafka: Kafka, tmp_path: Path
) -> None:
    topic = await kafka.topic()

    def sink() -> KafkaTransactionalSink:
        return KafkaTransactionalSink(topic, transactional_id=topic, bootstrap_servers=kafka.address)

    first, second = sink(), sink()
    await first.recover(None)
    await first.write([1], None)
    await second.recover(None)
    with pytest.raises(SinkBroken, match="another job has begun to write by the same transactional_id"):
        await first.prepare(1)
    await second.write([2], None)
    await second.prepare(1)
    await second.commit(1)
    await first.close()
    await second.close()
    assert await kafka.values(topic) == [b"2"]


async def test_readers_do_not_wait_for_what_a_job_left_whose_checkpoints_failed(kafka: Kafka) -> None:
    topic = await kafka.topic()

    def sink() -> KafkaTransactionalSink:
        return KafkaTransactionalSink(topic, transactional_id=topic, bootstrap_servers=kafka.address)

    first, second = sink(), sink()
    await first.recover(None)
    for epoch in range(1, 6):
        await first.write([epoch], None)
        await first.prepare(epoch)  # and none is saved
    await second.recover(None)
    await second.write([10], None)
    await second.prepare(1)
    await second.commit(1)
    assert await kafka.values(topic) == [b"10"]
    await first.close()
    await second.close()


async def test_a_job_that_was_followed_writes_nothing_more(kafka: Kafka, tmp_path: Path) -> None:
    topic = await kafka.topic()
    forever = asyncio.Event()

    async def once(number: int) -> Any:
        yield number
        await forever.wait()

    def build(number: int) -> Pipeline:
        pipeline = Pipeline("writing")
        sink = KafkaTransactionalSink(topic, transactional_id=topic, bootstrap_servers=kafka.address)
        pipeline.source(lambda: once(number), name="numbers").to(sink, name="written")
        return pipeline

    def kept(name: str) -> Checkpoints:
        return Checkpoints(store=DirectoryStore(tmp_path / name), every=None)

    async with build(1).start(checkpoints=kept("one")) as job:
        await job.checkpoint()
        with pytest.raises(SinkError, match="only one job at a time may write"):
            await build(2).run(checkpoints=kept("another"))
        await job.checkpoint()
        await job.stop()
    assert await kafka.values(topic) == [b"1"]
