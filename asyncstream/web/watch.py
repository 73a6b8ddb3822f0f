"""
Looks at a job every second while it runs, and keeps what it saw for those who watch. A job of many hundred
steps, at which a look takes long, is looked at less often: the loop is there for its elements.

Looking begins with the first request, so a job that is not watched pays nothing; and goes on when clients are
gone, so that who comes back sees what was.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
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

SHARE = 1 / 30
"""Of the loop's time that statuses may take."""

SELDOM = 10.0
"""Seconds between two statuses at the most."""

LOOKS = 10
"""How often a second it is seen whether the job is over: a server that ends waits for those who watch."""

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


@dataclass(eq=False)
class _Watch:
    """
    A watch over one job.

    Attributes:
        feed: what was seen.
        is_over: the last that was seen is that the job is over.
    """

    feed: Feed[bytes] = field(default_factory=lambda: Feed(HISTORY))
    is_over: bool = False

    def has_failed(self) -> bool:
        """Whether it has ended, and before the job was over."""
        return self.feed.ended and not self.is_over

    async def keep(self, job: Job, values: Shown) -> None:
        now = asyncio.get_running_loop().time
        try:
            while not self.is_over:
                began = now()
                status = view(job, values)
                self.feed.put(as_json(status))
                self.is_over = status["state"] in OVER
                pause = min(max(EVERY, (now() - began) / SHARE), SELDOM)
                for _ in range(round(pause * LOOKS)):
                    if job.state not in OVER:
                        await asyncio.sleep(1 / LOOKS)
        finally:
            self.feed.end()


class Watches:
    """
    The watch over each job that was asked for, in each event loop that serves it: it ends with that, and who
    waits for what it sees is woken there only. `values` is what is shown of elements to all who watch.
    """

    def __init__(self, values: Shown) -> None:
        self._values = values
        self._known: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakKeyDictionary[Job, _Watch]] = (
            WeakKeyDictionary()
        )
        self._tasks = Tasks()

    def over(self, job: Job) -> Feed[bytes]:
        """What is seen of `job`: its status as JSON, every so often until it is over."""
        watches = self._known.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())
        watch = watches.get(job)
        if watch is None or watch.has_failed():
            watch = watches[job] = _Watch()
            self._tasks.start(watch.keep(job, self._values), "asyncstream watch")
        return watch.feed
