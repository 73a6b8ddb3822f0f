"""
Shows how far a job has come: a moving bar on a terminal, a line every so often in a log.

The job is looked at, and told nothing: `Meter` makes rates of two looks, and of these the time that is left.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Protocol

from asyncstream.errors import describe_error
from asyncstream.runtime.aio.job import Job
from asyncstream.runtime.aio.progress import JobProgress

__all__ = ("Figures", "Meter", "duration", "showing_progress")

WINDOW = 10.0
"""Seconds over which a rate is measured: calls end in bursts."""

FRAME = 0.25
"""Seconds between two pictures of the bar."""


@dataclass(frozen=True)
class Figures:
    """
    What is shown.

    Attributes:
        rows: elements that the job has finished: what it has read, or what a checkpoint had in flight.
        in_flight: elements on their way.
        failed: elements that something failed on.
        seconds: since the first look.
        rate: rows a second, lately; None: not known yet.
        share: how much of all there is to do is done, from 0 to 1; None: unknown.
        left: seconds until the end, if it goes on like this; None: not known.
        stuck: the step at which nothing goes on, and why; empty: there is none.
    """

    rows: int
    in_flight: int
    failed: int
    seconds: float
    rate: float | None = None
    share: float | None = None
    left: float | None = None
    stuck: str = ""

    def line(self) -> str:
        """All of it in one line."""
        parts = [f"{self.rows:,} rows"]
        if self.rate is not None:
            parts.append(f"{self.rate:,.0f}/s" if self.rate >= 10 else f"{self.rate:.1f}/s")
        parts += [f"{self.in_flight:,} in flight", f"{self.failed:,} failed"]
        if self.share is not None:
            parts.append(f"{self.share:.0%}")
        if self.stuck:
            parts.append(f"stuck at {self.stuck}")
        elif self.left is not None:
            parts.append(f"{duration(self.left)} left")
        return ", ".join(parts)

    def summary(self) -> str:
        """What there is to say at the end."""
        rest = f", {self.in_flight:,} in flight" if self.in_flight else ""
        return f"{self.rows:,} rows in {duration(self.seconds)}, {self.failed:,} failed{rest}"


class Meter:
    """
    Makes figures of what a job tells, one look after the other.

    What is done and to do is this job's: elements that were in flight in the checkpoint it goes on from are,
    those that an earlier job has finished are not. What is left of an input is judged by how many elements
    its share so far has brought.
    """

    def __init__(self) -> None:
        self._first: tuple[float, JobProgress] | None = None
        self._looks: deque[tuple[float, int]] = deque()

    def look(self, progress: JobProgress, now: float) -> Figures:
        """The figures of this moment, of a clock that never goes back."""
        if self._first is None:
            self._first = now, progress
        began, before = self._first
        restored = max(0, before.in_flight - before.read)
        rows = max(0, restored + progress.read - progress.in_flight)
        looks = self._looks
        looks.append((now, rows))
        while len(looks) > 2 and now - looks[1][0] >= WINDOW:
            looks.popleft()
        since, had = looks[0]
        rate = max(0, rows - had) / (now - since) if now > since else None
        share = left = None
        unread = _unread(before, progress)
        if unread is not None:
            todo = unread + progress.in_flight
            all_rows = rows + todo
            share = rows / all_rows if all_rows else 1.0
            if rate:
                left = todo / rate
        return Figures(rows, progress.in_flight, progress.failed, now - began, rate, share, left)


def _unread(before: JobProgress, now: JobProgress) -> float | None:
    """About how many elements are still to be read; None if a source does not know, or it is too early."""
    unread = 0.0
    for first, source in zip(before.sources, now.sources, strict=True):
        if source.share is None or first.share is None:
            return None
        if source.share < 1:
            gained = source.share - first.share
            if gained <= 0 or not source.read:
                return None
            unread += source.read * (1 - source.share) / gained
    return unread if now.sources else None


def duration(seconds: float) -> str:
    """A length of time for people, in its two largest units."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    units = [(whole // 86_400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    while len(units) > 1 and not units[0][0]:
        del units[0]
    return " ".join(f"{number} {unit}" for number, unit in units[:2] if number or unit == units[0][1])


class _Display(Protocol):
    """Where figures are shown."""

    every: float

    def show(self, figures: Figures) -> None: ...

    def close(self, look: Callable[[], Figures]) -> None: ...


class _Lines:
    """Says them, every so many seconds; at the end if it has said something before, or something failed."""

    def __init__(self, every: float, say: Callable[[str], None]) -> None:
        self.every = every
        self._say = say
        self._has_said = False

    def show(self, figures: Figures) -> None:
        self._has_said = True
        self._say(figures.line())

    def close(self, look: Callable[[], Figures]) -> None:
        figures = look()
        if self._has_said or figures.failed:
            self._say(figures.summary())


class _Bar:
    """Draws them with rich, below what else is written to the terminal."""

    every = FRAME

    def __init__(self, title: str, say: Callable[[str], None]) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self._say = say
        self._rich = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[line]}", markup=False),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
            expand=True,
            redirect_stdout=sys.stdout.isatty(),  # else what is written to a file would land here
        )
        self._task = self._rich.add_task(escape(title), total=None, line="")
        self._rich.start()

    def show(self, figures: Figures) -> None:
        total: Any = {} if figures.share is None else {"total": 1.0, "completed": figures.share}
        self._rich.update(self._task, line=figures.line(), **total)
        self._rich.refresh()

    def close(self, look: Callable[[], Figures]) -> None:
        self._rich.stop()
        self._say(look().summary())


def _first_stuck(job: Job) -> str:
    stuck = job.status().stuck
    return f"step {stuck[0].name!r}: {stuck[0].stuck}" if stuck else ""


@asynccontextmanager
async def showing_progress(
    job: Job, title: str, every: float, say: Callable[[str], None]
) -> AsyncIterator[None]:
    """
    Show the progress of a job while the block runs.

    Args:
        every: seconds between two lines, where stderr is no terminal or rich is not installed; 0: show
            nothing at all.
        say: writes a line.
    """
    if not every:
        yield
        return
    loop, meter = asyncio.get_running_loop(), Meter()

    def look() -> Figures:
        return meter.look(job.progress(), loop.time())

    rows = 0
    with suppress(Exception):  # the next look says it
        rows = look().rows  # before anything is read
    is_watched = sys.stderr.isatty() and find_spec("rich") is not None
    display: _Display = _Bar(title, say) if is_watched else _Lines(every, say)

    async def follow() -> None:
        nonlocal rows
        while True:
            await asyncio.sleep(display.every)
            figures = look()
            if figures.rows == rows and figures.in_flight:  # only then: the status of all steps costs more
                figures = replace(figures, stuck=_first_stuck(job))
            rows = figures.rows
            display.show(figures)

    following = asyncio.create_task(follow())
    try:
        yield
    finally:
        following.cancel()
        await asyncio.wait({following})
        try:
            display.close(look)
            with suppress(asyncio.CancelledError):
                following.result()
        except Exception as error:
            # a source that cannot say how far it is, a terminal that is gone: no matter of the job
            say(f"progress is not shown any more: {describe_error(error)}")
