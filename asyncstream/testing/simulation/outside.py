"""
The outside of a simulated process: its input, its sinks, and the store of its checkpoints.

Each object belongs to one `Life` and works on what the `World` keeps. They hold what real ones would: a file
that was not flushed is cut off somewhere, a write that was interrupted has done a part of its work, and a
request that failed may have been carried out all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from asyncstream.checkpoint.format import CheckpointInfo, unpack_info
from asyncstream.checkpoint.segments import CHANGES
from asyncstream.connectors.base import Sink, Source, SourceBatch, TransactionalSink
from asyncstream.elements import Timestamps
from asyncstream.errors import CheckpointError, SinkError
from asyncstream.lease import Holder, Lease
from asyncstream.testing.simulation.world import Life, SimulatedDisk

__all__ = (
    "PlainSimulatedSink",
    "SimulatedFiles",
    "SimulatedSink",
    "SimulatedSource",
    "SimulatedStore",
    "changed",
)


class SimulatedSource(Source[Any]):
    """
    Reads the events of a simulation in batches of random size, with random pauses. Can be replayed.

    Args:
        life: the process that it belongs to.
        events: what to read; all events of the simulation if left out.
        batch: how many events one read brings at most.
    """

    def __init__(self, life: Life, events: Sequence[Any] | None = None, *, batch: int = 10) -> None:
        self._life = life
        self._events = life.world.events if events is None else events
        self._batch = batch
        self._read = 0

    async def read(self) -> SourceBatch[Any] | None:
        life = self._life
        await life.access("read")
        if life.is_over or self._read >= len(self._events):
            return None
        start = self._read
        self._read = min(len(self._events), start + life.random.randint(1, self._batch))
        life.note("read", (start, self._read))
        return SourceBatch(self._events[start : self._read])

    def position(self) -> int:
        self._life.ends_in("capture")
        return self._read

    async def seek(self, position: int) -> None:
        self._life.note("seek", position)
        self._read = position


class SimulatedSink(TransactionalSink[Any]):
    """
    A sink for exactly once: what is written is staged, then committed for good, element by element.

    Positions are numbers of elements. A crash cuts staging and committing off somewhere; an epoch that was
    committed in part is committed to its end by `recover`. It also watches over its user, and complains of
    calls that overlap, come too early, or ask for what was not prepared.

    Args:
        life: the process that it belongs to.
        name: which of the world's disks it writes to.
    """

    def __init__(self, life: Life, name: str = "sink") -> None:
        self._life = life
        self._name = name
        self._disk = life.world.disks.setdefault(name, SimulatedDisk(exactly_once=True))
        self._written: list[Any] = []
        self._positions: dict[int, int] = {}
        self._busy = ""
        self._ready = False

    async def open(self) -> None:
        self._life.complain(f"{self._name}: opened, and not recovered")

    async def can_recover(self, position: int | None) -> None:
        committed = len(self._disk.committed)
        if (position or 0) < committed and self._life.world.damaged:
            raise SinkError(f"{self._name}: {committed} elements are committed, and {position} are to be")

    async def recover(self, position: int | None) -> None:
        life, disk = self._life, self._disk
        with self._alone("recover"):
            await life.access("recover")
            if life.is_over:
                return
            life.world.backup.clear()  # what is taken back now cannot come again
            position = position or 0
            life.note("recover", (self._name, position, len(disk.committed), len(disk.staged)))
            if position < len(disk.committed):
                life.complain(f"{self._name}: back to {position}, but {len(disk.committed)} are committed")
            del disk.staged[max(0, position - len(disk.committed)) :]
            self._publish("recover", position)
            self._ready = True

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        with self._alone("write"):
            await self._life.access("write")
            self._written += values
            self._life.note("write", (self._name, len(values)))

    async def prepare(self, epoch: int) -> int:
        life, disk = self._life, self._disk
        with self._alone("prepare"):
            await life.access("prepare")
            done = life.cut("prepare", len(self._written))
            disk.staged += self._written[:done]
            self._written = []
            position = self._positions[epoch] = len(disk.committed) + len(disk.staged)
            life.note("prepare", (self._name, epoch, position))
            await life.access("prepared")
            return position

    async def commit(self, epoch: int) -> None:
        life = self._life
        with self._alone("commit"):
            await life.access("commit")
            if epoch not in self._positions:
                life.complain(f"{self._name}: commit of epoch {epoch}, which was not prepared")
                return
            life.note("commit", (self._name, epoch))
            self._publish("commit", self._positions[epoch])
            await life.access("committed")

    def _publish(self, what: str, position: int) -> None:
        disk = self._disk
        done = self._life.cut(what, max(0, position - len(disk.committed)))
        disk.committed += disk.staged[:done]
        del disk.staged[:done]

    async def flush(self) -> None:
        self._life.note("flush", self._name)

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        if self._busy:
            self._life.complain(f"{self._name}: {what} during {self._busy}")
        if not self._ready and what != "recover":
            self._life.complain(f"{self._name}: {what} before it has recovered")
        self._busy = what
        try:
            yield
        finally:
            self._busy = ""


class PlainSimulatedSink(Sink[Any]):
    """
    A sink for at least once: what is written is there at once and for good.

    Args:
        life: the process that it belongs to.
        name: which of the world's disks it writes to.
    """

    def __init__(self, life: Life, name: str = "sink") -> None:
        self._life = life
        self._name = name
        self._disk = life.world.disks.setdefault(name, SimulatedDisk(exactly_once=False))

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        life = self._life
        await life.access("write")
        self._disk.committed += values[: life.cut("write", len(values))]
        life.note("write", (self._name, len(values)))
        await life.access("written")


class SimulatedFiles:
    """The files of a journal. A crash in the middle of an append leaves the first part of it."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._files = life.world.journal

    async def names(self) -> list[str]:
        await self._life.access("list")
        return sorted(self._files)

    async def read(self, name: str) -> bytes:
        await self._life.access("load")
        return self._files[name]

    def append(self, name: str, data: bytes) -> None:
        done = self._life.cut("append", len(data))
        if done:
            self._files[name] = self._files.get(name, b"") + data[:done]
            self._life.note("append", done)

    async def sync(self) -> None:
        await self._life.access("sync", 0.0)

    async def remove(self, name: str) -> None:
        await self._life.access("delete")
        if not self._life.is_over:
            self._files.pop(name, None)

    def close(self) -> None:
        pass


