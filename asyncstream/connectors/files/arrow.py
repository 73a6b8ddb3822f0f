"""
Arrow tables of results, for formats of columns. Needs the extra [arrow].

A table has a schema, and elements have none. So it is found: while nothing is written yet, each element may
add columns, and widen the type of one (whole numbers become floats); from the first write on, all that
follows must fit. A column in which nothing was seen by then holds text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final

from asyncstream.connectors.rows import Default, JsonWriter, record_of
from asyncstream.errors import MissingExtra

__all__ = ("Tables", "arrow_ipc", "parquet")

_NATIVE: Final = (
    str,
    int,
    float,
    bool,
    type(None),
    bytes,
    datetime,
    date,
    time,
    timedelta,
    Decimal,
    list,
    tuple,
    Mapping,
)


def parquet() -> Any:
    """
    The module `pyarrow.parquet`.

    Raises:
        MissingExtra: if it is not installed.
    """
    try:
        import pyarrow.parquet as found
    except ImportError as error:
        raise MissingExtra("Parquet", "arrow") from error
    return found


def arrow_ipc() -> Any:
    """
    The module `pyarrow.ipc`.

    Raises:
        MissingExtra: if it is not installed.
    """
    try:
        import pyarrow.ipc as found
    except ImportError as error:
        raise MissingExtra("Arrow", "arrow") from error
    return found


class Tables:
    """
    Collects elements as tables of one schema.

    Args:
        columns: take these of each element, which must have them; None: all.
        schema: of pyarrow; None: it is found.
        default: makes of a value of the user's own type one that Arrow knows.

    Attributes:
        rows: how many are collected.
        schema: the one that is settled; None: it is still open.
    """

    def __init__(self, columns: Sequence[str] | None, schema: Any, default: Default | None) -> None:
        import pyarrow

        self._arrow = pyarrow
        self._columns = columns
        self._json = JsonWriter(default)
        self._tables: list[Any] = []
        self._seen: Any = None
        self.rows = 0
        self.schema = schema

    def add(self, values: Sequence[Any]) -> tuple[int, Exception | None]:
        """Collect elements; gives how many were, and why the next one does not fit, if it does not."""
        try:
            if values:
                self._add([self._row(value) for value in values])
        except Exception:  # of values, of their types, of the user's function: now one by one
            for place, value in enumerate(values):
                try:
                    self._add([self._row(value)])
                except Exception as error:
                    return place, error
        return len(values), None

    def _row(self, value: Any) -> dict[str, Any]:
        record = value if type(value) is dict else record_of(value)
        if not record:
            raise TypeError("expected a mapping, or something that has fields, and at least one of them")
        names = self._columns if self._columns is not None else record
        row = {}
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f"expected names of columns, got {name!r}")
            row[name] = self._cell(record[name])
        return row

    def _cell(self, value: Any) -> Any:
        value = self._json.own(value)
        if isinstance(value, Enum):
            value = value.value
        return value if isinstance(value, _NATIVE) else self._json.plain(value)

    def _add(self, rows: list[dict[str, Any]]) -> None:
        arrow = self._arrow
        if self.schema is not None:
            known = set(self.schema.names)
            for row in rows:
                if not row.keys() <= known:
                    more = ", ".join(map(repr, sorted(row.keys() - known)))
                    raise ValueError(f"there is no column for {more}: name all of them, schema=")
            table = arrow.Table.from_pylist(rows, schema=self.schema)
        else:
            names = dict.fromkeys(name for row in rows for name in row)
            table = arrow.table({name: arrow.array([row.get(name) for row in rows]) for name in names})
            schemas = [table.schema] if self._seen is None else [self._seen, table.schema]
            self._seen = arrow.unify_schemas(schemas, promote_options="permissive")
        self._tables.append(table)
        self.rows += len(rows)

    def take(self) -> Any:
        """All that was collected, as one table; from now on its schema is that of all others."""
        arrow = self._arrow
        if self.schema is None:
            self.schema = arrow.schema(
                [
                    field.with_type(arrow.string()) if arrow.types.is_null(field.type) else field
                    for field in self._seen or ()
                ]
            )
        tables, self._tables, self.rows = self._tables, [], 0
        if not tables:
            return self.schema.empty_table()
        whole = arrow.concat_tables(tables, promote_options="permissive")
        return whole.select(self.schema.names).cast(self.schema)
