"""
How a process keeps up with a record: `Exchanging`, the loop of exchanges with the store.

Theory. A process exchanges as long as it has something to tell or to ask, one exchange at a time. When the
next one is due depends on what has happened meanwhile, so it is asked anew (`_due`) after each exchange, and
each time that something happens (`_serve`). When nothing is due the loop ends, until it is served again.
While the store is away the loop tries again, each time a little later.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from asyncio import get_running_loop
from typing import Any, ClassVar, Final, TypeVar

from asyncstream.aside import wait_at_most
from asyncstream.guards.guard import EARLY, Background, loop_time
from asyncstream.guards.shared.records import Change, Records, RecordsAway
from asyncstream.guards.shared.scope import SharedLimit
from asyncstream.guards.waiting import Queued
from asyncstream.operators.whereabouts import LIMITED

__all__ = ("STORE_AWAY", "Exchanging", "waits")

T = TypeVar("T")

STORE_AWAY: Final = "limit_store_away"
"""The figure of a guard that tells whether the store of what it shares is away: 0 or 1."""

RETRY: Final = 0.1
"""Seconds between two tries to reach a store that is away; doubled each time."""

LONGEST: Final = 1.0
"""Seconds between two of these tries, at most."""


class Exchanging(Queued, ABC):
    """Base of what several processes share by a record; calls that wait stand in `_queue`."""

    _kind: ClassVar[str]
    """Of record: the first part of its name."""

    _log: ClassVar = logging.getLogger("asyncstream.limits")

    _meanwhile: ClassVar[str]
    """What becomes of calls while the store is away, for the log."""

    scope: SharedLimit
    away = False
    _records: Records | None
    _exchanging: object | None
    """Stands for the loop that is under way; one that has been cancelled may take its time to end."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    async def open(self) -> None:
        """Nothing is opened before the first call waits."""

    async def close(self) -> None:
        """Tell the store what it has to know in the end, and let go of it, unless calls still need it."""
        try:
            try:
                await self._background.stop()
            finally:
                self._exchanging = None  # a task cancelled before its first step never comes to its `finally`
            if self._records is not None:
                await self._take_leave()
        except RecordsAway as error:
            self._leave_untold(error)
        finally:
            records, self._records = self._records, None
            if self._loop is get_running_loop() and self._is_asked():  # by guards that were not opened
                self._serve()
            if records is not None:
                await records.close()

    def _is_asked(self) -> bool:
        """Whether calls need it: those that wait to begin do."""
        return self.waiting() > 0

    def _detach(self) -> None:
        """Begin with no event loop, and no store."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._records = None
        self._background = Background()
        self._exchanging = None
        self._wake: asyncio.Event | None = None
        self._again = 0.0
        """When it makes sense to exchange again, by the event loop's time."""
        self._takes: float | None = None
        """Seconds, of the last exchange; None: there was none yet."""

    def _attach(self) -> None:
        """Begin in the event loop that runs."""
        self._detach()
        self._loop, self._wake = get_running_loop(), asyncio.Event()

    @abstractmethod
    def _due(self, now: float) -> float | None:
        """When to exchange, by the event loop's time, which is `now`; None: there is nothing to say."""

    @abstractmethod
    async def _exchange(self) -> None:
        """
        Exchange once, and say when it makes sense to do so again (`_again`); raises `RecordsAway` if the
        store does not answer.
        """

    @abstractmethod
    async def _take_leave(self) -> None:
        """The last exchange; raises `RecordsAway` if the store does not answer."""

    def _leave_untold(self, error: RecordsAway) -> None:
        """The store did not answer to that: what is leased runs out."""

    def _note_away(self, error: RecordsAway) -> None:
        """The store does not answer."""
        if not self.away:
            self.away = True
            self._log.warning("%r is away; %s: %s", self.scope, self._meanwhile, error)

    def _fail(self, error: Exception) -> None:
        """Give all that wait an error: what others agree on is something else, say, a mistake in the plan."""
        self._queue.fail(error)

    def _rest(self) -> None:
        """The loop has ended: there is nothing to say, or it failed or was cancelled."""
        self._again = 0.0

    async def _update(self, change: Change[T]) -> T:
        """Change the record; raises `RecordsAway` if the store does not answer."""
        sent = loop_time()
        if self._records is None:
            self._records = self.scope.records()
        found = await self._records.update(f"{self._kind}:{self.scope.name}", change)
        self._takes = loop_time() - sent
        return found

    def _serve(self) -> None:
        """See to it that exchanges are made."""
        assert self._wake is not None
        self._wake.set()
        if self._exchanging is None:
            self._exchanging = mine = object()
            self._background.start(self._exchanges(mine))

    async def _exchanges(self, mine: object) -> None:
        """Exchange with the store while there is something to tell or to ask."""
        assert self._wake is not None
        loop, pause = get_running_loop(), RETRY
        try:
            while (due := self._due(now := loop.time())) is not None:
                if now < due - EARLY:
                    self._wake.clear()
                    await wait_at_most(self._wake, due - now)
                    continue
                try:
                    await self._exchange()
                except RecordsAway as error:
                    self._note_away(error)
                    self._again = loop.time() + pause
                    pause = min(2 * pause, LONGEST)
                else:
                    pause = RETRY
        except Exception as error:
            self._fail(error)
        finally:
            if self._exchanging is mine:
                self._exchanging = None
            self._rest()


def waits(limit: Queued) -> dict[str, int]:
    """For the metrics of a guard: how many calls wait, and, of a shared limit, whether its store is away."""
    found = {LIMITED: limit.waiting()}
    if isinstance(limit, Exchanging) and limit.scope is not None:
        found[STORE_AWAY] = int(limit.away)
    return found
