"""
What the demo shows a person: progress while it runs, a report at its end.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from types import TracebackType

from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from asyncstream import FailedCall, Job
from examples.flights.analysis import PATIENCE, REST, Findings
from examples.flights.answer import SUMS
from examples.flights.data import Row, load_airlines

__all__ = ("Progress", "print_plan", "print_report")

CONDITIONS = {"clear": "clear", "wind": "wind", "rain": "rain", "low visibility": "fog"}

BIG_AIRLINES = 4
"""As many have a line of their own."""

WORST = 3
"""As many rows are shown of what is sorted by badness."""


class Progress:
    """
    A bar on the terminal that follows a job; nothing where there is no terminal.

    Args:
        job: the running job; its counters are read ten times a second.
        total: how many events there are.
        sink: the step whose written elements are counted.
    """

    def __init__(self, job: Job, total: int, sink: str) -> None:
        self._job, self._sink = job, sink
        self._bar = Bar(
            TextColumn("flights"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[calls]} calls running"),
            console=Console(stderr=True),
            disable=not Console(stderr=True).is_terminal,
        )
        self._row = self._bar.add_task("", total=total, calls=0)

    async def __aenter__(self) -> None:
        self._bar.start()
        self._follower = asyncio.create_task(self._follow())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._follower.cancel()
        self._show()
        self._bar.stop()

    async def _follow(self) -> None:
        while True:
            self._show()
            await asyncio.sleep(0.1)

    def _show(self) -> None:
        counts = self._job.metrics()
        running = sum(step.get("running", 0) for step in counts.values())
        self._bar.update(self._row, completed=counts[self._sink]["written"], calls=running)


def print_plan(plan: str) -> None:
    """Print the steps of a described pipeline, one line each."""
    steps, _, _ = plan.partition("\nwith checkpoints")  # which the demo does without
    _console().print(steps, no_wrap=True, overflow="ellipsis", markup=False, end="\n\n")


def print_report(
    *,
    events: int,
    results: int,
    seconds: float,
    lookups: Mapping[str, Mapping[str, int]],
    steps: Mapping[str, Mapping[str, int]],
    given_up: Sequence[FailedCall],
    answer: Sequence[Row],
    found: Findings,
    agrees: Mapping[str, bool],
) -> None:
    """Print what went in and out, what the service did to it, the answers, and whether polars agrees."""
    console = _console()
    console.print(
        f"{events:,} flights in, {results:,} enriched, {len(given_up):,} routed aside, "
        f"in {seconds:.1f} s: {events / seconds:,.0f} flights/s"
    )
    for table in (
        _calls(lookups, steps),
        _delays(answer),
        _hours(found),
        _rotations(found),
        _silences(found),
    ):
        console.print(table)
    console.print()
    for figures, agree in agrees.items():
        verdict = "[bold green]equal[/]" if agree else "[bold red]not equal[/]"
        console.print(f"{verdict} to polars: {figures}")


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 100
    return console


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Group:
    """A table below its title; all columns but the first are numbers."""
    # the title stands outside: a table's own is broken to fit its width
    table = Table(box=None)
    table.add_column(columns[0], no_wrap=True)
    for column in columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return Group("", f"[bold]{title}[/]", table)


def _calls(lookups: Mapping[str, Mapping[str, int]], steps: Mapping[str, Mapping[str, int]]) -> Group:
    """What each step asked the service, and what it was spared."""
    columns = {
        "elements_in": "flights",
        "cached": "cached",
        "coalesced": "coalesced",
        "requests": "requests",
        "retries": "retried",
        "timed_out": "timed out",
        "failed": "failed",
    }
    counts = {name: {**lookup, **steps[name]} for name, lookup in lookups.items()}
    rows = [[name, *(f"{known.get(column, 0):,}" for column in columns)] for name, known in counts.items()]
    return _table("What it took", ("step", *columns.values()), rows)


def _delays(answer: Sequence[Row]) -> Group:
    """Mean departure delay by airline and weather, and over everything."""
    airlines: defaultdict[str, list[Row]] = defaultdict(list)
    for row in answer:
        airlines[row["airline"]].append(row)
    by_size = sorted(airlines, key=lambda airline: -_sum(airlines[airline], "flights"))
    big, small = by_size[:BIG_AIRLINES], by_size[BIG_AIRLINES:]
    others = [row for airline in small for row in airlines[airline]]
    rows = [
        *([airline, *_figures(airlines[airline])] for airline in big),
        [f"{len(small)} others", *_figures(others)],
        ["all", *_figures(answer)],
    ]
    title = "Mean departure delay in minutes by weather; share late by > 15 min"
    return _table(title, ("airline", "flights", *CONDITIONS.values(), "late"), rows)


def _hours(found: Findings) -> Group:
    """The hours in which an airline lost most."""
    airlines = load_airlines()
    worst = nlargest(WORST, found.hours.items(), key=lambda item: (item[1]["delay_min"] or 0, item[0]))
    figures = ("scheduled", "departed", "delay_min", "worst_min")
    rows = [
        [airlines[carrier], _clock(start_ms), *(f"{row[name] or 0:,}" for name in figures)]
        for (carrier, start_ms), row in worst
    ]
    title = (
        f"Worst of {len(found.hours):,} airline hours, {found.corrections:,} times corrected; "
        f"too late for that: {len(found.late):,} flights"
    )
    return _table(title, ("airline", "hour (UTC)", "scheduled", "departed", "delay min", "worst min"), rows)


def _rotations(found: Findings) -> Group:
    """The planes that left most often without a rest."""
    busiest = nlargest(
        WORST, found.rotations, key=lambda each: (each.value["legs"], each.value["miles"], each.key)
    )
    rows = [
        [
            each.key,
            _clock(each.value["first_ms"]),
            _clock(each.value["last_ms"]),
            *(f"{each.value[name] or 0:,}" for name in ("legs", "miles", "seats")),
        ]
        for each in busiest
    ]
    title = (
        f"Busiest of {len(found.rotations):,} rotations: a plane's departures, none more than "
        f"{_in_hours(REST)} h after another"
    )
    return _table(title, ("plane", "first (UTC)", "last (UTC)", "legs", "miles", "seats"), rows)


def _silences(found: Findings) -> Group:
    """The planes that were away for longest and came back."""
    newest_ms = max((each.value["last_ms"] for each in found.rotations), default=0)
    ended, missed = [], 0
    for (plane, since_ms), until_ms in found.silences.items():
        if until_ms is not None:
            ended.append((timedelta(milliseconds=until_ms - since_ms), plane, since_ms, until_ms))
        elif timedelta(milliseconds=newest_ms - since_ms) > PATIENCE:
            missed += 1
    rows = [
        [plane, _clock(since_ms), _clock(until_ms), f"{_in_hours(length):,}"]
        for length, plane, since_ms, until_ms in nlargest(WORST, ended)
    ]
    title = (
        f"Longest of {len(ended):,} silences of more than {_in_hours(PATIENCE)} h; "
        f"{missed:,} planes are still missed at the end"
    )
    return _table(title, ("plane", "last seen (UTC)", "back (UTC)", "hours"), rows)


def _clock(timestamp_ms: int) -> str:
    return f"{datetime.fromtimestamp(timestamp_ms / 1000, UTC):%b %d %H:%M}"


def _in_hours(span: timedelta) -> int:
    return span // timedelta(hours=1)


def _figures(rows: Iterable[Row]) -> list[str]:
    """Of rows of the answer: how many flights, their mean delay by weather, and the share that was late."""
    totals: defaultdict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(SUMS, 0))
    for row in rows:
        for name in SUMS:
            totals[row["condition"]][name] += row[name]
    flights = _sum(totals.values(), "flights")
    late = _sum(totals.values(), "late") / flights if flights else 0
    return [f"{flights:,}", *(_mean_delay(totals[name]) for name in CONDITIONS), f"{late:.0%}"]


def _mean_delay(total: Mapping[str, int]) -> str:
    return f"{total['delay_min'] / total['flights']:.1f}" if total["flights"] else "-"


def _sum(rows: Iterable[Mapping[str, int]], name: str) -> int:
    return sum(row[name] for row in rows)
