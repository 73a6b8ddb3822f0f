"""
JSON objects become columns, and columns become JSON objects.

A value must be of its column's type as JSON has it; nothing is made to fit: 1.0 and "1" are no integers, 1
is no text. Times are texts in ISO 8601, with their zone; a column of them without zone is `TimestampNTZType`.

Lines that are nothing out of the ordinary are parsed together, by Arrow. All others, and those among which
Arrow finds one that does not fit, are parsed one by one, by orjson as everywhere else in this package; only
then is it asked what is wrong with which of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from asyncstream.connectors.lines import BOM, EXCERPT_BYTES, why_malformed
from asyncstream.errors import PipelineError, safe_repr
from asyncstream.runtime.spark.wire.arrow_types import arrow_schema
from asyncstream.runtime.spark.wire.rows import elements_of
from asyncstream.validation import refuse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

__all__ = (
    "REJECTED",
    "JsonColumns",
    "Malformed",
    "check_columns",
    "lines_of",
    "split_lines",
    "too_long",
    "with_rejected",
)

REJECTED: Final = "rejected"
"""The column that holds a line which is no row."""

Parsed = dict[str, Any]


class Malformed(NamedTuple):
    """A line that is no row: its bytes, and what is wrong with it."""

    line: bytes
    reason: str


def with_rejected(schema: StructType) -> StructType:
    """The columns, none of them required, and one for the lines that are no rows."""
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    parts = [StructField("path", StringType()), StructField("line_number", LongType())]
    parts += [StructField("line", StringType()), StructField("reason", StringType())]
    columns = [StructField(field.name, field.dataType, True, field.metadata) for field in schema]
    return StructType([*columns, StructField(REJECTED, StructType(parts))])


def check_columns(schema: StructType) -> StructType:
    """
    `schema`, which must consist of columns that JSON has values for; raises `PipelineError` if it does not.
    """
    if not len(schema):
        raise refuse("schema", "at least one column", schema)
    _check_names("schema", "columns", schema)
    for field in schema:
        _check_type(field.name, field.dataType)
    return schema


def _check_names(argument: str, parts: str, kind: StructType) -> None:
    names = kind.fieldNames()
    if len(set(names)) < len(names):
        raise refuse(argument, f"{parts} of different names", names)


def _check_type(name: str, kind: DataType) -> None:
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        _check_names(f"column {name!r}", "fields", kind)
        for field in kind:
            _check_type(f"{name}.{field.name}", field.dataType)
    elif isinstance(kind, types.ArrayType):
        _check_type(f"{name}[]", kind.elementType)
    elif isinstance(kind, types.MapType):
        if not isinstance(kind.keyType, types.StringType):
            raise PipelineError(f"column {name!r}: the keys of a JSON object are texts, not {kind.keyType}")
        _check_type(f"{name}[]", kind.valueType)
    elif type(kind).__name__ not in _PLAIN:
        raise PipelineError(
            f"column {name!r}: JSON has no values for {kind}; there are: {', '.join(_PLAIN)}, and "
            "StructType, ArrayType and MapType of these"
        )


_PLAIN: Final = (
    "BooleanType",
    "ByteType",
    "ShortType",
    "IntegerType",
    "LongType",
    "FloatType",
    "DoubleType",
    "StringType",
    "DateType",
    "TimestampType",
    "TimestampNTZType",
)


class JsonColumns:
    """
    Parses lines into columns; one without the `required` column, or longer than `max_line_bytes`, is
    malformed.
    """

    def __init__(self, schema: StructType, required: str | None, max_line_bytes: int) -> None:
        import pyarrow as pa

        self.arrow = arrow_schema(schema)
        self._parsed = pa.schema([field.with_type(_as_parsed(field.type)) for field in self.arrow])
        self._required = required
        self._limit = max_line_bytes
        # Arrow refuses an integer that has more digits than a float
        self._rebuild = _rebuilder(pa.struct(list(self._parsed))) or _same

    def batch(self, data: bytes) -> pa.RecordBatch | None:
        """The lines as rows, or None if they must be looked at one by one."""
        import pyarrow as pa

        if len(data) > self._limit:
            return None
        batch = _parse_together(data, self._parsed)
        if batch is None or (self._required is not None and batch.column(self._required).null_count):
            return None
        try:
            return self._finished(batch.columns)
        except pa.ArrowException:
            return None

    def rows(self, data: bytes, *, at_start: bool) -> tuple[list[Parsed | Malformed], list[int]]:
        """The lines one by one, and where each ends; `at_start`: the file begins with them."""
        rows: list[Parsed | Malformed] = []
        ends: list[int] = []
        for line, end in split_lines(data):
            text = line.removeprefix(BOM) if at_start and end == len(line) + 1 else line
            if len(line) >= self._limit + (end == len(data) and not data.endswith(b"\n")):
                rows.append(Malformed(line[:EXCERPT_BYTES], too_long(self._limit)))
                ends.append(end)
            elif text and not text.isspace():
                rows.append(self._row(text))
                ends.append(end)
        return rows, ends

    def batch_of(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """Rows as `rows` gave them."""
        import pyarrow as pa

        rebuilt = list(map(self._rebuild, rows))
        return self._finished(
            [pa.array([row.get(field.name) for row in rebuilt], field.type) for field in self._parsed]
        )

    def _row(self, line: bytes) -> Parsed | Malformed:
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            return Malformed(line, why_malformed(error))
        if not isinstance(value, dict):
            return Malformed(line, f"expected an object, got {safe_repr(value, 60)}")
        for field in self.arrow:
            part = value.get(field.name)
            if part is None and (not field.nullable or field.name == self._required):
                return Malformed(line, f"column {field.name!r}: there is no value")
            if (wrong := _misfit(part, field.type)) is not None:
                return Malformed(line, f"column {field.name!r}{wrong}")
        return value

    def _finished(self, columns: list[pa.Array]) -> pa.RecordBatch:
        import pyarrow as pa

        arrays = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, self.arrow, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow)


def too_long(limit: int) -> str:
    """What is wrong with a line of more bytes than that."""
    return f"longer than {limit} bytes"


def _parse_together(data: bytes, schema: pa.Schema) -> pa.RecordBatch | None:
    """
    These columns of the lines, or None if that cannot be had in one go.

    Each line must look like an object, from its first character to its last. Then no object goes on over a
    line end, for behind a `}` it could not go on with a `{`; and if there are as many objects as lines, each
    line is one. That is asked for because Arrow itself does not care about lines.
    """
    import pyarrow as pa
    from pyarrow import json

    lines = data.count(b"\n") + (not data.endswith(b"\n"))
    if not data.startswith(b"{") or not data.rstrip(b"\n").endswith(b"}") or not len(schema):
        return None
    if data.count(b"}\n{") != lines - 1 or b"NaN" in data or b"Inf" in data or not _is_text(data):
        return None
    read_options = json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    parse_options = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        table = json.read_json(pa.BufferReader(data), read_options, parse_options).select(schema.names)
    except (pa.ArrowException, KeyError):
        return None
    if table.num_rows != lines:
        return None
    columns = [column.combine_chunks() for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def split_lines(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The lines, and where each ends; the end of the last one may be missing."""
    end = 0
    for line in data.split(b"\n"):
        end += len(line) + 1
        yield line, min(end, len(data))


