"""
The package's own stores in a simulation: a process ends between any two things that a store does to its disk.

A `Disk` counts these: each change of a directory, as the interpreter's audit events tell of it, and each
statement of SQLite. When its time has come nothing more is done, clean-up included. Then either the process
was killed, and what it did is there; or the machine lost its power, and a directory is as it was at some
moment since names were last brought to the disk, with files cut off whose contents were not. A transaction of
SQLite that has not ended is none.

Stores work in the thread of the loop here, so that a story is told in the same words each time.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import pytest

from asyncstream.checkpoint import CheckpointStore, DirectoryStore, MemoryStore, SqliteStore
from asyncstream.checkpoint.format import unpack_info
from asyncstream.errors import CheckpointError
from asyncstream.lease import Holder, Lease
from asyncstream.testing.simulation import Life, driver
from asyncstream.testing.simulation.outside import SimulatedFiles, changed

__all__ = ("KINDS", "kept_in")

T = TypeVar("T")

File: TypeAlias = tuple[int, int]
"""The inode of a file, and how many files before it had this one."""


OFTENER = 8
"""Times as often as elsewhere a process ends while its store writes, which these stories are about."""


class ProcessEnded(BaseException):
    """Raised in place of what would be done to a disk after the process has come to its end."""


class Disk:
    """
    A directory, and for how long a process may still change it.

    Attributes:
        path: of the directory.
        has_ended: nothing is changed any more.
        done: how much has been done since `end_after` was called.
        most: how much has been done in a call of a store, at the most, by what it was.
        lease: that which was given last.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.has_ended = False
        self.lease: Lease | None = None
        self._left: int | None = None
        self.done = 0
        self.most: dict[str, int] = {}
        self._states: list[dict[str, tuple[File, bytes]]] = []  # since names were last brought to the disk
        self._safe: set[File] = set()  # whose contents are on the disk
        self._gone = Counter[int]()

    def has(self, path: str | bytes | os.PathLike[str] | int) -> bool:
        """Whether a file is in it; that of a module, say, which is compiled just then, is not."""
        return not isinstance(path, int) and os.path.dirname(os.fsdecode(path)) == str(self.path)

    def end_after(self, steps: int | None) -> None:
        """From here on, have the process end when it has done so much; None: not because of the disk."""
        self.has_ended, self._left, self.done = False, steps, 0

    def step(self) -> bool:
        """Something is about to be done: whether it is."""
        if self._left is not None and not self.has_ended:
            self.has_ended = self._left == self.done
        self.done += not self.has_ended
        return not self.has_ended

    def change(self, overwritten: str | os.PathLike[str] | None) -> None:
        """A name is about to be given or taken away; `overwritten` is of a file that may be gone then."""
        if not self.step():
            raise ProcessEnded
        self._states.append(self._state())
        if overwritten is not None:
            with suppress(FileNotFoundError):
                known = os.stat(overwritten)
                self._gone[known.st_ino] += known.st_nlink == 1

    def sync(self, file: int) -> None:
        """In place of `os.fsync`."""
        if not self.step():
            raise ProcessEnded
        known = os.fstat(file)
        if os.path.samestat(known, self.path.stat()):
            self._states.clear()
        else:
            self._safe.add(self._file(known))

    def lose_power(self, random: Random) -> None:
        """Have what is there then: all that was brought to the disk, and of the rest some."""
        found = random.choice([*self._states, self._state()])
        for file in self.path.iterdir():
            file.unlink()
        for name, (known, data) in found.items():
            there = len(data) if known in self._safe else int(random.random() * (len(data) + 1))
            (self.path / name).write_bytes(data[:there])
        self._states.clear()
        self._safe = {known for known, _ in self._state().values()}

    def _state(self) -> dict[str, tuple[File, bytes]]:
        files = sorted(self.path.iterdir())
        return {file.name: (self._file(file.stat()), file.read_bytes()) for file in files}

    def _file(self, known: os.stat_result) -> File:
        return known.st_ino, self._gone[known.st_ino]


_watched: Disk | None = None
"""The disk of the life that is lived, while its store is at work."""


