"""Stores keep checkpoints whole, also when the disk is full, the folder goes, or writing is cut short."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asyncstream.checkpoint import (
    Checkpoints,
    CheckpointStore,
    DirectoryStore,
    History,
    MemoryStore,
    SqliteStore,
    StepInfo,
    directory,
)
from asyncstream.checkpoint.format import CheckpointInfo, pack
from asyncstream.checkpoint.parts import Part
from asyncstream.checkpoint.settings import checkpoints_of
from asyncstream.checkpoint.stores import manifests_of, time_ms
from asyncstream.codec import JsonCodec
from asyncstream.errors import CheckpointError, DamagedCheckpoint, LeaseHeld, LeaseLost, PipelineError
from asyncstream.lease import Before, Holder, Lease, enter, leave

MAKE: dict[str, Callable[[Path], CheckpointStore]] = {
    "memory": lambda folder: MemoryStore(),
    "directory": lambda folder: DirectoryStore(folder / "kept"),
    "sqlite": lambda folder: SqliteStore(folder / "kept.sqlite"),
}

INFO = CheckpointInfo(1, "p", 0, "json", False, 0, {})


@pytest.fixture(params=MAKE)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    return MAKE[request.param](tmp_path)


async def lease_of(store: CheckpointStore, seconds: float = 30.0) -> Lease:
    return await store.acquire(Holder.here(0), seconds)


async def test_store_gives_back_what_it_was_given(store: CheckpointStore) -> None:
    assert await store.numbers() == []
    assert await store.parts() == []
    lease = await lease_of(store)
    for number in (3, 1, 10):
        await store.commit(lease, number, b"%d" % number)
        await store.put(lease, f"part-of-{number}", b"part %d" % number)
    assert await store.numbers() == [1, 3, 10]
    assert sorted(await store.parts()) == ["part-of-1", "part-of-10", "part-of-3"]
    assert await store.read(3) == b"3"
    assert await store.read("part-of-3") == b"part 3"
    for _ in range(2):
        await store.delete(lease, [3], ["part-of-1"])
    assert await store.numbers() == [1, 10]
    assert sorted(await store.parts()) == ["part-of-10", "part-of-3"]
    newest = "the newest is 10, and `asyncstream checkpoint list` shows all"
    with pytest.raises(CheckpointError, match=f"no checkpoint 3 in .*; {newest}$"):
        await store.read(3)
    with pytest.raises(CheckpointError, match="part-of-1"):
        await store.read("part-of-1")


def test_a_store_may_be_written_with_a_decorator_also_to_checkers_that_tell_async_defs_apart() -> None:
    """To pyright an `async def` gives a `CoroutineType`, which the methods of `DirectoryStore` do not."""
    asked = [method for name, method in vars(CheckpointStore).items() if not name.startswith("_")]
    assert len(asked) == 10
    assert not [method for method in asked if inspect.iscoroutinefunction(method)]


async def test_many_manifests_at_once_are_what_each_is_by_itself(store: CheckpointStore) -> None:
    lease = await lease_of(store)
    for number in range(1, 6):
        await store.commit(lease, number, b"%d" % number)
    if isinstance(store, DirectoryStore):
        store._file(2).unlink()
        store._file(2).mkdir()  # as damage may have it
    asked = [5, 2, 9, 1]
    many = await manifests_of(store, asked)
    assert list(many) == asked
    for number, found in many.items():
        if isinstance(found, bytes):
            assert found == await store.read(number)
        else:
            with pytest.raises(type(found), match=re.escape(str(found))):
                await store.read(number)
    assert isinstance(many[9], CheckpointError)


async def test_what_is_kept_again_has_the_new_bytes(store: CheckpointStore) -> None:
    lease = await lease_of(store)
    for data in (b"old", b"new"):
        await store.commit(lease, 1, data)
        await store.put(lease, "part", data)
    assert await store.read(1) == await store.read("part") == b"new"


# ---------------------------------------------------------------------- the lease


async def test_leases_go_by_the_clock_as_it_is_when_it_was_ahead_and_is_put_right(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held back, it would find run out what others renew by the right time; and give leases for hours."""
    right_ms, hour_ms = 1_800_000_000_000, 3_600_000
    monkeypatch.setattr(time, "time_ns", lambda: (right_ms + hour_ms) * 1_000_000)
    assert time_ms() == right_ms + hour_ms
    monkeypatch.setattr(time, "time_ns", lambda: right_ms * 1_000_000)
    lease = await lease_of(store)
    await store.renew(lease, 60.0)
    held = await store.holder()
    assert held is not None
    assert (lease.until_ms, held.until_ms) == (right_ms + 30_000, right_ms + 60_000)


