"""Rows of files as objects: what fits, and what is said of a row that does not."""

from __future__ import annotations

import asyncio
import enum
import sqlite3
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import pyarrow
import pyarrow.parquet as parquet
import pydantic
import pytest

from asyncstream import (
    CsvSource,
    JsonLinesSource,
    ParquetSource,
    Pipeline,
    PipelineError,
    SourceError,
    SqliteSource,
)
from asyncstream.connectors import FrameSource, RejectedLine
from asyncstream.connectors.models import Unfit, reader


class Colour(enum.Enum):
    RED = "r"
    TWO = 2


@dataclass
class City:
    name: str
    inside: City | None = None


class Point(NamedTuple):
    x: float
    y: int = 0


class Tags(TypedDict):
    first: str
    rest: NotRequired[list[int]]


class Model(pydantic.BaseModel):
    n: int


@dataclass
class Order:
    id: int
    price: Decimal
    at: datetime
    day: date | None
    colour: Colour
    kind: Literal["a", 1]
    city: City
    points: list[Point]
    pair: tuple[int, str]
    by_name: dict[str, Model]
    tags: Tags
    anything: Any
    is_new: bool = False
    seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.id < 0:
            raise ValueError("negative")


ROW = """{"id":1,"price":"1.10","at":"2024-01-01T00:00:00Z","day":null,"colour":2,"kind":"a",
"city":{"name":"A","inside":{"name":"B"}},"points":[{"x":1},{"x":0.5,"y":2}],"pair":[1,"b"],"by_name":{"m":{"n":1}},
"tags":{"first":"f","rest":[1]},"anything":[null],"more":1}""".replace("\n", "")

ORDER = Order(
    1,
    Decimal("1.10"),
    datetime(2024, 1, 1, tzinfo=UTC),
    None,
    Colour.TWO,
    "a",
    City("A", City("B")),
    [Point(1.0), Point(0.5, 2)],
    (1, "b"),
    {"m": Model(n=1)},
    {"first": "f", "rest": [1]},
    [None],
)


def read(source: Any) -> tuple[list[Any], list[Any]]:
    found: list[Any] = []
    rejected: list[Any] = []
    pipeline = Pipeline()
    stream = pipeline.source(source, name="in")
    stream.to(found, name="out")
    if source.rejects:
        stream.rejected.to(rejected, name="rejected")
    asyncio.run(pipeline.run())
    return found, rejected


