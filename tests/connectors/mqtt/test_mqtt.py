"""MQTT against a real broker: nothing is lost, what is acknowledged, and what errors say."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from typing import Any, ClassVar, cast

import pytest
from paho.mqtt import publish as paho
from paho.mqtt.client import Client
from paho.mqtt.enums import MessageType

from asyncstream import (
    Checkpoints,
    MemoryStore,
    Pipeline,
    PipelineError,
    Restarts,
    SinkError,
    SourceError,
    call_context,
)
from asyncstream.connectors.mqtt import MqttMessage, MqttSink, MqttSource
from asyncstream.connectors.mqtt import connection as mqtt_connection
from asyncstream.connectors.mqtt.address import address_of
from asyncstream.connectors.mqtt.connection import Connection, MqttError
from asyncstream.connectors.writer import Writer
from asyncstream.lease import Holder, Lease
from asyncstream.runtime.aio.job import Job
from tests.connectors.refusals import check_cannot_be_read, check_cannot_be_written
from tests.servers.mqtt import MqttServer, running_mqtt
from tests.servers.process import HOST

pytestmark = pytest.mark.broker

numbers = count(1)


@pytest.fixture
def name() -> str:
    """Of a topic and a client that were not used before."""
    return f"t{next(numbers)}"


async def publish(url: str, values: list[Any], topic: Any) -> None:
    pipeline = Pipeline("publish")
    pipeline.source(values, name="in").to(MqttSink(url, topic), name="out")
    await pipeline.run()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # of a real server


@asynccontextmanager
async def reading(
    source: MqttSource[Any],
    seen: list[Any],
    store: MemoryStore | None = None,
    call: Callable[[Any], Awaitable[Any]] | None = None,
) -> AsyncIterator[Job]:
    pipeline = Pipeline("reading")
    stream = pipeline.source(source, name="in")
    calls = stream if call is None else stream.async_map(call, name="calls", concurrency=5)
    calls.to(seen.append, name="out")
    kept = None if store is None else Checkpoints(store=store, every=0.05)
    async with pipeline.start(checkpoints=kept) as job:
        yield job


async def left(url: str, name: str) -> list[Any]:
    """What the broker still has for a client."""
    seen: list[Any] = []
    async with reading(MqttSource(url, name, client_id=name), seen) as job:
        await publish(url, ["last"], name)
        await until(lambda: "last" in seen)
        await job.stop()
    return seen[:-1]


async def begin(url: str, name: str) -> None:
    """Make the session, so that the broker keeps what comes."""
    async with reading(MqttSource(url, name, client_id=name), []) as job:
        await job.stop()


async def test_what_is_published_comes_and_is_acknowledged(mqtt_server: MqttServer, name: str) -> None:
    seen: list[Any] = []
    await begin(mqtt_server.url, name)
    await publish(mqtt_server.url, list(range(900)), name)
    source = MqttSource[Any](mqtt_server.url, name, client_id=name)
    async with reading(source, seen, MemoryStore()) as job:
        await until(lambda: len(seen) == 900)
        for _ in range(100):  # the first may be taken before what is done is known to be
            await job.checkpoint()
            if not source._unacknowledged:
                break
        await job.stop()
    assert seen == list(range(900))
    assert await left(mqtt_server.url, name) == []


async def test_broker_that_is_behind_has_read_what_is_acknowledged_before_the_next_connection(
    mqtt_server: MqttServer, name: str
) -> None:
    await begin(mqtt_server.url, name)
    await publish(mqtt_server.url, list(range(500)), name)
    source = MqttSource[Any](mqtt_server.url, name, client_id=name)
    seen: list[Any] = []
    async with asyncio.timeout(60):
        await source.open()
        while len(seen) < 500:
            batch = await source.read()
            assert batch is not None
            seen += batch.values

        async def come_back() -> list[Any]:
            await source.close()
            return await left(mqtt_server.url, name)

        with mqtt_server.held():
            await source.acknowledge(source.position())
            back = asyncio.ensure_future(come_back())
            await asyncio.wait({back}, timeout=0.3)
        assert await back == []


async def test_more_are_written_at_once_than_the_protocol_has_numbers_for(mqtt_server: MqttServer) -> None:
    sink = MqttSink(mqtt_server.url, "many")
    await sink.open()
    await sink.write(range(66_000), None)
    assert sink.taken() == 66_000
    await sink.close()


async def test_what_no_checkpoint_holds_comes_again(mqtt_server: MqttServer, name: str) -> None:
    stuck, store = asyncio.Event(), MemoryStore()
    first, second = list[Any](), list[Any]()

    async def call(value: int) -> int:
        if value >= 50:
            await stuck.wait()
        return value

    await begin(mqtt_server.url, name)
    await publish(mqtt_server.url, list(range(100)), name)
    source = MqttSource[Any](mqtt_server.url, name, client_id=name, batch=10)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with reading(source, first, store, call):
            await until(lambda: len(first) == 50)
            raise ZeroDivisionError  # a crash, as far as the broker and the checkpoints can tell
    stuck.set()
    async with reading(source, second, store, call) as job:
        await until(lambda: set(first + second) >= set(range(100)))
        await job.stop()


async def test_no_two_messages_have_one_key_for_their_calls(mqtt_server: MqttServer, name: str) -> None:
    keys: dict[str, set[int]] = {}
    store, hangs = MemoryStore(), [True]

    async def call(number: int) -> int:
        if number < 5 and hangs:
            await asyncio.sleep(3600)
        keys.setdefault(call_context().idempotency_key, set()).add(number)
        return number

    @asynccontextmanager
    async def running() -> AsyncIterator[Job]:
        pipeline = Pipeline("keys")
        source = pipeline.source(MqttSource[int](mqtt_server.url, name, client_id=name), name="in")
        calls = source.async_map(call, name="calls", order="unordered", concurrency=50, effect=True)
        calls.to([], name="out")
        async with pipeline.start(checkpoints=Checkpoints(store=store, every=None)) as job:
            yield job

    async def crashed() -> None:
        async with running() as job:
            await until(lambda: job.metrics()["in"]["read"] == 5)
            await job.checkpoint()
            await publish(mqtt_server.url, list(range(5, 20)), name)
            await until(lambda: len(keys) == 15)
            raise RuntimeError("down")

    await begin(mqtt_server.url, name)
    await publish(mqtt_server.url, list(range(5)), name)
    with pytest.raises(RuntimeError, match="down"):
        await crashed()
    hangs.clear()
    async with running() as job:
        await until(lambda: job.metrics()["calls"]["results_out"] == 25)
        await job.stop()
    assert all(len(numbers) == 1 for numbers in keys.values())


async def test_so_many_may_be_unacknowledged_and_then_it_asks_for_checkpoints(
    mqtt_server: MqttServer, name: str
) -> None:
    seen: list[Any] = []
    await begin(mqtt_server.url, name)
    await publish(mqtt_server.url, list(range(200)), name)
    source = MqttSource[Any](mqtt_server.url, name, client_id=name, unacknowledged=20)
    pipeline = Pipeline("few")
    pipeline.source(source, name="in").to(seen.append, name="out")
    async with pipeline.start(checkpoints=Checkpoints(store=MemoryStore(), every=3600, keep=1)) as job:
        await until(lambda: len(seen) == 200)
        await job.stop()
    assert seen == list(range(200))


async def test_no_more_is_unacknowledged_where_the_broker_sends_all_it_has(
    mqtt_server: MqttServer, name: str
) -> None:
    def member() -> MqttSource[int]:
        source = MqttSource[int](mqtt_server.url, name, client_id=name, unacknowledged=20, batch=15)
        source.writer = Writer(Lease(1, "here", Holder.here(0), 0), 3, "refuse")
        return source

    await begin(mqtt_server.url, name)
    await publish(mqtt_server.url, list(range(200)), name)
    first = member()
    await first.open()
    await first.read()
    await first.acknowledge(first.position())
    await first.close()
    again, asked = member(), asyncio.Event()
    again.checkpoint_soon = asked.set
    await again.open()
    found: list[int] = []
    while len(found) < 20:
        batch = await again.read()
        assert batch is not None
        found += batch.values
    reading = asyncio.ensure_future(again.read())
    async with asyncio.timeout(60):
        await asked.wait()
    assert not reading.done()
    assert found == list(range(found[0], found[0] + 20))
    await again.acknowledge(again.position())
    batch = await reading
    assert batch is not None
    assert batch.values[0] == found[-1] + 1
    await again.close()


async def test_who_waits_for_acknowledgements_hears_that_the_connection_is_broken(name: str) -> None:
    with running_mqtt() as server:
        await begin(server.url, name)
        await publish(server.url, list(range(20)), name)
        source = MqttSource[int](server.url, name, client_id=name, unacknowledged=20)
        source.writer = Writer(Lease(1, "here", Holder.here(0), 0), 3, "refuse")
        await source.open()
        found: list[int] = []
        while len(found) < 20:
            batch = await source.read()
            assert batch is not None
            found += batch.values
        server.kill()
        with pytest.raises(SourceError, match="the connection is broken"):
            async with asyncio.timeout(60):
                await source.read()
        await source.close()


async def test_topics_and_what_is_retained_come_along(mqtt_server: MqttServer, name: str) -> None:
    await publish(
        mqtt_server.url, [MqttMessage(1, f"{name}/a", retain=True), MqttMessage(2, f"{name}/b")], name
    )
    seen: list[Any] = []
    source = MqttSource[Any](mqtt_server.url, f"{name}/+", client_id=name, messages=True)

    def has_come(times: int) -> bool:
        return [one.topic for one in seen].count(f"{name}/c") == times

    for times in (1, 2):  # a session that goes on is not given it again
        async with reading(source, seen) as job:
            await publish(mqtt_server.url, [3], lambda value: f"{name}/c")
            await until(partial(has_come, times))
            await asyncio.sleep(0.05)  # for what should not come
            await job.stop()
    assert seen == [MqttMessage(1, f"{name}/a", retain=True), *[MqttMessage(3, f"{name}/c")] * 2]


async def test_what_is_no_element_is_rejected_or_fails(mqtt_server: MqttServer, name: str) -> None:
    await begin(mqtt_server.url, name)
    pipeline = Pipeline("publish")
    pipeline.source([b"1", b"{", b"3"], name="in").to(
        MqttSink(mqtt_server.url, name, encode="bytes"), name="out"
    )
    await pipeline.run()
    seen, rejected = list[Any](), list[Any]()
    failing, rejecting = Pipeline("failing"), Pipeline("rejecting")
    failing.source(MqttSource(mqtt_server.url, name, client_id=name), name="in").to(seen.append, name="out")
    with pytest.raises(SourceError, match=f"step 'in': '{name}' of MQTT at .*it cannot be read"):
        await failing.run(checkpoints=Checkpoints(store=MemoryStore(), every=60))
    assert seen == [1]
    source = rejecting.source(
        MqttSource[Any](mqtt_server.url, name, client_id=name, on_malformed="reject"), name="in"
    )
    source.to(seen.append, name="out")
    source.rejected.to(rejected.append, name="rejected")
    async with rejecting.start() as job:
        await until(lambda: seen[-1] == 3)
        await job.stop()
    assert [one.value for one in rejected] == [b"{"]


@pytest.fixture
def own() -> Iterator[MqttServer]:
    """A server of the test's own, to be stopped."""
    with running_mqtt() as server:
        yield server


