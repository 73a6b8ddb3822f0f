"""
How results become lines and rows: the same in JSON lines, CSV and SQLite.

A *record* is a result as values by name. Mappings are records; dataclasses, NamedTuples, pydantic models,
attrs classes and msgspec structs have the names of their fields. A `WindowResult` becomes one flat record:

    key, start, end, then the named aggregates; where the result is no dict of names: value

`start` and `end` are datetimes in UTC, None for a global window. CSV and SQLite may also pick `start_ms` and
`end_ms`, as integers.

Whole numbers of any size are written whole. What JSON has no word for is written as follows. NaN: null, in
CSV `nan`. Infinity: null, in CSV `inf`, in SQLite as it is. Decimal, UUID, paths and IP addresses: text,
exactly. datetime, date and time: ISO 8601; in CSV and SQLite a datetime has a blank in place of the T.
timedelta: seconds. An enum: its value. bytes: Base64, in SQLite a BLOB. A set: a list, in order of how its
members are written. Numbers and arrays of numpy: numbers and lists. An exception: its type and message.
Records: objects. In CSV and SQLite, lists and objects are JSON in one field. Whatever else there is needs
`default`, a function that makes one of these of it, or raises `TypeError`; where JSON has no word for a
value, it is asked before these rules.
"""

from __future__ import annotations

import dataclasses
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from operator import itemgetter
from pathlib import PurePath
from typing import Any, Final, TypeAlias
from uuid import UUID

import orjson

from asyncstream.codec.depth import check_depth
from asyncstream.errors import SinkError, describe_error, safe_repr
from asyncstream.validation import function
from asyncstream.windowing import WindowResult

__all__ = (
    "Default",
    "JsonWriter",
    "MoreColumns",
    "RowWriter",
    "check_names",
    "record_of",
    "why_unwritten",
    "without_fields",
)

Default: TypeAlias = Callable[[Any], Any]
"""Makes of a value of your own one that can be written; raises `TypeError` for others."""

_AS_TEXT: Final = (Decimal, UUID, PurePath, IPv4Address, IPv4Network, IPv6Address, IPv6Network)
_SIMPLE: Final = frozenset({type(None), bool, int, float, str})
_NUMBERS: Final = frozenset("?bBhHiIlLqQefd")
"""The types of numbers that orjson knows, by numpy's letters."""

_PASSED: Final = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
"""What orjson is to ask about, for it does not know all of these, or of what is in them."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class MoreColumns(ValueError):
    """
    Raised for a record that has columns which there are not, and which would be lost.

    Args:
        more: these columns.
        argument: by which all of them are named.
    """

    def __init__(self, more: Iterable[Any], argument: str) -> None:
        names = ", ".join(map(repr, sorted(map(str, more))))
        super().__init__(f"there is no column for {names}: name all of them, {argument}=")


def record_of(value: Any) -> Mapping[str, Any] | None:
    """The values of a result by name, or None if it has no names."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, WindowResult):
        return _flat(value)
    kind = type(value)
    for names in (
        _field_names(value),
        getattr(kind, "_fields", None) if isinstance(value, tuple) else None,
        getattr(kind, "__struct_fields__", None),  # msgspec
    ):
        if names is not None:
            return {name: getattr(value, name) for name in names}
    fields = getattr(kind, "model_fields", None)
    if isinstance(fields, Mapping) and hasattr(value, "model_dump"):  # pydantic
        more = getattr(value, "model_extra", None) or {}
        return {**{name: getattr(value, name) for name in fields}, **more}
    return None


def without_fields(value: object) -> TypeError:
    """The error for a result that is no record, or one of nothing, where columns are to be written."""
    return TypeError(
        "expected a mapping, or something that has fields, and at least one of them, got a "
        f'{type(value).__name__}; make one before, as .map(lambda value: {{"value": value}}) does'
    )


def check_names(names: Iterable[Any]) -> None:
    """See whether these can be names of columns; raises `TypeError` for one that is no text."""
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"expected names of columns, got {safe_repr(name, 60)}")


def _field_names(value: Any) -> list[str] | None:
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    attributes = getattr(kind, "__attrs_attrs__", None)
    return None if attributes is None else [attribute.name for attribute in attributes]


