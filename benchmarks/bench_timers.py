"""
Event-time timers: each element registers one, each timer that fires emits one result; in one thread.

    python benchmarks/bench_timers.py [events]     # 1,000,000 unless told otherwise
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from operator import itemgetter

from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.operators.base import OperatorContext
from asyncstream.operators.emitting import Emitter
from asyncstream.operators.keyed_context import KeyedContext
from asyncstream.operators.process import KeyedProcessFunction, KeyedProcessOperator
from asyncstream.state.timer_queue import TimerQueue
from benchmarks.kit import Counter

BATCH = 1_000
RUNS = 5


class Later(KeyedProcessFunction[tuple[int, int], int]):
    """Emits the time of a timer `delay` ms after each element."""

    def __init__(self, delay: int) -> None:
        self.delay = delay

    def process_element(self, value: tuple[int, int], ctx: KeyedContext, out: Emitter[int]) -> None:
        ctx.register_event_timer(ctx.timestamp + self.delay)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[int]) -> None:
        out(timestamp)


def through_operator(count: int, keys: int, delay: int) -> float:
    """CPU seconds for `count` elements of one per millisecond."""
    state = 42
    batches = []
    for first in range(0, count, BATCH):
        values = []
        for number in range(first, min(first + BATCH, count)):
            state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
            values.append(((state >> 33) % keys, number & 255))
        batches.append((values, list(range(first, first + len(values)))))
    operator = KeyedProcessOperator(itemgetter(0), Later(delay))
    results = operator.out = Counter()
    operator.open(OperatorContext())
    gc.collect()
    gc.freeze()  # the events are not what is measured: keep the collector from walking them
    begun = time.process_time()
    for values, timestamps in batches:
        operator.process_batch(values, timestamps)
        operator.advance_watermark(timestamps[-1])
    operator.advance_watermark(MAX_TIMESTAMP)
    seconds = time.process_time() - begun
    assert results.count == count, results.count
    return seconds


def shared_ends(count: int) -> float:
    """CPU seconds to register 100 times each the timers of 1,000 keys at window ends."""
    queue, fired = TimerQueue(), [0]

    def fire(timestamp: int, key: int, namespace: None) -> None:
        fired[0] += 1

    gc.collect()
    gc.freeze()  # the events are not what is measured: keep the collector from walking them
    begun = time.process_time()
    for number in range(count):
        timestamp = number // 10
        queue.register(timestamp - timestamp % 10_000 + 9_999, number % 1_000)
        if number % 1_000 == 0:
            queue.advance(timestamp - 1, fire)
    queue.advance(MAX_TIMESTAMP, fire)
    seconds = time.process_time() - begun
    assert fired[0] == 1_000 * -(-count // 100_000)
    return seconds


def pushed_ahead(count: int) -> float:
    """CPU seconds to delete and register anew one timer of each key, five seconds ahead."""
    queue = TimerQueue()
    held: dict[int, int] = {}

    def fire(timestamp: int, key: int, namespace: None) -> None:
        del held[key]

    gc.collect()
    gc.freeze()  # the events are not what is measured: keep the collector from walking them
    begun = time.process_time()
    for number in range(count):
        now, key = number * 5, number * 7_919 % 1_000
        if key in held:
            queue.delete(held[key], key)
        held[key] = now + 5_000
        queue.register(now + 5_000, key)
        if number % 40 == 0:
            queue.advance(now - 1, fire)
    queue.advance(MAX_TIMESTAMP, fire)
    seconds = time.process_time() - begun
    assert not held
    return seconds


def main(quick: bool = False) -> None:
    measure(50_000 if quick else 1_000_000)


def measure(count: int) -> None:
    print(f"{count:,} events, CPU time, median of {RUNS}")
    print(f"{'register, fire, emit':36}{'keys':>10}{'M/s':>8}")
    for keys in (1_000, 100_000, 1_000_000):
        for delay in (0, 1_000, 3_600_000):
            seconds = statistics.median(through_operator(count, keys, delay) for _ in range(RUNS))
            print(f"{f'operator, {delay:,} ms ahead':36}{keys:>10,}{count / seconds / 1e6:>8.2f}", flush=True)
    for name, run in (("queue, shared window ends", shared_ends), ("queue, pushed ahead", pushed_ahead)):
        seconds = statistics.median(run(count) for _ in range(RUNS))
        print(f"{name:36}{1_000:>10,}{count / seconds / 1e6:>8.2f}", flush=True)


if __name__ == "__main__":
    measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