def test_lines_become_objects_of_every_kind_inside_each_other(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(ROW)
    assert read(JsonLinesSource(tmp_path / "a", model=Order))[0] == [ORDER]


@pytest.mark.parametrize(
    ("good", "bad", "reason"),
    [
        ('"id":1', '"id":"1"', "field id: expected int, got '1'"),
        ('"id":1', '"id":true', "field id: expected int, got True"),
        ('"id":1', '"id":1.0', "field id: expected int, got 1.0"),
        ('"id":1', '"id":-1', "no Order: ValueError: negative"),
        ('"id":1,', "", "field id: it is missing"),
        ('"price":"1.10"', '"price":"x"', "field price: expected Decimal, got 'x'"),
        ('"at":"2024-01-01T00:00:00Z"', '"at":5', "field at: expected datetime, got 5"),
        ('"day":null', '"day":"x"', "field day: expected date, got 'x'"),
        ('"colour":2', '"colour":[]', "field colour: expected a value of Colour, got []"),
        ('"kind":"a"', '"kind":true', "field kind: expected 'a' or 1, got True"),
        ('"name":"B"', '"name":null', "field city.inside.name: expected str, got None"),
        ('"y":2', '"y":"2"', "field points[1].y: expected int, got '2'"),
        ('[1,"b"]', '[1,"b",2]', "field pair: expected a list of 2, got [1, 'b', 2]"),
        ('"n":1', '"n":[]', "field by_name['m'].n: Input should be a valid integer"),
        ('"rest":[1]', '"rest":5', "field tags.rest: expected a list, got 5"),
    ],
)
def test_line_that_does_not_fit_is_malformed(tmp_path: Path, good: str, bad: str, reason: str) -> None:
    assert good in ROW
    wrong = ROW.replace(good, bad)
    (tmp_path / "a").write_text(f"{ROW}\n{wrong}\n{ROW}\n")
    found, rejected = read(JsonLinesSource(tmp_path / "a", model=Order, on_malformed="reject"))
    assert found == [ORDER] * 2
    assert rejected == [RejectedLine(str(tmp_path / "a"), 2, wrong, reason)]
    with pytest.raises(SourceError) as raised:
        read(JsonLinesSource(tmp_path / "a", model=Order))
    assert f"line 2: {reason}; on_malformed=" in str(raised.value)


@dataclass
class Row:
    n: int
    price: float | None
    is_new: bool
    colour: Colour
    text: str
    day: date


@dataclass
class Raw:
    data: bytes
    more: bytes | None = None
    took: timedelta = timedelta()


@pytest.mark.parametrize("kind", ["sqlite", "parquet", "frame"])
def test_bytes_of_a_table_are_bytes(tmp_path: Path, kind: str) -> None:
    rows: list[dict[str, Any]] = [{"data": b"\0\xff", "more": None}, {"data": b"", "more": b"x"}]
    if kind == "sqlite":
        connection = sqlite3.connect(tmp_path / "in")
        connection.execute("CREATE TABLE t (data, more)")
        connection.executemany("INSERT INTO t VALUES (:data, :more)", rows)
        connection.commit()
        connection.close()
        source: Any = SqliteSource(tmp_path / "in", "t", model=Raw)
    else:
        table = pyarrow.Table.from_pylist(rows).append_column("took", [[timedelta(hours=1)] * 2])
        parquet.write_table(table, tmp_path / "in")
        source = (
            FrameSource(table, model=Raw) if kind == "frame" else ParquetSource(tmp_path / "in", model=Raw)
        )
    took = timedelta() if kind == "sqlite" else timedelta(hours=1)
    assert read(source)[0] == [Raw(took=took, **row) for row in rows]


@dataclass
class Tagged:
    tags: dict[str, int]


TEXT = pyarrow.string()


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (pyarrow.map_(TEXT, pyarrow.int8()), [("a", 1), ("b", 2)], ""),
        (pyarrow.map_(TEXT, pyarrow.int8()), [], ""),
        (pyarrow.map_(TEXT, TEXT), [("a", "x")], "field tags['a']: expected int"),
        (
            pyarrow.map_(pyarrow.struct([("no", TEXT)]), TEXT),
            [({"no": "hash"}, "")],
            "field tags: expected an",
        ),
        (pyarrow.list_(pyarrow.list_(TEXT)), [["a", "b"]], "field tags: expected an object"),
    ],
)
def test_a_map_of_a_table_is_a_dict(kind: Any, value: list[Any], reason: str) -> None:
    table = pyarrow.table({"tags": pyarrow.array([value], kind)})
    found, rejected = read(FrameSource(table, model=Tagged, on_malformed="reject"))
    if reason:
        assert rejected[0].reason.startswith(reason)
    else:
        assert found == [Tagged(dict(value))]


def test_bytes_of_a_line_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"model: expected a type that a row can hold for Raw\.data"):
        JsonLinesSource(tmp_path / "in", model=Raw)


@dataclass
class Wide:
    many: set[Any]
    much: float


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"many": [[1]], "much": 1.0}, "field many: no set: "),
        ({"many": [1], "much": 10**400}, "field much: expected float, got 1000"),
    ],
)
def test_row_that_python_itself_refuses_does_not_fit(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unfit) as raised:
        reader(Wide)(row)
    assert str(raised.value).startswith(reason)


class Checked(pydantic.BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def known(cls, n: int) -> str:
        return {1: "one"}[n]


def test_what_a_validator_raises_costs_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}\n{"n": "x"}\n{"n": 1}\n')
    found, rejected = read(JsonLinesSource(path, model=Checked, on_malformed="reject"))
    assert [row.n for row in found] == ["one", "one"]
    assert rejected[0].reason == "KeyError: 2"
    assert rejected[1].reason.startswith("field n: Input should be a valid integer")


