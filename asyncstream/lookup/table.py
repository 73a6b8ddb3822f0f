"""
Tables that are read whole, and read again every so often: from a file, a database, or a function of yours.
"""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, overload

import orjson

from asyncstream.aside import done_aside
from asyncstream.connectors.files.arrow import parquet
from asyncstream.connectors.files.record_batches import RowReader
from asyncstream.connectors.frames import is_frame
from asyncstream.connectors.json_values import loads
from asyncstream.connectors.lines import BOM
from asyncstream.errors import PipelineError, SourceError, describe_error, safe_repr, told_as
from asyncstream.filesystem.folders import lasting
from asyncstream.filesystem.sqlite import database_path, read_only
from asyncstream.long_work import in_slices
from asyncstream.operators.functions import AsyncFunction
from asyncstream.operators.results import is_deferred, not_a_value
from asyncstream.sharing import hold, release
from asyncstream.shown import shown_ms, shown_value
from asyncstream.validation import (
    Duration,
    Fields,
    duration_ms,
    file_path,
    is_async_function,
    named_fields,
    refuse,
    selector,
    takes,
)

__all__ = ("SLICE", "LookupTable")

R = TypeVar("R")
V = TypeVar("V")

Rows = Iterable[Any]

SLICE: Final = 1000
"""Rows that are taken, or let go, in about a millisecond."""

_OF_A_FRAME: Final = (
    "; give its rows: to_dicts() of Polars, to_dict('records') of pandas, to_pylist() of pyarrow"
)

_PATIENCE: Final = 20.0
"""Seconds to wait while another connection has the database for itself."""


@dataclass(frozen=True)
class LookupTable(Generic[R]):
    """
    A table for `stream.lookup`; each step that looks things up in it reads it for itself.

    It is read before the first element is looked at, and again in the background; meanwhile, and if that
    fails, the rows that are there are used.

    Attributes:
        load: gives all rows, or a mapping of keys to rows.
        key: gives the key of a row; None: `load` gives a mapping.
        every_ms: how long after one reading the next begins, in processing time; None: it is read once.
        shown: where it comes from, in words.
    """

    load: Callable[[], Awaitable[Any]] | AsyncFunction[None, Any]
    key: Callable[[Any], Any] | None
    every_ms: int | None
    shown: str

    def __repr__(self) -> str:
        given = [self.shown]
        if self.key is not None:
            given.append(f"key={shown_value('key', named_fields(self.key) or self.key)}")
        if self.every_ms is not None:
            given.append(f"every={shown_ms(self.every_ms)}")
        return f"{type(self).__name__}({', '.join(given)})"

    @classmethod
    def from_file(
        cls, path: str | Path, key: Callable[[Any], Any] | Fields, *, every: Duration | None = None
    ) -> LookupTable[dict[str, Any]]:
        """
        The rows of a CSV file (values are texts), of JSON lines or of a Parquet file, each a dict.

        Args:
            path: ends in .csv, .jsonl, .ndjson or .parquet.
            key: of a row: a function, the name of a field, or several.
            every: how long after one reading the next begins, a `timedelta` or seconds; None: there is one.
        """
        file = Path(lasting(file_path("path", path)))
        found = _READERS.get(file.suffix.lower())
        if found is None:
            raise refuse("path", f"a file that ends in {', '.join(_READERS)}", str(path))
        if found is _parquet_rows:
            parquet()
        read = partial(_read_from, file, (OSError, ValueError), partial(found, file))
        return _table(done_aside(read), selector("key", key), every, str(path))

    @classmethod
    def from_sqlite(
        cls,
        path: str | Path,
        query: str,
        key: Callable[[Any], Any] | Fields,
        *,
        parameters: Sequence[Any] | Mapping[str, Any] = (),
        every: Duration | None = None,
    ) -> LookupTable[dict[str, Any]]:
        """
        The rows of a query to an SQLite database, each a dict by the names of its columns.

        Args:
            path: of the database, which is opened for each reading, to be read only.
            query: a SELECT. Columns of one name must have the same values, as of two tables joined by them.
            key: as for `from_file`.
            parameters: of the query: in order, for each ? in it, or by name, for each :name.
            every: as for `from_file`.
        """
        file = database_path(path, beside=0)
        if isinstance(parameters, str | bytes) or not isinstance(parameters, Sequence | Mapping):
            raise refuse("parameters", "values in a list, or by name in a dict", parameters)
        values = dict(parameters) if isinstance(parameters, Mapping) else tuple(parameters)
        if not isinstance(query, str) or not query.strip():
            raise refuse("query", "a SELECT", query)
        read = partial(_read_from, file, (OSError, sqlite3.Error), partial(_query_rows, file, query, values))
        return _table(done_aside(read), selector("key", key), every, file)

    @overload
    @classmethod
    def from_call(
        cls,
        load: Callable[[], Awaitable[Mapping[Any, V]]] | AsyncFunction[None, Mapping[Any, V]],
        key: None = None,
        *,
        every: Duration | None = None,
    ) -> LookupTable[V]: ...
    @overload
    @classmethod
    def from_call(
        cls,
        load: Callable[[], Awaitable[Iterable[V]]] | AsyncFunction[None, Iterable[V]],
        key: Callable[[V], Any] | Fields,
        *,
        every: Duration | None = None,
    ) -> LookupTable[V]: ...
    @overload
    @classmethod
    def from_call(
        cls,
        load: Callable[[], Awaitable[Any]] | AsyncFunction[None, Any],
        key: Callable[[Any], Any] | Fields | None = None,
        *,
        every: Duration | None = None,
    ) -> LookupTable[Any]: ...
    @classmethod
    def from_call(
        cls,
        load: Callable[[], Awaitable[Any]] | AsyncFunction[None, Any],
        key: Callable[[Any], Any] | Fields | None = None,
        *,
        every: Duration | None = None,
    ) -> LookupTable[Any]:
        """
        What a call gives: all rows, or a mapping of keys to rows.

        Args:
            load: an `async def` without arguments; or an `AsyncFunction`, which is called with None, such as
                an `HttpLookup` of an endpoint that gives everything, or a guard: `retry(load)`, of a `load`
                that takes one argument.
            key: as for `from_file`; None: `load` gives a mapping.
            every: as for `from_file`.
        """
        if not isinstance(load, AsyncFunction):
            if not is_async_function(load):
                expected = "an async def without arguments, or an AsyncFunction"
                raise refuse("load", expected, load, "put a plain function into an async def")
            takes("load", load)
        shown = getattr(load, "__name__", type(load).__name__)
        return _table(load, None if key is None else selector("key", key), every, shown)

    async def open(self) -> None:
        """Make ready what is called."""
        if isinstance(self.load, AsyncFunction):
            await hold(self.load)

    async def close(self) -> None:
        """It is not called any more."""
        if isinstance(self.load, AsyncFunction):
            await release(self.load)

    async def read(self) -> dict[Any, Any]:
        """
        All rows by their keys, in a dict of their own; of several with one key the last.

        Raises:
            SourceError: if a file or a database cannot be read; names it.
            TypeError: if what was loaded is no table.
            ValueError: if a row has no key.
        """
        found = await (self.load.invoke(None) if isinstance(self.load, AsyncFunction) else self.load())
        if self.key is None:
            if not isinstance(found, Mapping):
                raise TypeError(
                    f"a table without key= is a mapping of keys to rows, got {type(found).__name__}"
                )
            return dict(found)
        if is_frame(found) or isinstance(found, Mapping | str | bytes) or not isinstance(found, Iterable):
            advice = _OF_A_FRAME if is_frame(found) else ""
            raise TypeError(f"a table with key= is a list of rows, got {type(found).__name__}{advice}")
        if not isinstance(found, Iterator):
            found = list(found)  # it may be the program's own, and be changed between two slices
        rows: dict[Any, Any] = await in_slices(_by_key(found, self.key))
        return rows


