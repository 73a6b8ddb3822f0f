"""A table as a source and as a sink: rows in order, results once, and nothing half done to be seen."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from asyncstream import (
    Checkpoints,
    MemoryStore,
    Pipeline,
    PipelineError,
    SinkError,
    SourceError,
    SqliteSink,
    SqliteSource,
)
from asyncstream.connectors.sqlite.database import Database
from asyncstream.connectors.writer import Writer
from asyncstream.errors import SinkBroken
from asyncstream.filesystem.sqlite import write_ahead
from asyncstream.lease import Holder, Lease, enter


def rows(path: Path, query: str = "SELECT * FROM t ORDER BY rowid") -> list[Any]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


def value(number: int) -> dict[str, Any]:
    return {"n": number, "name": f"x{number}"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.sqlite"


# ---------------------------------------------------------------------- source


def filled(path: Path, count: int) -> None:
    execute(path, "CREATE TABLE t (n, name)", *(f"INSERT INTO t VALUES ({n}, 'x{n}')" for n in range(count)))


def test_rows_come_as_dicts_in_order(path: Path) -> None:
    filled(path, 25)
    found: list[Any] = []
    pipeline = Pipeline()
    pipeline.source(SqliteSource(path, "t", batch=10)).to(found)
    asyncio.run(pipeline.run())
    assert found == [value(n) for n in range(25)]


async def test_reading_goes_on_behind_a_position(path: Path) -> None:
    filled(path, 25)

    source = SqliteSource(path, "t", batch=10)
    await source.open()
    await source.read()
    position = source.position()
    await source.close()
    await source.open()
    await source.seek(position)
    batch = await source.read()
    assert batch is not None
    assert batch.values[0] == value(10)
    await source.close()


@pytest.mark.parametrize("by", [None, "name"])
async def test_a_read_of_large_rows_brings_few(path: Path, by: str | None) -> None:
    execute(path, "CREATE TABLE t (n, name, data)", "CREATE INDEX names ON t (name)")
    large = f"INSERT INTO t SELECT value, 'x', zeroblob({1 << 20}) FROM json_each(?)"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(large, [str([*range(20)])])
    source = SqliteSource(path, "t", by=by)
    await source.open()
    sizes, found = [], []
    while (batch := await source.read()) is not None:
        sizes.append(len(batch.values))
        found += [row["n"] for row in batch.values]
        position = source.position()
        await source.close()
        await source.open()
        await source.seek(position)
    assert found == [*range(20)]
    assert sizes == [4] * 5
    await source.close()


async def seek(path: Path, position: int) -> list[Any]:
    """What a source gives behind `position`."""
    source = SqliteSource(path, "t")
    await source.open()
    try:
        await source.seek(position)
        batch = await source.read()
        return [] if batch is None else [row["n"] for row in batch.values]
    finally:
        await source.close()


@pytest.mark.parametrize(("count", "found"), [(3, "none behind 3"), (0, "no row")])
def test_table_that_never_had_the_row_of_a_position_is_refused(path: Path, count: int, found: str) -> None:
    filled(path, count)
    with pytest.raises(SourceError, match=f"cannot go on behind row 10 of table 't' .*: it has {found}"):
        asyncio.run(seek(path, 10))
    with pytest.raises(SourceError, match=f"cannot go on behind row 10 of table 't' .*: it has {found}"):
        asyncio.run(SqliteSource(path, "t").can_seek(10))


def test_table_whose_rows_were_taken_away_is_read_on_if_it_counts_on(path: Path) -> None:
    execute(path, "CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, n)")
    execute(path, *(f"INSERT INTO t (n) VALUES ({n})" for n in range(10)), "DELETE FROM t")
    assert asyncio.run(seek(path, 10)) == []
    execute(path, "INSERT INTO t (n) VALUES (99)")
    assert asyncio.run(seek(path, 10)) == [99]


def test_position_before_all_rows_fits_an_empty_table(path: Path) -> None:
    filled(path, 0)
    assert asyncio.run(seek(path, -(2**63))) == []


def test_source_says_what_is_missing(path: Path) -> None:
    async def main(table: str) -> None:
        source = SqliteSource(path, table)
        try:
            await source.open()
            await source.read()
        finally:
            await source.close()

    with pytest.raises(SourceError, match="no such file"):
        asyncio.run(main("t"))
    with pytest.raises(SourceError, match="no such file"):
        asyncio.run(SqliteSource(path, "t").can_seek(1))
    filled(path, 1)
    execute(path, "CREATE TABLE bare (n PRIMARY KEY) WITHOUT ROWID")
    with pytest.raises(SourceError, match="made WITHOUT ROWID"):
        asyncio.run(main("bare"))
    with pytest.raises(SourceError, match="no such table"):
        asyncio.run(main("other"))


def test_place_that_is_no_database_is_refused(tmp_path: Path) -> None:
    for position in (None, 1):
        with pytest.raises(SourceError, match=r"cannot read .*unable to open"):
            asyncio.run(opened_at(tmp_path, position))


@pytest.mark.parametrize("by", [None, "n"])
async def test_a_database_that_may_only_be_read_is_read_and_left_as_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch, by: str | None
) -> None:
    """One with a log is refused by SQLite where it cannot make that; where it can, the log would be ours."""
    with closing(sqlite3.connect(path)) as database:
        write_ahead(database, timeout=10)
        database.execute("CREATE TABLE read_only (n)")
        database.executemany("INSERT INTO read_only VALUES (?)", [(n,) for n in range(10)])
        database.commit()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    before = sorted(os.listdir(path.parent))
    source = SqliteSource(path, "read_only", by=by, batch=3)
    found: list[Any] = []
    await source.open()
    while (batch := await source.read()) is not None:
        assert sorted(os.listdir(path.parent)) == before
        found += [row["n"] for row in batch.values]
    position = source.position()
    await source.close()
    await source.can_seek(position)
    assert found == list(range(10))
    assert sorted(os.listdir(path.parent)) == before


async def test_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "no" / "out.db", "t", columns=["n"])
    for begin in (sink.open, lambda: sink.recover(None)):
        with pytest.raises(SinkError, match=r"cannot open .*out\.db: there is no directory .*no$"):
            await begin()


async def opened_at(path: Path, position: int | None) -> None:
    source = SqliteSource(path, "t")
    if position is not None:
        await source.can_seek(position)
    await source.open()


@pytest.mark.parametrize("columns", ["rowid, n", "n, RowID, _rowid_"])
async def test_columns_may_have_the_names_of_the_rowid(path: Path, columns: str) -> None:
    same = ", ".join("7" for _ in columns.split())
    execute(path, f"CREATE TABLE t ({columns})", *[f"INSERT INTO t VALUES ({same})"] * 5)
    source = SqliteSource(path, "t", batch=2)
    await source.open()
    await source.read()
    position = source.position()
    await source.close()
    assert position == 2
    assert await seek(path, position) == [7] * 3
    with pytest.raises(SourceError, match="read in the order of column 'rowid'"):
        await source.can_seek("7")  # as it was before


def test_table_that_counts_on_may_be_called_by_another_case(path: Path) -> None:
    execute(path, "CREATE TABLE T (id INTEGER PRIMARY KEY AUTOINCREMENT, n)", "INSERT INTO T (n) VALUES (1)")
    execute(path, "DELETE FROM T")
    assert asyncio.run(seek(path, 1)) == []


@pytest.mark.parametrize("by", [None, "n"])
async def test_row_that_cannot_be_read_is_named_behind_those_before_it(path: Path, by: str | None) -> None:
    filled(path, 3)
    execute(path, "UPDATE t SET name = CAST(x'ff' AS TEXT) WHERE n = 2")
    source = SqliteSource(path, "t", by=by)
    await source.open()
    batch = await source.read()
    assert batch is not None
    assert batch.values == [value(0), value(1)]
    with pytest.raises(
        SourceError, match=r"row 3.* of table 't'.*: column 'name' holds a text that is not UTF-8, b'\\xff'"
    ) as kept:
        await source.read()
    position = source.position()
    execute(path, "UPDATE t SET name = 'x2' WHERE n = 2")
    batch = await source.read()
    assert batch is not None
    assert batch.values == [value(2)]
    assert type(batch.values[0]["name"]) is str
    await source.close()
    assert position != source.position()
    assert kept.value is not None


@pytest.mark.parametrize("by", [None, "n"])
async def test_row_that_cannot_be_read_leaves_no_lock(path: Path, by: str | None) -> None:
    execute(path, "CREATE TABLE t (n, text)", "INSERT INTO t VALUES (1, CAST(x'ff' AS TEXT))")
    source = SqliteSource(path, "t", by=by)
    await source.open()
    with pytest.raises(SourceError, match="not UTF-8") as kept:
        await source.read()
    await source.close()
    with closing(sqlite3.connect(path, timeout=0)) as database, database:
        database.execute("DELETE FROM t")
    assert kept.value is not None


# ---------------------------------------------------------------------- sink


def test_table_is_made_and_filled(path: Path) -> None:
    pipeline = Pipeline()
    pipeline.source([value(n) for n in range(5)]).to(SqliteSink(path, "t", columns=["n", "name"]))
    asyncio.run(pipeline.run())
    assert rows(path) == [(n, f"x{n}") for n in range(5)]
    assert rows(path, "SELECT name FROM sqlite_master") == [("t",)], "nothing of ours is left there"


def test_names_are_quoted(path: Path) -> None:
    pipeline = Pipeline()
    pipeline.source([{'a "b"; --': 1}]).to(SqliteSink(path, 'odd "table"', columns=['a "b"; --']))
    asyncio.run(pipeline.run())
    assert rows(path, 'SELECT * FROM "odd ""table"""') == [(1,)]


