"""
Rows of a DataFrame become elements, and elements become rows.

A row becomes a dict. What becomes a row is a dict, or has its columns as attributes (a dataclass, a
`WindowResult`, a `FailedCall`); anything else fills a schema of a single column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from asyncstream.errors import InternalError, UserFunctionError, describe_error, safe_repr

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ("ROWS", "RowWriter", "array_of", "elements_of")

ROWS = 10_000
"""Rows of one Arrow batch."""


def elements_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """A dict for each row."""
    names = batch.schema.names
    if not names:
        return [{} for _ in range(batch.num_rows)]
    columns = [column.to_pylist() for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


class RowWriter:
    """
    Turns elements into Arrow batches.

    Args:
        name: what an element that does not fit is blamed on.
        schema: the columns.
    """

    def __init__(self, name: str, schema: StructType) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._name = name
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    def batches(self, elements: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for start in range(0, len(elements), ROWS):
            part = elements[start : start + ROWS]
            arrays = [self._column(field, part) for field in self._schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, field: pa.Field, elements: Sequence[Any]) -> pa.Array:
        import pyarrow as pa

        try:
            values = self._values(field.name, elements)
            array = pa.array(values, field.type)
        except Exception:
            array = None
        if array is None or (array.null_count and not field.nullable):
            self._blame(field, elements)
        return array

    def _values(self, name: str, elements: Sequence[Any]) -> list[Any]:
        if all(type(element) is dict for element in elements):
            return [element.get(name) for element in elements]
        only = len(self._schema) == 1
        return [_part(element, name, only) for element in elements]

    def _blame(self, field: pa.Field, elements: Sequence[Any]) -> None:
        """Raise for the first element that does not fit."""
        import pyarrow as pa

        for element in elements:
            try:
                array = pa.array(self._values(field.name, [element]), field.type)
                if array.null_count and not field.nullable:
                    raise ValueError("there is no value, and the column is not nullable")
            except Exception as error:
                when = (
                    f"on element {safe_repr(element)}, on its way into column {field.name!r} ({field.type})"
                )
                raise UserFunctionError(self._name, element, error, when=when) from error
        raise InternalError(f"column {field.name!r}: no element is to blame")


def array_of(values: list[Any], kind: pa.DataType, name: str) -> pa.Array:
    """
    The values as they are.

    Raises:
        UserFunctionError: blaming step `name`, if one of them is not of that type.
    """
    import pyarrow as pa

    try:
        return pa.array(values, kind)
    except Exception as error:
        failed = error
    for value in values:
        try:
            pa.array([value], kind)
        except Exception as error:
            when = f"on result {safe_repr(value)}, which is to be of type {kind}"
            raise UserFunctionError(name, value, error, when=when) from error
    raise failed


def _part(element: Any, name: str, only: bool) -> Any:
    if isinstance(element, Mapping):
        return element.get(name)
    if is_dataclass(element) or hasattr(element, "_fields"):
        part = getattr(element, name, None)
        return describe_error(part) if isinstance(part, BaseException) else part
    if only:
        return element
    raise TypeError(f"a {type(element).__name__} has no columns; emit a dict, a NamedTuple or a dataclass")
