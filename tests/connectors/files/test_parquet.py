"""Parquet as a source and as a sink: one file, or a directory of parts where checkpoints are kept."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from time import process_time
from types import MappingProxyType
from typing import Any
from uuid import UUID

import numpy
import pandas
import pytest

from asyncstream import (
    ArrowIpcSource,
    Checkpoints,
    DirectoryStore,
    ParquetSink,
    ParquetSource,
    Pipeline,
    PipelineError,
    SinkError,
    SourceError,
    WindowResult,
)
from asyncstream.codec import JsonCodec
from asyncstream.errors import SinkBroken
from tests.arrow_files import write_ipc

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write_all(sink: ParquetSink, *writes: Sequence[Any]) -> None:
    async def main() -> None:
        await sink.open()
        try:
            for values in writes:
                await sink.write(values, None)
            await sink.flush()
        finally:
            await sink.close()

    asyncio.run(main())


def rows_of(path: Path) -> list[Any]:
    rows: list[Any] = parquet.read_table(path).to_pylist()
    return rows


async def read_on(source: ParquetSource[Any], position: Any = None) -> list[Any]:
    await source.open()
    if position is not None:
        await source.can_seek(position)
        await source.seek(position)
    rows: list[Any] = []
    try:
        while (batch := await source.read()) is not None:
            rows += batch.values
    finally:
        await source.close()
    return rows


class Timestamp(datetime):
    """A class of another library's."""


class Color(Enum):
    RED = "red"


@dataclass
class Plane:
    seats: int
    name: str | None = None


# ---------------------------------------------------------------------- values


def test_values_are_kept_with_their_types(tmp_path: Path) -> None:
    row = {
        "whole": 1,
        "float": 1.5,
        "text": "é",
        "nothing": None,
        "yes": True,
        "bytes": b"\x00",
        "moment": datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "exact": Decimal("1.25"),
        "list": [1, 2],
        "inside": {"a": {"b": 1}},
    }
    write_all(ParquetSink(tmp_path / "out.parquet"), [row])
    assert rows_of(tmp_path / "out.parquet") == [row]
    assert asyncio.run(read_on(ParquetSource(tmp_path / "out.parquet"))) == [row]


def test_records_of_every_kind_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    result = WindowResult("k", 0, 60_000, {"n": 3})
    write_all(ParquetSink(path), [result])
    assert rows_of(path) == [
        {
            "key": "k",
            "start": datetime(1970, 1, 1, tzinfo=UTC),
            "end": datetime(1970, 1, 1, 0, 1, tzinfo=UTC),
            "n": 3,
        }
    ]
    write_all(ParquetSink(path, existing="overwrite"), [Plane(3), Plane(4, "x")])
    assert rows_of(path) == [{"seats": 3, "name": None}, {"seats": 4, "name": "x"}]
    odd = {
        "color": Color.RED,
        "id": UUID(int=1),
        "set": {2, 1},
        "number": numpy.float32(0.5),
        "array": numpy.arange(2),
    }
    write_all(ParquetSink(path, existing="overwrite"), [odd])
    assert rows_of(path) == [
        {"color": "red", "id": str(UUID(int=1)), "set": [1, 2], "number": 0.5, "array": [0, 1]}
    ]
    own = ParquetSink(
        path,
        existing="overwrite",
        default=lambda value: abs(value.imag) if value == 2j else (_ for _ in ()).throw(TypeError),
    )
    write_all(own, [{"complex": 2j}])
    assert rows_of(path) == [{"complex": 2.0}]


@dataclass
class Fleet:
    planes: list[Plane]
    first: Plane
    by_name: dict[str, Plane]


