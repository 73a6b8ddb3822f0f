"""
Where checkpoints are kept: what a store promises, and one in memory.

A store keeps bytes and knows nothing of what they mean: *manifests* under numbers, *parts* under names, and a
*lease*, which says who may write (`asyncstream.lease`). What it must get right:

* a part, or a manifest, is there as a whole or not at all, also if the machine stops in the middle, and it
  stays there once `put`, or `commit`, has returned;
* a lease that another has followed writes and deletes nothing.

What is there after a crash:

| the process ends | manifests | what the next start does |
|---|---|---|
| before or in a `put` | the ones before | goes on from the newest; deletes what is half written |
| between `put` and `commit` | the ones before | the same; deletes the parts, which no manifest names |
| in `commit` | the ones before, or one more | goes on from the newest; the sinks take back, or commit |
| after `commit`, before the sinks' | one more | goes on from it; the sinks commit what they prepared |
| in `delete` | the newest, perhaps a few more | goes on from the newest; deletes the rest later |
| not, but was stopped, and followed | those of its follower | when it goes on, it ends with `LeaseLost` |

And what damage leads to: a manifest or a part that is lost or changed costs the checkpoints that need it. The
newest whole one is gone on from, with a warning, as far as the sinks can go back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol, TypeAlias, runtime_checkable

from asyncstream.clock import SystemClock
from asyncstream.errors import CheckpointError, DamagedCheckpoint, LeaseLost
from asyncstream.lease import Holder, Lease, enter, following, leave
from asyncstream.shown import Shown

__all__ = (
    "CheckpointStore",
    "Manifests",
    "MemoryStore",
    "holding",
    "lost",
    "manifests_by",
    "manifests_of",
    "missing",
    "time_ms",
)

Manifests: TypeAlias = dict[int, bytes | CheckpointError]
"""By number, in the order that was asked for, what `read` gives of each, or raises."""


# not written as `async def`, which to pyright gives more than a decorated method does: a `CoroutineType`
@runtime_checkable
class CheckpointStore(Protocol):
    """
    Keeps checkpoints: parts, and manifests that name them. One job at a time writes to it.

    Each method is an `async def`, and may raise anything: the pipeline goes on, and tries again with the next
    checkpoint.
    """

    def acquire(self, holder: Holder, seconds: float, /) -> Coroutine[Any, Any, Lease]:
        """
        Take the lease, or take it over from a holder that has it no more (`asyncstream.lease.following`).

        Args:
            seconds: how long it is good for unless it is renewed.

        Raises:
            LeaseHeld: if another job has it.
        """

    def renew(self, lease: Lease, seconds: float, /) -> Coroutine[Any, Any, None]:
        """
        Have the lease for `seconds` from now.

        Raises:
            LeaseLost: if another holder has followed.
        """

    def release(self, lease: Lease, /) -> Coroutine[Any, Any, None]:
        """Give the lease back; nothing happens if another holder has followed."""

    def put(self, lease: Lease, part: str, data: bytes, /) -> Coroutine[Any, Any, None]:
        """Keep `data` under a name, in place of what is kept there. When this returns it is safe."""

    def commit(self, lease: Lease, number: int, manifest: bytes, /) -> Coroutine[Any, Any, None]:
        """
        Keep a manifest. When this returns it is safe; if it does not return, it is there as a whole, or not.

        Raises:
            LeaseLost: if another holder has followed. Then it is not there.
        """

    def numbers(self) -> Coroutine[Any, Any, list[int]]:
        """The numbers of all manifests, in ascending order."""

    def parts(self) -> Coroutine[Any, Any, list[str]]:
        """The names of all parts."""

    def read(self, what: int | str, /) -> Coroutine[Any, Any, bytes]:
        """A manifest by its number, or a part by its name; raises `CheckpointError` if it is not there."""

    def delete(
        self, lease: Lease, numbers: Collection[int], parts: Collection[str], /
    ) -> Coroutine[Any, Any, None]:
        """
        Forget manifests, then parts; those that are not there are left out. Also clear away half-written
        things.

        Raises:
            LeaseLost: if another holder has followed. Then nothing is deleted.
        """

    def holder(self) -> Coroutine[Any, Any, Lease | None]:
        """The lease that was given last; None if there was none."""


async def manifests_of(store: CheckpointStore, numbers: Collection[int]) -> Manifests:
    """
    Some manifests. A store may have a method `manifests` for that, with the same `numbers`: where each answer
    costs a thread, or a connection, it reads many with one.
    """
    together: Callable[[Collection[int]], Awaitable[Manifests]] | None = getattr(store, "manifests", None)
    if together is not None:
        return await together(numbers)
    found: Manifests = {}
    for number in numbers:
        try:
            found[number] = await store.read(number)
        except CheckpointError as error:
            found[number] = error
    return found


def manifests_by(read: Callable[[int], bytes], numbers: Collection[int]) -> Manifests:
    """The same of a store on a disk, which `read` reads in the present thread."""
    found: Manifests = {}
    for number in numbers:
        try:
            found[number] = read(number)
        except CheckpointError as error:
            found[number] = error
    return found


@asynccontextmanager
async def holding(store: CheckpointStore, seconds: float) -> AsyncIterator[Lease]:
    """
    The lease of a store, for something that takes less than `seconds` and is no job.

    Raises:
        LeaseHeld: if a job has it.
    """
    holder = Holder.here(time_ms())
    enter(holder, lambda: True)
    try:
        lease = await store.acquire(holder, seconds)
        try:
            yield lease
        finally:
            await store.release(lease)
    finally:
        leave(holder)


def lost(lease: Lease, current: Lease | None, place: str) -> LeaseLost:
    """The error for a job whose lease another has followed, or is gone, to be raised by the caller."""
    if current is None or current.place != lease.place:
        found = "no lease that can be read: it was emptied, or" if current is None else "another one's lease:"
        return LeaseLost(
            f"{place} holds {found} another disk is in its place; this job (lease {lease.number}) writes "
            "nothing more"
        )
    return LeaseLost(
        f"{place} was taken over by {current.holder}: this job (lease {lease.number}) did not show itself in "
        "time, and writes nothing more"
    )


def missing(what: int | str, newest: int, place: str) -> CheckpointError:
    """
    The error for a manifest, or a part, that is not there, to be raised by the caller; the manifest of the
    number `newest` must be.
    """
    if what == newest:
        return DamagedCheckpoint(f"it is lost from {place}")
    if isinstance(what, str):
        return CheckpointError(f"there is no part {what} in {place}")
    others = f"; the newest is {newest}, and `asyncstream checkpoint list` shows all" if newest else ""
    return CheckpointError(f"there is no checkpoint {what} in {place}{others}")


def time_ms() -> int:
    """
    By the clock that leases go by: that of the machine as it is, which may have been set back, whatever the
    pipeline's clock shows. Those who have leases elsewhere go by it: held back, it would find theirs run out.
    """
    return _CLOCK.machine_ms()


_CLOCK = SystemClock()


class MemoryStore(CheckpointStore, Shown):
    """Keeps checkpoints for as long as it lives itself: for tests."""

    def __init__(self) -> None:
        self._kept: dict[int, bytes] = {}
        self._parts: dict[str, bytes] = {}
        self._lease: Lease | None = None

    def __str__(self) -> str:
        return "memory"

    async def acquire(self, holder: Holder, seconds: float) -> Lease:
        self._lease = following(self._lease, holder, seconds, time_ms(), str(self))
        return self._lease

    async def renew(self, lease: Lease, seconds: float) -> None:
        self._lease = self._check(lease).renewed(time_ms() + round(seconds * 1000))

    async def release(self, lease: Lease) -> None:
        with suppress(LeaseLost):
            self._lease = self._check(lease).given_back()

    def _check(self, lease: Lease) -> Lease:
        if self._lease is None or not lease.is_same(self._lease):
            raise lost(lease, self._lease, str(self))
        return self._lease

    async def put(self, lease: Lease, part: str, data: bytes) -> None:
        self._check(lease)
        self._parts[part] = data

    async def commit(self, lease: Lease, number: int, manifest: bytes) -> None:
        self._check(lease)
        self._kept[number] = manifest

    async def numbers(self) -> list[int]:
        return sorted(self._kept)

    async def parts(self) -> list[str]:
        return list(self._parts)

    async def read(self, what: int | str) -> bytes:
        found = self._kept.get(what) if isinstance(what, int) else self._parts.get(what)
        if found is None:
            raise missing(what, max(self._kept, default=0), str(self))
        return found

    async def delete(self, lease: Lease, numbers: Collection[int], parts: Collection[str]) -> None:
        self._check(lease)
        for number in numbers:
            self._kept.pop(number, None)
        for part in parts:
            self._parts.pop(part, None)

    async def holder(self) -> Lease | None:
        return self._lease