async def test_a_server_that_comes_back_is_gone_on_with(own: MqttServer, name: str) -> None:
    seen: list[Any] = []
    pipeline = Pipeline("away")
    source = MqttSource[Any](own.url, name, client_id=name, if_forgotten="go_on")
    pipeline.source(source, name="in").to(seen.append, name="out")
    restarts = Restarts(attempts=1000, backoff=0.05, longest=0.05)
    kept = Checkpoints(store=MemoryStore(), every=0.05)
    running = asyncio.ensure_future(pipeline.run(checkpoints=kept, restart=restarts))
    await publish_until(own, name, 1, seen)
    own.kill()
    await asyncio.sleep(0.1)  # of a real server
    own.start()
    await publish_until(own, name, 2, seen)
    running.cancel()
    await asyncio.wait({running})


async def publish_until(server: MqttServer, name: str, value: int, seen: list[Any]) -> None:
    async with asyncio.timeout(60):
        while value not in seen:
            await publish(server.url, [value], name)
            await asyncio.sleep(0.02)  # of a real server


async def test_a_session_that_is_gone_is_told_of(own: MqttServer, name: str) -> None:
    store = MemoryStore()
    seen: list[Any] = []
    source = MqttSource[Any](own.url, name, client_id=name)
    async with reading(source, seen, store) as job:
        await publish_until(own, name, 1, seen)
        await job.stop()
    own.kill()
    own.start()  # which has nothing on the disk
    for _ in range(2):  # to be refused makes none
        with pytest.raises(
            SourceError, match=r"step 'in': cannot go on with .*the broker has no session of client"
        ):
            async with asyncio.timeout(60), reading(source, seen, store) as job:
                await job.wait()


