"""A key that does not equal itself, or a part of it, is refused; every other is not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pandas as pd
import pytest

from asyncstream.state import KeyedState, MapDescriptor, MapState, Table
from asyncstream.state.keys import check_key
from asyncstream.state.timer_queue import TimerQueue
from tests.naming import shown


class Place(NamedTuple):
    x: float
    y: float


@dataclass(frozen=True)
class Reading:
    at: float
    noise: float = field(default=0.0, compare=False)


class Cell:
    """Of a class that says itself what is equal."""

    def __init__(self, x: float) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return 1


class Colour(Enum):
    RED = math.nan


NAN = [
    *(math.nan, float("nan"), complex(0, math.nan), Decimal("nan"), np.float64("nan"), np.float32("nan")),
    *(np.datetime64("NaT", "s"), np.timedelta64("NaT", "s"), pd.NaT, pd.NA),
    *(("a", math.nan), (1, ("a", pd.NaT)), frozenset({math.nan}), Place(1, math.nan)),
    *(Reading(math.nan), (Reading(math.nan),), Cell(math.nan)),
]
SOUND = [
    *(None, True, 1, 1.5, -0.0, math.inf, 1j, Decimal("inf"), Decimal(1), "", "nan", b"nan", (), frozenset()),
    *((1, "a"), Place(1, 2), Reading(1.0, math.nan), Cell(1), Colour.RED, int, range(3), UUID(int=1)),
    *(
        np.float64(1),
        np.datetime64(3, "s"),
        pd.Timestamp(0),
        date(2020, 1, 1),
        datetime(2020, 1, 1, tzinfo=UTC),
    ),
]


def map_of_a_key() -> MapState[Any, int]:
    state = KeyedState()
    state.key = "k"
    return state.state(MapDescriptor[Any, int]("entries"))


@pytest.mark.parametrize("key", NAN, ids=shown)
def test_what_does_not_equal_itself_is_refused_by_tables_and_timers(key: Any) -> None:
    with pytest.raises(ValueError, match="a key must equal itself, got"):
        check_key(key)
    with pytest.raises(ValueError, match="a key must equal itself, got"):
        Table("rows").put(None, key, 1)
    timers = TimerQueue()
    with pytest.raises(ValueError, match="a key must equal itself, got"):
        timers.register(1, key)
    timers.register(1, "another")
    with pytest.raises(ValueError, match="a key must equal itself, got"):
        timers.register(1, key)
    assert len(timers) == 1


@pytest.mark.parametrize("key", NAN, ids=shown)
def test_what_does_not_equal_itself_is_refused_by_maps(key: Any) -> None:
    entries = map_of_a_key()
    for _ in range(2):
        with pytest.raises(ValueError, match="a key of a map must equal itself, got"):
            entries.put(key, 1)
        entries.put("another", 1)
    assert len(entries) == 1


@pytest.mark.parametrize("key", SOUND, ids=shown)
def test_every_other_key_is_taken(key: Any) -> None:
    check_key(key)
    rows, timers, entries = Table("rows"), TimerQueue(), map_of_a_key()
    for value in range(2):
        entries.put(key, value)
    assert entries.items() == [(key, 1)]
    rows.put(None, key, 1)
    timers.register(1, key)
    assert rows.get(None, key) == 1
    assert [timer.key for timer in timers] == [key]
