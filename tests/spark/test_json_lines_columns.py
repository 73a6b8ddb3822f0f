"""JSON values as columns: what fits, and what is said of what does not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream import PipelineError, SourceError
from asyncstream.runtime.spark.json_lines.columns import JsonColumns, Malformed, check_columns, lines_of
from tests.spark.cluster import columns
from tests.spark.files import VALUES, Query, kinds

if TYPE_CHECKING:
    pass


@pytest.mark.parametrize(("name", "text", "expected"), VALUES)
@pytest.mark.parametrize("end", ["\n", "\n\n"])  # parsed together, and one by one
def test_value_of_a_type(tmp_path: Path, name: str, text: str, expected: Any, end: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"{name}": {text}}}{end}')
    (found,) = Query(tmp_path, columns(**{name: kinds()[name]}), time=None).rows()
    assert found == {name: expected}


@pytest.mark.parametrize(
    ("name", "text", "wrong"),
    [
        ("flag", "1", "expected true or false, got 1"),
        ("small", "128", "expected an integer of 8 bits, got 128"),
        ("real", '"1"', "expected a number, got '1'"),
        ("day", '"2024-02-30"', "expected a date such as"),
        ("at", '"2024-05-01T12:00:00"', "expected a time with its zone"),
        ("at", "1714564800", "expected a text"),
        ("local", '"2024-05-01T12:00:00Z"', "expected a time without a zone"),
        ("pair", "[1]", r"expected an object, got \[1\]"),
        ("pair", '{"n": "1"}', r"column 'pair'\.n: expected an integer"),
        ("pairs", '[{"n": 1}, {"n": 1.5}]', r"column 'pairs'\[1\]\.n: expected an integer"),
        ("times", "[null]", r"column 'times'\[0\]: there is no value"),
        ("times", '"abc"', "expected an array"),
        ("counts", '{"a": "b"}', r"column 'counts'\['a'\]: expected an integer"),
    ],
)
def test_value_of_another_type_is_refused(tmp_path: Path, name: str, text: str, wrong: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"{name}": {text}}}\n')
    with pytest.raises(SourceError, match=wrong):
        Query(tmp_path, columns(**{name: kinds()[name]}), time=None).rows()


FIRST_OF_1930_US = -1_262_304_000_000_000


@pytest.mark.parametrize("zone", ["UTC", "Europe/Amsterdam", "UTC-8"])
def test_times_are_written_in_utc_whatever_the_zone_of_the_session(zone: str) -> None:
    import pyarrow as pa

    # in Amsterdam clocks were 19 minutes and 32 seconds ahead; Python does not know the third zone
    zoned = pa.array([FIRST_OF_1930_US]).cast(pa.timestamp("us", tz=zone))
    inside = pa.ListArray.from_arrays([0, 1], zoned)
    kind = pa.map_(pa.string(), pa.timestamp("us", tz=zone))
    maps = pa.MapArray.from_arrays([0, 1], ["k"], zoned).cast(kind)
    local = pa.array([FIRST_OF_1930_US]).cast(pa.timestamp("us"))
    batch = pa.record_batch({"at": zoned, "times": inside, "by": maps, "local": local})
    at = "1930-01-01T00:00:00"
    expected = {"at": f"{at}Z", "times": [f"{at}Z"], "by": {"k": f"{at}Z"}, "local": at}
    assert [orjson.loads(line) for line in lines_of(batch)] == [expected]


def test_time_may_be_a_text(tmp_path: Path) -> None:
    from pyspark.sql.types import TimestampType

    (tmp_path / "a.jsonl").write_text('{"ts": "2024-05-01T12:00:00Z"}\n{"ts": "2024-05-01T15:30:00+02:00"}\n')
    (tmp_path / "b.jsonl").write_text('{"ts": "2024-05-01T13:00:00Z"}\n')
    found = Query(tmp_path, columns(ts=TimestampType()), max_rows_per_trigger=2).drain()
    assert [[each["ts"].strftime("%H:%M") for each in rows] for rows in found] == [
        ["12:00", "13:00"],
        ["13:30"],
    ]


PARTS = [
    "\n",
    "\n",
    "\n",
    "",
    "\r",
    ",",
    "}",
    "{",
    '{"b":',
    '{"a": 1}',
    ' {"a": 3}',
    '{"a": 1.0}',
    '{"a": null}',
]
PARTS += ['{"a": 2, "b": {"x": "}"}}', '{"x": "é"}}', '{"a": "NaN"}', '{"c": [{}]}', '{"a": 1, "a": 2}']


@settings(deadline=None)
@given(st.lists(st.sampled_from(PARTS), max_size=8).map("".join))
def test_lines_parsed_together_are_what_they_are_one_by_one(text: str) -> None:
    from pyspark.sql.types import LongType

    parser = JsonColumns(columns(a=LongType()), None, 2**20)
    batch = parser.batch(text.encode())
    if batch is None:
        return
    rows, ends = parser.rows(text.encode(), at_start=False)
    assert not any(isinstance(row, Malformed) for row in rows)
    assert batch.to_pylist() == [{"a": row.get("a")} for row in rows if isinstance(row, dict)]
    assert len(ends) == text.rstrip("\n").count("\n") + 1


def test_columns_that_json_has_no_values_for_are_refused() -> None:
    from pyspark.sql.types import ArrayType, BinaryType, IntegerType, MapType, StringType

    with pytest.raises(PipelineError, match="column 'x': JSON has no values for BinaryType"):
        check_columns(columns(x=BinaryType()))
    with pytest.raises(PipelineError, match=r"column 'x\[\]': JSON has no values"):
        check_columns(columns(x=ArrayType(BinaryType())))
    with pytest.raises(PipelineError, match="keys of a JSON object are texts"):
        check_columns(columns(x=MapType(IntegerType(), StringType())))
