"""Databases that several open at once."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from threading import Barrier, Thread

import pytest

from asyncstream.filesystem.sqlite import is_busy, looked_at, looking_at, read_only, write_ahead


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


@pytest.fixture
def read_only_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of which the system says that it is on such a disk."""
    found = os.statvfs(tmp_path)
    flags = os.ST_RDONLY
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((*found[:8], flags, *found[9:])))
    return tmp_path


def test_a_database_that_wants_a_log_is_read_where_none_can_be_made(read_only_disk: Path) -> None:
    path = read_only_disk / f"kept?#{'t' * 247}"  # a log beside it would have too long a name
    with closing(sqlite3.connect(read_only_disk / "made.db")) as database:
        write_ahead(database, timeout=10)
        database.execute("CREATE TABLE numbers AS SELECT 1 AS one")
        database.commit()
    (read_only_disk / "made.db").rename(path)
    for connect in (looking_at, read_only):
        with closing(connect(str(path), timeout=10)) as database:
            assert database.execute("SELECT one FROM numbers").fetchone() == (1,)
            assert os.listdir(read_only_disk) == [path.name]


def test_what_is_read_only_here_may_be_written_to_elsewhere(read_only_disk: Path) -> None:
    """As in a container that has a folder of its machine to read."""
    path = read_only_disk / "written.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("CREATE TABLE numbers AS SELECT 1 AS one")
        writer.execute("BEGIN EXCLUSIVE")
        for connect in (looking_at, read_only):
            with closing(connect(str(path), timeout=0)) as database:
                with pytest.raises(sqlite3.OperationalError, match="locked"):
                    database.execute("SELECT one FROM numbers").fetchone()
                writer.execute("COMMIT")
                assert database.execute("SELECT one FROM numbers").fetchone() == (1,)
                writer.execute("BEGIN EXCLUSIVE")


@pytest.mark.parametrize("only_to_read", ["file", "folder"])
@pytest.mark.parametrize("left", [[], ["-wal"]], ids=["closed", "an empty log left"])
def test_who_may_only_read_a_database_reads_it_and_leaves_no_log_of_his_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_to_read: str, left: list[str]
) -> None:
    """In a log that is his, its owner could not write."""
    path = tmp_path / "kept?#%.db"
    with closing(sqlite3.connect(path)) as database:
        write_ahead(database, timeout=10)
        database.execute("CREATE TABLE numbers AS SELECT 1 AS one")
        database.commit()
    for ending in left:
        Path(f"{path}{ending}").touch()
    mine = path if only_to_read == "folder" else tmp_path
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK or Path(path) == mine)
    before = sorted(os.listdir(tmp_path))
    for connect in (looking_at, read_only):
        with closing(connect(str(path), timeout=10)) as database:
            assert database.execute("SELECT one FROM numbers").fetchone() == (1,)
            assert sorted(os.listdir(tmp_path)) == before
    assert sorted(os.listdir(tmp_path)) == before


def test_who_may_only_read_sees_what_is_in_the_log_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "written.db"
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        write_ahead(writer, timeout=10)
        for expected in ([(1,)], [(1,), (2,)]):
            writer.execute("CREATE TABLE IF NOT EXISTS numbers (one)")
            writer.execute("INSERT INTO numbers VALUES (?)", expected[-1])
            for connect in (looking_at, read_only):
                with closing(connect(str(path), timeout=10)) as database:
                    assert database.execute("SELECT one FROM numbers").fetchall() == expected


def test_a_log_that_cannot_be_read_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite says that it is unable to open the database."""
    path, kept = tmp_path / "written.db", tmp_path / "kept.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        write_ahead(writer, timeout=10)
        writer.execute("CREATE TABLE numbers AS SELECT 1 AS one")
        for ending in ("", "-wal"):
            Path(f"{kept}{ending}").write_bytes(Path(f"{path}{ending}").read_bytes())
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and os.path.exists(path))
    for connect in (looking_at, read_only):
        with pytest.raises(sqlite3.OperationalError, match=r"kept.db-wal, which cannot be read without"):
            connect(str(kept), timeout=10)
    with pytest.raises(sqlite3.OperationalError, match=r"kept.db-wal, which cannot be read without"):
        looked_at(str(kept), lambda connection: None, timeout=10)


@pytest.mark.parametrize("as_damage", [False, True])
def test_what_changes_while_it_is_read_as_if_nothing_did_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_damage: bool
) -> None:
    path = tmp_path / "written.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        write_ahead(writer, timeout=10)
        writer.execute("CREATE TABLE numbers AS SELECT 1 AS one")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    looks = 0

    def look(connection: sqlite3.Connection) -> list[tuple[int]]:
        nonlocal looks
        looks += 1
        found = connection.execute("SELECT one FROM numbers").fetchall()
        if looks == 1:
            with closing(sqlite3.connect(path, isolation_level=None)) as writer:
                writer.execute("INSERT INTO numbers VALUES (2)")
            if as_damage:
                raise sqlite3.DatabaseError("database disk image is malformed")
        return found

    assert looked_at(str(path), look, timeout=10) == [(1,), (2,)]
    assert looks == 2
