"""
What a query counts, as Spark's observed metrics.

Each task ends with an envelope for each of its counts that is not zero; Spark adds them up where it
observes the last stage, and tells them with the progress of the micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from asyncstream.operators.base import Operator
from asyncstream.plan import OperatorStep

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ("OBSERVED", "ObservedCount", "counts_of", "grown", "observed", "tally")

OBSERVED = -2
"""The route of envelopes with counts: the group is the number of the count, and `count` what it is."""


class ObservedCount(NamedTuple):
    """
    Something that is counted.

    Attributes:
        step: of which step.
        name: by which name the step itself tells it.
        is_peak: over tasks it is the largest, not the sum.
    """

    step: str
    name: str
    is_peak: bool = False

    def __str__(self) -> str:
        return f"{self.step}.{self.name}"


def counts_of(steps: Iterable[OperatorStep]) -> tuple[ObservedCount, ...]:
    """What is counted of these steps."""
    return tuple(
        ObservedCount(step.name, name, is_peak)
        for step in steps
        for is_peak, names in ((False, step.spec.counters), (True, step.spec.peaks))
        for name in names
    )


def tally(counts: Sequence[ObservedCount], operators: Mapping[str, Operator]) -> list[int]:
    """Where the counts of these operators stand; 0 for those of others."""
    steps = {count.step for count in counts}
    metrics = {name: operator.metrics() for name, operator in operators.items() if name in steps}
    return [metrics.get(count.step, {}).get(count.name, 0) for count in counts]


def grown(
    counts: Sequence[ObservedCount], operators: Mapping[str, Operator], before: Sequence[int]
) -> dict[int, int]:
    """By how much each count is more than it was before, by its number, as far as it is."""
    now = tally(counts, operators)
    return {number: more for number, count in enumerate(now) if (more := count - before[number])}


def observed(counts: Sequence[ObservedCount], outputs: Mapping[str, int]) -> list[Column]:
    """The columns to observe envelopes by, with the routes to the `outputs` by name."""
    from pyspark.sql import functions as columns

    found = []
    for number, count in enumerate(counts):
        mine = columns.when(columns.expr(f"route = {OBSERVED} AND `group` = {number}"), columns.col("count"))
        whole = columns.max(mine) if count.is_peak else columns.sum(mine)
        found.append(columns.coalesce(whole, columns.lit(0)).alias(str(count)))
    for name, route in outputs.items():
        rows = columns.sum(columns.when(columns.expr(f"route = {route}"), columns.col("count")))
        found.append(columns.coalesce(rows, columns.lit(0)).alias(f"{name}.rows"))
    return found
