"""Stores keep checkpoints whole, also when the disk is full, the folder goes, or writing is cut short."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from asyncstream.checkpoint import CheckpointStore, DirectoryStore, MemoryStore, SqliteStore
from asyncstream.errors import CheckpointError, PipelineError

MAKE: dict[str, Callable[[Path], CheckpointStore]] = {
    "memory": lambda folder: MemoryStore(),
    "directory": lambda folder: DirectoryStore(folder / "kept"),
    "sqlite": lambda folder: SqliteStore(folder / "kept.sqlite"),
}


@pytest.fixture(params=MAKE)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    return MAKE[request.param](tmp_path)


def test_store_gives_back_what_it_was_given(store: CheckpointStore) -> None:
    async def main() -> None:
        assert await store.numbers() == []
        for number in (3, 1, 10):
            await store.save(number, b"%d" % number)
        assert await store.numbers() == [1, 3, 10]
        assert await store.load(3) == b"3"
        await store.delete(3)
        await store.delete(3)
        assert await store.numbers() == [1, 10]
        with pytest.raises(CheckpointError, match="no checkpoint 3"):
            await store.load(3)

    asyncio.run(main())


def test_a_number_saved_again_has_the_new_bytes(store: CheckpointStore) -> None:
    async def main() -> None:
        await store.save(1, b"old")
        await store.save(1, b"new")
        assert await store.load(1) == b"new"

    asyncio.run(main())


def test_directory_holds_nothing_but_whole_checkpoints(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "kept")
    asyncio.run(store.save(7, b"x" * 1000))
    assert os.listdir(tmp_path / "kept") == ["00000007.checkpoint"]


def test_directory_ignores_other_files_and_clears_away_what_a_crash_left(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "x.checkpoint").write_text("mine")
    (tmp_path / "00000002.abc.unfinished").write_text("half")
    (tmp_path / "00000009.abc.unfinished").write_text("half")

    async def main() -> None:
        await store.save(3, b"3")
        assert await store.numbers() == [3]
        await store.delete(3)

    asyncio.run(main())
    assert sorted(os.listdir(tmp_path)) == ["00000009.abc.unfinished", "notes.txt", "x.checkpoint"]


def test_directory_that_went_away_is_made_again(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "kept")

    async def main() -> None:
        await store.save(1, b"1")
        (tmp_path / "kept" / "00000001.checkpoint").unlink()
        (tmp_path / "kept").rmdir()
        assert await store.numbers() == []
        await store.save(2, b"2")
        assert await store.numbers() == [2]

    asyncio.run(main())


def test_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(tmp_path)
    asyncio.run(store.save(1, b"1"))

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        asyncio.run(store.save(2, b"2"))
    assert os.listdir(tmp_path) == ["00000001.checkpoint"]


FILL = """
import asyncio, resource, signal, sys
from asyncstream.checkpoint import DirectoryStore, SqliteStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
store = {store}(sys.argv[1])
async def main():
    await store.save(1, b"x" * 10_000)
    try:
        await store.save(2, b"x" * 200_000)
    except Exception as error:
        print(type(error).__name__)
    assert await store.numbers() == [1], await store.numbers()
    assert await store.load(1) == b"x" * 10_000
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("kind", "error"), [("DirectoryStore", "OSError"), ("SqliteStore", "CheckpointError")]
)
def test_full_disk_fails_the_save_and_keeps_what_was_there(tmp_path: Path, kind: str, error: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILL.format(store=kind), str(tmp_path / "kept")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == error


def test_sqlite_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("not a database, and long enough for SQLite to look at it" * 100)
    with pytest.raises(CheckpointError, match="kept"):
        asyncio.run(SqliteStore(tmp_path / "kept").numbers())


def test_sqlite_store_is_in_wal_mode(tmp_path: Path) -> None:
    asyncio.run(SqliteStore(tmp_path / "kept").save(1, b"1"))
    with closing(sqlite3.connect(tmp_path / "kept")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DirectoryStore(""),
        lambda: SqliteStore(3),  # type: ignore[arg-type]
        lambda: SqliteStore("x", table="a b"),
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(PipelineError):
        make()