def _hear(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook, which Python keeps for good: all that no store does is not its matter."""
    disk = _watched
    if disk is None:
        return
    if event == "open":
        path, _, flags = args
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR) and disk.has(path):
            disk.change(None)
    elif event in OVERWRITTEN and disk.has(path := args[OVERWRITTEN[event]]):
        disk.change(path)


OVERWRITTEN = {"os.remove": 0, "os.rename": 1, "os.link": 1}
"""By event, which of its arguments names a file that may be gone then."""


# ------------------------------------------------------------------ what is kept, and how it is damaged


class Kept(Protocol):
    """A store of the package, and what it holds, to be looked at and changed from outside."""

    def store(self) -> CheckpointStore:
        """For a process that has just begun."""

    def held(self) -> tuple[dict[int, bytes], dict[str, bytes]]:
        """Its manifests by number, and its parts by name."""

    def replace(self, what: int | str, data: bytes | None) -> None:
        """Damage something, or bring it back; None: it is lost."""

    def lose_power(self, random: Random) -> None:
        """The machine stops with the process."""


class InMemory:
    """What a store in memory holds stays, for a job that is started again in the same process."""

    def __init__(self, disk: Disk) -> None:
        self._store = MemoryStore()

    def store(self) -> MemoryStore:
        return self._store

    def held(self) -> tuple[dict[int, bytes], dict[str, bytes]]:
        return self._store._kept.copy(), self._store._parts.copy()

    def replace(self, what: int | str, data: bytes | None) -> None:
        kept: dict[Any, bytes] = self._store._kept if isinstance(what, int) else self._store._parts
        if data is None:
            del kept[what]
        else:
            kept[what] = data

    def lose_power(self, random: Random) -> None:
        """Then all would be gone, and the job with it."""


class InDirectory:
    """Files."""

    def __init__(self, disk: Disk) -> None:
        self._path, self.lose_power = disk.path, disk.lose_power

    def store(self) -> DirectoryStore:
        return DirectoryStore(self._path)

    def held(self) -> tuple[dict[int, bytes], dict[str, bytes]]:
        manifests, parts = {}, {}
        for file in sorted(self._path.iterdir()):
            if file.suffix == ".checkpoint":
                manifests[int(file.stem)] = file.read_bytes()
            elif file.name.startswith("part-") and file.suffix != ".unfinished":
                parts[file.name.removeprefix("part-")] = file.read_bytes()
        return manifests, parts

    def replace(self, what: int | str, data: bytes | None) -> None:
        file = self._path / (f"{what:08}.checkpoint" if isinstance(what, int) else f"part-{what}")
        if data is None:
            file.unlink()
        else:
            file.write_bytes(data)


class InSqlite:
    """Rows."""

    def __init__(self, disk: Disk) -> None:
        self._path = disk.path / "checkpoints.db"

    def store(self) -> SqliteStore:
        return SqliteStore(self._path)

    def held(self) -> tuple[dict[int, bytes], dict[str, bytes]]:
        if not self._path.exists():
            return {}, {}
        with closing(sqlite3.connect(self._path)) as database:
            manifests = database.execute("SELECT number, data FROM asyncstream_checkpoints ORDER BY 1")
            parts = database.execute("SELECT name, data FROM asyncstream_checkpoints_parts ORDER BY 1")
            return dict(manifests), dict(parts)

    def replace(self, what: int | str, data: bytes | None) -> None:
        table, column = ("checkpoints", "number") if isinstance(what, int) else ("checkpoints_parts", "name")
        with closing(sqlite3.connect(self._path)) as database, database:
            if data is None:
                database.execute(f"DELETE FROM asyncstream_{table} WHERE {column} = ?", (what,))
            else:
                database.execute(f"INSERT OR REPLACE INTO asyncstream_{table} VALUES (?, ?)", (what, data))

    def lose_power(self, random: Random) -> None:
        """What SQLite brings to the disk is its own matter."""


KINDS: dict[str, Callable[[Disk], Kept]] = {"memory": InMemory, "directory": InDirectory, "sqlite": InSqlite}


# ------------------------------------------------------------------ a store as a life uses it


class Watched:
    """
    A `CheckpointStore` of a life: one of the package's, in which the process may end.

    The world has what the store holds: damage that it does is done to the store when the next life begins.
    """

    def __init__(self, life: Life, kept: Kept, disk: Disk) -> None:
        self._life = life
        self._kept = kept
        self._disk = disk
        self._store = kept.store()
        there, world = self._held(), life.world
        wanted = _both(world.checkpoints, world.parts)
        for what in sorted(there.keys() | wanted.keys(), key=str):
            if there.get(what) != wanted.get(what):
                kept.replace(what, wanted.get(what))
        self._spoiled = {what: wanted.get(what) for what in world.damaged}

    def __str__(self) -> str:
        return f"{type(self._store).__name__} in a simulation"

    def journal_files(self) -> SimulatedFiles:
        return SimulatedFiles(self._life)

    async def acquire(self, holder: Holder, seconds: float) -> Lease:
        lease = await self._do("acquire", self._store.acquire(holder, seconds))
        before, self._disk.lease = self._disk.lease, lease
        # sinks take who comes from elsewhere for another job, and one of an earlier number for a former one
        if before is not None and (lease.place != before.place or lease.number <= before.number):
            self._life.complain(f"{lease} was given behind {before}")
        return lease

    async def renew(self, lease: Lease, seconds: float) -> None:
        await self._do("renew", self._store.renew(lease, seconds))

    async def release(self, lease: Lease) -> None:
        await self._do("release", self._store.release(lease))

    async def put(self, lease: Lease, part: str, data: bytes) -> None:
        await self._do("put", self._store.put(lease, part, data))

    async def commit(self, lease: Lease, number: int, manifest: bytes) -> None:
        before = self._changed(number - 1)
        await self._do("save", self._store.commit(lease, number, manifest))
        if before - self._changed(number):
            self._life.note("compacted", number)

    async def delete(self, lease: Lease, numbers: Collection[int], parts: Collection[str]) -> None:
        await self._do("delete", self._store.delete(lease, numbers, parts))

    async def numbers(self) -> list[int]:
        return await self._do("list", self._store.numbers())

    async def parts(self) -> list[str]:
        return await self._do("list", self._store.parts())

    async def read(self, what: int | str) -> bytes:
        return await self._do("load", self._store.read(what))

    async def holder(self) -> Lease | None:
        return await self._do("list", self._store.holder())

    async def _do(self, what: str, work: Coroutine[Any, Any, T]) -> T:
        life, disk = self._life, self._disk
        with closing(work):
            await life.access(what)
            oftener = OFTENER if what in ("put", "save", "delete") else 1
            ends = life.random.random() < oftener * life.plan.crash
            disk.end_after(life.random.randint(0, disk.most.get(what, 16)) if ends else None)
            done: T | None = None
            if not life.is_over:
                try:
                    with _heard_by(disk):
                        done = await work
                except BaseException:
                    if not disk.has_ended:
                        raise
                disk.most[what] = max(disk.done, disk.most.get(what, 0))
                self._tell_the_world(power_lost=ends and life.random.random() < 0.5)
                if ends:
                    life.end(f"in {what}")
            if life.is_over:
                await life.loop.create_future()  # a process that has ended does not go on
            life.note(what)
            await life.access(f"{what} done")
            return cast("T", done)

    def _tell_the_world(self, *, power_lost: bool) -> None:
        world = self._life.world
        if power_lost:
            self._kept.lose_power(self._life.random)
        world.checkpoints, world.parts = self._kept.held()
        for number in world.checkpoints.keys() - world.damaged:
            try:
                unpack_info(world.checkpoints[number])
            except CheckpointError as error:
                self._life.complain(f"checkpoint {number} is there in part: {error}")
        there = self._held()
        mended = {what for what, data in self._spoiled.items() if there.get(what) != data}
        for what in mended:
            world.damaged.discard(what)
            del self._spoiled[what]

    def _changed(self, number: int) -> set[tuple[str, str]]:
        """The tables, by step, of which a checkpoint has changes behind their bases."""
        manifest = self._life.world.checkpoints.get(number)
        if manifest is None or number in self._life.world.damaged:
            return set()
        return changed(unpack_info(manifest))

    def _held(self) -> dict[int | str, bytes]:
        return _both(*self._kept.held())


def _both(*held: Mapping[Any, bytes]) -> dict[int | str, bytes]:
    return {what: data for some in held for what, data in some.items()}


@contextmanager
def _heard_by(disk: Disk) -> Iterator[None]:
    global _watched
    _watched = disk
    try:
        yield
    finally:
        _watched = None


@contextmanager
def kept_in(kind: str, path: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a simulation in this block keep its checkpoints in a store of this kind, in an empty directory."""

    async def at_once(work: Callable[[], T]) -> T:
        return work()

    @contextmanager
    def connected(store: SqliteStore, path: str, *how: Any) -> Iterator[sqlite3.Connection]:
        def rule(action: int, what: str | None, *_: str | None) -> int:
            if not disk.step():
                return sqlite3.SQLITE_DENY
            is_about_power = action == sqlite3.SQLITE_PRAGMA and what == "synchronous"
            return sqlite3.SQLITE_IGNORE if is_about_power else sqlite3.SQLITE_OK

        with connect(store, path, *how) as database:
            database.execute("PRAGMA synchronous=OFF")  # no power is lost here, and it takes long
            database.set_authorizer(rule)
            yield database

    connect: Callable[..., Any] = SqliteStore._connected

    disk = Disk(path)
    kept = KINDS[kind](disk)
    _hear_audit_events()
    with patch.context() as patched:
        patched.setattr(driver, "SimulatedStore", lambda life: Watched(life, kept, disk))
        patched.setattr("asyncstream.aside.aside", at_once)
        patched.setattr(SqliteStore, "_connected", connected)
        patched.setattr(os, "fsync", disk.sync)
        yield


@cache
def _hear_audit_events() -> None:
    """Once, for Python keeps such a hook for good."""
    sys.addaudithook(_hear)
