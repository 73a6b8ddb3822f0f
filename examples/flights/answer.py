"""
The question of the demo, and its answer by two ways that share nothing but the question.

How late do the airlines leave New York, by weather at departure? And with what planes, how far, to airports
how high? `accumulate` adds up flights that a pipeline has enriched, `direct_answer` joins the tables with
polars. All sums are integers, so the two must agree exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import polars as pl

from examples.flights.data import Row, table_bytes

__all__ = ("accumulate", "condition", "direct_answer", "table")

LATE_MINUTES = 15
LOW_VISIBILITY_MILES = 3.0
WINDY_MPH = 20.0

SUMS = ("flights", "cancelled", "late", "delay_min", "miles", "planes", "seats", "airports", "altitude_ft")


def condition(weather: Row | None) -> str:
    """The weather in a word."""
    if weather is None:
        return "unknown"
    if weather["visibility_miles"] < LOW_VISIBILITY_MILES:
        return "low visibility"
    if weather["rain_inch"] > 0:
        return "rain"
    if weather["wind_mph"] is not None and weather["wind_mph"] >= WINDY_MPH:
        return "wind"
    return "clear"


def accumulate(flights: Iterable[Row]) -> list[Row]:
    """
    The answer from enriched flights, in any order.

    Args:
        flights: rows of `data.load_flights`, each with `plane`, `airport` (its destination) and `weather` (at
            its origin in the hour of `data.departure_ms`), as the service tells them or None if it does not
            know.

    Returns:
        A row for each airline and condition, in order: the sums named in `SUMS` over the flights that left
        (`cancelled` over those that did not), and the means made of them; None where there is nothing to
        take the mean of.
    """
    groups: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(lambda: dict.fromkeys(SUMS, 0))
    for flight in flights:
        sums = groups[flight["airline"], condition(flight["weather"])]
        delay = flight["dep_delay"]
        if delay is None:
            sums["cancelled"] += 1
            continue
        sums["flights"] += 1
        sums["late"] += delay > LATE_MINUTES
        sums["delay_min"] += delay
        sums["miles"] += flight["distance"]
        if flight["plane"] is not None:
            sums["planes"] += 1
            sums["seats"] += flight["plane"]["seats"]
        if flight["airport"] is not None:
            sums["airports"] += 1
            sums["altitude_ft"] += flight["airport"]["altitude_ft"]
    return [
        {"airline": airline, "condition": weather, **sums, **_means(sums)}
        for (airline, weather), sums in sorted(groups.items())
    ]


def _means(sums: dict[str, int]) -> Row:
    def ratio(part: str, whole: str) -> float | None:
        return sums[part] / sums[whole] if sums[whole] else None

    return {
        "mean_delay_min": ratio("delay_min", "flights"),
        "late_share": ratio("late", "flights"),
        "mean_miles": ratio("miles", "flights"),
        "mean_seats": ratio("seats", "planes"),
        "mean_altitude_ft": ratio("altitude_ft", "airports"),
    }


def direct_answer(month: int, days: int = 31) -> list[Row]:
    """The answer for the first `days` of a month (1 to 12), from the tables alone; rows as `accumulate`'s."""
    hour = pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ")
    left = pl.col("dep_delay").is_not_null()
    weather = table("weather").select(
        "origin",
        hour.alias("hour"),
        condition=pl.when(pl.col("visib") < LOW_VISIBILITY_MILES)
        .then(pl.lit("low visibility"))
        .when(pl.col("precip") > 0)
        .then(pl.lit("rain"))
        .when(pl.col("wind_speed") >= WINDY_MPH)
        .then(pl.lit("wind"))
        .otherwise(pl.lit("clear")),
    )
    sums = (
        table("flights")
        .filter(pl.col("month") == month, pl.col("day") <= days)
        .with_columns(
            hour=(
                hour + pl.duration(minutes=pl.col("minute") + pl.col("dep_delay").fill_null(0))
            ).dt.truncate("1h")
        )
        .join(weather, on=["origin", "hour"], how="left")
        .join(table("planes").select("tailnum", "seats"), on="tailnum", how="left")
        .join(table("airports").select(dest="faa", altitude_ft="alt"), on="dest", how="left")
        .join(table("airlines").select("carrier", airline="name"), on="carrier")
        .group_by("airline", pl.col("condition").fill_null("unknown"))
        .agg(
            flights=left.sum(),
            cancelled=(~left).sum(),
            late=(pl.col("dep_delay") > LATE_MINUTES).sum(),
            delay_min=pl.col("dep_delay").sum(),
            miles=pl.col("distance").filter(left).sum(),
            planes=pl.col("seats").filter(left).count(),
            seats=pl.col("seats").filter(left).sum(),
            airports=pl.col("altitude_ft").filter(left).count(),
            altitude_ft=pl.col("altitude_ft").filter(left).sum(),
        )
    )

    def ratio(part: str, whole: str) -> pl.Expr:
        return pl.when(pl.col(whole) > 0).then(pl.col(part) / pl.col(whole))

    return (
        sums.select(
            "airline",
            "condition",
            *SUMS,
            mean_delay_min=ratio("delay_min", "flights"),
            late_share=ratio("late", "flights"),
            mean_miles=ratio("miles", "flights"),
            mean_seats=ratio("seats", "planes"),
            mean_altitude_ft=ratio("altitude_ft", "airports"),
        )
        .sort("airline", "condition")
        .to_dicts()
    )


def table(name: str) -> pl.DataFrame:
    """The table called `name`, as polars reads it."""
    return pl.read_csv(table_bytes(name), null_values=["NA", ""], infer_schema_length=20_000)
