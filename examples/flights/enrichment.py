"""
The pipeline of the demo: flights as they are reported, each with its plane, its destination and the weather.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from asyncstream import BoundedOutOfOrderness, FailedCall, Pipeline, Stream
from asyncstream.connectors.http import HttpLookup
from examples.flights.data import Row, departure_ms, hour_ms

__all__ = ("Enriched", "enriched_flights")

IN_FLIGHT = 100
"""Calls of one step that run at once."""

PATIENCE = timedelta(seconds=1)
"""For one request. An answer comes within a few milliseconds, or 0.3 s when the service is slow."""

LONGEST_FLIGHT = timedelta(hours=14)
"""A flight is reported when it lands, so this late after its departure at most."""


@dataclass(frozen=True)
class Enriched:
    """
    Flights on their way through the service.

    Attributes:
        flights: with `plane`, `airport` and `weather`, each None if the service does not know it; in order
            of their report.
        lookups: by step name, for their counters.
    """

    flights: Stream[Row]
    lookups: dict[str, HttpLookup]


def enriched_flights(
    pipeline: Pipeline, flights: Iterable[Row], api: str, given_up: MutableSequence[FailedCall]
) -> Enriched:
    """
    Add the enrichment to a pipeline.

    Args:
        flights: rows of `data.load_flights`.
        api: address of the service.
        given_up: gets the flights for which the service failed at every attempt.
    """
    lookups = {
        # a plane flies several times a day and its data hardly change; so do airports
        "plane": _lookup("plane", lambda flight: f"{api}/planes/{flight['tailnum']}", cache_ttl=3600),
        "airport": _lookup("airport", lambda flight: f"{api}/airports/{flight['dest']}", cache_ttl=3600),
        # the weather at departure is asked for every flight
        "weather": _lookup(
            "weather",
            lambda flight: f"{api}/weather/{flight['origin']}/{hour_ms(departure_ms(flight))}",
        ),
    }
    stream: Stream[Row] = pipeline.source(flights, name="reports").event_time(
        departure_ms, BoundedOutOfOrderness(LONGEST_FLIGHT, every=timedelta(minutes=10)), name="departure"
    )
    failures: list[Stream[FailedCall]] = []
    for name, lookup in lookups.items():
        results = stream.async_map(
            lookup,
            name=name,
            concurrency=IN_FLIGHT,
            timeout=timedelta(seconds=60),
            on_timeout="route",
            on_error="route",
        )
        failures += [results.failed, results.timed_out]
        stream = results
    failures[0].union(*failures[1:], name="failures").to(given_up, name="given up")
    return Enriched(stream, lookups)


def _lookup(field: str, url: Any, cache_ttl: float | None = None) -> HttpLookup:
    return HttpLookup(
        url,
        merge=lambda flight, answer: flight | {field: answer},
        concurrency=IN_FLIGHT,
        timeout=PATIENCE,
        attempts=10,
        cache_ttl=cache_ttl,
    )
