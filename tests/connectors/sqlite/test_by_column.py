"""A table read in the order of a column: rows of one value, rows that come to it late, what is refused."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream import Checkpoints, MemoryStore, Pipeline, PipelineError, SourceError, SqliteSource
from asyncstream.testing.contracts.lives import CODEC
from tests.tiers import examples

INDEXED = ("CREATE TABLE t (id INTEGER PRIMARY KEY, at NOT NULL)", "CREATE INDEX t_at ON t (at)")


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


def insert(path: Path, *rows: tuple[Any, ...]) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for row in rows:
            database.execute(f"INSERT INTO t VALUES ({', '.join('?' * len(row))})", row)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.sqlite"


async def seen(source: SqliteSource[Any], position: Any = None) -> tuple[list[Any], Any]:
    """The ids of what it gives behind `position`, and the position behind that, as a checkpoint keeps it."""
    await source.open()
    try:
        if position is not None:
            await source.can_seek(position)
            await source.seek(position)
        ids: list[Any] = []
        while (batch := await source.read()) is not None:
            ids += [row["id"] for row in batch.values]
        return ids, CODEC.decode(CODEC.encode(source.position()))
    finally:
        await source.close()


def run(path: Path, position: Any = None, *, by: str = "at", batch: int = 2) -> tuple[list[Any], Any]:
    return asyncio.run(seen(SqliteSource(path, "t", by=by, batch=batch), position))


# ---------------------------------------------------------------------- the order


def test_rows_come_in_the_order_of_the_column_and_of_the_rowid_within_a_value(path: Path) -> None:
    execute(path, *INDEXED)
    insert(path, (1, 30), (2, 10), (3, 20), (4, 10), (5, 10))
    assert run(path)[0] == [2, 4, 5, 3, 1]


def test_pipeline_gives_the_rows_as_they_are(path: Path) -> None:
    execute(path, *INDEXED)
    insert(path, (1, "b"), (2, "a"))
    found: list[Any] = []
    pipeline = Pipeline()
    pipeline.source(SqliteSource(path, "t", by="at"), name="s").to(found, name="t")
    asyncio.run(pipeline.run(checkpoints=Checkpoints(store=MemoryStore())))
    assert found == [{"id": 2, "at": "a"}, {"id": 1, "at": "b"}]


def test_row_that_comes_to_the_last_value_with_a_smaller_key_is_seen(path: Path) -> None:
    """Such as one whose time is set anew in the second that was read last."""
    execute(path, *INDEXED)
    insert(path, (1, 5), (7, 9), (8, 9))
    ids, position = run(path)
    assert ids == [1, 7, 8]
    execute(path, "UPDATE t SET at = 9 WHERE id = 1")
    insert(path, (3, 9), (9, 9), (2, 10), (4, 8))
    assert run(path, position)[0] == [9, 1, 3, 2]


def test_row_whose_value_grows_is_read_again(path: Path) -> None:
    execute(path, *INDEXED)
    insert(path, (1, 1), (2, 2))
    position = run(path)[1]
    execute(path, "UPDATE t SET at = 3 WHERE id = 1")
    assert run(path, position)[0] == [1]


@pytest.mark.parametrize(
    "values",
    [
        [-1, 0, 0.5, 1, 2**63 - 1, "", "B", "a", "é", b"", b"\xff"],
        [f"2026-03-01 00:00:{second:02d}.5" for second in range(9)],
    ],
)
def test_values_of_every_type_are_gone_on_from(path: Path, values: Sequence[Any]) -> None:
    execute(path, *INDEXED)
    for number, value in enumerate(values):
        insert(path, (2 * number, value), (2 * number + 1, value))
    ids: list[Any] = []
    position = None
    for number in range(len(values)):
        source = SqliteSource(path, "t", by="at", batch=1)
        for at in (2 * number, 2 * number + 1):
            batch, position = asyncio.run(one_batch(source, position))
            ids += batch
            assert ids[-1] == at
    assert run(path, position)[0] == []


async def one_batch(source: SqliteSource[Any], position: Any) -> tuple[list[Any], Any]:
    await source.open()
    try:
        if position is not None:
            await source.seek(position)
        batch = await source.read()
        ids = [] if batch is None else [row["id"] for row in batch.values]
        return ids, CODEC.decode(CODEC.encode(source.position()))
    finally:
        await source.close()


def test_texts_that_the_collation_of_the_column_holds_to_be_one_are_two(path: Path) -> None:
    execute(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, at TEXT COLLATE NOCASE)")
    insert(path, (1, "a"), (2, "A"), (3, "b"), (4, "B"), (5, "a"))
    assert run(path, batch=1)[0] == [2, 4, 1, 5, 3]


def test_key_that_is_the_column_alone(path: Path) -> None:
    execute(path, "CREATE TABLE t (id TEXT PRIMARY KEY, at) WITHOUT ROWID")
    insert(path, ("b", 1), ("a", 1))
    ids, position = run(path, by="id", batch=1)
    assert ids == ["a", "b"]
    insert(path, ("c", 0))
    assert run(path, position, by="id")[0] == ["c"]


def test_columns_may_have_the_names_of_the_rowid(path: Path) -> None:
    execute(path, "CREATE TABLE t (id, rowid, _rowid_)", "CREATE INDEX i ON t (rowid)")
    insert(path, (1, 5, 0), (2, 5, 0), (3, 4, 0))
    assert run(path, by="ROWID", batch=1)[0] == [3, 1, 2]


TABLES = {
    "rowid": "CREATE TABLE t (id INTEGER PRIMARY KEY, part, at NOT NULL)",
    "primary key": "CREATE TABLE t (id INTEGER, part, at NOT NULL, PRIMARY KEY (part, id)) WITHOUT ROWID",
}

writes = st.tuples(st.just("write"), st.integers(0, 12), st.sampled_from([0, 0, 1]))
reads = st.tuples(st.just("read"), st.integers(1, 4), st.booleans())


@settings(max_examples=examples(60))
@given(st.sampled_from(sorted(TABLES)), st.booleans(), st.lists(writes | reads, max_size=30))
def test_restarts_among_rows_of_one_value_lose_and_double_nothing(
    table: str, is_text: bool, steps: list[tuple[str, int, int]]
) -> None:
    """
    Rows are written with values that never decrease, read, and read on from checkpoints, in any order. At the
    end the rest is read: thirteen keys at most.
    """

    async def main(path: Path) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        given_out: list[tuple[Any, Any]] = []
        at: dict[int, Any] = {}
        now = 0
        position: Any = None
        source: SqliteSource[Any] | None = None
        for kind, number, flag in [*steps, *[("read", 4, True)] * 5]:
            if kind == "write":
                now += flag
                value = f"t{now:04d}" if is_text else now
                if at.get(number) != value:
                    with closing(sqlite3.connect(path)) as database, database:
                        query = "INSERT OR REPLACE INTO t VALUES (?, ?, ?)"
                        database.execute(query, (number, f"{number % 3}", value))
                    at[number] = value
                continue
            if source is None or flag:
                if source is not None:
                    await source.close()
                source = SqliteSource(path, "t", by="at", batch=number)
                await source.open()
                if position is not None:
                    await source.seek(position)
            batch = await source.read()
            given_out += [(row["id"], row["at"]) for row in (batch.values if batch else [])]
            position = CODEC.decode(CODEC.encode(source.position()))
        if source is not None:
            await source.close()
        return given_out, list(at.items())

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.sqlite"
        execute(path, TABLES[table], "CREATE INDEX t_at ON t (at)")
        given_out, there = asyncio.run(main(path))
    assert [row for row, times in Counter(given_out).items() if times > 1] == []
    assert set(there) <= set(given_out)
    values = [value for _, value in given_out]
    assert values == sorted(values)


# ---------------------------------------------------------------------- what is refused


def test_null_is_refused_before_and_while_it_reads(path: Path) -> None:
    execute(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, at)", "CREATE INDEX i ON t (at)")
    insert(path, (1, 5), (2, None))
    message = "by column 'at': it is NULL in row 2, .*declare the column NOT NULL"
    with pytest.raises(SourceError, match=message):
        run(path)

    async def later() -> None:
        source = SqliteSource(path, "t", by="at")
        await source.open()
        try:
            insert(path, (3, None))
            await source.read()
        finally:
            await source.close()

    execute(path, "DELETE FROM t WHERE at IS NULL")
    with pytest.raises(SourceError, match="it is NULL in row 3"):
        asyncio.run(later())


def test_column_that_is_not_there_is_refused_with_those_that_are(path: Path) -> None:
    execute(path, *INDEXED)
    source = SqliteSource(path, "t", by="changed")
    message = "table 't' of .* by column 'changed': it has only id, at; without by="
    with pytest.raises(SourceError, match=message):
        asyncio.run(seen(source))
    with pytest.raises(SourceError, match=message):
        asyncio.run(source.can_seek({"by": "changed", "value": 1, "last": 1, "given": [1]}))


def test_table_that_is_not_there_and_view_are_refused(path: Path) -> None:
    execute(path, *INDEXED, "CREATE VIEW v AS SELECT * FROM t")
    with pytest.raises(SourceError, match="no such table"):
        asyncio.run(seen(SqliteSource(path, "other", by="at")))
    for by in ("at", None):
        with pytest.raises(SourceError, match="it is a view"):
            asyncio.run(seen(SqliteSource(path, "v", by=by)))


def test_table_whose_columns_hide_its_rowid_is_refused(path: Path) -> None:
    execute(path, "CREATE TABLE t (id, rowid, _rowid_, oid)")
    with pytest.raises(SourceError, match="hide its rowid"):
        run(path, by="id")


@pytest.mark.parametrize(
    ("statements", "is_warned"),
    [
        (["CREATE TABLE t (id, at)"], True),
        (["CREATE TABLE t (id, at)", "CREATE INDEX i ON t (id, at)"], True),
        (["CREATE TABLE t (id, at)", "CREATE INDEX i ON t (at) WHERE id > 5"], True),
        (["CREATE TABLE t (id, at)", "CREATE INDEX i ON t (at COLLATE NOCASE)"], True),
        (["CREATE TABLE t (id, at TEXT COLLATE NOCASE PRIMARY KEY)"], True),
        (["CREATE TABLE t (id, at)", "CREATE INDEX i ON t (at, id)"], False),
        (["CREATE TABLE t (id, at UNIQUE)"], False),
        (["CREATE TABLE t (id, at INTEGER PRIMARY KEY)"], False),
        (["CREATE TABLE t (id, at, PRIMARY KEY (at, id)) WITHOUT ROWID"], False),
    ],
)
def test_column_without_an_index_is_warned_of(
    path: Path, caplog: pytest.LogCaptureFixture, statements: list[str], is_warned: bool
) -> None:
    execute(path, *statements)
    insert(path, (1, 2), (2, 1))
    with caplog.at_level(logging.WARNING):
        assert run(path)[0] == [2, 1]
    assert [record.message.count('CREATE INDEX ... ON "t" ("at")') for record in caplog.records] == (
        [1] * is_warned
    )


def test_table_that_never_had_the_value_of_a_position_is_refused(path: Path) -> None:
    execute(path, *INDEXED)
    insert(path, (1, 3))
    position = {"by": "at", "value": 7, "last": 1, "given": [1]}
    message = "cannot go on behind at 7 of table 't' .*: it has none behind 3. Put the database back"
    with pytest.raises(SourceError, match=message):
        asyncio.run(SqliteSource(path, "t", by="at").can_seek(position))
    with pytest.raises(SourceError, match=message):
        run(path, position)
    execute(path, "DELETE FROM t")
    with pytest.raises(SourceError, match="it has no row"):
        run(path, position)


def test_position_before_all_rows_fits_an_empty_table(path: Path) -> None:
    execute(path, *INDEXED)
    position = run(path)[1]
    insert(path, (1, 3))
    assert run(path, position)[0] == [1]


def test_position_of_another_order_is_refused(path: Path) -> None:
    execute(path, *INDEXED)
    insert(path, (1, 3))
    by_column = run(path)[1]
    by_rowid = asyncio.run(seen(SqliteSource(path, "t")))[1]
    with pytest.raises(SourceError, match=r"in the order of column 'at' .*it was read in the order of rowid"):
        run(path, by_rowid)
    with pytest.raises(SourceError, match=r"column 'id' .*it was read in the order of column 'at'"):
        run(path, by_column, by="id")
    with pytest.raises(SourceError, match=r"in the order of rowid .*it was read in the order of column 'at'"):
        asyncio.run(seen(SqliteSource(path, "t"), by_column))


@pytest.mark.parametrize("by", ["", 7, ("at",)])
def test_wrong_name_of_a_column_is_refused_at_once(path: Path, by: Any) -> None:
    with pytest.raises(PipelineError, match="by: expected a non-empty text"):
        SqliteSource(path, "t", by=by)


class Row(NamedTuple):
    id: int
    at: int


def test_row_that_is_none_of_the_model_is_named_behind_those_before_it(path: Path) -> None:
    execute(path, *INDEXED)
    insert(path, (1, 2), (2, 1), (3, "x"))

    async def main() -> None:
        source = SqliteSource(path, "t", by="at", model=Row)
        await source.open()
        try:
            batch = await source.read()
            assert batch is not None
            assert batch.values == [Row(2, 1), Row(1, 2)]
            with pytest.raises(SourceError, match=r"row 3 \(at 'x'\) of table 't'.*field at"):
                await source.read()
        finally:
            await source.close()

    asyncio.run(main())