@pytest.mark.parametrize(("on_conflict", "left"), [("ignore", [(1, "old")]), ("replace", [(1, "x1")])])
def test_conflict_is_settled_as_asked(path: Path, on_conflict: Any, left: list[Any]) -> None:
    execute(path, "CREATE TABLE t (n PRIMARY KEY, name)", "INSERT INTO t VALUES (1, 'old')")
    pipeline = Pipeline()
    sink = SqliteSink(path, "t", columns=["n", "name"], on_conflict=on_conflict)
    pipeline.source([value(1)], name="s").to(sink, name="t")
    asyncio.run(pipeline.run(checkpoints=Checkpoints(store=MemoryStore())))
    assert rows(path) == left


def test_conflict_fails_by_default(path: Path) -> None:
    execute(path, "CREATE TABLE t (n PRIMARY KEY, name)", "INSERT INTO t VALUES (1, 'old')")
    pipeline = Pipeline()
    pipeline.source([value(1)]).to(SqliteSink(path, "t", columns=["n", "name"]))
    with pytest.raises(SinkError, match="UNIQUE"):
        asyncio.run(pipeline.run())


@pytest.mark.parametrize("element", [{"n": 1}, {"n": object(), "name": ""}, 7])
def test_element_that_is_no_row_is_named(path: Path, element: Any) -> None:
    pipeline = Pipeline()
    pipeline.source([element]).to(SqliteSink(path, "t", columns=["n", "name"]))
    with pytest.raises(SinkError, match="'t'"):
        asyncio.run(pipeline.run())


