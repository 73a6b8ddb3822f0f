"""
What the windows, sessions and timers of `analysis` must find, computed with polars from the tables alone.

Only the lengths of time are shared, which belong to the question. All figures are integers: the two must
agree exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import polars as pl

from asyncstream.windowing import WindowResult
from examples.flights.analysis import LATENESS, PATIENCE, REST, SOON
from examples.flights.answer import table
from examples.flights.data import Row

__all__ = ("Flights", "flight_names", "hour_rows", "rotation_rows", "silence_rows")

FLIGHT = ("carrier", "flight", "origin", "scheduled_ms")
"""What tells a flight from all others."""


class Flights:
    """
    The flights of the first `days` of a month (1 to 12), and what is to be known of them.

    Each method gives plain rows in order, to be compared with what the function of this module makes of a
    finding of the pipeline: `hours` with `hour_rows`, `late` with `flight_names`, and so on.
    """

    def __init__(self, month: int, days: int = 31) -> None:
        scheduled = pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_unit="ms") + pl.duration(
            minutes=pl.col("minute")
        )
        departure = pl.col("scheduled") + pl.duration(minutes=pl.col("dep_delay").fill_null(0))
        reported = departure + pl.duration(
            minutes=pl.when(pl.col("dep_delay").is_not_null()).then(pl.col("air_time")).fill_null(0)
        )
        latest_before = pl.col("departure").cum_max().shift(1)
        hour_end = pl.col("departure").dt.truncate("1h") + timedelta(hours=1)
        flights = (
            table("flights")
            .filter(pl.col("month") == month, pl.col("day") <= days)
            .with_columns(scheduled=scheduled)
            .with_columns(departure=departure, reported=reported)
            .sort("reported", "carrier", "flight", "origin")
            # an hour is closed when a departure has been reported that is so much later than its end
            .with_columns(late=(latest_before >= hour_end + SOON + LATENESS).fill_null(False))
        )
        self._flights = flights.with_columns(
            hour_ms=_ms(pl.col("departure").dt.truncate("1h")),
            scheduled_ms=_ms(pl.col("scheduled")),
            departed_ms=_ms(pl.col("departure")),
        )
        self._departures = self._flights.filter(pl.col("dep_delay").is_not_null()).sort(
            "tailnum", "departed_ms"
        )

    def hours(self) -> list[Row]:
        """Departures of each carrier and hour, without the late flights."""
        return (
            self._flights.filter(~pl.col("late"))
            .group_by("carrier", "hour_ms")
            .agg(
                scheduled=pl.len(),
                departed=pl.col("dep_delay").count(),
                delay_min=_sum("dep_delay"),
                worst_min=pl.col("dep_delay").max(),
            )
            .sort("carrier", "hour_ms")
            .to_dicts()
        )

    def late(self) -> list[tuple[object, ...]]:
        """The flights that were reported when their hour was closed."""
        return sorted(self._flights.filter("late").select(FLIGHT).iter_rows())

    def rotations(self) -> list[Row]:
        """For each plane, the runs of departures with no longer gap than `REST`."""
        begins = pl.col("gap") > _in_ms(REST)
        return (
            self._departures.join(table("planes").select("tailnum", "seats"), on="tailnum", how="left")
            .sort("tailnum", "departed_ms")
            .with_columns(gap=pl.col("departed_ms").diff().over("tailnum"))
            .with_columns(rotation=begins.fill_null(False).cum_sum().over("tailnum"))
            .group_by("tailnum", "rotation")
            .agg(
                legs=pl.len(),
                miles=pl.col("distance").sum(),
                seats=_sum("seats"),
                first_ms=pl.col("departed_ms").min(),
                last_ms=pl.col("departed_ms").max(),
            )
            .drop("rotation")
            .sort("tailnum", "first_ms")
            .to_dicts()
        )

    def silences(self) -> list[Row]:
        """Each departure of a plane that is followed by none within `PATIENCE`, and the next one if any."""
        return (
            self._departures.select(
                "tailnum",
                since_ms="departed_ms",
                until_ms=pl.col("departed_ms").shift(-1).over("tailnum"),
            )
            .filter((pl.col("until_ms") - pl.col("since_ms") > _in_ms(PATIENCE)).fill_null(True))
            .sort("tailnum", "since_ms")
            .to_dicts()
        )


def hour_rows(hours: dict[tuple[str, int], Row]) -> list[Row]:
    """`Findings.hours` as rows of `Flights.hours`."""
    return [
        {"carrier": carrier, "hour_ms": start, **hours[carrier, start]} for carrier, start in sorted(hours)
    ]


def flight_names(flights: Iterable[Row]) -> list[tuple[object, ...]]:
    """`Findings.late` as `Flights.late`."""
    return sorted(tuple(flight[field] for field in FLIGHT) for flight in flights)


def rotation_rows(rotations: Iterable[WindowResult]) -> list[Row]:
    """`Findings.rotations` as rows of `Flights.rotations`."""
    return [
        {"tailnum": result.key, **result.value} for result in sorted(rotations, key=lambda each: each[:2])
    ]


def silence_rows(silences: dict[tuple[str, int], int | None]) -> list[Row]:
    """`Findings.silences` as rows of `Flights.silences`."""
    return [
        {"tailnum": tailnum, "since_ms": since, "until_ms": until}
        for (tailnum, since), until in sorted(silences.items())
    ]


def _sum(column: str) -> pl.Expr:
    """The sum, or null where there is nothing to add (polars' own gives 0)."""
    return pl.when(pl.col(column).count() > 0).then(pl.col(column).sum())


def _ms(instant: pl.Expr) -> pl.Expr:
    return instant.dt.epoch("ms")


def _in_ms(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)
