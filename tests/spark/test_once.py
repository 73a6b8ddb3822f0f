"""Micro-batches written once into a database, without Spark: what a crash leaves, and what is refused."""

from __future__ import annotations

import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any, ClassVar

import psycopg
import pytest
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, DecimalType, StructField, StructType, TimestampNTZType, TimestampType

from asyncstream import PipelineError, SinkError
from asyncstream.runtime.spark import once_in_database, once_in_delta, once_in_folders
from asyncstream.runtime.spark.micro_batch import REMEMBERED

RUN, NEXT_RUN = "5d1c9e0a-0f5e-4a55-8f0b-2f0f7b1f3a10", "5d1c9e0a-0f5e-4a55-8f0b-2f0f7b1f3a11"


class Computed:
    """
    Rows of which it is only known that Spark has been asked to compute them.

    Args:
        run: of the query that they are of, or a job group of the user's; None: Spark does not tell.
        what: others are computed otherwise.
    """

    columns: Sequence[str] = ("v",)

    def __init__(self, run: str | None = None, what: int = 0) -> None:
        self.times = 0
        self.is_kept = False
        self.semanticHash = lambda: what
        if run is not None:
            told = {"sql.streaming.queryId": "q", "spark.jobGroup.id": run}
            self.sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(getLocalProperty=told.get))

    @property
    def write(self) -> Computed:
        return self

    def format(self, name: str) -> Computed:
        return self

    def options(self, **options: str) -> Computed:
        return self

    def mode(self, name: str) -> Computed:
        return self

    def save(self, path: str | None = None) -> None:
        if not (self.is_kept and self.times):
            self.times += 1

    def localCheckpoint(self) -> Computed:
        self.is_kept = True
        self.save()
        return self


def insert(rows: Any, connection: Any) -> None:
    connection.cursor().execute("INSERT INTO out VALUES (1)")


