"""Results of every kind, written by every sink that writes text or rows."""

from __future__ import annotations

import asyncio
import csv
import enum
import json
import sqlite3
from collections import deque, namedtuple
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from ipaddress import ip_address
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import attrs
import numpy as np
import pandas as pd
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream import (
    BoundedOutOfOrderness,
    Collect,
    Count,
    CsvSink,
    FailedCall,
    JsonLinesSink,
    Mean,
    Pipeline,
    PipelineError,
    SinkError,
    SqliteSink,
    Sum,
    TumblingWindows,
    WindowResult,
)
from asyncstream.connectors.json_values import loads
from asyncstream.connectors.lines import RejectedLine
from asyncstream.connectors.rows import JsonWriter, RowWriter


class Colour(enum.Enum):
    RED = "r"


class Level(enum.IntEnum):
    LOW = 1


class Name(str):
    pass


class Point(NamedTuple):
    x: int
    y: float


Pair = namedtuple("Pair", "a b")


@dataclass(slots=True)
class Order:
    id: int
    price: Any
    tags: Any = field(default_factory=list)


class Model(pydantic.BaseModel):
    id: int
    price: Any = None
    tags: Any = ()


@attrs.define
class Attrs:
    id: int
    price: Any = None
    tags: Any = ()


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


class Real(float):
    pass


class OddZone(tzinfo):
    """Of a library of its own."""

    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def dst(self, when: datetime | None) -> None:
        return None

    def tzname(self, when: datetime | None) -> str:
        return "odd"


WINTER = datetime(2024, 1, 1, 12, tzinfo=timezone(timedelta(hours=1)))