async def test_a_job_that_was_left_before_it_read_is_gone_on_with(mqtt_server: MqttServer, name: str) -> None:
    store, seen = MemoryStore(), list[Any]()
    source = MqttSource[Any](mqtt_server.url, name, client_id=name)
    async with reading(source, seen, store):
        pass
    await publish(mqtt_server.url, [1], name)
    async with reading(source, seen, store) as job:
        await until(lambda: seen == [1])
        await job.stop()


async def test_a_topic_that_is_left_out_comes_no_more(mqtt_server: MqttServer, name: str) -> None:
    store, seen = MemoryStore(), list[Any]()
    url, old, new = mqtt_server.url, f"{name}/old", f"{name}/new"
    async with reading(MqttSource(url, old, new, client_id=name), seen, store) as job:
        await job.checkpoint()
        await job.stop()
    await publish(url, [1], old)
    async with reading(MqttSource(url, new, client_id=name), seen, store) as job:
        await until(lambda: seen == [1])
        await publish(url, [2], old)
        await publish(url, [3], new)
        await until(lambda: 3 in seen)
        await job.stop()
    assert seen == [1, 3]


async def test_a_topic_is_left_out_though_more_has_come_than_there_is_room_for(
    mqtt_server: MqttServer, name: str
) -> None:
    source = MqttSource[Any](mqtt_server.url, name, client_id=name, unacknowledged=2)
    await source.open()
    sent = [(name, str(number), 0, False) for number in range(5)]
    # what is behind them is acknowledged when the broker has seen to all
    sent.append((f"{name}/other", "", 1, False))
    await asyncio.to_thread(paho.multiple, sent, hostname=HOST, port=mqtt_server.port)  # type: ignore[arg-type]
    await until(lambda: len(source._opened().arrived) >= 2)
    source._opened().resumed = True
    await source.seek({"run": 0, "read": 0, "topics": [name, f"{name}/old"]})
    seen: list[Any] = []
    while len(seen) < 5:
        batch = await source.read()
        assert batch is not None
        seen += batch.values
    await source.close()
    assert seen == list(range(5))