def count_in(connection: Any) -> Any:
    return connection.execute("SELECT count(*) FROM out").fetchone()[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        connection.execute("CREATE TABLE out (v)")
    return tmp_path / "x.db"


def test_micro_batch_is_written_once_and_by_each_query(path: Path) -> None:
    mine = once_in_database(lambda: sqlite3.connect(path), insert, query="mine")
    other = once_in_database(lambda: sqlite3.connect(path), insert, query="other")
    given = [(mine, 0), (mine, 0), (mine, 1), (mine, 1), (other, 0), (other, 5), (other, 5)]
    batches = [Computed() for _ in given]
    for (write, number), rows in zip(given, batches, strict=True):
        write(rows, number)
    with closing(sqlite3.connect(path)) as connection:
        assert count_in(connection) == 4
        known = connection.execute("SELECT * FROM asyncstream_batches ORDER BY query").fetchall()
    assert known == [("mine", 1), ("other", 5)]
    assert {rows.times for rows in batches} == {1}, "also what is left out: Spark's own state goes on with it"


def test_function_that_uses_its_rows_twice_has_them_computed_once(path: Path) -> None:
    """Calls may answer otherwise the second time, and Spark cannot always notice that."""

    def write(rows: Any, connection: Any) -> None:
        rows.write.save("beside")
        rows.write.save("beside too")
        insert(rows, connection)

    rows = Computed()
    once_in_database(lambda: sqlite3.connect(path), write, query="q")(rows, 0)
    assert rows.times == 1
    several = {"minutes": Computed()}  # which are kept where they are divided
    once_in_database(lambda: sqlite3.connect(path), insert, query="q")(several, 1)
    assert several["minutes"].times == 0


def test_query_that_goes_on_from_an_older_checkpoint_is_refused(path: Path) -> None:
    """Its micro-batches have numbers that were written, and perhaps other rows, which would be left out."""
    once = once_in_database(lambda: sqlite3.connect(path), insert, query="q")
    for number in (0, 1, 2, 3):
        once(Computed(), number)
    with pytest.raises(SinkError, match="micro-batch 3 has been written, and Spark comes with 2"):
        once(Computed(), 2)
    with closing(sqlite3.connect(path)) as connection:
        assert count_in(connection) == 4
        connection.execute("DELETE FROM out WHERE rowid > 2")
        connection.execute("UPDATE asyncstream_batches SET batch = 1")
        connection.commit()
    once(Computed(), 2)
    with closing(sqlite3.connect(path)) as connection:
        assert count_in(connection) == 3


def test_two_parts_of_a_micro_batch_under_one_number_are_refused(path: Path) -> None:
    """The second one would be left out, or put in the place of the first, as what comes again."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path)

    makers: list[Callable[[], Callable[[Any, int], None]]] = [
        lambda: once_in_database(connect, lambda rows, connection: insert(rows, connection)),
        lambda: once_in_folders("out"),
        lambda: once_in_delta("out"),
    ]
    for make in makers:
        first, second = make(), make()
        first(Computed(RUN), 0)
        first(Computed(RUN), 0)  # it tries again, for something beside it has failed
        for again in (first, second):
            with pytest.raises(PipelineError, match="something of micro-batch 0 has been written there"):
                again(Computed(RUN, 1), 0)
        second(Computed(NEXT_RUN), 0)  # after a crash
        first(Computed(NEXT_RUN), 1)
    with pytest.raises(PipelineError, match="something of micro-batch 1 has been written there"):
        once_in_database(connect, insert)(Computed(NEXT_RUN), 1)  # the same rows, of which it takes others
    beside = once_in_database(connect, insert, ledger="of_the_second")
    beside(Computed(NEXT_RUN), 1)
    with closing(sqlite3.connect(path)) as connection:
        assert count_in(connection) == 3


def test_two_parts_under_one_number_are_refused_over_spark_connect(path: Path) -> None:
    """It tells nothing of the micro-batch, but has a process for each run."""

    class Remote(Computed):
        __module__ = "pyspark.sql.connect.dataframe"

    once = once_in_database(lambda: sqlite3.connect(path), insert, query="over Connect")
    for number in (0, 0, 1):
        once(Remote(), number)
    with pytest.raises(PipelineError, match="something of micro-batch 1 has been written there"):
        once(Remote(what=1), 1)


def test_two_parts_under_one_number_are_refused_when_the_query_is_started_again_too(path: Path) -> None:
    """The number is that of the first part, which is there; the second has been left out."""
    parts = [once_in_database(lambda: sqlite3.connect(path), insert) for _ in range(2)]
    for run in (RUN, NEXT_RUN):
        parts[0](Computed(run, 0), 0)
        with pytest.raises(PipelineError, match="something of micro-batch 0 has been written there"):
            parts[1](Computed(run, 1), 0)


def test_parts_in_databases_of_their_own_may_be_tried_again(path: Path) -> None:
    """Each has its own numbers, though the table of numbers has the same name in both."""
    other = path.with_name("other.db")
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE out (v)")
    parts = [once_in_database(partial(sqlite3.connect, each), insert) for each in (path, other)]
    for run in (RUN, RUN, NEXT_RUN):  # for something beside them has failed, and after a crash
        for what, part in enumerate(parts):
            part(Computed(run, what), 0)
    for each in (path, other):
        with closing(sqlite3.connect(each)) as connection:
            assert count_in(connection) == 1


def test_query_that_is_started_again_in_a_job_group_of_the_users_goes_on(path: Path) -> None:
    """Only the group that Spark gives jobs, a run's identity, tells one run of the query from the next."""
    once = once_in_database(lambda: sqlite3.connect(path), insert)
    for run in range(2):
        once(Computed("nightly", run), 0)
    with closing(sqlite3.connect(path)) as connection:
        assert count_in(connection) == 1


def test_of_many_queries_only_the_last_are_remembered(path: Path) -> None:
    """A driver may start any number of them; what has written is not kept alive for each."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path)

    class Writes:
        def __call__(self, rows: Any, connection: Any) -> None:
            insert(rows, connection)

    write = Writes()
    written_by = weakref.ref(write)
    once_in_database(connect, write, query="of before")(Computed(RUN), 0)
    del write
    for number in range(REMEMBERED):
        once_in_folders("out", query=f"of later {number}")(Computed(RUN), 0)
    assert written_by() is None


def test_rows_that_delta_leaves_out_are_computed() -> None:
    """It knows their number, and looks at no more; Spark's own state goes on with them."""

    class LeftOut(Computed):
        def save(self, path: str | None = None) -> None:
            if path is None:
                super().save()

    once = once_in_delta("left/out", query="q")
    known, more = LeftOut(RUN), Computed(RUN)
    once(known, 3)
    once(more, 4)
    after_a_crash = Computed(NEXT_RUN)
    once(after_a_crash, 5)
    assert (known.times, more.times, after_a_crash.times) == (1, 1, 1)
    untold = LeftOut()  # by Spark, which run it is
    once(untold, 6)
    assert untold.times == 1


@pytest.mark.parametrize("column", ["batch", "Query"])
def test_column_that_the_folders_would_hide_is_refused(column: str) -> None:
    rows = Computed(RUN)
    rows.columns = ("v", column)
    with pytest.raises(PipelineError, match=f"the rows have a column '{column}', in place of which"):
        once_in_folders("hidden")(rows, 0)
    assert not rows.times


class Inserted(sqlite3.Cursor):
    """Tells what is inserted, which need not be of types that SQLite knows."""

    rows: ClassVar[list[Any]] = []

    def executemany(self, statement: str, rows: Any, /) -> Inserted:
        self.rows.extend(rows)
        return self


class Inserting(sqlite3.Connection):
    def cursor(self, factory: Any = Inserted) -> Any:
        return super().cursor(factory)


def test_points_in_time_have_their_zone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"at": TimestampType(), "times": ArrayType(TimestampType()), "local": TimestampNTZType()}
    # 01:30 in New York, for the first time and for the second
    hours = [datetime(2024, 11, 3, hour, 30, tzinfo=UTC) for hour in (5, 6)]
    local = datetime(2024, 11, 3, 1, 30)

    class Timed(Computed):
        columns = tuple(kinds)
        schema = StructType([StructField(name, kind) for name, kind in kinds.items()])

        def toLocalIterator(self) -> Iterator[Row]:
            for hour in hours:
                at = TimestampType().fromInternal(int(hour.timestamp()) * 1_000_000)
                yield Row(at, [at, None], local)
            yield Row(None, None, None)

    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        once_in_database(lambda: sqlite3.connect(path, factory=Inserting), "out", query="q")(Timed(), 0)
    finally:
        monkeypatch.undo()
        time.tzset()
    expected: list[Any] = [[hour, [hour, None], local] for hour in hours]
    assert [*Inserted.rows] == [*expected, [None, None, None]]


