"""Steps of one pipeline that write to one place, or to what another one reads."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    Checkpoints,
    CsvSink,
    DeadLetterSource,
    DirectoryStore,
    JsonLinesFolderSink,
    JsonLinesSink,
    JsonLinesSource,
    ParquetSink,
    ParquetSource,
    Pipeline,
    PipelineError,
    Sink,
    SinkError,
    Source,
)

ROWS = [{"n": number} for number in range(10)]


def of_two(one: Sink[Any], other: Sink[Any], given: list[Any] = ROWS) -> Pipeline:
    """The first two rows to one, all others to the other."""
    pipeline = Pipeline("two")
    rows = pipeline.source(given, name="rows")
    rows.filter(lambda row: row["n"] < 2).to(one, name="one")
    rows.filter(lambda row: row["n"] >= 2).to(other, name="other")
    return pipeline


def of_rows(source: Any, sink: Any, checkpoints: Checkpoints | None = None) -> None:
    """Run them from one to the other."""
    pipeline = Pipeline("rows")
    pipeline.source(source, name="in").to(sink, name="out")
    asyncio.run(pipeline.run(checkpoints=checkpoints))


def kept_in(folder: Path) -> Checkpoints:
    return Checkpoints(store=DirectoryStore(folder), every=None)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("existing", ["refuse", "overwrite"])
@pytest.mark.parametrize(
    ("kind", "another", "path"),
    [
        (JsonLinesSink, JsonLinesSink, "out"),
        (JsonLinesSink, CsvSink, "link"),
        (JsonLinesFolderSink, JsonLinesFolderSink, "out/"),
        (JsonLinesFolderSink, ParquetSink, "there/../link"),
        (ParquetSink, ParquetSink, "out"),
        (JsonLinesFolderSink, JsonLinesFolderSink, "out/kind=late"),
    ],
)
def test_two_that_write_to_one_place_are_refused_before_they_write(
    tmp_path: Path, kind: Any, another: Any, path: str, existing: Any, keeps: bool
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("out")
    both = [kind(tmp_path / "out", existing=existing), another(f"{tmp_path}/{path}", existing=existing)]
    checkpoints = kept_in(tmp_path / "kept") if keeps else None
    for one, other in (both, reversed(both)):
        with pytest.raises((PipelineError, SinkError), match=None if keeps else "both write to .*out"):
            asyncio.run(of_two(one, other).run(checkpoints=checkpoints))
    assert not keeps or not list(tmp_path.rglob("part-*"))
    assert keeps or {entry.name for entry in tmp_path.iterdir()} == {"there", "link"}


async def test_two_in_an_object_store_are_refused_as_well() -> None:
    one, other = JsonLinesFolderSink("memory://two/out"), JsonLinesFolderSink("memory://two/out/")
    with pytest.raises(PipelineError, match="both write to memory://two/out"):
        of_two(one, other).start()
    of_two(JsonLinesFolderSink("memory://two/out"), JsonLinesFolderSink("memory://two/outer")).start()


def test_a_folder_inside_that_of_another_keeps_what_is_its_own(tmp_path: Path) -> None:
    out, late = tmp_path / "out", tmp_path / "out" / "late"
    out.mkdir()
    for count in (5, 10, 10):  # with the second run only the folder inside gets a part
        both = of_two(JsonLinesFolderSink(out), JsonLinesFolderSink(late), ROWS[:count])
        asyncio.run(both.run(checkpoints=kept_in(tmp_path / "kept")))
    found = [sorted(folder.glob("part-*")) for folder in (out, late)]
    assert [len(parts) for parts in found] == [1, 2]
    lines = [line for parts in found for part in parts for line in part.read_text().splitlines()]
    assert list(map(json.loads, lines)) == ROWS


async def test_what_is_unfinished_in_a_folder_inside_is_left_to_its_own_job(tmp_path: Path) -> None:
    inside = JsonLinesFolderSink(tmp_path / "late", row_group=1)
    await inside.recover(None)
    await inside.write([{"n": 1}], None)
    around = JsonLinesFolderSink(tmp_path)
    await around.recover(None)
    await around.close()
    await inside.prepare(1)
    await inside.commit(1)
    await inside.close()
    (part,) = (tmp_path / "late").glob("part-*")
    assert json.loads(part.read_text()) == {"n": 1}


def written(path: Path) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("existing", ["append", "overwrite"])
@pytest.mark.parametrize("wrap", [lambda source: source, DeadLetterSource])
def test_a_file_is_not_written_while_it_is_read(tmp_path: Path, existing: Any, wrap: Any) -> None:
    path = written(tmp_path / "in.jsonl")
    before = path.read_bytes()
    (tmp_path / "link").symlink_to(path)
    source: Source[Any] = wrap(JsonLinesSource(tmp_path / "link"))
    pipeline = Pipeline("again")
    pipeline.source(source, name="in").to(JsonLinesSink(path, existing=existing), name="out")
    with pytest.raises(PipelineError, match=r"'out' writes to what step 'in' reads, .*in\.jsonl: write else"):
        pipeline.start()
    assert path.read_bytes() == before


def test_a_file_of_columns_is_replaced_by_what_was_read_of_it_when_all_is_read(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    of_rows(ROWS, ParquetSink(out))
    of_rows(ParquetSource(out), ParquetSink(out, existing="overwrite"))
    kept: list[Any] = []
    of_rows(ParquetSource(out), kept)
    assert kept == ROWS


def test_a_folder_is_not_replaced_by_a_job_with_checkpoints_that_reads_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    of_rows(ROWS, ParquetSink(out), kept_in(tmp_path / "kept"))
    (part,) = out.iterdir()
    for path in (out, part):
        with pytest.raises(PipelineError, match="'out' writes to what step 'in' reads"):
            of_rows(ParquetSource(path), ParquetSink(out, existing="overwrite"), kept_in(tmp_path / "other"))
    assert list(out.iterdir()) == [part]


def test_what_is_beside_the_parts_of_a_folder_may_be_read(tmp_path: Path) -> None:
    path = written(tmp_path / "in.jsonl")
    of_rows(JsonLinesSource(path), JsonLinesFolderSink(tmp_path), kept_in(tmp_path / "kept"))
    (part,) = tmp_path.glob("part-*")
    assert [json.loads(line) for line in part.read_text().splitlines()] == ROWS
