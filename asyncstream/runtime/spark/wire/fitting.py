"""
Python's values become an Arrow array of a type, or are refused: nothing is made to fit.

Arrow takes much for something else: what it would cut, round or put elsewhere is looked for first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from datetime import datetime, time
from functools import lru_cache
from math import inf
from numbers import Number
from typing import TYPE_CHECKING, Any, Final, cast

from asyncstream.errors import safe_repr

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ("array_of",)


def array_of(values: list[Any], kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """
    `pa.array`, which would cut fractions off for whole numbers, the time of day for a date, and the zone of a
    time of day, make large numbers infinite, take numbers for times in a unit that nobody has said, a text
    for a list of letters, named parts by their places, and nulls where there are to be none.
    """
    import pyarrow as pa

    for problem in _misfits(values, kind):
        raise ValueError(problem)
    return pa.array(values, kind)


FLOAT_END: Final = (2 - 2**-24) * 2.0**127
"""From here on what is rounded to 32 bits is infinite."""

_WHOLE: Final = frozenset({int, type(None)})


def _misfits(values: list[Any], kind: pa.DataType) -> Iterator[str]:
    """What is wrong with those of `values`, or inside them, that `pa.array` would make something else of."""
    from pyarrow import types

    if types.is_integer(kind):
        if not _WHOLE.issuperset(map(type, values)):
            # numbers of other libraries too: what has a fraction is not equal to its whole part
            numbers: Iterable[Any] = (value for value in values if isinstance(value, Number))
            yield from (_lost(value, kind) for value in numbers if value == value and value // 1 != value)
    elif types.is_float32(kind):
        for value in values:
            if isinstance(value, Number) and FLOAT_END <= abs(cast("float", value)) < inf:
                yield _lost(value, kind)
    elif types.is_timestamp(kind):
        zoned = kind.tz is not None
        for value in values:
            if value is not None and not (type(value) is datetime and (value.tzinfo is not None) is zoned):
                yield from _time_misfit(value, kind)
    elif types.is_temporal(kind):
        for value in values:
            if isinstance(value, Number):
                yield f"expected a {_python_name(kind)}, got {safe_repr(value)}"
            elif (
                (types.is_date32(kind) and isinstance(value, datetime) and value.time() != time())
                or (isinstance(value, time) and value.tzinfo is not None)
                or getattr(value, "nanoseconds", 0) > 0  # of pandas' NaT they are NaN
            ):
                yield _lost(value, kind)
    elif types.is_list(kind) or types.is_large_list(kind):
        yield from (f"expected a list, got {safe_repr(v)}" for v in values if isinstance(v, str | bytes))
        if _is_checked(kind.value_type) or not kind.value_field.nullable:
            parts = [part for value in values if isinstance(value, Iterable) for part in value]
            yield from _misfits_inside(parts, kind.value_field)
    elif types.is_struct(kind):
        present = [value for value in values if value is not None]
        of_dicts = set(map(type, present)) == {dict}
        if not of_dicts:
            yield from _no_dicts(present)
            yield from _misplaced(present, kind)
        for place, field in enumerate(kind):
            if not field.nullable or _is_checked(field.type):
                name = field.name
                inner = (
                    [v.get(name) for v in present] if of_dicts else [_inner(v, name, place) for v in present]
                )
                yield from _misfits_inside(inner, field)
    elif types.is_map(kind):
        yield from _no_dicts(values)
        if not _is_checked(kind):
            return
        maps = [v.items() if isinstance(v, Mapping) else v for v in values if isinstance(v, Iterable)]
        pairs = [tuple(pair) for pairs in maps for pair in pairs]
        yield from _misfits([key for key, _ in pairs], kind.key_type)
        yield from _misfits_inside([item for _, item in pairs], kind.item_field)


def _no_dicts(values: list[Any]) -> Iterator[str]:
    """What has names for its parts and is nothing that `pa.array` takes for a dict: it would not tell why."""
    import pyarrow as pa

    for value in values:
        if isinstance(value, dict | tuple | list | pa.Scalar):
            continue
        if is_dataclass(value):
            yield f"expected a dict, got {safe_repr(value)}; dataclasses.asdict makes one"
        elif isinstance(value, Mapping):
            yield f"expected a dict, got a {type(value).__name__}, {safe_repr(value)}; dict(...) makes one"
        elif hasattr(value, "__UDT__"):
            yield f"expected a dict, got {safe_repr(value)}; its __UDT__.serialize(...) gives the parts"
        elif type(value).__module__ == "pyspark.sql.types":  # a variant, or a place on earth
            yield f"expected a dict, got {safe_repr(value)}; vars(...) makes one"


def _misplaced(values: list[Any], kind: pa.StructType) -> Iterator[str]:
    """Of named tuples and Rows, which `pa.array` takes by the places of their parts, whatever their names."""
    places = {field.name: place for place, field in enumerate(kind)}
    for value in values:
        names: Any = getattr(value, "_fields", None) or getattr(value, "__fields__", ())
        if any(places.get(name, place) != place for place, name in enumerate(names)):
            yield f"the parts of {safe_repr(value)} are in another order; give them by name, as a dict"


def _misfits_inside(parts: list[Any], field: pa.Field) -> Iterator[str]:
    # of a column itself, Arrow tells it at once
    if not field.nullable and any(part is None for part in parts):
        yield f"there is no value for {field.name!r} inside, which is not nullable"
    if _is_checked(field.type):
        yield from _misfits(parts, field.type)


def _time_misfit(value: Any, kind: pa.DataType) -> Iterator[str]:
    if isinstance(value, Number):
        yield (
            f"expected a datetime, got {safe_repr(value)}: of milliseconds make "
            "datetime.fromtimestamp(ms / 1000, UTC), or the column a bigint"
        )
    elif isinstance(value, datetime) and value.tzinfo is None and kind.tz is not None:
        yield (
            f"{safe_repr(value)} has no time zone, without which it is no point in time: say "
            ".replace(tzinfo=UTC), or make the column a timestamp_ntz"
        )
    elif isinstance(value, datetime) and value.tzinfo is not None and kind.tz is None:
        # by spark.sql.timestampType a "timestamp" may be one without zone, too
        yield (
            f"{safe_repr(value)} has a time zone, for which the column has no room: say "
            ".replace(tzinfo=None), or make the column a timestamp_ltz"
        )
    elif getattr(value, "nanosecond", 0):  # of pandas
        yield _lost(value, kind)


def _python_name(kind: pa.DataType) -> str:
    from pyarrow import types

    return "date" if types.is_date(kind) else "time" if types.is_time(kind) else "timedelta"


def _lost(value: Any, kind: pa.DataType) -> str:
    return f"{safe_repr(value)} is not of type {kind} without losing a part of it"


@lru_cache
def _is_checked(kind: pa.DataType) -> bool:
    """Whether there is something in it that `pa.array` may make something else of."""
    from pyarrow import types

    if types.is_map(kind):
        return not kind.item_field.nullable or _is_checked(kind.key_type) or _is_checked(kind.item_type)
    checked = (
        types.is_integer,
        types.is_float32,
        types.is_temporal,
        types.is_list,
        types.is_large_list,
        types.is_struct,
    )
    return any(of_kind(kind) for of_kind in checked)


def _inner(value: Any, name: str, place: int) -> Any:
    """A field of a struct, however it is given; what does not have it, `pa.array` judges."""
    if isinstance(value, Mapping):
        return value.get(name)
    if isinstance(value, tuple):
        return value[place] if place < len(value) else None
    return getattr(value, name, None)
