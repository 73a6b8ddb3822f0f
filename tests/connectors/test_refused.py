"""
What `on_error=` of a sink is for: elements that a server does not take, one by one. Not for a server that
takes nothing, because it is away: that ends the job, or all that comes meanwhile would be left out.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import nats
import psycopg
import pytest

from asyncstream import FailedCall, Pipeline, Sink, SinkBroken, SinkError, SqliteSink
from asyncstream.connectors import (
    MemoryStreamSink,
    NatsSink,
    PostgresSink,
    PostgresUpsertSink,
    RedisStreamSink,
)
from asyncstream.connectors.kafka import KafkaSink, KafkaTransactionalSink, client
from asyncstream.connectors.mqtt import MqttSink, MqttSource
from asyncstream.connectors.nats import sink as nats_sink
from asyncstream.connectors.sqlite import database
from tests.servers.kafka import Kafka, transactional_server
from tests.servers.mqtt import MqttServer, running_mqtt
from tests.servers.nats import NatsServer, running_nats
from tests.servers.postgres import PostgresServer
from tests.servers.process import HOST
from tests.servers.proxy import between
from tests.servers.redis import running_redis

pytestmark = pytest.mark.broker


class Leaving(NamedTuple):
    """A sink, and what takes its server away."""

    sink: Sink[Any]
    leave: Callable[[], object]


Away = Callable[[Path, PostgresServer], AbstractAsyncContextManager[Leaving]]


@asynccontextmanager
async def of_redis(folder: Path, postgres: PostgresServer) -> AsyncIterator[Leaving]:
    with running_redis() as server:
        yield Leaving(RedisStreamSink(server.url, "s"), server.kill)


@asynccontextmanager
async def of_nats(folder: Path, postgres: PostgresServer) -> AsyncIterator[Leaving]:
    with running_nats() as server:
        await add_stream(server)
        yield Leaving(NatsSink(server.url, "s"), server.kill)


async def add_stream(server: NatsServer) -> None:
    connection = await nats.connect(server.url)
    await connection.jetstream().add_stream(name="s", subjects=["s"])
    await connection.close()


@asynccontextmanager
async def of_mqtt(folder: Path, postgres: PostgresServer) -> AsyncIterator[Leaving]:
    with running_mqtt() as server:
        yield Leaving(MqttSink(server.url, "t"), server.kill)


@asynccontextmanager
async def of_kafka(folder: Path, postgres: PostgresServer) -> AsyncIterator[Leaving]:
    with transactional_server(folder).running() as server:
        topic = await server.topic()
        sink = KafkaSink(topic, bootstrap_servers=server.address, client={"request_timeout_ms": 300})
        yield Leaving(sink, server.kill)


@asynccontextmanager
async def of_redis_garbled(folder: Path, postgres: PostgresServer) -> AsyncIterator[Leaving]:
    with running_redis() as server:
        async with between(server.port) as proxy:
            sink = RedisStreamSink(f"redis://{HOST}:{proxy.port}", "s", id="n")
            yield Leaving(sink, lambda: setattr(proxy, "garbled", b"$no number\r\n"))


@asynccontextmanager
async def of_nats_garbled(folder: Path, postgres: PostgresServer) -> AsyncIterator[Leaving]:
    with running_nats() as server:
        await add_stream(server)
        async with between(server.port) as proxy:
            sink = NatsSink(f"nats://{HOST}:{proxy.port}", "s")
            yield Leaving(sink, lambda: setattr(proxy, "garbled", b"MSG a b no number\r\n"))


@asynccontextmanager
async def of_mqtt_garbled(folder: Path, postgres: PostgresServer) -> AsyncIterator[Leaving]:
    with running_mqtt() as server:
        async with between(server.port) as proxy:
            sink = MqttSink(f"mqtt://{HOST}:{proxy.port}", "t")
            yield Leaving(sink, lambda: setattr(proxy, "garbled", bytes(50)))


@asynccontextmanager
async def of_postgres(folder: Path, postgres: PostgresServer) -> AsyncIterator[Leaving]:
    async with table(postgres), between(postgres.port) as proxy:
        url = postgres.url().replace(f":{postgres.port}/", f":{proxy.port}/")
        yield Leaving(PostgresSink(url, "away", columns=["n"]), proxy.cut)


@asynccontextmanager
async def by_key(folder: Path, postgres: PostgresServer) -> AsyncIterator[Leaving]:
    async with table(postgres) as other:
        url = f"{postgres.url()}?options=-c%20lock_timeout%3D100"
        sink = PostgresUpsertSink(url, "away", columns=["n"], key="n")
        yield Leaving(sink, lambda: other.execute("BEGIN; LOCK TABLE away"))


@asynccontextmanager
async def table(postgres: PostgresServer) -> AsyncIterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE away (n integer PRIMARY KEY)")
        yield connection
        connection.execute("ROLLBACK; DROP TABLE away")


@asynccontextmanager
async def of_sqlite(folder: Path, postgres: PostgresServer) -> AsyncIterator[Leaving]:
    with closing(sqlite3.connect(folder / "out.db", isolation_level=None)) as other:
        sink = SqliteSink(folder / "out.db", "t", columns=["n"])
        yield Leaving(sink, lambda: other.execute("BEGIN IMMEDIATE"))


@asynccontextmanager
async def of_a_memory_stream(folder: Path, postgres: PostgresServer) -> AsyncIterator[Leaving]:
    send, receive = anyio.create_memory_object_stream[Any](100)
    with send:
        yield Leaving(MemoryStreamSink(send), receive.close)


@pytest.mark.parametrize(
    "away",
    [
        *(of_redis, of_nats, of_mqtt, of_kafka, of_postgres, by_key, of_sqlite, of_a_memory_stream),
        *(of_redis_garbled, of_nats_garbled, of_mqtt_garbled),
    ],
)
async def test_no_element_is_left_out_because_a_server_is_away(
    away: Away, tmp_path: Path, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PATIENCE", 0.1)
    monkeypatch.setattr(client, "_FAREWELL", 0.1)  # of Kafka
    monkeypatch.setattr(nats_sink, "_PATIENCE", 0.5)
    failed: list[FailedCall] = []
    async with away(tmp_path, postgres_server) as (sink, leave):

        async def rows() -> AsyncIterator[dict[str, int]]:
            yield {"n": 1}
            async with asyncio.timeout(60):
                while job.metrics()["out"]["written"] < 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)  # of a real server
            leave()
            for number in range(2, 5):
                yield {"n": number}

        pipeline = Pipeline("away")
        written = pipeline.source(rows, name="in").to(sink, name="out", on_error="route")
        written.failed.to(failed)
        job = pipeline.start()
        with pytest.raises(SinkBroken, match="step 'out': "):
            async with asyncio.timeout(60), job:
                await job.wait()
    assert failed == []


async def routed(elements: Sequence[Any], sink: Sink[Any]) -> list[FailedCall]:
    """Write elements; gives those that the sink did not take."""
    failed: list[FailedCall] = []
    pipeline = Pipeline("writing")
    pipeline.source(list(elements), name="in").to(sink, name="out", on_error="route").failed.to(failed)
    await asyncio.wait_for(pipeline.run(), 60)
    return failed


async def test_a_record_that_the_broker_refuses_costs_no_other(kafka: Kafka) -> None:
    topic = await kafka.topic(max_message_bytes="1000")
    large = b"x" * 2000
    elements = [*(b"%d" % n for n in range(5)), large, *(b"%d" % n for n in range(5, 10)), large, b"10"]
    sink = KafkaSink(topic, bootstrap_servers=kafka.address, value="bytes")
    failed = await routed(elements, sink)
    assert [one.value for one in failed] == [large, large]
    assert "larger than" in str(failed[0].error)
    assert await kafka.values(topic) == [b"%d" % n for n in range(11)]


async def test_a_message_that_the_client_refuses_is_the_only_one_that_is_not_taken_once(
    nats_server: NatsServer, mqtt_server: MqttServer
) -> None:
    connection = await nats.connect(nats_server.url)
    streams = connection.jetstream()
    await streams.add_stream(name="large", subjects=["large"])
    large = b"x" * (connection.max_payload + 1)
    small = [b"%d" % n for n in range(6)]
    elements = [*small[:3], large, *small[3:]]
    failed = await routed(elements, NatsSink(nats_server.url, "large", encode="bytes"))
    assert [one.value for one in failed] == [large]
    subscription = await streams.subscribe("large", ordered_consumer=True)
    assert [(await subscription.next_msg(60)).data for _ in small] == small
    assert (await streams.stream_info("large")).state.messages == len(small)
    await connection.close()

    source: MqttSource[bytes] = MqttSource(mqtt_server.url, "t/#", client_id="large", decode="bytes")
    await source.open()
    topic = "t/" + "x" * 70_000
    sink = MqttSink(mqtt_server.url, lambda one: topic if one == large else "t/1", encode="bytes")
    failed = await routed(elements, sink)
    assert [one.value for one in failed] == [large]
    read: list[Any] = []
    async with asyncio.timeout(60):
        while len(read) < len(small):
            batch = await source.read()
            assert batch is not None
            read += batch.values
    await source.close()
    assert read == small


async def test_a_message_that_is_too_large_for_nats_is_refused_alone(nats_server: NatsServer) -> None:
    connection = await nats.connect(nats_server.url)
    streams = connection.jetstream()
    await streams.add_stream(name="limits", subjects=["limits.*"], max_msg_size=100)
    await streams.add_stream(name="ids", subjects=["ids"])
    elements = [b"1", b"x" * 101, b"2", b"x" * 200, b"3"]
    failed = await routed(elements, NatsSink(nats_server.url, "limits.1", encode="bytes"))
    assert [len(one.value) for one in failed] == [101, 200]
    assert "message size exceeds maximum allowed" in str(failed[0].error)
    # the server ends the connection over a message that is too large with its headers
    fits = connection.max_payload - len("NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n")
    sink = NatsSink(nats_server.url, "ids", encode=lambda one: bytes(one[1]), id=lambda one: one[0])
    failed = await routed([("1", fits), ("2", fits + 1), ("3", 1)], sink)
    assert [one.value[0] for one in failed] == ["2"]
    assert (await streams.stream_info("ids")).state.messages == 2

    await sink.open()
    with pytest.raises(SinkError, match="maximum payload exceeded"):
        await sink.write([("4", connection.max_payload + 1)], None)
    assert sink._client is not None
    assert sink._client._answers == {}  # nothing is kept of it, of which there may be many
    sealed = (await streams.stream_info("ids")).config
    sealed.sealed = True
    await streams.update_stream(sealed)
    with pytest.raises(SinkBroken, match="sealed"):
        await sink.write([("4", 1)], None)
    await sink.close()
    await connection.close()


async def test_a_message_that_is_larger_than_the_mqtt_broker_takes_is_refused_alone() -> None:
    with running_mqtt("allow_anonymous true", "max_packet_size 1000") as server:
        # of a packet, 13 bytes are not the message: of its head, the topic and its number
        elements = [b"1", b"x" * 987, b"x" * 988, b"x" * 5000, b"2"]
        failed = await routed(elements, MqttSink(server.url, "topic", encode="bytes"))
    assert [len(one.value) for one in failed] == [988, 5000]
    assert "1001 bytes" in str(failed[0].error)
    assert "1000 at most" in str(failed[0].error)


async def test_no_message_is_left_out_for_want_of_a_right_to_the_topic_of_an_mqtt_sink(
    tmp_path: Path,
) -> None:
    (tmp_path / "rights").write_text("topic write allowed/#\n")
    elements = [b"1", b"2", b"3"]
    with running_mqtt("allow_anonymous true", f"acl_file {tmp_path / 'rights'}") as server:
        sink = MqttSink(server.url, lambda one: "other" if one == b"2" else "allowed/1", encode="bytes")
        assert [one.value for one in await routed(elements, sink)] == [b"2"]
        with pytest.raises(SinkBroken, match="Not authorized"):
            await routed(elements, MqttSink(server.url, "other", encode="bytes"))


async def test_one_that_cannot_be_encoded_costs_no_other_of_its_transaction(kafka: Kafka) -> None:
    topic = await kafka.topic()
    sink = KafkaTransactionalSink(
        topic, transactional_id=topic, bootstrap_servers=kafka.address, value="bytes"
    )
    failed = await routed([b"1", b"2", 3, b"4"], sink)
    assert [one.value for one in failed] == [3]
    assert await kafka.values(topic) == [b"1", b"2", b"4"]


@pytest.mark.usefixtures("tidy")
async def test_one_that_the_broker_refuses_costs_no_other_of_its_transaction(kafka: Kafka) -> None:
    topic = await kafka.topic(max_message_bytes="1000")
    sink = KafkaTransactionalSink(
        topic, transactional_id=topic, bootstrap_servers=kafka.address, value="bytes"
    )
    large = b"x" * 2000
    failed = await routed([b"1", b"2", large, b"3", large, b"4"], sink)
    assert [one.value for one in failed] == [large, large]
    assert await kafka.values(topic) == [b"1", b"2", b"3", b"4"]


async def test_a_table_that_is_gone_leaves_no_row_out_and_a_bad_row_none_but_itself(
    postgres_url: str,
) -> None:
    rows = [{"n": 1}, {"n": "no number"}, {"n": 2}, {"n": -1}, {"n": 3}]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (n integer CHECK (n > 0))")
        failed = await routed(rows, PostgresSink(postgres_url, "t", columns=["n"]))
        assert [one.value for one in failed] == [{"n": "no number"}, {"n": -1}]
        assert connection.execute("SELECT n FROM t ORDER BY n").fetchall() == [(1,), (2,), (3,)]
        sink = PostgresSink(postgres_url, "t", columns=["n"])
        await sink.open()
        connection.execute("DROP TABLE t")
        with pytest.raises(SinkBroken, match='relation "t" does not exist'):
            await sink.write(rows, None)
        await sink.close()


def raises(table: str, code: str) -> str:
    """What makes a trigger that refuses 2, with a code of its own."""
    return (
        f"CREATE FUNCTION {table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.n = 2 THEN "
        f"RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END IF; RETURN NEW; END $$; "
        f"CREATE TRIGGER t BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {table}()"
    )


async def test_a_row_is_refused_alone_by_a_trigger_with_its_own_code_and_by_a_policy(
    postgres_url: str,
) -> None:
    rows = [{"n": 1}, {"n": 2}, {"n": 3}]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for code in ("45000", "U0001"):  # neither is one of PostgreSQL's
            table = f"t{code.lower()}"
            connection.execute(f"CREATE TABLE {table} (n integer)".encode())
            connection.execute(raises(table, code).encode())
            failed = await routed(rows, PostgresSink(postgres_url, table, columns=["n"]))
            assert [one.value for one in failed] == [{"n": 2}]
        connection.execute("CREATE TABLE own (n integer PRIMARY KEY)")
        connection.execute("ALTER TABLE own ENABLE ROW LEVEL SECURITY")
        connection.execute("ALTER TABLE own FORCE ROW LEVEL SECURITY")
        connection.execute("CREATE POLICY own ON own USING (true) WITH CHECK (n <> 2)")
        connection.execute("CREATE ROLE tenant LOGIN; GRANT ALL ON own TO tenant")
        url = postgres_url.replace("postgres@", "tenant@")
        sink = PostgresUpsertSink(url, "own", columns=["n"], key="n")
        failed = await routed(rows, sink)
        assert [one.value for one in failed] == [{"n": 2}]
        await sink.open()
        connection.execute("REVOKE ALL ON own FROM tenant")
        with pytest.raises(SinkBroken, match="permission denied"):
            await sink.write(rows, None)
        await sink.close()


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE t (n, a AS (json_extract(n, '$.a')))",
        "CREATE TABLE t (n); CREATE INDEX i ON t (json_extract(n, '$.a'))",
        "CREATE TABLE t (n); CREATE TRIGGER g BEFORE INSERT ON t BEGIN SELECT json(NEW.n); END",
    ],
)
async def test_a_row_over_which_a_function_of_sqlite_fails_is_refused_alone(
    made: str, tmp_path: Path
) -> None:
    rows = [{"n": '{"a": 1}'}, {"n": "no JSON"}, {"n": '{"a": 2}'}]
    sink = SqliteSink(tmp_path / "out.db", "t", columns=["n"])
    with closing(sqlite3.connect(tmp_path / "out.db", isolation_level=None)) as other:
        other.executescript(made)
        failed = await routed(rows, sink)
        assert [one.value for one in failed] == [{"n": "no JSON"}]
        assert "malformed JSON" in str(failed[0].error)
        assert other.execute("SELECT count(*) FROM t").fetchone() == (2,)
        await sink.open()
        other.execute("DROP TABLE t")
        with pytest.raises(SinkBroken, match="no such table"):
            await sink.write(rows, None)
        await sink.close()