async def test_lease_is_given_to_one_and_says_who_has_it(store: CheckpointStore) -> None:
    holder = Holder.here(0)
    enter(holder, lambda: True)
    assert await store.holder() is None
    lease = await store.acquire(holder, 30.0)
    assert await store.holder() == lease
    with pytest.raises(LeaseHeld, match=rf"process {os.getpid()} on .*, since 1970"):
        await lease_of(store)
    await store.renew(lease, 60.0)
    await store.release(lease)
    following = await lease_of(store)
    assert (following.number, following.place) == (lease.number + 1, lease.place)
    leave(holder)


@pytest.mark.parametrize("how", ["dead", "silent"])
async def test_who_was_followed_can_write_and_delete_nothing_any_more(
    store: CheckpointStore, how: str
) -> None:
    holder = Holder.here(0)
    enter(holder, lambda: how == "silent")
    old = await store.acquire(holder, 30.0 if how == "dead" else 1e-9)
    await store.commit(old, 1, b"1")
    new = await lease_of(store)
    for write in (
        store.commit(old, 2, b"2"),
        store.put(old, "part", b"2"),
        store.delete(old, [1], []),
        store.delete(old, [], []),
        store.renew(old, 30.0),
    ):
        with pytest.raises(LeaseLost, match="taken over by process"):
            await write
    await store.release(old)
    assert (await store.holder()) == new
    assert await store.numbers() == [1]
    assert await store.parts() == []
    await store.commit(new, 2, b"new 2")
    assert await store.read(2) == b"new 2"
    leave(holder)


