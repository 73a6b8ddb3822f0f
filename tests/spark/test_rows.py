"""How rows become elements and elements rows: no session, no Java."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import VariantVal

from asyncstream import PipelineError, UserFunctionError
from asyncstream.runtime.spark.wire.rows import BATCH_BYTES, RowWriter, arrays_of, elements_of
from tests.spark.cluster import columns


def writer(*, nullable: bool = True) -> RowWriter:
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    return RowWriter(
        "out", StructType([StructField("key", StringType()), StructField("v", LongType(), nullable)])
    )


def written(elements: list[Any], **how: bool) -> list[dict[str, Any]]:
    return [row for batch in writer(**how).batches(elements) for row in batch.to_pylist()]


@pytest.mark.parametrize("count", [0, 3])
def test_rows_without_columns_are_empty_dicts(count: int) -> None:
    batch = pa.record_batch({"v": pa.array(range(count))}).select([])
    assert elements_of(batch) == [{}] * count


def test_batch_without_rows_has_no_elements() -> None:
    kinds = {"v": pa.int64(), "day": pa.date32(), "at": pa.timestamp("us", tz="UTC")}
    assert elements_of(pa.RecordBatch.from_pylist([], schema=pa.schema(kinds))) == []


@pytest.mark.parametrize("width", [1, 2, 500])
def test_names_of_columns_may_be_anything(width: int) -> None:
    names = ["it's {v0}", 'a "b"', "a\nb", "class", "", "größe", *(f"v{n}" for n in range(500))][:width]
    batch = pa.RecordBatch.from_arrays([pa.array([n, n + 1]) for n in range(width)], names)
    assert elements_of(batch) == [{name: n + row for n, name in enumerate(names)} for row in range(2)]


def test_of_two_columns_of_one_name_the_last_counts() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["v", "v"])
    assert elements_of(batch) == [{"v": 2}]


@pytest.mark.parametrize("zone", [None, "UTC", "+01:00", "Europe/Berlin", "America/New_York"])
def test_times_are_what_arrow_makes_of_them(zone: str | None) -> None:
    # both sides of the epoch, and the hours that clocks skip and repeat
    days = [(year, month, day) for year in (1, 1883, 1969, 2024, 2300) for month, day in ((3, 31), (10, 27))]
    times = [datetime(*day, hour, 30, 7, 123456) for day in days for hour in (0, 1, 23)]
    column = pa.array([None, *times], pa.timestamp("us")).view(pa.timestamp("us", tz=zone))
    expected = column.to_pylist()
    found = [row["at"] for row in elements_of(pa.record_batch({"at": column}))]
    assert found == expected
    assert [time and (time.isoformat(), time.fold, time.tzinfo) for time in found] == [
        time and (time.isoformat(), time.fold, time.tzinfo) for time in expected
    ]
    part = pa.record_batch({"at": column.slice(5, 3)})
    assert [row["at"] for row in elements_of(part)] == expected[5:8]


def test_dates_are_dates() -> None:
    days = [None, date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]
    assert [row["day"] for row in elements_of(pa.record_batch({"day": pa.array(days)}))] == days


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**62]).view(pa.timestamp("us", tz="UTC")),
        pa.array([[2**62]]).cast(pa.list_(pa.timestamp("us", tz="UTC"))),
        pa.array([2**23], pa.int32()).view(pa.date32()),
    ],
    ids=lambda column: str(column.type),
)
def test_time_that_is_none_of_pythons_is_an_error_of_its_column_and_not_a_number(column: pa.Array) -> None:
    told = r"column 'at' \(.*\) holds what Python cannot: .*Error: .*cast\('string'\)"
    with pytest.raises(PipelineError, match=told):
        elements_of(pa.record_batch({"n": pa.array([1]), "at": column}))


@pytest.mark.parametrize("zone", ["GMT+8", "+8", "Z"])
def test_time_zone_of_the_session_that_python_does_not_know_is_to_have_another_name(zone: str) -> None:
    kind = pa.timestamp("us", tz=zone)
    for column in (pa.array([0]).view(kind), pa.array([[0]]).cast(pa.list_(kind))):
        with pytest.raises(PipelineError, match=r"'at' \(.*\) .* name .*'spark\.sql\.session\.timeZone'"):
            elements_of(pa.record_batch({"at": column}))


BERLIN = pa.timestamp("us", tz="Europe/Berlin")


@pytest.mark.parametrize(
    ("key", "keys"),
    [
        (pa.string(), ["a", "a"]),  # as from_json makes them, of which Spark takes the first
        (BERLIN, [datetime(2024, 10, 27, hour, tzinfo=UTC) for hour in (0, 1)]),
    ],
    ids=["twice", "one to Python"],
)
@pytest.mark.parametrize("nested", [False, True])
def test_map_of_which_a_dict_has_not_all_is_an_error_of_its_column(
    key: pa.DataType, keys: list[Any], nested: bool
) -> None:
    column = pa.array([list(zip(keys, [1, 2], strict=True))], pa.map_(key, pa.int64()))
    if nested:
        column = pa.StructArray.from_arrays([column], ["inside"])
    told = r"column 'm' \(.*\) holds what Python cannot: .*cast\('string'\)"
    with pytest.raises(PipelineError, match=told):
        elements_of(pa.record_batch({"m": column}))


def test_times_within_structs_and_lists_are_times() -> None:
    at = datetime(2024, 3, 31, 1, 30, tzinfo=UTC)
    rows = [{"seen": {"at": at, "all": [at, None]}}, {"seen": None}]
    assert elements_of(pa.RecordBatch.from_pylist(rows)) == rows


def test_no_elements_are_no_batch() -> None:
    assert list(writer().batches([])) == []


def test_what_results_have_besides_is_left_out() -> None:
    assert written([{"key": None, "v": 2, "more": 0}]) == [{"key": None, "v": 2}]


class OnlyKey(NamedTuple):
    key: str


@dataclass
class OnlyV:
    v: int


@pytest.mark.parametrize(
    "without", [{}, {"key": "b"}, {"kye": "b", "v": 1}, UserDict(v=1), OnlyKey("b"), OnlyV(1), Row(v=1)]
)
def test_column_that_a_result_does_not_have_is_refused(without: Any) -> None:
    with pytest.raises(UserFunctionError, match=r"no '(key|v)'; say None where .*there are: ('|none)"):
        written([{"key": "a", "v": 1}, without])


def test_large_rows_are_cut_into_batches_of_a_size_that_can_be_held() -> None:
    from pyspark.sql.types import ArrayType, LongType, StringType

    schema = columns(v=LongType(), text=StringType(), parts=ArrayType(StringType()))
    sizes = [1] * 50 + [1 << 20] * 40 + [20 << 20] + [1] * 50
    elements = [{"v": v, "text": "x" * size, "parts": ["y", None]} for v, size in enumerate(sizes)]
    batches = list(RowWriter("out", schema).batches(elements))
    assert [v for batch in batches for v in batch.column("v").to_pylist()] == [*range(len(sizes))]
    assert all(batch.nbytes <= BATCH_BYTES or batch.num_rows == 1 for batch in batches)


def test_large_values_of_a_column_are_cut_likewise() -> None:
    sizes = [1] * 50 + [1 << 20] * 40 + [20 << 20] + [1] * 50
    arrays = list(arrays_of(["x" * size for size in sizes], pa.string(), "column"))
    assert [len(value) for array in arrays for value in array.to_pylist()] == sizes
    assert all(array.nbytes <= BATCH_BYTES or len(array) == 1 for array in arrays)
    (nothing,) = arrays_of([], pa.string(), "column")
    assert len(nothing) == 0


def test_rows_of_sparks_own_are_written() -> None:
    assert written([Row(v=1, key="a", more=5), Row("key", "v")("b", 2)]) == [
        {"key": "a", "v": 1},
        {"key": "b", "v": 2},
    ]


def test_maps_are_dicts_wherever_they_are() -> None:
    import pyarrow as pa
    from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType

    counts = MapType(StringType(), LongType())
    inside = StructType(
        [StructField("all", ArrayType(counts)), StructField("of", MapType(LongType(), counts))]
    )
    row = {"m": {"k": 1, "l": None}, "s": {"all": [{"k": 2}, None, {}], "of": {7: {"k": 3}}}, "none": None}
    schema = columns(m=counts, s=inside, none=counts)
    (batch,) = RowWriter("out", schema).batches([row])
    assert elements_of(batch) == [row]
    keyed_by_structs = pa.array([[({"a": 1}, 2)]], pa.map_(pa.struct([("a", pa.int64())]), pa.int64()))
    assert elements_of(pa.record_batch({"m": keyed_by_structs})) == [{"m": [({"a": 1}, 2)]}]


def test_results_of_several_kinds_are_written_together() -> None:
    class Pair(NamedTuple):
        key: str
        v: int

    @dataclass
    class Counted:
        v: int
        key: str | None = None

    found = written([{"key": "a", "v": 1}, Pair("b", 2), Counted(3), UserDict(key="d", v=4)])
    assert [(row["key"], row["v"]) for row in found] == [
        ("a", 1),
        ("b", 2),
        (None, 3),
        ("d", 4),
    ]


@pytest.mark.parametrize("without", [{"key": "b", "v": None}])
def test_null_in_a_column_that_has_none_is_blamed_on_its_element(without: dict[str, Any]) -> None:
    with pytest.raises(UserFunctionError, match=r"the column is not nullable, on element {'key': 'b'"):
        written([{"key": "a", "v": 1}, without], nullable=False)


def test_times_go_out_as_they_came_in() -> None:
    from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

    kinds = columns(day=DateType(), at=TimestampType(), wall=TimestampNTZType())
    (came,) = RowWriter("out", kinds).batches(
        [
            {
                "day": date(2024, 3, 31),
                "at": datetime(2024, 3, 31, tzinfo=UTC),
                "wall": datetime(2024, 3, 31),
            },
            {"day": None, "at": None, "wall": None},
        ]
    )
    (gone,) = RowWriter("out", kinds).batches(elements_of(came))
    assert gone.equals(came)


@pytest.mark.parametrize(
    ("kind", "fits", "cut_off"),
    [
        (pa.int64(), [2.0, Decimal(2), 3, None], [1.9, Decimal("1.9"), float("inf")]),
        (pa.int32(), [2.0], [1.5]),
        (pa.float32(), [0.1, -3.4028235e38, float("-inf"), float("nan"), 2, None], [3.4028236e38, -1e300]),
        (pa.list_(pa.float32()), [[None, 1.5]], [[1e39]]),
        (pa.date32(), [date(2020, 1, 1), datetime(2020, 1, 1)], [datetime(2020, 1, 1, 12)]),
        (pa.duration("us"), [pd.Timedelta(5000, "ns"), None], [pd.Timedelta(1001, "ns")]),
        (pa.list_(pa.int64()), [[1, 2.0, None]], [[1, 1.9]]),
        (pa.map_(pa.string(), pa.int64()), [{"a": 1}, [("a", 1)]], [{"a": 1.9}, [("a", 1.9)]]),
        (pa.map_(pa.int64(), pa.string()), [{1: "a"}], [{1.9: "a"}]),
        (
            pa.struct([("s", pa.string()), ("a", pa.list_(pa.int64()))]),
            [{"s": "x", "a": [1]}],
            [{"s": "x", "a": [0.5]}, ("x", [0.5])],
        ),
        (pa.list_(pa.struct([("a", pa.date32())])), [[{"a": None}]], [[{"a": datetime(2020, 1, 1, 1)}]]),
    ],
)
def test_what_a_column_would_hold_a_part_of_only_is_refused(
    kind: pa.DataType, fits: list[Any], cut_off: list[Any]
) -> None:
    schema = from_arrow_schema(pa.schema([("v", kind)]))
    rows = [{"v": value} for value in fits]
    assert sum(batch.num_rows for batch in RowWriter("out", schema).batches(rows)) == len(fits)
    for value in cut_off:
        with pytest.raises(UserFunctionError, match="without losing a part of it"):
            list(RowWriter("out", schema).batches([*rows, {"v": value}]))
        with pytest.raises(UserFunctionError, match="without losing a part of it"):
            list(arrays_of([*fits, value], kind, "column"))


class Sides(NamedTuple):
    left: str
    right: str


@dataclass
class SidesToo:
    left: str
    right: str


SIDES = pa.struct([("left", pa.string()), ("right", pa.string())])
TURNED = pa.struct([("right", pa.string()), ("left", pa.string())])
IN_PLACE = [Sides("l", "r"), Row(left="l", right="r"), Row("l", "r"), ("l", "r"), None]
TEXTS = pa.map_(pa.string(), pa.string())
ZONED = pa.timestamp("us", tz="UTC")
NO_NULL = pa.field("x", pa.string(), nullable=False)


@pytest.mark.parametrize(
    ("kind", "fits", "wrong", "why"),
    [
        (ZONED, [datetime(2024, 1, 1, tzinfo=UTC), None], 1_700_000_000_000, "of milliseconds make"),
        (ZONED, [datetime(2024, 1, 1, tzinfo=UTC)], datetime(2024, 1, 1), "has no time zone"),
        (pa.timestamp("us"), [datetime(2024, 1, 1)], datetime(2024, 1, 1, tzinfo=UTC), "a timestamp_ltz"),
        (pa.list_(ZONED), [[None]], [datetime(2024, 1, 1)], "has no time zone"),
        (pa.date32(), [date(2024, 1, 1)], 1_700_000_000_000 // 86_400_000, "expected a date, got 19675"),
        (pa.time64("us"), [time(12)], 43_200, "expected a time, got 43200"),
        (pa.time64("us"), [time(12), None], time(12, tzinfo=UTC), "without losing a part of it"),
        (pa.duration("us"), [timedelta(1)], 60, "expected a timedelta, got 60"),
        (pa.struct([NO_NULL]), [{"x": "a"}, None], {"x": None}, "there is no value for 'x' inside"),
        (pa.list_(pa.struct([NO_NULL])), [[{"x": "a"}]], [{}], "there is no value for 'x' inside"),
        (pa.list_(NO_NULL), [["a"], []], ["a", None], "there is no value for '(element|x)' inside"),
        (pa.map_(pa.string(), NO_NULL), [{"a": "b"}], {"a": None}, "there is no value for"),
        (pa.list_(pa.string()), [["abc"], ("a",), None], "abc", "expected a list, got 'abc'"),
        (pa.list_(pa.int64()), [[97], np.array([1])], b"abc", "expected a list, got b'abc'"),
        (pa.struct([("x", pa.list_(pa.string()))]), [{"x": ["a"]}], {"x": "a"}, "expected a list, got 'a'"),
        (pa.map_(pa.string(), pa.list_(pa.string())), [{"x": ["a"]}], {"x": "a"}, "expected a list, got 'a'"),
        (SIDES, IN_PLACE, Row(right="r", left="l"), "are in another order; give them by name"),
        (TURNED, [{"left": "l", "right": "r"}], Sides("l", "r"), r"Sides\(.*'r'\) are in another order"),
        (pa.list_(SIDES), [IN_PLACE], [Row(right="r")], "are in another order"),
        (pa.map_(pa.string(), TURNED), [{}], {"x": Sides("l", "r")}, "are in another order"),
        (
            SIDES,
            [pa.scalar({"left": "l"}, SIDES)],
            UserDict(left="l"),
            r"got a UserDict, \{.*; dict\(\.\.\.\) makes",
        ),
        (SIDES, IN_PLACE, SidesToo("l", "r"), r"got SidesToo\(.*\); dataclasses\.asdict makes one"),
        (pa.list_(SIDES), [IN_PLACE], [SidesToo("l", "r")], r"asdict makes one"),
        (
            TEXTS,
            [{"x": "a"}, pa.scalar([("x", "a")], TEXTS)],
            UserDict(x="a"),
            "expected a dict, got a UserDict",
        ),
        (TEXTS, [[("x", "a")], None], SidesToo("l", "r"), r"asdict makes one"),
    ],
)
def test_what_a_column_would_hold_as_something_else_is_refused(
    kind: pa.DataType, fits: list[Any], wrong: Any, why: str
) -> None:
    schema = from_arrow_schema(pa.schema([("v", kind)]))
    rows = [{"v": value} for value in fits]
    assert sum(batch.num_rows for batch in RowWriter("out", schema).batches(rows)) == len(fits)
    with pytest.raises(UserFunctionError, match=why):
        list(RowWriter("out", schema).batches([*rows, {"v": wrong}]))
    with pytest.raises(UserFunctionError, match=why):
        list(arrays_of([*fits, wrong], kind, "column"))


@pytest.mark.parametrize("nullable", [True, False])
def test_structs_may_come_as_dicts_and_as_tuples_side_by_side(nullable: bool) -> None:
    both = [Sides("l", "r"), {"right": "r"}, ("m", "s"), {"left": "n", "right": None, "more": 1}]
    expected = [
        {"left": "l", "right": "r"},
        {"left": None, "right": "r"},
        {"left": "m", "right": "s"},
        {"left": "n", "right": None},
    ]
    schema = from_arrow_schema(pa.schema([pa.field("v", SIDES, nullable)]))
    for order in (both, both[::-1]):
        (batch,) = RowWriter("out", schema).batches([{"v": value} for value in order])
        assert batch["v"].to_pylist() == (expected if order is both else expected[::-1])
        (array,) = arrays_of(order, SIDES, "column")
        assert array.equals(batch["v"])
    with pytest.raises(UserFunctionError, match=r"on element \{'v': 5\}"):
        list(RowWriter("out", schema).batches([*({"v": value} for value in both), {"v": 5}]))


class Two(NamedTuple):
    key: Any
    v: int | None


@dataclass
class AlsoTwo:
    key: Any
    v: int | None


@pytest.mark.parametrize("kind", [Two, AlsoTwo])
def test_results_of_one_kind_are_written_as_those_of_several_are(kind: type) -> None:
    alike = [kind("a", 1), kind("b", None), kind(ValueError("no"), 3)]
    of_several = written([{"key": "first", "v": 0}, *alike])[1:]
    assert written(alike) == of_several
    assert of_several[-1] == {"key": "ValueError: no", "v": 3}
    with pytest.raises(UserFunctionError, match="Could not convert 'x'"):
        written([*alike, kind("c", "x")])
    with pytest.raises(UserFunctionError, match=r"no 'v'; say None where a Half .*; there are: 'key'\""):
        written([Half("a"), Half("b")])


class Half(NamedTuple):
    key: str


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (pa.int64(), "1"),
        (pa.int64(), 2**70),
        (pa.string(), 1),
        (pa.decimal128(5, 2), Decimal("1.234")),
        (pa.decimal128(5, 2), 1.5),
        (pa.list_(pa.float64()), [["a"]]),
        (pa.list_(pa.int64()), 5),
        (pa.map_(pa.string(), pa.int64()), 5),
        (pa.duration("us"), pd.NaT),
    ],
    ids=str,
)
def test_what_arrow_does_not_convert_comes_with_what_to_do(kind: pa.DataType, wrong: Any) -> None:
    advised = r"of type .*\); convert it before, or declare another type$"
    with pytest.raises(UserFunctionError, match=advised.replace(r"\)", "")):
        list(arrays_of([wrong], kind, "column"))
    schema = from_arrow_schema(pa.schema({"v": kind}))
    with pytest.raises(UserFunctionError, match=advised.replace("of type ", "column 'v' ")):
        list(RowWriter("out", schema).batches([{"v": None}, {"v": wrong}]))


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.string())], ids=str)
def test_text_that_is_no_unicode_comes_with_what_to_do(kind: pa.DataType) -> None:
    with pytest.raises(UserFunctionError, match=r"surrogates not allowed.*; convert it before, or declare"):
        list(arrays_of(["\ud800" if kind == pa.string() else ["\ud800"]], kind, "column"))
    column = pa.array([b"\xff"]).view(pa.string())
    if kind != pa.string():
        column = pa.ListArray.from_arrays([0, 1], column)
    with pytest.raises(PipelineError, match=r"'at' .*cast\('binary'\), or .* make_valid_utf8"):
        elements_of(pa.record_batch({"at": column}))


class Place:
    """Of a type of the user's, as Spark has them."""

    __UDT__ = None


@pytest.mark.parametrize(
    ("value", "told"),
    [(VariantVal(b"\0", b"\0"), r"vars\(\.\.\.\) makes one"), (Place(), r"its __UDT__\.serialize\(")],
    ids=["variant", "udt"],
)
def test_object_that_spark_has_a_class_for_comes_with_what_to_give(value: Any, told: str) -> None:
    kind = pa.struct({"value": pa.binary(), "metadata": pa.binary()})
    with pytest.raises(UserFunctionError, match=f"expected a dict, got .*{told}"):
        list(arrays_of([value], kind, "column"))


def test_variant_goes_out_by_its_parts() -> None:
    kind = pa.struct({"value": pa.binary(), "metadata": pa.binary()})
    parts = vars(VariantVal(b"\0", b"\1"))
    assert [array.to_pylist() for array in arrays_of([parts], kind, "column")] == [[parts]]
