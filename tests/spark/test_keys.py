"""How evenly keys are spread over key groups, and groups over Spark's partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta, timezone
from enum import Enum
from fractions import Fraction
from pathlib import PosixPath, PurePosixPath
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.runtime.spark.wire.keys import GROUPING, KeyGroups, group_of, label_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 6_400


@pytest.mark.parametrize("groups", [3, 16, 128, 200])
@pytest.mark.parametrize(
    "keys",
    [
        range(COUNT),
        range(0, 16 * COUNT, 16),
        range(0, 1000 * COUNT, 1000),
        range(1_700_000_040_000, 1_700_000_040_000 + 60_000 * COUNT, 60_000),
        [number << 22 for number in range(COUNT)],
        [-number << 40 for number in range(COUNT)],
        [number / 1024 for number in range(COUNT)],
        [f"{number * 16:08x}" for number in range(COUNT)],
        [(number * 16, 0) for number in range(COUNT)],
        [("shop", number << 20) for number in range(COUNT)],
        [frozenset({number * 64}) for number in range(COUNT)],
        [date(2000, 1, 1) + timedelta(7 * number) for number in range(COUNT)],
    ],
    ids=lambda keys: f"{keys[0]}, {keys[1]}, ...",
)
def test_keys_with_a_pattern_are_spread_evenly(keys: Iterable[Any], groups: int) -> None:
    found = Counter(map(KeyGroups(groups).of, keys))
    even = COUNT / groups
    assert len(found) == groups
    # six standard deviations of what is drawn by lot
    assert max(abs(count - even) for count in found.values()) < 6 * even**0.5


class Suit(Enum):
    HEARTS = "h"
    CLUBS = "c"


class Point:
    """Of a class that says itself what is equal."""

    def __init__(self, x: float, y: list[float]) -> None:
        self.x, self.y = x, y

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.x)


class UUIDOfAClient(UUID):
    """As that of asyncpg."""


def test_enums_and_plain_objects_are_keys() -> None:
    class Local(Enum):
        HEARTS = 1

    groups = KeyGroups(1000)
    assert len({groups.of(key) for key in (*Suit, Local.HEARTS)}) == 3
    assert KeyGroups(1000).of(Point(1, [2])) == KeyGroups(1000).of(Point(1.0, [2.0]))
    assert KeyGroups(1000).of(Point(1, [2])) != KeyGroups(1000).of(Point(2, [1]))
    with pytest.raises(TypeError, match="thing is equal to itself only"):
        groups.of(type("thing", (), {})())


@pytest.mark.parametrize("key", [float("nan"), ("a", float("nan")), pd.NaT], ids=repr)
def test_what_does_not_equal_itself_has_no_group(key: Any) -> None:
    with pytest.raises(ValueError, match="a key must equal itself, got"):
        KeyGroups(1000).of(key)


@pytest.mark.parametrize("key", [{"a": 1}, ["a"], ("a", [1])], ids=repr)
def test_what_has_no_hash_has_no_group_and_is_told_what_to_give_instead(key: Any) -> None:
    told = r"a key must be hashable, got .*: unhashable type: '(dict|list)'; have key_by return a text"
    with pytest.raises(TypeError, match=told):
        KeyGroups(1000).of(key)


@pytest.mark.parametrize(
    "equal",
    [
        [datetime(2024, 10, 27, 2), datetime(2024, 10, 27, 2, fold=1), pd.Timestamp("2024-10-27 02:00")],
        [
            datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
            datetime(2024, 1, 1, tzinfo=UTC),
            pd.Timestamp("2024-01-01", tz="UTC"),
        ],
        [datetime(2024, 11, 3, 1, 30, tzinfo=ZoneInfo("America/New_York"), fold=fold) for fold in (0, 1)],
        [pd.Timestamp(np.datetime64("2024-01-01", unit)) for unit in ("s", "ms", "ns")],
        [timedelta(seconds=5), pd.Timedelta(5, "s"), pd.Timedelta(np.timedelta64(5, "s"))],
        [range(0, 3, 2), range(0, 4, 2)],
        [range(0), range(5, 5)],
        [1, True, 1.0, Fraction(1), complex(1), np.True_],
        [timedelta(1), np.timedelta64(24, "h")],
        [datetime(2024, 1, 1), np.datetime64("2024-01-01", "us")],
        [time(1, tzinfo=timezone(timedelta(hours=1))), time(0, tzinfo=UTC)],
        [time(2), time(2, fold=1)],
        [UUID(int=1), UUIDOfAClient(int=1)],
        [PurePosixPath("a"), PosixPath("a")],
    ],
    ids=str,
)
def test_equal_keys_have_one_group(equal: list[Any]) -> None:
    assert len(set(equal)) == 1
    assert len({KeyGroups(100_000).of(key) for key in equal}) == 1
    assert KeyGroups(100_000).of(pd.Timestamp(5)) != KeyGroups(100_000).of(pd.Timestamp(6))


NOON = datetime(2024, 2, 29, 12)
NANO = pd.Timestamp("2024-02-29T12:00:00.000000001")
KEYS: list[Any] = [
    *("user 7", b"user 7", 0, 7, -1, 2**80, True, 0.5, Fraction(1, 3), None, ()),
    *((1, "a"), ("a", (2, None)), frozenset({1, 2}), range(3)),
    *(
        NOON,
        NOON.replace(tzinfo=UTC),
        NOON.date(),
        timedelta(hours=1),
        time(12, 30),
        time(12, 30, tzinfo=UTC),
    ),
    *(UUID(int=7), PurePosixPath("a/b"), np.bool_(True), NANO),
]
RULE = 2
GROUPS = "107 107 535 487 313 276 465 663 477 631 0 530 613 638 395 610 523 512 399 715 624 188 958 465 204"


def test_keys_have_the_groups_that_they_had_when_streams_began() -> None:
    """State is divided by them. If not, the rule has changed: `GROUPING` goes up, and `RULE`."""
    groups = [KeyGroups(1000).of(key) for key in KEYS]
    assert (GROUPING, " ".join(map(str, groups))) == (RULE, GROUPS)


@given(st.integers(0, 2**31 - 1))
def test_label_leads_back_to_its_group(group: int) -> None:
    label = label_of(group)
    assert -(2**31) <= label < 2**31
    assert group_of(label) == group


def test_spark_finds_the_number_of_the_group_by_its_label(spark: SparkSession) -> None:
    from pyspark.sql import functions as columns
    from pyspark.sql.types import IntegerType, StructField, StructType

    labels = spark.createDataFrame(
        [(label_of(group),) for group in range(200)],
        StructType([StructField("label", IntegerType(), nullable=False)]),
    )
    assert [row[0] for row in labels.select(columns.hash("label")).collect()] == list(range(200))
    shuffled = labels.repartition(200, "label")
    assert len(set(shuffled.select(columns.spark_partition_id()).collect())) == 200
