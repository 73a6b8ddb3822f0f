"""
Rows of a DataFrame become elements, and elements become rows.

A row becomes a dict, in which maps are dicts, too. What becomes a row is a dict or a Row of Spark's, or has
its columns as attributes (a dataclass, a `WindowResult`, a `FailedCall`); anything else fills a schema of a
single column. It must have every column, None where there is no value: a column that is not there is more
often a slip of the pen than a null. What it has besides is left out. Inside a struct, where a dict is often
an answer as it came, a field that it does not have is null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from datetime import date, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from asyncstream.codec import ForeignError
from asyncstream.errors import PipelineError, UserFunctionError, describe_error, safe_repr, there_are
from asyncstream.runtime.spark.wire.arrow_types import arrow_schema
from asyncstream.runtime.spark.wire.fitting import array_of
from asyncstream.runtime.spark.wire.originals import Originals

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ("BATCH_BYTES", "ROWS", "RowWriter", "arrays_of", "elements_of", "values_of")

Arrow = TypeVar("Arrow", "pa.RecordBatch", "pa.Array")

ROWS = 10_000
"""Rows of one Arrow batch, at most."""

BATCH_BYTES = 16 << 20
"""Bytes of one Arrow batch, at most, unless a single row is larger: of texts a column holds 2 GB, and Spark's
memory is held by all tasks together."""


def elements_of(batch: pa.RecordBatch, originals: Originals | None = None) -> list[dict[str, Any]]:
    """
    A dict for each row; `originals` is to know what the values were made of.

    Raises:
        PipelineError: naming the column, if a value is none that Python can have.
    """
    names = batch.schema.names
    if not names:
        return [{} for _ in range(batch.num_rows)]
    values = [_column_values(batch, place) for place in range(len(names))]
    if originals is not None:
        originals.add(batch, values)
    return _dict_maker(tuple(names))(*values)


@lru_cache
def _dict_maker(names: tuple[str, ...]) -> Callable[..., list[dict[str, Any]]]:
    """
    A function of columns that gives a dict for each row.

    Compiled for these names, as a NamedTuple's methods are: a row that is built by a dict display costs a
    quarter of `dict(zip(names, row))`, which took a third of the time of a task.
    """
    values = [f"v{number}" for number in range(len(names))]
    display = ", ".join(f"{name!r}: {value}" for name, value in zip(names, values, strict=True))
    rows = f"[{{{display}}} for {', '.join(values)}, in zip(*columns, strict=True)]"
    return cast("Callable[..., list[dict[str, Any]]]", eval(f"lambda *columns: {rows}"))


def _column_values(batch: pa.RecordBatch, place: int) -> list[Any]:
    try:
        return values_of(batch.column(place))
    except Exception as error:
        # of Spark's times and zones, not all are Python's: the year 10000 in UTC, "GMT+8"
        advice = "have Spark give it as another type, such as cast('string'), or leave it out"
        if isinstance(error, KeyError) and type(error) is not KeyError:  # of those who look zones up
            advice = (
                "give the session's time zone a name that both know, such as 'Asia/Singapore' or '+08:00': "
                "spark.conf.set('spark.sql.session.timeZone', ...)"
            )
        elif isinstance(error, UnicodeDecodeError):  # Spark's text may be any bytes
            advice = "have Spark give it as cast('binary'), or make it text by make_valid_utf8"
        field = batch.schema.field(place)
        told = f"column {field.name!r} ({field.type}) holds what Python cannot"
        raise PipelineError(f"{told}: {describe_error(error)}; {advice}") from error


def values_of(column: pa.Array) -> list[Any]:
    """As `to_pylist`, which is slow for times: a microsecond and more each, three with a time zone."""
    import pyarrow as pa

    epoch: Any
    kind, zone = column.type, None
    if pa.types.is_date32(kind):
        epoch, unit = date(1970, 1, 1), "m8[D]"
    elif pa.types.is_timestamp(kind) and kind.unit == "us":
        zone = pa.scalar(0, kind).as_py().tzinfo
        epoch, unit = datetime(1970, 1, 1, tzinfo=zone), "m8[us]"
    else:
        # a map may have a key twice, as from_json makes them, or two that Python takes for one: in the hour
        # that a clock shows twice
        values: list[Any] = column.to_pylist(maps_as_pydicts="strict" if _has_maps(kind) else None)
        return values
    # as distances, because NumPy gives a time that is beyond Python's as a number, and says nothing
    since = column.to_numpy(zero_copy_only=False).view(unit).tolist()
    times = [None if after is None else epoch + after for after in since]
    if zone is None or kind.tz == "UTC":
        return times
    return [None if time is None else zone.fromutc(time) for time in times]


def _has_maps(kind: pa.DataType) -> bool:
    """Whether there are maps in it whose keys a dict can have."""
    from pyarrow import types

    if types.is_map(kind) and types.is_nested(kind.key_type):
        return False
    inside = [kind.field(number).type for number in range(kind.num_fields)]
    return types.is_map(kind) or any(map(_has_maps, inside))


class RowWriter:
    """
    Turns elements, which may be the rows of `originals`, into Arrow batches; one that does not fit is blamed
    on `name`.
    """

    def __init__(self, name: str, schema: StructType, originals: Originals | None = None) -> None:
        self._originals = originals
        self._name = name
        self._schema = arrow_schema(schema)

    def batches(self, elements: Sequence[Any] | pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows of some elements, or those that another task has made of them already."""
        import pyarrow as pa

        if isinstance(elements, pa.RecordBatch):
            yield elements
            return
        for start in range(0, len(elements), ROWS):
            part = elements[start : start + ROWS]
            kinds = set(map(type, part))
            kind = kinds.pop() if len(kinds) == 1 else None
            arrays = [self._column(field, part, kind) for field in self._schema]
            if self._originals is not None:
                self._originals.passed(len(part), self._schema)
            # a column of more than 2 GB comes in chunks, along which the rows are cut, too
            for batch in pa.Table.from_arrays(arrays, schema=self._schema).to_batches():
                yield from _cut(batch)

    def _column(self, field: pa.Field, elements: Sequence[Any], kind: type | None) -> pa.Array:
        try:
            values = self._values(field.name, elements, kind)
            array = None if self._originals is None else self._originals.column(field, values)
            if array is None:
                array = array_of(values, field.type)
        except Exception:
            array = None
        if array is None or (array.null_count and not field.nullable):
            return self._one_after_the_other(field, elements)
        return array

    def _values(self, name: str, elements: Sequence[Any], kind: type | None) -> list[Any]:
        """
        A column.

        Args:
            kind: of all the elements; None: they are of several, and each is asked, which takes ten times as
                long.
        """
        if kind is dict:
            return [element[name] for element in elements]
        if kind is not None and _has_attributes(kind):
            values = [getattr(element, name) for element in elements]
            if not any(issubclass(of_value, BaseException) for of_value in set(map(type, values))):
                return values
        return self._one_by_one(name, elements)

    def _one_by_one(self, name: str, elements: Sequence[Any]) -> list[Any]:
        only = len(self._schema) == 1
        return [_part(element, name, only) for element in elements]

    def _one_after_the_other(self, field: pa.Field, elements: Sequence[Any]) -> pa.Array:
        def alone(element: Any) -> pa.Array | pa.ChunkedArray:
            array = array_of(self._one_by_one(field.name, [element]), field.type)
            if array.null_count and not field.nullable:
                raise ValueError("there is no value, and the column is not nullable")
            return array

        def when(element: Any) -> str:
            return f"on element {safe_repr(element)}, on its way into column {field.name!r} ({field.type})"

        return _each_alone(elements, alone, self._name, when)


