"""
What the demo shows a person: progress while it runs, a report at its end.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from asyncstream import FailedCall, Job
from examples.flights.answer import SUMS
from examples.flights.data import Row

__all__ = ("Progress", "print_report")

CONDITIONS = {"clear": "clear", "wind": "wind", "rain": "rain", "low visibility": "fog"}


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


def print_report(
    *,
    events: int,
    results: int,
    seconds: float,
    lookups: Mapping[str, Mapping[str, int]],
    steps: Mapping[str, Mapping[str, int]],
    given_up: Sequence[FailedCall],
    answer: Sequence[Row],
    agrees: bool,
) -> None:
    """Print what went in and out, what the service did to it, and the answer."""
    console = Console(highlight=False)
    console.print(
        f"{events:,} flights in, {results:,} enriched, {len(given_up):,} routed aside, "
        f"in {seconds:.1f} s: {events / seconds:,.0f} flights/s"
    )
    console.print(_calls(lookups, steps))
    console.print(_delays(answer))
    if agrees:
        console.print("[bold green]equal[/] to the answer that polars computes from the tables")
    else:
        console.print("[bold red]not equal[/] to the answer that polars computes from the tables")


def _calls(lookups: Mapping[str, Mapping[str, int]], steps: Mapping[str, Mapping[str, int]]) -> Table:
    table = Table(title="What it took", title_justify="left")
    columns = {
        "elements_in": "flights",
        "cached": "cached",
        "coalesced": "shared",
        "requests": "requests",
        "retries": "retries",
        "timed_out": "timed out",
        "failed": "failed",
    }
    table.add_column("step")
    for heading in columns.values():
        table.add_column(heading, justify="right")
    for name, counts in lookups.items():
        known = {**counts, **steps[name]}
        table.add_row(name, *(f"{known.get(column, 0):,}" for column in columns))
    return table


def _delays(answer: Sequence[Row]) -> Table:
    """Mean departure delay by airline and weather, and over everything."""
    table = Table(
        title="Mean departure delay in minutes by weather; share late by > 15 min", title_justify="left"
    )
    table.add_column("airline", no_wrap=True, max_width=24)
    for heading in ("flights", *CONDITIONS.values(), "late"):
        table.add_column(heading, justify="right")
    airlines: defaultdict[str, dict[str, Row]] = defaultdict(dict)
    for row in answer:
        airlines[row["airline"]][row["condition"]] = row
    for airline, rows in sorted(airlines.items(), key=lambda item: -_sum(item[1].values(), "flights")):
        table.add_row(airline, *_figures(rows))
    everything: dict[str, Row] = {}
    for row in answer:
        total = everything.setdefault(row["condition"], dict.fromkeys(SUMS, 0))
        for name in SUMS:
            total[name] += row[name]
    table.add_section()
    table.add_row("all", *_figures(everything))
    return table


def _figures(rows: Mapping[str, Row]) -> list[str]:
    flights = _sum(rows.values(), "flights")
    means = [_ratio(rows.get(name, {}), "delay_min", "flights") for name in CONDITIONS]
    late = _sum(rows.values(), "late") / flights if flights else 0
    return [f"{flights:,}", *means, f"{late:.0%}"]


def _ratio(row: Row, part: str, whole: str) -> str:
    return f"{row[part] / row[whole]:.1f}" if row.get(whole) else "-"


def _sum(rows: object, name: str) -> int:
    return sum(row[name] for row in rows)  # type: ignore[attr-defined]
