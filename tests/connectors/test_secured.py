"""
Servers that want TLS and a password: connectors get through with both, and say what is wrong without.

What it does not prove of Kafka: that one gets through with SASL, for none of the stand-ins has users.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import nats
import psycopg
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from asyncstream import Pipeline, Sink, Source
from asyncstream.connectors import (
    NatsSink,
    NatsStreamSource,
    PostgresOutbox,
    PostgresSink,
    RedisStreamSink,
    RedisStreamSource,
)
from asyncstream.connectors.kafka import KafkaSink, KafkaSource
from asyncstream.connectors.mqtt import MqttSink, MqttSource
from asyncstream.errors import PipelineError
from tests.connectors.refusals import check_cannot_be_read, check_cannot_be_written
from tests.servers.certificates import Certificates
from tests.servers.kafka import Kafka, group_server
from tests.servers.mqtt import MqttServer, running_mqtt
from tests.servers.nats import NatsServer, running_nats
from tests.servers.postgres import USER, PostgresServer
from tests.servers.process import HOST
from tests.servers.redis import RedisServer, running_redis

pytestmark = pytest.mark.broker

ROWS = [{"id": number, "text": "x" * number} for number in range(5)]


class Pair(NamedTuple):
    """A source and a sink of one server."""

    source: Source[Any]
    sink: Sink[Any]


async def check_both_ways(pair: Pair) -> None:
    """What is written comes back."""
    writing, reading = Pipeline("writing"), Pipeline("reading")
    writing.source(ROWS, name="in").to(pair.sink, name="out")
    await writing.run()
    seen: list[Any] = []
    reading.source(pair.source, name="in").to(seen, name="out")
    async with reading.start() as job:
        async with asyncio.timeout(60):
            while len(seen) < len(ROWS):  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # of a real server
        await job.stop()
    assert seen == ROWS


async def check_is_refused(pair: Pair, says: str) -> None:
    """Both fail, name the step and the reason, and keep the password to themselves."""
    await check_cannot_be_read(pair.source, says)
    await check_cannot_be_written(pair.sink, says, ROWS)


# ---------------------------------------------------------------------- Redis


@pytest.fixture(scope="module")
def redis(certificates: Certificates) -> Iterator[RedisServer]:
    made = certificates
    options = ("--port", "0", "--requirepass", "secret", "--tls-auth-clients", "no")
    files = (
        "--tls-cert-file",
        made.certificate,
        "--tls-key-file",
        made.key,
        "--tls-ca-cert-file",
        made.authority,
    )
    with running_redis("--tls-port", *options, *map(str, files)) as server:
        yield server


def of_redis(server: RedisServer, start: str, ending: str) -> Pair:
    url = f"{start}{HOST}:{server.port}/0{ending}"
    return Pair(RedisStreamSource(url, "s"), RedisStreamSink(url, "s"))


async def test_redis(redis: RedisServer, certificates: Certificates) -> None:
    trusting = f"?ssl_ca_certs={certificates.authority}"
    await check_both_ways(of_redis(redis, "rediss://:secret@", trusting))
    await check_is_refused(of_redis(redis, "rediss://:secreter@", trusting), "invalid username-password")
    await check_is_refused(of_redis(redis, "rediss://", trusting), "Authentication required")
    await check_is_refused(of_redis(redis, "rediss://:secret@", ""), "CERTIFICATE_VERIFY_FAILED")
    await check_is_refused(of_redis(redis, "redis://:secret@", ""), "cannot .* stream 's' of Redis at")


# ---------------------------------------------------------------------- NATS


@pytest.fixture(scope="module")
def nats_secured(certificates: Certificates) -> Iterator[NatsServer]:
    files = ("--tlscert", str(certificates.certificate), "--tlskey", str(certificates.key))
    with running_nats("--user", "shop", "--pass", "secret", "--tls", *files) as server:
        yield server


def of_nats(server: NatsServer, before: str, /, **client: Any) -> Pair:
    url = f"nats://{before}{HOST}:{server.port}"
    return Pair(NatsStreamSource(url, "s", client=client), NatsSink(url, "s", client=client))


async def test_nats(nats_secured: NatsServer, certificates: Certificates) -> None:
    trusting = certificates.client()
    plain = await nats.connect(
        f"nats://shop:secret@{HOST}:{nats_secured.port}", tls=trusting, allow_reconnect=False
    )
    await plain.jetstream().add_stream(name="s", subjects=["s"])
    await check_both_ways(of_nats(nats_secured, "shop:secret@", tls=trusting))
    await plain.jetstream().purge_stream("s")
    await plain.close()
    await check_both_ways(of_nats(nats_secured, "", tls=trusting, user="shop", password="secret"))
    await check_is_refused(of_nats(nats_secured, "shop:secreter@", tls=trusting), "Authorization Violation")
    await check_is_refused(of_nats(nats_secured, "", tls=trusting), "Authorization Violation")
    await check_is_refused(
        of_nats(nats_secured, "shop:secret@", tls=ssl.create_default_context()), "CERTIFICATE_VERIFY_FAILED"
    )


@pytest.mark.parametrize(
    ("client", "says"),
    [
        ({"tsl": None}, "client: expected options of nats.connect, got 'tsl'"),
        ({"allow_reconnect": True}, "client: 'allow_reconnect' cannot be passed through"),
        ("tls", "client: expected a mapping"),
    ],
)
def test_wrong_options_of_nats_are_refused(client: Any, says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        NatsSink("nats://h", "s", client=client)
    with pytest.raises(PipelineError, match=says):
        NatsStreamSource("nats://h", "s", client=client)


# ---------------------------------------------------------------------- MQTT


@pytest.fixture(scope="module")
def mqtt(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqttServer]:
    folder = tmp_path_factory.mktemp("mqtt")
    users, rights = folder / "users", folder / "rights"
    for user in ("shop", "guest"):
        subprocess.run(
            ("mosquitto_passwd", "-b", *(() if users.exists() else ("-c",)), users, user, "secret"),
            check=True,
        )
    rights.write_text("user shop\ntopic readwrite s\n")
    lines = (
        f"certfile {certificates.certificate}",
        f"keyfile {certificates.key}",
        f"password_file {users}",
        f"acl_file {rights}",
    )
    with running_mqtt(*lines) as server:
        yield server


def of_mqtt(server: MqttServer, user: str, tls: ssl.SSLContext) -> Pair:
    url = f"mqtts://{user}{HOST}:{server.port}"
    return Pair(MqttSource(url, "s", client_id="shop", tls=tls), MqttSink(url, "s", tls=tls))


async def test_mqtt(mqtt: MqttServer, certificates: Certificates) -> None:
    trusting = certificates.client()
    pair = of_mqtt(mqtt, "shop:secret@", trusting)
    await pair.source.open()  # for the broker to keep what comes
    await pair.source.close()
    await check_both_ways(pair)
    await check_is_refused(of_mqtt(mqtt, "shop:secreter@", trusting), "Not authorized")
    await check_is_refused(of_mqtt(mqtt, "", trusting), "Not authorized")
    # who reads without the right to is not told so by this broker, and is given nothing
    await check_cannot_be_written(of_mqtt(mqtt, "guest:secret@", trusting).sink, "Not authorized", ROWS)


# ---------------------------------------------------------------------- PostgreSQL


@pytest.fixture(scope="module")
def postgres(postgres_server: PostgresServer, certificates: Certificates) -> PostgresServer:
    """The server of the session, with TLS, and a user who needs it and a password."""
    data = postgres_server.data
    for name, file in (("certificate", certificates.certificate), ("key", certificates.key)):
        placed = Path(shutil.copy(file, data / f"{name}.pem"))
        placed.chmod(0o600)
        if USER is not None:
            shutil.chown(placed, USER)
    access = data / "pg_hba.conf"
    rules = f"hostssl all secured {HOST}/32 scram-sha-256\nhostnossl all secured {HOST}/32 reject\n"
    access.write_text(rules + access.read_text())
    for statement in (
        "ALTER SYSTEM SET ssl = on",
        "ALTER SYSTEM SET ssl_cert_file = 'certificate.pem'",
        "ALTER SYSTEM SET ssl_key_file = 'key.pem'",
        "CREATE ROLE secured LOGIN PASSWORD 'secret'",
        "CREATE DATABASE secured OWNER secured",
        "SELECT pg_reload_conf()",
    ):
        postgres_server.execute(statement)
    return postgres_server


def of_postgres(server: PostgresServer, user: str, ending: str, table: str = "t") -> Pair:
    url = f"postgresql://{user}@{HOST}:{server.port}/secured{ending}"
    return Pair(PostgresOutbox(url, table), PostgresSink(url, table, columns=["id", "text"]))


async def test_postgres(postgres: PostgresServer, certificates: Certificates) -> None:
    full = f"?sslmode=verify-full&sslrootcert={certificates.authority}"
    owner = f"postgresql://secured:secret@{HOST}:{postgres.port}/secured{full}"
    for _ in range(1000):  # the settings are on their way
        try:
            psycopg.connect(owner).close()
            break
        except psycopg.OperationalError:
            await asyncio.sleep(0.05)
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, text text)")
    postgres.execute("CREATE TABLE another (id int PRIMARY KEY, text text)", "secured")
    await check_both_ways(of_postgres(postgres, "secured:secret", full))
    await check_is_refused(of_postgres(postgres, "secured:secreter", full), "password authentication failed")
    await check_is_refused(of_postgres(postgres, "secured:secret", "?sslmode=disable"), "rejects connection")
    await check_is_refused(
        of_postgres(postgres, "secured:secret", "?sslmode=verify-full"), "root certificate"
    )
    await check_is_refused(
        of_postgres(postgres, "secured:secret", full, "another"),
        "(must be owner of|permission denied for) table",
    )


# ---------------------------------------------------------------------- Kafka


@pytest.fixture
async def kafka(tmp_path: Path, certificates: Certificates) -> AsyncIterator[Kafka]:
    """A server behind a program that does TLS for it, as its own port says."""

    serving: set[asyncio.Task[None]] = set()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while part := await reader.read(65536):
                writer.write(part)
                await writer.drain()
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        behind = await asyncio.open_connection(HOST, server.port)
        await asyncio.gather(pass_on(reader, behind[1]), pass_on(behind[0], writer), return_exceptions=True)
        for one in (writer, behind[1]):
            with suppress(OSError):
                await one.wait_closed()

    with socket.create_server((HOST, 0)) as listening:
        front = await asyncio.start_server(serve, sock=listening, ssl=certificates.server())
        port = listening.getsockname()[1]
        server = group_server(tmp_path, advertised=port)
        server.start()
        server.secured = f"{HOST}:{port}"
        yield server
        server.stop()
        front.close()
        if serving:
            await asyncio.wait(serving, timeout=5)


def of_kafka(server: Kafka, **client: Any) -> Pair:
    where: dict[str, Any] = {
        "bootstrap_servers": server.secured,
        "client": {"request_timeout_ms": 3000, **client},
    }
    return Pair(KafkaSource("t", **where), KafkaSink("t", idempotent=False, **where))


async def test_kafka(kafka: Kafka, certificates: Certificates) -> None:
    trusting = {"security_protocol": "SSL", "ssl_context": certificates.client()}
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.secured, **trusting)
    await admin.start()
    await admin.create_topics([NewTopic("t", 1, 1)])
    await admin.close()
    await check_both_ways(of_kafka(kafka, **trusting))
    user = {"sasl_plain_username": "shop", "sasl_plain_password": "secret"}
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        sasl = {**trusting, **user, "security_protocol": "SASL_SSL", "sasl_mechanism": mechanism}
        # which of the two depends on the connection: what the first one met, aiokafka only logs
        refused = r"(does not know this sasl_mechanism|refused to talk \(TLS, SASL\))"
        await check_is_refused(of_kafka(kafka, **sasl), refused)
    unknown = {"security_protocol": "SSL", "ssl_context": ssl.create_default_context()}
    await check_is_refused(of_kafka(kafka, **unknown), "no broker can be reached")
    await check_is_refused(of_kafka(kafka), "no broker can be reached")