async def test_wrong_settings_are_told_of(mqtt_server: MqttServer, name: str) -> None:
    away = "mqtt://somebody:secret@127.0.0.1:1"
    source = MqttSource[Any](away, name, client_id=name)
    await check_cannot_be_read(source, "cannot read .* of MQTT at 127.0.0.1:1: .*refused")
    for sink, says in (
        (MqttSink(away, name), "cannot write to topic .*refused"),
        (
            MqttSink(mqtt_server.url, lambda value: "a/+"),
            "expected a topic without wildcards and control characters, got 'a/",
        ),
        (MqttSink(mqtt_server.url, name, encode="bytes"), "expected bytes, got int"),
    ):
        await check_cannot_be_written(sink, says)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"url": "http://localhost"}, "url: expected the address of an MQTT broker"),
        ({"url": "mqtt://localhost:none"}, "url: expected the address of an MQTT broker"),
        ({"url": "mqtt://localhost:0"}, "url: expected the address of an MQTT broker"),
        ({"client_id": ""}, "client_id: expected"),
        ({"decode": "xml"}, "decode: expected 'json', 'bytes', 'text' or a function"),
        ({"unacknowledged": 65536}, "unacknowledged: expected 65535 at most"),
        ({"tls": True}, "tls: expected an ssl.SSLContext, with an address of mqtts://"),
        ({"if_forgotten": "weep"}, "if_forgotten: expected one of 'refuse', 'go_on'"),
    ],
)
def test_wrong_arguments_are_refused(more: dict[str, Any], says: str) -> None:
    arguments: dict[str, Any] = {"url": "mqtt://localhost", "client_id": "me", **more}
    with pytest.raises(PipelineError, match=says):
        MqttSource(arguments.pop("url"), "t", **arguments)