def _cut(rows: Arrow) -> Iterator[Arrow]:
    """The rows in parts of a size that can be held."""
    half = len(rows) // 2
    if not half or rows.nbytes <= BATCH_BYTES:
        yield rows
    else:
        yield from _cut(rows.slice(0, half))
        yield from _cut(rows.slice(half))


def arrays_of(values: list[Any], kind: pa.DataType, name: str) -> Iterator[pa.Array]:
    """
    The values as they are, in parts of a size that can be held.

    Raises:
        UserFunctionError: blaming step `name`, if one of them is not of that type.
    """
    import pyarrow as pa

    array = _fitting(values, kind, name)
    # one of more than 2 GB comes in chunks
    for chunk in array.chunks if isinstance(array, pa.ChunkedArray) else (array,):
        yield from _cut(chunk)


def _fitting(values: list[Any], kind: pa.DataType, name: str) -> pa.Array | pa.ChunkedArray:
    with suppress(Exception):
        return array_of(values, kind)

    def when(value: Any) -> str:
        return f"on result {safe_repr(value)}, which is to be of type {kind}"

    return _each_alone(values, lambda value: array_of([value], kind), name, when)


def _each_alone(
    values: Sequence[Any], alone: Callable[[Any], Any], name: str, when: Callable[[Any], str]
) -> pa.Array:
    """
    An array of values of which `pa.array` has refused to make all at once: one of them does not fit, or dicts
    and tuples stand for structs side by side.

    Args:
        alone: makes an array of one.
        name: of the step, for the error about one that does not fit.
        when: says, of such a one, what it was that failed.
    """
    import pyarrow as pa

    arrays = []
    for value in values:
        try:
            arrays.append(alone(value))
        except Exception as error:
            raise UserFunctionError(name, value, error, when=f"{when(value)}{_advice(error)}") from error
    return pa.concat_arrays(arrays)


def _advice(error: Exception) -> str:
    """What to do about it, where Arrow or Python only says what it cannot: not what a user has to change."""
    import pyarrow as pa

    is_without = isinstance(error, pa.ArrowException | OverflowError | UnicodeError)
    return "; convert it before, or declare another type" if is_without else ""


def _has_attributes(kind: type) -> bool:
    """Whether columns are attributes of such elements."""
    return not issubclass(kind, Mapping) and (is_dataclass(kind) or hasattr(kind, "_fields"))


def _part(element: Any, name: str, only: bool) -> Any:
    if isinstance(element, Mapping):
        return element[name] if name in element else _missing(element, name)
    if hasattr(element, "__fields__"):  # a Row
        return element[name] if name in element.__fields__ else _missing(element, name, element.asDict())
    if _has_attributes(type(element)):
        part = getattr(element, name, _missing)
        if part is _missing:
            _missing(element, name)
        if isinstance(part, ForeignError):
            return part.text  # as of the error that it stands in for
        return describe_error(part) if isinstance(part, BaseException) else part
    if only:
        return element
    raise TypeError(f"a {type(element).__name__} has no columns; emit a dict, a NamedTuple or a dataclass")


def _missing(element: Any, name: str, fields: Any = None) -> Any:
    raise KeyError(
        f"it has no {name!r}; say None where a {type(element).__name__} has no value for the column; "
        + there_are(element if fields is None else fields)
    )
