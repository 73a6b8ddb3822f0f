"""
The columns that a user declares: as a StructType, or as text, "id bigint, name string".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from asyncstream.errors import PipelineError
from asyncstream.runtime.spark.failures import reason_of
from asyncstream.runtime.spark.session import need_pyspark
from asyncstream.runtime.spark.wire.arrow_types import arrow_type
from asyncstream.validation import refuse

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ("check_columns", "data_type", "struct_type")


def struct_type(argument: str, given: StructType | str) -> StructType:
    """The columns; raises `PipelineError` if these are none."""
    from pyspark.sql.types import StructType

    kind = _parsed(argument, given) if isinstance(given, str) else given
    if not isinstance(kind, StructType):
        raise refuse(argument, "a StructType, or columns as text", given, "e.g. 'id bigint, name string'")
    if not kind.names:
        raise refuse(argument, "at least one column", given, "e.g. 'id bigint, name string'")
    if len(set(kind.names)) < len(kind.names):  # which Spark would fail at in a task, in words of Arrow's
        raise refuse(argument, "a name of its own for each column", given)
    for field in kind:
        _need_arrow(f"{argument}, column {field.name!r}", field.dataType, nullable=field.nullable)
    return kind


def data_type(argument: str, given: DataType | str) -> DataType:
    """The type of one column; raises `PipelineError` if it is none."""
    need_pyspark()
    from pyspark.sql.types import DataType

    kind = _parsed(argument, given) if isinstance(given, str) and given.strip() else given
    if not isinstance(kind, DataType):
        raise refuse(argument, "a Spark DataType, or its name", given, "e.g. 'bigint'")
    _need_arrow(argument, kind)
    return kind


def check_columns(argument: str, columns: StructType) -> None:
    """
    Raises `PipelineError` for a column that cannot get from Spark to Python, where a row is a dict, and so is
    a struct in it.
    """
    from pyspark.sql.types import CalendarIntervalType, StructType, YearMonthIntervalType

    if not columns.names:
        raise PipelineError(
            f"{argument} has no columns, and of such rows Spark hands Python none: leave it one, such as a "
            "literal by withColumn('one', lit(1))"
        )
    for name, times in _repeated(columns):
        raise PipelineError(
            f"{argument} has {times} columns {name!r}, and a row becomes a dict: give them other names, "
            "as toDF(...) does for all columns, or leave one out"
        )
    for field in columns:
        shown = field.dataType.simpleString()
        for kind in _kinds_in(field.dataType):
            # of the second kind are values of Arrow's own, which cannot get from one task to the next
            if isinstance(kind, (YearMonthIntervalType, CalendarIntervalType)):
                raise PipelineError(
                    f"{argument}, column {field.name!r} ({shown}) holds what Python cannot: intervals of "
                    "months; have Spark give it as another type, such as cast('string'), or leave it out"
                )
            for name, times in _repeated(kind) if isinstance(kind, StructType) else ():
                raise PipelineError(
                    f"{argument}, column {field.name!r} ({shown}) has {times} fields {name!r} in a struct, "
                    "which becomes a dict: give them other names, as a cast to the same type with other "
                    "names does, or leave the column out"
                )


def _repeated(columns: StructType) -> Iterator[tuple[str, int]]:
    """The names that several have, and how many."""
    return ((name, times) for name, times in Counter(columns.names).items() if times > 1)


def _kinds_in(kind: DataType) -> Iterator[DataType]:
    """A type, and those inside it."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    inside: list[DataType] = []
    if isinstance(kind, StructType):
        inside = [field.dataType for field in kind]
    elif isinstance(kind, ArrayType):
        inside = [kind.elementType]
    elif isinstance(kind, MapType):
        inside = [kind.keyType, kind.valueType]
    yield kind
    for part in inside:
        yield from _kinds_in(part)


def _need_arrow(argument: str, kind: DataType, *, nullable: bool = True) -> None:
    """Raises `PipelineError` for a type of which Python cannot give Spark any values."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructField, StructType

    column = StructType([StructField("value", kind, nullable)])
    try:
        arrow_type(column)
    except (PySparkException, ValueError) as error:  # ValueError: void without null, as the keys of a map are
        raise PipelineError(
            f"{argument}: values of type {kind.simpleString()} cannot get from Python to Spark; declare "
            "another type, such as 'string', and have Spark cast it"
        ) from error


def _parsed(argument: str, text: str) -> DataType:
    from pyspark.sql.types import DataType

    try:
        return DataType.fromDDL(text)
    except Exception as error:
        raise PipelineError(
            f"{argument}: Spark cannot read {text!r}; that needs a running session, and a type as SQL "
            f"writes it, e.g. 'id bigint, name string': {reason_of(error)}"
        ) from error