async def test_directory_that_was_emptied_is_not_said_to_be_taken_over(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "kept")
    lease = await lease_of(store)
    shutil.rmtree(tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    with pytest.raises(
        LeaseLost, match="holds no lease that can be read: it was emptied, or another disk is"
    ):
        await store.renew(lease, 30.0)


@pytest.mark.parametrize("kind", ["directory", "sqlite"])
async def test_another_store_in_the_place_of_a_jobs_own_is_not_written_to(tmp_path: Path, kind: str) -> None:
    """A disk was unmounted, say, and the folder that it was mounted on holds what a first try has left."""
    (tmp_path / "disk").mkdir()
    store = MAKE[kind](tmp_path / "disk")
    left = await lease_of(store)
    (tmp_path / "disk").rename(tmp_path / "left")
    (tmp_path / "disk").mkdir()
    lease = await lease_of(store)
    assert lease.number == left.number
    (tmp_path / "disk").rename(tmp_path / "own")
    (tmp_path / "left").rename(tmp_path / "disk")
    for write in (store.commit(lease, 2, b"2"), store.put(lease, "part", b""), store.renew(lease, 30.0)):
        with pytest.raises(LeaseLost, match="holds another one's lease: another disk is in its place"):
            await write
    await store.release(lease)
    assert (await store.holder(), await store.numbers(), await store.parts()) == (left, [], [])


@pytest.mark.parametrize("kind", ["directory", "sqlite"])
async def test_store_that_is_out_of_reach_is_not_made_anew_by_a_job_that_runs(
    tmp_path: Path, kind: str
) -> None:
    disk, away = tmp_path / "disk", tmp_path / "away"
    disk.mkdir()
    store = MAKE[kind](disk)
    lease = await lease_of(store)
    assert isinstance(store, DirectoryStore | SqliteStore)
    files = store.journal_files()
    disk.rename(away)
    for write in (store.commit(lease, 1, b"1"), store.renew(lease, 30.0)):
        with pytest.raises(CheckpointError) as error:
            await write
        assert not isinstance(error.value, LeaseLost)
    with pytest.raises(OSError, match="No such file"):
        files.append("calls", b"frame")
    assert not disk.exists()
    away.rename(disk)
    await store.commit(lease, 1, b"1")
    assert await store.numbers() == [1]


def test_of_many_that_want_the_lease_at_once_one_gets_it(tmp_path: Path) -> None:
    async def main(store: CheckpointStore) -> None:
        holders = [Holder.here(0) for _ in range(10)]
        for holder in holders:
            enter(holder, lambda: True)
        found = await asyncio.gather(
            *(store.acquire(holder, 30.0) for holder in holders), return_exceptions=True
        )
        assert [type(one) for one in found].count(Lease) == 1
        assert [type(one) for one in found].count(LeaseHeld) == 9
        for holder in holders:
            leave(holder)

    for name in ("directory", "sqlite"):
        asyncio.run(main(MAKE[name](tmp_path)))


DISK_WORK = ("fsync", "link", "listdir", "open", "rename", "replace", "stat", "unlink")


@pytest.mark.parametrize("name", ["directory", "sqlite"])
async def test_nothing_waits_for_the_disk_in_the_event_loop(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is added to the journal is the exception: it need not come to the disk."""
    loop_thread = threading.current_thread()
    held: list[str] = []

    def watched(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watching(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is loop_thread:
                held.append(what)
            return call(*args, **kwargs)

        return watching

    store = MAKE[name](tmp_path)
    assert isinstance(store, DirectoryStore | SqliteStore)
    files = store.journal_files()
    lease = await lease_of(store)
    files.append("journal-1", b"1")
    for what in DISK_WORK:
        monkeypatch.setattr(os, what, watched(what, getattr(os, what)))
    await store.put(lease, "part", b"part")
    await store.commit(lease, 1, b"1")
    await store.renew(lease, 30.0)
    assert (await store.numbers(), await store.parts(), await store.read(1)) == ([1], ["part"], b"1")
    await files.sync()
    assert "journal-1" in await files.names()
    assert await files.read("journal-1") == b"1"
    await files.remove("journal-1")
    await store.delete(lease, [1], ["part"])
    await store.release(lease)
    assert await store.holder() == lease.given_back()
    await lease_of(store)
    assert held == []


async def test_name_that_a_network_disk_gives_and_then_denies_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost, and it is asked again."""
    link = os.link

    def twice(source: str, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    store = DirectoryStore(tmp_path)
    lease = await lease_of(store)
    await store.commit(lease, 1, b"1")
    assert (lease.number, await store.read(1)) == (1, b"1")


async def test_manifest_that_came_too_late_is_replaced_by_that_of_the_follower(tmp_path: Path) -> None:
    """A process was stopped between its last look at the lease and the moment its manifest got its name."""

    store = DirectoryStore(tmp_path)
    await store.commit(await lease_of(store), 1, b"1")
    new = await lease_of(store)
    (tmp_path / "00000002.checkpoint").write_bytes(b"late")
    await store.commit(new, 2, b"new")
    assert await store.read(2) == b"new"


@pytest.mark.parametrize("what", ["manifest", "part", "renewal"])
def test_what_had_no_name_when_another_followed_never_gets_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A process was stopped after its last look at the lease; the follower did not come as far as it had."""
    follower = DirectoryStore(tmp_path)

    async def main() -> None:
        store = DirectoryStore(tmp_path)
        lease = await store.acquire(Holder.here(0), 1e-9)
        await store.commit(lease, 1, b"1")
        for name in ("link", "replace"):
            monkeypatch.setattr(os, name, after_acquiring(getattr(os, name)))
        writes: dict[str, Callable[[], Awaitable[None]]] = {
            "manifest": lambda: store.commit(lease, 2, b"late"),
            "part": lambda: store.put(lease, "abc-1", b"late"),
            "renewal": lambda: store.renew(lease, 30.0),
        }
        with pytest.raises(LeaseLost):
            await writes[what]()
        assert await store.numbers() == [1]
        assert await store.parts() == []
        held = await store.holder()
        assert held is not None
        assert held.number == lease.number + 1

    def after_acquiring(real: Callable[..., None]) -> Callable[..., None]:
        def call(*paths: Any) -> None:
            monkeypatch.undo()
            asyncio.run(follower.acquire(Holder.here(0), 30.0))
            real(*paths)

        return call

    asyncio.run(main())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b"{}",
        b'{"number": 1, "place": "p", "until_ms": 0, "holder": 3}',
        *(
            Lease(1, "p", Holder("host", 1, 1, "realm", "token", 0), 0).to_json().replace(was, now)
            for was, now in (
                (b'"number": 1', b'"number": "1"'),
                (b'"until_ms": 0', b'"until_ms": null'),
                (b'"since_ms": 0', b'"since_ms": 1e300'),
                (b'"before": []', b'"before": [[1]]'),
            )
        ),
    ],
)
def test_what_is_no_lease_is_said_to_be_none(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"lease|JSON|Expecting|decode"):
        Lease.from_json(text)


async def test_lease_that_was_torn_brings_back_no_number_and_makes_no_other_place(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    lease = await lease_of(store)
    (tmp_path / f"lease-{lease.number:08}").write_bytes(b"{")
    assert (await lease_of(store)).number == lease.number + 1

    store = DirectoryStore(tmp_path / "other")
    first = await lease_of(store, 0.0)
    enter(first.holder, lambda: True)  # silent, and alive
    try:
        second = await lease_of(store)
        (tmp_path / "other" / "lease-00000002").write_bytes(b"")
        third = await lease_of(store)
    finally:
        leave(first.holder)
    assert (third.number, third.place) == (3, first.place)
    assert third.known_as(first) == Before(1, first.holder.token, ended=False)
    assert third.known_as(second) is None


# ---------------------------------------------------------------------- the directory


async def test_directory_holds_nothing_but_whole_checkpoints(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "kept")
    lease = await lease_of(store)
    await store.commit(lease, 7, b"x" * 1000)
    await store.put(lease, "abc-1", b"x" * 1000)
    assert sorted(os.listdir(tmp_path / "kept")) == [
        "00000007.checkpoint",
        "lease-00000001",
        "newest-00000007",
        "part-abc-1",
    ]


async def test_directory_ignores_other_files_and_clears_away_what_a_crash_left(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    mine = ["notes.txt", "x.checkpoint", "x.unfinished"]
    for name in (
        *mine,
        "00000002.abc.unfinished",
        "part-abc-1.abc.unfinished",
        "lease-00000000.abc.unfinished",
    ):
        (tmp_path / name).write_text("mine or half")

    lease = await lease_of(store)
    await store.commit(lease, 3, b"3")
    assert await store.numbers() == [3]
    assert await store.parts() == []
    await store.delete(lease, [3], [])
    assert sorted(os.listdir(tmp_path)) == ["lease-00000001", *mine]


async def test_renewal_that_is_being_written_is_not_cleared_away(tmp_path: Path) -> None:
    """It is written in another thread than what is deleted."""
    store = DirectoryStore(tmp_path)
    lease = await lease_of(store)
    await store.commit(lease, 1, b"1")
    with store._written("lease-00000001", b"renewal") as renewal:
        await store.delete(lease, [1], [])
        assert Path(renewal).name in os.listdir(tmp_path)


async def test_who_looked_before_another_took_the_lease_does_not_take_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, store = DirectoryStore(tmp_path), DirectoryStore(tmp_path)
    quick, late = Holder.here(0), Holder.here(0)
    enter(quick, lambda: True)
    looked: list[list[int]] = []
    numbers = store._numbers

    def looking(before: str, behind: str = "") -> list[int]:
        found = numbers(before, behind)
        if not looked:
            first._acquire(quick, 30)
        looked.append(found)
        return found

    monkeypatch.setattr(store, "_numbers", looking)
    with pytest.raises(LeaseHeld):
        store._acquire(late, 30)
    leave(quick)
    assert looked == [[], [1]]


async def test_holder_that_wakes_up_while_it_deletes_leaves_what_its_follower_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, begun = DirectoryStore(tmp_path), tmp_path / "part-b.x.unfinished"
    lease = await lease_of(store, 0)
    await store.commit(lease, 1, b"1")
    unlink = Path.unlink

    def followed(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        if not begun.exists() and path.suffix == ".checkpoint":
            DirectoryStore(tmp_path)._acquire(Holder.here(0), 30)
            begun.touch()

    monkeypatch.setattr(Path, "unlink", followed)
    with pytest.raises(LeaseLost):
        await store.delete(lease, [1], [])
    assert begun.exists()


async def test_directory_that_went_away_is_made_again_by_the_next_job(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "kept")

    lease = await lease_of(store)
    await store.commit(lease, 1, b"1")
    shutil.rmtree(tmp_path / "kept")
    assert await store.numbers() == []
    with pytest.raises(LeaseLost):
        await store.commit(lease, 2, b"2")
    await store.commit(await lease_of(store), 2, b"2")
    assert await store.numbers() == [2]


@pytest.mark.parametrize("nth", [0, 1])
def test_what_was_not_brought_to_the_disk_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """The first fsync is that of the file, the second that of the directory with its name."""
    store = DirectoryStore(tmp_path)
    lease = asyncio.run(lease_of(store))
    asyncio.run(store.commit(lease, 1, b"1"))
    real, calls = os.fsync, [0]

    def broken(file: int) -> None:
        calls[0] += 1
        if calls[0] == nth + 1:
            raise OSError(errno.EIO, "Input/output error")
        real(file)

    monkeypatch.setattr(os, "fsync", broken)
    for work in (store.commit(lease, 2, b"2"), store.put(lease, "part", b"2")):
        calls[0] = 0
        with pytest.raises(OSError, match="Input/output error"):
            asyncio.run(work)
    assert sorted(os.listdir(tmp_path)) == ["00000001.checkpoint", "lease-00000001", "newest-00000001"]


FILL = """
import asyncio, resource, signal, sys
from asyncstream.checkpoint import DirectoryStore, SqliteStore
from asyncstream.lease import Holder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
store = {store}(sys.argv[1])
async def main():
    lease = await store.acquire(Holder.here(0), 30.0)
    await store.commit(lease, 1, b"x" * 10_000)
    for work in (store.commit(lease, 2, b"x" * 200_000), store.put(lease, "part", b"x" * 200_000)):
        try:
            await work
        except Exception as error:
            print(type(error).__name__)
    assert await store.numbers() == [1], await store.numbers()
    assert await store.parts() == [], await store.parts()
    assert await store.read(1) == b"x" * 10_000
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("kind", "error"), [("DirectoryStore", "OSError"), ("SqliteStore", "CheckpointError")]
)
def test_full_disk_fails_the_write_and_keeps_what_was_there(tmp_path: Path, kind: str, error: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILL.format(store=kind), str(tmp_path / "kept")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [error, error]


# ---------------------------------------------------------------------- SQLite


def test_sqlite_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("not a database, and long enough for SQLite to look at it" * 100)
    with pytest.raises(CheckpointError, match="kept"):
        asyncio.run(SqliteStore(tmp_path / "kept").numbers())


def test_sqlite_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "kept", tmp_path / "nowhere" / "kept"):
        with pytest.raises(CheckpointError, match=rf"{re.escape(str(path))}: .*unable to open"):
            asyncio.run(lease_of(SqliteStore(path)))


def test_sqlite_store_is_in_wal_mode(tmp_path: Path) -> None:
    asyncio.run(lease_of(SqliteStore(tmp_path / "kept")))
    with closing(sqlite3.connect(tmp_path / "kept")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert os.listdir(tmp_path) == ["kept"]


@pytest.mark.parametrize(
    "statement", ["DELETE FROM kept WHERE number = 2", "DELETE FROM kept", "emptied", "dropped"]
)
def test_sqlite_store_that_has_lost_rows_is_not_taken_for_a_whole_one(tmp_path: Path, statement: str) -> None:
    store = SqliteStore(tmp_path / "file", table="kept")

    async def fill() -> None:
        lease = await lease_of(store)
        for number in (1, 2):
            await store.commit(lease, number, b"")
        await store.release(lease)

    asyncio.run(fill())
    if statement == "emptied":
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(DamagedCheckpoint, match="is empty"):
            asyncio.run(store.numbers())
        return
    with closing(sqlite3.connect(tmp_path / "file")) as database, database:
        if statement == "dropped":
            for table in ("kept", "kept_parts", "kept_lease"):
                database.execute(f"DROP TABLE {table}")
        else:
            database.execute(statement)
    if statement == "dropped":
        with pytest.raises(DamagedCheckpoint, match="has lost its tables"):
            asyncio.run(store.numbers())
        return
    history = History(store, JsonCodec())
    with pytest.raises(CheckpointError, match="every checkpoint"):
        asyncio.run(history.newest_whole(history.read))


@pytest.mark.parametrize("value", ["'text'", "cast(x'ff' AS text)", "1e99", "10000000000000000"])
async def test_sqlite_value_that_has_become_another_counts_as_damaged(tmp_path: Path, value: str) -> None:
    store = SqliteStore(tmp_path / "file", table="kept")
    lease = await lease_of(store)
    await store.commit(lease, 1, pack(INFO, {}).manifest)
    await store.put(lease, "part", b"data")
    with closing(sqlite3.connect(tmp_path / "file")) as database, database:
        for table in ("kept", "kept_parts"):
            database.execute(f"UPDATE {table} SET data = {value}")
    found = await History(store, JsonCodec()).infos()
    assert isinstance(found[1], DamagedCheckpoint)
    assert await store.read("part") != b"data"
    with closing(sqlite3.connect(tmp_path / "file")) as database, database:
        database.execute("UPDATE kept_lease SET newest = 'none'")
    with pytest.raises(DamagedCheckpoint, match="its lease cannot be read"):
        await store.numbers()


@pytest.mark.parametrize("kind", ["directory", "sqlite"])
async def test_newest_that_was_lost_is_missed_and_one_that_was_deleted_is_not(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = MAKE[kind](tmp_path)
    lease = await lease_of(store)
    for number in (1, 2, 3):
        await store.commit(lease, number, pack(replace(INFO, id=number), {}).manifest)
    await store.delete(lease, [3], [])
    assert await store.numbers() == [1, 2], "it was let go on purpose"
    await store.commit(lease, 4, pack(replace(INFO, id=4), {}).manifest)
    if kind == "directory":
        (tmp_path / "kept" / "00000004.checkpoint").unlink()
    else:
        with closing(sqlite3.connect(tmp_path / "kept.sqlite")) as database, database:
            database.execute("DELETE FROM asyncstream_checkpoints WHERE number = 4")
    assert await store.numbers() == [1, 2, 4]
    history = History(store, JsonCodec())
    assert await history.newest_whole(history.read) is not None
    assert "checkpoint 4 is damaged: it is lost from" in caplog.text
    assert list(history.passed_over) == [4]
    await store.commit(lease, 5, pack(replace(INFO, id=5), {}).manifest)
    assert await store.numbers() == [1, 2, 5]


async def test_nothing_is_missing_where_a_process_ends_while_it_deletes_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path)
    lease = await lease_of(store)
    for number in (1, 2):
        await store.commit(lease, number, pack(replace(INFO, id=number), {}).manifest)
    unlink, deleted = Path.unlink, list[str]()

    def the_first_only(path: Path, *args: Any, **kwargs: Any) -> None:
        if deleted:
            raise OSError(errno.EIO, "as if the process had ended here")
        deleted.append(path.name)
        unlink(path, *args, **kwargs)

    monkeypatch.setattr(Path, "unlink", the_first_only)
    with pytest.raises(OSError, match="as if"):
        await store.delete(lease, [2], [])
    monkeypatch.undo()
    found = await History(store, JsonCodec()).newest_whole(History(store, JsonCodec()).info)
    assert found is not None
    assert (found.id, await store.numbers()) == (2, [1, 2])


async def test_directory_that_an_earlier_version_has_gone_on_with_lacks_nothing(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    lease = await lease_of(store)
    await store.commit(lease, 1, pack(replace(INFO, id=1), {}).manifest)
    # that version knows nothing of `newest-00000001`
    (tmp_path / "00000002.checkpoint").write_bytes(pack(replace(INFO, id=2), {}).manifest)
    (tmp_path / "00000001.checkpoint").unlink()
    assert await store.numbers() == [2]
    await store.commit(lease, 3, pack(replace(INFO, id=3), {}).manifest)
    (tmp_path / "00000003.checkpoint").unlink()
    assert await store.numbers() == [2, 3], "the newest is missed again"


async def test_two_sqlite_stores_share_a_database(tmp_path: Path) -> None:
    for table in ("one", "select", 'a "b"'):
        store = SqliteStore(tmp_path / "file", table=table)
        assert await store.numbers() == []
        await store.commit(await lease_of(store), 1, table.encode())
    for table in ("one", "select", 'a "b"'):
        assert await SqliteStore(tmp_path / "file", table=table).read(1) == table.encode()


@pytest.mark.parametrize(("first", "second"), [("a", "a_parts"), ("a_parts", "a"), ("a", "A_Lease")])
async def test_sqlite_stores_whose_tables_have_one_name_are_refused(
    tmp_path: Path, first: str, second: str
) -> None:
    store, other = (SqliteStore(tmp_path / "file", table=table) for table in (first, second))
    await store.put(await lease_of(store), "part", b"data")
    with pytest.raises(CheckpointError, match=f'has the columns .* another table= than "{second}"'):
        await lease_of(other)
    assert await store.read("part") == b"data"


async def test_what_the_disk_cannot_read_any_more_counts_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path)
    lease = await lease_of(store)
    await store.commit(lease, 1, b"1")
    await store.put(lease, "lost", b"part")
    (tmp_path / "00000002.checkpoint").mkdir()
    for code in (errno.EIO, errno.EBADMSG, getattr(errno, "EUCLEAN", errno.EIO)):
        monkeypatch.setattr(directory, "contents", failing({"part-lost": code}))
        for what in (2, "lost"):
            with pytest.raises(DamagedCheckpoint, match="cannot be read"):
                await store.read(what)
    found = await History(store, JsonCodec()).infos()
    assert isinstance(found[2], DamagedCheckpoint)


def failing(names: dict[str, int]) -> Callable[[Path], bytes]:
    """Reads files, but for those of these names, where it fails with such an error."""

    def read(path: Path) -> bytes:
        if path.name in names:
            raise OSError(names[path.name], os.strerror(names[path.name]), str(path))
        return path.read_bytes()

    return read


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE, errno.ESTALE])
async def test_what_is_out_of_reach_is_not_taken_for_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    store = DirectoryStore(tmp_path)
    history = History(store, JsonCodec())
    lease = await lease_of(store)
    part = Part.of((), [b"1"], lambda digest: history.name_of(digest, lease.number), 0)
    for number, parts in ((1, []), (2, [part])):
        info = replace(INFO, id=number, steps={"step": StepInfo("operator", "map")})
        await history.write(lease, pack(info, {"step": parts}))
    for name in (f"part-{part.stored}", "00000002.checkpoint"):
        monkeypatch.setattr(directory, "contents", failing({name: code}))
        with pytest.raises(CheckpointError, match=f"{name} cannot be read: .*restore=number") as refused:
            await history.newest_whole(history.parts)
        assert not isinstance(refused.value, DamagedCheckpoint)  # for the job must not go back for that
    # its holder may be alive
    monkeypatch.setattr(directory, "contents", failing({"lease-00000001": code}))
    for look in (store.holder(), lease_of(store)):
        with pytest.raises(CheckpointError, match=f"cannot keep checkpoints in {tmp_path}: .*lease-00000001"):
            await look
    await store.commit(lease, 3, b"3")  # nobody has followed


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made, pytest.MonkeyPatch.context() as patch:
        patch.chdir(path.parent)  # names of sockets are short
        made.bind(path.name)


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, bind, lambda path: path.symlink_to(path), lambda path: path.symlink_to("/no/such"), os.mkdir],
)
async def test_what_is_no_file_counts_as_damaged_and_nothing_waits_for_it(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    store = DirectoryStore(tmp_path)
    lease = await lease_of(store)
    await store.commit(lease, 2, b"2")
    for name in ("00000001.checkpoint", "part-lost", "lease-00000002", "calls-1"):
        make(tmp_path / name)
    async with asyncio.timeout(10):
        for what in (1, "lost"):
            with pytest.raises(DamagedCheckpoint, match="cannot be read"):
                await store.read(what)
        assert (await lease_of(store)).number == 3
        files = store.journal_files()
        with pytest.raises(OSError, match="calls-1"):
            await files.read("calls-1")
        with pytest.raises(OSError, match="calls-1"):
            files.append("calls-1", b"")
        files.close()


async def test_directory_on_a_full_disk_is_named_when_a_job_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=f"cannot keep checkpoints in {tmp_path}: .*No space left"):
        await lease_of(DirectoryStore(tmp_path))