class SimulatedStore:
    """
    A `CheckpointStore`. It is worse than it may be: a crash in the middle of a write leaves half of the
    bytes.

    Args:
        life: the process that it belongs to.
    """

    def __init__(self, life: Life) -> None:
        self._life = life
        self._world = life.world

    def __str__(self) -> str:
        return "simulated store"

    def journal_files(self) -> SimulatedFiles:
        """Where a journal of finished calls is kept."""
        return SimulatedFiles(self._life)

    async def acquire(self, holder: Holder, seconds: float) -> Lease:
        """Those before are dead, whatever they think: they have crashed, or have come to their end."""
        await self._life.access("acquire")
        self._world.lease += 1
        return Lease(self._world.lease, "simulated store", holder, 0)

    async def renew(self, lease: Lease, seconds: float) -> None:
        self._check(lease)

    async def release(self, lease: Lease) -> None:
        pass

    async def holder(self) -> Lease | None:
        return None

    def _check(self, lease: Lease) -> None:
        if lease.number != self._world.lease and not self._life.is_over:
            self._life.complain(f"a write with lease {lease.number}, when {self._world.lease} is given")

    async def put(self, lease: Lease, part: str, data: bytes) -> None:
        if not await self._begin("put", lease):
            return
        self._world.parts[part] = data[: len(data) // 2] if self._life.ends_in("put") else data
        self._world.damaged.discard(part)
        self._world.backup.pop(part, None)
        self._life.note("put", len(data))
        await self._life.access("put done")

    async def commit(self, lease: Lease, number: int, manifest: bytes) -> None:
        if not await self._begin("save", lease):
            return
        kept = self._world.checkpoints
        if number in kept:
            self._life.complain(f"checkpoint {number} saved twice")
        info = unpack_info(manifest)
        missing = info.stored - self._world.parts.keys() | info.stored & self._world.damaged
        if missing:
            self._life.complain(f"checkpoint {number} names parts that are not there: {missing}")
        if (before := self._info(number - 1)) is not None and changed(before) - changed(info):
            self._life.note("compacted", number)
        if self._life.ends_in("save"):
            self._world.torn.add(number)
            manifest = manifest[: len(manifest) // 2]
        kept[number] = manifest
        self._life.note("save", number)
        await self._life.access("saved")

    async def _begin(self, what: str, lease: Lease) -> bool:
        """Whether a write may begin: the process has not ended before."""
        await self._life.access(what)
        self._check(lease)
        return not self._life.is_over

    async def numbers(self) -> list[int]:
        await self._life.access("list")
        return sorted(self._world.checkpoints)

    async def parts(self) -> list[str]:
        await self._life.access("list")
        return list(self._world.parts)

    async def read(self, what: int | str) -> bytes:
        await self._life.access("load")
        kept: Mapping[Any, bytes] = self._world.checkpoints if isinstance(what, int) else self._world.parts
        if what not in kept:
            raise CheckpointError(f"there is no checkpoint {what}")
        return kept[what]

    async def delete(self, lease: Lease, numbers: Collection[int], parts: Collection[str]) -> None:
        if not await self._begin("delete", lease):
            return
        for number in self._world.checkpoints.keys() - numbers:
            if (info := self._info(number)) is not None and (needed := info.stored & set(parts)):
                self._life.complain(f"parts are deleted that checkpoint {number} names: {needed}")
        manifests = sorted(numbers)
        for number in manifests[: self._life.cut("delete", len(manifests))]:
            self._world.checkpoints.pop(number, None)
        names = sorted(parts)
        for name in names[: self._life.cut("delete", len(names))]:
            self._world.parts.pop(name, None)

    def _info(self, number: int) -> CheckpointInfo | None:
        """What a checkpoint says of itself, if it is there and its manifest is whole."""
        manifest = self._world.checkpoints.get(number)
        if manifest is None or number in self._world.torn | self._world.damaged:
            return None
        return unpack_info(manifest)


def changed(info: CheckpointInfo) -> set[tuple[str, str]]:
    """The tables, by step, of which a checkpoint has changes behind their bases."""
    return {
        (name, part.path[0])
        for name, step in info.steps.items()
        for part in step.parts
        if part.path[1:] == (CHANGES,)
    }