def test_what_is_inside_others_is_written_as_it_is_by_itself(tmp_path: Path) -> None:
    fleet = Fleet([Plane(3), Plane(4, "x")], Plane(5), {"a": Plane(6)})
    odd = {"colors": [Color.RED, None], "ids": (UUID(int=1),), "view": MappingProxyType({"set": {2, 1}})}
    planes = [{"seats": 3, "name": None}, {"seats": 4, "name": "x"}]
    path = tmp_path / "out.parquet"
    write_all(ParquetSink(path), [fleet])
    assert rows_of(path) == [
        {
            "planes": planes,
            "first": {"seats": 5, "name": None},
            "by_name": {"a": {"seats": 6, "name": None}},
        }
    ]
    write_all(ParquetSink(path, existing="overwrite"), [odd])
    assert rows_of(path) == [{"colors": ["red", None], "ids": [str(UUID(int=1))], "view": {"set": [1, 2]}}]

    def default(value: Any) -> Any:
        if isinstance(value, complex):
            return value.imag
        raise TypeError

    write_all(ParquetSink(path, existing="overwrite", default=default), [{"list": [2j], "in": {"a": 3j}}])
    assert rows_of(path) == [{"list": [2.0], "in": {"a": 3.0}}]


def test_what_pandas_calls_not_a_time_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    rows = [{"at": pandas.NaT}, {"at": pandas.Timestamp("2026-12-01")}, {"at": pandas.NaT}]
    write_all(ParquetSink(path), rows)
    assert rows_of(path) == [{"at": None}, {"at": datetime(2026, 12, 1)}, {"at": None}]


def test_schema_is_found_in_the_first_row_group(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    rows = [{"a": 1}, {"a": 2.5, "b": None}, {"c": {"x": 1}}, {"c": {"y": 2}}]
    write_all(ParquetSink(path, row_group=4), rows[:1], rows[1:])
    assert rows_of(path) == [
        {"a": 1.0, "b": None, "c": None},
        {"a": 2.5, "b": None, "c": None},
        {"a": None, "b": None, "c": {"x": 1, "y": None}},
        {"a": None, "b": None, "c": {"x": None, "y": 2}},
    ]
    assert parquet.read_schema(path).field("b").type == pyarrow.string()
    with pytest.raises(SinkError, match="there is no column for 'd': name all of them, schema="):
        write_all(ParquetSink(path, row_group=1, existing="overwrite"), [{"a": 1}], [{"a": 2}, {"d": 1}])
    assert rows_of(path) == [{"a": 1}, {"a": 2}]  # what came before it is there


def test_schema_and_columns_may_be_given(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    schema = pyarrow.schema([("n", pyarrow.int16()), ("text", pyarrow.string())])
    write_all(ParquetSink(path, schema=schema), [{"n": 1, "more": 2, "text": None}])
    assert parquet.read_schema(path).equals(schema)
    assert rows_of(path) == [{"n": 1, "text": None}]
    write_all(ParquetSink(path, columns=["b", "a"], existing="overwrite"), [{"a": 1, "b": 2, "c": 3}])
    assert rows_of(path) == [{"b": 2, "a": 1}]
    with pytest.raises(SinkError, match="KeyError: 'b'"):
        write_all(ParquetSink(path, columns=["b"], existing="overwrite"), [{"a": 1}])
    with pytest.raises(SinkError, match=r"cannot write \{'n': 70000.*"):
        write_all(ParquetSink(path, schema=schema, existing="overwrite"), [{"n": 70_000, "text": ""}])


@pytest.mark.parametrize("bad", [{"a": "text"}, 7, {}, {1: 2}, {"a": object()}])
def test_element_that_does_not_fit_is_named_and_those_before_it_are_written(tmp_path: Path, bad: Any) -> None:
    path = tmp_path / "out.parquet"
    refused: list[Any] = []
    pipeline = Pipeline()
    end = pipeline.source([{"a": 1}, bad, {"a": 3}]).to(ParquetSink(path), on_error="route")
    end.failed.map(lambda call: call.value).to(refused)
    pipeline.run_blocking()
    assert refused == [bad]
    assert rows_of(path) == [{"a": 1}, {"a": 3}]


MOMENT = datetime(2026, 1, 1, 12)
SUMMER, WINTER = (timezone(timedelta(hours=hours)) for hours in (2, 1))


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (MOMENT, MOMENT.replace(tzinfo=UTC)),
        (MOMENT.replace(tzinfo=UTC), MOMENT),
        (date(2026, 1, 1), MOMENT),
        ("text", b"bytes"),
        (timedelta(days=1), 7),
        (Timestamp(2026, 1, 1), MOMENT.replace(tzinfo=UTC)),
    ],
)
def test_values_that_arrow_would_change_are_refused_however_they_come(
    tmp_path: Path, first: Any, second: Any, together: bool
) -> None:
    path = tmp_path / "out.parquet"
    rows = [{"v": first}, {"v": second}]
    writes = [rows] if together else [rows[:1], rows[1:]]
    with pytest.raises(SinkError, match=r"column 'v' holds .*, and this is .*: Arrow has one type"):
        write_all(ParquetSink(path), *writes)
    assert rows_of(path) == rows[:1]


