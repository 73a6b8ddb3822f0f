"""
Refuses what is no timestamp, and tells timestamps that are in another unit than milliseconds.

Seconds taken for milliseconds lie within a few weeks of 1970, all in one window; micro- and nanoseconds lie
so far ahead that no clock comes to them. A number alone does not tell its unit, but few numbers are in
doubt: those that are an instant between 2000 and 2100 in another unit are, as milliseconds, between the
11th of January and the 17th of February 1970, or after the year 31,000. Small numbers, which tests and
simulations like (0, 10, 1000), are none of them, and who counts from 0 begins below them: so the first
timestamp of a stream is looked at, and a warning is enough.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Final

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.errors import safe_repr

__all__ = ("check_timestamp", "other_unit", "warn_of_unit")

log = logging.getLogger("asyncstream.eventtime")

_FIRST: Final = 946_684_800  # 2000-01-01, seconds since the epoch
_LAST: Final = 4_102_444_800  # 2100-01-01

_UNITS: Final = (
    ("seconds", 1, "multiply it by 1000"),
    ("microseconds", 1_000_000, "divide it by 1000, // 1000"),
    ("nanoseconds", 1_000_000_000, "divide it by 1000000, // 1_000_000"),
)


def other_unit(timestamp: int) -> str | None:
    """
    What `timestamp` seems to be in, and what to do about it; None if it may well be milliseconds.

    Args:
        timestamp: what is given as milliseconds since the epoch.
    """
    for unit, per_second, advice in _UNITS:
        seconds = timestamp // per_second
        if _FIRST <= seconds < _LAST:
            day = datetime.fromtimestamp(seconds, UTC).date()
            return f"{timestamp} would be {day} in {unit}; give milliseconds since the epoch: {advice}"
    return None


def warn_of_unit(step: str, timestamp: int) -> None:
    """
    Log a warning if the first timestamp of a stream seems to be in another unit.

    Args:
        step: the name of the step that has read it.
        timestamp: what is given as milliseconds since the epoch.
    """
    found = other_unit(timestamp)
    if found is not None:
        log.warning("step %r: the first timestamp, %s", step, found)


def check_timestamp(what: str, timestamp: int | None) -> int:
    """
    The timestamp of an element, which must have one that can be placed in time.

    Args:
        timestamp: milliseconds since the epoch, or None.
        what: needs it, in words.

    Raises:
        ValueError: if `timestamp` is None, or lies before or after all time.
        TypeError: if it is something else than an int.
    """
    if timestamp is None:
        raise ValueError(f"{what} needs a timestamp; put .event_time(...) before it")
    if type(timestamp) is not int:
        raise TypeError(f"expected an int as timestamp (milliseconds), got {safe_repr(timestamp)}")
    if not MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP:
        raise ValueError(f"expected a timestamp of 64 bits (milliseconds), got {timestamp}")
    return timestamp
