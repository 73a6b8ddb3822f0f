"""
What it costs to write each finished call into a journal, as a step does by default and with `journal=True`,
whose calls are told a key, too; and to keep track of where elements come from (`effect=True`), which is part
of both. In a job with checkpoints in a directory.

    python -m benchmarks journal

Whole pipelines, source and sink included, against the same one with `journal=False`. The price is the
difference of the least CPU of all turns: with calls of 5 ms, how many end in one pass of the loop, which the
CPU per element hangs on, differs from turn to turn by more than the price.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from asyncstream import Checkpoints, DirectoryStore, Pipeline
from benchmarks.kit import Goal, compare, goals, results, run

__all__ = ("main",)

PRICE_US = 2.5
"""Microseconds of CPU that a journal may cost a call."""

SLOWER = 10.0
"""Percent of the elements per second that it may cost where calls take 5 ms, 200 at once."""

OFF = "neither"
OPTIONS: dict[str, dict[str, Any]] = {
    OFF: {"journal": False},
    "effect": {"journal": False, "effect": True},
    "journal by default": {},
    "journal": {"journal": True},
}

Call = Callable[[int], Awaitable[Any]]


async def at_once(number: int) -> dict[str, Any]:
    return {"order": number, "receipt": f"R{number}", "cents": 1999}


async def after_5_ms(number: int) -> dict[str, Any]:
    await asyncio.sleep(0.005)
    return {"order": number, "receipt": f"R{number}", "cents": 1999}


def charge(call: Call, elements: int, options: dict[str, Any]) -> int:
    """Send so many orders through a step; how many there were."""
    with tempfile.TemporaryDirectory() as folder:
        pipeline = Pipeline("shop")
        orders = pipeline.source(range(elements), name="orders")
        orders.async_map(call, concurrency=200, timeout=60, name="charge", **options).discard()
        run(pipeline.run(checkpoints=Checkpoints(store=DirectoryStore(Path(folder) / "state"), every=30)))
    return elements


def main(quick: bool = False) -> bool:
    reached: list[Goal] = []
    works: tuple[tuple[str, Call, int], ...] = (
        ("calls that do not suspend", at_once, 100_000),
        ("5 ms, 200 at once", after_5_ms, 20_000),
    )
    for title, call, elements in works:
        elements //= 10 if quick else 1
        variants = {name: partial(charge, call, elements, options) for name, options in OPTIONS.items()}
        measured = compare(variants, base=OFF, turns=1 if quick else 11)
        print(results(title, measured, base=OFF), flush=True)
        for name in ("journal by default", "journal"):
            price = measured[name].least_cpu_us - measured[OFF].least_cpu_us
            reached.append(Goal(f"{name}, {title}: CPU µs", price, PRICE_US, at_most=True, form="{:.2f}"))
            if call is after_5_ms:
                slower = (1 - measured[name].wall_ratio) * 100
                what = f"{name}, {title}: fewer elements/s"
                reached.append(Goal(what, slower, SLOWER, at_most=True, form="{:.1f} %"))
    print(goals(reached))
    return all(goal.is_reached() for goal in reached)