@pytest.mark.parametrize("bad", [2**63, -(2**63) - 1, "\ud800"])
async def test_element_that_sqlite_cannot_hold_is_named(path: Path, bad: Any) -> None:
    to = SqliteSink(path, "t", columns=["n", "name"])
    await to.open()
    elements = [value(1), {"n": bad, "name": "this one"}, {"n": 2**63 - 1, "name": "é"}]
    with pytest.raises(SinkError, match=r"cannot write \{'n': .*, 'name': 'this one'\} to table 't'"):
        await to.write(elements, None)
    assert to.taken() == 0
    await to.close()


# ---------------------------------------------------------------------- sink with checkpoints


def sink(path: Path) -> SqliteSink:
    return SqliteSink(path, "t", columns=["n", "name"])


async def write(to: SqliteSink, *numbers: int) -> None:
    await to.write([value(number) for number in numbers], None)


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("has_epochs", [False, True])
async def test_database_that_is_moved_away_while_it_is_written_ends_the_job(
    path: Path, replaced: bool, has_epochs: bool
) -> None:
    to = sink(path)
    await (to.recover(None) if has_epochs else to.open())
    await write(to, 1)
    if has_epochs:
        await to.prepare(1)
    path.rename(path.with_suffix(".1"))  # noqa: ASYNC240
    if replaced:
        path.write_bytes(b"")  # noqa: ASYNC240
    with pytest.raises(SinkBroken, match="moved or replaced"):
        await (to.commit(1) if has_epochs else write(to, 2))
    await to.close()


@pytest.mark.parametrize(
    ("columns", "change", "expected"),
    [
        (["n", "name", "more"], "ADD COLUMN more NOT NULL DEFAULT 'none'", [(1, "x1", "none"), (2, "x2", 3)]),
        (["N", "NAME"], "ADD COLUMN more", [(1, "x1", None), (2, "x2", None)]),
        (["n"], "ADD COLUMN more", [(1, "x1", None), (2, None, None)]),
        (["more"], "ADD COLUMN more", [(1, "x1", None), (None, None, 3)]),
    ],
)
async def test_what_is_prepared_has_the_columns_of_the_run_that_staged_it(
    path: Path, columns: list[str], change: str, expected: list[Any]
) -> None:
    before = sink(path)
    await before.recover(None)
    await write(before, 1)
    position = await before.prepare(1)
    await before.close()
    execute(path, f"ALTER TABLE t {change}")
    for epoch in (2, 3):  # and again: what it finds then is what it has made itself
        after = SqliteSink(path, "t", columns=columns)
        await after.recover(position)
        assert rows(path) == expected[: epoch - 1]
        if epoch == 2:
            await after.write([{"n": 2, "N": 2, "name": "x2", "NAME": "x2", "more": 3}], None)
            position = await after.prepare(epoch)
        await after.close()


async def test_what_is_prepared_is_not_dropped_with_a_column_that_is_gone(path: Path) -> None:
    before = sink(path)
    await before.recover(None)
    await write(before, 1)
    position = await before.prepare(1)
    await before.close()
    execute(path, "ALTER TABLE t RENAME COLUMN name TO label")
    after = SqliteSink(path, "t", columns=["n", "label"])
    with pytest.raises(SinkError, match="no column named name"):
        await after.recover(position)
    await after.close()
    execute(path, "ALTER TABLE t RENAME COLUMN label TO name")
    again = sink(path)
    await again.recover(position)
    assert rows(path) == [(1, "x1")]
    await again.close()


