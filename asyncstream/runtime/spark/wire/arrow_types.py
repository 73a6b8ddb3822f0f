"""
Types of Spark as types of Arrow, with points in time in UTC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

__all__ = ("arrow_schema", "arrow_type")


def arrow_type(kind: DataType) -> pa.DataType:
    """
    The type of Arrow whose values Spark takes as this one; two fields of one name in a struct are an error.

    Raises:
        PySparkException: if there is none.
        ValueError: if it is void, and may not be null.
    """
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(kind, error_on_duplicated_field_names_in_struct=True, timezone="UTC")


def arrow_schema(schema: StructType) -> pa.Schema:
    """The same of each column."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
