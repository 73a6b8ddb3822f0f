"""A table as a source and as a sink: rows in order, results once, and nothing half done to be seen."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

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


def test_reading_goes_on_behind_a_position(path: Path) -> None:
    filled(path, 25)

    async def main() -> None:
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

    asyncio.run(main())


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
    filled(path, 1)
    with pytest.raises(SourceError, match="no such table"):
        asyncio.run(main("other"))


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


# ---------------------------------------------------------------------- sink with checkpoints


def sink(path: Path) -> SqliteSink:
    return SqliteSink(path, "t", columns=["n", "name"])


async def write(to: SqliteSink, *numbers: int) -> None:
    await to.write([value(number) for number in numbers], None)


def test_results_show_when_they_are_committed(path: Path) -> None:
    async def main() -> None:
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

    asyncio.run(main())


def test_epoch_that_was_not_committed_goes_with_the_next(path: Path) -> None:
    async def main() -> None:
        to = sink(path)
        await to.recover(None)
        await write(to, 1)
        await to.prepare(1)
        await write(to, 2)
        await to.prepare(2)
        await to.commit(2)
        assert len(rows(path)) == 2
        await to.close()

    asyncio.run(main())


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("times", [1, 3])
def test_recovered_to_a_prepared_position_it_holds_what_came_before(
    path: Path, committed: bool, times: int
) -> None:
    async def main() -> None:
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

    asyncio.run(main())


def test_recovered_to_the_position_before_it_takes_back_what_was_prepared(path: Path) -> None:
    async def main() -> None:
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

    asyncio.run(main())


def test_it_refuses_to_go_behind_what_was_committed(path: Path) -> None:
    async def main() -> None:
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

    asyncio.run(main())


def test_it_refuses_another_database(path: Path) -> None:
    async def main() -> None:
        to = sink(path)
        with pytest.raises(SinkError, match="the same database"):
            await to.recover(7)
        await to.close()

    asyncio.run(main())


def test_new_beginning_adds_to_the_table(path: Path) -> None:
    """The checkpoints were thrown away, the table was not."""

    def run() -> None:
        pipeline = Pipeline()
        pipeline.source([value(1)], name="s").to(sink(path), name="t")
        asyncio.run(pipeline.run(checkpoints=Checkpoints(store=MemoryStore())))

    run()
    run()
    assert rows(path) == [(1, "x1"), (1, "x1")]


def test_two_sinks_share_a_database(path: Path) -> None:
    pipeline = Pipeline()
    source = pipeline.source([value(n) for n in range(3000)], name="s")
    for name in ("a", "b"):
        source.to(SqliteSink(path, name, columns=["n"]), name=name)
    asyncio.run(pipeline.run(checkpoints=Checkpoints(store=MemoryStore(), every=0.01)))
    for name in ("a", "b"):
        assert rows(path, f"SELECT n FROM {name} ORDER BY rowid") == [(n,) for n in range(3000)]


@pytest.mark.parametrize("columns", ["n", [], ["n", "n"], [1]])
def test_wrong_columns_are_refused(path: Path, columns: Any) -> None:
    with pytest.raises(PipelineError, match="columns"):
        SqliteSink(path, "t", columns=columns)
