"""
Histograms of durations and sizes, cheap to add to and read on demand.

Counters and gauges are plain numbers that their owners keep and give as `metrics()`; what is here is for what
needs a distribution. Nothing is pushed: exporters read, at the pace at which they are scraped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Final, Literal

__all__ = ("ATTEMPTS", "BYTES", "SECONDS", "Distribution", "Histogram", "Metric", "Point", "Timings")

SECONDS: Final = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0, 120.0, 300.0),
)
"""Bounds for durations, in seconds: those of OpenTelemetry's conventions, and some below and above."""

BYTES: Final = tuple(float(4**power) for power in range(5, 17))
"""Bounds for sizes, in bytes: from 1 KiB to 4 GiB."""

ATTEMPTS: Final = (1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 20.0)
"""Bounds for how often something was tried."""

LATELY: Final = 30.0
"""Seconds after which `Timings` begins a new generation: lately is the present one and the one before."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """
    How values are distributed.

    Attributes:
        bounds: the upper bounds of the buckets but the last, which has none; a value equal to one is below.
        counts: how many values are in each bucket.
        total: the sum of all values.
    """

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float

    @property
    def count(self) -> int:
        """How many values there are."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """Each bound, infinity at last, with how many values are not above it."""
        return list(zip((*self.bounds, inf), accumulate(self.counts), strict=True))

    def quantile(self, share: float) -> float:
        """
        The value that this share of all is not above; estimated, as if values were spread evenly in a bucket.

        Of what is above the last bound no more is known, and that bound is given. 0 if there are no values.
        """
        wanted, lower = share * self.count, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and count >= wanted:
                return lower + (bound - lower) * max(0.0, wanted) / count
            wanted -= count
            lower = bound
        return lower if self.count else 0.0

    def __add__(self, other: Distribution) -> Distribution:
        """Both together; of the same bounds."""
        counts = [one + more for one, more in zip(self.counts, other.counts, strict=True)]
        return Distribution(self.bounds, counts, self.total + other.total)


class Histogram:
    """
    Counts values in buckets.

    Args:
        bounds: as of `Distribution`.
    """

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """One value more, or `count` equal ones."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._total += value * count

    def add_since(self, starts: Iterable[float], now: float) -> None:
        """How long it is from each of these times until now."""
        bounds, counts, total = self._bounds, self._counts, self._total
        last, value, place = None, 0.0, 0
        for start in starts:
            if start is not last:  # what began together was stamped with one object
                last = start
                value = now - start
                place = bisect_left(bounds, value)
            counts[place] += 1
            total += value
        self._total = total

    def read(self) -> Distribution:
        """All values so far."""
        return Distribution(self._bounds, tuple(self._counts), self._total)


class Timings:
    """
    A histogram of durations, in seconds, that also knows which of them are of late.
    """

    __slots__ = ("_before", "_ends", "_present", "_previous")

    def __init__(self) -> None:
        self._present = Histogram(SECONDS)
        self._previous = self._before = self._present.read()  # of one generation, and of all before that
        self._ends = -inf

    def add(self, seconds: float, now: float, count: int = 1) -> None:
        """A duration that ends now, or `count` equal ones."""
        if now >= self._ends:
            self._turn(now)
        self._present.add(seconds, count)

    def add_since(self, starts: Iterable[float], now: float) -> None:
        """Durations from each of these times until now."""
        if now >= self._ends:
            self._turn(now)
        self._present.add_since(starts, now)

    def _turn(self, now: float) -> None:
        """Begin a new generation; after a rest, what was lately is long ago too."""
        self._before += self._previous
        self._previous = self._present.read()
        self._present = Histogram(SECONDS)
        if now >= self._ends + LATELY:
            self._before += self._previous
            self._previous = self._present.read()
        self._ends = now + LATELY

    def read(self) -> Distribution:
        """All durations so far."""
        return self._before + self._previous + self._present.read()

    def lately(self, now: float) -> Distribution:
        """Those of the last half minute to minute."""
        if now >= self._ends:
            self._turn(now)
        return self._previous + self._present.read()


@dataclass(frozen=True, slots=True)
class Point:
    """
    One series of a metric, as it stands.

    Attributes:
        labels: which one: the step's name, say.
        value: the number, or the distribution of a histogram.
    """

    labels: Mapping[str, str]
    value: float | Distribution


@dataclass(frozen=True, slots=True)
class Metric:
    """
    A metric with all its series, for exporters to turn into what their readers call it.

    Attributes:
        name: dotted, without a unit: "asyncstream.call.duration".
        kind: "counter", which only grows, "gauge" or "histogram".
        unit: as in UCUM: "s", "By", "1"; of what is counted, its noun in braces: "{element}".
        help: what it is, in a sentence.
        points: its series; perhaps there are none.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    help: str
    points: tuple[Point, ...]