CELLS: dict[str, tuple[Any, ...]] = {
    # the value, then what it is in JSON, in CSV and in SQLite
    "none": (None, None, "", None),
    "bool": (True, True, "True", 1),
    "int": (3, 3, "3", 3),
    "float": (1.5, 1.5, "1.5", 1.5),
    "text": ("ü,", "ü,", "ü,", "ü,"),
    "text of a subclass": (Name("n"), "n", "n", "n"),
    "decimal": (Decimal("1.10"), "1.10", "1.10", "1.10"),
    "uuid": (UUID(int=5), str(UUID(int=5)), str(UUID(int=5)), str(UUID(int=5))),
    "path": (PurePosixPath("a/b"), "a/b", "a/b", "a/b"),
    "address": (ip_address("10.0.0.1"), "10.0.0.1", "10.0.0.1", "10.0.0.1"),
    "datetime": (
        WINTER,
        "2024-01-01T12:00:00+01:00",
        "2024-01-01 12:00:00+01:00",
        "2024-01-01 12:00:00+01:00",
    ),
    "date": (date(2024, 1, 1), "2024-01-01", "2024-01-01", "2024-01-01"),
    "time": (time(1, 2), "01:02:00", "01:02:00", "01:02:00"),
    "time in a zone": (time(1, 2, tzinfo=WINTER.tzinfo), *["01:02:00+01:00"] * 3),
    "datetime in an odd zone": (
        datetime(2024, 1, 1, tzinfo=OddZone()),
        "2024-01-01T00:00:00+01:00",
        *["2024-01-01 00:00:00+01:00"] * 2,
    ),
    "duration": (timedelta(minutes=1), 60.0, "60.0", 60.0),
    "enum": (Colour.RED, "r", "r", "r"),
    "enum of ints": (Level.LOW, 1, "1", 1),
    "bytes": (b"ab", "YWI=", "YWI=", b"ab"),
    "list": ([1, "a"], [1, "a"], '[1,"a"]', '[1,"a"]'),
    "tuple": ((1, (2,)), [1, [2]], "[1,[2]]", "[1,[2]]"),
    "deque": (deque([1]), [1], "[1]", "[1]"),
    "set": ({"b", "a"}, ["a", "b"], '["a","b"]', '["a","b"]'),
    "set of decimals": (frozenset({Decimal(1)}), ["1"], '["1"]', '["1"]'),
    "dict": ({"a": Decimal(1)}, {"a": "1"}, '{"a":"1"}', '{"a":"1"}'),
    "other mapping": (MappingProxyType({"a": 1}), {"a": 1}, '{"a":1}', '{"a":1}'),
    "named tuple": (Point(1, 2.5), {"x": 1, "y": 2.5}, '{"x":1,"y":2.5}', '{"x":1,"y":2.5}'),
    "dataclass": (
        Order(1, Decimal(2)),
        {"id": 1, "price": "2", "tags": []},
        '{"id":1,"price":"2","tags":[]}',
        '{"id":1,"price":"2","tags":[]}',
    ),
    "model": (Model(id=1), {"id": 1, "price": None, "tags": []}, *['{"id":1,"price":null,"tags":[]}'] * 2),
    "attrs": (Attrs(1), {"id": 1, "price": None, "tags": []}, *['{"id":1,"price":null,"tags":[]}'] * 2),
    "error": (ValueError("bad"), "ValueError: bad", "ValueError: bad", "ValueError: bad"),
    "float of a subclass": (Real(0.5), 0.5, "0.5", 0.5),
    "not available, of pandas": (pd.NA, None, "", None),
    "not a time, of pandas": (pd.NaT, None, "", None),
    "moment of pandas": (
        pd.Timestamp("2024-01-01", tz="UTC"),
        "2024-01-01T00:00:00+00:00",
        *["2024-01-01 00:00:00+00:00"] * 2,
    ),
    "float64": (np.float64(0.5), 0.5, "0.5", 0.5),
    "float32": (np.float32(0.5), 0.5, "0.5", 0.5),
    "float16": (np.float16(0.5), 0.5, "0.5", 0.5),
    "longdouble": (np.longdouble(0.5), 0.5, "0.5", 0.5),
    "int64": (np.int64(7), 7, "7", 7),
    "uint8": (np.uint8(7), 7, "7", 7),
    "numpy bool": (np.bool_(True), True, "True", 1),
    "numpy text": (np.str_("a"), "a", "a", "a"),
    "datetime64": (np.datetime64("2024-01-01T00:00:00"), *["2024-01-01T00:00:00"] * 3),
    "datetime64 with nanoseconds": (
        np.datetime64("2024-01-01T00:00:00.000000001"),
        *["2024-01-01T00:00:00.000000001"] * 3,
    ),
    "datetime64 of an odd unit": (np.datetime64(3, ("s", 25)), *["1970-01-01T00:01:15"] * 3),
    "array of an odd unit": (
        np.array([3, "NaT"], "M8[25s]"),
        ["1970-01-01T00:01:15", None],
        *['["1970-01-01T00:01:15",null]'] * 2,
    ),
    "timedelta64": (np.timedelta64(1500, "ms"), 1.5, "1.5", 1.5),
    "array": (np.arange(3), [0, 1, 2], "[0,1,2]", "[0,1,2]"),
    "strided array": (np.arange(6).reshape(2, 3)[:, ::2], [[0, 2], [3, 5]], "[[0,2],[3,5]]", "[[0,2],[3,5]]"),
    "big-endian array": (np.arange(2, dtype=">i4"), [0, 1], "[0,1]", "[0,1]"),
    "array of float32": (np.array([0.1], "f4"), [0.1], "[0.1]", "[0.1]"),
    "masked array": (np.ma.array([1, 2], mask=[False, True]), [1, None], "[1,null]", "[1,null]"),
    "array without an axis": (np.array(1.5), 1.5, "1.5", 1.5),
    "array of objects": (np.array([Decimal(1), None]), ["1", None], '["1",null]', '["1",null]'),
    "structured": (np.array([(1, 2.5)], "i4,f8")[0], {"f0": 1, "f1": 2.5}, *['{"f0":1,"f1":2.5}'] * 2),
}


def write(sink: Any, values: Sequence[Any]) -> None:
    pipeline = Pipeline()
    pipeline.source(list(values), name="values").to(sink, name="out")
    asyncio.run(pipeline.run())