@pytest.mark.parametrize("given", [False, True])
def test_values_that_hold_themselves_are_refused(tmp_path: Path, given: bool) -> None:
    around: list[Any] = []
    around.append(around)
    within: dict[str, Any] = {}
    within["v"] = [within]
    deep: list[Any] = []
    for _ in range(3000):
        deep = [deep]
    schema = pyarrow.schema([("v", pyarrow.list_(pyarrow.int64()))]) if given else None
    pipeline, failed = Pipeline(), list[Any]()
    values: list[Any] = [[1], around, within, deep, [2]]
    written = pipeline.source([{"v": value} for value in values]).to(
        ParquetSink(tmp_path / "out", schema=schema), on_error="route"
    )
    written.failed.to(failed)
    asyncio.run(pipeline.run())
    assert parquet.read_table(tmp_path / "out")["v"].to_pylist() == [[1], [2]]
    assert len(failed) == 3


def test_values_that_arrow_would_change_are_refused_by_a_job_that_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        first = ParquetSink(tmp_path / "out")
        await first.recover(None)
        await first.write([{"at": MOMENT.replace(tzinfo=UTC)}], None)
        position = await first.prepare(1)
        await first.commit(1)
        await first.close()
        second = ParquetSink(tmp_path / "out")
        await second.recover(position)
        with pytest.raises(SinkError, match="holds a datetime with a zone, and this is a datetime without"):
            await second.write([{"at": MOMENT}], None)
        await second.close()

    asyncio.run(main())


@pytest.mark.parametrize("together", [True, False])
def test_moments_of_several_zones_are_one_column(tmp_path: Path, together: bool) -> None:
    path = tmp_path / "out.parquet"
    rows = [{"at": MOMENT.replace(tzinfo=zone)} for zone in (SUMMER, WINTER, UTC)]
    write_all(ParquetSink(path), *([rows] if together else [[row] for row in rows]))
    assert rows_of(path) == rows