@pytest.mark.parametrize("topic", ["a/#", "a\0", "a\x1f", "a\x85", "\uffff", "\U0001fffe", "\ud800", ""])
async def test_a_topic_that_cannot_be_is_refused_by_itself(mqtt_server: MqttServer, topic: str) -> None:
    with pytest.raises(PipelineError, match="topic: expected one without wildcards"):
        MqttSink(mqtt_server.url, topic)
    pipeline, failed = Pipeline("writing"), list[Any]()
    written = pipeline.source([topic, "a\u00a0é/\U0001f600", "$a/ "], name="in").to(
        MqttSink(mqtt_server.url, str), name="out", on_error="route"
    )
    written.failed.to(failed, name="failed")
    await pipeline.run()
    assert [call.value for call in failed] == [topic]


@pytest.mark.parametrize("topic", ["a/#/b", "a/b#", "a+/b", "#/a", "##", "a/+/#b"])
def test_a_wildcard_stands_for_whole_levels(topic: str) -> None:
    with pytest.raises(PipelineError, match="topics: expected wildcards in place of whole levels"):
        MqttSource("mqtt://localhost", "a", topic, client_id="me")
    for right in ("#", "+", "+/+/#", "a//+/", "$share/us/a/#"):
        MqttSource("mqtt://localhost", right, client_id="me")


def test_topics_are_named() -> None:
    with pytest.raises(PipelineError, match="topics: expected one or more topics"):
        MqttSource("mqtt://localhost", client_id="me")


def test_the_plan_says_at_least_once() -> None:
    pipeline = Pipeline("plan")
    pipeline.source(MqttSource("mqtt://localhost", "t", client_id="me"), name="in").to([], name="out")
    assert [way.level for way in pipeline.guarantees()] == ["at least once"]


async def test_a_client_that_is_held_up_is_heard_of_by_the_broker() -> None:
    loop, heard = asyncio.get_running_loop(), asyncio.Event()

    class Client:
        keepalive = 0.03
        said: ClassVar[list[int]] = []

        def _send_simple_command(self, command: int) -> None:
            self.said.append(command)

        def _packet_write(self) -> None:
            if len(self.said) == 3:
                loop.call_soon_threadsafe(heard.set)

    connection = Connection(address_of("mqtt://localhost"), None)
    connection._subscribed = True
    message, client = cast(Any, object()), cast(Any, Client())
    connection.arrived.append(message)  # as many as may be here
    async with asyncio.timeout(60):
        coming = asyncio.ensure_future(asyncio.to_thread(connection._on_message, client, None, message))
        await heard.wait()
        connection.take(1)
        await coming
    assert list(connection.arrived) == [message]
    assert set(Client.said) == {MessageType.PINGREQ}
    assert client._ping_t == 0  # nor does the client give up a broker whose answer is behind what has come


async def test_a_connection_that_breaks_while_a_client_is_held_up_is_told_of(name: str) -> None:
    with running_mqtt() as server:
        connection = Connection(address_of(server.url), None)
        await connection.open()
        await connection.subscribe([name])
        client = cast(Any, connection._client)
        paho.multiple([(name, b"", 0, False)] * 3, hostname=HOST, port=server.port)
        await until(lambda: len(connection.arrived) == 1 and client._in_callback_mutex.locked())
    client._keepalive = 0.03
    with connection._room:
        connection._room.notify()
    await until(lambda: len(client._out_packet) > 1)  # pings that went nowhere
    await until(lambda: not connection.take(1) and bool(connection._broken))
    with pytest.raises(MqttError, match="the connection is broken"):
        await connection.wait(1)
    await connection.close()


