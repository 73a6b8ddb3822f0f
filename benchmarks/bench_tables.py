"""
Keyed tables: de-duplication, rankings, rolling results, patterns, and lookups in a warm table.

Each is driven as one operator, in batches of 1,000, in CPU time of one thread, next to the same by a
hand-written dict, which knows nothing of checkpoints, time to live or keys that go elsewhere. With `bytewax`
installed, de-duplication runs there too, as a `stateful_map` and a filter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from asyncstream import LookupTable, Pattern
from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.keyed import Best, DeduplicateSpec, MatchingSpec, Ranks, RollingSpec, TopSpec
from asyncstream.lookup import Joined, ReadLookupSpec, StreamLookupSpec
from asyncstream.operators.base import OperatorContext
from asyncstream.operators.spec import Spec
from asyncstream.state import TimeToLive
from benchmarks.kit import Counter, Goal, compare, goals, results

__all__ = ("main",)

EVENTS = 1_000_000
BATCH = 1_000
KEYS = 1_000

key_of = itemgetter(0)
value_of = itemgetter(1)

Event = tuple[int, int]
Batches = list[tuple[list[Event], list[int]]]


def events(count: int, keys: int) -> Batches:
    """Key from a linear congruential generator, value and timestamp the number."""
    batches: Batches = []
    state = 42
    for first in range(0, count, BATCH):
        values = []
        for number in range(first, min(first + BATCH, count)):
            state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
            values.append(((state >> 33) % keys, number))
        batches.append((values, list(range(first, first + len(values)))))
    return batches


def driven(spec: Spec, batches: Batches, prepare: Callable[[Any], object] | None = None) -> Callable[[], int]:
    """Runs an operator over all batches, each with its watermark; gives how many elements that were."""

    def work() -> int:
        operator, end = spec.build(), Counter()
        operator.out = end
        operator.open(OperatorContext())
        if prepare is not None:
            prepare(operator)
        for values, timestamps in batches:
            operator.process_batch(values, timestamps)
            operator.advance_watermark(timestamps[-1])
        operator.advance_watermark(MAX_TIMESTAMP)
        if not end.count:
            raise AssertionError("nothing came out")
        return sum(len(values) for values, _ in batches)

    return work


def by_hand(step: Callable[[dict[Any, Any], Event], Any], batches: Batches) -> Callable[[], int]:
    """A loop over a dict; what the step gives that is not None comes out."""

    def work() -> int:
        held: dict[Any, Any] = {}
        out = 0
        for values, _ in batches:
            found = [result for value in values if (result := step(held, value)) is not None]
            out += len(found)
        if not out:
            raise AssertionError("nothing came out")
        return sum(len(values) for values, _ in batches)

    return work


def first(held: dict[Any, Any], event: Event) -> Any:
    if event[0] in held:
        return None
    held[event[0]] = True
    return event


def largest(held: dict[Any, Any], event: Event) -> Any:
    best = held.get(event[0])
    if best is None or best[1] < event[1]:
        held[event[0]] = best = event
    return best


def looked_up(rows: dict[int, Any]) -> Callable[[dict[Any, Any], Event], Any]:
    return lambda held, event: (event, rows.get(event[0]))


def bytewax(batches: Batches) -> Callable[[], int] | None:
    """De-duplication there; None if it is not installed."""
    try:
        import bytewax.operators as op
        from bytewax.dataflow import Dataflow
        from bytewax.testing import TestingSink, TestingSource, run_main
    except ImportError:
        return None
    items = [(str(key), number) for values, _ in batches for key, number in values]

    def work() -> int:
        found: list[Any] = []
        flow = Dataflow("first")
        keyed = op.input("in", flow, TestingSource(items, BATCH))
        seen = op.stateful_map("seen", keyed, lambda state, value: (True, None if state else value))
        op.output("out", op.filter_value("new", seen, lambda value: value is not None), TestingSink(found))
        run_main(flow)
        return len(items)

    return work


def main(quick: bool = False) -> None:
    count, turns = (EVENTS // 20, 1) if quick else (EVENTS, 3)
    few, many = events(count, KEYS), events(count, 2 * count)
    rows = {key: {"key": key} for key in range(KEYS)}
    hour = TimeToLive(3600)
    reached: list[Goal] = []

    async def load() -> Any:
        return rows

    def warm(operator: Any) -> None:
        asyncio.run(operator.start())

    def fill(operator: Any) -> None:
        operator.port(1).process_batch(list(rows.values()), None)

    def race(title: str, base: str, variants: dict[str, Callable[[], int]], asked: dict[str, float]) -> None:
        measured = compare(variants, base=base, turns=turns)
        print(results(title, measured, base=base), "\n")
        for name, least in asked.items():
            reached.append(
                Goal(f"{title}, {name}: a second of CPU", 1 / measured[name].cpu_us, least, form="{:.2f} M")
            )

    for title, batches in ((f"first of {KEYS:,} keys", few), ("first, eight in ten are new", many)):
        variants = {
            "dict": by_hand(first, batches),
            "deduplicate": driven(DeduplicateSpec(key_of), batches),
            "within an hour": driven(DeduplicateSpec(key_of, within=hour), batches),
        }
        if (other := bytewax(batches[: len(batches) // 10])) is None:
            print("bytewax: not installed")
        else:
            variants["bytewax"] = other
        race(title, "dict", variants, {"deduplicate": 0.8, "within an hour": 0.8})
    looked = Joined(key_of)
    variants = {
        "dict": by_hand(looked_up(rows), few),
        "a table that is read": driven(ReadLookupSpec(LookupTable.from_call(load), looked), few, warm),
        "a stream": driven(StreamLookupSpec(looked, itemgetter("key")), few, fill),
    }
    race("lookup", "dict", variants, {"a table that is read": 1.5, "a stream": 1.5})
    few = few[: len(few) // 10]
    pattern: Pattern[Event] = Pattern.begin("a", lambda event: event[1] % 10 == 0)
    pattern = pattern.followed_by("b", lambda event: event[1] % 10 == 1).within(1)
    variants = {
        "dict": by_hand(largest, few),
        "max_by": driven(RollingSpec(key_of, Best(value_of, largest=True)), few),
        "max_by, ttl": driven(RollingSpec(key_of, Best(value_of, largest=True), hour), few),
        "last by event time": driven(DeduplicateSpec(key_of, "last", "event_time"), few),
        "top 10": driven(TopSpec(key_of, Ranks(lambda event: event[1] % 7919, "descending", 1, 10)), few),
        "pattern": driven(MatchingSpec(key_of, pattern), few),
    }
    race("rolling", "dict", variants, {})
    print(goals(reached))


if __name__ == "__main__":
    main()