def test_who_gives_the_schema_says_what_becomes_of_values(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    schema = pyarrow.schema([("at", pyarrow.timestamp("us", "UTC"))])
    write_all(ParquetSink(path, schema=schema), [{"at": MOMENT}, {"at": MOMENT.replace(tzinfo=UTC)}])
    assert rows_of(path) == [{"at": MOMENT.replace(tzinfo=UTC)}] * 2


@pytest.mark.parametrize(
    ("kind", "fits", "lost"),
    [
        (pyarrow.int64(), 2.0, 0.5),
        (pyarrow.int64(), Decimal(2), Decimal("0.5")),
        (pyarrow.date32(), 2, 0.5),
        (pyarrow.float32(), 3.4028235e38, 1e300),  # as the largest one is often written
        (pyarrow.float32(), -3.4028235677973362e38, 3.4028235677973366e38),
        (pyarrow.float16(), 65519.0, -65520.0),
        (pyarrow.dictionary(pyarrow.int8(), pyarrow.int64()), 2.0, 0.5),
        (pyarrow.list_(pyarrow.int8()), [1, None, 2.0], [1, None, 0.5]),
        (pyarrow.struct([("x", pyarrow.int8())]), {"x": 1.0}, {"x": 0.5}),
        (pyarrow.struct([("x", pyarrow.int8()), ("y", pyarrow.int8())]), (1, 2.0), (1, 0.5)),
        (pyarrow.map_(pyarrow.string(), pyarrow.list_(pyarrow.int8())), {"a": [1.0]}, {"a": [1, 0.5]}),
    ],
    ids=str,
)
def test_no_schema_of_the_users_cuts_a_number(tmp_path: Path, kind: Any, fits: Any, lost: Any) -> None:
    path, failed = tmp_path / "out.parquet", list[Any]()
    pipeline = Pipeline()
    rows = [{"v": fits}, {"v": lost}, {"v": None}, {"v": fits}]
    sink = ParquetSink(path, schema=pyarrow.schema([("v", kind)]))
    written = pipeline.source(rows).to(sink, on_error="route")
    written.failed.to(failed)
    pipeline.run_blocking()
    (failure,) = failed
    assert failure.value == {"v": lost}
    assert "column 'v' holds" in str(failure.error)
    assert parquet.read_table(path).num_rows == 3


def test_time_of_a_zone_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    write_all(ParquetSink(path), [{"at": time(12, tzinfo=SUMMER), "plain": time(12)}])
    assert rows_of(path) == [{"at": "12:00:00+02:00", "plain": time(12)}]


# ---------------------------------------------------------------------- one file


def test_file_is_there_when_all_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"

    async def main() -> None:
        sink = ParquetSink(path, row_group=2)
        await sink.open()
        await sink.write([{"a": 1}, {"a": 2}, {"a": 3}], None)
        assert not path.exists()
        await sink.flush()
        assert rows_of(path) == [{"a": 1}, {"a": 2}, {"a": 3}]
        await sink.close()

    asyncio.run(main())
    assert [file.name for file in tmp_path.iterdir()] == ["out.parquet"]
    with pytest.raises(SinkError, match="exists: pass existing='overwrite'"):
        write_all(ParquetSink(path))
    write_all(ParquetSink(path, existing="overwrite"))
    assert rows_of(path) == []


def test_wrong_arguments_and_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="existing: expected one of 'refuse', 'overwrite'"):
        ParquetSink("x", existing="append")  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match=r"schema: expected a pyarrow\.Schema"):
        ParquetSink("x", schema=["a"])
    with pytest.raises(PipelineError, match="columns: expected none, for a schema names them"):
        ParquetSink("x", schema=pyarrow.schema([("a", pyarrow.int8())]), columns=["a"])
    with pytest.raises(PipelineError, match="row_group: expected"):
        ParquetSink("x", row_group=0)
    with pytest.raises(SinkError, match="there is no directory"):
        write_all(ParquetSink(tmp_path / "none" / "out.parquet"))
    with pytest.raises(SinkError, match="is a directory: only a job with checkpoints"):
        write_all(ParquetSink(tmp_path))
    with pytest.raises(SinkError, match="is a directory: only a job with checkpoints"):
        write_all(ParquetSink(f"{tmp_path}/out/"))
    (tmp_path / "text.parquet").write_text("no parquet")
    with pytest.raises(SourceError, match=r"cannot read .*text\.parquet"):
        asyncio.run(read_on(ParquetSource(tmp_path / "text.parquet")))
    with pytest.raises(SourceError, match="cannot read"):
        asyncio.run(read_on(ParquetSource(tmp_path / "none.parquet")))


# ---------------------------------------------------------------------- a directory


def test_job_with_checkpoints_writes_parts_and_goes_on(tmp_path: Path) -> None:
    source, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    rows = [{"n": number, "text": str(number)} for number in range(5000)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), source, row_group_size=700)

    def pipeline(fails_at: int) -> Pipeline:
        def looks(row: dict[str, Any]) -> dict[str, Any]:
            if row["n"] == fails_at:
                raise ValueError("on purpose")
            return row

        built = Pipeline("rows")
        read = built.source(ParquetSource(source, batch=100), name="in")
        read.map(looks, name="looks").to(ParquetSink(out, row_group=300), name="out")
        return built

    kept = Checkpoints(store=DirectoryStore(tmp_path / "kept"), every=0.001)
    for fails_at in (1700, 3600):
        with pytest.raises(Exception, match="on purpose"):
            asyncio.run(pipeline(fails_at).run(checkpoints=kept))
    asyncio.run(pipeline(-1).run(checkpoints=kept))
    assert rows_of(out) == rows
    assert asyncio.run(read_on(ParquetSource(out))) == rows
    assert not [file.name for file in out.iterdir() if file.name.startswith(".")]
    assert "exactly once" in str(pipeline(-1).guarantees()[0])
    (tmp_path / "file.parquet").write_text("")
    with pytest.raises(SinkError, match="is a file, and a job with checkpoints writes a directory"):
        asyncio.run(ParquetSink(tmp_path / "file.parquet").can_recover(None))


