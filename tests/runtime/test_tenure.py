"""How long a run has the lease of its store."""

from __future__ import annotations

import asyncio

import pytest

from asyncstream import Checkpoints, MemoryStore, Pipeline
from asyncstream.errors import CheckpointError
from asyncstream.lease import Holder, Lease
from asyncstream.runtime.aio.tenure import Tenure


def tenure(store: MemoryStore, renewed: list[Lease]) -> Tenure:
    def lost(error: CheckpointError) -> None:
        raise error

    return Tenure(Checkpoints(store=store, lease=3), lost, renewed.append)


@pytest.mark.usefixtures("virtual_time")
async def test_each_renewal_of_the_lease_is_told() -> None:
    renewed: list[Lease] = []
    held = tenure(MemoryStore(), renewed)
    await held.begin()
    await asyncio.sleep(2.5)  # of virtual time
    await held.end()
    assert [lease.number for lease in renewed] == [1, 1]
    assert renewed[-1] is held.lease


@pytest.mark.parametrize(("lost", "asked", "renewed_times"), [(1, 2, 1), (2, 2, 0)])
@pytest.mark.usefixtures("virtual_time")
async def test_renewal_whose_answer_is_lost_is_tried_again_in_time_once(
    lost: int, asked: int, renewed_times: int
) -> None:
    class Silent(MemoryStore):
        asked = 0

        async def renew(self, lease: Lease, seconds: float) -> None:
            self.asked += 1
            if self.asked <= lost:
                await asyncio.sleep(1000)  # of virtual time
            await super().renew(lease, seconds)

    renewed: list[Lease] = []
    store = Silent()
    held = tenure(store, renewed)
    await held.begin()
    await asyncio.sleep(2.9)  # of virtual time: the lease has not run out
    assert (store.asked, len(renewed)) == (asked, renewed_times)
    await asyncio.sleep(200)
    assert store.asked == 2 or lost == 1, "a dead store is not asked again and again"
    await held.end()


def test_run_whose_loop_was_closed_in_the_middle_is_followed_at_once() -> None:
    store = MemoryStore()

    async def begin() -> int:
        held = tenure(store, [])
        await held.begin()
        return held.lease.number

    assert asyncio.run(begin()) == 1
    assert asyncio.run(begin()) == 2


class SlowStore(MemoryStore):
    """One that takes a second to give a lease, and gives it also when nobody waits for it any more."""

    async def acquire(self, holder: Holder, seconds: float) -> Lease:
        async def work() -> Lease:
            await asyncio.sleep(1)  # of virtual time
            return await super(SlowStore, self).acquire(holder, seconds)

        return await asyncio.shield(asyncio.ensure_future(work()))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_lease_that_comes_after_the_timeout_is_given_back() -> None:
    store = SlowStore()
    pipeline = Pipeline()
    pipeline.source([1], name="in").discard()
    with pytest.raises(CheckpointError, match=r"did not give a lease within 0\.5 s") as caught:
        await pipeline.run(checkpoints=Checkpoints(store=store, timeout=0.5))
    assert isinstance(caught.value.__cause__, TimeoutError)
    last = await store.holder()
    assert last is not None
    assert last.released


@pytest.mark.usefixtures("virtual_time")
async def test_lease_that_is_given_to_a_run_that_was_cancelled_meanwhile_is_given_back() -> None:
    store = SlowStore()
    held = tenure(store, [])
    beginning = asyncio.create_task(held.begin())
    await asyncio.sleep(0.5)  # of virtual time
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    await held.end()
    await asyncio.sleep(1)  # of virtual time
    last = await store.holder()
    assert last is not None
    assert last.released