def lines_of(batch: pa.RecordBatch) -> Iterator[bytes]:
    """The rows as lines, with times in UTC: what JSON has of other zones has no seconds."""
    import pyarrow as pa

    kinds = [_with_times(kind, _in_utc) for kind in batch.schema.types]
    arrays = [column.cast(kind) for column, kind in zip(batch.columns, kinds, strict=True)]
    option = orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z
    for row in elements_of(pa.RecordBatch.from_arrays(arrays, batch.schema.names)):
        yield orjson.dumps(row, option=option)


def _in_utc(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) and kind.tz else kind


def _is_text(data: bytes) -> bool:
    """Whether it is UTF-8; Arrow does not look at what is not in the schema."""
    try:
        return data.isascii() or bool(data.decode())
    except UnicodeDecodeError:
        return False


def _as_parsed(kind: pa.DataType) -> pa.DataType:
    """The type as which values are parsed, before they become `kind`: times are texts."""
    import pyarrow as pa

    return _with_times(kind, lambda _: pa.string())


def _with_times(kind: pa.DataType, other: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type with other ones in place of the times in it."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_temporal(kind):
        return other(kind)
    if types.is_struct(kind):
        return pa.struct([field.with_type(_with_times(field.type, other)) for field in kind])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_times(kind.value_type, other)))
    if types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_with_times(kind.item_type, other)))
    return kind


