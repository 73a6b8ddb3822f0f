"""Databases that several open at once."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from threading import Barrier, Thread

import pytest

from asyncstream.filesystem.sqlite import is_busy, looking_at, read_only, write_ahead


def mode(connection: sqlite3.Connection) -> str:
    found: str = connection.execute("PRAGMA journal_mode").fetchone()[0]
    return found


def test_the_log_is_begun_when_others_let_it(tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE there (value)")
        other.execute("BEGIN")
        other.execute("SELECT * FROM there").fetchall()
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as ours:
            attempts: list[str] = []

            def go_away(statement: str) -> None:
                attempts.append(statement)
                if len(attempts) == 2:
                    other.execute("COMMIT")

            ours.set_trace_callback(go_away)
            write_ahead(ours, timeout=30)
            assert len(attempts) == 2
            assert mode(ours) == "wal"


def test_what_stands_in_the_way_for_longer_is_told(tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as ours:
            with pytest.raises(sqlite3.OperationalError, match="locked") as raised:
                write_ahead(ours, timeout=0)
            assert is_busy(raised.value)


def test_other_errors_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    path.write_bytes(b"no database at all, but text that is long enough to be taken for one" * 20)
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as ours,
        pytest.raises(sqlite3.DatabaseError, match="not a database"),
    ):
        write_ahead(ours, timeout=30)


def test_many_make_a_database_at_once(tmp_path: Path) -> None:
    failed: list[Exception] = []

    def make(path: Path, all_there: Barrier) -> None:
        try:
            with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
                all_there.wait(30)
                write_ahead(connection, timeout=30)
                connection.execute("CREATE TABLE IF NOT EXISTS ours (value)")
        except Exception as error:
            failed.append(error)

    for number in range(20):
        all_there = Barrier(4)
        path = tmp_path / f"{number}.db"
        threads = [Thread(target=make, args=(path, all_there)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not failed


def test_on_a_disk_that_is_read_only_nothing_is_made_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept?#.db"
    with closing(sqlite3.connect(path)) as database:
        write_ahead(database, timeout=10)
        database.execute("CREATE TABLE numbers AS SELECT 1 AS one")
        database.commit()
    found = os.statvfs(tmp_path)
    flags = os.ST_RDONLY
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((*found[:8], flags, *found[9:])))
    for connect in (looking_at, read_only):
        with closing(connect(str(path), timeout=10)) as database:
            assert database.execute("SELECT one FROM numbers").fetchone() == (1,)
            assert os.listdir(tmp_path) == [path.name]  # a log could not be made