class Unfinished(pydantic.BaseModel):
    inside: Missing | None = None  # type: ignore[name-defined]  # noqa: F821


def test_a_model_that_is_not_complete_costs_the_job_and_no_row(tmp_path: Path) -> None:
    (path := tmp_path / "a.jsonl").write_text("{}\n")
    with pytest.raises(SourceError, match="PydanticUserError: `Unfinished` is not fully defined"):
        read(JsonLinesSource(path, model=Unfinished, on_malformed="reject"))


def test_a_row_that_is_nested_deeper_than_python_goes_costs_itself(tmp_path: Path) -> None:
    path, depth = tmp_path / "a.jsonl", 900
    line = '{"name": "a", "inside": ' * depth + "null" + "}" * depth
    path.write_text(f'{{"name": "b"}}\n{line}\n{{"name": "c"}}\n')
    found, rejected = read(JsonLinesSource(path, model=City, on_malformed="reject"))
    assert found == [City("b"), City("c")]
    assert rejected[0].line_number == 2
    assert "nested more than 100 levels deep" in rejected[0].reason
    row: Any = None
    for _ in range(depth):  # as a table may have it
        row = {"name": "a", "inside": row}
    with pytest.raises(Unfit, match="it is nested too deeply"):
        reader(City)(row)


def test_text_of_a_csv_file_becomes_what_the_fields_say(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "n,price,is_new,colour,text,day,more\n1,,true,2,5,2024-01-01,x\n2,1e3,0,r,,2024-01-02,y\n"
    )
    assert read(CsvSource(path, model=Row))[0] == [
        Row(1, None, True, Colour.TWO, "5", date(2024, 1, 1)),
        Row(2, 1000.0, False, Colour.RED, "", date(2024, 1, 2)),
    ]
    path.write_text("n,price,is_new,colour,text,day\n1,,yes,2,5,2024-01-01\n")
    _, rejected = read(CsvSource(path, model=Row, on_malformed="reject"))
    assert [(line.line_number, line.reason) for line in rejected] == [
        (2, "field is_new: expected bool, got 'yes'")
    ]


@dataclass
class Numbers:
    whole: int = 0
    real: float = 0.0
    exact: Decimal = Decimal(0)


@pytest.mark.parametrize("field", ["whole", "real", "exact"])
def test_a_number_with_an_underscore_is_none(field: str) -> None:
    fit = reader(Numbers, is_text=True)
    assert getattr(fit({field: "1234"}), field) == 1234
    with pytest.raises(Unfit, match="got '12_34'"):
        fit({field: "12_34"})


def test_rows_of_a_table_become_objects(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "db")
    connection.execute("CREATE TABLE t (n, price, is_new, colour, text, day)")
    connection.execute("INSERT INTO t VALUES (1, NULL, 1, 'r', 'x', '2024-01-01')")
    connection.commit()
    first = Row(1, None, True, Colour.RED, "x", date(2024, 1, 1))
    assert read(SqliteSource(tmp_path / "db", "t", model=Row))[0] == [first]
    connection.execute("INSERT INTO t VALUES ('2', NULL, 1, 'r', 'x', '2024-01-01')")
    connection.commit()
    connection.close()
    found: list[Any] = []
    pipeline = Pipeline()
    pipeline.source(SqliteSource(tmp_path / "db", "t", model=Row), name="in").to(found, name="out")
    with pytest.raises(SourceError, match=r"row 2 of table 't' of .*: field n: expected int, got '2'"):
        asyncio.run(pipeline.run())
    assert found == [first]


@dataclass
class Odd:
    fn: range


@dataclass
class Unknown:
    n: NotThere  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("model", [int, "Row", Row(1, None, True, Colour.RED, "", date.min), Odd, Unknown])
def test_class_that_no_row_can_become_is_refused(model: Any) -> None:
    for source in (CsvSource, JsonLinesSource):
        with pytest.raises(PipelineError, match="model: expected"):
            source("a", model=model)