def _misfit(value: Any, kind: pa.DataType) -> str | None:
    """Where in the value, and why, it is not of the type; None if it is."""
    from pyarrow import types

    if value is None:
        return None
    if types.is_struct(kind):
        if not isinstance(value, dict):
            return _expected("an object", value)
        parts = [(f".{field.name}", value.get(field.name), field) for field in kind]
    elif types.is_map(kind):
        if not isinstance(value, dict):
            return _expected("an object", value)
        parts = [(f"[{key!r}]", part, kind.item_field) for key, part in value.items()]
    elif types.is_list(kind):
        if not isinstance(value, list):
            return _expected("an array", value)
        parts = [(f"[{number}]", part, kind.value_field) for number, part in enumerate(value)]
    else:
        return _plain_misfit(value, kind)
    for where, part, field in parts:
        if part is None and not field.nullable:
            return f"{where}: there is no value"
        if (wrong := _misfit(part, field.type)) is not None:
            return where + wrong
    return None


def _plain_misfit(value: Any, kind: pa.DataType) -> str | None:
    import pyarrow as pa
    from pyarrow import types

    if types.is_boolean(kind):
        return None if isinstance(value, bool) else _expected("true or false", value)
    if types.is_integer(kind):
        fits = type(value) is int and -(2 ** (kind.bit_width - 1)) <= value < 2 ** (kind.bit_width - 1)
        return None if fits else _expected(f"an integer of {kind.bit_width} bits", value)
    if types.is_floating(kind):
        return None if type(value) in (int, float) else _expected("a number", value)
    if not isinstance(value, str):
        return _expected("a text", value)
    if types.is_temporal(kind):
        try:
            pa.scalar(value).cast(kind)
        except pa.ArrowException:
            return _expected(_example(kind), value)
    return None


def _example(kind: pa.DataType) -> str:
    from pyarrow import types

    if types.is_date(kind):
        return "a date such as '2024-05-01'"
    if kind.tz is None:
        return "a time without a zone, such as '2024-05-01T12:00:00'"
    return "a time with its zone, such as '2024-05-01T12:00:00Z'"


def _expected(what: str, got: object) -> str:
    return f": expected {what}, got {safe_repr(got, 60)}"


def _rebuilder(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Makes another value of one, with floats for all floating numbers. None if there is nothing to do."""
    from pyarrow import types

    if types.is_floating(kind):
        return float
    if types.is_map(kind):
        item = _rebuilder(kind.item_type)
        return None if item is None else lambda parts: {k: _or_none(item, part) for k, part in parts.items()}
    if types.is_list(kind):
        element = _rebuilder(kind.value_type)
        return None if element is None else lambda parts: [_or_none(element, part) for part in parts]
    if types.is_struct(kind):
        fields = {field.name: make for field in kind if (make := _rebuilder(field.type)) is not None}
        if not fields:
            return None
        return lambda row: {**row, **{name: _or_none(make, row.get(name)) for name, make in fields.items()}}
    return None


def _or_none(make: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else make(value)


def _same(value: Any) -> Any:
    return value