def json_rows(path: Path, values: Sequence[Any], **options: Any) -> list[Any]:
    write(JsonLinesSink(path / "out.jsonl", existing="overwrite", **options), values)
    return [json.loads(line) for line in (path / "out.jsonl").read_text().splitlines()]


def csv_rows(path: Path, values: Sequence[Any], *columns: str, **options: Any) -> list[list[str]]:
    write(CsvSink(path / "out.csv", columns=columns, existing="overwrite", **options), values)
    with (path / "out.csv").open(newline="") as file:
        return list(csv.reader(file))[1:]


def sqlite_rows(path: Path, values: Sequence[Any], *columns: str, **options: Any) -> list[tuple[Any, ...]]:
    (path / "out.db").unlink(missing_ok=True)
    write(SqliteSink(path / "out.db", "t", columns=columns, **options), values)
    connection = sqlite3.connect(path / "out.db")
    try:
        return list(connection.execute("SELECT * FROM t"))
    finally:
        connection.close()


def test_value_of_every_kind_is_written_by_every_sink(tmp_path: Path) -> None:
    values = [{"v": value} for value, *_ in CELLS.values()]
    in_json, in_csv, in_sqlite = (
        json_rows(tmp_path, values),
        csv_rows(tmp_path, values, "v"),
        sqlite_rows(tmp_path, values, "v"),
    )
    for row, (name, (_, *expected)) in enumerate(CELLS.items()):
        assert [in_json[row]["v"], in_csv[row][0], in_sqlite[row][0]] == expected, name


@pytest.mark.parametrize("record", [Order(1, Decimal(2), {3}), Model(id=1, price=2), Attrs(1, 2)])
def test_record_of_every_kind_is_a_row(tmp_path: Path, record: Any) -> None:
    (found,) = json_rows(tmp_path, [record])
    assert list(found) == ["id", "price", "tags"]
    assert csv_rows(tmp_path, [record], "price", "id") == [["2", "1"]]
    assert sqlite_rows(tmp_path, [record], "id") == [(1,)]


def test_named_tuple_is_a_row(tmp_path: Path) -> None:
    assert json_rows(tmp_path, [Pair(1, [2])]) == [{"a": 1, "b": [2]}]
    assert csv_rows(tmp_path, [Pair(1, [2])], "b", "a") == [["[2]", "1"]]


def test_result_of_a_window_is_a_flat_row(tmp_path: Path) -> None:
    def results(sink: Any) -> None:
        pipeline = Pipeline()
        data: list[dict[str, Any]] = [{"k": "a", "t": 1000, "x": 2}, {"k": "a", "t": 2000, "x": 3}]
        (
            pipeline.source(data)
            .event_time(lambda row: row["t"], BoundedOutOfOrderness(0.001))
            .key_by(lambda row: row["k"])
            .window(TumblingWindows(60))
            .aggregate(n=Count(), mean=Mean("x"), all=Collect("x"))
            .to(sink)
        )
        asyncio.run(pipeline.run())

    results(JsonLinesSink(tmp_path / "out.jsonl"))
    line = (tmp_path / "out.jsonl").read_text()
    assert line == (
        '{"key":"a","start":"1970-01-01T00:00:00+00:00","end":"1970-01-01T00:01:00+00:00",'
        '"n":2,"mean":2.5,"all":[2,3]}\n'
    )
    columns = ["key", "start", "end", "n", "mean", "all", "start_ms", "end_ms"]
    results(CsvSink(tmp_path / "out.csv", columns=columns))
    with (tmp_path / "out.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert list(row.values()) == [
        *("a", "1970-01-01 00:00:00+00:00", "1970-01-01 00:01:00+00:00", "2", "2.5", "[2,3]", "0", "60000")
    ]
    results(SqliteSink(tmp_path / "out.db", "t", columns=columns))
    connection = sqlite3.connect(tmp_path / "out.db")
    assert list(connection.execute('SELECT key, n, mean, "all", start_ms, end_ms, start FROM t')) == [
        ("a", 2, 2.5, "[2,3]", 0, 60000, "1970-01-01 00:00:00+00:00")
    ]
    connection.close()