def test_value_that_the_database_has_no_type_for_is_told_with_its_columns(path: Path) -> None:
    class Exact(Computed):
        schema = StructType([StructField("v", DecimalType())])

        def toLocalIterator(self) -> Iterator[Row]:
            yield Row(Decimal(1))

    with pytest.raises(sqlite3.Error, match="not supported") as caught:
        once_in_database(lambda: sqlite3.connect(path), "out", query="q")(Exact(), 0)
    (note,) = caught.value.__notes__
    assert 'into the columns "v" of "out"; what the database has no type for, Spark is to cast' in note


def test_what_writes_one_output_is_not_for_several() -> None:
    outputs: Any = {"minutes": Computed(RUN)}
    for once in (once_in_folders("several"), once_in_delta("several")):
        with pytest.raises(PipelineError, match=r"several: these are outputs by their names; write each"):
            once(outputs, 0)


def test_what_fails_leaves_neither_rows_nor_number(path: Path) -> None:
    def failing(rows: Any, connection: Any) -> None:
        insert(rows, connection)
        raise RuntimeError("the disk is full")

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path)

    with pytest.raises(RuntimeError, match="the disk is full"):
        once_in_database(connect, failing, query="q")(Computed(), 0)
    with closing(connect()) as connection:
        assert count_in(connection) == 0
    once_in_database(connect, insert, query="q")(Computed(), 0)
    with closing(connect()) as connection:
        assert count_in(connection) == 1


def test_transaction_that_is_not_one_is_refused(path: Path) -> None:
    by_itself = once_in_database(lambda: sqlite3.connect(path, isolation_level=None), insert, query="q")
    once = once_in_database(lambda: sqlite3.connect(path), insert, query="q")
    for number in range(2):
        with pytest.raises(PipelineError, match=r"connect: the connection commits by itself \(autocommit\)"):
            by_itself(Computed(), number)
        once(Computed(), number)  # with another connect: no number stands there for rows that do not
    with closing(sqlite3.connect(path)) as connection:
        assert count_in(connection) == 2

    def committing(rows: Any, connection: Any) -> None:
        insert(rows, connection)
        connection.commit()

    with pytest.raises(PipelineError, match="write: it has ended the transaction of its micro-batch"):
        once_in_database(lambda: sqlite3.connect(path), committing, query="r")(Computed(), 0)


def test_connection_of_a_class_of_the_users_is_one_of_the_module_of_its_base(path: Path) -> None:
    class Audited(sqlite3.Connection):
        """Connections have such classes by sqlite3's `factory`, and by psycopg's `connect` of a class."""

    once_in_database(lambda: sqlite3.connect(path, factory=Audited), insert, query="q")(Computed(), 0)
    with closing(sqlite3.connect(path)) as connection:
        assert count_in(connection) == 1


