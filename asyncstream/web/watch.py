"""
Looks at a job every second while it runs, and keeps what it saw for those who watch.

Looking begins with the first who asks, so a job that nobody watches pays nothing; and goes on when they are
gone, so that who comes back sees what was.
"""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import WeakKeyDictionary

import orjson

from asyncstream.runtime.aio import Job
from asyncstream.web.feed import Feed

__all__ = ("HISTORY", "OVER", "Watches")

EVERY = 1.0
"""Seconds between two statuses."""

LOOKS = 10
"""How often in between it is seen whether the job is over: a server that ends waits for those who watch."""

HISTORY = 120
"""How many are kept."""

OVER: Final = frozenset({"finished", "stopped", "failed"})
"""States of a job that does nothing any more."""


class Watches:
    """The watch over each job that was asked for."""

    def __init__(self) -> None:
        self._feeds: WeakKeyDictionary[Job, Feed[bytes]] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()

    def over(self, job: Job) -> Feed[bytes]:
        """What is seen of `job`: its status as JSON, without values, every second until it is over."""
        feed = self._feeds.get(job)
        if feed is None:
            feed = self._feeds[job] = Feed(HISTORY)
            task = asyncio.get_running_loop().create_task(_watch(job, feed), name="asyncstream watch")
            self._tasks.add(task)  # the loop itself references tasks only weakly
            task.add_done_callback(self._tasks.discard)
        return feed


async def _watch(job: Job, feed: Feed[bytes]) -> None:
    try:
        while True:
            status = job.status()
            feed.put(orjson.dumps(status.to_dict()))
            if status.state in OVER:
                return
            for _ in range(LOOKS):
                if job.state not in OVER:
                    await asyncio.sleep(EVERY / LOOKS)
    finally:
        feed.end()