@pytest.mark.parametrize(
    ("first", "later", "fits"),
    [
        (1, 0.5, False),
        (1, Decimal("1.5"), False),
        (1, 2.0, True),
        (0.5, 1, True),
        ([1], [0.5], False),
        ([1], [], True),
        ([1], [None, 2], True),
        ({"x": 1}, {"x": 0.5}, False),
        ({"x": 1}, {"x": 1, "y": 2}, False),
        ({"x": 1, "y": 2}, {"x": 1}, True),
        ([date(2026, 1, 1)], [datetime(2026, 1, 1, 5)], False),
        ([{"x": [1]}], [{"x": [0.5]}], False),
        (Decimal("1.5"), 2, True),
    ],
)
def test_what_comes_after_the_first_write_is_written_as_it_is_or_refused(
    tmp_path: Path, first: Any, later: Any, fits: bool
) -> None:
    sink = ParquetSink(path := tmp_path / "out.parquet", row_group=1)

    async def main() -> None:
        await sink.open()
        await sink.write([{"a": first}], None)
        if fits:
            await sink.write([{"a": later}], None)
        else:
            with pytest.raises(
                SinkError, match=r"column 'a' holds .*, which would change this: give the schema"
            ):
                await sink.write([{"a": later}], None)
        await sink.flush()
        await sink.close()

    asyncio.run(main())
    written = [row["a"] for row in rows_of(path)]
    if isinstance(later, dict):
        later = dict.fromkeys(first) | later
    assert written == ([first, later] if fits else [first])


@pytest.mark.parametrize(
    ("first", "later"),
    [(2**60 + 1, 0.5), (0.5, 2**60 + 1), ([2**60 + 1], [0.5])],
)
@pytest.mark.parametrize("together", [False, True])
def test_a_value_that_has_no_type_with_those_before_costs_itself(
    tmp_path: Path, first: Any, later: Any, together: bool
) -> None:
    sink = ParquetSink(path := tmp_path / "out.parquet")

    async def main() -> None:
        await sink.open()
        batches = [[first, later]] if together else [[first], [later]]
        for batch in batches[:-1]:
            await sink.write([{"a": value} for value in batch], None)
        with pytest.raises(SinkError, match=r"cannot write \{'a': .*Arrow") as refused:
            await sink.write([{"a": value} for value in batches[-1]], None)
        assert not isinstance(refused.value, SinkBroken)
        assert sink.taken() == len(batches[-1]) - 1
        await sink.flush()
        await sink.close()

    asyncio.run(main())
    assert [row["a"] for row in rows_of(path)] == [first]


def test_columns_that_come_one_by_one_cost_no_more_than_what_they_hold(tmp_path: Path) -> None:
    sink = ParquetSink(path := tmp_path / "out.parquet")
    rows = [{"a": number, f"b{number}": "x"} for number in range(300)]

    async def main() -> None:
        await sink.open()
        for row in rows:
            await sink.write([row], None)
        await sink.flush()
        await sink.close()

    started = process_time()
    asyncio.run(main())
    assert process_time() - started < 3  # it took 13 s to look at all before again with each
    assert [{name: row[name] for name in row if row[name] is not None} for row in rows_of(path)] == rows


# ---------------------------------------------------------------------- the source