@pytest.mark.parametrize(
    ("result", "row"),
    [
        (WindowResult("k", None, None, 7), {"key": "k", "start": None, "end": None, "value": 7}),
        (WindowResult("k", None, None, {1: 2}), None),
        (
            WindowResult(("a", 1), -(2**62), 2**62, [Decimal(1)]),
            {"key": ["a", 1], "start": -(2**62), "end": 2**62, "value": ["1"]},
        ),
    ],
)
def test_other_results_of_windows(tmp_path: Path, result: Any, row: Any) -> None:
    if row is None:
        with pytest.raises(SinkError, match="Dict key must be str"):
            json_rows(tmp_path, [result])
    else:
        assert json_rows(tmp_path, [result]) == [row]


def test_aggregate_with_the_name_of_a_windows_column_is_refused(tmp_path: Path) -> None:
    result = WindowResult("k", 0, 1, {"start": 3})
    with pytest.raises(SinkError, match=r"step 'out'.*'start' and an aggregate have one name"):
        json_rows(tmp_path, [result])
    with pytest.raises(SinkError, match="'start' and an aggregate have one name"):
        csv_rows(tmp_path, [result], "key")


def test_failed_calls_and_rejected_lines_are_written(tmp_path: Path) -> None:
    failed = FailedCall({"id": 1}, ValueError("bad"), 2, None, 5, 6)
    (letter,) = json_rows(tmp_path, [failed])
    assert letter == {
        "value": {"id": 1},
        "error": "ValueError: bad",
        "attempts": 2,
        "timestamp": None,
        "first_ms": 5,
        "last_ms": 6,
        "origin": None,
    }
    assert csv_rows(tmp_path, [failed], "value", "error") == [['{"id":1}', "ValueError: bad"]]
    rejected = RejectedLine("a.csv", 3, "x", "2 fields")
    assert sqlite_rows(tmp_path, [rejected], "line_number", "reason") == [(3, "2 fields")]


def cents(value: Any) -> Any:
    if isinstance(value, Money):
        return value.cents
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError


def test_own_types_are_written_by_default(tmp_path: Path) -> None:
    values = [{"v": Money(5)}, {"v": [Money(6)]}, {"v": Decimal("1.5")}, {"v": {Decimal(1)}}]
    assert [row["v"] for row in json_rows(tmp_path, values, default=cents)] == [5, [6], 1.5, [1.0]]
    assert csv_rows(tmp_path, values, "v", default=cents) == [["5"], ["[6]"], ["1.5"], ["[1.0]"]]
    assert sqlite_rows(tmp_path, values, "v", default=cents) == [(5,), ("[6]",), (1.5,), ("[1.0]",)]
    for sink in (
        lambda **options: JsonLinesSink(tmp_path / "x", **options),
        lambda **options: CsvSink(tmp_path / "x", columns=["a"], **options),
        lambda **options: SqliteSink(tmp_path / "x", "t", columns=["a"], **options),
    ):
        with pytest.raises(PipelineError, match="default: expected a function"):
            sink(default=3)


def test_bytes_of_a_derived_type_are_bytes_too() -> None:
    writer = RowWriter(["v"], None, frozenset({bytes}))
    assert writer.row({"v": np.bytes_(b"x")}) == [b"x"]
    assert type(writer.row({"v": np.bytes_(b"x")})[0]) is bytes


@pytest.mark.parametrize(
    "value", [Money(1), [Money(1)], {"a": {"b": Money(1)}}, Sum(), lambda: 1, 1j, iter(())]
)
def test_value_that_cannot_be_written_is_named_with_its_step(tmp_path: Path, value: Any) -> None:
    for written in (json_rows, csv_rows, sqlite_rows):
        columns = () if written is json_rows else ("n", "v")
        with pytest.raises(SinkError, match=r"step 'out'.*cannot write \{'n': 2, .*is not written.*default="):
            written(tmp_path, [{"n": 1, "v": 0}, {"n": 2, "v": value}], *columns)
    assert (tmp_path / "out.jsonl").read_text() == '{"n":1,"v":0}\n'
    assert (tmp_path / "out.csv").read_text() == "n,v\n1,0\n"
    connection = sqlite3.connect(tmp_path / "out.db")
    assert list(connection.execute("SELECT * FROM t")) == []
    connection.close()