async def test_columns_may_all_be_others_where_nothing_is_prepared(path: Path) -> None:
    before = sink(path)
    await before.recover(None)
    await before.close()
    execute(path, "DROP TABLE t", "CREATE TABLE t (a, b)")
    after = SqliteSink(path, "t", columns=["a", "b"])
    await after.recover(0)
    await after.write([{"a": 1, "b": 2}], None)
    await after.prepare(1)
    await after.commit(1)
    await after.close()
    assert rows(path) == [(1, 2)]


async def test_results_show_when_they_are_committed(path: Path) -> None:
    to = sink(path)
    await to.recover(None)
    await write(to, 1, 2)
    await to.prepare(1)
    await write(to, 3)
    assert rows(path) == []
    await to.commit(1)
    assert rows(path) == [(1, "x1"), (2, "x2")]
    await to.prepare(2)
    await to.commit(2)
    assert rows(path) == [(1, "x1"), (2, "x2"), (3, "x3")]
    await to.close()


async def test_epoch_that_was_not_committed_goes_with_the_next(path: Path) -> None:
    to = sink(path)
    await to.recover(None)
    await write(to, 1)
    await to.prepare(1)
    await write(to, 2)
    await to.prepare(2)
    await to.commit(2)
    assert len(rows(path)) == 2
    await to.close()


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("times", [1, 3])
async def test_recovered_to_a_prepared_position_it_holds_what_came_before(
    path: Path, committed: bool, times: int
) -> None:
    to = sink(path)
    await to.recover(None)
    await write(to, 1, 2)
    position = await to.prepare(1)
    if committed:
        await to.commit(1)
    await write(to, 3)
    await to.close()
    for _ in range(times):
        to = sink(path)
        await to.recover(position)
        await to.close()
    assert rows(path) == [(1, "x1"), (2, "x2")]
    assert rows(path, "SELECT count(*) FROM t__staged") == [(0,)]


async def test_recovered_to_the_position_before_it_takes_back_what_was_prepared(path: Path) -> None:
    to = sink(path)
    await to.recover(None)
    await write(to, 1)
    position = await to.prepare(1)
    await to.commit(1)
    await write(to, 2)
    await to.prepare(2)
    await to.close()
    to = sink(path)
    await to.recover(position)
    await write(to, 5)
    await to.prepare(3)
    await to.commit(3)
    await to.close()
    assert rows(path) == [(1, "x1"), (5, "x5")]


async def test_it_refuses_to_go_behind_what_was_committed(path: Path) -> None:
    to = sink(path)
    await to.recover(None)
    await write(to, 1)
    early = await to.prepare(1)
    await to.commit(1)
    await write(to, 2)
    await to.prepare(2)
    await to.commit(2)
    await to.close()
    to = sink(path)
    with pytest.raises(SinkError, match="later checkpoint"):
        await to.recover(early)
    await to.close()


async def test_it_refuses_another_database(path: Path) -> None:
    to = sink(path)
    with pytest.raises(SinkError, match="the same database"):
        await to.recover(7)
    await to.close()


def run_anew(path: Path, **options: Any) -> None:
    """The checkpoints were thrown away, the table was not."""
    pipeline = Pipeline()
    pipeline.source([value(1)], name="s").to(sink(path), name="t")
    asyncio.run(pipeline.run(checkpoints=Checkpoints(store=MemoryStore(), **options)))


def test_new_beginning_is_refused_unless_it_is_said_what_becomes_of_the_rows(path: Path) -> None:
    run_anew(path)
    with pytest.raises(SinkError, match=r"'t'.*store=, restore=.*ahead='allow_behind'.*ahead='start_over'"):
        run_anew(path)
    assert rows(path) == [(1, "x1")]
    run_anew(path, ahead="start_over")
    assert rows(path) == [(1, "x1")]
    run_anew(path, ahead="allow_behind")
    assert rows(path) == [(1, "x1"), (1, "x1")]


def test_rows_of_more_checkpoints_than_are_kept_cannot_be_taken_out(path: Path) -> None:
    run_anew(path, keep=1)
    with pytest.raises(SinkError, match="empty the table yourself"):
        run_anew(path, ahead="start_over")
    assert rows(path) == [(1, "x1")]


# ---------------------------------------------------------------------- back to an earlier checkpoint

LEASE = Lease(1, "place", Holder.here(0), 0)


async def begun(to: SqliteSink) -> SqliteSink:
    """At the very first start of a job that keeps three checkpoints."""
    to.writer = Writer(LEASE, 3, "refuse")
    await to.recover(None)
    return to


async def epochs(to: SqliteSink, *contents: list[dict[str, Any]]) -> list[int]:
    """The positions of epochs, each committed."""
    positions = []
    for epoch, written in enumerate(contents):
        await to.write(written, None)
        positions.append(await to.prepare(epoch))
        await to.commit(epoch)
    return positions


