"""The outbox of PostgreSQL as a source: claims, checkpoints, consumers that die."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from asyncstream import Checkpoints, MemoryStore, Pipeline, SourceError
from asyncstream.connectors import PostgresOutbox
from asyncstream.connectors.messages import RejectedMessage
from asyncstream.connectors.writer import Writer
from asyncstream.lease import Holder, Lease

pytestmark = pytest.mark.broker


def do(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def outbox(postgres_url: str) -> str:
    """The address of a database with ten rows in its outbox."""
    do(postgres_url, "CREATE TABLE outbox (id bigserial PRIMARY KEY, payload jsonb)")
    put(postgres_url, 10)
    return postgres_url


def put(url: str, many: int) -> None:
    numbers = f"generate_series(1, {many}) AS n"
    do(url, f"INSERT INTO outbox (payload) SELECT jsonb_build_object('n', n) FROM {numbers}")


def opened(url: str, consumer: str = "a", lease: int = 1, **more: Any) -> PostgresOutbox[Any]:
    source = PostgresOutbox(url, "outbox", consumer=consumer, **more)
    source.writer = Writer(Lease(lease, "here", Holder.here(0), 0), 3, "refuse")
    return source


def left(url: str) -> Sequence[int]:
    return [id for (id,) in do(url, "SELECT id FROM outbox ORDER BY id")]


async def test_rows_are_deleted_when_a_checkpoint_covers_them(outbox: str) -> None:
    source = opened(outbox, batch=4, ends=True)
    await source.open()
    first = await source.read()
    assert first is not None
    assert [row["id"] for row in first.values] == [1, 2, 3, 4]
    assert first.values[0] == {"id": 1, "payload": {"n": 1}}
    position = source.position()
    await source.read()
    assert left(outbox) == list(range(1, 11))
    await source.forget(position)
    assert left(outbox) == list(range(5, 11))
    await source.close()


async def test_a_job_empties_its_outbox(outbox: str) -> None:
    pipeline, seen = Pipeline("orders"), list[int]()
    source = pipeline.source(PostgresOutbox(outbox, "outbox", batch=3), name="outbox")
    source.map(lambda row: row["payload"]["n"]).to(seen.append, name="seen")
    async with pipeline.start(checkpoints=Checkpoints(store=MemoryStore(), every=0.02, keep=1)):
        async with asyncio.timeout(60):
            while left(outbox):  # noqa: ASYNC110 - what is in a database
                await asyncio.sleep(0.01)
    assert seen == list(range(1, 11))


async def test_without_checkpoints_what_was_read_before_is_done(outbox: str) -> None:
    source = PostgresOutbox(outbox, "outbox", batch=4)
    await source.open()
    await source.read()
    await source.read()
    assert left(outbox) == list(range(5, 11))
    await source.close()


@pytest.mark.parametrize("table", ["outbox", "public.outbox"])
@pytest.mark.parametrize("keeps", [False, True])
async def test_of_two_consumers_of_one_name_none_deletes_what_the_other_has(
    outbox: str, table: str, keeps: bool
) -> None:
    first, second = PostgresOutbox(outbox, "outbox", batch=4), PostgresOutbox(outbox, table, batch=4)
    if keeps:
        for number, source in enumerate((first, second)):
            source.writer = Writer(Lease(number, "here", Holder.here(0), 0), 3, "refuse")
    await first.open()
    await first.read()
    await second.open()
    with pytest.raises(SourceError, match=r"consumer 'asyncstream' .* a consumer= of its own"):
        await first.read()
    await first.close()
    batch = await second.read()  # what the first had, and may not have done with
    assert batch is not None
    assert [row["id"] for row in batch.values] == [1, 2, 3, 4]
    await second.read()
    assert left(outbox)[0] == (1 if keeps else 5)
    await second.close()


async def test_consumers_share_the_rows(outbox: str) -> None:
    a, b = opened(outbox, "a", batch=3, ends=True), opened(outbox, "b", batch=3, ends=True)
    for source in (a, b):
        await source.open()
    seen: list[int] = []
    for source in (a, b, a, b, a):
        if (batch := await source.read()) is not None:
            seen += [row["id"] for row in batch.values]
    for source in (a, b):
        await source.close()
    assert sorted(seen) == list(range(1, 11))


async def test_consumers_see_what_others_do_in_a_database_that_is_not_read_committed(outbox: str) -> None:
    name = outbox.rpartition("/")[2]
    do(outbox, f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
    put(outbox, 290)
    seen: list[int] = []

    async def empty(consumer: str) -> None:
        source = opened(outbox, consumer, batch=5, ends=True)
        await source.open()
        while (batch := await source.read()) is not None:
            seen.extend(row["id"] for row in batch.values)
        await source.close()

    async with asyncio.timeout(60):
        await asyncio.gather(*map(empty, "abc"))
    assert sorted(seen) == list(range(1, 301))


async def test_a_row_that_is_committed_late_is_not_passed_over(outbox: str) -> None:
    source = opened(outbox, every=0.01)
    await source.open()
    with psycopg.connect(outbox) as slow:
        slow.execute('INSERT INTO outbox (payload) VALUES (\'{"n": "late"}\')')
        put(outbox, 1)
        batch = await source.read()
        assert batch is not None
        assert [row["id"] for row in batch.values] == [*range(1, 11), 12]
        slow.commit()
    batch = await source.read()
    assert batch is not None
    assert [row["payload"]["n"] for row in batch.values] == ["late"]
    await source.close()


async def test_rows_of_a_consumer_that_is_dead_are_taken_over(outbox: str) -> None:
    dead = opened(outbox, "dead", batch=4)
    await dead.open()
    await dead.read()
    alive = opened(outbox, "alive", batch=4, dead_after=60, ends=True)
    do(outbox, "UPDATE asyncstream_consumers SET seen = now() - interval '61 s' WHERE name = 'dead'")
    await alive.open()
    seen: list[int] = []
    while (batch := await alive.read()) is not None:
        seen += [row["id"] for row in batch.values]
    assert sorted(seen) == list(range(1, 11))
    with pytest.raises(SourceError, match=r"consumer 'dead' of table 'outbox' of .* was taken over"):
        await dead.forget(dead.position())
    for source in (alive, dead):
        await source.close()


@pytest.mark.parametrize("is_dead", [False, True])
async def test_where_others_have_taken_over_other_rows_come_than_before(outbox: str, is_dead: bool) -> None:
    first = opened(outbox, "first", batch=4)
    await first.open()
    await first.read()
    position = first.position()
    await first.read()
    await first.close()
    seconds = 61 if is_dead else 59
    do(outbox, f"UPDATE asyncstream_consumers SET seen = now() - interval '{seconds} s' WHERE name = 'first'")
    other = opened(outbox, "other", dead_after=60)
    await other.open()
    await other.read()
    again = opened(outbox, "first", lease=2)
    await again.open()
    await again.seek(position)
    assert again.started_over is is_dead
    for source in (other, again):
        await source.close()


async def test_a_notification_wakes_it(outbox: str) -> None:
    source = opened(outbox, channel="orders", every=60)
    await source.open()
    await source.read()
    waiting = asyncio.ensure_future(source.read())
    await asyncio.sleep(0.05)  # it has looked, and waits for the server
    assert not waiting.done()
    do(outbox, "INSERT INTO outbox (payload) VALUES ('{}'); NOTIFY orders")
    async with asyncio.timeout(60):
        batch = await waiting
    assert batch is not None
    assert [row["id"] for row in batch.values] == [11]
    await source.close()


async def test_a_job_that_was_followed_reads_nothing_more(outbox: str) -> None:
    old, new = opened(outbox, batch=2), opened(outbox, lease=2, batch=20)
    await old.open()
    await old.read()
    position = old.position()
    await new.open()
    await new.seek(position)
    with pytest.raises(SourceError, match="was taken over"):
        await old.read()
    batch = await new.read()
    assert batch is not None
    assert [row["id"] for row in batch.values] == list(range(3, 11))
    for source in (old, new):
        await source.close()


@dataclass
class Order:
    id: int
    payload: dict[str, int]


async def test_what_is_no_order_is_rejected(outbox: str) -> None:
    do(outbox, "UPDATE outbox SET payload = '[]' WHERE id = 2")
    source = opened(outbox, model=Order, on_malformed="reject", ends=True)
    await source.open()
    batch = await source.read()
    assert batch is not None
    assert batch.values[0] == Order(1, {"n": 1})
    assert len(batch.values) == 9
    (rejected,) = batch.rejected
    assert isinstance(rejected, RejectedMessage)
    assert (rejected.id, rejected.value) == ("2", {"id": 2, "payload": []})
    await source.close()


async def test_what_is_no_order_fails_behind_those_before_it(outbox: str) -> None:
    do(outbox, "UPDATE outbox SET payload = '[]' WHERE id = 3")
    source = opened(outbox, model=Order)
    await source.open()
    batch = await source.read()
    assert batch is not None
    assert [order.id for order in batch.values] == [1, 2]
    with pytest.raises(SourceError, match=r"table 'outbox' of .*, 3: field payload"):
        await source.read()
    await source.close()


VALUES = (
    ("timestamptz", "infinity"),
    ("date[]", "{-infinity}"),
    ("time", "24:00"),
    ("date", "0044-03-15 BC"),
)


@pytest.mark.parametrize(("kind", "value"), VALUES)
async def test_a_row_with_a_value_that_is_nothing_in_python_costs_itself(
    postgres_url: str, kind: str, value: str
) -> None:
    do(postgres_url, f"CREATE TABLE outbox (id bigserial PRIMARY KEY, at {kind})")
    do(postgres_url, f"INSERT INTO outbox (at) VALUES (NULL), ('{value}'), (NULL), ('{value}')")
    strict = opened(postgres_url)
    await strict.open()
    batch = await strict.read()
    assert batch is not None
    assert batch.values == [{"id": 1, "at": None}]
    with pytest.raises(SourceError, match=r"table 'outbox' of .*, 2: it cannot be read: .*'at': '"):
        await strict.read()
    await strict.close()
    source = opened(postgres_url, on_malformed="reject", ends=True, lease=2)
    await source.open()
    batch = await source.read()
    assert batch is not None
    assert [row["id"] for row in batch.values] == [1, 3]
    assert [(one.id, one.value["id"]) for one in batch.rejected] == [("2", "2"), ("4", "4")]
    await source.forget(source.position())
    assert left(postgres_url) == []
    await source.close()


async def test_a_table_that_gets_a_column_is_read_on(outbox: str) -> None:
    source = opened(outbox, batch=1)
    await source.open()
    for _ in range(7):  # the client prepares what comes often
        await source.read()
    do(outbox, "ALTER TABLE outbox ADD COLUMN note text DEFAULT 'none'")
    batch = await source.read()
    assert batch is not None
    assert batch.values == [{"id": 8, "payload": {"n": 8}, "note": "none"}]
    await source.close()


async def test_wrong_settings_are_told_of(outbox: str) -> None:
    for more, says in (
        ({"table": "lacking"}, "step 'in': cannot read table 'lacking' of .*: there is no such table"),
        ({"id": "number"}, "step 'in': .*there is no column 'number'; there are: id, payload"),
        (
            {"url": "postgresql://a:secret@127.0.0.1:1/shop"},
            "step 'in': cannot read table 'outbox' of .*:1/shop",
        ),
    ):
        pipeline = Pipeline("orders")
        settings: dict[str, Any] = {"url": outbox, "table": "outbox", **more}
        pipeline.source(PostgresOutbox(**settings), name="in").discard()
        with pytest.raises(SourceError, match=says) as told:
            await pipeline.run()
        assert "secret" not in str(told.value)


async def test_who_may_read_needs_no_right_to_make_tables_that_are_there(outbox: str) -> None:
    first = opened(outbox)
    await first.open()
    await first.close()
    do(outbox, "DROP ROLE IF EXISTS reader")
    do(outbox, "CREATE ROLE reader LOGIN")
    do(outbox, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO reader")
    do(outbox, "GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO reader")
    second = opened(outbox.replace("postgres@", "reader@"), lease=2)
    await second.open()
    batch = await second.read()
    assert batch is not None
    assert len(batch.values) == 10
    await second.close()
    do(outbox, "DROP OWNED BY reader")


async def test_a_server_that_is_gone_leaves_no_connection_open(outbox: str) -> None:
    source = opened(outbox, channel="news")
    await source.open()
    connections = [source._client, source._listening]
    do(
        outbox,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'asyncstream'",
    )
    await source.close()
    assert [connection is not None and connection.closed for connection in connections] == [True, True]


async def test_another_database_is_not_gone_on_in(outbox: str) -> None:
    source = opened(outbox)
    with pytest.raises(SourceError, match="is it the same database"):
        await source.can_seek(1)  # where no outbox was ever read
    await source.open()
    for ask in (source.can_seek, source.seek):
        with pytest.raises(SourceError, match="is it the same database"):
            await ask(1_000_000)
    await source.close()
