"""Folders of files: divided by columns, on disks and in object stores, with epochs of their own."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import threading
from datetime import date
from decimal import Decimal
from functools import partial
from json import JSONDecodeError
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import fsspec
import numpy
import pandas
import pyarrow
import pyarrow.dataset as dataset
import pyarrow.parquet as parquet
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from fsspec.registry import known_implementations
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from asyncstream import (
    ArrowIpcSink,
    ArrowIpcSource,
    Checkpoints,
    CsvFolderSink,
    CsvSink,
    CsvSource,
    DirectoryStore,
    Items,
    JsonLinesFolderSink,
    JsonLinesSink,
    JsonLinesSource,
    ParquetSink,
    ParquetSource,
    Pipeline,
    PipelineError,
    RejectedRow,
    Sink,
    SinkError,
    Source,
    SourceError,
    TransactionalSink,
)
from asyncstream.connectors.writer import Writer
from asyncstream.lease import Holder, Lease, enter

ROWS = [{"n": n, "day": date(2026, 11, 1 + n % 3), "kind": n % 2} for n in range(300)]


async def read_all(source: Source[Any]) -> list[Any]:
    await source.open()
    rows: list[Any] = []
    try:
        while (batch := await source.read()) is not None:
            rows += batch.values
    finally:
        await source.close()
    return rows


def rows_through(sink: Sink[Any], kept: Path | None, fails_at: int = -1) -> None:
    """Run ROWS into a sink, to the one at which it fails."""

    def looks(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == fails_at:
            raise ValueError("on purpose")
        return row

    pipeline = Pipeline("rows")
    pipeline.source(ROWS, name="in").map(looks, name="looks").to(sink, name="out")
    checkpoints = None if kept is None else Checkpoints(store=DirectoryStore(kept), every=0.001)
    asyncio.run(pipeline.run(checkpoints=checkpoints))


def for_a_job(sink: TransactionalSink[Any]) -> None:
    """Have it write for one with checkpoints of its own, which goes on."""
    holder = Holder.here(0)
    enter(holder, lambda: True)
    sink.writer = Writer(Lease(1, holder.token, holder, 0), 3, "refuse")


@pytest.fixture
def place() -> str:
    return f"memory://{uuid4().hex}"


def test_store_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(PipelineError, match=r"^path: expected a path on a disk, .*'mysql://…@host/db'$"):
        JsonLinesSource("mysql://me:secret@host/db")


async def test_no_thread_stays_of_a_look_at_an_object_store(place: str) -> None:
    with fsspec.open(f"{place}/in.jsonl", "wb") as file:
        file.write(b"1\n")
    before = threading.active_count()
    await JsonLinesSource(f"{place}/in.jsonl").can_seek({"offset": 2, "lines": 1})
    async with asyncio.timeout(10):
        while threading.active_count() > before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # of a real thread


async def test_no_thread_stays_of_a_file_that_cannot_be_closed(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(file: MemoryFile) -> None:
        raise RuntimeError("on purpose")

    with fsspec.open(f"{place}/in.jsonl", "wb") as file:
        file.write(b"1\n")
    before = threading.active_count()
    source: Source[Any] = JsonLinesSource(f"{place}/in.jsonl")
    await source.open()
    monkeypatch.setattr(MemoryFile, "close", breaks)
    with pytest.raises(RuntimeError, match="on purpose"):
        await source.close()
    monkeypatch.undo()
    async with asyncio.timeout(10):
        while threading.active_count() > before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # of a real thread


# ---------------------------------------------------------------------- divided by columns


def test_store_whose_library_is_not_installed_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"class": "no_such_library.FileSystem", "err": "Install no_such_library to read it"}
    monkeypatch.setitem(known_implementations, "unheard", missing)
    with pytest.raises(PipelineError, match="path: unheard:// needs a library of its own: Install no_such_l"):
        ParquetSource("unheard://bucket/name")


@pytest.mark.parametrize("kind", [ParquetSink, ArrowIpcSink])
@pytest.mark.parametrize("has_checkpoints", [False, True])
def test_folder_is_divided_by_columns_and_read_as_one(
    tmp_path: Path, kind: Any, has_checkpoints: bool
) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept" if has_checkpoints else None
    if kept is not None:
        with pytest.raises(Exception, match="on purpose"):
            rows_through(kind(out, partition_by=["day", "kind"], row_group=50), kept, fails_at=170)
    rows_through(kind(out, partition_by=["day", "kind"], row_group=50), kept)
    assert {file.parent.name for file in out.glob("*/*/*")} == {"kind=0", "kind=1"}
    assert not list(out.glob("**/.*"))
    source = ParquetSource(out) if kind is ParquetSink else ArrowIpcSource(out)
    rows = asyncio.run(read_all(source))
    assert sorted(rows, key=lambda row: row["n"]) == [row | {"day": str(row["day"])} for row in ROWS]
    if kind is ParquetSink:
        query = f"select count(*), sum(n), count(distinct day) from '{out}/*/*/*.parquet'"
        assert duckdb.execute(query).fetchall() == [(300, sum(range(300)), 3)]


@pytest.mark.parametrize("column", ["_id", ".id", "a=b", "a/b", "é"])
@pytest.mark.parametrize("value", ["--5", "-", "-0", "007", "..", "a=b/c", "é", " "])
def test_folder_is_read_whatever_it_is_divided_by(tmp_path: Path, column: str, value: str) -> None:
    rows = [{"n": 1, column: value}]
    pipeline = Pipeline()
    pipeline.source(rows).to(ParquetSink(tmp_path / "out", partition_by=column))
    asyncio.run(pipeline.run())
    assert asyncio.run(read_all(ParquetSource(tmp_path / "out"))) == rows
    found = parquet.read_table(tmp_path / "out", partitioning=dataset.partitioning(flavor="hive"))
    assert found.num_rows == 1


@pytest.mark.parametrize("has_checkpoints", [False, True])
async def test_file_that_cannot_be_begun_leaves_nothing(tmp_path: Path, has_checkpoints: bool) -> None:
    sink = ParquetSink(tmp_path / "out")
    await (sink.recover(None) if has_checkpoints else sink.open())
    await sink.write([{"nothing": {}}], None)
    with pytest.raises(SinkError, match="no child field") as told:
        await (sink.prepare(1) if has_checkpoints else sink.flush())
    assert ("since the last checkpoint" in str(told.value)) == has_checkpoints
    await sink.close()
    assert not list(tmp_path.glob("**/*.unfinished"))  # noqa: ASYNC240


def test_what_cannot_be_divided_is_refused_one_by_one(tmp_path: Path) -> None:
    found: list[Any] = []
    rows: list[Any] = [
        {"n": 1, "day": "a/b = c"},
        {"n": 2},
        {"day": "x"},
        7,
        {"n": 3, "day": None},
        {"n": 4, "day": [1]},
        {"n": 5, "day": "é" * 42},
        {"n": 6, "day": "e" * 251},
    ]
    pipeline = Pipeline()
    sink = pipeline.source(rows).to(ParquetSink(tmp_path / "out", partition_by="day"), on_error="route")
    sink.failed.map(lambda failed: str(failed.error)).to(found)
    asyncio.run(pipeline.run())
    assert asyncio.run(read_all(ParquetSource(tmp_path / "out"))) == [
        {"n": 1, "day": "a/b = c"},
        {"n": 3, "day": None},
        {"n": 6, "day": "e" * 251},
    ]
    assert len(found) == 5
    refusals = ("no 'day' to partition by", "nothing but", "expected a mapping", "partitioned by", "too long")
    for part in refusals:
        assert any(part in each for each in found)


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        (numpy.int64(3), "3"),
        (numpy.True_, "true"),
        (numpy.float32(0.5), "0.5"),
        (numpy.datetime64("2026-12-01"), "2026-12-01"),
        (pandas.Timestamp("2026-12-01"), "2026-12-01 00%3A00%3A00"),
        (pandas.NaT, "__HIVE_DEFAULT_PARTITION__"),
        (pandas.NA, "__HIVE_DEFAULT_PARTITION__"),
        (Decimal("1.50"), "1.50"),
    ],
)
@pytest.mark.parametrize("kind", [ParquetSink, JsonLinesFolderSink])
async def test_numbers_and_nothing_of_others_name_folders(
    tmp_path: Path, kind: Any, value: Any, folder: str
) -> None:
    sink = kind(tmp_path / "out", partition_by="v")
    await sink.open()
    await sink.write([{"v": value, "n": 1}], None)
    with pytest.raises(SinkError, match="cannot be partitioned by"):
        await sink.write([{"v": numpy.arange(2), "n": 1}], None)
    await sink.flush()
    await sink.close()
    assert [path.name for path in (tmp_path / "out").iterdir()] == [f"v={folder}"]


@pytest.mark.parametrize("kind", [ParquetSink, JsonLinesFolderSink])
@pytest.mark.parametrize(("is_remote", "length"), [(False, 240), (True, 50)])
async def test_names_that_are_too_long_together_cost_their_element(
    tmp_path: Path, place: str, kind: Any, is_remote: bool, length: int
) -> None:
    columns = [f"c{number}" for number in range(20)]
    sink = kind(place if is_remote else tmp_path / "out", partition_by=columns)
    await sink.recover(None)
    short, long = ({"n": 1, **dict.fromkeys(columns, text)} for text in ("x", "x" * length))
    with pytest.raises(SinkError, match="'c19' are too long together for a path"):
        await sink.write([short, long], None)
    assert sink.taken() == 1
    await sink.prepare(1)
    await sink.commit(1)
    await sink.close()


def test_more_values_than_files_that_are_open_at_a_time(tmp_path: Path) -> None:
    pipeline = Pipeline()
    rows = [{"n": n, "key": n % 150} for n in range(600)]
    pipeline.source(Items(rows, batch=200)).to(
        JsonLinesFolderSink(tmp_path / "out", partition_by="key", row_group=200)
    )
    asyncio.run(pipeline.run())
    files = list((tmp_path / "out").glob("key=*/part-*.jsonl"))
    found = [json.loads(line)["n"] for file in files for line in file.read_text().splitlines()]
    assert len(files) > 150
    assert sorted(found) == list(range(600))


# ---------------------------------------------------------------------- lines


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
def test_lines_are_written_in_whole_files_and_gone_on_with(tmp_path: Path, compression: Any) -> None:
    out = tmp_path / "out"
    for fails_at in (100, 200):
        with pytest.raises(Exception, match="on purpose"):
            rows_through(
                CsvFolderSink(out, row_group=30, compression=compression), tmp_path / "kept", fails_at
            )
    rows_through(CsvFolderSink(out, row_group=30, compression=compression), tmp_path / "kept")
    files = sorted(out.iterdir())
    assert [file.name[:4] for file in files] == ["part"] * len(files)
    if compression == "gzip":
        texts = [gzip.decompress(file.read_bytes()).decode() for file in files]
        assert {text.splitlines()[0] for text in texts} == {"n,day,kind"}
        assert sum(len(text.splitlines()) - 1 for text in texts) == 300
    query = f"select n from read_csv('{out}/*') order by n"
    assert duckdb.execute(query).fetchall() == [(n,) for n in range(300)]


@pytest.mark.parametrize("columns", [None, ["a", "b"]])
@pytest.mark.parametrize("at", [0, 1, 127, 128, 200, 299])
async def test_folder_of_csv_has_the_lines_of_a_file_up_to_what_cannot_be_written(
    tmp_path: Path, columns: Any, at: int
) -> None:
    values: list[Any] = [{"a": n, "b": "x,\n\r"[n % 4 :]} for n in range(300)]
    values[at] = {"a": 1, "b": "\ud800"}
    folder = CsvFolderSink(tmp_path / "o", columns=columns)
    for sink in (CsvSink(tmp_path / "file.csv", columns=columns), folder):
        await sink.open()
        with pytest.raises(SinkError, match="cannot write"):
            await sink.write(values, None)
        assert sink.taken() == at
        await sink.write(values[at + 1 :] or values[:1], None)
        await sink.flush()
        await sink.close()
    texts = [path.read_bytes() for path in (tmp_path / "file.csv", *(tmp_path / "o").iterdir())]
    assert len(texts) == 2
    assert texts[0] == texts[1]


def test_job_without_checkpoints_shows_parts_at_the_end_and_replaces_others(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        rows_through(JsonLinesFolderSink(out, existing="overwrite"), None)
    assert len(list(out.iterdir())) == 1
    with pytest.raises(SinkError, match="exists: pass existing='overwrite'"):
        rows_through(JsonLinesFolderSink(out), None)
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="is a file, and this sink writes a directory"):
        rows_through(JsonLinesFolderSink(tmp_path / "file"), None)


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("kind", [ParquetSink, ArrowIpcSink, JsonLinesFolderSink, CsvFolderSink])
async def test_of_two_that_begin_together_the_second_replaces_nothing(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "out"
    first, second = kind(path), kind(path)
    for number, sink in enumerate((first, second)):
        await sink.open()
        await sink.write([{"n": number}], None)
    await first.flush()
    await first.close()
    before = files_below(tmp_path)
    with pytest.raises(SinkError, match="exists: pass existing='overwrite'"):
        await second.flush()
    second.cut_short()
    await second.close()
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("kind", [JsonLinesFolderSink, CsvFolderSink])
def test_parts_that_are_compressed_otherwise_are_there_too(tmp_path: Path, kind: Any) -> None:
    out = tmp_path / "out"
    rows_through(kind(out), None)
    before = {path.name for path in out.glob("part-*")}
    with pytest.raises(SinkError, match="exists: pass existing='overwrite'"):
        rows_through(kind(out, compression="gzip"), None)
    assert {path.name for path in out.glob("part-*")} == before
    rows_through(kind(out, compression="gzip", existing="overwrite"), None)
    (part,) = out.glob("part-*")
    assert part.suffix == ".gz"


async def test_a_job_goes_on_in_its_folder_with_another_compression(tmp_path: Path) -> None:
    out, position = tmp_path / "out", None
    kinds: list[Any] = [None, "gzip", "zstd", None]
    for epoch, compression in enumerate(kinds, 1):
        sink = CsvFolderSink(out, compression=compression)
        await sink.recover(position)
        await sink.write([{"b": epoch, "a": 0} if epoch == 1 else {"a": 0, "b": epoch}], None)
        position = await sink.prepare(epoch)  # and no commit: the next run sees to that
        await sink.close()
    last = CsvFolderSink(out)
    await last.recover(position)
    await last.close()
    parts = [path for path in sorted(out.iterdir()) if path.name[0] != "."]
    assert [path.suffix for path in parts] == [".csv", ".gz", ".zst", ".csv"]
    found = [await read_all(CsvSource(path)) for path in parts]
    assert [list(row.items()) for (row,) in found] == [[("b", str(n)), ("a", "0")] for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("is_hidden", [False, True], ids=["before it hides its part", "behind that"])
@pytest.mark.parametrize("existing", ["refuse", "overwrite"])
async def test_of_two_that_end_at_one_moment_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: Any, is_hidden: bool
) -> None:
    rows, sinks = [{"n": 1}, {"n": 2}], [JsonLinesFolderSink(tmp_path, existing=existing) for _ in range(2)]
    for row, sink in zip(rows, sinks, strict=True):
        await sink.open()
        await sink.write([row], None)
    replace = os.replace

    def ends_first(path: str, target: str) -> None:
        monkeypatch.undo()
        if is_hidden:
            replace(path, target)
        ending = threading.Thread(target=lambda: asyncio.run(sinks[1].flush()))
        ending.start()
        ending.join()
        if not is_hidden:
            replace(path, target)

    monkeypatch.setattr(os, "replace", ends_first)
    with pytest.raises(SinkError, match="is being written by another job"):
        await sinks[0].flush()
    for sink in sinks:
        await sink.close()
    (shown,) = files_below(tmp_path).values()
    assert json.loads(shown) == rows[1]


async def epochs_of(path: Path | str) -> list[Any]:
    """Three committed epochs with a part each; the position of each."""
    sink = JsonLinesFolderSink(path)
    await sink.recover(None)
    positions = []
    for number in (1, 2, 3):
        await sink.write([{"n": number}], None)
        positions.append(await sink.prepare(number))
        await sink.commit(number)
    await sink.close()
    return positions


async def test_parts_that_were_taken_away_are_not_missed_but_for_the_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    *_, position = await epochs_of(tmp_path)
    first, _, last = files_below(tmp_path)
    os.unlink(first)
    sink = JsonLinesFolderSink(tmp_path)
    await sink.can_recover(position)
    await sink.recover(position)
    assert "has 2 of the 3 files of the checkpoint; others were taken away" in caplog.text
    await sink.write([{"n": 4}], None)
    position = await sink.prepare(1)
    await sink.commit(1)
    await sink.close()
    assert list(files_below(tmp_path).values()) == [b'{"n":2}\n', b'{"n":3}\n', b'{"n":4}\n']
    caplog.clear()
    await JsonLinesFolderSink(tmp_path).recover(position)
    assert not caplog.text
    *_, last = files_below(tmp_path)
    os.unlink(last)
    with pytest.raises(SinkError, match=r"lacks part-000004-.*, the last file .* Put the file back"):
        await JsonLinesFolderSink(tmp_path).can_recover(position)


async def test_a_folder_that_was_taken_back_by_half_is_not_taken_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_, last = await epochs_of(tmp_path)
    monkeypatch.setattr(os, "unlink", partial(dies_after, os.unlink, []))
    with pytest.raises(SinkError, match="No more"):
        await JsonLinesFolderSink(tmp_path).recover(first)
    monkeypatch.undo()
    with pytest.raises(SinkError, match="lacks part-000003-"):
        await JsonLinesFolderSink(tmp_path).can_recover(last)
    await JsonLinesFolderSink(tmp_path).recover(first)
    assert list(files_below(tmp_path).values()) == [b'{"n":1}\n']


def dies_after(real: Any, done: list[str], path: str) -> None:
    """Do it once, and then no more."""
    if done:
        raise OSError("No more")
    done.append(path)
    real(path)


async def test_a_job_without_checkpoints_replaces_nothing_that_one_with_them_is_writing(
    tmp_path: Path,
) -> None:
    rows, out = [{"n": 1}, {"n": 2}], tmp_path / "out"
    plain, kept = [JsonLinesFolderSink(out, existing="overwrite") for _ in rows]
    await plain.open()
    for_a_job(kept)
    await kept.recover(None)
    for sink, row in zip((plain, kept), rows, strict=True):
        await sink.write([row], None)
    await kept.prepare(1)
    await kept.commit(1)
    before = files_below(tmp_path)
    for work in (plain.flush, JsonLinesFolderSink(out, existing="overwrite").open):
        with pytest.raises(SinkError, match=r"written to by process \d+.* delete .*out\.sink if it is gone"):
            await work()
    plain.cut_short()
    await plain.close()
    assert files_below(tmp_path) == before
    await kept.close()
    last = JsonLinesFolderSink(out, existing="overwrite")
    await last.open()
    await last.close()
    assert list(out.iterdir()) == []


# ---------------------------------------------------------------------- object stores


def test_object_store_is_written_and_gone_on_with_and_read(tmp_path: Path, place: str) -> None:
    with pytest.raises(Exception, match="on purpose"):
        rows_through(ParquetSink(f"{place}/out", row_group=40), tmp_path / "kept", fails_at=150)
    rows_through(ParquetSink(f"{place}/out", row_group=40), tmp_path / "kept")
    assert asyncio.run(read_all(ParquetSource(f"{place}/out"))) == ROWS
    names = fsspec.filesystem("memory").find(f"{place}/out")
    assert not [name for name in names if "/." in name]


def test_single_objects_are_written_and_read(place: str) -> None:
    rows_through(ArrowIpcSink(f"{place}/out.arrow"), None)
    assert asyncio.run(read_all(ArrowIpcSource(f"{place}/out.arrow", columns=["n"]))) == [
        {"n": row["n"]} for row in ROWS
    ]
    with fsspec.open(f"{place}/in.jsonl.gz", "wb") as file:
        file.write(gzip.compress(b'{"n":1}\n{"n":2}\n'))
    assert asyncio.run(read_all(JsonLinesSource(f"{place}/in.jsonl.gz"))) == [{"n": 1}, {"n": 2}]


async def test_reading_an_object_store_lets_others_go_on(place: str) -> None:
    with fsspec.open(f"{place}/in.jsonl", "wb") as file:
        file.write(b'{"n":1}\n' * 10)
    source = JsonLinesSource(f"{place}/in.jsonl", batch=4)
    await source.open()
    reading = asyncio.ensure_future(source.read())
    await asyncio.sleep(0)
    assert not reading.done()
    before = source.position()
    reading.cancel()
    await asyncio.wait({reading})
    assert source.position() == before
    batch = await source.read()  # what the cancelled one had begun
    assert batch is not None
    assert len(batch.values) == 4
    assert source.position()["offset"] == 32
    await source.close()


class _Unsteady(MemoryFileSystem):  # type: ignore[misc]  # it has no types
    """An object store that does not answer when it is to read, while `is_away`."""

    protocol = "unsteady"
    is_away = False
    raises: Any = ConnectionResetError

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "rb" and _Unsteady.is_away:
            raise _Unsteady.raises("it hung up")
        return super().open(path, mode, **options)


class _OfLibrary(Exception):
    """What a library of its own calls it."""


@pytest.mark.parametrize("raises", [ConnectionResetError, _OfLibrary, JSONDecodeError])
async def test_an_object_store_that_does_not_answer_lets_no_second_writer_in(
    place: str, monkeypatch: pytest.MonkeyPatch, raises: Any
) -> None:
    if raises is JSONDecodeError:  # a page where a token was to be
        raises = partial(JSONDecodeError, doc="<", pos=0)
    monkeypatch.setattr(_Unsteady, "raises", staticmethod(raises))
    fsspec.register_implementation("unsteady", _Unsteady, clobber=True)
    path = place.replace("memory:", "unsteady:")
    writing, second = (JsonLinesFolderSink(path, existing="overwrite") for _ in range(2))
    for sink in (writing, second):  # of two stores of checkpoints
        for_a_job(sink)
    await writing.recover(None)
    await writing.write([{"n": 1}], None)
    monkeypatch.setattr(_Unsteady, "is_away", True)
    for ask in (second.fence(), second.can_recover(None), second.recover(None), writing.prepare(1)):
        with pytest.raises(SinkError, match=r"cannot see who writes.*it hung up"):
            await ask
    monkeypatch.setattr(_Unsteady, "is_away", False)
    with pytest.raises(SinkError, match="which keeps its checkpoints elsewhere"):
        await second.can_recover(None)
    await writing.prepare(1)
    await writing.commit(1)
    await writing.close()
    await second.close()


async def test_parts_that_are_committed_are_left_alone_by_a_start(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[str] = []
    move = MemoryFileSystem.mv

    def counted(self: Any, path: str, target: str, **options: Any) -> None:
        moved.append(target)
        move(self, path, target, **options)

    monkeypatch.setattr(MemoryFileSystem, "mv", counted)
    *_, position = await epochs_of(place)
    assert len(moved) == 6  # to be hidden, and to be shown
    sink = JsonLinesFolderSink(place)
    await sink.recover(position)
    await sink.close()
    assert len(moved) == 6


async def test_a_part_whose_copying_was_cut_off_is_copied_again(place: str) -> None:
    sink = JsonLinesFolderSink(place)
    await sink.recover(None)
    await sink.write([{"n": 1}], None)
    position = await sink.prepare(1)
    await sink.close()
    part = f"{place}/{position['last']}"
    with fsspec.open(part, "wb") as file:  # which a process was at that died
        file.write(b'{"n"')
    await JsonLinesFolderSink(place).recover(position)
    with fsspec.open(part, "rb") as file:
        assert file.read() == b'{"n":1}\n'
    assert fsspec.filesystem("memory").glob(f"{place}/*") == [part.removeprefix("memory:/")]


def test_object_that_is_not_there_and_line_sinks_are_refused(place: str) -> None:
    with pytest.raises(Exception, match="cannot read memory://"):
        asyncio.run(read_all(ParquetSource(f"{place}/none")))
    with pytest.raises(PipelineError, match="in an object store a sink writes a folder"):
        JsonLinesSink(f"{place}/out.jsonl")


# ---------------------------------------------------------------------- rows that are none


def test_value_that_is_nothing_in_python_costs_its_row(tmp_path: Path) -> None:
    moments = pyarrow.array([0, 2**62, 86_400_000], pyarrow.timestamp("ms"))
    parquet.write_table(
        pyarrow.table({"n": [1, 2, 3], "at": moments.cast(pyarrow.timestamp("ms"))}), tmp_path / "in.parquet"
    )
    pipeline = Pipeline()
    good: list[Any] = []
    bad: list[RejectedRow] = []
    rows = pipeline.source(ParquetSource(tmp_path / "in.parquet", on_malformed="reject"))
    rows.map(lambda row: row["n"]).to(good)
    rows.rejected.to(bad)
    asyncio.run(pipeline.run())
    assert good == [1, 3]
    assert [(row.row_number, row.row) for row in bad] == [(2, {"n": 2})]
    assert "column 'at'" in bad[0].reason
    with pytest.raises(Exception, match=r"row 2 of .*in\.parquet: column 'at'"):
        asyncio.run(read_all(ParquetSource(tmp_path / "in.parquet")))


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="partition_by: expected some of the columns"):
        ParquetSink("x", columns=["a"], partition_by="b")
    with pytest.raises(PipelineError, match="partition_by: expected a list of different names"):
        ParquetSink("x", partition_by=["b", "b"])
    with pytest.raises(PipelineError, match="compression: expected one of 'lz4'"):
        ArrowIpcSink("x", compression="gzip")  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="columns: expected none of partition_by"):
        CsvFolderSink("x", columns=["a"], partition_by="a")
    with pytest.raises(PipelineError, match="compression: expected 'gzip', 'zstd' or None"):
        CsvFolderSink("x", compression="infer")  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="on_malformed: expected one of 'fail', 'reject'"):
        ArrowIpcSource("x", on_malformed="skip")  # type: ignore[call-overload]


class _Counting(AbstractFileSystem):  # type: ignore[misc]
    """An object store with one object, that knows how many bytes it has sent."""

    protocol = "counting"
    cachable = False
    data = b""
    sent = 0

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return {"name": path, "size": len(self.data), "type": "file"}

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return _Object(self, path, mode, block_size=2**16, size=len(self.data))


class _Object(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> bytes:
        found = _Counting.data[start:end]
        _Counting.sent += len(found)
        return found


@pytest.mark.parametrize("ending", ["", ".gz"])
async def test_an_object_is_not_fetched_again_for_each_position(ending: str) -> None:
    fsspec.register_implementation("counting", _Counting, clobber=True)
    lines = b"".join(b'{"n": %d, "at": "%x"}\n' % (n, n * 2_654_435_761 % 2**32) for n in range(30_000))
    _Counting.data = gzip.compress(lines) if ending else lines
    positions: list[Any] = []
    source = JsonLinesSource(f"counting://in.jsonl{ending}", batch=100)
    await source.open()
    _Counting.sent = 0
    while await source.read() is not None:
        positions.append(source.position())
    await source.close()
    assert len(positions) == 300
    assert _Counting.sent < 2 * len(_Counting.data)

    async def rest(position: Any) -> int:
        await source.open()
        await source.seek(position)
        batch = await source.read()
        await source.close()
        assert batch is not None
        return int(batch.values[0]["n"])

    assert [await rest(positions[place]) for place in (0, 150, 298)] == [100, 15_100, 29_900]
    _Counting.data = gzip.compress(lines.swapcase()) if ending else lines.swapcase()
    with pytest.raises(SourceError, match="it begins with other bytes"):
        await source.can_seek(positions[150])