def test_missing_column_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    for record in ({"a": 1, "b": 2}, Pair(1, 2)):
        for written in (csv_rows, sqlite_rows):
            with pytest.raises(SinkError, match=r"step 'out'.*KeyError: 'c'; there are: 'a', 'b'"):
                written(tmp_path, [record], "a", "c")


def test_integer_too_large_for_sqlite_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        SinkError, match=r"step 'out'.*cannot write \{'n': 9223372036854775808\} to table 't'"
    ):
        sqlite_rows(tmp_path, [{"n": 1}, {"n": 2**63}], "n")


@dataclass
class Holding:
    held: Any
    _own: int = 7


class Several(list[Any]): ...


def member(value: int) -> enum.Enum:
    class Named(enum.Enum):
        IT = value

    return Named.IT


LONG = st.integers(-(2**70), 2**70) | st.sampled_from([-(2**63) - 1, -(2**63), 2**64 - 1, 2**64])


@given(
    st.recursive(
        LONG
        | LONG.map(member)
        | st.none()
        | st.booleans()
        | st.text(max_size=2)
        | st.builds(time, tzinfo=st.just(UTC)),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text(max_size=2), inner, max_size=3)
            | st.builds(Holding, inner)
            | st.lists(inner, max_size=3).map(deque)
            | st.lists(inner, max_size=3).map(Several)
        ),
        max_leaves=8,
    )
)
def test_whole_numbers_of_any_size_are_written_and_come_back(value: Any) -> None:
    assert loads(JsonWriter().write(value)) == plain(value)


def plain(value: Any) -> Any:
    """What JSON has of a value."""
    match value:
        case Holding():
            return {"held": plain(value.held)}
        case list() | deque():
            return list(map(plain, value))
        case dict():
            return {name: plain(one) for name, one in value.items()}
        case time():
            return value.isoformat()
        case enum.Enum():
            return value.value
    return value


AROUND = [tuple, list, Holding, lambda held: {"a": held}, lambda held: (held, held)]


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("deep", [1_000, 5_000])
def test_what_is_nested_deeper_than_json_may_be_is_refused(around: Any, deep: int) -> None:
    """Tuples, thousands deep, would end the process."""
    nested: Any = ()
    for _ in range(deep):
        nested = (nested,)
    value = around(nested) if around not in (tuple, list) else around([nested])
    with pytest.raises(TypeError, match="levels deep"):
        JsonWriter().write(value)
    with pytest.raises(TypeError, match="levels deep"):
        JsonWriter(default=lambda part: nested).write({"a": object()})
    assert JsonWriter().write({"a": ((1, [2]),), "b": Holding((3,))}) == b'{"a":[[1,[2]]],"b":{"held":[3]}}'


def test_what_holds_itself_is_refused_and_what_is_there_often_is_not() -> None:
    inside: list[Any] = []
    inside.append(inside)
    with pytest.raises(TypeError, match="holds itself"):
        JsonWriter().write(inside)
    shared: Any = (1,)
    for _ in range(10):
        shared = (shared, shared)
    assert JsonWriter().write(shared).count(b"1") == 1024


ANY_CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.just([1])
)
RECORDS = st.dictionaries(st.sampled_from("abc"), ANY_CELLS, min_size=2)


@settings(max_examples=60)
@given(st.lists(st.one_of(RECORDS, RECORDS.map(MappingProxyType))), st.sampled_from([(), ("a",), ("a", "b")]))
def test_simple_rows_are_those_that_are_made_one_by_one(values: list[Any], columns: tuple[str, ...]) -> None:
    writer = RowWriter(columns, None)
    found = writer.simple_rows(values)
    is_simple = all(type(value) is dict and set(columns) <= value.keys() for value in values) and not any(
        type(value[column]) is list for value in values for column in columns
    )
    if values and is_simple:
        assert found == [tuple(writer.row(value)) for value in values]
    else:
        assert found is None
