"""
What the async wait operator costs, next to hand-written asyncio and to other libraries.

Our rows are whole pipelines (source, async step, sink) with a timeout and with metrics, unless they say
otherwise; the others have neither.
"""

from __future__ import annotations

from asyncstream.async_wait import OutputOrder
from benchmarks.contenders import (
    Contender,
    asyncstream,
    gathered,
    operator_alone,
    ordered_peers,
    race,
    tasks_ordered,
    tasks_unordered,
    unordered_peers,
    window_of_tasks,
    workers_ordered,
    workers_unordered,
)
from benchmarks.kit import Goal, Result, goals, results, table
from benchmarks.workloads import Work, immediate, replies, sleeping, some

__all__ = ("main",)

PYFLINK_PER_SECOND = {"ordered": 4_558, "unordered": 4_485}
"""PyFlink, immediate calls, capacity 1,000, timeout 60 s: recorded elsewhere, not measured in the run."""

OURS = "asyncstream"
OURS_UNORDERED = "asyncstream, unordered"
TASKS = "semaphore + task"
TASKS_UNORDERED = "semaphore + task, unordered"
POOL = "worker pool, unordered"


class Scale:
    """
    How much is run.

    Args:
        quick: a tenth of the elements, one turn.
    """

    def __init__(self, quick: bool) -> None:
        self._divisor = 10 if quick else 1
        self._quick = quick

    def elements(self, thousands: int) -> int:
        return thousands * 1000 // self._divisor

    def turns(self, count: int = 5) -> int:
        return 1 if self._quick else count


def main(quick: bool = False) -> None:
    scale = Scale(quick)
    reached: list[Goal] = []
    for section in (calls_at_once, five_ms, one_ms, slow_tail, mostly_hits, price_of_timeout):
        reached += section(scale)
    print("#### Goals\n")
    print(goals(reached), flush=True)


def calls_at_once(scale: Scale) -> list[Goal]:
    """Calls that do not suspend: nothing but machinery."""
    many, fewer = scale.elements(300), scale.elements(60)
    ordered: dict[str, tuple[Contender, int]] = {
        TASKS: (tasks_ordered, fewer),
        "window of tasks": (window_of_tasks, fewer),
        "gather": (gathered, fewer),
        **{name: (peer, scale.elements(10)) for name, peer in ordered_peers().items()},
        OURS: (asyncstream(), many),
        "asyncstream, operator alone": (operator_alone(), many),
    }
    unordered: dict[str, tuple[Contender, int]] = {
        TASKS_UNORDERED: (tasks_unordered, fewer),
        **{name: (peer, scale.elements(10)) for name, peer in unordered_peers().items()},
        OURS_UNORDERED: (asyncstream("unordered"), many),
        "asyncstream, unordered, operator alone": (operator_alone(OutputOrder.UNORDERED), many),
    }
    found: list[Goal] = []
    for order, entries, base, ours in (
        ("ordered", ordered, TASKS, OURS),
        ("unordered", unordered, TASKS_UNORDERED, OURS_UNORDERED),
    ):
        measured = race(entries, immediate, 100, base=base, turns=scale.turns(7))
        print(results(f"Calls that answer at once, {order}, concurrency 100", measured, base=base))
        pyflink = PYFLINK_PER_SECOND[order]
        print(f"PyFlink with a timeout, recorded elsewhere: {pyflink:,} elements/s.\n", flush=True)
        found += [
            Goal(f"at once, {order}: CPU, against semaphore + task", measured[ours].cpu_ratio, 6),
            Goal(
                f"at once, {order}: elements/s, against PyFlink with a timeout (recorded elsewhere)",
                measured[ours].per_second / pyflink,
                60,
                form="{:.0f}×",
            ),
            Goal(
                f"at once, {order}, operator alone: elements per CPU second",
                1 / measured[f"{ours}, operator alone"].cpu_us,
                2.5,
                form="{:.2f} M",
            ),
        ]
    return found


