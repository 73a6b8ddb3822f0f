"""
Arrow tables of results, for formats of columns. Needs the extra [arrow].

A table has a schema, and elements have none. So it is found: while nothing is written yet, each element may
add columns, and widen the type of one (whole numbers become floats); from the first write on, all that
follows must fit. A column in which nothing was seen by then holds text.

The values of a column are of one kind. Of some mixtures Arrow makes one type without a word, where they come
together, and changes values: a datetime becomes a date, one without a zone a moment in UTC, text bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import chain
from operator import attrgetter
from typing import Any, Final

from asyncstream.codec.depth import check_depth
from asyncstream.connectors.rows import (
    Default,
    JsonWriter,
    MoreColumns,
    check_names,
    record_of,
    without_fields,
)
from asyncstream.errors import module_of, safe_repr

__all__ = ("Tables", "arrow_ipc", "parquet")

_PLAIN: Final[frozenset[type]] = frozenset(
    {str, int, float, bool, type(None), bytes, datetime, date, Decimal}
)
"""Types whose values are written as they are."""

_FRACTIONS: Final[frozenset[type]] = frozenset({float, Decimal})

_WHOLE: Final = _PLAIN - _FRACTIONS

_ENDLESS: Final = {16: 65520.0, 32: 2.0**128 - 2.0**103}
"""From where on a float of so many bits is infinite: what is less is rounded to the largest there is."""

_NATIVE: Final[tuple[type, ...]] = (*_PLAIN, time, timedelta, list, tuple, Mapping)
"""Types of Arrow's, and those that are derived from them."""

_KINDS: Final[tuple[tuple[tuple[type, ...], str], ...]] = (
    ((str,), "text"),
    ((bytes,), "bytes"),
    ((datetime,), "a datetime"),
    ((date,), "a date"),
    ((timedelta,), "a timedelta"),
    ((int, float, Decimal), "a number"),
)
"""What there is one of in a column, the more special type first; Arrow itself refuses all other mixtures."""

_ZONE: Final = attrgetter("tzinfo")


def parquet() -> Any:
    """The module `pyarrow.parquet`; raises `MissingExtra` if it is not installed."""
    return module_of("arrow", "pyarrow.parquet", "Parquet")


def arrow_ipc() -> Any:
    """The module `pyarrow.ipc`; raises `MissingExtra` if it is not installed."""
    return module_of("arrow", "pyarrow.ipc", "Arrow")


