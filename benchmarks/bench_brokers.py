"""
What sources and sinks on brokers cost over their bare clients, in the same process, against real servers.

Each side does the same work: elements are read and decoded, or encoded and written, in batches of a thousand.
Ours are whole pipelines with checkpoints every 250 ms, which stage, acknowledge or look at leases besides.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager
from itertools import count
from typing import Any, TypeAlias

import orjson

from asyncstream import Checkpoints, MemoryStore, Pipeline
from asyncstream.connectors import (
    NatsConsumerSource,
    NatsSink,
    NatsStreamSource,
    PostgresOutbox,
    PostgresSink,
    PostgresUpsertSink,
    RedisGroupSource,
    RedisStreamSink,
    RedisStreamSource,
    Sink,
    Source,
)
from benchmarks.kit import Goal, compare, goals, results, run
from tests.servers.nats import running_nats
from tests.servers.postgres import running_postgres
from tests.servers.redis import running_redis

__all__ = ("main",)

BATCH = 1000

LEAST = 0.7
"""Of what the bare client does in a second."""

Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

new = map("bench{}".format, count(1)).__next__
"""A name that was not used before."""


def element(number: int) -> dict[str, Any]:
    return {"id": number, "user": f"user {number % 1000}", "amount": number * 0.25}


def batches(elements: Sequence[Any]) -> list[Sequence[Any]]:
    return [elements[start : start + BATCH] for start in range(0, len(elements), BATCH)]


async def read(source: Source[Any], elements: Sequence[Any]) -> None:
    """Read a source to its end, with checkpoints."""
    seen: list[Any] = []
    pipeline = Pipeline()
    pipeline.source(source, name="in").to(seen, name="out")
    await pipeline.run(checkpoints=Checkpoints(store=MemoryStore(), every=0.25))
    assert len(seen) == len(elements), len(seen)


async def write(sink: Sink[Any], elements: Sequence[Any]) -> None:
    """Write elements, with checkpoints."""
    pipeline = Pipeline()
    pipeline.source(elements, name="in").to(sink, name="out")
    await pipeline.run(checkpoints=Checkpoints(store=MemoryStore(), every=0.25))


# ------------------------------------------------------------------ Redis


async def redis_pairs(url: str, elements: Sequence[Any]) -> dict[str, tuple[Work, Work]]:
    from redis.asyncio import Redis

    stream = new()

    def connected() -> Any:  # whose annotations change from version to version
        return Redis.from_url(url)

    async def bare_log() -> None:
        async with connected() as client:
            seen: list[Any] = []
            last = b"0-0"
            while found := await client.xread({stream: last}, count=BATCH):
                for id, fields in found[0][1]:
                    seen.append(orjson.loads(fields[b"data"]))
                    last = id
        assert len(seen) == len(elements)

    async def bare_group() -> None:
        group = new()
        async with connected() as client:
            await client.xgroup_create(stream, group, "0")
            seen: list[Any] = []
            while found := await client.xreadgroup(group, "bare", {stream: ">"}, count=BATCH):
                seen += [orjson.loads(fields[b"data"]) for _, fields in found[0][1]]
                await client.xack(stream, group, *[id for id, _ in found[0][1]])
        assert len(seen) == len(elements)

    async def bare_sink(stream: str | None = None) -> None:
        stream = stream or new()
        async with connected() as client:
            for batch in batches(elements):
                async with client.pipeline(transaction=True) as adding:
                    for value in batch:
                        adding.xadd(stream, {"data": orjson.dumps(value)})
                    await adding.execute()

    await bare_sink(stream)

    def group() -> RedisGroupSource[Any]:
        return RedisGroupSource(url, stream, group=new(), ends=True)

    return {
        "Redis, log": (bare_log, lambda: read(RedisStreamSource(url, stream, ends=True), elements)),
        "Redis, group": (bare_group, lambda: read(group(), elements)),
        "Redis, sink": (bare_sink, lambda: write(RedisStreamSink(url, new()), elements)),
        "Redis, sink with ids": (bare_sink, lambda: write(RedisStreamSink(url, new(), id="id"), elements)),
    }


# ------------------------------------------------------------------ NATS


async def nats_pairs(url: str, elements: Sequence[Any]) -> dict[str, tuple[Work, Work]]:
    import nats

    stream = new()

    @asynccontextmanager
    async def connected(stream: str | None = None) -> AsyncIterator[Any]:
        client = await nats.connect(url)
        if stream is not None:
            await client.jetstream().add_stream(name=stream, subjects=[stream])
        yield client.jetstream()
        await client.close()

    async def publish(stream: str) -> None:
        async with connected(stream) as js:
            for batch in batches(elements):
                answers = [await js.publish_async(stream, orjson.dumps(value)) for value in batch]
                for answer in answers:
                    await answer

    async def bare_consumer() -> None:
        async with connected() as js:
            pulling = await js.pull_subscribe(stream, durable=new(), stream=stream)
            seen: list[Any] = []
            while len(seen) < len(elements):
                for message in await pulling.fetch(BATCH, timeout=5):
                    seen.append(orjson.loads(message.data))
                    await message.ack()

    async def ours_into() -> None:
        subject = new()
        async with connected(subject):
            await write(NatsSink(url, subject), elements)

    await publish(stream)

    def consumer() -> NatsConsumerSource[Any]:
        return NatsConsumerSource(url, stream, durable=new(), ends=True)

    return {
        "NATS, log": (bare_consumer, lambda: read(NatsStreamSource(url, stream, ends=True), elements)),
        "NATS, consumer": (bare_consumer, lambda: read(consumer(), elements)),
        "NATS, sink": (lambda: publish(new()), ours_into),
    }


# ------------------------------------------------------------------ PostgreSQL


async def postgres_pairs(url: str, elements: Sequence[Any], turns: int) -> dict[str, tuple[Work, Work]]:
    import psycopg

    rows = [tuple(value.values()) for value in elements]

    def table(filled: bool = False) -> str:
        name = new()
        with psycopg.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, customer text, amount float)".encode())
            if filled:
                with cursor.copy(f"COPY {name} FROM STDIN".encode()) as copying:
                    for row in rows:
                        copying.write_row(row)
        return name

    @asynccontextmanager
    async def connected() -> AsyncIterator[Any]:
        opened = await psycopg.AsyncConnection.connect(url, autocommit=True)
        async with opened as connection, connection.cursor() as cursor:
            yield cursor

    async def copy() -> None:
        name = table()
        async with connected() as cursor:
            for batch in batches(elements):
                async with cursor.copy(f"COPY {name} FROM STDIN") as copying:
                    for value in batch:
                        await copying.write_row((value["id"], value["user"], value["amount"]))

    async def insert(name: str, conflict: str) -> None:
        async with connected() as cursor:
            for batch in batches(elements):
                async with cursor.connection.transaction():
                    given = [(value["id"], value["user"], value["amount"]) for value in batch]
                    await cursor.executemany(f"INSERT INTO {name} VALUES (%s, %s, %s) {conflict}", given)

    async def upsert() -> None:
        values = "customer = excluded.customer, amount = excluded.amount"
        await insert(table(), f"ON CONFLICT (id) DO UPDATE SET {values}")

    async def take() -> None:
        """Rows are claimed first, and deleted when they are done with: a crash loses none."""
        name, seen = filled.pop(), 0
        async with connected() as cursor:
            await cursor.execute(f"ALTER TABLE {name} ADD COLUMN taken_by text")
            await cursor.execute(f"CREATE INDEX ON {name} (id) WHERE taken_by IS NULL")
            while True:
                await cursor.execute(
                    f"UPDATE {name} SET taken_by = 'bare' WHERE id IN (SELECT id FROM {name} "
                    f"WHERE taken_by IS NULL ORDER BY id LIMIT {BATCH} FOR UPDATE SKIP LOCKED) RETURNING *"
                )
                if not (found := await cursor.fetchall()):
                    break
                seen += len(found)
                done = [row[0] for row in found]
                await cursor.execute(f"DELETE FROM {name} WHERE id = ANY(%s)", (done,))
        assert seen == len(elements)

    columns = ["id", "customer", "amount"]
    renamed = [dict(zip(columns, row, strict=True)) for row in rows]
    filled = [table(filled=True) for _ in range(2 * turns + 2)]

    async def ours() -> None:
        await write(PostgresSink(url, table(), columns=columns), renamed)

    return {
        "PostgreSQL, sink, over INSERT": (lambda: insert(table(), ""), ours),
        "PostgreSQL, sink, over COPY": (copy, ours),
        "PostgreSQL, by key": (
            upsert,
            lambda: write(PostgresUpsertSink(url, table(), columns=columns, key="id"), renamed),
        ),
        "PostgreSQL, outbox": (take, lambda: read(PostgresOutbox(url, filled.pop(), ends=True), elements)),
    }


def main(quick: bool = False) -> None:
    turns, many = (1, 5_000) if quick else (5, 50_000)
    elements = [element(number) for number in range(many)]
    reached = []
    with ExitStack() as servers:
        pairs = {
            **run(redis_pairs(servers.enter_context(running_redis()).url, elements)),
            **run(nats_pairs(servers.enter_context(running_nats()).url, elements)),
            **run(postgres_pairs(servers.enter_context(running_postgres()).url(), elements, turns)),
        }
        for name, (bare, ours) in pairs.items():

            def times(work: Work) -> Callable[[], int]:
                def timed() -> int:
                    run(work())
                    return many

                return timed

            measured = compare({"bare": times(bare), "asyncstream": times(ours)}, base="bare", turns=turns)
            print(results(name, measured, base="bare"))
            reached.append(Goal(f"{name}: of the bare client", measured["asyncstream"].wall_ratio, LEAST))
    print(goals(reached))


if __name__ == "__main__":
    main()