def five_ms(scale: Scale) -> list[Goal]:
    """Calls that wait much longer than they cost: do 200 calls really run at once?"""
    n = scale.elements(20)
    entries: dict[str, tuple[Contender, int]] = {
        POOL: (workers_unordered, n),
        "worker pool": (workers_ordered, n),
        TASKS: (tasks_ordered, n),
        "gather": (gathered, n),
        **{name: (peer, n // 2) for name, peer in ordered_peers().items()},
        OURS: (asyncstream(), n),
        OURS_UNORDERED: (asyncstream("unordered"), n),
    }
    measured = race(entries, replies(0.005), 200, base=POOL, turns=scale.turns())
    print(results("Replies after 5 ms, concurrency 200", measured, base=POOL), flush=True)
    found = []
    for name in (OURS, OURS_UNORDERED):
        found += [
            Goal(f"5 ms: elements/s, {name} against a worker pool", measured[name].wall_ratio, 0.95),
            Goal(f"5 ms: CPU, {name} against a worker pool", 1 / measured[name].cpu_ratio, 1.5, at_most=True),
        ]
    return found


def one_ms(scale: Scale) -> list[Goal]:
    """Calls that wait about as long as the machinery takes: 1,000 at once keep one core busy."""
    n = scale.elements(60)
    entries: dict[str, tuple[Contender, int]] = {
        TASKS: (tasks_ordered, n),
        "window of tasks": (window_of_tasks, n),
        **{name: (peer, n // 6) for name, peer in ordered_peers().items()},
        POOL: (workers_unordered, n),
        OURS: (asyncstream(), n),
        OURS_UNORDERED: (asyncstream("unordered"), n),
    }
    measured = race(entries, replies(0.001), 1000, base=TASKS, turns=scale.turns())
    print(results("Replies after 1 ms, concurrency 1,000", measured, base=TASKS), flush=True)
    slept = {name: entries[name] for name in (TASKS, POOL, OURS)}
    timers = race(slept, sleeping(0.001), 1000, base=TASKS, turns=scale.turns(3))
    print(results("The same with `asyncio.sleep`: a timer per call", timers, base=TASKS), flush=True)
    return [Goal("1 ms: CPU, against semaphore + task", measured[OURS].cpu_ratio, 2.5)]


def slow_tail(scale: Scale) -> list[Goal]:
    """One call in a hundred is 20 times slower than the others."""
    n = scale.elements(30)
    entries: dict[str, tuple[Contender, int]] = {
        OURS_UNORDERED: (asyncstream("unordered"), n),
        OURS: (asyncstream(), n),
        "window of tasks": (window_of_tasks, n // 5),
        **{name: (peer, n // 5) for name, peer in ordered_peers().items() if name == "streamable"},
    }
    work = some(0.01, 0.1, others=0.005)
    measured = race(entries, work, 200, base=OURS_UNORDERED, turns=scale.turns())
    title = "1 % of replies after 100 ms, the others after 5 ms, concurrency 200"
    print(results(title, measured, base=OURS_UNORDERED), flush=True)
    return [Goal("slow tail: elements/s, ordered against unordered", measured[OURS].wall_ratio, 0.9)]


def mostly_hits(scale: Scale) -> list[Goal]:
    """A cache that knows nine answers of ten."""
    n = scale.elements(100)
    entries: dict[str, tuple[Contender, int]] = {
        TASKS: (tasks_ordered, n),
        TASKS_UNORDERED: (tasks_unordered, n),
        OURS: (asyncstream(), n),
        OURS_UNORDERED: (asyncstream("unordered"), n),
    }
    measured = race(entries, some(0.1, 0.005), 1000, base=TASKS, turns=scale.turns())
    title = "90 % of calls answer at once, the others after 5 ms, concurrency 1,000"
    print(results(title, measured, base=TASKS), flush=True)
    return [
        Goal("90 % at once: CPU, ordered, against semaphore + task", measured[OURS].cpu_ratio, 5),
        Goal(
            "90 % at once: CPU, unordered, against semaphore + task",
            measured[OURS_UNORDERED].cpu_ratio / measured[TASKS_UNORDERED].cpu_ratio,
            5,
        ),
    ]


def price_of_timeout(scale: Scale) -> list[Goal]:
    """The same pipeline with a timeout that never fires, and without one."""
    rows, found = [], []
    for title, work, concurrency, n in (
        ("at once", immediate, 100, scale.elements(300)),
        ("replies after 1 ms", replies(0.001), 1000, scale.elements(60)),
    ):
        price, share = _price(work, concurrency, n, scale.turns(9))
        rows.append((title, f"{price:.3f}", f"{share:.1%}"))
        what = f"turning the timeout on, {title}"
        if work is immediate:
            found.append(Goal(f"{what}: CPU µs", price, 0.1, at_most=True, form="{:.3f}"))
        else:
            found.append(Goal(f"{what}: CPU", share * 100, 5, at_most=True, form="{:.1f} %"))
    print("#### Turning the timeout on\n")
    print(table(("", "more CPU µs per element", "more CPU"), rows) + "\n", flush=True)
    return found


def _price(work: Work, concurrency: int, n: int, turns: int) -> tuple[float, float]:
    """What a timeout adds: CPU microseconds per element, and as a share."""
    entries: dict[str, tuple[Contender, int]] = {
        "without": (asyncstream(timeout=None), n),
        "with": (asyncstream(timeout=10.0), n),
    }
    measured: dict[str, Result] = race(entries, work, concurrency, base="without", turns=turns)
    share = 1 / measured["with"].cpu_ratio - 1
    return share * measured["without"].cpu_us, share
