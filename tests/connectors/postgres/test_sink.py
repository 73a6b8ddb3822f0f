"""PostgreSQL's sinks in a pipeline: what arrives, exactly once, and what errors say."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import psycopg
import pytest

from asyncstream import (
    AsyncStreamError,
    Change,
    Checkpoints,
    MemoryStore,
    Pipeline,
    PipelineError,
    SinkError,
)
from asyncstream.connectors import PostgresSink, PostgresUpsertSink, Sink
from asyncstream.connectors.postgres import writing
from asyncstream.connectors.writer import Writer
from asyncstream.lease import Holder, Lease

pytestmark = pytest.mark.broker


def do(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


async def write(sink: Sink[Any], elements: Sequence[Any], store: MemoryStore | None = None) -> None:
    pipeline = Pipeline("orders")
    pipeline.source(elements, name="in").to(sink, name="out")
    await pipeline.run(checkpoints=None if store is None else Checkpoints(store=store, every=60))


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_values_come_as_what_the_columns_are(postgres_url: str, exactly_once: bool) -> None:
    do(postgres_url, "CREATE SCHEMA shop")
    do(
        postgres_url,
        'CREATE TABLE shop.orders (id bigint, at timestamptz, "Price" numeric, raw bytea, rest jsonb)',
    )
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    order = {
        "id": 2**40,
        "at": at,
        "Price": Decimal("9.90"),
        "raw": b"\0\xff",
        "rest": {"of": ["it", "\\N\t"]},
    }
    empty = dict.fromkeys(order)
    sink = PostgresSink(postgres_url, "shop.orders", columns=list(order))
    await write(sink, [order, empty], MemoryStore() if exactly_once else None)
    found = do(postgres_url, 'SELECT id, at, "Price", raw, rest FROM shop.orders ORDER BY id')
    assert found == [tuple(order.values()), tuple(empty.values())]


@pytest.mark.parametrize("way", ["copied", "inserted", "upserted", "exactly once"])
async def test_a_value_is_the_same_in_a_column_however_it_is_written(postgres_url: str, way: str) -> None:
    do(
        postgres_url,
        "CREATE TABLE t (id int PRIMARY KEY, n int, flag bool, json jsonb, "
        "price money, name text, uuid uuid)",
    )
    columns = ["id", "n", "flag", "json", "price", "name", "uuid"]
    id = UUID("6f1c2a10-9f0e-4a51-8d1c-2f7a0b0f6c11")
    row = {"id": 1, "n": 7, "flag": 1, "json": 5, "price": 1.5, "name": id, "uuid": id}
    sink: Sink[Any] = PostgresSink(
        postgres_url, "t", columns=columns, on_conflict="ignore" if way == "inserted" else "fail"
    )
    if way == "upserted":
        sink = PostgresUpsertSink(postgres_url, "t", columns=columns, key="id")
    store = MemoryStore() if way == "exactly once" else None
    await write(sink, [row], store)
    bad = row | {"id": 2, "n": 1.5}
    with pytest.raises(SinkError, match=r'invalid input syntax for type integer: "1\.5"'):
        await write(sink, [row, bad] if store else [bad], store)
    found = do(postgres_url, "SELECT id, n, flag, json, price::numeric, name, uuid FROM t")
    assert found == [(1, 7, True, 5, Decimal("1.50"), str(id), id)]


@pytest.mark.parametrize("way", ["copied", "inserted", "upserted", "exactly once"])
async def test_points_in_time_stay_the_same_in_a_column_without_a_zone(postgres_url: str, way: str) -> None:
    do(postgres_url, "CREATE TABLE t (id int PRIMARY KEY, at timestamptz, plain timestamp)")
    do(postgres_url, f"ALTER DATABASE {postgres_url.rpartition('/')[2]} SET timezone = 'Asia/Tokyo'")
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    zones = [UTC, timezone(timedelta(hours=5))]

    class Moment(datetime):
        """As pandas has one."""

    first, last = datetime.min.replace(tzinfo=zones[1]), datetime.max.replace(tzinfo=UTC)
    moments = [at.astimezone(zone) for zone in zones]
    moments += [Moment.fromisoformat(moments[1].isoformat()), at.replace(tzinfo=None), first, last]
    sink: Sink[Any] = PostgresSink(
        postgres_url,
        "t",
        columns=["id", "at", "plain"],
        on_conflict="ignore" if way == "inserted" else "fail",
    )
    if way == "upserted":
        sink = PostgresUpsertSink(postgres_url, "t", columns=["id", "at", "plain"], key="id")
    rows = [{"id": number, "at": moment, "plain": moment} for number, moment in enumerate(moments)]
    await write(sink, rows, MemoryStore() if way == "exactly once" else None)
    found = do(postgres_url, "SELECT at, plain FROM t WHERE id < 3 ORDER BY id")
    assert found == [(at, at.replace(tzinfo=None))] * 3
    # one without a zone is the server's to understand
    assert do(postgres_url, "SELECT at::timestamp, plain FROM t WHERE id = 3") == [(moments[3], moments[3])]
    assert do(postgres_url, "SELECT count(*) FROM t") == [(len(moments),)]


async def test_results_appear_with_their_checkpoint(postgres_url: str) -> None:
    do(postgres_url, "CREATE TABLE t (n int)")
    sink = PostgresSink(postgres_url, "t", columns=["n"])
    sink.writer = Writer(Lease(1, "here", Holder.here(0), 0), 3, "refuse")
    await sink.recover(None)
    await sink.write([{"n": 1}, {"n": 2}], None)
    await sink.prepare(1)
    assert do(postgres_url, "SELECT count(*) FROM t") == [(0,)]
    await sink.commit(1)
    assert do(postgres_url, "SELECT n FROM t ORDER BY n") == [(1,), (2,)]
    assert do(postgres_url, "SELECT count(*) FROM t__staged") == [(0,)]
    await sink.close()


async def test_a_table_is_the_same_with_its_schema_and_without(postgres_url: str) -> None:
    do(postgres_url, "CREATE TABLE t (n int)")
    plain, named = (PostgresSink(postgres_url, table, columns=["n"]) for table in ("t", "public.t"))
    pipeline = Pipeline("orders")
    source = pipeline.source([{"n": 1}], name="in")
    source.to(plain, name="a")
    source.to(named, name="b")
    with pytest.raises(SinkError, match="is used by another step of this job"):
        await pipeline.run(checkpoints=Checkpoints(store=MemoryStore()))
    store = MemoryStore()
    elements = [{"n": n} for n in range(8)]
    await write(plain, elements[:5], store)
    await write(named, elements, store)
    assert do(postgres_url, "SELECT n FROM t ORDER BY n") == [(n,) for n in range(8)]


async def test_tables_of_one_name_in_two_schemas_are_two(postgres_url: str) -> None:
    do(postgres_url, "CREATE SCHEMA app")
    for table in ("public.t", "app.t"):
        do(postgres_url, f"CREATE TABLE {table} (n int)")
    url = f"{postgres_url}?options=-c%20search_path%3Dapp,public"
    do(postgres_url, "CREATE TABLE u (n int)")  # the first sink makes what all share, in "public"
    await write(PostgresSink(postgres_url, "public.u", columns=["n"]), [{"n": 1}], MemoryStore())
    named, plain = (PostgresSink(url, table, columns=["n"]) for table in ("public.t", "t"))
    for first, second in ((named, plain), (plain, named)):
        for table in ("t", "app.t"):
            do(postgres_url, f"TRUNCATE {table}")
        do(postgres_url, "DELETE FROM asyncstream_sinks")
        await write(first, [{"n": 1}], MemoryStore())
        await write(second, [{"n": 2}], MemoryStore())
        both = do(postgres_url, "SELECT n FROM public.t") + do(postgres_url, "SELECT n FROM app.t")
        assert sorted(both) == [(1,), (2,)]


async def test_a_table_whose_name_leaves_no_room_for_another_is_refused(postgres_url: str) -> None:
    for length, fits in ((62, True), (63, False), (64, False)):
        table = "t" * length
        do(postgres_url, f"DROP TABLE IF EXISTS {table}")
        do(postgres_url, f"CREATE TABLE {table} (n int)")
        sink = PostgresSink(postgres_url, table, columns=["n"])
        if fits:
            await write(sink, [{"n": 1}], MemoryStore())
            assert do(postgres_url, f"SELECT n FROM {table}") == [(1,)]
        else:
            with pytest.raises(SinkError, match="too long a name for exactly once"):
                await write(sink, [{"n": 1}], MemoryStore())


async def test_what_was_prepared_is_committed_by_a_job_that_writes_other_columns(postgres_url: str) -> None:
    do(postgres_url, "CREATE TABLE t (n int, text text)")
    sink = PostgresSink(postgres_url, "t", columns=["n"])
    sink.writer = Writer(Lease(1, "here", Holder.here(0), 0), 3, "refuse")
    await sink.recover(None)
    await sink.write([{"n": 1}], None)
    position = await sink.prepare(1)
    await sink.close()
    again = PostgresSink(postgres_url, "t", columns=["n", "text"])
    again.writer = Writer(Lease(2, "here", Holder.here(0), 0), 3, "refuse")
    await again.recover(position)
    await again.write([{"n": 2, "text": "b"}], None)
    await again.prepare(2)
    await again.commit(2)
    await again.close()
    assert do(postgres_url, "SELECT * FROM t ORDER BY n") == [(1, None), (2, "b")]


async def test_an_epoch_of_many_batches_comes_in_their_order(postgres_url: str) -> None:
    do(postgres_url, "CREATE TABLE t (at serial, n int)")
    sink = PostgresSink(postgres_url, "t", columns=["n"])
    sink.writer = Writer(Lease(1, "here", Holder.here(0), 0), 3, "refuse")
    await sink.recover(None)
    for batch in range(40):
        await sink.write([{"n": 2 * batch}, {"n": 2 * batch + 1}], None)
    with pytest.raises(SinkError, match="invalid input syntax"):
        await sink.write([{"n": 80}, {"n": "none"}], None)
    await sink.prepare(1)
    await sink.commit(1)
    await sink.close()
    assert do(postgres_url, "SELECT n FROM t ORDER BY at") == [(n,) for n in range(80)]


async def test_a_large_batch_is_staged_in_several_blocks(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_BLOCK", 100_000)
    do(postgres_url, "CREATE TABLE t (id serial, n int, text text)")
    sink = PostgresSink(postgres_url, "t", columns=["n", "text"])
    sink.writer = Writer(Lease(1, "here", Holder.here(0), 0), 3, "refuse")
    await sink.recover(None)
    rows = [{"n": n, "text": f"{n % 10}" * 10_000} for n in range(100)]
    await sink.write(rows, None)
    assert 5 < do(postgres_url, "SELECT count(*) FROM t__staged")[0][0] < 12
    await sink.prepare(1)
    await sink.commit(1)
    await sink.close()
    assert do(postgres_url, "SELECT n, text FROM t ORDER BY id") == [tuple(row.values()) for row in rows]


async def test_rows_that_others_have_changed_are_not_taken_back(postgres_url: str) -> None:
    do(postgres_url, "CREATE TABLE t (n int)")
    writer = Writer(Lease(1, "here", Holder.here(0), 0), 3, "refuse")
    sink = PostgresSink(postgres_url, "t", columns=["n"])
    sink.writer = writer
    await sink.recover(None)
    positions = []
    for epoch in range(2):
        await sink.write([{"n": epoch}], None)
        positions.append(await sink.prepare(epoch))
        await sink.commit(epoch)
    await sink.close()
    do(postgres_url, "UPDATE t SET n = 7 WHERE n = 1")
    again = PostgresSink(postgres_url, "t", columns=["n"])
    again.writer = Writer(Lease(2, "here", Holder.here(0), 0), 3, "refuse")
    with pytest.raises(SinkError, match="changed or deleted by others"):
        await again.recover(positions[0])
    await again.close()
    assert do(postgres_url, "SELECT n FROM t ORDER BY n") == [(0,), (7,)]


async def test_a_job_does_not_take_out_what_another_one_has_written_since(postgres_url: str) -> None:
    do(postgres_url, "CREATE TABLE t (id serial, n text)")

    async def run(store: MemoryStore, names: str, ahead: Literal["refuse", "allow_behind"]) -> None:
        pipeline = Pipeline("orders")
        letters = pipeline.source([{"n": name} for name in names], name="in")
        letters.to(PostgresSink(postgres_url, "t", columns=["n"]), name="out")
        await pipeline.run(checkpoints=Checkpoints(store=store, ahead=ahead))

    def found() -> str:
        return "".join(n for (n,) in do(postgres_url, "SELECT n FROM t ORDER BY id"))

    ours, theirs = MemoryStore(), MemoryStore()
    await run(ours, "ab", "refuse")
    await run(theirs, "xy", "allow_behind")
    with pytest.raises(SinkError, match="holds results of a later checkpoint"):
        await run(ours, "abc", "refuse")
    assert found() == "abxy"
    await run(ours, "abc", "allow_behind")
    await run(ours, "abcd", "refuse")
    assert found() == "abxycd"


async def test_a_table_that_was_emptied_by_hand_is_begun_anew(postgres_url: str) -> None:
    do(postgres_url, "CREATE TABLE t (n int)")

    async def run(place: str, ahead: Literal["refuse", "start_over"], *contents: int) -> int:
        sink = PostgresSink(postgres_url, "t", columns=["n"])
        sink.writer = Writer(Lease(1, place, Holder.here(0), 0), 2, ahead)
        position = 0
        try:
            await sink.recover(None)
            for epoch, number in enumerate(contents):
                await sink.write([{"n": number}], None)
                position = await sink.prepare(epoch)
                await sink.commit(epoch)
        finally:
            await sink.close()
        return position

    old = await run("a", "refuse", *range(5))
    with pytest.raises(SinkError, match="empty the table yourself, and delete its row in asyncstream_sinks"):
        await run("b", "start_over")
    do(postgres_url, "TRUNCATE t")
    do(postgres_url, "DELETE FROM asyncstream_sinks")
    await run("c", "refuse", 6)
    with pytest.raises(SinkError, match="no longer has the results of the checkpoint"):
        await PostgresSink(postgres_url, "t", columns=["n"]).can_recover(old)
    await run("d", "start_over", *range(7, 14))
    assert do(postgres_url, "SELECT n FROM t ORDER BY n") == [(n,) for n in range(7, 14)]


async def test_a_table_that_was_altered_is_written_on(postgres_url: str) -> None:
    do(postgres_url, "CREATE TABLE t (n int)")
    store = MemoryStore()
    await write(PostgresSink(postgres_url, "t", columns=["n"]), [{"n": 1}], store)
    do(postgres_url, "ALTER TABLE t ALTER n TYPE bigint, ADD note text DEFAULT 'none'")
    await write(PostgresSink(postgres_url, "t", columns=["n"]), [{"n": 1}, {"n": 2**40}], store)
    assert do(postgres_url, "SELECT n, note FROM t ORDER BY n") == [(1, "none"), (2**40, "none")]


@pytest.mark.parametrize("way", ["exactly once", "ignore", "by key"])
async def test_a_table_that_is_altered_while_it_is_written_takes_what_it_now_takes(
    postgres_url: str, way: str
) -> None:
    # what is dropped of both tables is called the same there
    do(postgres_url, "CREATE TABLE t (old varchar(9), id int DEFAULT 5, n int PRIMARY KEY, name varchar(2))")
    do(postgres_url, "ALTER TABLE t DROP old")
    columns = ["n", "name"]
    sink: PostgresSink | PostgresUpsertSink
    if way == "by key":
        sink = PostgresUpsertSink(postgres_url, "t", columns=columns, key="n")
        await sink.open()
    else:
        sink = PostgresSink(postgres_url, "t", columns=columns, on_conflict="ignore")
        await (sink.recover(None) if way == "exactly once" else sink.open())
    await sink.write([{"n": 1, "name": "a"}], None)
    for row in ({"n": 2**40, "name": "b"}, {"n": 2, "name": "long"}):
        with pytest.raises(SinkError, match=r"out of range|too long"):
            await sink.write([row], None)
    do(postgres_url, "ALTER TABLE t ALTER n TYPE bigint, ALTER name TYPE text")
    await sink.write([{"n": 2**40, "name": "long"}], None)
    if way == "exactly once":
        assert isinstance(sink, PostgresSink)
        await sink.prepare(1)
        await sink.commit(1)
    await sink.close()
    assert do(postgres_url, "SELECT n, name FROM t ORDER BY n") == [(1, "a"), (2**40, "long")]


async def test_a_commit_takes_its_time_whatever_the_database_has_as_its_own(postgres_url: str) -> None:
    do(postgres_url, "CREATE TABLE t (n int)")
    slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.1); "
    do(postgres_url, slow + "RETURN NEW; END $$")
    do(postgres_url, "CREATE TRIGGER slow BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION slow()")
    do(postgres_url, f"ALTER DATABASE {postgres_url.rpartition('/')[2]} SET statement_timeout = '50ms'")
    await write(PostgresSink(postgres_url, "t", columns=["n"]), [{"n": 1}], MemoryStore())
    assert do(postgres_url, "SELECT n FROM t") == [(1,)]


async def test_a_session_of_ones_own_prepares_what_it_is_to_do_often(postgres_url: str) -> None:
    do(postgres_url, "CREATE TABLE t (n int UNIQUE)")
    do(  # each insert tells what its session has prepared
        postgres_url,
        "CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "NEW.n = (SELECT -count(*) FROM pg_prepared_statements WHERE statement LIKE 'INSERT%'); "
        "RETURN NEW; END $$",
    )
    do(postgres_url, "CREATE TRIGGER seen BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION seen()")
    await write(PostgresSink(postgres_url, "t", columns=["n"], on_conflict="ignore"), [{"n": 1}])
    assert do(postgres_url, "SELECT n FROM t") == [(-1,)]


@pytest.mark.parametrize("keeps", [False, True])
async def test_a_sink_may_have_nothing_to_write_for_long(postgres_url: str, keeps: bool) -> None:
    do(postgres_url, "CREATE TABLE t (n int)")
    do(postgres_url, f"ALTER DATABASE {postgres_url.rpartition('/')[2]} SET idle_session_timeout = '500ms'")
    sink = PostgresSink(postgres_url, "t", columns=["n"])
    await (sink.recover(None) if keeps else sink.open())
    await sink.write([{"n": 1}], None)
    do(postgres_url, "SELECT pg_sleep(0.7)")
    await sink.write([{"n": 2}], None)
    await sink.close()


async def test_an_element_without_a_key_is_refused_unless_nulls_are_one(postgres_url: str) -> None:
    do(postgres_url, "CREATE TABLE t (k int UNIQUE, v int)")
    rows = [{"k": None, "v": number} for number in range(3)]
    with pytest.raises(SinkError, match=r"cannot write .* its key, k, is null"):
        await write(PostgresUpsertSink(postgres_url, "t", columns=["k", "v"], key="k"), rows)
    do(postgres_url, "ALTER TABLE t DROP CONSTRAINT t_k_key")
    do(postgres_url, "CREATE UNIQUE INDEX ON t (k) NULLS NOT DISTINCT")
    for _ in range(2):
        await write(PostgresUpsertSink(postgres_url, "t", columns=["k", "v"], key="k"), rows)
    assert do(postgres_url, "SELECT * FROM t") == [(None, 2)]


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_a_conflict_may_be_ignored(postgres_url: str, exactly_once: bool) -> None:
    do(postgres_url, "CREATE TABLE t (n int PRIMARY KEY, text text)")
    do(postgres_url, "INSERT INTO t VALUES (2, 'before')")
    rows = [{"n": n, "text": "new"} for n in (1, 2, 3, 3)]
    sink = PostgresSink(postgres_url, "t", columns=["n", "text"], on_conflict="ignore")
    await write(sink, rows, MemoryStore() if exactly_once else None)
    assert do(postgres_url, "SELECT * FROM t ORDER BY n") == [(1, "new"), (2, "before"), (3, "new")]


async def test_by_key_the_last_value_stays(postgres_url: str) -> None:
    do(
        postgres_url,
        "CREATE TABLE t (user_id int, day text, n int, seen int DEFAULT 5, PRIMARY KEY (user_id, day))",
    )
    rows = [{"user_id": n % 2, "day": "Monday", "n": n} for n in range(7)]
    sink = PostgresUpsertSink(postgres_url, "t", columns=["user_id", "day", "n"], key=["user_id", "day"])
    await write(sink, rows)
    await write(
        PostgresUpsertSink(postgres_url, "t", columns=["user_id", "day"], key=["user_id", "day"]), rows
    )
    assert do(postgres_url, "SELECT * FROM t ORDER BY n") == [(1, "Monday", 5, 5), (0, "Monday", 6, 5)]


async def test_a_change_log_is_followed(postgres_url: str) -> None:
    do(
        postgres_url,
        'CREATE TABLE t ("user" int, "order" int, price int NOT NULL CHECK (price > 0), '
        'note text DEFAULT \'new\', PRIMARY KEY ("user", "order"))',
    )

    def row(order: int, price: int) -> dict[str, int]:
        return {"user": 1, "order": order, "price": price}

    def sink() -> PostgresUpsertSink:
        return PostgresUpsertSink(
            postgres_url, "t", columns=["price", "order", "user"], key=["user", "order"]
        )

    rows = [row(order, 10) for order in range(1, 7)]
    await write(sink(), [*rows[:2], *(Change("+I", one) for one in rows[2:])])
    do(postgres_url, "UPDATE t SET note = 'noted'")
    log = [
        Change("-U", rows[0]),
        Change("+U", row(1, 11)),
        Change("-D", rows[1]),
        Change("+U", row(3, 13)),  # and gone: the last counts
        Change("-D", {"user": 1, "order": 3}),  # of a row that goes, the key is enough
        Change("-D", rows[3]),  # and comes again: as a new one
        Change("+I", row(4, 14)),
        Change("-U", rows[4]),
        Change("-D", row(9, 10)),  # was never there
        row(6, 16),
    ]
    expected = [(1, 11, "noted"), (4, 14, "new"), (5, 10, "noted"), (6, 16, "noted")]
    for changes in (log, log[:4], log[4:6], log[6:]):  # the rest is read a second time, as after a crash
        await write(sink(), changes)
        if changes is log:
            assert do(postgres_url, 'SELECT "order", price, note FROM t ORDER BY 1') == expected
    assert do(postgres_url, 'SELECT "order", price, note FROM t ORDER BY 1') == expected


async def test_a_change_log_is_followed_where_nulls_are_one_key(postgres_url: str) -> None:
    do(postgres_url, "CREATE TABLE t (k int, v int, UNIQUE NULLS NOT DISTINCT (k))")
    do(postgres_url, "INSERT INTO t VALUES (NULL, 1), (2, 2)")
    sink = PostgresUpsertSink(postgres_url, "t", columns=["k", "v"], key="k")
    await write(sink, [Change("-D", {"k": None, "v": 1})])
    assert do(postgres_url, "SELECT * FROM t") == [(2, 2)]


async def test_a_step_that_corrects_itself_keeps_a_table_right(postgres_url: str) -> None:
    do(postgres_url, "CREATE TABLE t (item text PRIMARY KEY, price int)")
    prices = [("tea", 5), ("jam", 3), ("tea", 2), ("oil", 1), ("jam", 9), ("oil", 4)]
    pipeline = Pipeline("cheapest")
    rows = pipeline.source({"item": item, "price": price} for item, price in prices)
    last = rows.key_by("item").deduplicate(keep="last", changes="all")
    cheapest = last.key_by(lambda change: 0).top(2, "price", order="ascending", retracts=True, changes="all")
    cheapest.to(PostgresUpsertSink(postgres_url, "t", columns=["item", "price"], key="item"))
    await pipeline.run()
    assert do(postgres_url, "SELECT * FROM t ORDER BY price") == [("tea", 2), ("oil", 4)]


async def test_a_change_that_is_none_is_one_failed_element(postgres_url: str) -> None:
    do(postgres_url, "CREATE TABLE t (k int PRIMARY KEY)")
    pipeline, failed = Pipeline("orders"), list[Any]()
    log = [Change[Any](kind, {"k": k}) for k, kind in enumerate(("+I", "gone", "-U", "+I"))]  # type: ignore[arg-type]
    log.append(Change("-D", {"n": 1}))
    sink = PostgresUpsertSink(postgres_url, "t", columns=["k"], key="k")
    written = pipeline.source(log, name="in").to(sink, name="out", on_error="route")
    written.failed.map(lambda call: str(call.error)).to(failed, name="failed")
    await pipeline.run()
    assert do(postgres_url, "SELECT k FROM t ORDER BY k") == [(0,), (3,)]
    assert len(failed) == 2
    assert "expected a Change of the kind '+I', '-U', '+U' or '-D', got 'gone'" in failed[0]
    assert "there are: 'n'" in failed[1]


@pytest.mark.parametrize(
    ("table", "columns", "rows", "says"),
    [
        ("lacking", ["n"], [{"n": 1}], r"step 'out': there is no table 'lacking'.*create it"),
        ("t", ["n", "m"], [{"n": 1, "m": 2}], r"step 'out': table 't' of .* has no column 'm'; there are: n"),
        ("t", ["n"], [{"n": "one"}], r"step 'out': cannot write to table 't' of PostgreSQL at 127.0.0.1:\d+"),
        ("t", ["n"], [{"n": None}], r"step 'out': .*null value in column \"n\""),
        ("t", ["n"], [{"n": -1}], r"step 'out': .*violates check constraint"),
        ("t", ["n"], [{"k": 1}], r"step 'out': cannot write .*there are: 'k'"),
    ],
)
@pytest.mark.parametrize("exactly_once", [False, True])
async def test_what_does_not_fit_is_told_of(
    postgres_url: str, table: str, columns: list[str], rows: list[Any], says: str, exactly_once: bool
) -> None:
    do(postgres_url, "CREATE TABLE t (n int NOT NULL CHECK (n > 0))")
    with pytest.raises(SinkError, match=says):
        await write(
            PostgresSink(postgres_url, table, columns=columns), rows, MemoryStore() if exactly_once else None
        )


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("TABLE t (n int, m int GENERATED ALWAYS AS (2 * n) STORED)", "Generated columns cannot be used"),
        ("VIEW t AS SELECT 1 AS n, 2 AS m", "cannot copy to view"),
    ],
)
async def test_what_takes_no_rows_is_told_of_before_any_are_staged(
    postgres_url: str, table: str, says: str
) -> None:
    do(postgres_url, f"CREATE {table}")
    with pytest.raises(SinkError, match=says):
        await write(PostgresSink(postgres_url, "t", columns=["n", "m"]), [], MemoryStore())


@pytest.mark.parametrize("on_conflict", ["fail", "ignore"])
async def test_a_start_sets_off_no_trigger(postgres_url: str, on_conflict: Any) -> None:
    do(postgres_url, "CREATE TABLE t (n int); CREATE TABLE seen (n int)")
    do(
        postgres_url,
        "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN INSERT INTO seen VALUES (1); RETURN NULL; END'",
    )
    do(postgres_url, "CREATE TRIGGER see AFTER INSERT ON t EXECUTE FUNCTION see()")
    store = MemoryStore()
    await write(PostgresSink(postgres_url, "t", columns=["n"], on_conflict=on_conflict), [], store)
    assert do(postgres_url, "SELECT * FROM seen") == []
    await write(PostgresSink(postgres_url, "t", columns=["n"], on_conflict=on_conflict), [{"n": 1}], store)
    assert do(postgres_url, "SELECT * FROM seen") == [(1,)]
    assert do(postgres_url, "SELECT * FROM t") == [(1,)]


async def test_who_may_write_needs_no_right_to_make_tables_that_are_there(postgres_url: str) -> None:
    do(postgres_url, "CREATE TABLE t (n int)")
    store = MemoryStore()
    await write(PostgresSink(postgres_url, "t", columns=["n"]), [{"n": 1}], store)
    do(postgres_url, "DROP ROLE IF EXISTS writer")
    do(postgres_url, "CREATE ROLE writer LOGIN")
    do(postgres_url, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO writer")
    writer = postgres_url.replace("postgres@", "writer@")
    await write(PostgresSink(writer, "t", columns=["n"]), [{"n": 1}, {"n": 2}], store)
    do(postgres_url, "DROP OWNED BY writer")
    assert do(postgres_url, "SELECT n FROM t ORDER BY n") == [(1,), (2,)]


async def test_half_a_character_is_told_of(postgres_url: str) -> None:
    do(postgres_url, "CREATE TABLE t (n text)")
    with pytest.raises(SinkError, match=r"step 'out': cannot write to table 't' of .*: 'utf-8' codec"):
        await write(PostgresSink(postgres_url, "t", columns=["n"]), [{"n": "\ud800"}])


async def test_one_bad_row_is_one_failed_element(postgres_url: str) -> None:
    do(postgres_url, "CREATE TABLE t (n int)")
    pipeline, failed = Pipeline("orders"), list[Any]()
    sink = PostgresSink(postgres_url, "t", columns=["n"])
    written = pipeline.source([{"n": n} for n in (1, "two", 3)], name="in").to(
        sink, name="out", on_error="route"
    )
    written.failed.to(failed.append, name="failed")
    await pipeline.run()
    assert do(postgres_url, "SELECT n FROM t ORDER BY n") == [(1,), (3,)]
    assert len(failed) == 1


@pytest.mark.parametrize("code", ["serialization_failure", "deadlock_detected"])
@pytest.mark.parametrize("kind", ["upsert", "at once", "epochs"])
async def test_what_the_server_takes_back_for_others_is_written_again(
    postgres_url: str, kind: str, code: str
) -> None:
    do(postgres_url, "CREATE TABLE t (n int PRIMARY KEY)")
    do(postgres_url, "CREATE SEQUENCE tries")
    do(
        postgres_url,
        "CREATE FUNCTION give_way() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF nextval('tries') <= 3 THEN RAISE {code}; END IF; RETURN new; END $$",
    )
    do(postgres_url, "CREATE TRIGGER t BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION give_way()")
    sink: Sink[Any] = PostgresSink(postgres_url, "t", columns=["n"])
    if kind == "upsert":
        sink = PostgresUpsertSink(postgres_url, "t", columns=["n"], key="n")
    store = MemoryStore() if kind == "epochs" else None
    await write(sink, [{"n": 1}, {"n": 2}], store)
    assert do(postgres_url, "SELECT n FROM t ORDER BY n") == [(1,), (2,)]
    do(postgres_url, "ALTER SEQUENCE tries MINVALUE -1000 RESTART WITH -1000")
    with pytest.raises(AsyncStreamError, match=code):  # it does so each time
        await write(sink, [{"n": n} for n in range(1, 4)], store)


async def test_no_rights_and_no_server_are_told_of(postgres_url: str) -> None:
    do(postgres_url, "CREATE TABLE t (n int)")
    do(postgres_url, "DROP ROLE IF EXISTS guest")
    do(postgres_url, "CREATE ROLE guest LOGIN")
    guest = postgres_url.replace("postgres@", "guest:secret@")
    with pytest.raises(SinkError, match=r"step 'out': .*permission denied for table t") as told:
        await write(PostgresSink(guest, "t", columns=["n"]), [{"n": 1}])
    assert "secret" not in str(told.value)
    away = "postgresql://somebody:secret@127.0.0.1:1/shop"
    with pytest.raises(
        SinkError, match=r"step 'out': cannot connect to table 't' of PostgreSQL at 127.0.0.1:1/shop"
    ):
        await write(PostgresSink(away, "t", columns=["n"]), [{"n": 1}])


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"url": "nonsense"}, "url: expected the address of a PostgreSQL database"),
        ({"table": "a.b.c"}, "table: expected the name of a table"),
        ({"columns": "n"}, "columns: expected a list of different names"),
        ({"on_conflict": "replace"}, "on_conflict: expected one of 'fail', 'ignore'"),
    ],
)
def test_wrong_arguments_are_refused(more: dict[str, Any], says: str) -> None:
    arguments = {"url": "postgresql://localhost/shop", "table": "t", "columns": ["n"], **more}
    with pytest.raises(PipelineError, match=says):
        PostgresSink(**arguments)


def test_a_key_is_among_the_columns() -> None:
    with pytest.raises(
        PipelineError, match=r"key: expected names that are among columns.*missing there: \['id'\]"
    ):
        PostgresUpsertSink("postgresql://localhost/shop", "t", columns=["n"], key="id")