def test_connection_may_give_rows_as_dicts(path: Path) -> None:
    """As by psycopg's `row_factory=dict_row`."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path)
        connection.row_factory = lambda cursor, row: {cursor.description[0][0]: row[0]}  # of one column
        return connection

    once = once_in_database(connect, insert, query="q")
    for number in (0, 1, 1):
        once(Computed(), number)
    with closing(sqlite3.connect(path)) as connection:
        assert count_in(connection) == 2
    with pytest.raises(SinkError, match="micro-batch 1 has been written, and Spark comes with 0"):
        once(Computed(), 0)


def test_connection_that_is_refused_is_closed() -> None:
    class Other:
        closed = False

        def close(self) -> None:
            self.closed = True

    other = Other()
    with pytest.raises(PipelineError, match="connect: expected a connection of a DB-API module"):
        once_in_database(lambda: other, insert, query="q")(Computed(), 0)
    assert other.closed


def test_wrong_arguments_are_refused() -> None:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(":memory:")

    wrong: list[tuple[Any, str]] = [
        (lambda: once_in_database("x.db", insert), "connect: expected a function"),  # type: ignore[arg-type]
        (lambda: once_in_database(connect, 5), "write: expected a function"),  # type: ignore[arg-type]
        (lambda: once_in_database(connect, "a..b"), "write: expected the name of a table"),
        (lambda: once_in_database(connect, insert, ledger=""), "ledger: expected a non-empty text"),
        (lambda: once_in_database(connect, insert, query=""), "query: expected a non-empty text"),
        (lambda: once_in_folders(""), "path: expected a non-empty text"),
        (lambda: once_in_folders("x", query="a/b"), "query: expected a name that a folder can have"),
        (lambda: once_in_folders("x", query="ü" * 125), "query: expected a name that a folder can have"),
        (lambda: once_in_folders("x", query="100%41"), "query: expected a name that Spark reads as it is"),
        (lambda: once_in_folders("x", query="__HIVE_DEFAULT_PARTITION__"), "query: .* reads as it is"),
        (lambda: once_in_delta(""), "path: expected a non-empty text"),
        (lambda: once_in_database(connect, insert)(Computed(), 0), "Spark does not tell here which query"),
    ]
    for use, message in wrong:
        with pytest.raises(PipelineError, match=message):
            use()
    for named in ("ü" * 124, "50%", "%zz", "a:b", "x y", "a=b"):
        once_in_folders("x", query=named)


@pytest.mark.broker
def test_queries_that_begin_together_make_the_table_of_numbers_once(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE begun (v integer)")

    def insert(rows: Any, connection: Any) -> None:
        connection.execute("INSERT INTO begun VALUES (1)")

    for ledger in map("numbers_{}".format, range(10)):
        together = Barrier(4)

        def write(query: str, ledger: str = ledger, together: Barrier = together) -> None:
            once = once_in_database(lambda: psycopg.connect(postgres_url), insert, ledger=ledger, query=query)
            together.wait(60)
            once(Computed(), 0)

        with ThreadPoolExecutor(4) as queries:
            assert [*queries.map(write, "abcd")] == [None] * 4


@pytest.mark.broker
def test_table_of_numbers_that_is_there_takes_no_right_to_make_one(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE written (v integer)")
        connection.execute("CREATE TABLE numbers (query VARCHAR(200) PRIMARY KEY, batch BIGINT NOT NULL)")
        connection.execute("CREATE ROLE writer")
        connection.execute("GRANT ALL ON written, numbers TO writer")

    def connect() -> psycopg.Connection[Any]:
        connection = psycopg.connect(postgres_url)
        connection.execute("SET ROLE writer")
        connection.commit()
        return connection

    def insert(rows: Any, connection: Any) -> None:
        connection.execute("INSERT INTO written VALUES (1)")

    once_in_database(connect, insert, ledger="numbers", query="q")(Computed(), 0)
    with psycopg.connect(postgres_url) as owner:
        assert owner.execute("SELECT * FROM numbers").fetchall() == [("q", 0)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="CREATE TABLE"):
        once_in_database(connect, insert, ledger="others", query="q")(Computed(), 0)


@pytest.mark.broker
def test_postgres_has_each_micro_batch_once(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE out (v integer)")
    once = once_in_database(lambda: psycopg.connect(postgres_url), insert, ledger="public.done", query="q")
    for number in (0, 0, 1):
        once(Computed(), number)
    with psycopg.connect(postgres_url) as connection:
        assert count_in(connection) == 2
        assert connection.execute("SELECT query, batch FROM public.done").fetchall() == [("q", 1)]
    with pytest.raises(PipelineError, match="the connection commits by itself"):
        once_in_database(lambda: psycopg.connect(postgres_url, autocommit=True), insert, query="q")(None, 7)
