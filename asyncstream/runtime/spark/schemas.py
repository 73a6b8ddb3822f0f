"""
The columns that a user declares: as a StructType, or as text, "id bigint, name string".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncstream.errors import PipelineError
from asyncstream.runtime.spark.failures import reason_of
from asyncstream.runtime.spark.session import need_pyspark
from asyncstream.validation import refuse

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ("data_type", "struct_type")


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
    return kind


def data_type(argument: str, given: DataType | str) -> DataType:
    """The type of one column; raises `PipelineError` if it is none."""
    need_pyspark()
    from pyspark.sql.types import DataType

    kind = _parsed(argument, given) if isinstance(given, str) and given.strip() else given
    if not isinstance(kind, DataType):
        raise refuse(argument, "a Spark DataType, or its name", given, "e.g. 'bigint'")
    return kind


def _parsed(argument: str, text: str) -> DataType:
    from pyspark.sql.types import DataType

    try:
        return DataType.fromDDL(text)
    except Exception as error:
        raise PipelineError(
            f"{argument}: Spark cannot read {text!r}; that needs a running session, and a type as SQL "
            f"writes it, e.g. 'id bigint, name string': {reason_of(error)}"
        ) from error
