"""
Which columns of its rows a pipeline looks at, so that Spark reads no others: what becomes of a row that ends
in windows is known where fields are named, `key_by("user")` and `Sum("amount")`.

As column pruning in Spark SQL, which cannot see into Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from asyncstream.operators.failures import FAILED
from asyncstream.plan import Graph, OperatorStep, Output, SinkStep
from asyncstream.runtime.spark.session import joins_streams, names_corrupt_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ("columns_read", "pruned")

CORRUPT: Final = ("spark.sql.columnNameOfCorruptRecord", "_corrupt_record")
"""Spark's setting for the column that has the text of a row in which something is wrong, and what it is."""


def columns_read(graph: Graph, source: str) -> frozenset[str] | None:
    """The columns that any step looks at of the rows of a source; None: that may be any."""
    found = frozenset[str]()
    ahead, seen = [Output(source)], set[Output]()
    while ahead:
        output = ahead.pop()
        if output in seen:
            continue
        seen.add(output)
        for step, _ in graph.ports(output):
            if isinstance(step, SinkStep) and step.kind == "discard":
                continue
            # one that has failed is inside of a FailedCall, whose fields are no columns
            is_inside = output.tag == FAILED
            if is_inside or not isinstance(step, OperatorStep) or (reads := step.spec.reads) is None:
                return None
            found |= reads
            ahead += [other for other in graph.outputs(step) if step.spec.passes_on(other.tag)]
    return found


def pruned(frame: DataFrame, columns: frozenset[str] | None) -> DataFrame:
    """
    A source's rows without other columns; all of them where `columns` are not known, or not all there.

    Names are looked for by Spark whatever their case, as fields of structs, or as all: where that may be,
    all columns remain. So they do where others hang on which are read. Of streams that it joins Spark keeps
    those, and a pipeline that looks at others could not go on from there; and only in those it sees that
    something is wrong with a row.
    """
    names = frame.schema.names
    if not columns or not columns <= set(names) or len(set(map(str.lower, names))) < len(names):
        return frame
    if any({".", "`", "*"} & set(name) for name in columns):
        return frame
    if frame.sparkSession.conf.get(*CORRUPT) in columns or names_corrupt_records(frame):
        return frame
    if joins_streams(frame):
        return frame
    return frame.select(*(name for name in names if name in columns))