def _flat(result: WindowResult) -> dict[str, Any]:
    record = {"key": result.key, "start": _moment(result.start_ms), "end": _moment(result.end_ms)}
    values = result.value
    if not (type(values) is dict and all(type(name) is str for name in values)):
        return {**record, "value": values}
    for name in record:
        if name in values:
            raise ValueError(f"a window's own column {name!r} and an aggregate have one name; rename that")
    return record | values


def _moment(timestamp_ms: int | None) -> datetime | int | None:
    """As a datetime; before the year 1 and after 9999, where there is none, the milliseconds."""
    if timestamp_ms is None:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return timestamp_ms


# ------------------------------------------------------------------ JSON


class JsonWriter:
    """
    Writes values as JSON.

    Args:
        default: what makes values of the user's own types ones that can be written.
        options: of orjson.

    Raises:
        PipelineError: if `default` is no plain function.
    """

    def __init__(self, default: Default | None = None, options: int = 0) -> None:
        self._default = None if default is None else function("default", default, "value")
        self._options = options

    def write(self, value: Any) -> bytes:
        """
        The JSON of a value; raises `TypeError` if a part of it is of a kind that cannot be written, or it is
        nested too deeply.
        """
        check_depth(value)
        try:
            try:
                return orjson.dumps(value, self._in_json, self._options)
            except orjson.JSONEncodeError:  # perhaps for what orjson does not know, and JSON does
                return orjson.dumps(_with_long(value), self._spelt_out, self._options | _PASSED)
        except orjson.JSONEncodeError as error:
            raise (error.__cause__ or error) from None  # what `plain` raised says more than that it raised

    def own(self, value: Any) -> Any:
        """What the user's function makes of a value, if it knows it."""
        if self._default is not None:
            try:
                return self._default(value)
            except TypeError:
                pass
        return value

    def _in_json(self, value: Any) -> Any:
        if (numbers := _numbers(value)) is not None:
            return numbers
        plain = self.plain(value)
        check_depth(plain)
        return plain

    def _spelt_out(self, value: Any) -> Any:
        """As `_in_json`, also of times with a zone, and of what holds whole numbers of any size."""
        if type(value) in (datetime, date, time):
            return value.isoformat()
        if dataclasses.is_dataclass(value):  # as orjson writes it
            held = getattr(value, "__dict__", None) or record_of(value) or {}
            return {name: _with_long(one) for name, one in held.items() if name[0] != "_"}
        return _with_long(self._in_json(value))

    def plain(self, value: Any) -> Any:
        """A value that orjson has no word for as one that it has."""
        made = self.own(value)
        if made is not value:
            return made
        if isinstance(value, _AS_TEXT):
            return str(value)
        if isinstance(value, timedelta):
            return value.total_seconds()
        if isinstance(value, bytes | bytearray | memoryview):
            return b64encode(value).decode("ascii")
        if isinstance(value, set | frozenset):
            return sorted(value, key=self.write)
        if isinstance(value, BaseException):
            return describe_error(value)
        if isinstance(value, datetime | date | time):  # their subclasses, those of pandas say
            return value.isoformat() if value == value else None  # what pandas calls not a time
        if isinstance(value, float):  # a subclass; orjson knows those of int and str
            return float(value)
        pandas: Any = sys.modules.get("pandas")
        if pandas is not None and value is getattr(pandas, "NA", None):
            return None
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
            return _of_numpy(value, numpy)
        record = record_of(value)
        if record is not None:
            return dict(record)
        if isinstance(value, Sequence):
            return list(value)
        raise TypeError(
            f"a {type(value).__module__}.{type(value).__qualname__} is not written, {safe_repr(value, 60)}: "
            "make something else of it, or give the sink default=, a function that does"
        )


