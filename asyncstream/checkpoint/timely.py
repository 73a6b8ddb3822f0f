"""
A store of checkpoints that answers in bounded time: what waits for it longer fails, and says for what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from typing import TypeVar

from asyncstream.checkpoint.stores import CheckpointStore, Manifests, manifests_of
from asyncstream.errors import CheckpointError
from asyncstream.lease import Holder, Lease

__all__ = ("TimelyStore",)

T = TypeVar("T")


class TimelyStore:
    """
    Another store, which each method asks, and gives up on with a `CheckpointError`.

    Args:
        seconds: what each call gets.
    """

    def __init__(self, store: CheckpointStore, seconds: float) -> None:
        self._store = store
        self._seconds = seconds

    def __str__(self) -> str:
        return str(self._store)

    async def _answer(self, what: str, call: Awaitable[T]) -> T:
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                return await call
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise CheckpointError(
                f"{self._store} did not {what} within {self._seconds:g} s, the timeout= of checkpoints"
            ) from error

    async def acquire(self, holder: Holder, seconds: float) -> Lease:
        return await self._answer("give a lease", self._store.acquire(holder, seconds))

    async def renew(self, lease: Lease, seconds: float) -> None:
        await self._answer("renew the lease", self._store.renew(lease, seconds))

    async def release(self, lease: Lease) -> None:
        await self._answer("take the lease back", self._store.release(lease))

    async def put(self, lease: Lease, part: str, data: bytes) -> None:
        await self._answer("keep a part", self._store.put(lease, part, data))

    async def commit(self, lease: Lease, number: int, manifest: bytes) -> None:
        await self._answer(f"commit checkpoint {number}", self._store.commit(lease, number, manifest))

    async def numbers(self) -> list[int]:
        return await self._answer("say which checkpoints there are", self._store.numbers())

    async def parts(self) -> list[str]:
        return await self._answer("say which parts there are", self._store.parts())

    async def read(self, what: int | str) -> bytes:
        return await self._answer(f"give {what}", self._store.read(what))

    async def manifests(self, numbers: Collection[int]) -> Manifests:
        found: Manifests = {}
        # what a store has no method for, it is asked for one by one, and each answer has its time
        together = [numbers] if hasattr(self._store, "manifests") else [[number] for number in numbers]
        for some in together:
            found |= await self._answer("give checkpoints", manifests_of(self._store, some))
        return found

    async def delete(self, lease: Lease, numbers: Collection[int], parts: Collection[str]) -> None:
        await self._answer("delete what is old", self._store.delete(lease, numbers, parts))

    async def holder(self) -> Lease | None:
        return await self._answer("say who has its lease", self._store.holder())
