"""
What a store of checkpoints promises (`asyncstream.checkpoint.CheckpointStore`), as checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from asyncstream.checkpoint import CheckpointStore
from asyncstream.errors import CheckpointError, LeaseHeld, LeaseLost
from asyncstream.lease import Holder, Lease
from asyncstream.testing.contracts.checks import Check, Contract, ContractBroken, expect, expect_equal
from asyncstream.testing.contracts.lives import CUTS, Report, begun, interrupted, leading, running
from asyncstream.validation import flag

__all__ = ("StoreContract", "store_contract")

AT_ONCE: Final = 1e-9
"""Seconds of a lease that runs out as soon as it is given."""

LARGE: Final = bytes(range(256)) * 4096
"""A part of a megabyte, with every byte in it."""


def store_contract(make: Callable[[Path], CheckpointStore], *, durable: bool = True) -> list[Check]:
    """
    The checks that your own store of checkpoints must pass. With pytest::

        @pytest.mark.parametrize("check", store_contract(lambda folder: MyStore(folder)), ids=str)
        async def test_my_store(check, tmp_path):
            await check(tmp_path)

    Args:
        make: gives a new store, as another process would make it, that keeps its things in the folder; if it
            keeps them elsewhere, the folder's name tells one place from another. Nothing is there before.
        durable: what is kept outlives the process. Crashes are processes then that end in the middle; `make`
            must work in a forked one. If not, `make` gives the same store for the same folder.
    """
    return StoreContract(make, durable).checks()


class StoreContract(Contract[CheckpointStore]):
    """The checks; see `store_contract` for the arguments."""

    def __init__(self, make: Callable[[Path], CheckpointStore], durable: bool) -> None:
        super().__init__(make, CheckpointStore)
        self._lead = leading(flag("durable", durable))

    async def _lease(self, store: CheckpointStore, seconds: float = 30.0) -> Lease:
        """A lease of a job that is over as soon as it has it: others may follow at once."""
        return await store.acquire(Holder.here(0), seconds)

    async def _holds(self, store: CheckpointStore, kept: dict[int | str, bytes]) -> None:
        """It holds exactly this."""
        numbers = sorted(what for what in kept if isinstance(what, int))
        expect_equal("numbers()", await store.numbers(), numbers)
        names = sorted(what for what in kept if isinstance(what, str))
        expect_equal("parts()", sorted(await store.parts()), names)
        for what, data in kept.items():
            expect_equal(f"read({what!r})", await store.read(what), data)

    # ------------------------------------------------------------------ keeping

    async def what_was_kept_is_given_back(self, folder: Path) -> None:
        """Manifests and parts come back byte for byte, also to a store that is made later; numbers ascend."""
        store = self._make(folder)
        await self._holds(store, {})
        lease = await self._lease(store)
        kept: dict[int | str, bytes] = {"empty-1": b"", "large-1": LARGE, "0a1b-12": b"part"}
        kept |= {number: b"%d" % number for number in (9, 10, 100, 2)}
        for what, data in kept.items():
            if isinstance(what, int):
                await store.commit(lease, what, data)
            else:
                await store.put(lease, what, data)
        await self._holds(store, kept)
        await self._holds(self._make(folder), kept)

    async def what_is_kept_again_has_the_new_bytes(self, folder: Path) -> None:
        """`put` and `commit` replace what is kept under the same name."""
        store = self._make(folder)
        lease = await self._lease(store)
        for data in (b"old", LARGE, b"new"):
            await store.put(lease, "part-1", data)
            await store.commit(lease, 1, data)
        await self._holds(store, {1: b"new", "part-1": b"new"})

    async def what_is_not_there_is_an_error_to_read(self, folder: Path) -> None:
        """`read` raises `CheckpointError` for a manifest or a part that is not there."""
        store = self._make(folder)
        await self._lease(store)
        for what in (1, "part-1"):
            await _raises(CheckpointError, store.read(what), f"read({what!r})")

    async def what_is_deleted_is_gone_and_nothing_else(self, folder: Path) -> None:
        """`delete` forgets what it is told to, as often as it is told; what is not there is left out."""
        store = self._make(folder)
        lease = await self._lease(store)
        for number in (1, 2, 3):
            await store.put(lease, f"part-{number}", b"%d" % number)
            await store.commit(lease, number, b"%d" % number)
        for _ in range(2):
            await store.delete(lease, [1, 2, 7], ["part-1", "part-7"])
            await self._holds(store, {3: b"3", "part-2": b"2", "part-3": b"3"})
        await store.delete(lease, [], [])
        await self._holds(self._make(folder), {3: b"3", "part-2": b"2", "part-3": b"3"})

    # ------------------------------------------------------------------ the lease

    async def the_lease_is_given_to_one(self, folder: Path) -> None:
        """While its holder lives, no other gets the lease; the one after it has the next number."""
        store = self._make(folder)
        expect_equal("holder() of a new store", await store.holder(), None)
        holder = Holder.here(0)
        with running(holder):
            lease = await store.acquire(holder, 30.0)
            held = await store.holder()
            expect(held is not None and held.number == lease.number, f"holder() is {held}, given was {lease}")
            await _raises(LeaseHeld, self._lease(self._make(folder)), "a second acquire()")
            await store.renew(lease, 60.0)
            await _raises(LeaseHeld, self._lease(store), "acquire() after renew()")
            await store.release(lease)
            following = await self._lease(store)
        expect_equal("the number of the next lease", following.number, lease.number + 1)
        expect_equal("the place of the next lease", following.place, lease.place)

    async def of_many_at_once_one_gets_the_lease(self, folder: Path) -> None:
        """Of jobs that ask for the lease at the same time, one gets it, and the others are told."""
        holders = [Holder.here(0) for _ in range(8)]
        with running(*holders):
            asked = (self._make(folder).acquire(holder, 30.0) for holder in holders)
            answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, LeaseHeld):
                raise answer
        expect_equal("jobs that got it", sum(isinstance(answer, Lease) for answer in answers), 1)

    async def who_was_followed_changes_nothing_any_more(self, folder: Path) -> None:
        """With a lease that another has followed nothing is written or deleted, but `LeaseLost` raised."""
        for how in ("dead", "silent"):
            place = self._place(folder, how)
            store, follower = self._make(place), self._make(place)
            holder = Holder.here(0)
            with running(holder, goes_on=how == "silent"):
                old = await store.acquire(holder, 30.0 if how == "dead" else AT_ONCE)
                await store.put(old, "part-1", b"1")
                await store.commit(old, 1, b"1")
                new = await self._lease(follower)
                await _raises(LeaseLost, store.renew(old, 30.0), "renew()")
                await _raises(LeaseLost, store.put(old, "part-1", b"late"), "put()")
                await _raises(LeaseLost, store.put(old, "part-2", b"late"), "put()")
                await _raises(LeaseLost, store.commit(old, 2, b"late"), "commit()")
                await _raises(LeaseLost, store.delete(old, [1], ["part-1"]), "delete()")
                await store.release(old)
            held = await store.holder()
            expect(held is not None and held.number == new.number, f"holder() is {held}, given was {new}")
            await self._holds(follower, {1: b"1", "part-1": b"1"})
            await follower.commit(new, 2, b"new")
            await self._holds(store, {1: b"1", 2: b"new", "part-1": b"1"})

    # ------------------------------------------------------------------ crashes

    def _calls(self, store: CheckpointStore, lease: Lease) -> list[Callable[[], Coroutine[Any, Any, Any]]]:
        """What a job does with a store, call by call."""
        return [
            lambda: store.put(lease, "part-1", LARGE),
            lambda: store.commit(lease, 1, b"1"),
            lambda: store.renew(lease, AT_ONCE),
            lambda: store.put(lease, "part-2", b"2"),
            lambda: store.put(lease, "part-1", b"again"),
            lambda: store.commit(lease, 2, LARGE),
            lambda: store.delete(lease, [1], ["part-1"]),
            lambda: store.commit(lease, 3, b"3"),
            lambda: store.release(lease),
        ]

    async def crashes_between_any_two_calls_keep_what_was_kept(self, folder: Path) -> None:
        """What `put`, `commit` and `delete` have done when they return, is done, whatever happens then."""
        for cut in range(len(LEFT)):
            place = self._place(folder, cut)
            await self._lead(partial(self._live, place, cut, None))
            await self._follow(place, [LEFT[cut]])

    async def crashes_within_calls_leave_all_or_nothing(self, folder: Path) -> None:
        """A manifest, or a part, is there as a whole or not at all, also if the process dies meanwhile."""
        for at in range(len(LEFT) - 1):
            for cut in CUTS:
                place = self._place(folder, f"{at} {cut}")
                await self._lead(partial(self._live, place, at, cut))
                await self._follow(place, _between(at))

    async def _live(self, folder: Path, count: int, cut: float | None, report: Report) -> None:
        """A life that does so many calls, and ends; in the call that follows, after `cut`."""
        store = self._make(folder)
        calls = self._calls(store, await self._lease(store, AT_ONCE))
        for call in calls[:count]:
            await call()
        if cut is not None:
            await begun(calls[count](), cut)

    async def a_call_that_is_cancelled_leaves_all_or_nothing(self, folder: Path) -> None:
        """A checkpoint that takes too long is given up: all of a write is there then, or nothing of it."""
        for at in range(len(LEFT) - 1):
            for cut in CUTS:
                place = self._place(folder, f"{at} {cut}")
                store = self._make(place)
                lease = await self._lease(store, AT_ONCE)
                calls = self._calls(store, lease)
                for call in calls[:at]:
                    await call()
                await interrupted(calls[at](), cut)
                await self._follow(place, _between(at))

    async def _follow(self, folder: Path, possible: Sequence[dict[int | str, bytes]]) -> None:
        """Another job finds one of these things in the store, and goes on."""
        store = self._make(folder)
        lease = await self._lease(store)
        found = await _at_one_moment(store)
        if found not in possible:
            wanted = " or ".join(_short(kept) for kept in possible)
            raise ContractBroken(f"the next job finds {_short(found)} instead of {wanted}")
        await store.put(lease, "part-9", b"9")
        await store.commit(lease, 9, b"9")
        await self._holds(store, {**found, 9: b"9", "part-9": b"9"})


LEFT: Final[tuple[dict[int | str, bytes], ...]] = (
    {},
    {"part-1": LARGE},
    {"part-1": LARGE, 1: b"1"},
    {"part-1": LARGE, 1: b"1"},
    {"part-1": LARGE, 1: b"1", "part-2": b"2"},
    {"part-1": b"again", 1: b"1", "part-2": b"2"},
    {"part-1": b"again", 1: b"1", "part-2": b"2", 2: LARGE},
    {"part-2": b"2", 2: LARGE},
    {"part-2": b"2", 2: LARGE, 3: b"3"},
    {"part-2": b"2", 2: LARGE, 3: b"3"},
)
"""What is kept after so many calls of `StoreContract._calls`."""


async def _at_one_moment(store: CheckpointStore) -> dict[int | str, bytes]:
    """
    All that is kept. A call that was cancelled may still be at work in a thread, and delete something between
    two looks: what is the same twice was so in between.
    """
    before: dict[int | str, bytes] | None = None
    for _ in range(20):
        with suppress(CheckpointError):  # it was deleted when it had been listed
            found = await _all(store)
            if found == before:
                return found
            before = found
    return await _all(store)


async def _all(store: CheckpointStore) -> dict[int | str, bytes]:
    found: dict[int | str, bytes] = {what: await store.read(what) for what in await store.numbers()}
    return found | {what: await store.read(what) for what in await store.parts()}


def _between(at: int) -> list[dict[int | str, bytes]]:
    """What may be kept in the middle of a call: as before, or after; of a delete, manifests go first."""
    before, after = LEFT[at], LEFT[at + 1]
    without_manifests = {
        what: data for what, data in before.items() if isinstance(what, str) or what in after
    }
    return [before, after, without_manifests]


def _short(kept: dict[int | str, bytes]) -> str:
    """What is kept, for a message: large things by their size."""
    return str({what: data if len(data) < 20 else f"{len(data)} bytes" for what, data in kept.items()})


async def _raises(kind: type[Exception], call: Coroutine[Any, Any, Any], what: str) -> None:
    try:
        await call
    except kind:
        return
    raise ContractBroken(f"{what} did not raise {kind.__name__}")
