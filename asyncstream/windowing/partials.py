"""
Elements that have been folded by slice and key on their way to the operator of their windows: less goes to
another process, and less is left to do there. After Flink's local and global aggregation.

Nobody is to tell the difference. So no element may show in a firing: windows fire at their ends only, and all
elements of a slice are late or none is. And an accumulator must be the same however elements are grouped:
counts are, and extremes, and sums of whole numbers, and of floats those that need not be exact. (With one
exception: a sum that is a float, since a checkpoint says so of a column of whole numbers, may come out with
another last digit.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from asyncstream.validation import fields_of
from asyncstream.windowing.aggregates import Aggregates, Count, FieldAggregate, Max, Mean, Min, Ordering, Sum
from asyncstream.windowing.assigners import SlicedWindows, SlidingWindows, sliced
from asyncstream.windowing.functions import AggregateFunction
from asyncstream.windowing.plan import AT_END, WindowPlan

__all__ = ("Folding", "Part", "Partial", "Partials", "folding_of")

Partial: TypeAlias = tuple[int, Any, int, list[Any]]
"""
What is made of the elements of a slice and key: the slice's start, the key, how many elements they are, and
the accumulators, one for each aggregate.
"""

_KINDS: Final = (Count, Sum, Mean, Min, Max)
"""Aggregates that are the same of whole numbers, however these are grouped."""


class Part(NamedTuple):
    """
    One aggregate.

    Attributes:
        kind: Count, Sum, Mean, Min or Max.
        field: of numbers whose order does not matter, or for a count of anything; None: elements are counted.
        exact: whether the order of floats does.
    """

    kind: type[FieldAggregate[Any]]
    field: str | None
    exact: bool


class Folding(NamedTuple):
    """How elements may be folded: by what time, and to which aggregates."""

    slicing: SlicedWindows
    parts: tuple[Part, ...]


class Partials(Sequence[Partial]):
    """
    Folded elements, in the order in which the first of each came.

    Args:
        starts: of their slices.
        keys: of them.
        counts: how many elements they are.
        accumulators: of them, in a column for each aggregate.
    """

    def __init__(
        self,
        starts: Sequence[int],
        keys: Sequence[Any],
        counts: Sequence[int],
        accumulators: Sequence[Sequence[Any]],
    ) -> None:
        self._starts, self._keys, self._counts, self._accumulators = starts, keys, counts, accumulators

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, place: Any) -> Any:
        starts, keys, counts = self._starts[place], self._keys[place], self._counts[place]
        accumulators = [column[place] for column in self._accumulators]
        if isinstance(place, slice):
            return Partials(starts, keys, counts, accumulators)
        return starts, keys, counts, accumulators

    def __iter__(self) -> Iterator[Partial]:
        accumulators = map(list, zip(*self._accumulators, strict=True))
        return zip(self._starts, self._keys, self._counts, accumulators, strict=True)


def folding_of(plan: WindowPlan) -> Folding | None:
    """How elements may be folded before the operator of this plan has them; None: they may not."""
    assigner, aggregate = sliced(plan.assigner), plan.folding
    if assigner is None or plan.kept != "panes" or plan.firings != AT_END or plan.allowed_lateness_ms:
        return None
    if isinstance(assigner, SlidingWindows) and assigner.slide_ms > assigner.size_ms:
        return None  # what comes between two windows is late or not by itself
    each = aggregate.parts.values() if type(aggregate) is Aggregates else (aggregate,)
    parts = tuple(part for one in each if (part := _part_of(one)) is not None)
    return Folding(assigner, parts) if len(parts) == len(each) else None


def _part_of(aggregate: AggregateFunction[Any, Any]) -> Part | None:
    kind = type(aggregate)
    if not isinstance(aggregate, _KINDS) or kind not in _KINDS:  # a subclass may do otherwise
        return None
    if aggregate.of is None:
        return Part(kind, None, exact=True) if kind is Count else None
    field = fields_of(aggregate.value_of)
    exact = not isinstance(aggregate, Ordering) or aggregate.exact
    return Part(kind, field, exact) if isinstance(field, str) else None
