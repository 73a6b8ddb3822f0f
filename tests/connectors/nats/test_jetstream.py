"""JetStream in a pipeline: acknowledgements, redelivery, ids, and what errors say."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import count, pairwise
from math import nan
from pathlib import Path
from typing import Any

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from asyncstream import (
    Checkpoints,
    MemoryStore,
    Pipeline,
    PipelineError,
    SinkBroken,
    SinkError,
    SourceError,
    call_context,
)
from asyncstream.connectors import NatsConsumerSource, NatsSink, NatsStreamSource, RejectedMessage
from asyncstream.connectors.base import Source
from asyncstream.connectors.nats import connection
from asyncstream.connectors.nats import sink as nats_sink
from asyncstream.connectors.nats import source as nats_source
from asyncstream.connectors.nats.consumer import Numbers
from asyncstream.connectors.nats.source import reply_to
from asyncstream.connectors.writer import Writer
from asyncstream.lease import Holder, Lease
from asyncstream.runtime.aio.job import Job
from tests.connectors.refusals import check_cannot_be_read, check_cannot_be_written
from tests.servers.nats import NatsServer, running_nats
from tests.servers.process import HOST
from tests.servers.proxy import between

pytestmark = pytest.mark.broker

names = map("stream{}".format, count())


@pytest.fixture
async def js(nats_server: NatsServer) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(nats_server.url)
    yield client.jetstream()
    await client.close()


@pytest.fixture
async def stream(js: JetStreamContext) -> str:
    """The name of a stream with ten numbers in it."""
    name = next(names)
    await js.add_stream(name=name, subjects=[f"{name}.*"])
    await add(js, name, range(1, 11))
    return name


async def add(js: JetStreamContext, stream: str, numbers: Iterable[int]) -> None:
    for number in numbers:
        await js.publish(f"{stream}.{number % 2}", json.dumps(number).encode())


def member(url: str, stream: str, lease: int = 1, **more: Any) -> NatsConsumerSource[int]:
    source: NatsConsumerSource[int] = NatsConsumerSource(url, stream, durable="d", **more)
    source.writer = Writer(Lease(lease, "here", Holder.here(0), 0), 3, "refuse")
    return source


async def numbers_of(source: Source[int], most: int = 1000) -> list[int]:
    found: list[int] = []
    while len(found) < most and (batch := await source.read()) is not None:
        found += batch.values
    return found


async def pending(js: JetStreamContext, stream: str) -> int:
    return (await js.consumer_info(stream, "d")).num_ack_pending or 0


async def has_pending(js: JetStreamContext, stream: str, number: int) -> None:
    """Until so many messages wait to be acknowledged: the server counts when it comes to it."""
    async with asyncio.timeout(60):
        while await pending(js, stream) != number:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_messages_are_acknowledged_when_a_checkpoint_holds_them(
    js: JetStreamContext, stream: str, nats_server: NatsServer
) -> None:
    source = member(nats_server.url, stream, batch=4)
    await source.open()
    await source.read()
    position = source.position()
    [[_, last]] = position["held"]
    await numbers_of(source, 10 - last)
    assert await pending(js, stream) == 10
    await source.forget(position)
    await has_pending(js, stream, 10 - last)
    await source.close()


async def test_a_job_acknowledges_all_in_the_end(
    js: JetStreamContext, stream: str, nats_server: NatsServer
) -> None:
    pipeline, seen = Pipeline("numbers"), list[int]()
    source = NatsConsumerSource[int](nats_server.url, stream, durable="d", batch=3)
    pipeline.source(source, name="in").to(seen.append, name="out")
    async with pipeline.start(checkpoints=Checkpoints(store=MemoryStore(), every=0.02, keep=1)):
        async with asyncio.timeout(60):
            while len(seen) < 10:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await has_pending(js, stream, 0)
    assert seen == list(range(1, 11))


async def test_without_checkpoints_what_was_read_before_is_acknowledged(
    js: JetStreamContext, stream: str, nats_server: NatsServer
) -> None:
    source = NatsConsumerSource[int](nats_server.url, stream, durable="d", ends=True)
    await source.open()
    assert await numbers_of(source) == list(range(1, 11))
    await has_pending(js, stream, 0)
    await source.close()


async def test_what_takes_long_is_not_handed_out_again(stream: str, nats_server: NatsServer) -> None:
    slow, other = (member(nats_server.url, stream, ack_wait=2.5, ends=True) for _ in range(2))
    for source in (slow, other):
        await source.open()
    assert await numbers_of(slow, 10) == list(range(1, 11))
    waiting = asyncio.ensure_future(other.read())
    await asyncio.sleep(3)  # longer than the server waits
    assert not waiting.done()
    await slow.forget(slow.position())
    assert await waiting is None
    for source in (slow, other):
        await source.close()


async def test_what_waits_to_be_read_is_not_handed_out_again(
    js: JetStreamContext, stream: str, nats_server: NatsServer
) -> None:
    slow, other = (member(nats_server.url, stream, ack_wait=2, batch=20) for _ in range(2))
    await slow.open()
    found = await numbers_of(slow, 10)
    await add(js, stream, range(11, 41))
    while len(found) < 15:  # the server was asked for 20, and has been for as many again
        found += await numbers_of(slow, 1)
    await has_pending(js, stream, 40)
    await other.open()
    reading = asyncio.ensure_future(other.read())
    await asyncio.wait({reading}, timeout=2.5)  # of a real server, which waits for less
    assert not reading.done()
    assert found + await numbers_of(slow, 40 - len(found)) == list(range(1, 41))
    for source in (slow, other):
        await source.close()


async def test_what_is_handed_out_again_while_it_waits_is_read_once(
    js: JetStreamContext, stream: str, nats_server: NatsServer
) -> None:
    source = member(nats_server.url, stream, ack_wait=0.3, batch=100)
    await source.open()
    found = await numbers_of(source, 10)
    await add(js, stream, range(11, 14))  # the server was asked for more than ten
    await has_pending(js, stream, 13)
    time.sleep(1)  # noqa: ASYNC251 - the process is held up, for longer than the server waits
    await asyncio.sleep(0.2)  # for what has come meanwhile
    assert found + await numbers_of(source, 3) == list(range(1, 14))
    await source.forget(source.position())
    await has_pending(js, stream, 0)
    await source.close()


async def test_a_server_that_answers_when_nobody_waits_for_it_any_more_is_read_on(
    js: JetStreamContext, stream: str, nats_server: NatsServer
) -> None:
    async with between(nats_server.port) as network:
        source = member(f"nats://{HOST}:{network.port}", stream)
        await source.open()
        found = await numbers_of(source, 10)
        network.passes.clear()
        telling = asyncio.ensure_future(source.forget(source.position()))
        await asyncio.wait({telling}, timeout=0.2)  # for it to be under way
        telling.cancel()
        await asyncio.wait({telling})
        network.passes.set()
        await has_pending(js, stream, 0)
        await add(js, stream, [11])
        async with asyncio.timeout(20):
            assert found + await numbers_of(source, 1) == list(range(1, 12))
        await source.close()


async def test_what_is_handed_out_again_is_read_once(
    js: JetStreamContext, stream: str, nats_server: NatsServer
) -> None:
    first = member(nats_server.url, stream, ack_wait=0.3, batch=4)
    await first.open()
    seen = await numbers_of(first, 4)
    position = first.position()
    await numbers_of(first, 10 - len(seen))
    await first.close()
    await asyncio.sleep(0.5)  # longer than the server waits
    again = member(nats_server.url, stream, lease=2, ends=True)
    await again.open()
    await again.seek(position)
    assert sorted(seen + await numbers_of(again, 10 - len(seen))) == list(range(1, 11))
    assert await again.read() is None
    await again.forget(again.position())
    assert again.position()["held"] == []
    await has_pending(js, stream, 0)
    await again.close()


async def test_no_two_messages_have_one_key_for_their_calls(
    js: JetStreamContext, stream: str, nats_server: NatsServer
) -> None:
    keys: dict[str, set[int]] = {}
    seen, store = list[int](), MemoryStore()

    async def call(number: int) -> int:
        keys.setdefault(call_context().idempotency_key, set()).add(number)
        return number

    @asynccontextmanager
    async def running() -> AsyncIterator[Job]:
        pipeline = Pipeline("keys")
        source = pipeline.source(NatsConsumerSource[int](nats_server.url, stream, durable="d"), name="in")
        source.async_map(call, name="calls", effect=True).to(seen.append, name="out")
        async with pipeline.start(checkpoints=Checkpoints(store=store, every=None)) as job:
            yield job

    async def has_seen(number: int) -> None:
        async with asyncio.timeout(60):
            while number not in seen:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def crashed() -> None:
        async with running() as job:
            await has_seen(10)
            await job.checkpoint()
            await add(js, stream, range(11, 21))
            await has_seen(20)
            raise RuntimeError("down")

    with pytest.raises(RuntimeError, match="down"):
        await crashed()
    await add(js, stream, range(21, 26))  # comes before what is to be handed out again
    async with running() as job:
        await has_seen(25)
        await job.stop()
    assert all(len(numbers) == 1 for numbers in keys.values())


async def test_what_a_run_before_has_read_goes_to_no_other_member(
    js: JetStreamContext, stream: str, nats_server: NatsServer
) -> None:
    first = member(nats_server.url, stream, ack_wait=2)
    await first.open()
    assert await numbers_of(first, 10) == list(range(1, 11))
    position = json.loads(json.dumps(first.position()))
    await first.close()
    again = member(nats_server.url, stream, lease=2)
    await again.open()
    await again.seek(position)
    other = member(nats_server.url, stream)
    await other.open()
    reading = asyncio.ensure_future(other.read())
    await asyncio.wait({reading}, timeout=2.5)  # of a real server, which waits for less
    assert not reading.done()
    await again.forget(position)
    await has_pending(js, stream, 0)
    assert again.position()["held"] == []
    await add(js, stream, [11])
    batch = await reading
    assert batch is not None
    assert batch.values == [11]
    for source in (again, other):
        await source.close()


async def test_who_goes_on_need_not_wait_for_what_it_has_read_to_be_handed_out_again(
    js: JetStreamContext, stream: str, nats_server: NatsServer
) -> None:
    seen, store = list[int](), MemoryStore()

    def pipeline(ends: bool) -> Pipeline:
        made = Pipeline("numbers")
        source = NatsConsumerSource[int](nats_server.url, stream, durable="d", ends=ends)
        made.source(source, name="in").to(seen.append, name="out")
        return made

    async with pipeline(False).start(checkpoints=Checkpoints(store=store)), asyncio.timeout(60):
        while len(seen) < 10:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await pending(js, stream) == 10
    async with asyncio.timeout(30):  # half of what the server waits
        await pipeline(True).run(checkpoints=Checkpoints(store=store))
    assert seen == list(range(1, 11))


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("$JS.ACK.s.d.1.10.20.1700000000000000000.3", "$JS.ACK.s.d.1.7.20.1700000000000000000.3"),
        ("$JS.ACK.hub.acc.s.d.1.10.20.17.3", "$JS.ACK.hub.acc.s.d.1.7.20.17.3"),
        ("$JS.ACK._.acc.s.d.1.10.20.17.3.token", "$JS.ACK._.acc.s.d.1.7.20.17.3.token"),
    ],
)
def test_where_to_acknowledge_one_message_tells_where_another(reply: str, expected: str) -> None:
    assert reply_to(7, reply) == expected


async def test_with_ids_a_repeat_is_not_doubled(js: JetStreamContext, nats_server: NatsServer) -> None:
    name = next(names)
    await js.add_stream(name=name, subjects=[name])
    sink = NatsSink(nats_server.url, name, id="n")
    await sink.open()
    await sink.write([{"n": 1}, {"n": 2}], None)
    await sink.write([{"n": 2}, {"n": 3}], None)
    await sink.close()
    assert (await js.stream_info(name)).state.messages == 3


async def test_what_a_cluster_is_about_to_store_is_published_until_it_has(
    js: JetStreamContext, nats_server: NatsServer
) -> None:
    name = next(names)
    await js.add_stream(name=name, subjects=[name], no_ack=True)  # the answers are those of a cluster
    client = await nats.connect(nats_server.url)
    published: list[str] = []

    async def answer(message: Msg) -> None:
        id = (message.headers or {})["Nats-Msg-Id"]
        is_being_stored = id == "2" and published.count(id) < 3
        published.append(id)
        error = {"code": 409, "err_code": 10158, "description": "duplicate message id is in process"}
        await message.respond(json.dumps({"error": error} if is_being_stored else {"seq": 1}).encode())

    await client.subscribe(name, cb=answer)
    await client.flush()
    sink = NatsSink(nats_server.url, name, id="n")
    await sink.open()
    await sink.write([{"n": 1}, {"n": 2}, {"n": 2}, {"n": 3}], None)
    assert sink.taken() == 4
    assert published == ["1", "2", "2", "3", "2", "2", "2"]
    await sink.close()
    await client.close()


async def test_ids_that_differ_are_two_in_a_header_too(js: JetStreamContext, nats_server: NatsServer) -> None:
    name = next(names)
    await js.add_stream(name=name, subjects=[name])
    ids = ["a", " a", "a ", "a b", "a\nb", "a\r\nNats-Rollup: all", "%0A", "é", "e"]
    sink = NatsSink(nats_server.url, name, id=lambda value: value)
    await sink.open()
    await sink.write(ids, None)
    await sink.write(ids, None)
    await sink.close()
    assert (await js.stream_info(name)).state.messages == len(ids)


async def begin_anew(js: JetStreamContext, stream: str) -> None:
    """Another stream of the same name, with more messages in it."""
    await js.delete_stream(stream)
    await js.add_stream(name=stream, subjects=[f"{stream}.*"])
    await add(js, stream, range(11, 31))


@pytest.mark.parametrize("durable", [False, True])
async def test_a_stream_that_was_made_anew_is_refused(
    js: JetStreamContext, stream: str, nats_server: NatsServer, durable: bool
) -> None:
    def opened() -> Any:
        return member(nats_server.url, stream) if durable else NatsStreamSource[int](nats_server.url, stream)

    source = opened()
    await source.open()
    await numbers_of(source, 10)
    position = source.position()
    await source.close()
    await begin_anew(js, stream)
    source = opened()
    if not durable:  # whose consumer is gone with the stream
        with pytest.raises(SourceError, match=r"message 10 of .*the stream was made anew since"):
            await source.can_seek(position)
    await source.open()
    with pytest.raises(SourceError, match=r"message 10 of .*the stream was made anew since"):
        await source.seek(position)
    await source.close()


@pytest.mark.parametrize("start", ["first", "next"])
async def test_a_consumer_that_is_gone_is_not_begun_anew(
    js: JetStreamContext, stream: str, nats_server: NatsServer, start: str
) -> None:
    seen, store = list[int](), MemoryStore()
    kept = Checkpoints(store=store, every=60)

    def reading() -> Pipeline:
        pipeline = Pipeline("numbers")
        source = member(nats_server.url, stream, start=start, ends=True)
        pipeline.source(source, name="in").to(seen.append, name="out")
        return pipeline

    await reading().run(checkpoints=kept)
    await js.delete_consumer(stream, "d")
    for _ in range(2):  # which is no way around it
        with pytest.raises(SourceError, match=r"cannot go on with consumer 'd' .* not there any more"):
            await reading().run(checkpoints=kept)
    await js.add_consumer(
        stream, durable_name="d", ack_policy="explicit", deliver_policy="by_start_sequence", opt_start_seq=10
    )
    before = len(seen)
    await reading().run(checkpoints=kept)
    assert seen[before:] == ([10] if start == "next" else [])


@pytest.mark.parametrize(
    ("of_its", "says"),
    [
        ({"max_batch": 100}, r"Exceeded MaxRequest.*give batch=, or change what it allows"),
        ({"max_expires": 5 * 10**9}, r"Exceeded MaxRequest.*give batch=, or change what it allows"),
        ({"priority_groups": ["a"], "priority_policy": "overflow"}, r"the server says: .*Priority Group"),
    ],
)
async def test_a_consumer_that_does_not_give_what_is_asked_for_is_told_of(
    js: JetStreamContext, stream: str, nats_server: NatsServer, of_its: dict[str, Any], says: str
) -> None:
    config = {"durable_name": "d", "ack_policy": "explicit", **of_its}
    about = json.dumps({"stream_name": stream, "config": config}).encode()
    await js._api_request(f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.d", about)
    source = member(nats_server.url, stream)
    await source.open()
    async with asyncio.timeout(60):
        with pytest.raises(SourceError, match=says):
            await source.read()
    await source.close()


async def test_who_asks_in_vain_does_not_ask_again_at_once(
    js: JetStreamContext, stream: str, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PAUSE", 1e9)
    await js.add_consumer(stream, durable_name="d", ack_policy="explicit", max_waiting=1)
    first, second = member(nats_server.url, stream), member(nats_server.url, stream)
    for source in (first, second):
        await source.open()
    await numbers_of(first, 10)
    waiting = [asyncio.ensure_future(source.read()) for source in (first, second)]
    async with asyncio.timeout(60):
        while second._pull is None or not second._pull._ended:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await add(js, stream, [11])
    async with asyncio.timeout(60):
        await waiting[0]
    assert not waiting[1].done()
    for source in (first, second):
        await source.close()
    await asyncio.wait(waiting)


async def test_who_waits_for_the_end_of_what_others_have_does_not_ask_all_the_time(
    js: JetStreamContext, stream: str, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_source, "PAUSE", 1e9)
    first, second = member(nats_server.url, stream), member(nats_server.url, stream, ends=True)
    for source in (first, second):
        await source.open()
    await numbers_of(first, 10)
    waiting = asyncio.ensure_future(second.read())
    async with asyncio.timeout(60):
        while second._pull is None or not second._pull._ended:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    asked = second._opened().stats["out_msgs"]
    for _ in range(20):
        await js.consumer_info(stream, "d")
    assert second._opened().stats["out_msgs"] <= asked + 1  # it has asked whether others have some
    for source in (first, second):
        await source.close()
    await asyncio.wait({waiting})


async def test_a_consumer_that_is_deleted_while_nothing_is_asked_of_it_is_told_of(
    js: JetStreamContext, stream: str, nats_server: NatsServer
) -> None:
    source = NatsStreamSource[int](nats_server.url, stream, batch=2)
    await source.open()
    await source.read()
    for about in await js.consumers_info(stream):
        await js.delete_consumer(stream, about.name)
    with pytest.raises(SourceError, match="the consumer was deleted"):
        await asyncio.wait_for(numbers_of(source), 60)
    await source.close()


async def test_a_write_does_not_wait_for_a_server_that_is_gone() -> None:
    with running_nats() as server:
        client = await nats.connect(server.url)
        await client.jetstream().add_stream(name="s", subjects=["s"])
        await client.close()
        sink = NatsSink(server.url, "s")
        await sink.open()

        async def write_on() -> None:
            while True:
                await sink.write([1, 2], None)

        with server.held():
            writing = asyncio.ensure_future(write_on())
            await asyncio.sleep(0.1)  # of a real server, which is not held in an instant
            server.kill()
        with pytest.raises(SinkError, match="the connection is broken"):
            await writing
        await sink.close()


async def test_a_connection_that_breaks_over_what_is_to_be_sent_leaves_nothing_behind(
    nats_server: NatsServer,
) -> None:
    before = asyncio.all_tasks()

    async def hush(message: Msg) -> None: ...

    async with between(nats_server.port) as proxy, asyncio.timeout(60):
        client = await connection.connect(f"nats://{HOST}:{proxy.port}", {"flush_timeout": 0.05})
        await client.subscribe("s", cb=hush)
        await client.flush()
        proxy.passes.clear()
        for _ in range(30):  # more than the network holds
            await client.publish("s", bytes(2**19))
        proxy.cut()
        while client.is_connected:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await connection.leave(client)
        left = [task for task in asyncio.all_tasks() - before if "nats" in repr(task)]
        assert not left or not (await asyncio.wait(left, timeout=1))[1]


async def test_who_cannot_connect_leaves_no_connection_open() -> None:
    left = asyncio.Event()

    async def cut_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id\r\n')
        assert await reader.read() == b""
        left.set()
        writer.close()

    async with await asyncio.start_server(cut_off, HOST, 0) as server, asyncio.timeout(60):
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(SourceError, match="info message") as caught:
            await NatsStreamSource[int](f"nats://{HOST}:{port}", "s").open()
        await left.wait()
        assert caught.value.__cause__  # which keeps what the garbage collector would close


@pytest.mark.parametrize("nothing", [None, "", nan])
async def test_an_element_without_an_id_is_refused(
    nothing: Any, js: JetStreamContext, stream: str, nats_server: NatsServer
) -> None:
    sink = NatsSink(nats_server.url, f"{stream}.1", id="id")
    await sink.open()
    with pytest.raises(SinkError, match=f"it has no id=, but {nothing!r}"):
        await sink.write([{"id": nothing}], None)
    await sink.close()


async def test_a_stream_may_take_its_time_as_long_as_it_answers(
    js: JetStreamContext, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_sink, "LOOK", 0.1)
    monkeypatch.setattr(nats_sink, "_PATIENCE", 1.0)
    name = next(names)
    await js.add_stream(name=name, subjects=[name], no_ack=True)

    async def answer(message: Msg) -> None:
        await asyncio.sleep(0.2)  # of a real network: more than the patience, all in all
        if message.data != b"99":
            await message.respond(b'{"stream": "s", "seq": 1}')

    client = await nats.connect(nats_server.url)
    await client.subscribe(name, cb=answer)
    sink = NatsSink(nats_server.url, name)
    await sink.open()
    await sink.write(list(range(10)), None)
    assert sink.taken() == 10
    with pytest.raises(SinkBroken, match="there was no answer within 1 s"):
        await sink.write([99], None)
    await sink.close()
    await client.close()


@pytest.mark.parametrize("make", [NatsStreamSource, member])
async def test_the_stream_is_asked_about_once(make: Any, stream: str, nats_server: NatsServer) -> None:
    listening = await nats.connect(nats_server.url)
    asked = await listening.subscribe(f"$JS.API.STREAM.INFO.{stream}")
    await listening.flush()  # or the server may hear of it behind what the source asks
    source = make(nats_server.url, stream)
    await source.open()
    await source.close()
    await listening.flush()
    times = asked.pending_msgs
    await listening.close()
    assert times == 1


async def test_a_subject_of_many(stream: str, nats_server: NatsServer) -> None:
    source = NatsStreamSource[int](nats_server.url, stream, subject=f"{stream}.0", ends=True)
    await source.open()
    batch = await source.read()
    assert batch is not None
    assert batch.values == [2, 4, 6, 8, 10]
    assert batch.timestamps is not None
    assert all(timestamp is not None and timestamp > 10**12 for timestamp in batch.timestamps)
    await source.close()


async def test_what_is_no_element_is_rejected_or_fails(
    js: JetStreamContext, stream: str, nats_server: NatsServer
) -> None:
    await js.publish(f"{stream}.0", b"{")
    source = NatsStreamSource[int](nats_server.url, stream, on_malformed="reject", ends=True)
    strict = NatsStreamSource[int](nats_server.url, stream, ends=True)
    for opened in (source, strict):
        await opened.open()
    found: list[RejectedMessage] = []
    for _ in range(11):  # a busy server gives them by and by
        if not found and (batch := await source.read()) is not None:
            found += batch.rejected
    (rejected,) = found
    assert isinstance(rejected, RejectedMessage)
    assert (rejected.id, rejected.value) == (f"{stream}.0 11", b"{")
    assert await numbers_of(strict, 10) == list(range(1, 11))
    with pytest.raises(SourceError, match=f"of NATS at .*, {stream}.0 11: it cannot be read"):
        await strict.read()
    for opened in (source, strict):
        await opened.close()


async def test_a_stream_that_was_trimmed_is_refused(
    js: JetStreamContext, stream: str, nats_server: NatsServer
) -> None:
    await js.purge_stream(stream, keep=3)
    source = NatsStreamSource[int](nats_server.url, stream, ends=True)
    await source.open()
    for asked in (source.can_seek, source.seek):
        with pytest.raises(SourceError, match="those up to 7 are gone"):
            await asked({**source.position(), "read": 5})
        with pytest.raises(SourceError, match=r"is it the same stream\? With one from a backup"):
            await asked({**source.position(), "read": 11})
    await source.seek({**source.position(), "read": 7})
    assert await numbers_of(source) == [8, 9, 10]
    await source.close()


@pytest.mark.parametrize("durable", [False, True])
async def test_a_stream_that_went_back_and_on_again_is_refused(
    js: JetStreamContext, stream: str, nats_server: NatsServer, durable: bool
) -> None:
    url = nats_server.url
    source: Any = member(url, stream) if durable else NatsStreamSource[int](url, stream, ends=True)
    await source.open()
    await numbers_of(source, 10)
    position = source.position()
    other = dict(position)
    if durable:
        number, taken_ns = position["newest"]
        other["newest"] = [number, taken_ns - 10**6]
    else:
        other["taken_ns"] = position["taken_ns"] - 10**6
    for asked in (source.can_seek, source.seek):
        await asked(position)
        with pytest.raises(SourceError, match=r"message 10 of .*: another one has that number: .*a backup"):
            await asked(other)
    await js.delete_msg(stream, 10)
    await source.can_seek(other)  # nobody can tell
    assert source.position() == position
    await source.close()


async def test_who_may_not_look_at_a_message_goes_on_soon(tmp_path: Path) -> None:
    options = tmp_path / "options"
    options.write_text(
        "authorization { users = [{ user: a, password: a }, { user: b, password: b, permissions: {"
        'publish: ["$JS.API.STREAM.INFO.>", "$JS.API.CONSUMER.>"], subscribe: ["_INBOX.>"] } }] }'
    )
    with running_nats("-c", str(options)) as server:
        client = await nats.connect(server.url.replace("//", "//a:a@"))
        await client.jetstream().add_stream(name="s", subjects=["s"])
        await client.jetstream().publish("s", b"1")
        await client.close()
        source = NatsStreamSource[int](server.url.replace("//", "//b:b@"), "s", ends=True)
        await source.open()
        assert await numbers_of(source) == [1]
        begun = asyncio.get_running_loop().time()
        await source.seek(source.position())
        assert asyncio.get_running_loop().time() - begun < 3  # it was five
        await source.close()


async def test_what_is_gone_before_it_is_read_is_missed_by_nobody_unseen(
    js: JetStreamContext, stream: str, nats_server: NatsServer
) -> None:
    strict = NatsStreamSource[int](nats_server.url, stream, ends=True, batch=2)
    lenient = NatsStreamSource[int](nats_server.url, stream, ends=True, batch=2, if_trimmed="go_on")
    one_subject = NatsStreamSource[int](nats_server.url, stream, subject=f"{stream}.0", ends=True, batch=2)
    for source in (strict, lenient, one_subject):
        await source.open()
        assert await source.read() is not None
    await js.delete_msg(stream, 3)
    assert await numbers_of(one_subject) == [6, 8, 10]
    await js.purge_stream(stream, keep=4)
    with pytest.raises(SourceError, match=r"cannot go on behind message 2 .*: those up to 6 are gone"):
        await strict.read()
    assert await numbers_of(lenient) == [7, 8, 9, 10]
    for source in (strict, lenient, one_subject):
        await source.close()


async def test_who_has_read_all_of_a_subject_misses_nothing_of_others(
    js: JetStreamContext, nats_server: NatsServer
) -> None:
    name = next(names)
    await js.add_stream(name=name, subjects=[f"{name}.*"], max_msgs=4)
    source = NatsStreamSource[int](nats_server.url, name, subject=f"{name}.0")
    await source.open()
    for more in ([2], [*range(3, 99, 2), 100]):
        await add(js, name, more)
        assert await numbers_of(source, 1) == more[-1:]
    await source.close()
    behind = NatsStreamSource[int](nats_server.url, name, subject=f"{name}.0", start="next", batch=1)
    await behind.open()
    await add(js, name, [102, 104, 106])
    assert await numbers_of(behind, 1) == [102]
    await js.purge_stream(name)
    await add(js, name, [108])
    with pytest.raises(SourceError, match="are gone"):
        await numbers_of(behind, 2)
    await behind.close()


async def test_a_server_that_is_silent_is_told_of(
    stream: str, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_PINGS", 0.1)
    async with between(nats_server.port) as proxy, asyncio.timeout(60):
        source = NatsStreamSource[int](f"nats://{HOST}:{proxy.port}", stream)
        await source.open()
        assert await source.read() is not None
        proxy.passes.clear()
        with pytest.raises(SourceError, match=f"cannot read stream '{stream}' of NATS at .* is broken"):
            await source.read()
        await source.close()


async def test_wrong_settings_are_told_of(js: JetStreamContext, stream: str, nats_server: NatsServer) -> None:
    away = "nats://somebody:secret@127.0.0.1:1"
    await js.pull_subscribe(f"{stream}.0", "unlike", config=nats.js.api.ConsumerConfig(ack_policy=ALL))
    for source, says in (
        (
            NatsStreamSource[int](nats_server.url, "lacking"),
            "there is no stream 'lacking'",
        ),
        (NatsStreamSource[int](away, stream), "cannot read stream .* of NATS at 127.0.0.1:1"),
        (
            NatsConsumerSource[int](nats_server.url, stream, durable="unlike"),
            "consumer 'unlike' of",
        ),
    ):
        await check_cannot_be_read(source, says)
    for sink, says in (
        (NatsSink(nats_server.url, "nowhere"), "no stream takes subject 'nowhere'"),
        (NatsSink(away, "nowhere"), "cannot write to subject 'nowhere' of NATS at 127.0.0.1:1"),
        (
            NatsSink(nats_server.url, f"{stream}.0", encode="text"),
            "expected a text",
        ),
    ):
        await check_cannot_be_written(sink, says)


ALL = nats.js.api.AckPolicy.ALL


SOME = st.lists(st.integers(1, 30), unique=True)


def a_set(numbers: list[int]) -> Numbers:
    found = Numbers()
    for number in numbers:
        found.add(number)
    return found


@given(SOME, SOME)
def test_numbers_are_a_set(numbers: list[int], others: list[int]) -> None:
    found = a_set(numbers)
    assert [number for number in range(32) if number in found] == sorted(numbers)
    assert list(found) == sorted(numbers)
    assert len(found) == len(numbers)
    ranges = found.ranges()
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(ranges))
    assert Numbers(ranges).ranges() == ranges
    left = a_set([number for number in numbers if number not in others])
    assert found.without(a_set(others)).ranges() == left.ranges()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"url": "nonsense"}, "url: expected the address of a NATS server"),
        ({"decode": "xml"}, "decode: expected 'json', 'bytes', 'text' or a function"),
        ({"start": "last"}, "start: expected one of 'first', 'next'"),
        *(({"stream": name}, "stream: expected a name without") for name in ("a.b", "a b", "a*", "a/b")),
        *(({"subject": name}, "subject: expected") for name in ("a b", "a..b", ".a", "a.", "a.>.b", "")),
    ],
)
def test_wrong_arguments_are_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        NatsStreamSource(**{"url": "nats://localhost", "stream": "in", **more})


def test_what_has_no_such_name_is_refused() -> None:
    url = "nats://localhost"
    for name in ("a.b", "a b", ">", "a\\b"):
        with pytest.raises(PipelineError, match="durable: expected a name without blanks and any of"):
            NatsConsumerSource(url, "in", durable=name)
    with pytest.raises(PipelineError, match="subject: expected a subject: words with dots between them"):
        NatsConsumerSource(url, "in", durable="d", subject="a b")
    NatsConsumerSource(url, "in", durable="d", subject="a.*.>")
    for subject in ("a b", "a.", "a..b"):
        with pytest.raises(PipelineError, match="subject: expected a subject"):
            NatsSink(url, subject)
    for subject in ("a.*", "a.>", "*.a", ">"):
        with pytest.raises(PipelineError, match="subject: expected one subject, without wildcards"):
            NatsSink(url, subject)
    NatsSink(url, "a*.ü")  # in a word, it is none
