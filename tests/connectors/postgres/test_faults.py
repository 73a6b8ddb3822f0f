"""PostgreSQL that is silent, away for a moment, or a replica; and networks that cut."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest

from asyncstream import (
    Checkpoints,
    DirectoryStore,
    Pipeline,
    PostgresOutbox,
    PostgresSink,
    PostgresUpsertSink,
    Restarts,
    Sink,
    SinkError,
    Source,
    SourceError,
)
from asyncstream.connectors.files import JsonLinesSink
from asyncstream.connectors.postgres import watched
from asyncstream.connectors.postgres.connection import connect
from tests.servers.postgres import PostgresServer, running_postgres
from tests.servers.process import HOST
from tests.servers.proxy import Proxy, between

pytestmark = pytest.mark.broker

SILENT = "has not answered"


def by(proxy: Proxy, url: str) -> str:
    return f"postgresql://postgres:secret@{HOST}:{proxy.port}/{url.rpartition('/')[2]}"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "_SILENCE", 0.2)
    monkeypatch.setattr(watched, "_ASKED", 1.0)  # a login takes its time on a busy machine
    monkeypatch.setattr(watched, "_UNDER_WAY", 0.05)


@pytest.mark.usefixtures("impatient")
async def test_a_statement_takes_its_time_and_silence_does_not(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    async with between(postgres_server.port) as proxy, asyncio.timeout(60):
        connection = await connect(by(proxy, postgres_url))
        await connection.execute("SELECT pg_sleep(1)")
        async for _ in connection.notifies(timeout=1):
            pass
        proxy.passes.clear()
        with pytest.raises(psycopg.OperationalError, match=SILENT):
            await connection.execute("SELECT 1")
        await connection.close()


@pytest.mark.usefixtures("impatient")
async def test_a_connection_that_the_network_has_forgotten_is_found(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    async with between(postgres_server.port) as proxy, asyncio.timeout(60):
        connection = await connect(by(proxy, postgres_url))
        proxy.forget()
        with pytest.raises(psycopg.OperationalError, match=SILENT):
            await connection.execute("SELECT 1")
        await connection.close()


@pytest.mark.usefixtures("impatient")
async def test_a_statement_takes_its_time_where_the_server_does_not_let_itself_be_asked(
    postgres_server: PostgresServer,
) -> None:
    postgres_server.execute("CREATE DATABASE unasked")
    try:
        postgres_server.execute("REVOKE SELECT ON pg_stat_activity FROM public", "unasked")
        for role, limit in (("only_one", 1), ("not_told", -1)):
            postgres_server.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT {limit}")
            url = postgres_server.url("unasked").replace("postgres@", f"{role}@")
            async with asyncio.timeout(60):
                connection = await connect(url)
                await connection.execute("SELECT pg_sleep(1)")
                await connection.close()
            postgres_server.execute(f"DROP ROLE {role}")
    finally:
        postgres_server.execute("DROP DATABASE unasked WITH (FORCE)")


@pytest.mark.usefixtures("impatient")
async def test_a_server_that_is_silent_once_one_is_in_is_found() -> None:
    settings = {"server_version": "16.0", "in_hot_standby": "off", "default_transaction_read_only": "off"}

    logins = count()

    def message(kind: bytes, content: bytes) -> bytes:
        return kind + (len(content) + 4).to_bytes(4) + content

    async def let_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while (await reader.readexactly(int.from_bytes(await reader.readexactly(4)) - 4))[:2] != b"\0\3":
                writer.write(b"N")  # no TLS
            if next(logins):
                await reader.read()
            writer.write(message(b"R", bytes(4)))
            for name, value in settings.items():
                writer.write(message(b"S", f"{name}\0{value}\0".encode()))
            writer.write(message(b"Z", b"I"))
            await reader.read()
        writer.close()

    server = await asyncio.start_server(let_in, HOST, 0)
    async with server, asyncio.timeout(20):
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(psycopg.OperationalError, match=SILENT):
            await connect(f"postgresql://postgres@{HOST}:{port}/postgres")


@pytest.mark.usefixtures("impatient")
async def test_jobs_whose_server_is_silent_fail(postgres_url: str, postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as direct:
        direct.execute("CREATE TABLE t (n int)")
        direct.execute("CREATE TABLE q (id int PRIMARY KEY)")
        direct.execute("INSERT INTO q SELECT generate_series(1, 1000)")
    async with between(postgres_server.port) as proxy, asyncio.timeout(60):
        url = by(proxy, postgres_url)

        async def hold(element: object) -> object:
            proxy.passes.clear()
            return element

        writing = Pipeline("writing")
        writing.source([{"n": 1}], name="in").async_map(hold, name="hold").to(
            PostgresSink(url, "t", columns=["n"]), name="out"
        )
        with pytest.raises(SinkError, match=f"step 'out': cannot write to table 't' .*{SILENT}") as told:
            await writing.run()
        assert "secret" not in str(told.value)
        proxy.passes.set()
        reading = Pipeline("reading")
        reading.source(PostgresOutbox(url, "q", batch=10), name="in").async_map(hold, name="hold").discard()
        with pytest.raises(SourceError, match=f"step 'in': cannot [a-z ]+ table 'q' .*{SILENT}") as failed:
            await reading.run()
        assert "secret" not in str(failed.value)


async def test_of_several_hosts_the_one_is_taken_that_can_be_written_to(
    postgres_server: PostgresServer,
) -> None:
    with running_postgres() as replica:
        replica.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
        postgres_server.execute("CREATE TABLE of_several_hosts (n int)")
        with pytest.raises(SinkError, match="read-only"):
            await PostgresSink(replica.url(), "of_several_hosts", columns=["n"]).open()
        hosts = f"{HOST}:{replica.port},{HOST}:{postgres_server.port}"
        sink = PostgresSink(f"postgresql://postgres@{hosts}/postgres", "of_several_hosts", columns=["n"])
        await sink.open()
        await sink.write([{"n": 1}], None)
        await sink.close()
    assert postgres_server.execute("SELECT n FROM of_several_hosts") == [(1,)]
    postgres_server.execute("DROP TABLE of_several_hosts")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_through_a_network_that_cuts_anywhere_all_is_there_once(
    postgres_url: str, postgres_server: PostgresServer, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    many, cuts = 300, iter(range(100))  # on a quick machine each life may be cut before its first checkpoint
    with psycopg.connect(postgres_url, autocommit=True) as direct:
        direct.execute("CREATE TABLE t (id int)")
        direct.execute(f"CREATE TABLE q AS SELECT generate_series(1, {many}) AS id".encode())
    async with between(postgres_server.port) as proxy, asyncio.timeout(100):
        url = by(proxy, postgres_url)

        async def call(row: dict[str, int]) -> dict[str, int]:
            if not row["id"] % 20 and next(cuts, None) is not None:
                proxy.cut_after(round(10 ** chance.uniform(1, 4)))
                await asyncio.sleep(0.01)  # of a real network
            return row

        pipeline = Pipeline("cut")
        rows = pipeline.source(PostgresOutbox(url, "q", batch=20, every=0.01, ends=True), name="in")
        priced = rows.async_map(call, name="call", concurrency=5)
        priced.to(PostgresSink(url, "t", columns=["id"]), name="table")
        priced.to(JsonLinesSink(tmp_path / "out.jsonl"), name="file")
        await pipeline.run(
            checkpoints=Checkpoints(store=DirectoryStore(tmp_path / "store"), every=0.05),
            restart=Restarts(attempts=1000, backoff=0.001, longest=0.01),
        )
    with psycopg.connect(postgres_url) as direct:
        found = [id for (id,) in direct.execute("SELECT id FROM t ORDER BY id").fetchall()]
    assert found == list(range(1, many + 1))
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == many


_WANTS_TLS = struct.pack(">II", 8, 80877103)
_WANTS_GSS = struct.pack(">II", 8, 80877104)
_LEAVES = b"X\0\0\0\4"

End = TypeVar("End", bound=Sink[Any] | Source[Any])


class Pooler:
    """
    Has one session of a server, for the transactions of all who come. One at a time is served, as these tests
    ask one at a time.

    Args:
        most: who may come; others are refused.
    """

    def __init__(self, server: int, most: int = 100) -> None:
        self._server = server
        self._most = most
        self._greeting = b""
        self._asking: asyncio.StreamWriter | None = None
        self._to: asyncio.StreamWriter | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self._most -= 1
        if self._most < 0:
            writer.close()
            return
        while (start := await reader.read(2**16)) in (_WANTS_TLS, _WANTS_GSS):
            writer.write(b"N")
        if not self._greeting:
            await self._begin(start)
        assert self._to is not None
        writer.write(self._greeting)
        while (asked := await reader.read(2**16)) not in (b"", _LEAVES):
            self._asking = writer
            self._to.write(asked)
        writer.close()

    async def _begin(self, start: bytes) -> None:
        reader, self._to = await asyncio.open_connection(HOST, self._server)
        self._writers.append(self._to)
        self._to.write(start)
        kind = b""
        while kind != b"Z":  # the server is ready
            head = await reader.readexactly(5)
            kind, rest = head[:1], await reader.readexactly(int.from_bytes(head[1:]) - 4)
            self._greeting += head + (bytes(8) if kind == b"K" else rest)  # a number that it makes up
        self._passing = asyncio.ensure_future(self._pass(reader))

    async def _pass(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(2**16):
            assert self._asking is not None
            self._asking.write(data)

    async def end(self) -> None:
        self._passing.cancel()
        for writer in self._writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def test_a_pooler_that_gives_a_session_to_others_is_told_of_at_the_start(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id integer PRIMARY KEY)")
    database = postgres_url.rpartition("/")[2]

    @asynccontextmanager
    async def pooled(make: Callable[[str], End], most: int = 100) -> AsyncIterator[End]:
        pooler = Pooler(postgres_server.port, most)
        listening = await asyncio.start_server(pooler.connected, HOST, 0)
        port = listening.sockets[0].getsockname()[1]
        end = make(f"postgresql://postgres@{HOST}:{port}/{database}")
        try:
            async with asyncio.timeout(60):
                yield end
        finally:
            await end.close()
            listening.close()
            await pooler.end()

    async def refused(make: Callable[[str], Sink[Any] | Source[Any]]) -> None:
        async with pooled(make) as end:
            with pytest.raises((SinkError, SourceError), match="a pooler gives each transaction to another"):
                await (end.recover(None) if isinstance(end, PostgresSink) else end.open())

    await refused(lambda url: PostgresSink(url, "t", columns=["id"]))
    await refused(lambda url: PostgresUpsertSink(url, "t", columns=["id"], key="id"))
    await refused(lambda url: PostgresOutbox(url, "t", channel="c"))
    # whose user may have one connection has the only session
    async with pooled(lambda url: PostgresUpsertSink(url, "t", columns=["id"], key="id"), most=1) as sink:
        await sink.open()
        await sink.write([{"id": 1}], None)


async def test_a_pooler_that_gives_a_session_to_others_serves_what_keeps_nothing(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE q (id integer PRIMARY KEY)")
        connection.execute("INSERT INTO q SELECT generate_series(1, 20)")
    pooler = Pooler(postgres_server.port)
    listening = await asyncio.start_server(pooler.connected, HOST, 0)
    port = listening.sockets[0].getsockname()[1]
    url = f"postgresql://postgres@{HOST}:{port}/{postgres_url.rpartition('/')[2]}"
    sources = [PostgresOutbox(url, "q", consumer=name, batch=1) for name in "ab"]
    read: list[int] = []
    try:
        async with asyncio.timeout(60):
            for source in sources:
                await source.open()
            for number in range(20):
                batch = await sources[number % 2].read()
                assert batch is not None
                read += [row["id"] for row in batch.values]
    finally:
        for source in sources:
            await source.close()
        listening.close()
        await pooler.end()
    assert read == list(range(1, 21))
