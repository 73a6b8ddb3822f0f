"""
How many events a second go through policy windows, one batch of 500 after another.

    python benchmarks/bench_policies.py

CPU time, median of five runs. Windows are emitted and thrown away.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta

from asyncstream.clock import ManualClock
from asyncstream.operators.base import OperatorContext
from asyncstream.windowing.policies import PolicyWindowOperator, policy_window

BATCH = 500
RUNS = 5


def feed(operator: PolicyWindowOperator, stamps: list[int], clock_step_ms: int) -> float:
    """CPU seconds to push one element for each timestamp, moving the clock after each batch."""
    clock = ManualClock()
    operator.open(OperatorContext(clock=clock))
    batches = [stamps[start : start + BATCH] for start in range(0, len(stamps), BATCH)]
    began = time.process_time()
    for number, batch in enumerate(batches):
        operator.process_batch(batch, batch)
        clock.set_ms(number * clock_step_ms)
        operator.advance_clock(clock.now_ms())
    operator.advance_watermark(2**63 - 1)
    return time.process_time() - began


def jittered(count: int, spread_ms: int) -> list[int]:
    """One timestamp a millisecond, each up to `spread_ms` out of place; the same at every run."""
    state = 1
    stamps = []
    for place in range(count):
        state = state * 1_103_515_245 + 12_345 & 0x7FFF_FFFF
        stamps.append(place + (state >> 8) % (spread_ms + 1))
    return stamps


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


CASES: list[tuple[str, Callable[[], PolicyWindowOperator], Callable[[int], list[int]], int]] = [
    (
        "100 events every 10",
        lambda: policy_window(100, 10, time="processing"),
        lambda count: list(range(count)),
        1,
    ),
    (
        "100 events, tumbling",
        lambda: policy_window(100, tumbling=True, time="processing"),
        lambda count: list(range(count)),
        1,
    ),
    (
        "20 s every 10 s, processing time",
        lambda: policy_window(seconds(20), seconds(10), time="processing"),
        lambda count: list(range(count)),
        500,
    ),
    (
        "20 s every 10 s, lag 5 s, in order",
        lambda: policy_window(seconds(20), seconds(10), lag=5),
        lambda count: list(range(count)),
        500,
    ),
    (
        "20 s every 10 s, lag 5 s, 4 s disorder",
        lambda: policy_window(seconds(20), seconds(10), lag=5),
        lambda count: jittered(count, 4_000),
        500,
    ),
    (
        "the same, one watermark for all",
        lambda: policy_window(seconds(20), seconds(10), lag=5),
        lambda count: jittered(count, 4_000),
        0,
    ),
    (
        "20 s every 10 s, lag 5 s, 100 keys",
        lambda: policy_window(seconds(20), seconds(10), lag=5, key_by=lambda value: value % 100),
        lambda count: jittered(count, 4_000),
        500,
    ),
    (
        "100 events every 10, event time, lag 5 s",
        lambda: policy_window(100, 10, lag=5),
        lambda count: jittered(count, 4_000),
        500,
    ),
]


def main(quick: bool = False) -> None:
    run(20_000 if quick else 200_000)


def run(count: int) -> None:
    print(f"{'window':<42}{'events/s':>12}{'µs/event':>10}")
    for name, build, stamps_of, clock_step_ms in CASES:
        stamps = stamps_of(count)
        took = statistics.median(feed(build(), stamps, clock_step_ms) for _ in range(RUNS))
        print(f"{name:<42}{count / took:>12,.0f}{took / count * 1e6:>10.2f}")


if __name__ == "__main__":
    run(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