def test_directory_is_read_in_the_order_of_names_and_on_when_files_come(tmp_path: Path) -> None:
    for name, number in (("b.parquet", 2), ("a.parquet", 1), ("_c.parquet", 9), (".d.parquet", 9)):
        parquet.write_table(pyarrow.table({"n": [number, number * 10]}), tmp_path / name)
    (tmp_path / "notes.txt").write_text("")

    async def main() -> None:
        source = ParquetSource(tmp_path, batch=1)
        await source.open()
        seen: list[Any] = []
        shares = [source.progress()]
        while (batch := await source.read()) is not None:
            seen += [row["n"] for row in batch.values]
            shares.append(source.progress())
        assert seen == [1, 10, 2, 20]
        assert shares == [0.0, 0.25, 0.5, 0.75, 1.0]
        position = source.position()
        await source.close()
        parquet.write_table(pyarrow.table({"n": [3]}), tmp_path / "c.parquet")
        assert await read_on(ParquetSource(tmp_path), position) == [{"n": 3}]

    asyncio.run(main())


def test_links_in_a_folder_to_what_is_read_there_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for name, number in (("in/b", 1), ("in/day=2/c", 2), ("elsewhere", 3)):
        path = tmp_path / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.table({"n": [number]}), path)
    (folder / "a.parquet").symlink_to("b.parquet")
    (folder / "day=9").symlink_to("day=2")
    (folder / "loop").symlink_to(".")
    (folder / "d.parquet").symlink_to(tmp_path / "elsewhere.parquet")
    (tmp_path / "by-link").symlink_to("in")
    rows = asyncio.run(read_on(ParquetSource(tmp_path / "by-link")))
    assert rows == [{"n": 1}, {"n": 2, "day": 2}, {"n": 3}]


def test_folder_is_not_read_on_where_files_were_added_before_the_position(tmp_path: Path) -> None:
    for name in "bcd":
        parquet.write_table(pyarrow.table({"n": [1, 2]}), tmp_path / f"{name}.parquet")

    async def main() -> None:
        source = ParquetSource(tmp_path)
        await source.open()
        await source.read()
        await source.read()
        position = source.position()
        await source.close()
        (tmp_path / "b.parquet").unlink()  # what was read may go
        assert await read_on(ParquetSource(tmp_path), position) == [{"n": 1}, {"n": 2}]
        for name in ("a.parquet", "bb.parquet"):
            parquet.write_table(pyarrow.table({"n": [3]}), tmp_path / name)
        with pytest.raises(SourceError, match="files were added whose names come before its own"):
            await ParquetSource(tmp_path).can_seek(position)

    asyncio.run(main())


@pytest.mark.parametrize("source", [ParquetSource, ArrowIpcSource])
async def test_file_that_cannot_be_read_is_not_left_open(tmp_path: Path, source: Any) -> None:
    (tmp_path / "in").write_bytes(b"")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SourceError) as refused:
        await read_on(source(tmp_path / "in"))
    assert len(os.listdir("/proc/self/fd")) == before, refused  # which still holds the frames


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"n": [1]}), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    with pytest.raises(SourceError, match=r"cannot read .*b\.parquet: "):
        asyncio.run(read_on(ParquetSource(tmp_path)))
    damaged = bytearray((tmp_path / "a.parquet").read_bytes())
    damaged[4:20] = bytes(16)
    (tmp_path / "a.parquet").write_bytes(damaged)
    with pytest.raises(SourceError, match=r"cannot read .*a\.parquet: "):
        asyncio.run(read_on(ParquetSource(tmp_path / "a.parquet")))


SOURCES = pytest.mark.parametrize(
    ("source", "write", "ending"),
    [
        (ParquetSource, parquet.write_table, "parquet"),
        (ArrowIpcSource, write_ipc, "feather"),
    ],
    ids=["parquet", "ipc"],
)


@SOURCES
def test_column_that_no_file_has_is_refused(tmp_path: Path, source: Any, write: Any, ending: str) -> None:
    write(pyarrow.table({"n": [1], "s": [{"x": 1}]}), tmp_path / f"a.{ending}")
    write(pyarrow.table({"n": [2], "more": [3]}), tmp_path / f"b.{ending}")
    with pytest.raises(SourceError, match=r"no column 'nn' for columns=, there are \['n', 's', 'more'\]"):
        asyncio.run(read_on(source(tmp_path, columns=["n", "nn"])))
    found = asyncio.run(read_on(source(tmp_path, columns=["n", "more"])))
    assert found == [{"n": 1}, {"n": 2, "more": 3}]