async def test_no_more_is_under_way_than_the_broker_takes() -> None:
    at_once: list[int] = []

    async def strict(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting: list[bytes] = []  # numbers, to be acknowledged by twos
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kind = (await reader.readexactly(1))[0] >> 4
                body = await reader.readexactly((await reader.readexactly(1))[0])
                if kind == 1:  # CONNECT: two at most
                    writer.write(bytes([0x20, 6, 0, 0, 3, 0x21, 0, 2]))
                elif kind == 3:  # PUBLISH
                    start = 2 + int.from_bytes(body[:2])
                    waiting.append(body[start : start + 2])
                    if len(waiting) == 2:
                        await asyncio.sleep(0.02)  # of a real client, which sends what it will
                        at_once.append(2 + len(reader._buffer) // (2 + len(body)))  # type: ignore[attr-defined]
                        for number in waiting:
                            writer.write(bytes([0x40, 2]) + number)
                        waiting.clear()
        writer.close()

    async with await asyncio.start_server(strict, HOST, 0) as server, asyncio.timeout(60):
        sink = MqttSink(f"mqtt://{HOST}:{server.sockets[0].getsockname()[1]}", "t")
        await sink.open()
        await sink.write(list(range(10)), None)
        await sink.close()
    assert at_once == [2] * 5


@pytest.mark.parametrize("ends", [True, False], ids=["to the end", "stands still"])
async def test_what_is_resent_may_take_its_time(ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt_connection, "_PATIENCE", 1.0)

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)  # CONNECT
        writer.write(bytes([0x20, 3, 1, 0, 0]))  # there is a session
        question = (await reader.read(1000))[2:4]  # the number of SUBSCRIBE
        for number in range(1, 9):
            writer.write(bytes([0x32, 7, 0, 1]) + b"t" + bytes([0, number, 0]) + str(number).encode())
            await asyncio.sleep(0.15)  # of a real network: more than the patience, all in all
        if ends:
            writer.write(bytes([0x90, 4]) + question + bytes([0, 1]))
        await reader.read(1000)
        writer.close()

    async with await asyncio.start_server(slow, HOST, 0) as server, asyncio.timeout(60):
        url = f"mqtt://{HOST}:{server.sockets[0].getsockname()[1]}"
        source = MqttSource[int](url, "t", client_id="me")
        if ends:
            await source.open()
            batch = await source.read()
            assert batch is not None
            assert batch.values == list(range(1, 9))
        else:
            with pytest.raises(SourceError, match=r"there was no answer within 1 s"):
                await source.open()
        await source.close()


async def test_a_large_message_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt_connection, "_PATIENCE", 1.0)
    size = 300_000

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)  # CONNECT
        writer.write(bytes([0x20, 3, 0, 0, 0]))
        for _ in range(3):
            head = await reader.readexactly(10)  # of PUBLISH
            for _ in range(10):
                await reader.readexactly(size // 10)
                await asyncio.sleep(0.1)  # of a real network: more than the patience, all in all
            writer.write(bytes([0x40, 2]) + head[7:9])
        while await reader.read(1000):
            pass  # what comes is not answered
        writer.close()

    async with await asyncio.start_server(slow, HOST, 0) as server, asyncio.timeout(60):
        sink = MqttSink(f"mqtt://{HOST}:{server.sockets[0].getsockname()[1]}", "t", encode="bytes")
        await sink.open()
        await sink.write([bytes(size)] * 3, None)
        assert sink.taken() == 3
        with pytest.raises(SinkError, match=r"there was no answer within 1"):
            await sink.write([b"1"], None)
        await sink.close()


async def test_a_session_that_another_client_has_taken_over_is_told_of(
    mqtt_server: MqttServer, name: str
) -> None:
    first, second = (MqttSource[Any](mqtt_server.url, name, client_id=name) for _ in range(2))
    await first.open()
    reading = asyncio.ensure_future(first.read())
    await second.open()
    with pytest.raises(SourceError, match=f"a second client with client_id='{name}' ends the first one's"):
        await asyncio.wait_for(reading, 60)
    await first.close()
    await second.close()


async def test_of_a_broker_that_says_why_it_ends_a_connection_nothing_else_is_told() -> None:
    async def ending(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)  # CONNECT
        writer.write(bytes([0x20, 3, 0, 0, 0, 0xE0, 2, 0x8B, 0]))
        await reader.read(1000)
        writer.close()

    async def read(source: MqttSource[Any]) -> None:
        await source.open()
        await source.read()

    async with await asyncio.start_server(ending, HOST, 0) as server, asyncio.timeout(60):
        url = f"mqtt://{HOST}:{server.sockets[0].getsockname()[1]}"
        source = MqttSource[Any](url, "t", client_id="me")
        with pytest.raises(SourceError, match="Server shutting down") as raised:
            await read(source)
        assert "a second client" not in str(raised.value)
        await source.close()


async def test_of_a_connection_lost_a_moment_ago_the_reason_is_waited_for() -> None:
    ends = threading.Event()

    def serve(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1000)  # CONNECT
            connection.sendall(bytes([0x20, 3, 0, 0, 0]))
            assert ends.wait(60)
            connection.sendall(bytes([0xE0, 2, 0x8B, 0]))

    with socket.create_server((HOST, 0)) as server, ThreadPoolExecutor() as threads:
        serving = threads.submit(serve, server)
        connection = Connection(address_of(f"mqtt://{HOST}:{server.getsockname()[1]}"), None)
        await connection.open()
        client = connection._client
        assert client is not None
        assert client._thread is not None
        ends.set()
        client._thread.join(60)  # the loop stands still meanwhile, so it has not heard of it
        with pytest.raises(MqttError, match="Server shutting down"):
            await connection.subscribe(["t"])
        await connection.close()
        serving.result(60)


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.endswith(f"-{name}")]


