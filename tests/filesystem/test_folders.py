"""
Folders: those that are out of reach, and that of a program, which may go to another one: what was given by a
path from the one before stays there.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    CheckpointError,
    Checkpoints,
    CsvSource,
    DirectoryStore,
    DiskState,
    GlobSource,
    Inbox,
    JsonLinesFolderSink,
    JsonLinesSink,
    JsonLinesSource,
    KeyedContext,
    KeyedProcessFunction,
    LookupTable,
    ParquetSink,
    ParquetSource,
    Pipeline,
    PipelineError,
    Sink,
    SinkError,
    Source,
    SourceBatch,
    SqliteSink,
    SqliteSource,
    SqliteStore,
)
from asyncstream.checkpoint.stores import CheckpointStore
from asyncstream.connectors.files import line_sinks
from asyncstream.connectors.files.arrow import parquet
from asyncstream.connectors.inbox import InboxFile, Submitted
from asyncstream.filesystem.folders import missing_folder, sync_folder
from asyncstream.guards import SharedLimit, SqliteCache, cached, rate_limit
from asyncstream.operators.emitting import Emitter
from asyncstream.testing.loop import run_virtual


class Going(Source[int]):
    """Gives numbers, and has the program go elsewhere in the midst of them."""

    def __init__(self, elsewhere: Path) -> None:
        self._elsewhere = elsewhere
        self._read = 0

    async def read(self) -> SourceBatch[int] | None:
        await asyncio.sleep(1)
        self._read += 1
        if self._read == 4:
            os.chdir(self._elsewhere)
        return SourceBatch([self._read]) if self._read < 10 else None

    def position(self) -> int:
        return self._read

    async def seek(self, position: int) -> None:
        self._read = position


class Passing(KeyedProcessFunction[int, dict[str, int]]):
    def process_element(self, value: int, ctx: KeyedContext, out: Emitter[dict[str, int]]) -> None:
        out({"n": value})


def rows_of(path: Path) -> list[Any]:
    if path.suffix == ".db":
        with closing(sqlite3.connect(path)) as database:
            return [n for (n,) in database.execute("SELECT n FROM t ORDER BY n")]
    if path.suffix == ".parquet":
        found: list[Any] = []
        pipeline = Pipeline()
        pipeline.source(ParquetSource(path)).to(found)
        asyncio.run(pipeline.run())
        return [row["n"] for row in found]
    files = sorted(path.glob("part-*")) if path.is_dir() else [path]
    return [json.loads(line)["n"] for file in files for line in file.read_text().splitlines()]


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "store", [lambda: None, lambda: DirectoryStore("kept"), lambda: SqliteStore("kept.db")]
)
@pytest.mark.parametrize(
    "sink",
    [
        lambda: JsonLinesSink("out.jsonl"),
        lambda: JsonLinesFolderSink("out"),
        lambda: ParquetSink("out.parquet"),
        lambda: SqliteSink("out.db", "t", columns=["n"]),
    ],
)
def test_a_job_writes_where_it_began(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sink: Callable[[], Sink[Any]],
    store: Callable[[], CheckpointStore | None],
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    (elsewhere / "state" / "rows").mkdir(parents=True)
    (elsewhere / "state" / "rows" / "precious").write_text("of another job")
    here.mkdir()
    before = files_below(elsewhere)
    monkeypatch.chdir(here)
    kept = store()
    pipeline = Pipeline()
    numbers = pipeline.source(Going(elsewhere), name="in").key_by(lambda number: number % 2)
    numbers.process(Passing(), name="pass").to(sink(), name="out")
    run_virtual(
        pipeline.run(
            checkpoints=None if kept is None else Checkpoints(store=kept, every=2), state=DiskState("state")
        )
    )
    assert files_below(elsewhere) == before
    (out,) = here.glob("out*")
    assert rows_of(out) == list(range(1, 10))
    assert not (here / "state" / "rows").exists()


@pytest.mark.parametrize("path", ["in.jsonl", "in.csv", "in.parquet", "folder", "in.db"])
def test_what_is_made_here_reads_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    rows = [{"n": 1}]
    sink: Any = SqliteSink(path, "t", columns=["n"]) if path == "in.db" else JsonLinesSink(path)
    if path in ("in.parquet", "folder"):
        sink = ParquetSink(path, partition_by=None if path == "in.parquet" else "day")
        rows = [{"n": 1, "day": 1}]
    (tmp_path / "in.csv").write_text("n\n1\n")
    if path != "in.csv":
        writing = Pipeline()
        writing.source(rows).to(sink)
        asyncio.run(writing.run())
    sources: dict[str, Any] = {"in.jsonl": JsonLinesSource, "in.csv": CsvSource}
    source: Source[Any] = (
        SqliteSource(path, "t") if path == "in.db" else sources.get(path, ParquetSource)(path)
    )
    found: list[Any] = []
    monkeypatch.chdir(elsewhere)
    reading = Pipeline()
    reading.source(source).to(found)
    asyncio.run(reading.run())
    assert [int(row["n"]) for row in found] == [1]


def test_an_inbox_and_a_journal_are_where_they_were_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    inbox, checkpoints = Inbox("inbox.db"), Checkpoints(store=DirectoryStore("kept"), journal="calls")
    monkeypatch.chdir(elsewhere)
    accepting = InboxFile(inbox, None)
    accepting.accept([Submitted(b"1", "one")])
    accepting.close()
    files = checkpoints.journal_files()
    files.append("ended", b"1")
    files.close()
    assert list(elsewhere.iterdir()) == []
    assert files_below(tmp_path) == {"inbox.db", "calls/ended"}


def test_limits_tables_and_patterns_are_of_the_folder_in_which_they_were_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    for folder, name in ((tmp_path, "here"), (elsewhere, "there")):
        folder.mkdir(exist_ok=True)
        (folder / "in.jsonl").write_text(f'{{"id": 1, "name": "{name}"}}\n')
    monkeypatch.chdir(tmp_path)
    limit = SharedLimit("sqlite:///./limits.db")
    assert limit == SharedLimit("sqlite:///limits.db") == SharedLimit(f"sqlite:///{tmp_path}/limits.db")
    table = LookupTable.from_file("in.jsonl", "id")
    source = GlobSource("*.jsonl", JsonLinesSource)
    monkeypatch.chdir(elsewhere)

    async def limited(row: Any) -> Any:
        return row

    found: list[Any] = []
    pipeline = Pipeline()
    named = pipeline.source(source, name="in").lookup(
        table, on="id", into=lambda row, known: row | {"same": known}
    )
    named.async_map(rate_limit(limited, rate=100, scope=limit)).to(found)
    asyncio.run(pipeline.run())
    assert found == [{"id": 1, "name": "here", "same": {"id": 1, "name": "here"}}]
    assert (tmp_path / "limits.db").exists()
    assert files_below(elsewhere) == {"in.jsonl"}


def test_what_is_made_where_there_is_no_folder_any_more_is_told_of_when_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for make in (
        lambda: SharedLimit("sqlite:///limits.db"),
        lambda: LookupTable.from_file("in.jsonl", "id"),
        lambda: GlobSource("*.jsonl", JsonLinesSource),
    ):
        make()


@pytest.mark.parametrize("sink", [JsonLinesFolderSink, ParquetSink])
@pytest.mark.parametrize("store", [DirectoryStore, lambda path: SqliteStore(path / "kept.db")])
def test_checkpoints_and_results_may_be_in_one_directory(tmp_path: Path, store: Any, sink: Any) -> None:
    """Both have files called `part-...`: a store took those of a sink for its own, and deleted them."""
    path = tmp_path / "out"
    path.mkdir()
    for count in (4, 9):
        pipeline = Pipeline()
        source = pipeline.source(Counted(count), name="in").map(lambda n: {"n": n}, name="row")
        source.to(sink(path), name="out")
        run_virtual(pipeline.run(checkpoints=Checkpoints(store=store(path), every=2, keep=1)))
    found = [
        row["n"]
        for part in sorted(path.glob("part-*.*"))
        for row in (
            [json.loads(line) for line in part.read_text().splitlines()]
            if part.suffix == ".jsonl"
            else parquet().read_table(part).to_pylist()
        )
    ]
    assert sorted(found) == list(range(1, 10))


class Counted(Source[int]):
    """Gives so many numbers, one a second."""

    def __init__(self, count: int) -> None:
        self._count, self._read = count, 0

    async def read(self) -> SourceBatch[int] | None:
        await asyncio.sleep(1)
        self._read += 1
        return SourceBatch([self._read]) if self._read <= self._count else None

    def position(self) -> int:
        return min(self._read, self._count)

    async def seek(self, position: int) -> None:
        self._read = position


WITH_FILES_BESIDE: dict[str, tuple[int, Callable[[Path], Any]]] = {
    "JsonLinesSink": (249, JsonLinesSink),
    "JsonLinesFolderSink": (249, JsonLinesFolderSink),
    "ParquetSink": (234, ParquetSink),
    "SqliteSink": (247, lambda path: SqliteSink(path, "t", columns=["n"])),
    "SqliteStore": (227, SqliteStore),
    "Inbox": (247, Inbox),
    "SqliteCache": (247, SqliteCache),
}


@pytest.mark.parametrize("what", WITH_FILES_BESIDE)
def test_a_name_that_leaves_no_room_for_those_of_files_beside_it_is_refused_when_it_is_given(
    tmp_path: Path, what: str
) -> None:
    """`ParquetSink` said so at the end of its input; SQLite, that it is unable to open the database."""
    longest, make = WITH_FILES_BESIDE[what]
    path = tmp_path / ("é" * (longest // 2) + "x" * (longest % 2))
    with pytest.raises(PipelineError, match=rf"path: expected a name of at most {longest} bytes, got 'é+"):
        make(path.with_name(f"{path.name}x"))
    made = make(path)

    async def same(row: dict[str, int]) -> dict[str, int]:
        return row

    async def run() -> None:
        pipeline = Pipeline()
        rows = pipeline.source([{"n": 1}], name="in")
        step = cached(same, ttl=60, key=str, store=made) if isinstance(made, SqliteCache) else same
        rows.async_map(step, name="step").to(made if isinstance(made, Sink) else [], name="out")
        await pipeline.run(checkpoints=Checkpoints(store=made) if isinstance(made, SqliteStore) else None)

    if isinstance(made, Inbox):
        accepting = InboxFile(made, None)
        accepting.accept([Submitted(b"1", "one")])
        accepting.close()
    else:
        asyncio.run(run())
    assert path.exists()


@pytest.mark.parametrize("path", [":memory:", "file:limits.db?mode=memory"])
def test_a_limit_that_is_in_no_file_is_refused(path: str) -> None:
    with pytest.raises(PipelineError, match="url: expected"):
        SharedLimit(f"sqlite:///{path}")


async def test_a_folder_that_is_out_of_reach_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, sink = DirectoryStore(tmp_path / "kept"), JsonLinesSink(tmp_path / "out")

    def fails(*args: Any, **options: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        for name in ("stat", "listdir", "mkdir"):
            patched.setattr(os, name, fails)
        patched.setattr(line_sinks, "open_file", fails)
        for work in (store.numbers, store.holder, sink.open):
            with pytest.raises(
                (CheckpointError, SinkError), match=r"cannot (keep|write) .*: .*Permission denied"
            ):
                await work()
    assert missing_folder(str(tmp_path / "none" / "out")) == str(tmp_path / "none")


async def test_what_is_to_be_kept_in_a_folder_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for work, what in (
        (JsonLinesSink("out").open, "cannot write out"),
        (SqliteSink("out", "rows", columns=["a"]).open, "cannot open out"),
        (DirectoryStore("kept").numbers, "cannot keep checkpoints in kept"),
    ):
        with pytest.raises((CheckpointError, SinkError), match=rf"^{what}: there is no directory \."):
            await work()


def test_disk_that_brings_only_files_to_it_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(file: int, real: Callable[[int], None] = os.fsync) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(answer, os.strerror(answer))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    for answer in (errno.EINVAL, errno.ENOTSUP):  # noqa: B007 - it is what `fsync` answers
        sync_folder(tmp_path)
    answer = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)
