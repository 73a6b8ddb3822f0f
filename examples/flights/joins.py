"""
What was known when a flight left: the weather last reported there, and its plane as it was registered.

Both are streams of versions, each valid until the next of its key, so both are joined as of the departure:
`versions` defines it once, `embedded` and `on_spark` run it, and `direct_versions` asks polars the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from asyncstream import AscendingTimestamps, BoundedOutOfOrderness, Pipeline, Stream
from examples.flights.answer import table
from examples.flights.data import Row, departure_ms, load_planes, load_weather
from examples.flights.enrichment import LONGEST_FLIGHT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = (
    "direct_versions",
    "embedded",
    "on_spark",
    "registrations",
    "versions",
    "weather_reports",
    "missing",
)

STALE: Final = timedelta(hours=1)
"""Weather that was reported longer ago than this is not known any more."""

NAME: Final = ("carrier", "flight", "origin", "scheduled_ms")
"""What tells a flight from all others."""

FLIGHT_COLUMNS = (
    "carrier string, flight bigint, origin string, tailnum string, scheduled_ms bigint, departed_ms bigint"
)
WEATHER_COLUMNS = "origin string, hour_ms bigint"
PLANE_COLUMNS = "tailnum string, manufacturer string, registered_ms bigint"
RESULT_COLUMNS = (
    "carrier string, flight bigint, origin string, scheduled_ms bigint, weather_ms bigint, maker string"
)


def weather_reports() -> list[Row]:
    """All weather of the year in the order of its hours; at some airports some hours are missing."""
    return sorted(load_weather().values(), key=itemgetter("hour_ms", "origin"))


def registrations() -> list[Row]:
    """
    Planes with `registered_ms`, the beginning of the year in which they were built, in this order; that of
    1970 where the year is not known.
    """
    planes = [
        plane | {"registered_ms": int(datetime(plane["year"] or 1970, 1, 1, tzinfo=UTC).timestamp()) * 1000}
        for plane in load_planes().values()
    ]
    return sorted(planes, key=itemgetter("registered_ms", "tailnum"))


def versions(
    pipeline: Pipeline, flights: Iterable[Row], reports: Iterable[Row], planes: Iterable[Row]
) -> Stream[Row]:
    """
    Add the joins to a pipeline: flights with `weather_ms`, the hour of the weather at departure, and `maker`,
    that of the plane; each None if there was none.

    Args:
        flights: rows of `data.load_flights`, as they are reported: out of order by hours.
    """
    departing = (
        pipeline.source(flights, name="flights")
        .event_time(departure_ms, BoundedOutOfOrderness(LONGEST_FLIGHT), name="departure")
        .key_by(itemgetter("origin"))
    )
    weather = (
        pipeline.source(reports, name="weather")
        .event_time(itemgetter("hour_ms"), AscendingTimestamps(), name="hour")
        .key_by(itemgetter("origin"))
    )
    registered = (
        pipeline.source(planes, name="planes")
        .event_time(itemgetter("registered_ms"), AscendingTimestamps(), name="registered")
        .key_by(itemgetter("tailnum"))
    )
    under_way = departing.as_of(weather, name="weather as of departure").map(_with_weather, name="not stale")
    return (
        under_way.key_by(lambda flight: flight["tailnum"] or "none")
        .as_of(registered, name="plane as of departure")
        .map(_with_plane, name="known")
    )


def _with_weather(pair: tuple[Row, Row | None]) -> Row:
    flight, weather = pair
    hour_ms = None if weather is None else weather["hour_ms"]
    if hour_ms is not None and departure_ms(flight) - hour_ms > STALE // timedelta(milliseconds=1):
        hour_ms = None
    return {**flight, "weather_ms": hour_ms}


def _with_plane(pair: tuple[Row, Row | None]) -> Row:
    flight, plane = pair
    known = {name: flight[name] for name in (*NAME, "weather_ms")}
    return known | {"maker": None if plane is None else plane["manufacturer"]}


def embedded(flights: Sequence[Row]) -> list[Row]:
    """The joined flights, in the order of `NAME`."""
    pipeline = Pipeline("as of departure")
    found: list[Row] = []
    versions(pipeline, flights, weather_reports(), registrations()).to(found, name="joined")
    pipeline.run_blocking()
    return _in_order(found)


def on_spark(spark: SparkSession, flights: Sequence[Row]) -> list[Row]:
    """The same, by Spark."""
    pipeline = Pipeline("as of departure")
    versions(pipeline, [], [], []).to([], name="joined")
    inputs = {
        "flights": (flights, FLIGHT_COLUMNS),
        "weather": (weather_reports(), WEATHER_COLUMNS),
        "planes": (registrations(), PLANE_COLUMNS),
    }
    plan = pipeline.on_spark(
        spark,
        inputs={name: _frame(spark, rows, columns) for name, (rows, columns) in inputs.items()},
        outputs={"joined": RESULT_COLUMNS},
    )
    return _in_order(row.asDict() for row in plan["joined"].collect())


def _frame(spark: SparkSession, rows: Iterable[Row], columns: str) -> Any:
    names = [column.split()[0] for column in columns.split(", ")]
    return spark.createDataFrame([tuple(row[name] for name in names) for row in rows], columns)


def direct_versions(month: int, days: int = 31) -> list[Row]:
    """What polars finds, with its own join as of a time, in the tables of the first `days` of a month."""
    scheduled = pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_unit="ms") + pl.duration(
        minutes=pl.col("minute")
    )
    flights = (
        table("flights")
        .filter(pl.col("month") == month, pl.col("day") <= days)
        .with_columns(scheduled=scheduled)
        .with_columns(departure=pl.col("scheduled") + pl.duration(minutes=pl.col("dep_delay").fill_null(0)))
        .sort("departure")
    )
    weather = (
        table("weather")
        .select("origin", hour=pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_unit="ms"))
        .with_columns(weather_ms=pl.col("hour").dt.timestamp("ms"))
        .sort("hour")
    )
    planes = (
        table("planes")
        .select(
            "tailnum",
            pl.date(pl.col("year").fill_null(1970), 1, 1).cast(pl.Datetime("ms")).alias("since"),
            "manufacturer",
        )
        .sort("since")
    )
    joined = (
        flights.join_asof(
            weather,
            left_on="departure",
            right_on="hour",
            by="origin",
            tolerance=STALE,
            check_sortedness=False,
        )
        .join_asof(planes, left_on="departure", right_on="since", by="tailnum", check_sortedness=False)
        .select(
            "carrier",
            "flight",
            "origin",
            pl.col("scheduled").dt.timestamp("ms").alias("scheduled_ms"),
            "weather_ms",
            pl.col("manufacturer").alias("maker"),
        )
    )
    return _in_order(joined.to_dicts())


def missing(joined: Sequence[Row]) -> str:
    """How many flights had no weather, and how many no plane, in words."""
    weather, planes = (sum(row[name] is None for row in joined) for name in ("weather_ms", "maker"))
    return f"{weather:,} flights without weather, {planes:,} without plane"


def _in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=itemgetter(*NAME))
