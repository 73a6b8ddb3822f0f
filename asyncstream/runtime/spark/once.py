"""
Functions for `foreachBatch` that write each micro-batch once, though Spark may hand it over again.

Spark hands over a micro-batch, and notes down that it was written afterwards. If the driver dies in between,
the micro-batch comes again, with the same rows and the same number. So a writer must notice the number:

| into | how |
|---|---|
| a database | the number stands in a table, changed in the transaction that writes the rows |
| folders of files | each micro-batch has a folder of its own, which is replaced |
| Delta | the table's own log has the number, as `txnAppId` and `txnVersion` |

A number counts for one query, which goes by the identity that Spark keeps in its checkpoint: a query with a
new checkpoint is another one, and begins with 0. One that goes on from an older copy of its checkpoint makes
other micro-batches under numbers that have been written: nothing would tell what of them is new.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from datetime import UTC
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from asyncstream.errors import PipelineError, SinkError
from asyncstream.filesystem.sqlite import quoted
from asyncstream.runtime.spark.micro_batch import Rows, Writing, computed, query_of
from asyncstream.validation import function, refuse, text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ("once_in_database", "once_in_delta", "once_in_folders")

INSERTED = 1000
"""Rows that go to a database at a time."""

_OF_FOLDERS = frozenset({"query", "batch"})
"""Columns that Spark makes of the names of the folders, whatever is in the files."""

_LONGEST: Final = 255
"""Bytes of a name in most file systems."""

_ESCAPE: Final = re.compile("%[0-9A-Fa-f]{2}")

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""How Spark writes a null in the name of a folder."""

_PLACES = {"qmark": "?", "format": "%s", "pyformat": "%s"}
"""What stands for a value in a statement, by the `paramstyle` of a DB-API module."""


def once_in_database(
    connect: Callable[[], Any],
    write: str | Callable[[Any, Any], None],
    *,
    ledger: str = "asyncstream_batches",
    query: str | None = None,
) -> Callable[[Any, int], None]:
    """
    Write each micro-batch in one transaction of a database, together with its number.

        out.writeStream.foreachBatch(once_in_database(lambda: psycopg.connect(DSN), "minutes"))
        plan.write_stream(once_in_database(lambda: sqlite3.connect("out.db"), write_both))

    The driver writes. For more rows than one connection can take, let Spark's own JDBC writer replace a table
    beside it (`rows.write.mode("overwrite").jdbc(...)`), and let `write` bring over what is there, by
    `INSERT INTO minutes SELECT * FROM minutes_beside`.

    Args:
        connect: gives a new connection of the DB-API, such as of `psycopg` or `sqlite3`, that does not commit
            by itself. Closed after each micro-batch.
        write: given the rows (as `foreachBatch` and `write_stream` give them) and the connection; must not
            commit. Or the name of a table, perhaps "schema.table", into which rows are inserted by the names
            of their columns; a `timestamp` is a datetime in UTC, a `timestamp_ntz` one without a zone.
        ledger: the table of numbers, which is made if it is not there. Where several functions write parts of
            a micro-batch into one database, each needs its own.
        query: what to call the query in there; None: the identity that Spark gives it, which cannot be told
            over Spark Connect. A name of yours must change with the query's checkpoint, as when state is
            regrouped: numbers begin anew, and those that are known by the name count as written.

    Raises:
        PipelineError: if an argument is not as described; by what it gives, if something else of the
            micro-batch has been written a moment ago.
        SinkError: by what it gives, if the micro-batch is older than the last one that was written.
    """
    function("connect", connect)
    into = (
        _inserting(_quoted("write", write))
        if isinstance(write, str)
        else function("write", write, "rows", "connection")
    )
    table, named = _quoted("ledger", ledger), _named(query)
    twice = "write all outputs in one function, or give each function a ledger= of its own"

    def write_batch(rows: Rows, number: int) -> None:
        mine = named or query_of(rows)
        connection = connect()
        with closing(connection):
            place = _place(connection)
            database = _database(connection)
            try:
                is_new = _take_down(connection, place, table, mine, number)
                if is_new:
                    # a function may use them twice, or take a part; those of several outputs are kept already
                    kept = nullcontext(rows) if isinstance(rows, Mapping) else computed(rows)
                    with kept as written:
                        into(written, connection)
                    _check_transaction(connection, "write: it has ended the transaction of its micro-batch")
                    connection.commit()
            except BaseException:
                connection.rollback()
                raise
        where = f"ledger {table}" if database is None else f"ledger {table} of {database}"
        writing = Writing(where, mine, rows, number, write)
        if not is_new:
            writing.check_first(twice)
            _compute(rows)
        if is_new or database is not None:  # or there may be another one, in which a part has the number, too
            writing.done()

    return write_batch


