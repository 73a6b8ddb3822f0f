"""The analysis of the demo, without the service: it finds what polars finds in the tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from operator import itemgetter
from random import Random

import pytest

from asyncstream import BoundedOutOfOrderness, Pipeline
from examples.flights.__main__ import compare
from examples.flights.analysis import Findings, Silence, Silences, analyse
from examples.flights.answer_windows import Flights, hour_rows
from examples.flights.data import Row, departure_ms, load_flights, load_planes

HOUR_MS = 3_600_000

JULY = (7, 6)
"""The first six days of the month that the demo takes, which have silences that end."""


@cache
def enriched(month: int, days: int) -> list[Row]:
    planes = load_planes()
    return [flight | {"plane": planes.get(flight["tailnum"])} for flight in load_flights(month, days)]


def findings(flights: Sequence[Row]) -> Findings:
    pipeline = Pipeline()
    stream = pipeline.source(flights).event_time(departure_ms, BoundedOutOfOrderness(timedelta(hours=14)))
    found = analyse(stream)
    pipeline.run_blocking()
    return found


@cache
def of_july() -> Findings:
    return findings(enriched(*JULY))


@pytest.mark.parametrize(("month", "days"), [(1, 2), (4, 8), JULY, (12, 1)])
def test_everything_that_is_found_equals_what_polars_finds(month: int, days: int) -> None:
    assert set(compare(findings(enriched(month, days)), Flights(month, days)).values()) == {True}


def test_every_flight_is_in_an_hour_or_late() -> None:
    found, flights = of_july(), enriched(*JULY)
    assert sum(row["scheduled"] for row in found.hours.values()) + len(found.late) == len(flights)
    departed = [flight for flight in flights if flight["departed_ms"] is not None]
    assert sum(result.value["legs"] for result in found.rotations) == len(departed)


def test_there_is_something_to_find() -> None:
    found = of_july()
    assert (found.corrections, len(found.late)) == (749, 11)
    assert max(result.value["legs"] for result in found.rotations) == 6
    assert sum(until is not None for until in found.silences.values()) == 170


def test_comparison_notices_a_flight_that_is_lost() -> None:
    flights = enriched(*JULY)
    lost = next(flight for flight in reversed(flights) if flight["departed_ms"] is not None)
    found = findings([flight for flight in flights if flight is not lost])
    assert compare(found, Flights(*JULY)) == {
        "delays by carrier and hour": False,
        "flights too late for their hour": True,
        "rotations of each plane": False,
        "planes not seen for days": False,
    }


def test_corrections_end_where_patient_figures_begin() -> None:
    in_order = sorted(enriched(*JULY), key=departure_ms)
    found = findings(in_order)
    assert (found.corrections, found.late) == (0, [])
    late = {(flight["carrier"], departure_ms(flight) // HOUR_MS * HOUR_MS) for flight in of_july().late}
    differing = [row for row in hour_rows(found.hours) if row not in hour_rows(of_july().hours)]
    assert {(row["carrier"], row["hour_ms"]) for row in differing} == late


def silences(departures_h: Sequence[float]) -> list[Silence]:
    """Of one plane, missed after ten hours, whose departures are reported in the given order."""
    flights = [{"tailnum": "N1", "departed_ms": int(hour * HOUR_MS)} for hour in departures_h]
    pipeline = Pipeline()
    found: list[Silence] = []
    (
        pipeline.source(flights)
        .event_time(itemgetter("departed_ms"), BoundedOutOfOrderness(timedelta(hours=5)))
        .key_by(itemgetter("tailnum"))
        .process(Silences(timedelta(hours=10)))
        .to(found)
    )
    pipeline.run_blocking()
    return found


def of(since_h: float, until_h: float | None = None) -> Silence:
    return Silence("N1", int(since_h * HOUR_MS), None if until_h is None else int(until_h * HOUR_MS))


def test_plane_is_missed_when_patience_ends_and_reported_again_when_it_is_back() -> None:
    assert silences([1, 12]) == [of(1), of(1, 12), of(12)]


def test_plane_that_is_back_after_exactly_the_patience_is_not_missed() -> None:
    assert silences([1, 11]) == [of(11)]
    assert silences([1, 11.001]) == [of(1), of(1, 11.001), of(11.001)]


def test_alarm_that_is_out_of_date_does_not_take_a_departure_of_its_time_with_it() -> None:
    assert silences([1, 6, 11]) == [of(11)]
    assert silences([1, 11, 6]) == [of(11)]


def test_departure_reported_out_of_order_breaks_a_silence() -> None:
    assert silences([1, 12, 9]) == [of(12)]


def test_order_of_reports_makes_no_difference_within_the_bound() -> None:
    hours = [1, 2.5, 4, 16, 17, 19, 40, 43, 44.5]
    expected = silences(hours)
    assert [each for each in expected if each.until_ms is not None] == [of(4, 16), of(19, 40)]
    for seed in range(20):
        dice = Random(seed)
        assert silences(sorted(hours, key=lambda hour: hour + dice.uniform(0, 4.9))) == expected


def test_departure_reported_too_late_is_put_aside() -> None:
    pipeline = Pipeline()
    flights = [{"tailnum": "N1", "departed_ms": hour * HOUR_MS} for hour in (1, 20, 2)]
    found: list[Silence] = []
    late: list[Row] = []
    stream = pipeline.source(flights).event_time(
        itemgetter("departed_ms"), BoundedOutOfOrderness(timedelta(hours=5))
    )
    results = stream.key_by(itemgetter("tailnum")).process(Silences(timedelta(hours=10)))
    results.to(found)
    results.side("late").to(late)
    pipeline.run_blocking()
    assert found == [of(1), of(1, 20), of(20)]
    assert late == [flights[2]]
