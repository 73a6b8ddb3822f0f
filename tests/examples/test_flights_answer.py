from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import pytest

from examples.flights.answer import accumulate, condition, direct_answer
from examples.flights.data import (
    Row,
    departure_ms,
    hour_ms,
    load_airports,
    load_flights,
    load_planes,
    load_weather,
    reported_ms,
)

JANUARY = 1


@cache
def flights() -> list[Row]:
    return load_flights(JANUARY)


def enriched() -> list[Row]:
    planes, airports, weather = load_planes(), load_airports(), load_weather()
    return [
        flight
        | {
            "plane": planes.get(flight["tailnum"]),
            "airport": airports.get(flight["dest"]),
            "weather": weather.get((flight["origin"], hour_ms(departure_ms(flight)))),
        }
        for flight in flights()
    ]


def test_adding_up_enriched_flights_in_any_order_is_the_direct_answer() -> None:
    shuffled = enriched()
    Random(1).shuffle(shuffled)
    assert accumulate(shuffled) == direct_answer(JANUARY)


def test_every_flight_is_counted_once() -> None:
    answer = accumulate(enriched())
    assert sum(row["flights"] + row["cancelled"] for row in answer) == len(flights()) == 27004
    assert sum(row["cancelled"] for row in answer) == 521


def test_first_flight_of_the_table_is_right() -> None:
    flight = next(each for each in flights() if (each["carrier"], each["flight"]) == ("UA", 1545))
    assert flight == {
        "airline": "United Air Lines Inc.",
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "distance": 1400,
        "dep_delay": 2,
        "scheduled_ms": 1357035300000,  # 2013-01-01 05:15 in New York
        "departed_ms": 1357035420000,
        "arrived_ms": 1357035420000 + 227 * 60_000,
    }


def test_flights_are_in_reported_order_and_out_of_order_in_departure() -> None:
    reported = [reported_ms(flight) for flight in flights()]
    departed = [departure_ms(flight) for flight in flights()]
    assert reported == sorted(reported)
    latest, most_behind = departed[0], 0
    for departure in departed:
        latest = max(latest, departure)
        most_behind = max(most_behind, latest - departure)
    assert 10 * 3_600_000 < most_behind < 11 * 3_600_000


def test_cancelled_and_diverted_flights_are_reported_when_they_are_known() -> None:
    cancelled = [flight for flight in flights() if flight["departed_ms"] is None]
    diverted = [flight for flight in flights() if flight["departed_ms"] and flight["arrived_ms"] is None]
    assert (len(cancelled), len(diverted)) == (521, 85)
    assert all(reported_ms(flight) == flight["scheduled_ms"] for flight in cancelled)
    assert all(reported_ms(flight) == flight["departed_ms"] for flight in diverted)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "clear"),
        ({"wind_mph": 20.0}, "wind"),
        ({"wind_mph": None}, "clear"),
        ({"wind_mph": 30.0, "rain_inch": 0.01}, "rain"),
        ({"rain_inch": 0.01, "visibility_miles": 2.99}, "low visibility"),
        ({"visibility_miles": 3.0}, "clear"),
    ],
)
def test_condition_is_the_worst_of_the_weather(changes: dict[str, Any], expected: str) -> None:
    assert condition({"wind_mph": 5.0, "rain_inch": 0.0, "visibility_miles": 10.0} | changes) == expected


def test_nothing_to_average_has_no_mean() -> None:
    flight = {
        "airline": "A",
        "dep_delay": None,
        "distance": 1,
        "plane": None,
        "airport": None,
        "weather": None,
    }
    (row,) = accumulate([flight])
    assert (row["condition"], row["flights"], row["cancelled"]) == ("unknown", 0, 1)
    assert row["mean_delay_min"] is row["late_share"] is row["mean_seats"] is None