def once_in_folders(
    path: str, *, format: str = "parquet", query: str | None = None, **options: str
) -> Callable[[Any, int], None]:
    """
    Write each micro-batch into a folder of its own, `path/query=.../batch=00000012`, replacing what is there.

    `spark.read.format(format).load(path)` reads all of them, with `query` and `batch` as further columns. One
    who reads while a micro-batch is written may see a part of it: the last folder is whole when it holds
    `_SUCCESS`.

    Args:
        path: of the folder that holds the others, for Spark: a folder, or a URL.
        format: of Spark's: "parquet", "orc", "json", "csv".
        query: as for `once_in_database`.
        options: of the format.

    Raises:
        PipelineError: if an argument is not as described; by what it gives, if the rows have a column `query`
            or `batch`, in place of which those of the folders' names are read, or if something else of the
            micro-batch has been written a moment ago.
    """
    text("path", path)
    text("format", format)
    named = _of_folder(query)

    def write_batch(rows: DataFrame, number: int) -> None:
        mine = named or query_of(rows)
        writing = Writing(f"path {path}", mine, rows, number)
        writing.check_first("give each output a path= of its own")
        _need_one(f"path {path}", rows)
        if hidden := [column for column in rows.columns if column.lower() in _OF_FOLDERS]:
            raise PipelineError(
                f"path {path}: the rows have a column {hidden[0]!r}, in place of which who reads the folders "
                "sees what their names say: give it another name, as withColumnRenamed does"
            )
        folder = f"{path.rstrip('/')}/query={mine}/batch={number:08}"
        rows.write.format(format).options(**options).mode("overwrite").save(folder)
        writing.done()

    return write_batch


def once_in_delta(path: str, *, query: str | None = None, **options: str) -> Callable[[Any, int], None]:
    """
    Append each micro-batch to a Delta table, which leaves out one whose number it knows.

    The options that say so are Delta's `txnAppId` and `txnVersion`.

    Args:
        path: of the table.
        query: as for `once_in_database`.
        options: of Delta's writer, such as `mergeSchema="true"`.

    Raises:
        PipelineError: if an argument is not as described; by what it gives, if something else of the
            micro-batch has been written a moment ago.
    """
    text("path", path)
    named = _named(query)

    def write_batch(rows: DataFrame, number: int) -> None:
        mine = named or query_of(rows)
        writing = Writing(f"table {path}", mine, rows, number)
        writing.check_first("unite the outputs, or give each a table of its own")
        _need_one(f"table {path}", rows)
        known = {"txnAppId": mine, "txnVersion": str(number)}
        # what Delta leaves out it does not look at
        with computed(rows) if writing.may_be_known else nullcontext(rows) as written:
            written.write.format("delta").options(**options, **known).mode("append").save(path)
        writing.done()

    return write_batch


# ------------------------------------------------------------------ inside


def _named(query: str | None) -> str | None:
    return None if query is None else text("query", query)


def _of_folder(query: str | None) -> str | None:
    """The name of a query that is to be that of a folder, and of which Spark reads its column `query`."""
    named = _named(query)
    if named is None:
        return None
    if "/" in named or len(f"query={named}".encode()) > _LONGEST:
        raise refuse("query", "a name that a folder can have", query)
    if _ESCAPE.search(named) or named == _NULL:
        raise refuse("query", "a name that Spark reads as it is", query, "in names of folders %41 is an A")
    return named


def _need_one(where: str, rows: Rows) -> None:
    if isinstance(rows, Mapping):
        raise PipelineError(
            f"{where}: these are outputs by their names; write each by a function of its own, "
            "plan.write_stream(lambda outputs, batch: write(outputs['minutes'], batch))"
        )


def _compute(rows: Rows) -> None:
    """Have Spark compute rows that are in the database already: its own state moves on with each of them."""
    for frame in rows.values() if isinstance(rows, Mapping) else (rows,):
        frame.write.format("noop").mode("overwrite").save()


def _take_down(connection: Any, place: str, table: str, query: str, number: int) -> bool:
    """Whether this micro-batch is the first with this number; writes the number, and does not commit."""
    mine = f"WHERE query = {place}"
    cursor = _locked(connection, table, mine, query)
    # before a number is written, which would be there for good without the rows
    _check_transaction(connection, "connect: the connection commits by itself (autocommit)")
    cursor.execute(f"SELECT batch FROM {table} {mine}", (query,))
    last = _only(cursor.fetchone(), "batch")
    if last is None:
        cursor.execute(f"INSERT INTO {table} (query, batch) VALUES ({place}, {place})", (query, number))
    elif last < number:
        cursor.execute(f"UPDATE {table} SET batch = {place} {mine}", (number, query))
    else:
        connection.rollback()
        if number < last:
            raise SinkError(_ahead_of_checkpoint(f"table {table}, query {query}", number, last))
        return False
    return True


