"""Columns are copied where that cannot be told from making them anew, and only there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types

from asyncstream.runtime.spark.wire import originals, rows
from asyncstream.runtime.spark.wire.fitting import array_of
from asyncstream.runtime.spark.wire.originals import Originals
from asyncstream.runtime.spark.wire.rows import RowWriter, elements_of
from tests.spark.cluster import columns

Row = dict[str, Any]
drawn = random.Random(3)


def incoming() -> list[pa.RecordBatch]:
    """With nulls, numbers that Python has once only, and values that can be changed."""
    found = []
    for size in (7, 1, 0, 12, 30):
        made = [
            {
                "n": drawn.choice([None, 1, 2, 10**12]),
                "text": drawn.choice([None, "", "a", "b" * 40]),
                "at": datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=drawn.randrange(50)),
                "small": drawn.randrange(5),
                "parts": [drawn.randrange(3)],
            }
            for _ in range(size)
        ]
        found.append(pa.RecordBatch.from_pylist(made, schema=SCHEMA))
    return found


SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "text": pa.string(),
        "at": pa.timestamp("us", "Europe/Berlin"),
        "small": pa.int32(),
        "parts": pa.list_(pa.int64()),
    }
)

OUT = columns(
    n=types.LongType(),
    text=types.StringType(),
    at=types.TimestampType(),
    small=types.LongType(),
    parts=types.ArrayType(types.LongType()),
    more=types.LongType(),
)


def appended(row: Row) -> Iterator[Row]:
    row["parts"].append(7)  # the very list that came
    yield row | {"more": 1}


def exchanged(row: Row) -> Iterator[Row]:
    yield row | {"text": "x" if row["small"] else row["text"], "more": row["n"], "small": row["n"]}


WAYS: dict[str, Callable[[Row], Iterator[Row]]] = {
    "more": lambda row: iter([row | {"more": 1}]),
    "appended": appended,
    "exchanged": exchanged,
    "some": lambda row: iter([row | {"more": 1}] if row["small"] else []),
    "none": lambda row: iter([]),
    "twice": lambda row: iter([row | {"more": 1}] * 2),
}


def written(writer: RowWriter, elements: list[Row], cut: int) -> list[Row]:
    return [
        row
        for start in range(0, len(elements), cut)
        for batch in writer.batches(elements[start : start + cut])
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("cut", [1, 5, 100])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_rows_are_the_same_whether_columns_are_copied_or_not(way: str, shuffled: bool, cut: int) -> None:
    kept = Originals()
    elements = [out for batch in incoming() for row in elements_of(batch, kept) for out in WAYS[way](row)]
    if shuffled:
        drawn.shuffle(elements)
    assert written(RowWriter("out", OUT, kept), elements, cut) == written(
        RowWriter("out", OUT), elements, cut
    )


def test_untouched_columns_are_not_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[pa.DataType] = []

    def counted(values: list[Any], kind: pa.DataType) -> pa.Array:
        made.append(kind)
        return array_of(values, kind)

    monkeypatch.setattr(rows, "array_of", counted)
    kept = Originals()
    elements = [row | {"more": 1} for batch in incoming() for row in elements_of(batch, kept)]
    written(RowWriter("out", OUT, kept), elements, 100)
    # a column of another type, one whose values can be changed, and one that was not there
    assert made == [pa.int64(), pa.list_(pa.int64()), pa.int64()]


def test_rows_that_do_not_come_out_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(originals, "MOST", 40)
    kept = Originals()
    for batch in incoming():
        elements_of(batch, kept)
    assert not kept._batches


def test_of_two_columns_of_one_name_none_is_copied() -> None:
    kept = Originals()
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["v", "v"])
    elements = elements_of(batch, kept)
    assert written(RowWriter("out", columns(v=types.LongType()), kept), elements, 10) == [{"v": 2}]