async def test_rows_since_a_savepoint_that_are_not_known_any_more_may_be_deleted_by_hand(path: Path) -> None:
    to = sink(path)
    await to.recover(None)
    savepoint, *_ = await epochs(to, [value(1)], [value(2)], [value(3)])
    await to.close()
    to = sink(path)
    to.writer = Writer(LEASE, 1, "start_over")
    with pytest.raises(SinkError, match=r"delete yourself what came after .* ahead='allow_behind'"):
        await to.can_recover(savepoint)
    execute(path, "DELETE FROM t WHERE n > 1")
    to.writer = Writer(LEASE, 1, "allow_behind")
    await to.can_recover(savepoint)
    await to.recover(savepoint)
    await epochs(to, [value(4)])
    await to.close()
    assert rows(path) == [(1, "x1"), (4, "x4")]


async def test_what_was_replaced_before_a_table_was_emptied_does_not_come_back(path: Path) -> None:
    execute(path, "CREATE TABLE t (n INTEGER PRIMARY KEY, name)")

    async def run(ahead: Any, *contents: dict[str, Any]) -> None:
        to = SqliteSink(path, "t", columns=["n", "name"], on_conflict="replace")
        # the checkpoints were thrown away: another store
        to.writer = Writer(Lease(1, os.urandom(4).hex(), Holder.here(0), 0), 2, ahead)
        try:
            await to.recover(None)
            await epochs(to, *([element] for element in contents))
        finally:
            await to.close()

    old = [{"n": 1, "name": f"{version}"} for version in range(4)]
    await run("refuse", *old)
    with pytest.raises(SinkError, match="empty the table yourself, and delete its row in asyncstream_sinks"):
        await run("start_over")
    execute(path, "DELETE FROM t", "DELETE FROM asyncstream_sinks")
    await run("refuse", value(2))
    await run("start_over", value(3))
    assert rows(path) == [(3, "x3")]


@pytest.mark.parametrize("on_conflict", ["fail", "ignore", "replace"])
@pytest.mark.parametrize("key", ["n INTEGER PRIMARY KEY", "n TEXT UNIQUE", "n"])
@pytest.mark.parametrize("back", [1, 2])
def test_it_goes_back_as_many_checkpoints_as_are_kept(
    path: Path, on_conflict: Any, key: str, back: int
) -> None:
    execute(path, f"CREATE TABLE t ({key}, name)", "INSERT INTO t VALUES (0, 'before')")
    may_repeat = on_conflict != "fail"
    contents = [
        [{"n": 3 * epoch + row, "name": f"{epoch}"} for row in range(1, 4)]
        + [{"n": 0, "name": f"again {epoch}"}] * may_repeat
        for epoch in range(4)
    ]

    def made(keep: int) -> SqliteSink:
        to = SqliteSink(path, "t", columns=["n", "name"], on_conflict=on_conflict)
        to.writer = Writer(LEASE, keep, "refuse")
        return to

    async def main() -> None:
        to = made(3)
        await to.recover(None)
        await epochs(to, *contents[: 4 - back])
        was = sorted(rows(path))
        position = await to.prepare(9)
        await epochs(to, *contents[4 - back :])
        assert sorted(rows(path)) != was
        await to.close()
        to = made(3)
        await to.can_recover(position)
        await to.recover(position)
        assert sorted(rows(path)) == was
        await epochs(to, *contents[4 - back :])
        await to.close()

    asyncio.run(main())
    whole = path.with_name("whole.sqlite")
    execute(whole, f"CREATE TABLE t ({key}, name)", "INSERT INTO t VALUES (0, 'before')")

    async def uninterrupted() -> None:
        to = SqliteSink(whole, "t", columns=["n", "name"], on_conflict=on_conflict)
        await to.recover(None)
        await epochs(to, *contents)
        await to.close()

    asyncio.run(uninterrupted())
    assert sorted(rows(path)) == sorted(rows(whole))


@pytest.mark.parametrize("is_committed", [False, True])
async def test_checkpoint_that_was_gone_behind_is_no_more_to_be_gone_on_from(
    path: Path, is_committed: bool
) -> None:
    """The newest was damaged, a job went on from the one before, and then the newest was mended."""

    to = await begun(sink(path))
    [early] = await epochs(to, [value(1)])
    await write(to, 2)
    mended = await to.prepare(7)
    if is_committed:
        await to.commit(7)
    await to.close()
    await to.recover(early)
    await epochs(to, [value(3)])
    await to.close()
    for _ in range(2):
        with pytest.raises(SinkError, match=r"took them back; go on from that one \(restore=\), or from one"):
            await to.can_recover(mended)
    await to.can_recover(early)
    assert rows(path) == [(1, "x1"), (3, "x3")]


