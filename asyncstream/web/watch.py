"""
Looks at a job every second while it runs, and keeps what it saw for those who watch.

Looking begins with the first request, so a job that is not watched pays nothing; and goes on when clients are
gone, so that who comes back sees what was.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from weakref import WeakKeyDictionary

from asyncstream.aside import Tasks
from asyncstream.runtime.aio import Job
from asyncstream.runtime.aio.inspection import Shown
from asyncstream.web.asgi import as_json
from asyncstream.web.feed import Feed

__all__ = ("HISTORY", "OVER", "Watches", "view")

EVERY = 1.0
"""Seconds between two statuses."""

LOOKS = 10
"""How often in between it is seen whether the job is over: a server that ends waits for those who watch."""

HISTORY = 120
"""How many are kept."""

OVER: Final = frozenset({"finished", "stopped", "failed"})
"""States of a job that does nothing any more."""


def view(job: Job, values: Shown) -> dict[str, Any]:
    """The job's status as JSON has it, with its name and the settings of its steps."""
    status = job.status(values=values).to_dict()
    for step in status["steps"]:
        details = job.graph[step["name"]].details
        step["settings"] = {name: str(value) for name, value in details.items() if value is not None}
    return {"name": job.name, **status}


class Watches:
    """The watch over each job that was asked for; `values` is what is shown of elements to all who watch."""

    def __init__(self, values: Shown) -> None:
        self._values = values
        self._feeds: WeakKeyDictionary[Job, Feed[bytes]] = WeakKeyDictionary()
        self._tasks = Tasks()

    def over(self, job: Job) -> Feed[bytes]:
        """What is seen of `job`: its status as JSON, every second until it is over."""
        feed = self._feeds.get(job)
        if feed is None:
            feed = self._feeds[job] = Feed(HISTORY)
            self._tasks.start(_watch(job, self._values, feed), "asyncstream watch")
        return feed


async def _watch(job: Job, values: Shown, feed: Feed[bytes]) -> None:
    try:
        while True:
            status = view(job, values)
            feed.put(as_json(status))
            if status["state"] in OVER:
                return
            for _ in range(LOOKS):
                if job.state not in OVER:
                    await asyncio.sleep(EVERY / LOOKS)
    finally:
        feed.end()
