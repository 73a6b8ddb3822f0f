"""
Event-time windows: events per second through one window operator, in one thread.

Every row has the watermark on (the last timestamp, after each 1,000 events), late output connected, and
checks how many results came. With `bytewax` installed the same tumbling windows run there for comparison.

The second table has small changes to a plan, none of which is to cost much: CPU per event, and how many times
that of a loop over the events that counts and sums them by key in a dict, in the same run. Goals are in
microseconds on a machine on which that loop takes 0.12 us, and are held against the loop of this one. With
enough events (1,000,000) there are ten for each key and tumbling window.

    python benchmarks/bench_windows.py [events]     # 1,000,000 unless told otherwise
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from operator import itemgetter
from typing import Any

from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.windowing import (
    AfterWatermark,
    Aggregates,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    Count,
    CountTrigger,
    CumulativeWindows,
    DynamicSessionWindows,
    Last,
    ProcessWindowFunction,
    SessionWindows,
    SlidingWindows,
    Sum,
    TumblingWindows,
    WindowAssigner,
    WindowOperator,
    WindowPlan,
    window_operator,
)
from benchmarks.kit import Counter

BATCH = 1_000
RUNS = 5

EXPECTED = {  # results of 5,000,000 events of 1,000 keys
    "tumbling": 499_978,
    "sliding": 505_000,
    "session": 34_452,
}

LOOP_US = 0.12  # what the loop over a dict takes on the machine that the goals are meant for

Batches = list[tuple[list[tuple[int, Any]], list[int]]]
Maker = Callable[[Callable[[Any], Any], WindowPlan], Operator]


def events(count: int, keys: int) -> Batches:
    """Event i: timestamp i ms, value i & 255, key from a linear congruential generator."""
    batches: Batches = []
    state = 42
    for first in range(0, count, BATCH):
        values = []
        for number in range(first, min(first + BATCH, count)):
            state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
            values.append(((state >> 33) % keys, number & 255))
        batches.append((values, list(range(first, first + len(values)))))
    return batches


def drive(operator: Operator, batches: Batches, single: bool) -> tuple[float, int]:
    """CPU seconds and number of results."""
    results, late = Counter(), Counter()
    operator.out, operator.side = results, {"late": late}
    operator.open(OperatorContext())
    gc.collect()
    gc.freeze()  # the events are not what is measured: keep the collector from walking them
    begun = time.process_time()
    for values, timestamps in batches:
        if single:
            process = operator.process
            for value, timestamp in zip(values, timestamps, strict=True):
                process(value, timestamp)
        else:
            operator.process_batch(values, timestamps)
        operator.advance_watermark(timestamps[-1])
    operator.advance_watermark(MAX_TIMESTAMP)
    seconds = time.process_time() - begun
    operator.close()
    assert late.count == 0
    return seconds, results.count


def main(quick: bool = False) -> None:
    measure(50_000 if quick else 1_000_000)


def measure(count: int) -> None:
    assigners: dict[str, WindowAssigner] = {
        "tumbling": TumblingWindows(timedelta(seconds=10)),
        "sliding": SlidingWindows(timedelta(seconds=60), timedelta(seconds=10)),
        "session": SessionWindows(timedelta(seconds=5)),
    }
    print(f"{count:,} events, CPU time, median of {RUNS}")
    print(f"{'windows':28}{'keys':>10}{'results':>10}{'M events/s':>12}{'M results/s':>12}")
    few, some, many = (events(count, keys) for keys in (1_000, 100_000, 1_000_000))
    floats: Batches = [
        ([(key, value / 10) for key, value in values], timestamps) for values, timestamps in few
    ]
    counted: dict[str, int] = {}
    for name, assigner in assigners.items():
        aggregate = Aggregates(n=Count(), total=Sum(itemgetter(1)))
        plan = WindowPlan(assigner, aggregate=aggregate)
        rows: list[tuple[str, Maker, Batches, int, bool]] = [
            ("general", WindowOperator, few[: max(1, len(few) // 5)], 1_000, False),
            ("chosen", window_operator, few, 1_000, False),
            ("chosen, one by one", window_operator, few, 1_000, True),
            ("chosen", window_operator, some, 100_000, False),
            ("chosen", window_operator, many, 1_000_000, False),
            ("chosen, floats", window_operator, floats, 1_000, False),
        ]
        for label, make, batches, keys, single in rows:
            times, found = zip(
                *(drive(make(itemgetter(0), plan), batches, single) for _ in range(RUNS)), strict=True
            )
            assert len(set(found)) == 1
            median = statistics.median(times)
            speed, results = sum(len(values) for values, _ in batches) / median / 1e6, found[0] / median / 1e6
            print(
                f"{name + ', ' + label:28}{keys:>10,}{found[0]:>10,}{speed:>12.2f}{results:>12.2f}",
                flush=True,
            )
            if label == "chosen" and keys == 1_000:
                counted[name] = found[0]
    if count == 5_000_000:
        assert counted == EXPECTED, counted
    bytewax(few)
    measure_changes(few, RUNS)


class Telling(ProcessWindowFunction[Any]):
    """Emits what its window came to."""

    def process(self, key: Any, contents: Any, ctx: Any, out: Callable[[Any], None]) -> None:
        out((key, ctx.window.start_ms, contents))


class Clearing(Telling):
    """The same, with something to do when a window goes."""

    def clear(self, key: Any, ctx: Any) -> None:
        pass


def changes() -> list[tuple[str, WindowPlan, float]]:
    """Plans with the CPU that they are to take, microseconds per event."""
    second = timedelta(seconds=1)
    tumbling, sliding = TumblingWindows(10 * second), SlidingWindows(60 * second, 10 * second)
    cumulative, uneven = (
        CumulativeWindows(60 * second, 10 * second),
        SlidingWindows(10_800 * second, 3_600 * second + timedelta(milliseconds=1)),
    )
    parts = {"n": Count(), "total": Sum(itemgetter(1))}
    both, three = Aggregates(**parts), Aggregates(**parts, last=Last(itemgetter(1)))
    every = CountTrigger(5)
    tick, clock = ContinuousEventTimeTrigger(10 * second), ContinuousProcessingTimeTrigger(second)
    minute, sessions = TumblingWindows(60 * second), SessionWindows(5 * second)
    return [
        ("tumbling", WindowPlan(tumbling, aggregate=both), 0.5),
        ("  allowed lateness", WindowPlan(tumbling, aggregate=both, allowed_lateness_ms=5_000), 0.5),
        ("  process function", WindowPlan(tumbling, aggregate=both, process=Telling()), 0.5),
        ("  that clears", WindowPlan(tumbling, aggregate=both, process=Clearing()), 0.5),
        ("  late firings", WindowPlan(tumbling, AfterWatermark(late=every), None, 5_000, both), 0.5),
        ("  early, by count", WindowPlan(tumbling, AfterWatermark(early=every), None, 0, both), 0.5),
        ("  early, by the clock", WindowPlan(tumbling, AfterWatermark(early=clock), None, 0, both), 0.5),
        ("  collect()", WindowPlan(tumbling), 0.8),
        ("sliding 60/10", WindowPlan(sliding, aggregate=both), 1.1),
        ("  and Last", WindowPlan(sliding, aggregate=three), 1.3 * 1.1),
        ("  collect()", WindowPlan(sliding), 1.3 * 1.1),
        ("  late firings", WindowPlan(sliding, AfterWatermark(late=every), None, 5_000, both), 1.1),
        ("  early, by count", WindowPlan(sliding, AfterWatermark(early=every), None, 0, both), 5),
        ("  continuous, by 10", WindowPlan(sliding, tick, aggregate=both), 2.5),
        ("600 slices", WindowPlan(SlidingWindows(600 * second, second), aggregate=both), 8),
        ("cumulative 60/10", WindowPlan(cumulative, aggregate=both), 1.2),
        ("  and Last", WindowPlan(cumulative, aggregate=three), 1.2),
        ("3 h by 1 h and 1 ms", WindowPlan(uneven, aggregate=three), 1.1),
        ("count windows of 100", WindowPlan.counting(100, aggregate=both), 0.8),
        ("  collect()", WindowPlan.counting(100), 0.8),
        ("continuous, 60 by 10", WindowPlan(minute, tick, aggregate=both), 0.8),
        ("sessions of 5 s", WindowPlan(sessions, aggregate=both), 0.8),
        ("  early, by count", WindowPlan(sessions, AfterWatermark(early=every), None, 0, both), 1.5),
        ("  early, by time", WindowPlan(sessions, AfterWatermark(early=tick), None, 0, both), 1.5),
        ("  each with its gap", WindowPlan(DynamicSessionWindows(lambda _: 5), aggregate=both), 1.5),
    ]


def loop(batches: Batches) -> float:
    """CPU seconds of counting and summing by key in a dict."""
    key_by, held_by = itemgetter(0), {}  # type: ignore[var-annotated]
    begun = time.process_time()
    for values, timestamps in batches:
        for value, _ in zip(values, timestamps, strict=True):
            key = key_by(value)
            held = held_by.get(key)
            if held is None:
                held = held_by[key] = [0, 0]
            held[0] += 1
            held[1] += value[1]
    return time.process_time() - begun


def measure_changes(batches: Batches, runs: int) -> None:
    count = sum(len(values) for values, _ in batches)
    print(f"\n{'plan':24}{'results':>10}{'us/event':>10}{'x loop':>8}{'goal':>6}")
    for label, plan, goal_us in changes():
        bare, found = [], []
        for _ in range(runs):
            bare.append(loop(batches))
            found.append(drive(window_operator(itemgetter(0), plan), batches, False))
        least = min(seconds for seconds, _ in found)
        ratio, goal = least / min(bare), goal_us / LOOP_US
        figures = f"{found[0][1]:>10,}{least / count * 1e6:>10.2f}{ratio:>8.1f}{goal:>6.1f}"
        print(f"{label:24}{figures}{' reached' if ratio <= goal else ''}", flush=True)


def bytewax(batches: Batches) -> None:
    """The same tumbling windows in Bytewax, if it is installed: count and sum, event time, one worker."""
    try:
        import bytewax.operators as op
        from bytewax.dataflow import Dataflow
        from bytewax.operators import windowing
        from bytewax.testing import TestingSink, TestingSource, run_main
    except ImportError:
        print("bytewax: not installed")
        return
    from datetime import UTC, datetime

    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    taken = batches[: max(1, len(batches) // 10)]
    items = [
        (str(key), (epoch + timedelta(milliseconds=timestamp), value))
        for values, timestamps in taken
        for (key, value), timestamp in zip(values, timestamps, strict=True)
    ]
    found: list[Any] = []
    flow = Dataflow("bench")
    stream = op.input("in", flow, TestingSource(items, batch_size=BATCH))
    clock = windowing.EventClock(itemgetter(0), wait_for_system_duration=timedelta(0))
    windower = windowing.TumblingWindower(length=timedelta(seconds=10), align_to=epoch)
    folded = windowing.fold_window(
        "fold",
        stream,
        clock,
        windower,
        lambda: (0, 0),
        lambda held, item: (held[0] + 1, held[1] + item[1]),
        lambda left, right: (left[0] + right[0], left[1] + right[1]),
    )
    op.output("out", folded.down, TestingSink(found))
    begun = time.process_time()
    run_main(flow)  # type: ignore[no-untyped-call, unused-ignore]
    seconds = time.process_time() - begun
    print(f"{'bytewax, tumbling':28}{1000:>10,}{len(found):>10,}{len(items) / seconds / 1e6:>12.2f}")


if __name__ == "__main__":
    measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