async def test_position_behind_nothing_is_not_that_of_what_was_taken_back(path: Path) -> None:
    """A crash takes rows back, and the next checkpoint comes before any row is written anew."""

    to = await begun(sink(path))
    [early] = await epochs(to, [value(1)])
    await write(to, 2)
    void = await to.prepare(7)
    await to.close()
    await to.recover(early)
    [after] = await epochs(to, [])
    await to.close()
    assert after != void
    await to.can_recover(after)
    await to.recover(after)
    await to.close()
    with pytest.raises(SinkError, match="took them back"):
        await to.can_recover(void)
    assert rows(path) == [(1, "x1")]


@pytest.mark.parametrize("key", ["INTEGER PRIMARY KEY", "UNIQUE"])
async def test_rows_come_back_that_a_constraint_of_the_table_has_replaced(path: Path, key: str) -> None:
    execute(path, f"CREATE TABLE T (n {key} on conflict replace, name)")
    to = await begun(sink(path))
    early, _ = await epochs(to, [value(1), value(2)], [{"n": 2, "name": "other"}])
    assert rows(path) == [(1, "x1"), (2, "other")]
    await to.close()
    await to.recover(early)
    await to.close()
    assert rows(path) == [(1, "x1"), (2, "x2")]


@pytest.mark.parametrize("columns", ["rowid, n UNIQUE", "n UNIQUE, RowID, _rowid_", "n UNIQUE, rowid AS (7)"])
async def test_it_goes_back_where_a_column_has_the_name_of_the_rowid(path: Path, columns: str) -> None:
    execute(path, f"CREATE TABLE t ({columns})")
    names = [name for name in ("rowid", "_rowid_") if f"{name}," in f"{columns.lower()},"]

    def row(number: int) -> dict[str, int]:
        return {"n": number} | dict.fromkeys(names, 7)

    to = await begun(SqliteSink(path, "t", columns=["n", *names], on_conflict="replace"))
    early, _ = await epochs(to, [row(1), row(2)], [row(2), row(3)])
    await to.close()
    await to.recover(early)
    assert rows(path, "SELECT n FROM t ORDER BY n") == [(1,), (2,)]
    await epochs(to, [row(2), row(3)])
    await to.close()
    assert rows(path, "SELECT n FROM t ORDER BY n") == [(1,), (2,), (3,)]


@pytest.mark.parametrize("table", ["(n PRIMARY KEY, name) WITHOUT ROWID", "(n, name, rowid, _rowid_, oid)"])
async def test_table_without_rowid_cannot_go_back_and_says_so(path: Path, table: str) -> None:
    execute(path, f"CREATE TABLE t {table}")

    to = await begun(sink(path))
    early, late = await epochs(to, [value(1)], [value(2)])
    await to.close()
    with pytest.raises(SinkError, match="later checkpoint"):
        await to.can_recover(early)
    await to.can_recover(late)


def test_asking_changes_nothing(path: Path) -> None:
    async def main() -> int:
        to = sink(path)
        await to.can_recover(None)
        assert not os.listdir(path.parent)
        with pytest.raises(SinkError, match="the same database"):
            await to.can_recover(7)
        await to.recover(None)
        [early] = await epochs(to, [value(1)])
        await write(to, 2)
        await to.close()
        return early

    early = asyncio.run(main())
    before = path.read_bytes()
    asyncio.run(sink(path).can_recover(early))
    assert path.read_bytes() == before


async def test_database_of_an_earlier_version_is_gone_on_with(path: Path) -> None:
    execute(
        path,
        "CREATE TABLE t (n, name)",
        "INSERT INTO t VALUES (1, 'x1')",
        "CREATE TABLE asyncstream_sinks (name TEXT PRIMARY KEY, moved INTEGER NOT NULL)",
        "INSERT INTO asyncstream_sinks VALUES ('t', 1)",
        "CREATE TABLE t__staged (asyncstream_number INTEGER PRIMARY KEY AUTOINCREMENT, n, name)",
        "INSERT INTO t__staged VALUES (2, 2, 'x2')",
    )

    to = sink(path)
    with pytest.raises(SinkError, match="later checkpoint"):
        await to.can_recover(None)
    await to.recover(2)
    await epochs(to, [value(3)])
    await to.close()
    assert rows(path) == [(1, "x1"), (2, "x2"), (3, "x3")]


# ---------------------------------------------------------------------- one writer


def lease_of(number: int, place: str = "place") -> Lease:
    holder = Holder.here(0)
    enter(holder, lambda: True)
    return Lease(number, place, holder, 0)


async def test_job_that_was_followed_writes_nothing_more(path: Path) -> None:
    old, new = sink(path), sink(path)
    old.writer = Writer(lease_of(1), 3, "refuse")
    new.writer = Writer(lease_of(2), 3, "refuse")
    await old.recover(None)
    await write(old, 1)
    position = await old.prepare(1)
    await new.recover(position)
    for work in (write(old, 2), old.prepare(2), old.commit(1)):
        with pytest.raises(SinkBroken, match=r"taken over by process \d+"):
            await work
    with pytest.raises(SinkBroken, match="taken over"):
        await old.can_recover(position)
    await old.close()
    await epochs(new, [value(3)])
    await new.close()
    assert rows(path) == [(1, "x1"), (3, "x3")]