def _only(row: Any, column: str) -> Any:
    """What is in the only column of a row, which a connection may give as a dict; None: there is no row."""
    if row is None:
        return None
    return row[column] if isinstance(row, Mapping) else row[0]


def _locked(connection: Any, table: str, mine: str, query: str) -> Any:
    """
    A cursor of a transaction that has locked the row of the query, if there is one: another driver with the
    same query waits, and finds the number. The table is made if it is not there.
    """

    def lock() -> Any:
        cursor = connection.cursor()
        cursor.execute(f"UPDATE {table} SET batch = batch {mine}", (query,))
        return cursor

    try:
        return lock()
    except Exception:  # there may be no such table yet; to ask for it takes more rights than to use it
        connection.rollback()
    columns = "query VARCHAR(200) PRIMARY KEY, batch BIGINT NOT NULL"
    try:
        connection.cursor().execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        connection.commit()
    except Exception as error:
        connection.rollback()
        try:
            return lock()  # another query has made it in this moment
        except Exception:
            raise error from None
    return lock()


def _ahead_of_checkpoint(where: str, number: int, last: int) -> str:
    return (
        f"{where}: micro-batch {last} has been written, and Spark comes with {number}, so it goes on from an "
        "older copy of the checkpoint, or has a new one under the same query=, and what is in this may be "
        "written already. Go on from the checkpoint that belongs to what is there; or take out what has been "
        f"written from {number} on, and set the number there to {number - 1}"
    )


def _check_transaction(connection: Any, problem: str) -> None:
    """Refuse a connection without a transaction under way, as far as it tells."""
    is_open = getattr(connection, "in_transaction", None)  # of sqlite3
    if is_open is None:
        status = getattr(getattr(connection, "info", None), "transaction_status", None)  # of psycopg
        is_open = None if status is None else int(status) != 0
    if is_open is False:
        raise PipelineError(f"{problem}: the rows and the number of a micro-batch must be committed together")


def _place(connection: Any) -> str:
    # a class of the user's comes of the module's
    names = [kind.__module__.partition(".")[0] for kind in type(connection).__mro__]
    styles = [getattr(sys.modules.get(name), "paramstyle", None) for name in names]
    style = next(filter(None, styles), None)
    if style not in _PLACES:
        raise refuse("connect", "a connection of a DB-API module whose paramstyle is one of these", style)
    return _PLACES[style]


def _database(connection: Any) -> str | None:
    """What tells the database from others, in which there may be a table of the same name; None: nothing."""
    if isinstance(connection, sqlite3.Connection):
        of_file = connection.execute("SELECT file FROM pragma_database_list").fetchone()
        return str(_only(of_file, "file"))
    info = getattr(connection, "info", None)  # of psycopg
    parts = [getattr(info, name, None) for name in ("host", "port", "dbname")]
    return None if None in parts else "{}:{}/{}".format(*parts)


def _quoted(argument: str, table: str) -> str:
    parts = text(argument, table).split(".")
    if not all(parts):
        raise refuse(argument, "the name of a table, or 'schema.table'", table)
    return ".".join(map(quoted, parts))


def _inserting(table: str) -> Callable[[Any, Any], None]:
    """A function that inserts the rows into a table."""

    def insert(rows: DataFrame, connection: Any) -> None:
        if isinstance(rows, Mapping):
            raise PipelineError("write: several outputs need a function of yours that writes them")
        names = ", ".join(map(quoted, rows.columns))
        places = ", ".join(_place(connection) for _ in rows.columns)
        statement = f"INSERT INTO {table} ({names}) VALUES ({places})"
        cursor = connection.cursor()
        values = _with_zones(rows.toLocalIterator(), rows.schema)  # which takes a job for each partition
        while some := list(islice(values, INSERTED)):
            try:
                cursor.executemany(statement, some)
            except Exception as error:
                error.add_note(
                    f"on the way into the columns {names} of {table}; what the database has no type for, "
                    "Spark is to cast before: a decimal to a string, a struct by to_json"
                )
                raise

    return insert


def _with_zones(rows: Iterable[Any], schema: StructType) -> Iterator[Sequence[Any]]:
    """The values of rows with points in time in UTC: PySpark gives the driver's time of day, and no zone."""
    made = [(place, make) for place, field in enumerate(schema) if (make := _zoned(field.dataType))]
    for row in rows:
        values = list(row)
        for place, make in made:
            if values[place] is not None:
                values[place] = make(values[place])
        yield values


def _zoned(kind: DataType) -> Callable[[Any], Any] | None:
    """Gives values of the type their zone; None: they need none."""
    from pyspark.sql.types import ArrayType, TimestampType

    if isinstance(kind, TimestampType):
        return lambda time: time.astimezone(UTC)
    inside = _zoned(kind.elementType) if isinstance(kind, ArrayType) else None
    if inside is None:
        return None
    return lambda parts: [None if part is None else inside(part) for part in parts]