def _by_key(found: Rows, key: Callable[[Any], Any]) -> Generator[None, None, dict[Any, Any]]:
    rows = {}
    for number, row in enumerate(found, start=1):
        try:
            of_row = key(row)
            if number == 1 and is_deferred(of_row):
                raise not_a_value([of_row], "a key is taken from the row")
            rows[of_row] = row
        except Exception as error:
            raise ValueError(f"row {safe_repr(row)} has no key: {describe_error(error)}") from error
        if number % SLICE == 0:
            yield
    return rows


def _table(load: Any, key: Any, every: Duration | None, shown: str) -> LookupTable[Any]:
    return LookupTable(load, key, None if every is None else duration_ms("every", every), shown)


def _read_from(place: str | Path, errors: tuple[type[Exception], ...], read: Callable[[], Rows]) -> Rows:
    """The rows; what fails over that comes out naming the file."""
    with told_as(SourceError, f"read {place}", *errors):
        return read()


def _csv_rows(path: Path) -> Rows:
    rows: list[dict[str, str]] = []
    names: list[str] = []
    line = 0  # up to where records were read
    with path.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.reader(lines, strict=True)  # or a quote that is never closed takes all behind it
        try:
            for cells in filter(None, reader):
                line = reader.line_num
                if not names:
                    names = cells
                    if len(set(names)) < len(names):
                        found = ", ".join(names)
                        raise SourceError(f"{path}: the header names a column more than once: {found}")
                elif len(cells) != len(names):
                    raise SourceError(f"{path}: line {line} has not as many values as the first")
                else:
                    rows.append(dict(zip(names, cells, strict=True)))
        except csv.Error as error:
            raise SourceError(f"{path}: line {line + 1}: {error}") from error  # where the record begins
        except UnicodeDecodeError as error:
            raise SourceError(f"{path}: {error}") from error
    return rows


def _json_rows(path: Path) -> Rows:
    rows = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if number == 1:
                line = line.removeprefix(BOM)
            if line.strip():
                try:
                    rows.append(loads(line))
                except orjson.JSONDecodeError as error:
                    raise SourceError(f"{path}: line {number}: {error}") from error
    return rows


def _parquet_rows(path: Path) -> Rows:
    reader: RowReader[dict[str, Any]] = RowReader(None, "fail")
    reader.begin(str(path), iter(parquet().read_table(path).to_batches()))
    rows: list[dict[str, Any]] = []
    while (batch := reader.read()) is not None:
        rows += batch.values
    return rows


def _query_rows(path: str, query: str, parameters: tuple[Any, ...] | dict[str, Any]) -> Rows:
    with closing(read_only(path, timeout=_PATIENCE)) as database:
        found = database.execute(query, parameters)
        if found.description is None:
            raise PipelineError(f"query: expected a SELECT, got {query!r}")
        names = [column[0] for column in found.description]
        twice = [place for place, name in enumerate(names) if names.index(name) < place]
        rows: list[dict[str, Any]] = []
        for cells in found:
            rows.append(row := dict(zip(names, cells, strict=True)))
            for place in twice:  # two tables that are joined by a column both have it
                if cells[names.index(names[place])] != row[names[place]]:
                    raise PipelineError(
                        f"query: expected a name of its own for each column, got {names[place]!r} more than "
                        "once, of different values; name them apart with AS"
                    )
        return rows


_READERS: dict[str, Callable[[Path], Rows]] = {
    ".csv": _csv_rows,
    ".jsonl": _json_rows,
    ".ndjson": _json_rows,
    ".parquet": _parquet_rows,
}
