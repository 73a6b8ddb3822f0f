"""PostgreSQL's sinks and sources keep the contracts, against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha1
from pathlib import Path
from typing import Any

import psycopg
import pytest

from asyncstream.connectors.postgres import PostgresOutbox, PostgresSink, PostgresUpsertSink
from asyncstream.testing import Check, sink_contract, source_contract
from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.broker

ELEMENTS = [{"n": number, "text": "x" * number} for number in range(24)]

PLACE: dict[str, str] = {}
"""Where the server is: a contract is written down before there is one."""


@pytest.fixture(autouse=True)
def place(postgres_server: PostgresServer) -> Iterator[None]:
    PLACE["url"] = postgres_server.url()
    yield
    PLACE.clear()


def table_of(folder: Path, columns: str) -> str:
    """The name of the table of a check, which is made if it is not there."""
    name = f"t_{sha1(str(folder).encode()).hexdigest()[:16]}"
    with psycopg.connect(PLACE["url"], autocommit=True) as connection:
        if connection.execute("SELECT to_regclass(%s)", (name,)).fetchone() == (None,):
            connection.execute(f"CREATE TABLE {name} ({columns})".encode())
    return name


def read(folder: Path) -> list[Any]:
    name = table_of(folder, "at serial, n int UNIQUE, text text")
    with psycopg.connect(PLACE["url"], autocommit=True) as connection:
        found = connection.execute(f"SELECT n, text FROM {name} ORDER BY at".encode()).fetchall()
    return [{"n": n, "text": text} for n, text in found]


def appending(folder: Path) -> PostgresSink:
    name = table_of(folder, "at serial, n int, text text")
    return PostgresSink(PLACE["url"], name, columns=["n", "text"])


def by_key(folder: Path) -> PostgresUpsertSink:
    name = table_of(folder, "at serial, n int UNIQUE, text text")
    return PostgresUpsertSink(PLACE["url"], name, columns=["n", "text"], key="n")


def write(folder: Path) -> None:
    name = table_of(folder, "id serial PRIMARY KEY, n int, text text")
    with psycopg.connect(PLACE["url"], autocommit=True) as connection, connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {name} (n, text) VALUES (%s, %s)".encode(),
            [tuple(row.values()) for row in ELEMENTS],
        )


def outbox(folder: Path) -> PostgresOutbox[dict[str, Any]]:
    return PostgresOutbox(PLACE["url"], table_of(folder, "never made"), batch=5, every=0.01)


ROWS = [{"id": number, **row} for number, row in enumerate(ELEMENTS, 1)]


@pytest.mark.parametrize("check", source_contract(outbox, ROWS, prepare=write, ends=False), ids=str)
async def test_outbox(check: Check, tmp_path: Path) -> None:
    await check(tmp_path)


@pytest.mark.parametrize("check", sink_contract(appending, read, ELEMENTS), ids=str)
async def test_sink(check: Check, tmp_path: Path) -> None:
    await check(tmp_path)


@pytest.mark.parametrize("check", sink_contract(by_key, read, ELEMENTS, transactional=False), ids=str)
async def test_upsert_sink(check: Check, tmp_path: Path) -> None:
    await check(tmp_path)