async def test_job_that_was_followed_by_one_that_has_ended_does_not_come_back(path: Path) -> None:
    """It was stopped after it had decided where to go on from, and before it did."""

    old, new = sink(path), sink(path)
    old.writer = Writer(lease_of(1), 3, "allow_behind")
    new.writer = Writer(lease_of(2), 3, "refuse")
    await old.can_recover(None)
    await new.recover(None)
    await epochs(new, [value(1)])
    await new.close()
    with pytest.raises(SinkBroken, match="taken over by process"):
        await old.recover(None)
    await old.close()
    assert rows(path) == [(1, "x1")]


async def test_nothing_changes_behind_a_fence_until_its_job_takes_over(path: Path) -> None:
    writing, starting, new = sink(path), sink(path), sink(path)
    for number, one in enumerate((writing, starting, new), 1):
        one.writer = Writer(lease_of(number), 3, "refuse")
    await new.fence()  # there is nothing to be kept out of
    assert not path.exists()  # noqa: ASYNC240
    await writing.recover(None)
    await write(writing, 1)
    position = await writing.prepare(1)
    await starting.fence()
    await starting.can_recover(position)
    await new.fence()
    await starting.fence()  # it comes too late
    for work in (write(writing, 2), writing.prepare(2), writing.commit(1)):
        with pytest.raises(SinkBroken, match="taken over by another job"):
            await work
    for work in (starting.can_recover(position), starting.recover(None)):
        with pytest.raises(SinkBroken, match="taken over by a later job"):
            await work
    await starting.close()
    await writing.close()
    assert rows(path) == []
    await new.recover(position)
    await epochs(new, [value(3)])
    await new.close()
    assert rows(path) == [(1, "x1"), (3, "x3")]


async def test_follower_can_go_where_it_has_decided_to(path: Path) -> None:
    """
    A job was stopped just before its two sinks were to commit, and wakes up when its follower, which goes
    back to the earliest checkpoint that is kept, has taken over the first of them: if the other committed
    now, it could not go back so far any more, and there would be no checkpoint that both can go to.
    """
    paths = (path, path.with_name("other.db"))
    old = [sink(one) for one in paths]
    for one in old:
        one.writer = Writer(lease_of(1), 2, "refuse")
        await one.recover(None)
    positions = []
    for epoch in (1, 2, 3):
        for one in old:
            await write(one, epoch)
        positions.append([await one.prepare(epoch) for one in old])
        for one in old if epoch < 3 else ():
            await one.commit(epoch)
    new = [sink(one) for one in paths]
    for one in new:
        one.writer = Writer(lease_of(2), 2, "refuse")
        await one.fence()
    position = positions[0]
    for one, kept in zip(new, position, strict=True):
        await one.can_recover(kept)
    await new[0].recover(position[0])
    with pytest.raises(SinkBroken, match="taken over"):
        await old[1].commit(3)
    await new[1].recover(position[1])
    for one in (*old, *new):
        await one.close()
    assert [rows(one) for one in paths] == 2 * [[(1, "x1")]]


async def test_table_of_an_earlier_version_gets_a_fence(path: Path) -> None:
    old, new, other = sink(path), sink(path), sink(path)
    old.writer = Writer(lease_of(1), 3, "refuse")
    new.writer = Writer(lease_of(2), 3, "refuse")
    other.writer = Writer(lease_of(7, "elsewhere"), 3, "allow_behind")
    await old.recover(None)
    await old.close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE asyncstream_sinks DROP COLUMN fence")
    await other.fence()  # that is no matter of another store
    await new.can_recover(None)
    await new.fence()
    with pytest.raises(SinkBroken, match="taken over by a later job"):
        await old.can_recover(None)
    await other.can_recover(None)
    await new.recover(None)
    await new.close()


async def test_job_with_another_store_is_refused_until_the_first_has_ended(path: Path) -> None:
    first, second = sink(path), sink(path)
    first.writer = Writer(lease_of(1, "here"), 3, "refuse")
    second.writer = Writer(lease_of(9, "there"), 3, "refuse")
    await first.recover(None)
    for ask in (second.can_recover, second.recover):
        with pytest.raises(SinkError, match=r"written to by process \d+.*elsewhere"):
            await ask(None)
    await second.close()
    await epochs(first, [])
    await first.close()
    await second.recover(None)
    await second.close()