@SOURCES
def test_file_without_any_of_the_columns_has_rows_all_the_same(
    tmp_path: Path, source: Any, write: Any, ending: str
) -> None:
    (tmp_path / "day=1").mkdir()
    write(pyarrow.table({"n": [1, 2]}), tmp_path / "day=1" / f"a.{ending}")
    write(pyarrow.table({"m": [3]}), tmp_path / f"b.{ending}")
    assert asyncio.run(read_on(source(tmp_path, columns=["day"]))) == [{"day": 1}, {"day": 1}, {}]
    assert asyncio.run(read_on(source(tmp_path, columns=["m"]))) == [{}, {}, {"m": 3}]


@SOURCES
async def test_the_files_of_a_folder_are_opened_when_they_are_read(
    tmp_path: Path, source: Any, write: Any, ending: str
) -> None:
    write(pyarrow.table({"n": [1]}), tmp_path / f"a.{ending}")
    (tmp_path / f"b.{ending}").write_bytes(b"no table" * 10)
    reading = source(tmp_path)
    await reading.open()
    assert (await reading.read()).values == [{"n": 1}]
    with pytest.raises(SourceError, match=rf"cannot read .*b\.{ending}"):
        await reading.read()
    await reading.close()


def test_field_inside_a_column_may_be_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    parquet.write_table(pyarrow.table({"n": [1], "s": [{"x": 1, "y": 2}]}), path)
    assert asyncio.run(read_on(ParquetSource(path, columns=["s.x"]))) == [{"s": {"x": 1}}]


@SOURCES
def test_columns_of_one_name_are_refused(tmp_path: Path, source: Any, write: Any, ending: str) -> None:
    write(pyarrow.table([[1], [2], [3]], names=["x", "y", "x"]), tmp_path / f"in.{ending}")
    for columns in (None, ["x"]):
        with pytest.raises(SourceError, match=r"in\..*: it has several columns 'x'"):
            asyncio.run(read_on(source(tmp_path / f"in.{ending}", columns=columns)))


@dataclass
class Flight:
    at: datetime
    took: timedelta


def test_nanoseconds_are_read_as_what_python_has(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    at, took = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC), timedelta(microseconds=7)
    types = {"at": pyarrow.timestamp("ns", "UTC"), "took": pyarrow.duration("ns")}
    rows = [{"at": at, "took": took}, {"at": None, "took": None}]
    parquet.write_table(pyarrow.Table.from_pylist(rows, pyarrow.schema(types)), path)
    found = asyncio.run(read_on(ParquetSource(path)))
    assert found == rows
    assert [type(value) for value in found[0].values()] == [datetime, timedelta]
    codec = JsonCodec()
    assert codec.decode(codec.encode(found)) == rows


NANOSECONDS = pyarrow.timestamp("ns")
AT = datetime(2026, 1, 2, 3, 4, 5, 678)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pyarrow.list_(NANOSECONDS), [AT, None]),
        (pyarrow.large_list(NANOSECONDS), [AT]),
        (pyarrow.list_(NANOSECONDS, 1), [AT]),
        (pyarrow.struct([("n", pyarrow.int8()), ("at", pyarrow.list_(NANOSECONDS))]), {"n": 1, "at": [AT]}),
        (pyarrow.map_(pyarrow.string(), pyarrow.duration("ns")), [("a", timedelta(1))]),
    ],
)
def test_nanoseconds_inside_others_are_read_as_what_python_has(tmp_path: Path, kind: Any, value: Any) -> None:
    table = pyarrow.table({"x": pyarrow.array([value, None], kind)})
    write_ipc(table, tmp_path / "in.arrow")
    source: Any = ArrowIpcSource(tmp_path / "in.arrow")
    found = asyncio.run(read_on(source))
    assert repr(found) == repr([{"x": value}, {"x": None}])  # pandas has types that are equal


