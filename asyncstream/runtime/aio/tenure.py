"""
Holds the lease of a store for as long as a job runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from asyncstream.aside import can_go_on
from asyncstream.async_wait.tasks import end_tasks
from asyncstream.checkpoint import Checkpoints
from asyncstream.checkpoint.stores import time_ms
from asyncstream.checkpoint.timely import too_late
from asyncstream.errors import CheckpointError, DamagedCheckpoint, LeaseHeld, LeaseLost
from asyncstream.lease import Holder, Lease, enter, leave

__all__ = ("Tenure",)

log = logging.getLogger("asyncstream.checkpoint")

LOOK_AGAIN = 1.0
"""Seconds between two looks whether a job that is waited for has ended."""

PATIENCE = 5.0
"""Seconds that the store gets to take the lease back: if it does not, the lease runs out."""


class Tenure:
    """
    The time in which a job may write.

    Args:
        lost: told when another job has followed.
        renewed: told of the lease each time that it goes on.

    Attributes:
        lease: the right to write; there is one from `begin` on.
    """

    lease: Lease

    def __init__(
        self,
        settings: Checkpoints,
        lost: Callable[[CheckpointError], None],
        renewed: Callable[[Lease], object],
    ) -> None:
        self._settings = settings
        self._store = settings.timely_store()
        self._lost = lost
        self._renewed = renewed
        self._holder: Holder | None = None
        self._asked: asyncio.Task[Lease] | None = None  # of the store, last
        self._renewing: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """
        Take the lease; wait for it if the settings say so, also while the store is out of reach.

        Raises:
            LeaseHeld: if another job has it.
            CheckpointError: if the store does not answer in time; and what it raises at the first look.
        """
        loop = asyncio.get_running_loop()
        holder = self._holder = Holder.here(time_ms())
        enter(holder, can_go_on(loop))
        told = ""
        while True:
            asking = self._store.acquire(holder, self._settings.lease_seconds)
            self._asked = loop.create_task(asking, name="asyncstream lease")
            # a store may give it when the caller is gone, or waits no more, who could not give it back
            await asyncio.wait({self._asked}, timeout=self._settings.timeout_seconds)
            if not self._asked.done():
                seconds = self._settings.timeout_seconds
                raise too_late(self._store, "give a lease", seconds) from TimeoutError()
            try:
                self.lease = self._asked.result()
                break
            except LeaseHeld as held:
                if self._settings.on_held == "refuse":
                    raise LeaseHeld(f"{held}; on_held='wait' waits for that") from None
                if told != "held":
                    log.warning("waiting: %s", held)
                told = "held"
            except Exception as error:
                if not told or isinstance(error, DamagedCheckpoint):
                    raise
                if told != "away":  # the job that is waited for goes on meanwhile, too
                    log.warning("waiting, though %s could not be asked: %s", self._store, error)
                told = "away"
            await asyncio.sleep(min(LOOK_AGAIN, self._settings.lease_seconds))
        self._renewing = loop.create_task(self._renew(), name="asyncstream lease")

    async def _renew(self) -> None:
        seconds = self._settings.lease_seconds
        was_slow = False
        while True:
            if not was_slow:
                await asyncio.sleep(seconds / 3)
            until_ms = time_ms() + round(seconds * 1000)  # not later than the store has it
            # an answer that is lost must not cost the lease; asking a dead store often leaves many threads
            limit = asyncio.timeout(None if was_slow else seconds / 3)
            was_slow = False
            try:
                async with limit:
                    await self._store.renew(self.lease, seconds)
            except LeaseLost as error:
                self._lost(error)
                return
            except TimeoutError:  # only of `limit`: those of the store are `StoreFailed`
                was_slow = True
            except Exception as error:  # of the store: what matters is what it says at the next commit
                log.warning("the lease was not renewed: %s", error)
            else:
                self.lease = self.lease.renewed(until_ms)
                self._renewed(self.lease)

    async def confirm(self) -> None:
        """
        See whether the lease is still this job's: something is about to be changed on what was seen before.

        Raises:
            LeaseLost: if another job has followed.
            CheckpointError: if the store cannot tell.
        """
        await self._store.renew(self.lease, self._settings.lease_seconds)

    async def end(self) -> None:
        """Give the lease back."""
        if self._holder is None:
            return
        leave(self._holder)
        self._holder = None
        if self._renewing is not None:
            await end_tasks({self._renewing}, PATIENCE)
        if self._asked is None:
            return
        await asyncio.wait({self._asked}, timeout=PATIENCE)
        if await end_tasks({self._asked}, PATIENCE) or self._asked.cancelled() or self._asked.exception():
            return  # none was given
        try:
            async with asyncio.timeout(PATIENCE):
                await self._store.release(self._asked.result())
        except Exception as error:
            log.warning("the lease was not given back: %s", error)
