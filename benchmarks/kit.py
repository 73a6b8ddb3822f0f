"""
How everything here is measured: variants take turns in one process, and ratios are taken within a turn.

Machines are shared and noisy. CPU time of the process hardly sees the neighbours, and whatever slows a turn
down slows all of its variants, so a ratio of one turn holds where an absolute figure does not. Reported are
medians over the turns.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from asyncstream.elements import Timestamps
from asyncstream.operators.base import Operator

__all__ = ("Counter", "Goal", "Result", "compare", "goals", "results", "run", "table", "use_loop")

T = TypeVar("T")


class Counter(Operator):
    """Stands at the end of operators, and counts what arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self.count += len(values)

    def advance_watermark(self, timestamp: int) -> None:
        pass


@dataclass(frozen=True)
class Result:
    """
    Medians of one variant.

    Attributes:
        cpu_us: CPU microseconds per element.
        least_cpu_us: the same, but the least of all turns.
        per_second: elements per second of wall time.
        cpu_ratio: CPU of the base over this one's: above 1 is cheaper than the base.
        wall_ratio: elements per second over the base's: above 1 is faster.
    """

    cpu_us: float
    least_cpu_us: float
    per_second: float
    cpu_ratio: float
    wall_ratio: float


def compare(
    variants: Mapping[str, Callable[[], T]],
    *,
    base: str,
    turns: int = 5,
    count: Callable[[T], int] = int,  # type: ignore[assignment]
) -> dict[str, Result]:
    """
    Run every variant once per turn, in rotating order, after one turn that does not count.

    Args:
        variants: by name; each runs the work and returns how many elements it handled.
        base: the one that the others are compared with.
        turns: how many turns count; at least 1.
        count: makes the number of elements from what a variant returned, if that is something else. The
            clock does not run meanwhile, so this is where results are checked.
    """
    names = list(variants)
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for turn in range(turns + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            gc.collect()
            cpu, wall = time.process_time(), time.perf_counter()
            outcome = variants[name]()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            elements = count(outcome)
            if turn:
                seen[name].append((cpu / elements, wall / elements))
    return {
        name: Result(
            cpu_us=statistics.median(cpu for cpu, _ in runs) * 1e6,
            least_cpu_us=min(cpu for cpu, _ in runs) * 1e6,
            per_second=1 / statistics.median(wall for _, wall in runs),
            cpu_ratio=statistics.median(b[0] / r[0] for b, r in zip(seen[base], runs, strict=True)),
            wall_ratio=statistics.median(b[1] / r[1] for b, r in zip(seen[base], runs, strict=True)),
        )
        for name, runs in seen.items()
    }


_loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None


def use_loop(name: str) -> None:
    """From now on, `run` uses this event loop: "asyncio" or "uvloop"."""
    global _loop_factory
    _loop_factory = None if name == "asyncio" else import_module(name).new_event_loop


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a fresh event loop."""
    with asyncio.Runner(loop_factory=_loop_factory) as runner:
        return runner.run(work)


# ------------------------------------------------------------------ what is printed


@dataclass(frozen=True)
class Goal:
    """
    What must be reached, and what was.

    Attributes:
        what: the workload and the figure.
        measured: the figure.
        bound: what it must not be below; above, if `at_most`.
        form: how the two are written.
    """

    what: str
    measured: float
    bound: float
    at_most: bool = False
    form: str = "{:.2f}×"

    def is_reached(self) -> bool:
        return self.measured <= self.bound if self.at_most else self.measured >= self.bound


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; numbers are written as they come."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)


def results(title: str, measured: Mapping[str, Result], *, base: str) -> str:
    """A Markdown section with one row for each variant; × is how many times better than the base."""
    rows = [
        (
            f"{name} (base)" if name == base else name,
            f"{result.cpu_us:,.2f}",
            f"{result.cpu_ratio:.2f}×",
            f"{result.per_second:,.0f}",
            f"{result.wall_ratio:.2f}×",
        )
        for name, result in measured.items()
    ]
    head = ("", "CPU µs per element", "cheaper", "elements/s", "faster")
    return f"#### {title}\n\n{table(head, rows)}\n"


def goals(reached: Sequence[Goal]) -> str:
    """A Markdown table of what had to be reached."""
    rows = [
        (
            goal.what,
            ("≤ " if goal.at_most else "≥ ") + goal.form.format(goal.bound),
            goal.form.format(goal.measured),
            "yes" if goal.is_reached() else "**no**",
        )
        for goal in reached
    ]
    return table(("goal", "bound", "measured", "reached"), rows) + "\n"