@pytest.mark.parametrize("view", [pyarrow.list_view, pyarrow.large_list_view])
def test_nanoseconds_in_views_of_lists_are_all_read(tmp_path: Path, view: Any) -> None:
    rows = [{"at": AT, "x": [AT, None], "y": [{"x": [AT]}]}, {"at": AT, "x": [AT], "y": []}]
    lists = view(NANOSECONDS)
    inside = pyarrow.list_(pyarrow.struct([("x", lists)]))
    table = pyarrow.Table.from_pylist(
        rows, pyarrow.schema([("at", NANOSECONDS), ("x", lists), ("y", inside)])
    )
    write_ipc(table, tmp_path / "in.arrow")
    source: Any = ArrowIpcSource(tmp_path / "in.arrow")
    assert asyncio.run(read_on(source)) == rows


def test_nanoseconds_beside_a_value_that_cannot_be_read_are_what_python_has(tmp_path: Path) -> None:
    times = pyarrow.array([AT, AT, AT], NANOSECONDS)
    bad = pyarrow.array([0, 2**62, 0], pyarrow.timestamp("s"))
    write_ipc(pyarrow.table({"at": times.dictionary_encode(), "bad": bad}), tmp_path / "in.arrow")

    async def main() -> Any:
        source: ArrowIpcSource[Any] = ArrowIpcSource(tmp_path / "in.arrow", on_malformed="reject")
        await source.open()
        batch = await source.read()
        await source.close()
        return batch

    batch = asyncio.run(main())
    rows = [*batch.values, *(one.row for one in batch.rejected)]
    assert [type(row["at"]) for row in rows] == [datetime] * 3


def test_years_that_nanoseconds_do_not_reach_are_read(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    row = {"at": datetime(9999, 12, 31, 23, 59, 59, 999999)}
    parquet.write_table(pyarrow.Table.from_pylist([row]), path, use_deprecated_int96_timestamps=True)
    assert asyncio.run(read_on(ParquetSource(path))) == [row]


def test_file_that_is_another_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    parquet.write_table(pyarrow.table({"n": list(range(10))}), path)

    async def main() -> None:
        source = ParquetSource(path, batch=3)
        await source.open()
        await source.read()
        position = source.position()
        assert position is not None
        await source.close()
        assert await read_on(ParquetSource(path, batch=4), position) == [{"n": n} for n in range(3, 10)]
        parquet.write_table(pyarrow.table({"n": list(range(11))}), path)
        with pytest.raises(SourceError, match=r"cannot go on at row 3 of in\.parquet"):
            await ParquetSource(path).can_seek(position)
        path.unlink()
        with pytest.raises(SourceError, match=r"cannot read .*No such file"):
            await ParquetSource(path).can_seek(position)

    asyncio.run(main())


def test_model_and_columns(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    parquet.write_table(
        pyarrow.table({"seats": [1, 2, None], "name": ["a", None, "c"], "more": [0, 0, 0]}), path
    )
    assert asyncio.run(read_on(ParquetSource(path, columns=["name"]))) == [
        {"name": "a"},
        {"name": None},
        {"name": "c"},
    ]
    source = ParquetSource(path, model=Plane)

    async def main() -> None:
        await source.open()
        batch = await source.read()
        assert batch is not None
        assert list(batch.values) == [Plane(1, "a"), Plane(2)]
        with pytest.raises(SourceError, match=r"row 3 of .*: field seats: expected int"):
            await source.read()
        await source.close()

    asyncio.run(main())


@pytest.mark.parametrize("is_there", [False, True])
def test_a_link_leads_to_the_file_that_is_written(tmp_path: Path, is_there: bool) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if is_there:
        (elsewhere / "real").write_text("from before")
    link = tmp_path / "out.parquet"
    link.symlink_to(elsewhere / "real")
    write_all(ParquetSink(link, existing="overwrite" if is_there else "refuse"), [{"n": 1}])
    assert link.is_symlink()
    assert rows_of(elsewhere / "real") == [{"n": 1}]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["elsewhere", "out.parquet", "real"]
