"""The package's own sources, sinks and stores keep the contracts."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet as parquet
import pytest
import zstandard

from asyncstream import (
    ArrowIpcSink,
    ArrowIpcSource,
    CsvFolderSink,
    CsvSink,
    CsvSource,
    DirectoryStore,
    GlobSource,
    Inbox,
    Items,
    JsonLinesSink,
    JsonLinesSource,
    MemoryStore,
    ParquetSink,
    ParquetSource,
    SqliteSink,
    SqliteSource,
    SqliteStore,
)
from asyncstream.connectors import CallbackSink, ListSink
from asyncstream.connectors.durable import DurableSubmissions
from asyncstream.connectors.inbox import InboxFile, Submitted
from asyncstream.testing import Check, sink_contract, source_contract, store_contract
from tests.arrow_files import write_ipc

ROWS: list[dict[str, Any]] = [{"n": number, "text": f"line {number}"} for number in range(40)]
ROWS_BY_TIME = [{**row, "at": f"09:{row['n'] // 4:02d}"} for row in ROWS]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def write_json(folder: Path) -> None:
    (folder / "in.jsonl").write_text(LINES)


def write_packed_json(folder: Path) -> None:
    pieces = LINES[:555], LINES[555:]
    (folder / "in.jsonl.gz").write_bytes(b"".join(gzip.compress(piece.encode()) for piece in pieces))


def write_csv(folder: Path) -> None:
    (folder / "in.csv").write_text("n,text\n" + "".join(f"{row['n']},{row['text']}\n" for row in ROWS))


def write_table(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "in.sqlite")) as database, database:
        database.execute("CREATE TABLE t (n, text)")
        database.executemany("INSERT INTO t VALUES (:n, :text)", ROWS)


def write_table_by_time(folder: Path) -> None:
    """Rows that were written in another order, four of each time."""
    with closing(sqlite3.connect(folder / "in.sqlite")) as database, database:
        database.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, text, at NOT NULL)")
        database.execute("CREATE INDEX t_at ON t (at)")
        database.executemany("INSERT INTO t VALUES (:n, :text, :at)", reversed(ROWS_BY_TIME))


def write_parquet(folder: Path) -> None:
    for name, rows in (("a", ROWS[:25]), ("b", ROWS[25:])):
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{name}.parquet", row_group_size=10)


def write_files(folder: Path) -> None:
    for number in range(4):
        rows = [json.dumps(row) for row in ROWS if row["n"] % 4 == number]
        (folder / f"{number}.jsonl").write_text("\n".join(rows))


def files(folder: Path) -> GlobSource[Any]:
    return GlobSource(folder / "*.jsonl", lambda path: JsonLinesSource(path, batch=3), parallel=3)


def write_arrow(folder: Path) -> None:
    write_ipc(pyarrow.Table.from_pylist(ROWS[:25]), folder / "a.feather", chunk=10)
    table = pyarrow.Table.from_pylist(ROWS[25:])
    with pyarrow.ipc.new_stream(folder / "b.arrows", table.schema) as writer:
        writer.write_table(table)


def generated() -> Iterator[dict[str, Any]]:
    yield from ROWS


async def generated_later() -> AsyncIterator[dict[str, Any]]:
    for row in ROWS:
        yield row


class Backlog(DurableSubmissions[Any]):
    """What an earlier process left in its inbox, and nothing new."""

    async def open(self) -> None:
        await super().open()
        self.end()


def write_inbox(folder: Path) -> None:
    inbox = Inbox(folder / "inbox.sqlite")
    with closing(InboxFile(inbox, None)) as file:
        file.accept([Submitted(inbox.codec.encode(row), f"row {row['n']}") for row in ROWS])


SOURCES: dict[str, list[Check]] = {
    "inbox": source_contract(
        lambda folder: Backlog(Inbox(folder / "inbox.sqlite")), ROWS, prepare=write_inbox
    ),
    "json": source_contract(
        lambda folder: JsonLinesSource(folder / "in.jsonl", batch=7), ROWS, prepare=write_json
    ),
    "json, gzip": source_contract(
        lambda folder: JsonLinesSource(folder / "in.jsonl.gz", batch=7), ROWS, prepare=write_packed_json
    ),
    "json, by fsspec": source_contract(
        lambda folder: JsonLinesSource(f"file://{folder}/in.jsonl", batch=7), ROWS, prepare=write_json
    ),
    "csv": source_contract(
        lambda folder: CsvSource(folder / "in.csv", batch=7, types={"n": int}), ROWS, prepare=write_csv
    ),
    "sqlite": source_contract(
        lambda folder: SqliteSource(folder / "in.sqlite", "t", batch=7), ROWS, prepare=write_table
    ),
    "sqlite, by a column": source_contract(
        lambda folder: SqliteSource(folder / "in.sqlite", "t", by="at", batch=7),
        ROWS_BY_TIME,
        prepare=write_table_by_time,
    ),
    "parquet": source_contract(lambda folder: ParquetSource(folder, batch=7), ROWS, prepare=write_parquet),
    "files": source_contract(files, ROWS, prepare=write_files, split_of=lambda row: row["n"] % 4),
    "parquet, by fsspec": source_contract(
        lambda folder: ParquetSource(f"file://{folder}", batch=7), ROWS, prepare=write_parquet
    ),
    "arrow": source_contract(lambda folder: ArrowIpcSource(folder, batch=7), ROWS, prepare=write_arrow),
    "sequence": source_contract(lambda folder: Items(ROWS), ROWS),
    "generator": source_contract(lambda folder: Items(generated), ROWS, replayable=False),
    "async generator": source_contract(lambda folder: Items(generated_later), ROWS, replayable=False),
}

ELEMENTS = [{"n": number, "text": "x" * number} for number in range(24)]


def read_json(folder: Path) -> list[Any]:
    path = folder / "out.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read_packed_json(folder: Path) -> list[Any]:
    path = folder / "out.jsonl.zst"
    if not path.exists():
        return []
    with zstandard.ZstdDecompressor().stream_reader(path.read_bytes(), read_across_frames=True) as reader:
        return [json.loads(line) for line in reader.read().splitlines()]


def read_csv(folder: Path) -> list[Any]:
    path = folder / "out.csv"
    if not path.exists():
        return []
    rows = [line.split(",") for line in path.read_text().splitlines()[1:]]
    return [{"n": int(n), "text": text} for n, text in rows]


def read_table(folder: Path) -> list[Any]:
    with closing(sqlite3.connect(folder / "out.sqlite")) as database:
        if not database.execute("SELECT name FROM sqlite_master WHERE name = 't'").fetchone():
            return []
        found = database.execute("SELECT n, text FROM t ORDER BY rowid").fetchall()
    return [{"n": n, "text": text} for n, text in found]


def read_parquet(folder: Path) -> list[Any]:
    path = folder / "out.parquet"
    files = sorted(path.glob("[!.]*")) if path.is_dir() else [path] if path.exists() else []
    return [row for file in files for row in parquet.read_table(file).to_pylist()]


def read_arrow(folder: Path) -> list[Any]:
    path = folder / "out.arrow"
    files = sorted(path.glob("[!.]*")) if path.is_dir() else [path] if path.exists() else []
    return [row for file in files for row in pyarrow.ipc.open_file(file).read_all().to_pylist()]


def read_csv_folder(folder: Path) -> list[Any]:
    found = []
    for file in sorted((folder / "out").glob("[!.]*")):
        _, *lines = gzip.decompress(file.read_bytes()).decode().splitlines()
        found += [line.split(",") for line in lines]
    return [{"n": int(n), "text": text} for n, text in found]


@cache
def written(folder: Path) -> list[Any]:
    """What is written to a folder that is none."""
    return []


SINKS: dict[str, list[Check]] = {
    "json": sink_contract(lambda folder: JsonLinesSink(folder / "out.jsonl"), read_json, ELEMENTS),
    "json, zstd": sink_contract(
        lambda folder: JsonLinesSink(folder / "out.jsonl.zst"), read_packed_json, ELEMENTS
    ),
    "csv": sink_contract(
        lambda folder: CsvSink(folder / "out.csv", columns=["n", "text"]), read_csv, ELEMENTS
    ),
    "sqlite": sink_contract(
        lambda folder: SqliteSink(folder / "out.sqlite", "t", columns=["n", "text"]), read_table, ELEMENTS
    ),
    "parquet": sink_contract(lambda folder: ParquetSink(folder / "out.parquet"), read_parquet, ELEMENTS),
    "arrow": sink_contract(lambda folder: ArrowIpcSink(folder / "out.arrow"), read_arrow, ELEMENTS),
    "csv, by fsspec": sink_contract(
        lambda folder: CsvFolderSink(f"file://{folder}/out", compression="gzip"), read_csv_folder, ELEMENTS
    ),
    "list": sink_contract(
        lambda folder: ListSink(written(folder)), written, ELEMENTS, transactional=False, durable=False
    ),
    "function": sink_contract(
        lambda folder: CallbackSink(written(folder).append),
        written,
        ELEMENTS,
        transactional=False,
        durable=False,
    ),
}


@cache
def memory(folder: Path) -> MemoryStore:
    return MemoryStore()


STORES: dict[str, list[Check]] = {
    "directory": store_contract(lambda folder: DirectoryStore(folder / "kept")),
    "sqlite": store_contract(lambda folder: SqliteStore(folder / "kept.sqlite")),
    "memory": store_contract(memory, durable=False),
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be had: it is processes that end here, not the machine, and disks are slow."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    with TemporaryDirectory(dir=memory) as made:
        yield Path(made)


def every(contracts: dict[str, list[Check]]) -> pytest.MarkDecorator:
    found = [
        pytest.param(check, id=f"{kind}-{check}") for kind, checks in contracts.items() for check in checks
    ]
    return pytest.mark.parametrize("check", found)


@every(SOURCES)
async def test_source(check: Check, folder: Path) -> None:
    await check(folder)


@every(SINKS)
async def test_sink(check: Check, folder: Path) -> None:
    await check(folder)


@every(STORES)
async def test_store(check: Check, folder: Path) -> None:
    await check(folder)
