"""
Which event times a stream follows, and for which of its inputs.

Spark has one watermark for a whole query, the least of those that are declared on its inputs. So each input
gets one of its own, less its own delay, and the slower of two sources is not late because of the faster one.
Only inputs that are united before they are given event time share it, as they do embedded.

Spark's time begins in 1970, and ours does not. So what Spark is shown is two thousand years later: years of
four digits still, with the same months and weekdays.
"""

from __future__ import annotations

from typing import NamedTuple

from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.eventtime import AscendingTimestamps, BoundedOutOfOrderness, WatermarkStrategy
from asyncstream.plan import Graph, OperatorStep, SourceStep
from asyncstream.validation import duration_ms

__all__ = ("LATEST_MS", "SHIFT_YEARS", "Timed", "before", "delay_ms", "timed_inputs", "to_spark")

SHIFT_YEARS = 2000
SHIFT_MS = SHIFT_YEARS // 400 * 146_097 * 86_400_000
"""What our time is behind the one that Spark is shown."""

LATEST_MS = (2**63 - 1) // 1000 - SHIFT_MS
"""The end of Spark's time, which counts microseconds."""


def to_spark(time_ms: int) -> int:
    """A time as Spark is shown it; 0 is before all others, and not known."""
    return max(min(time_ms, LATEST_MS) + SHIFT_MS, 0)


def before(spark_ms: int) -> int:
    """The watermark that Spark knows as `spark_ms`: its own is not a millisecond below what may come."""
    return spark_ms - SHIFT_MS - 1 if spark_ms > 0 else MIN_TIMESTAMP  # 0: there is none yet


class Timed(NamedTuple):
    """
    Inputs that have a watermark together, and the steps that give them the event time by which keyed steps
    go; with none, no watermark.
    """

    inputs: frozenset[str]
    steps: frozenset[str]


def timed_inputs(graph: Graph) -> list[Timed]:
    """All inputs of a graph, divided by who shares a watermark."""
    sources: dict[str, frozenset[str]] = {}
    clocks: dict[str, frozenset[str]] = {}
    followed: frozenset[str] = frozenset()
    for step in graph:
        before = [one.output.step for one in step.inputs]
        is_source = isinstance(step, SourceStep)
        sources[step.name] = frozenset([step.name] if is_source else []).union(*(sources[s] for s in before))
        clocks[step.name] = frozenset().union(*(clocks[s] for s in before))
        if isinstance(step, OperatorStep):
            if step.is_keyed:
                followed |= clocks[step.name]
            if step.spec.event_time is not None:
                clocks[step.name] = frozenset([step.name])
    found: list[Timed] = []
    for name in sorted(followed):
        mine = Timed(sources[name], frozenset([name]))
        for other in [other for other in found if other.inputs & mine.inputs]:
            found.remove(other)
            mine = Timed(mine.inputs | other.inputs, mine.steps | other.steps)
        found.append(mine)
    timed = frozenset().union(*(each.inputs for each in found))
    rest = [step.name for step in graph if isinstance(step, SourceStep) and step.name not in timed]
    return found + [Timed(frozenset([name]), frozenset()) for name in rest]


def delay_ms(strategy: WatermarkStrategy) -> int | None:
    """How far behind the largest timestamp the watermark is, or None if it is found in another way."""
    if type(strategy) is BoundedOutOfOrderness:
        return duration_ms("delay", strategy.delay, zero=True)
    return 0 if type(strategy) is AscendingTimestamps else None
