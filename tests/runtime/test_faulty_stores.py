"""Whatever a store of checkpoints fails with, the job goes on, and is told which store failed at what."""

from __future__ import annotations

import asyncio
import errno
import re
from typing import Any

import pytest

from asyncstream import CheckpointError, Checkpoints, MemoryStore, Pipeline, Restarts
from asyncstream.lease import Lease
from tests.runtime.parts import Ledger, sleeping

pytestmark = pytest.mark.usefixtures("virtual_time", "tidy")


class ClientError(Exception):
    """What the client of some database raises."""


ERRORS = [
    (OSError(errno.ENOSPC, "No space left on device"), r"OSError: \[Errno \d+\] No space left on device"),
    (TimeoutError("socket"), "TimeoutError: socket"),
    (asyncio.CancelledError("its own task"), "CancelledError: its own task"),
    (ClientError("no route"), "ClientError: no route"),
]


class Faulty(MemoryStore):
    """Fails with this, so many times, at what it is asked for."""

    def __init__(self, fails: str, error: BaseException, times: int) -> None:
        super().__init__()
        self.fails, self.error, self.times = fails, error, times

    async def _fail(self, what: str) -> None:
        if what == self.fails and self.times:
            self.times -= 1
            raise self.error

    async def renew(self, lease: Lease, seconds: float) -> None:
        await self._fail("renew")
        await super().renew(lease, seconds)

    async def put(self, lease: Lease, part: str, data: bytes) -> None:
        await self._fail("put")
        await super().put(lease, part, data)

    async def commit(self, lease: Lease, number: int, manifest: bytes) -> None:
        await self._fail("commit")
        await super().commit(lease, number, manifest)

    async def numbers(self) -> list[int]:
        await self._fail("numbers")
        return await super().numbers()


def numbers(ledger: Ledger, count: int = 100) -> Pipeline:
    pipeline = Pipeline("numbers")
    source = pipeline.source(list(range(count)), name="source")
    source.async_map(sleeping(0.1), name="call", concurrency=5).to(ledger, name="sink")
    return pipeline


@pytest.mark.parametrize(("error", "told"), ERRORS)
@pytest.mark.parametrize(
    ("fails", "doing"), [("put", "keep a part"), ("commit", r"commit checkpoint \d+")], ids=str
)
async def test_checkpoint_that_fails_says_over_what_and_the_next_one_is_taken(
    fails: str, doing: str, error: BaseException, told: str
) -> None:
    store, ledger = Faulty(fails, error, 0), Ledger()
    settings = Checkpoints(store, every=0.25, inline_bytes=0)
    async with numbers(ledger).start(checkpoints=settings) as job:
        await asyncio.sleep(0.5)
        store.times = 1
        with pytest.raises(
            CheckpointError, match=rf"^checkpoint \d+ failed: memory could not {doing}: {told}$"
        ):
            await job.checkpoint()
        newest = max(store._kept)
        await asyncio.sleep(0.5)
        assert max(store._kept) > newest + 1
        await job.wait()
    assert ledger.rows == list(range(100))


@pytest.mark.parametrize(("error", "told"), ERRORS)
async def test_job_that_cannot_begin_says_over_what(error: BaseException, told: str) -> None:
    store = Faulty("numbers", error, 1)
    with pytest.raises(CheckpointError, match=f"memory could not say which checkpoints there are: {told}"):
        await numbers(Ledger()).run(checkpoints=Checkpoints(store))
    assert store._lease is not None
    assert store._lease.released


@pytest.mark.parametrize(("error", "told"), ERRORS)
async def test_dry_run_reports_over_what_a_start_would_fail(error: BaseException, told: str) -> None:
    found = await numbers(Ledger()).dry_run(Checkpoints(Faulty("numbers", error, 1)))
    (refusal,) = found.refusals
    assert re.fullmatch(f"memory could not say which checkpoints there are: {told}", refusal)


async def test_dry_run_does_not_wait_for_a_store_without_end() -> None:
    class Silent(MemoryStore):
        async def holder(self) -> Lease | None:
            await asyncio.sleep(1e9)
            return None

    found = await numbers(Ledger()).dry_run(Checkpoints(Silent(), timeout=3))
    assert found.refusals == ("memory did not say who has its lease within 3 s, the timeout= of checkpoints",)


@pytest.mark.parametrize("error", [error for error, _ in ERRORS])
async def test_lease_is_renewed_again_after_it_once_was_not(error: BaseException) -> None:
    store = Faulty("renew", error, 0)
    async with numbers(Ledger()).start(checkpoints=Checkpoints(store, lease=3.0)) as job:
        store.times = 1
        await asyncio.sleep(1.5)
        lease = store._lease
        await asyncio.sleep(1.0)
        assert lease is not None
        assert store._lease is not None
        assert (store.times, store._lease.until_ms > lease.until_ms) == (0, True)
        await job.stop()


@pytest.mark.parametrize("fails", ["numbers", "commit"])
async def test_job_is_restarted_after_an_error_of_any_client(fails: str) -> None:
    store, ledger = Faulty(fails, ClientError("no route"), 2), Ledger()
    settings: Any = Checkpoints(store, every=1.0, tolerate=0)
    await numbers(ledger).run(checkpoints=settings, restart=Restarts(3))
    assert ledger.rows == list(range(100))


async def _nothing(*_: Any) -> None:
    pass


async def _descending(store: MemoryStore) -> list[int]:
    return sorted(store._kept, reverse=True)


async def _viewed(store: MemoryStore, what: int | str) -> Any:
    return memoryview(await MemoryStore.read(store, what))


async def _as_set(store: MemoryStore) -> Any:
    return set(store._parts)


@pytest.mark.parametrize(
    ("method", "gives"), [("numbers", _descending), ("read", _viewed), ("parts", _as_set)]
)
async def test_store_may_give_the_same_in_another_form(method: str, gives: Any) -> None:
    store, ledger = type("Own", (MemoryStore,), {method: gives})(), Ledger()
    settings = Checkpoints(store, every=0.2, inline_bytes=0)
    for _ in range(3):
        async with numbers(ledger).start(checkpoints=settings) as job:
            await asyncio.sleep(0.5)
            await job.stop()
    await numbers(ledger).run(checkpoints=settings)
    assert ledger.rows == list(range(100))


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("acquire", r"give a lease: TypeError: acquire\(\) gave a NoneType, and no Lease"),
        ("numbers", "say which checkpoints there are: TypeError"),
        ("parts", "say which parts there are: TypeError"),
    ],
)
async def test_store_that_gives_nothing_is_told_so(method: str, told: str) -> None:
    store = type("Own", (MemoryStore,), {method: _nothing})()
    with pytest.raises(CheckpointError, match=f"memory could not {told}"):
        await numbers(Ledger()).run(checkpoints=Checkpoints(store))