@pytest.mark.parametrize(
    "other", ["t__staged", "T__STAGED", "t__undo", "asyncstream_sinks", "Asyncstream_Voids"]
)
async def test_a_table_that_is_kept_beside_another_is_none_for_results(path: Path, other: str) -> None:
    """What was staged of the one came into the other, twice or not at all."""
    first = SqliteSink(path, "t", columns=["n"])
    await first.recover(None)
    await first.write([{"n": 1}], None)
    await first.commit(await first.prepare(1))
    second = SqliteSink(path, other, columns=["n"])
    for going_on in (second.open, partial(second.recover, None)):
        with pytest.raises(SinkError, match="is one that sinks with checkpoints keep for others"):
            await going_on()
        await second.close()
    await first.close()
    assert rows(path) == [(1,)]


@pytest.mark.parametrize("name", ["t__staged", "t__undo"])
async def test_a_table_of_the_users_own_is_not_taken_for_one_that_is_kept_beside(
    path: Path, name: str
) -> None:
    execute(path, f"CREATE TABLE {name} (a, b)", f"INSERT INTO {name} VALUES (1, 2)")
    to = sink(path)
    for going_on in (to.can_recover, to.recover):
        with pytest.raises(SinkError, match=f"needs a table {name} beside it, and there is another"):
            await going_on(None)
    await to.close()
    assert rows(path, f"SELECT * FROM {name}") == [(1, 2)]


async def test_a_table_of_results_is_not_staged_in_by_another(path: Path) -> None:
    first, second = (SqliteSink(path, name, columns=["n"]) for name in ("t__staged", "t"))
    await first.open()
    await first.write([{"n": 1}], None)
    with pytest.raises(SinkError, match="needs a table t__staged beside it, and there is another"):
        await second.recover(None)
    await first.close()
    await second.close()
    assert rows(path, "SELECT * FROM t__staged") == [(1,)]


def test_two_sinks_share_a_database(path: Path) -> None:
    pipeline = Pipeline()
    source = pipeline.source([value(n) for n in range(3000)], name="s")
    for name in ("a", "b"):
        source.to(SqliteSink(path, name, columns=["n"]), name=name)
    asyncio.run(pipeline.run(checkpoints=Checkpoints(store=MemoryStore(), every=0.01)))
    for name in ("a", "b"):
        assert rows(path, f"SELECT n FROM {name} ORDER BY rowid") == [(n,) for n in range(3000)]


def test_a_table_is_the_same_in_small_and_capital_letters(path: Path) -> None:
    def job(*tables: str, store: MemoryStore, count: int = 5) -> None:
        pipeline = Pipeline()
        source = pipeline.source([value(n) for n in range(count)], name="s")
        for number, table in enumerate(tables):
            source.to(SqliteSink(path, table, columns=["n", "name"]), name=f"to {number}")
        asyncio.run(pipeline.run(checkpoints=Checkpoints(store=store)))

    with pytest.raises(SinkError, match="is used by another step of this job"):
        job("t", "T", store=MemoryStore())
    path.unlink()
    store = MemoryStore()
    job("t", store=store)
    job("T", store=store, count=8)
    assert rows(path) == [(n, f"x{n}") for n in range(8)]
    with pytest.raises(SinkError, match="holds results of a later checkpoint"):
        job("T", store=MemoryStore())


class WatchedCursor(sqlite3.Cursor):
    """Tells where it ends."""

    ends: ClassVar[list[int]] = []

    def __del__(self) -> None:
        self.ends.append(threading.get_ident())


class WatchedConnection(sqlite3.Connection):
    def execute(self, *arguments: Any) -> Any:
        return self.cursor(WatchedCursor).execute(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        return self.cursor(WatchedCursor).executemany(*arguments)


async def test_no_cursor_ends_where_another_thread_may_use_its_statement(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WatchedCursor, "ends", [])
    with monkeypatch.context() as watched:
        watched.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=WatchedConnection))
        at_once, by_epochs, source = sink(path), sink(path), SqliteSource[Any](path, "t")
        await at_once.open()
        await write(at_once, 1, 2)
        await at_once.close()
        await by_epochs.recover(None)
        await epochs(by_epochs, [value(3)], [value(4)])
        await by_epochs.close()
        await source.open()
        assert await source.read()
        await source.close()
    assert WatchedCursor.ends
    assert threading.get_ident() not in WatchedCursor.ends


def test_a_disk_that_hangs_keeps_no_event_loop_from_ending(path: Path) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    database = Database(str(path))

    def hang(connection: sqlite3.Connection) -> None:
        begun.set()
        assert goes_on.wait(60)

    async def main() -> None:
        doing = asyncio.ensure_future(database.do(hang))
        assert await asyncio.to_thread(begun.wait, 60)
        doing.cancel()

    loop = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    loop.start()
    loop.join(20)
    has_ended = not loop.is_alive()
    goes_on.set()
    asyncio.run(database.close())
    assert has_ended


@pytest.mark.parametrize("columns", ["n", [], ["n", "n"], ["n", "N"], [1]])
def test_wrong_columns_are_refused(path: Path, columns: Any) -> None:
    with pytest.raises(PipelineError, match="columns"):
        SqliteSink(path, "t", columns=columns)
