"""
What crosses the border of a stage: elements that leave one, and what enters the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from asyncstream.elements import MAX_TIMESTAMP, Timestamps
from asyncstream.runtime.spark.stages import Route

__all__ = ("NOW", "Entering", "Leaving", "States")

NOW: Final = MAX_TIMESTAMP - 1
"""Stands for the watermark of the micro-batch under way, which only Spark's state is told."""

States = dict[str, Any]
"""What steps remember, by step name."""


class Leaving(NamedTuple):
    """
    Elements that leave a stage together.

    Attributes:
        watermark: the one that held where they were emitted; `NOW`: this micro-batch's own.
        groups: those that they all go to: that of their key, any number where there is no key, or several of
            what is for all keys.
        watermarks: the one that held for each, in a job that replays them; they never decrease.
    """

    route: Route
    watermark: int
    groups: Sequence[int]
    values: Sequence[Any]
    timestamps: Sequence[int | None]
    watermarks: list[int] | None = None

    def part(self, start: int, end: int) -> Leaving:
        """Some of the elements."""
        values, timestamps = self.values[start:end], self.timestamps[start:end]
        watermarks = self.watermarks and self.watermarks[start:end]
        return self._replace(values=values, timestamps=timestamps, watermarks=watermarks)


class Entering(NamedTuple):
    """
    Elements, or a watermark, or what steps are to remember.

    Attributes:
        routes: the numbers of those that they are for.
        values: the elements, or what they have been folded to.
        watermark: if it is not None, it reaches all routes before the elements.
        transferred: if it is not None, there is nothing else, and `watermark` is the one that was reached;
            comes before all others.
        seen: the one, with that, which the steps had seen.
    """

    routes: tuple[int, ...]
    values: Sequence[Any]
    timestamps: Timestamps = None
    watermark: int | None = None
    transferred: States | None = None
    seen: int | None = None