def _with_long(value: Any) -> Any:
    """The same with its whole numbers that 64 bits do not hold as JSON, which orjson takes as it is."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else orjson.Fragment(int.__repr__(value))
    if isinstance(value, dict):
        return {name: _with_long(one) for name, one in value.items()}
    if isinstance(value, list) or type(value) is tuple:
        return [_with_long(one) for one in value]
    return value


def _numbers(value: Any) -> Any:
    """A number or an array of numbers of numpy as something that orjson writes; None of all else."""
    # orjson is not shown points in time: it cuts nanoseconds off, and at an odd unit it ends the process
    if (
        type(value).__module__ != "numpy"
        or (char := getattr(getattr(value, "dtype", None), "char", "O")) not in _NUMBERS
    ):
        return None
    if value.ndim == 0 and char not in "ef":  # of which a float has more digits
        return value.item()
    try:
        return orjson.Fragment(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))
    except orjson.JSONEncodeError:  # of another layout or byte order
        return None


def _of_numpy(value: Any, numpy: Any) -> Any:
    if value is numpy.ma.masked:
        return None
    if isinstance(value, numpy.ndarray):
        if value.ndim:
            return list(value)
        held = value[()]
        return held if value.dtype.char == "O" else _of_numpy(held, numpy)
    if value.dtype.names is not None:
        return {name: value[name] for name in value.dtype.names}
    if isinstance(value, numpy.datetime64):
        return None if numpy.isnat(value) else str(value)
    if isinstance(value, numpy.timedelta64):
        return None if numpy.isnat(value) else float(value / numpy.timedelta64(1, "s"))
    return float(value) if value.dtype.kind == "f" else value.item()


# ------------------------------------------------------------------ rows


class RowWriter:
    """
    Makes rows of results.

    Args:
        columns: the names of the values to write, in order.
        default: what makes values of the user's own types ones that can be written.
        native: types that are written as they are, besides None, bool, int, float and str.

    Raises:
        PipelineError: if `default` is no plain function.
    """

    def __init__(
        self, columns: Sequence[str], default: Default | None, native: frozenset[type] = frozenset()
    ) -> None:
        self._columns = columns
        self._pick: Callable[[Any], tuple[Any, ...]]
        if len(columns) > 1:
            self._pick = itemgetter(*columns)
        else:  # one, or none so far
            self._pick = lambda record: tuple(record[column] for column in columns)
        self._native = _SIMPLE | native
        self._json = JsonWriter(default)

    def simple_rows(self, values: Sequence[Any]) -> list[tuple[Any, ...]] | None:
        """
        A row of each, as `row` makes them, if that is quickly done: all are dicts, and all they hold is
        written as it is. None: ask `row`.
        """
        if set(map(type, values)) != {dict}:
            return None
        try:
            rows = list(map(self._pick, values))
        except KeyError:
            return None
        columns = zip(*rows, strict=True)
        return rows if all(self._native.issuperset(map(type, cells)) for cells in columns) else None

    def rows(self, values: Sequence[Any], target: str) -> Sequence[Sequence[Any]]:
        """A row of each result; raises `SinkError`, which names the `target`, if one cannot be written."""
        simple = self.simple_rows(values)
        return [self._named(value, target) for value in values] if simple is None else simple

    def _named(self, value: Any, target: str) -> list[Any]:
        try:
            return self.row(value)
        except Exception as error:
            raise SinkError(why_unwritten(value, target, error)) from error

    def row(self, value: Any) -> list[Any]:
        """
        One row.

        Raises:
            KeyError: if the result has no value of one of the names; its note says which there are.
            TypeError: if a value is of a kind that cannot be written.
        """
        record = value if type(value) is dict else record_of(value)
        if record is None:
            raise without_fields(value)
        native = self._native
        try:
            cells = [record[column] for column in self._columns]
        except KeyError:
            cells = [_found(record, value, column) for column in self._columns]
        return [cell if type(cell) in native else self._cell(cell) for cell in cells]

    def _cell(self, value: Any) -> Any:
        value = self._json.own(value)
        if isinstance(value, Enum):
            value = value.value
        if type(value) in self._native:
            return value
        for kind in (str, int, float):  # of which numpy's numbers are subclasses, and many others
            if isinstance(value, kind):
                return kind.__str__(value) if kind is str else kind(value)
        if isinstance(value, bytes) and bytes in self._native:
            return bytes(value)
        if isinstance(value, datetime) and value == value:  # of a subclass, pandas' say
            return value if datetime in self._native else value.isoformat(" ")
        written = value if isinstance(value, Mapping | list) else self._json.plain(value)
        return written if type(written) in self._native else self._json.write(written).decode()


def _found(record: Mapping[str, Any], value: Any, column: str) -> Any:
    if column in record:
        return record[column]
    if isinstance(value, WindowResult) and column in ("start_ms", "end_ms"):
        return getattr(value, column)
    error = KeyError(column)
    error.add_note(f"there are: {', '.join(map(repr, record)) or 'none'}")
    raise error


def why_unwritten(value: Any, target: str, error: Exception) -> str:
    """The message of the error for a value that could not be written to `target`."""
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    return f"cannot write {safe_repr(value)} to {target}: {describe_error(error)}{notes}"
