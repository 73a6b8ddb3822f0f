"""Frames of any library as sources, and as the result of a bounded job."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pyarrow
import pytest

from asyncstream import (
    Checkpoints,
    DirectoryStore,
    FrameSource,
    Pipeline,
    PipelineError,
    Restarts,
    SinkError,
    SourceError,
)
from asyncstream.errors import CheckpointError
from asyncstream.testing import source_contract, verify

ROWS = [{"n": number, "text": f"line {number}"} for number in range(40)]
TABLE = pyarrow.Table.from_pylist(ROWS)

DUCKDB = duckdb.connect(config={"threads": 1})
FRAMES: dict[str, Any] = {
    "pyarrow": lambda: TABLE,
    "record batch": lambda: TABLE.to_batches()[0],
    "polars": lambda: polars.DataFrame(ROWS),
    "pandas": lambda: pandas.DataFrame(ROWS),
    "duckdb": lambda: DUCKDB.cursor().from_arrow(TABLE).order("n"),
}
KINDS = pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)


async def with_length(row: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return row | {"length": len(row["text"])}


EXPECTED = [row | {"length": len(str(row["text"]))} for row in ROWS]


@KINDS
async def test_rows_of_a_frame_are_elements(make: Any) -> None:
    found: list[Any] = []
    pipeline = Pipeline()
    pipeline.source(make()).async_map(with_length).to(found)
    await pipeline.run()
    assert found == EXPECTED


@KINDS
async def test_frame_keeps_the_contract_of_sources(make: Any) -> None:
    await verify(source_contract(lambda folder: FrameSource(make, batch=7), ROWS))


async def test_reader_gives_its_rows_once() -> None:
    await verify(
        source_contract(lambda folder: FrameSource(TABLE.to_reader(5), batch=7), ROWS, replayable=False)
    )


def test_single_columns_are_no_frames() -> None:
    found: list[Any] = []
    pipeline = Pipeline()
    pipeline.source(polars.Series([1, 2])).to(found)
    pipeline.run_blocking()
    assert found == [1, 2]


async def test_frame_that_is_another_one_is_refused() -> None:
    source = FrameSource(polars.DataFrame(ROWS), batch=7)
    await source.open()
    await source.read()
    position = source.position()
    await source.close()
    for other, reason in (
        (polars.DataFrame(ROWS[1:]), "its rows were 40 at the checkpoint, and are 39"),
        (polars.DataFrame(ROWS).drop("n"), "its columns were"),
    ):
        source = FrameSource(other)
        assert position is not None
        with pytest.raises(SourceError, match=reason):  # before it is open: who asks changes nothing
            await source.can_seek(position)
        await source.open()
        with pytest.raises(SourceError, match=reason):
            await source.seek(position)
        await source.close()


async def test_look_at_a_frame_converts_none_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    frame, converted = pandas.DataFrame(ROWS), []
    convert = pandas.DataFrame.__arrow_c_stream__

    def told(frame: pandas.DataFrame, requested_schema: Any = None) -> object:
        converted.append(len(frame))
        return convert(frame, requested_schema)

    monkeypatch.setattr(pandas.DataFrame, "__arrow_c_stream__", told)
    await FrameSource(frame).can_seek({"row": 7, "columns": ["n", "text"], "rows": 40})
    assert converted == [0]


@pytest.mark.parametrize("rows", [0, 2])
async def test_query_that_gives_fewer_rows_than_were_read_is_refused(rows: int) -> None:
    source = FrameSource(duckdb.connect().sql(f"select range as n from range({rows})"))
    await source.open()
    await source.seek({"row": 3, "columns": ["n"], "rows": None})
    with pytest.raises(SourceError, match=r"cannot go on behind row 3 of .*: it has fewer now"):
        await source.read()
    await source.close()


@dataclass
class Line:
    n: int
    text: str


async def test_row_that_fits_no_model_costs_itself() -> None:
    frame = polars.DataFrame({"n": [1, 2, 3], "text": ["a", None, "c"]})
    good: list[Any] = []
    bad: list[Any] = []
    pipeline = Pipeline()
    lines = pipeline.source(FrameSource(frame, model=Line, on_malformed="reject"))
    lines.to(good)
    lines.rejected.to(bad)
    await pipeline.run()
    assert good == [Line(1, "a"), Line(3, "c")]
    assert [(each.row_number, each.row) for each in bad] == [(2, {"n": 2, "text": None})]


async def test_query_that_fails_is_an_error_of_the_source() -> None:
    relation = duckdb.connect().sql("select cast('x' || range as int) as n from range(3)")
    pipeline = Pipeline()
    pipeline.source(relation).discard()
    with pytest.raises(SourceError, match=r"cannot read the frame: .*Conversion"):
        await pipeline.run()


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(
        PipelineError, match=r"frame: expected a table with __arrow_c_stream__, .*\.collect\(\)"
    ):
        FrameSource(polars.DataFrame(ROWS).lazy())  # type: ignore[call-overload]
    pipeline = Pipeline()
    pipeline.source(lambda: polars.DataFrame(ROWS)).discard()
    with pytest.raises(SourceError, match="the function gave a frame: give it to FrameSource"):
        pipeline.run_blocking()


# ---------------------------------------------------------------------- results


async def test_results_are_a_frame() -> None:
    enriched = Pipeline().source(polars.DataFrame(ROWS)).async_map(with_length)
    frame = await enriched.to_polars().run()
    assert isinstance(frame, polars.DataFrame)
    assert frame.to_dicts() == EXPECTED


def test_results_are_a_frame_without_a_loop() -> None:
    enriched = Pipeline().source(ROWS).async_map(with_length)
    assert enriched.to_arrow().run_blocking().to_pylist() == EXPECTED
    enriched = Pipeline().source(ROWS).async_map(with_length)
    assert enriched.to_pandas().run_blocking().to_dict("records") == EXPECTED


async def test_several_results_of_one_run() -> None:
    pipeline = Pipeline()
    rows = pipeline.source(ROWS)
    even, odd = rows.branch(lambda row: int(str(row["n"])) % 2 == 0)
    schema = pyarrow.schema([("n", pyarrow.int16()), ("text", pyarrow.string()), ("more", pyarrow.string())])
    left, right = even.to_arrow(schema=schema), odd.to_polars()
    with pytest.raises(SinkError, match="there is no result yet"):
        left.result()
    await pipeline.run()
    assert left.result().schema == schema
    assert left.result()["n"].to_pylist() == list(range(0, 40, 2))
    assert right.result()["n"].to_list() == list(range(1, 40, 2))


async def test_no_results_are_an_empty_frame() -> None:
    assert (await Pipeline().source([]).to_polars().run()).height == 0


async def test_result_holds_each_element_once_after_a_restart(tmp_path: Path) -> None:
    fails = [25, 33]

    def looks(row: dict[str, Any]) -> dict[str, Any]:
        if fails and row["n"] == fails[0]:
            fails.pop(0)
            raise ValueError("on purpose")
        return row

    def checkpoints() -> Checkpoints:
        return Checkpoints(store=DirectoryStore(tmp_path), every=0.001)

    pipeline = Pipeline("rows")
    read = pipeline.source(FrameSource(TABLE, batch=3), name="in").map(looks, name="looks")
    result = read.to_arrow(name="out")
    table = await result.run(checkpoints=checkpoints(), restart=Restarts(5, within=60, backoff=0.001))
    assert table.to_pylist() == ROWS

    other = Pipeline("rows")
    other.source(FrameSource(TABLE, batch=3), name="in").map(looks, name="looks").to_arrow(name="out")
    with pytest.raises((SinkError, CheckpointError), match="went with the process that collected it"):
        await other.run(checkpoints=checkpoints())


async def test_element_that_is_no_row_is_one_failure() -> None:
    pipeline = Pipeline()
    with pytest.raises(SinkError, match="cannot write 7 to a frame"):
        await pipeline.source([{"a": 1}, 7]).to_arrow().run()
