"""
The interval join: 1,000 keys, and ten partners within bounds for each element; in one thread, in CPU time.

Next to it what a program without a framework would write, a dict of lists for each side, walked for each
element and cleaned as it goes; and, with `bytewax` installed, its join, which knows no bounds of time: it
keeps the last element of each side for a key, and emits both for each that comes.
"""

from __future__ import annotations

import gc
import random
from operator import itemgetter
from typing import Any, TypeAlias

from asyncstream.joins.interval import How, IntervalJoinOperator
from asyncstream.operators.base import OperatorContext
from benchmarks.kit import Counter, Goal, compare, goals, results

__all__ = ("main",)

KEYS = 1_000
BATCH = 500
BOUND_MS = 5_000
"""Each key has an element of each side in about a second, so ten are within five seconds before and after."""

DISORDER_MS = 200

Side: TypeAlias = tuple[list[tuple[int, int]], list[int]]
"""Elements (key, number), and their timestamps."""


def batches(count: int) -> list[tuple[Side, Side, int]]:
    """Batches of both sides, each with the watermark that follows."""
    chance = random.Random(1)

    def side(first: int) -> Side:
        values = [(chance.randrange(KEYS), first + place) for place in range(BATCH)]
        return values, [number - chance.randrange(DISORDER_MS) for _, number in values]

    return [(side(first), side(first), first + BATCH - DISORDER_MS) for first in range(0, count // 2, BATCH)]


def joined(rows: list[tuple[Side, Side, int]], how: How) -> int:
    """How many results the operator gives."""
    operator = IntervalJoinOperator((itemgetter(0), itemgetter(0)), -BOUND_MS, BOUND_MS, how)
    counter = operator.out = Counter()
    operator.open(OperatorContext())
    left, right = operator.ports
    for one, other, watermark in rows:
        left.process_batch(*one)
        right.process_batch(*other)
        left.advance_watermark(watermark)
        right.advance_watermark(watermark)
    return counter.count


def by_hand(rows: list[tuple[Side, Side, int]]) -> int:
    """The same pairs, of lists that are walked."""
    buffers: tuple[dict[int, list[Any]], dict[int, list[Any]]] = ({}, {})
    found = 0
    for left, right, watermark in rows:
        for number, (values, timestamps) in enumerate((left, right)):
            mine, theirs = buffers[number], buffers[1 - number]
            results = []
            for value, timestamp in zip(values, timestamps, strict=True):
                own = mine.setdefault(value[0], [])
                own.append((timestamp, value))
                while own[0][0] + BOUND_MS <= watermark - BATCH:
                    del own[0]
                for other_time, other in theirs.get(value[0], ()):
                    if -BOUND_MS <= other_time - timestamp <= BOUND_MS:
                        results.append((max(timestamp, other_time), (value, other)))
            found += len(results)
    return found


def main(quick: bool = False) -> None:
    count = 20_000 if quick else 400_000
    rows = batches(count)
    gc.collect()
    gc.freeze()  # the events are not what is measured: keep the collector from walking them
    pairs = joined(rows, "inner")
    print(f"{count:,} elements, {pairs:,} pairs: {2 * pairs / count:.1f} partners for each\n")
    counted = {
        "a dict of lists, by hand": lambda: (by_hand(rows), count)[1],
        "interval join": lambda: (joined(rows, "inner"), count)[1],
        "interval join, full": lambda: (joined(rows, "full"), count)[1],
    }
    measured = compare(counted, base="a dict of lists, by hand", turns=1 if quick else 5)
    print(results("Interval join", measured, base="a dict of lists, by hand"))
    per_second = 1e6 / measured["interval join"].cpu_us
    print(goals([Goal("interval join, elements per second of CPU", per_second, 400_000, form="{:,.0f}")]))
    bytewax(rows, count)


def bytewax(rows: list[tuple[Side, Side, int]], count: int) -> None:
    """Bytewax's join of the same elements, if it is installed; one worker."""
    try:
        import bytewax.operators as op
        from bytewax.dataflow import Dataflow
        from bytewax.testing import TestingSink, TestingSource, run_main
    except ImportError:
        print("bytewax: not installed")
        return
    import time

    sides = [
        [(str(key), number) for values, _ in side for key, number in values]
        for side in zip(*((left, right) for left, right, _ in rows), strict=True)
    ]
    found: list[Any] = []
    flow = Dataflow("join")
    left = op.input("left", flow, TestingSource(sides[0], BATCH))
    right = op.input("right", flow, TestingSource(sides[1], BATCH))
    op.output("out", op.join("join", left, right, emit_mode="running"), TestingSink(found))
    begun = time.process_time()
    run_main(flow)
    seconds = time.process_time() - begun
    print(f"bytewax, join of the last of each side: {count / seconds:,.0f} elements per second of CPU")


if __name__ == "__main__":
    main()
