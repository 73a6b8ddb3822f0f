"""Histograms count what they are given, and estimate quantiles no worse than their buckets are wide."""

from __future__ import annotations

from bisect import bisect_left
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.metrics import ATTEMPTS, BYTES, SECONDS, Distribution, Histogram, Timings

durations = st.lists(st.floats(0, 400), min_size=1, max_size=50)


@pytest.mark.parametrize("bounds", [SECONDS, BYTES, ATTEMPTS])
def test_bounds_rise(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))


@given(durations)
def test_histogram_counts_each_value_in_its_bucket(values: list[float]) -> None:
    histogram = Histogram(SECONDS)
    for value in values:
        histogram.add(value)
    found = histogram.read()
    assert found.count == len(values)
    assert found.total == pytest.approx(sum(values))
    assert found.cumulative() == [
        (bound, sum(value <= bound for value in values)) for bound in (*SECONDS, inf)
    ]


@given(durations, st.floats(0.01, 1))
def test_quantile_is_in_the_bucket_of_the_value_that_it_stands_for(values: list[float], share: float) -> None:
    histogram = Histogram(SECONDS)
    for value in values:
        histogram.add(value)
    rank = max(1, -(-share * len(values) // 1))
    exact = sorted(values)[min(len(values), int(rank)) - 1]
    place = bisect_left(SECONDS, exact)
    low = 0.0 if place == 0 else SECONDS[place - 1]
    high = SECONDS[min(place, len(SECONDS) - 1)]
    assert low - 1e-9 <= histogram.read().quantile(share) <= high + 1e-9


def test_quantile_of_nothing_is_zero() -> None:
    assert Distribution((1.0,), (0, 0), 0.0).quantile(0.5) == 0.0


def test_quantile_is_spread_evenly_in_its_bucket() -> None:
    assert Distribution((10.0, 20.0), (0, 4, 0), 60.0).quantile(0.5) == 15.0
    assert Distribution((10.0, 20.0), (1, 0, 1), 60.0).quantile(1) == 20.0


@given(durations)
def test_times_since_are_durations_until_now(values: list[float]) -> None:
    since, each = Histogram(SECONDS), Histogram(SECONDS)
    since.add_since([1000.0 - value for value in values], 1000.0)
    for value in values:
        each.add(1000.0 - (1000.0 - value))
    assert since.read().counts == each.read().counts


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 10)), max_size=30))
def test_timings_forget_nothing_and_know_what_is_of_late(steps: list[tuple[float, float]]) -> None:
    timings, now, noted = Timings(), 1000.0, []
    for pause, seconds in steps:
        now += pause
        timings.add(seconds, now)
        noted.append((now, seconds))
    assert timings.read().count == len(steps)
    lately = timings.lately(now).count
    assert sum(at > now - 30 for at, _ in noted) <= lately <= sum(at > now - 90 for at, _ in noted)


def test_timings_of_long_ago_are_not_of_late() -> None:
    timings = Timings()
    timings.add_since([0.0, 0.5], 1.0)
    assert timings.lately(20.0).count == 2
    assert timings.lately(35.0).count == 2
    assert timings.lately(100.0).count == 0
    assert timings.read().count == 2