async def test_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    places = ((tmp_path / "no" / "state", "no directory .*no"), (tmp_path / "file" / "state", "file"))
    for path, why in (*places, (tmp_path / ("long" * 99), "File name too long")):
        store = DirectoryStore(path)
        for look in (store.numbers(), store.holder(), lease_of(store)):
            with pytest.raises(CheckpointError, match=f"cannot keep checkpoints in .*: .*{why}"):
                await look


@pytest.mark.parametrize(
    "make",
    [
        lambda: DirectoryStore(""),
        lambda: DirectoryStore(__file__),
        lambda: DirectoryStore(os.devnull),
        lambda: DirectoryStore("s3://bucket/state"),
        lambda: DirectoryStore("of\0two"),
        lambda: DirectoryStore("half a character \ud800"),
        lambda: Checkpoints(store=MemoryStore(), journal="of\0two"),
        lambda: checkpoints_of("checkpoints", "of\0two"),
        lambda: SqliteStore(3),  # type: ignore[arg-type]
        lambda: SqliteStore("of\0two"),
        lambda: SqliteStore(":memory:"),
        lambda: SqliteStore("file:kept.db?mode=ro"),
        lambda: SqliteStore("x", table="a\nb"),
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(PipelineError):
        make()


@pytest.mark.parametrize("store", [DirectoryStore, MemoryStore, SqliteStore])
def test_stores_say_by_name_that_they_are_one(store: type[Any]) -> None:
    # to mypy their methods would do, but what a decorator has made is no async def to pyright
    assert CheckpointStore in store.__mro__