class Tables:
    """
    Collects elements as tables of one schema.

    Args:
        columns: take these of each element, which must have them; None: all.
        schema: of pyarrow; None: it is found.
        default: makes of a value of the user's own type one that Arrow knows.
        was_found: the schema is that of what is gone on with, and not the user's, who may mean values to be
            changed: datetimes into dates, say, or fields to be left out.

    Attributes:
        rows: how many are collected.
        schema: the one that is settled; None: it is still open.
    """

    def __init__(
        self, columns: Sequence[str] | None, schema: Any, default: Default | None, *, was_found: bool = False
    ) -> None:
        import pyarrow

        pyarrow.array([])  # the first one imports pandas, if that is there, and not in the event loop then
        self._arrow = pyarrow
        self._columns = columns
        self._json = JsonWriter(default)
        self._has_default = default is not None
        self._tables: list[Any] = []
        self._seen: Any = None
        self._checks = schema is None or was_found
        self._kinds: dict[str, str] = {}  # of columns, as far as they are known
        self.rows = 0
        self.schema = schema
        if schema is not None and was_found:
            found = ((field.name, self._kind_of(field.type)) for field in schema)
            self._kinds = {name: kind for name, kind in found if kind is not None}

    def add(self, values: Sequence[Any]) -> tuple[int, Exception | None]:
        """Collect elements; gives how many were, and why the next one does not fit, if it does not."""
        try:
            if values:
                self._add(values)
        except Exception:  # of values, of their types, of the user's function: now one by one
            for place, value in enumerate(values):
                try:
                    self._add([value])
                except Exception as error:
                    return place, error
        return len(values), None

    def _kind_of(self, kind: Any) -> str | None:
        """Which of `_KINDS` a type of Arrow holds; None: none of them."""
        types = self._arrow.types
        if types.is_timestamp(kind):
            return _moment(has_zone=kind.tz is not None)
        known = (
            (types.is_date, "a date"),
            (types.is_duration, "a timedelta"),
            (types.is_binary, "bytes"),
            (types.is_string, "text"),
        )
        return next((name for is_one, name in known if is_one(kind)), None)

    def _add(self, values: Sequence[Any]) -> None:
        arrow = self._arrow
        columns, types = self._by_columns(values)
        kinds = self._kinds_of(columns, types) if self._checks else {}
        if self.schema is not None:
            if more := columns.keys() - set(self.schema.names):
                raise MoreColumns(more, "schema")
            nothing = [None] * len(values)
            arrays = [
                self._array(columns.get(field.name, nothing), types.get(field.name, set()), field)
                for field in self.schema
            ]
            table = arrow.Table.from_arrays(arrays, schema=self.schema)
        else:
            table = arrow.table(
                {name: arrow.array(column, self._moments_of(name)) for name, column in columns.items()}
            )
            schemas = [table.schema] if self._seen is None else [self._seen, table.schema]
            seen = arrow.unify_schemas(schemas, promote_options="permissive")
            if self._seen is not None and self._changes(self._seen, seen):
                # what was collected before is to fit as well
                self._tables, table = [], self._joined([*self._tables, table], seen).combine_chunks()
            elif self._changes(table.schema, seen):
                table = self._joined([table], seen)
            self._seen = seen
        self._tables.append(table)
        self._kinds |= kinds
        self.rows += len(values)

    def _changes(self, schema: Any, seen: Any) -> bool:
        """Whether columns have other types in what was seen; where there is none yet, any fits."""
        is_null = self._arrow.types.is_null
        return any(field.type != seen.field(field.name).type and not is_null(field.type) for field in schema)

    def _array(self, column: list[Any], types: set[type], field: Any) -> Any:
        """
        Values of these types as an array of a field's type. Raises `TypeError` if that was found before they
        came, and they would be others in it: Arrow itself cuts fractions off, and lets fields inside go. In
        a type of the user's choice only numbers must not be others.
        """
        arrow, kind = self._arrow, field.type
        if not self._checks:
            array = arrow.array(column, kind)
            # one that is too large for its offsets comes in chunks
            if not types <= _WHOLE and any(map(self._may_lose, getattr(array, "chunks", [array]))):
                for value in self._lost(column, kind):
                    raise TypeError(
                        f"column {field.name!r} holds {kind}, and not {safe_repr(value)}: round it before, "
                        "or give a schema that holds it"
                    )
            return array
        found = None
        if not types <= _PLAIN:
            found = arrow.array(column)
            if found.type == kind:
                return found
        array = arrow.array(column, kind)
        if found is not None:
            is_other = self._differs(array, found)
        else:
            may_be_cut = bool(types & _FRACTIONS) and arrow.types.is_integer(kind)
            is_other = may_be_cut and array.to_pylist() != column
        if is_other:
            raise TypeError(
                f"column {field.name!r} holds {kind}, which would change this: give the schema, or default=, "
                "a function that makes it fit"
            )
        return array

    def _may_lose(self, array: Any) -> bool:
        """Whether numbers may be others in an array, as far as that tells; values in Python take longer."""
        types, kind = self._arrow.types, array.type
        if types.is_float32(kind):
            from pyarrow import compute

            return bool(compute.any(compute.is_inf(array)).as_py())
        if types.is_map(kind):
            return self._may_lose(array.keys) or self._may_lose(array.items)
        if types.is_struct(kind):
            return any(map(self._may_lose, array.flatten()))
        if types.is_nested(kind) and not types.is_union(kind):
            return self._may_lose(array.flatten())
        may_cut = (types.is_integer, types.is_temporal, types.is_float16, types.is_dictionary)
        return any(is_one(kind) for is_one in may_cut)

    def _lost(self, values: Sequence[Any], kind: Any) -> Iterator[Any]:
        """Numbers, also inside values, that Arrow cuts the fraction off for a type, or makes infinite."""
        types = self._arrow.types
        if types.is_integer(kind) or types.is_temporal(kind):
            if set(map(type, values)) <= _WHOLE:
                return
            yield from (value for value in values if isinstance(value, float | Decimal) and value % 1)
        elif types.is_float32(kind) or types.is_float16(kind):
            endless = _ENDLESS[kind.bit_width]
            floats = (value for value in values if isinstance(value, float))
            yield from (value for value in floats if endless <= abs(value) < math.inf)
        elif types.is_struct(kind):
            records = [value for value in values if isinstance(value, Mapping)]
            rows = [value for value in values if isinstance(value, tuple)]
            for place, field in enumerate(kind):
                inner = [record.get(field.name) for record in records] + [row[place] for row in rows]
                yield from self._lost(inner, field.type)
        elif types.is_dictionary(kind):
            yield from self._lost(values, kind.value_type)
        elif types.is_map(kind):
            maps = [value for value in values if value is not None]
            pairs = [pair for one in maps for pair in (one.items() if isinstance(one, Mapping) else one)]
            for place, inner in enumerate((kind.key_type, kind.item_type)):
                yield from self._lost([pair[place] for pair in pairs], inner)
        elif types.is_nested(kind) and not types.is_union(kind):
            parts = list(chain.from_iterable(value for value in values if value is not None))
            yield from self._lost(parts, kind.value_type)

    def _differs(self, array: Any, found: Any) -> bool:
        """Whether an array has other values than what Arrow makes of them by itself."""
        arrow = self._arrow
        schemas = [arrow.schema([("", kind)]) for kind in (array.type, found.type)]
        with suppress(arrow.ArrowException):
            if arrow.unify_schemas(schemas, promote_options="permissive") == schemas[0]:
                return False
        try:
            return not array.cast(found.type).equals(found)
        except arrow.ArrowException:
            return True

    def _moments_of(self, name: str) -> Any:
        """The type of a column of moments, whose zone is that of the first; None: of any other column."""
        if self._kinds.get(name) != _moment(has_zone=True):
            return None
        return self._seen.field(name).type

    def _by_columns(self, values: Sequence[Any]) -> tuple[dict[str, list[Any]], dict[str, set[type]]]:
        """
        The values of elements by column, and of which types they are: whole columns at a time, of which most
        need not be looked at.
        """
        records = [value if type(value) is dict else record_of(value) for value in values]
        if not all(records):
            raise without_fields(values[list(map(bool, records)).index(False)])
        rows: list[Any] = records
        if self._columns is not None:
            columns = {name: [row[name] for row in rows] for name in self._columns}
        else:
            first = rows[0].keys()
            is_alike = all(row.keys() == first for row in rows)
            names = first if is_alike else dict.fromkeys(name for row in rows for name in row)
            check_names(names)
            columns = {name: [row.get(name) for row in rows] for name in names}
        types = {name: set(map(type, column)) for name, column in columns.items()}
        for name, column in columns.items():
            if self._has_default or not types[name] <= _PLAIN:
                try:
                    columns[name] = column = [self._cell(value) for value in column]
                except RecursionError:
                    check_depth(column)
                    raise
                types[name] = set(map(type, column))
                if self._checks:  # Arrow ends the process over the type of what holds itself
                    check_depth(column)
        return columns, types

    def _kinds_of(self, columns: dict[str, list[Any]], types: dict[str, set[type]]) -> dict[str, str]:
        """Which of `_KINDS` columns hold; raises `TypeError` if one holds two."""
        kinds: dict[str, str] = {}
        for name, column in columns.items():
            for kind in sorted(_kinds_in(column, types[name])):
                known = kinds.setdefault(name, self._kinds.get(name, kind))
                if known != kind:
                    raise _mixed(name, known, kind)
        return kinds

    def _cell(self, value: Any) -> Any:
        value = self._json.own(value)
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, time) and value.tzinfo is not None:  # which Arrow has no type for
            return value.isoformat()
        is_no_time = isinstance(value, date) and value != value  # as pandas has it
        if is_no_time or not isinstance(value, _NATIVE):
            value = self._json.plain(value)
        if isinstance(value, Mapping):
            value = value if isinstance(value, dict) else dict(value)
            parts = value.values()
        elif isinstance(value, list | tuple):
            parts = value
        else:
            return value
        if all(kind in _PLAIN or kind.__module__ == "numpy" for kind in set(map(type, parts))):
            return value
        cells = [part if type(part) in _PLAIN else self._cell(part) for part in parts]
        if isinstance(value, dict):
            return dict(zip(value, cells, strict=True))
        return cells if isinstance(value, list) else tuple(cells)

    def take(self) -> Any:
        """All that was collected, as one table; from now on its schema is that of all others."""
        table = self.whole()
        self.schema = table.schema
        self._tables, self.rows = [], 0
        return table

    def whole(self) -> Any:
        """All that was collected, as one table; more may follow."""
        arrow, schema = self._arrow, self.schema
        if schema is None:
            schema = arrow.schema(
                [
                    field.with_type(arrow.string()) if arrow.types.is_null(field.type) else field
                    for field in self._seen or ()
                ]
            )
        return self._joined(self._tables, schema)

    def _joined(self, tables: Sequence[Any], schema: Any) -> Any:
        """Tables as one of a schema that has their columns; raises what Arrow does if values do not fit."""
        whole = self._arrow.concat_tables([schema.empty_table(), *tables], promote_options="permissive")
        return whole.select(schema.names).cast(schema)

    def cut(self, rows: int) -> None:
        """Keep the first ones only."""
        kept, left = [], rows
        for table in self._tables:
            if left > 0:
                kept.append(table.slice(0, left))
                left -= len(table)
        self._tables, self.rows = kept, rows


def _mixed(name: str, known: str, kind: str) -> TypeError:
    return TypeError(
        f"column {name!r} holds {known}, and this is {kind}: Arrow has one type for all; give default=, a "
        "function that makes one of the other, or the schema"
    )


def _kinds_in(column: list[Any], types: set[type]) -> set[str]:
    """Which of `_KINDS` are in a column that has values of these types."""
    found = set()
    for type_ in types - {type(None)}:
        kind = next((kind for known, kind in _KINDS if issubclass(type_, known)), None)
        if kind == "a datetime":
            moments = column if len(types) == 1 else [one for one in column if type(one) is type_]
            bare = list(map(_ZONE, moments)).count(None)
            found |= {_moment(has_zone=False)} if bare else set()
            found |= {_moment(has_zone=True)} if bare < len(moments) else set()
        elif kind is not None:
            found.add(kind)
    return found


def _moment(*, has_zone: bool) -> str:
    return f"a datetime {'with' if has_zone else 'without'} a zone"