async def test_a_connection_that_was_not_waited_for_is_left_when_it_is_there(
    mqtt_server: MqttServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    was_closed = threading.Event()
    made: list[Client] = []

    def late(client: Client, *args: Any, **options: Any) -> Any:
        assert was_closed.wait(60)
        Client.connect(client, *args, **options)
        made.append(client)

    connection = Connection(address_of(mqtt_server.url), None, name)
    monkeypatch.setattr("paho.mqtt.client.Client", type("Late", (Client,), {"connect": late}))
    opening = asyncio.ensure_future(connection.open())
    await asyncio.wait({opening}, timeout=0.01)
    opening.cancel()
    await asyncio.wait({opening})
    await connection.close()
    was_closed.set()
    await until(lambda: bool(made) and made[0].socket() is None)
    assert not threads_of(name)


async def test_a_connection_is_left_though_nobody_waits_for_that_to_end(
    mqtt_server: MqttServer, name: str
) -> None:
    connection = Connection(address_of(mqtt_server.url), None, name, 60)
    await connection.open()
    connection.acknowledge([1])
    closing = asyncio.ensure_future(connection.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    await until(lambda: not threads_of(name))


async def test_a_source_is_left_though_nobody_waits_for_that_to_end(
    mqtt_server: MqttServer, name: str
) -> None:
    source = MqttSource[Any](mqtt_server.url, name, client_id=name)
    await source.open()
    reading = asyncio.ensure_future(source.read())
    await asyncio.wait({reading}, timeout=0.01)
    reading.cancel()
    closing = asyncio.ensure_future(source.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({reading, closing})
    await until(lambda: not threads_of(name))


def test_the_client_may_hear_of_something_in_the_moment_in_which_the_loop_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> tuple[asyncio.AbstractEventLoop, Connection]:
        return asyncio.get_running_loop(), Connection(address_of("mqtt://localhost"), None)

    loop, connection = asyncio.run(main())
    with monkeypatch.context() as before:
        before.setattr(loop, "is_closed", lambda: False)
        connection._on_disconnect(cast(Any, None), None, None, "the broker has gone", None)
