from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from operator import itemgetter
from pathlib import Path
from typing import Any, Generic, Literal, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream import (
    Checkpoints,
    CsvSink,
    CsvSource,
    GlobSource,
    JsonLinesFolderSink,
    MemoryStore,
    ParquetSource,
    PipelineError,
    SplitSource,
    SqliteSink,
)
from asyncstream.guards import AdaptiveConcurrency, CircuitBreaker, Retry
from asyncstream.pipeline.sources_and_sinks import element_type
from asyncstream.validation import (
    choice,
    count,
    duration_ms,
    duration_seconds,
    fields_of,
    function,
    instant_ms,
    is_async_function,
    refuse,
    selector,
    signed_ms,
    text,
)

T = TypeVar("T")


class Held(Generic[T]):
    pass


class Row(TypedDict):
    id: int


def test_refusal_says_what_was_expected_what_came_and_what_to_do() -> None:
    error = refuse("limit", "an integer", "ten", "count for yourself")
    assert isinstance(error, PipelineError)
    assert isinstance(error, ValueError)
    assert str(error) == "limit: expected an integer, got 'ten'; count for yourself"
    assert str(refuse("limit", "an integer", "ten")) == "limit: expected an integer, got 'ten'"


def test_refusal_of_something_huge_stays_short() -> None:
    assert len(str(refuse("limit", "an integer", "x" * 10_000))) < 300


@pytest.mark.parametrize(
    ("value", "seconds"), [(1, 1.0), (0.5, 0.5), (timedelta(minutes=1), 60.0), (1e9, 1e9)]
)
def test_durations(value: Any, seconds: float) -> None:
    assert duration_seconds("t", value) == seconds
    assert duration_ms("t", value) == seconds * 1000


WRONG_DURATIONS = [
    -1, -0.001, timedelta(seconds=-1), math.nan, math.inf, -math.inf, 10**400, 1e300,
    True, "5", None, Fraction(1, 2),
]  # fmt: skip


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("value", WRONG_DURATIONS, ids=lambda value: repr(value)[:20])
def test_wrong_durations_are_refused(value: Any, zero: bool) -> None:
    for check in (duration_seconds, duration_ms):
        with pytest.raises(PipelineError, match=r"^t: expected"):
            check("t", value, zero=zero)


@pytest.mark.parametrize("value", ["10s", "PT5M", None, True, Decimal(10), [5], time(0, 5)])
@pytest.mark.parametrize("check", [duration_seconds, duration_ms, signed_ms])
def test_what_is_no_duration_is_answered_with_what_makes_one(check: Any, value: Any) -> None:
    with pytest.raises(PipelineError) as caught:
        check("t", value)
    assert str(caught.value).endswith("; e.g. timedelta(minutes=5), or 300")


def test_zero_is_a_duration_only_where_it_means_something() -> None:
    assert duration_ms("t", 0, zero=True) == 0
    assert duration_seconds("t", timedelta(0), zero=True) == 0
    for check in (duration_seconds, duration_ms):
        with pytest.raises(PipelineError, match="a positive duration"):
            check("t", 0)


@pytest.mark.parametrize(
    "value", [0.0001, 1.0005, timedelta(microseconds=1), timedelta(seconds=1, microseconds=1)]
)
def test_fractions_of_a_millisecond_are_refused(value: Any) -> None:
    with pytest.raises(PipelineError, match="a whole number of milliseconds"):
        duration_ms("t", value)


@given(st.integers(1, 10**9))
def test_every_whole_millisecond_can_be_given_as_seconds(milliseconds: int) -> None:
    assert duration_ms("t", milliseconds / 1000) == milliseconds
    assert duration_ms("t", timedelta(milliseconds=milliseconds)) == milliseconds


ZONES = [
    UTC,
    timezone(timedelta(hours=5, minutes=45)),
    ZoneInfo("America/New_York"),
    ZoneInfo("Europe/London"),
]


@given(
    st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1)),
    st.sampled_from(ZONES),
    st.integers(0, 1),
)
def test_datetimes_in_any_zone_are_the_same_instant(naive: datetime, zone: Any, fold: int) -> None:
    moment = naive.replace(tzinfo=zone, fold=fold)
    since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    assert instant_ms(moment) == since // timedelta(milliseconds=1)


class Moment(IntEnum):
    NOON = 12


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (-5, -5), (Moment.NOON, 12)])
def test_integers_are_milliseconds(value: int, expected: int) -> None:
    assert instant_ms(value) == expected
    assert type(instant_ms(value)) is int


@pytest.mark.parametrize("value", [1.0, True, "0", None, timedelta(1), datetime(2020, 1, 1)])
def test_what_is_no_instant_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"time zone|a timestamp is an int"):
        instant_ms(value)


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (1.5, "for seconds use int(seconds * 1000)"),
        ("2026-01-01", "for text use int(text), or datetime.fromisoformat(text)"),
        (timedelta(1), "a length of time is added to one, as length // timedelta(milliseconds=1)"),
        (datetime(2026, 1, 1), "if it is in UTC, value.replace(tzinfo=UTC)"),
    ],
)
def test_what_is_often_given_for_an_instant_is_answered_with_what_makes_one(value: Any, advice: str) -> None:
    with pytest.raises(TypeError) as caught:
        instant_ms(value)
    assert str(caught.value).endswith(f"; {advice}")


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30])
def test_what_is_outside_of_time_is_no_instant(value: int) -> None:
    assert instant_ms(2**63 - 1) == 2**63 - 1
    assert instant_ms(-(2**63)) == -(2**63)
    with pytest.raises(ValueError, match="expected a timestamp of 64 bits"):
        instant_ms(value)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1", None])
def test_count_takes_integers_from_the_least_on(value: Any) -> None:
    assert count("n", 1) == 1
    assert count("n", 0, least=0) == 0
    with pytest.raises(PipelineError, match="n: expected an integer of at least 1, got"):
        count("n", value)


def test_count_that_a_float_cannot_hold_is_refused() -> None:
    assert count("n", 2**63 - 1) == 2**63 - 1
    with pytest.raises(PipelineError, match=r"n: expected an integer below 2\*\*63, got"):
        count("n", 10**400)


@pytest.mark.parametrize("value", ["", None, 5, b"x"])
def test_text_is_text(value: Any) -> None:
    assert text("name", "x") == "x"
    with pytest.raises(PipelineError, match="name: expected a non-empty text, got"):
        text("name", value)


@pytest.mark.parametrize("of", [None, int, dict[str, Any], Mapping[str, int], Held[int], Row])
def test_what_type_checkers_take_for_a_class_is_one(of: Any) -> None:
    element_type(of)


@pytest.mark.parametrize("of", ["Order", 5, int | str, Literal["a"], [int]])
def test_what_they_take_for_no_class_is_refused_with_what_does_instead(of: Any) -> None:
    with pytest.raises(
        PipelineError, match=r"^of: expected a class, .*; for another type annotate the stream"
    ):
        element_type(of)


def test_choice_names_the_choices() -> None:
    assert choice("c", "a", ("a", "b")) == "a"
    with pytest.raises(PipelineError, match="c: expected one of 'a', 'b', got 'z'"):
        choice("c", "z", ("a", "b"))


async def coroutine_function(value: int) -> int:
    return value


class Callable_:
    async def __call__(self, value: int) -> int:
        return value


class Holder:
    async def method(self, value: int) -> int:
        return value


ASYNC = [coroutine_function, functools.partial(coroutine_function, 1), Callable_(), Holder().method]


@pytest.mark.parametrize("value", ASYNC)
def test_async_functions_are_known_by_sight(value: Any) -> None:
    assert is_async_function(value)
    with pytest.raises(
        PipelineError, match=r"fn: expected a plain function, .*belongs in an async_map or async_flat_map"
    ):
        function("fn", value)


@pytest.mark.parametrize("value", [len, str, lambda value: value, functools.partial(int, base=2), "x".join])
def test_plain_functions_are_known_by_sight(value: Any) -> None:
    assert not is_async_function(value)
    assert function("fn", value, "element") is value


@pytest.mark.parametrize("value", [None, 5, "len"])
def test_what_cannot_be_called_is_no_function(value: Any) -> None:
    with pytest.raises(PipelineError, match="fn: expected a function, got"):
        function("fn", value)


FITS_NOWHERE = [3.5, -1, object(), math.nan, b"x", [[]]]

TAKERS: dict[str, Any] = {
    "renamed": lambda wrong: Checkpoints(store=MemoryStore(), renamed=wrong),
    "columns": lambda wrong: CsvSource("in.csv", columns=wrong),
    "columns of a sink": lambda wrong: CsvSink("out.csv", columns=wrong),
    "columns of a table": lambda wrong: SqliteSink("out.db", "t", columns=wrong),
    "columns of a folder": lambda wrong: ParquetSource("in", columns=wrong),
    "types": lambda wrong: CsvSource("in.csv", types=wrong),
    "delimiter": lambda wrong: CsvSink("out.csv", delimiter=wrong),
    "partition_by": lambda wrong: JsonLinesFolderSink("out", partition_by=wrong),
    "pattern": lambda wrong: GlobSource(wrong, CsvSource),
    "splits": lambda wrong: SplitSource(CsvSource, wrong),
    "decrease": lambda wrong: AdaptiveConcurrency(coroutine_function, most=9, decrease=wrong),
    "failure_ratio": lambda wrong: CircuitBreaker(coroutine_function, failure_ratio=wrong),
    "wait_exp_base": lambda wrong: Retry(coroutine_function, attempts=2, wait_exp_base=wrong),
}


@pytest.mark.parametrize("wrong", FITS_NOWHERE, ids=lambda wrong: type(wrong).__name__)
@pytest.mark.parametrize("taker", TAKERS)
def test_what_fits_nowhere_is_refused_by_the_name_of_the_argument(taker: str, wrong: Any) -> None:
    if taker == "wait_exp_base" and wrong == 3.5:
        pytest.skip("which is one")
    with pytest.raises(PipelineError, match=rf"{taker.split()[0]}.*: expected"):
        TAKERS[taker](wrong)


def test_half_a_character_cannot_stand_between_fields() -> None:
    with pytest.raises(PipelineError, match="delimiter: expected one character"):
        CsvSource("in.csv", delimiter="\udc00")


def item(row: Any) -> Any:
    """Written out."""
    return row["a"]


def with_default(row: Any, name: str = "b") -> Any:
    return row["a"]


NAME = "a"


@pytest.mark.parametrize(
    ("fn", "fields"),
    [
        (selector("by", "a"), "a"),
        (selector("by", ("a", "b")), ("a", "b")),
        (selector("by", ("a",)), ("a",)),
        (itemgetter("a"), "a"),
        (itemgetter("a", "b"), ("a", "b")),
        (lambda row: row["a"], "a"),
        (item, "a"),
        (with_default, None),
        (itemgetter(0), None),
        (itemgetter("a", 0), None),
        (lambda row: row[0], None),
        (lambda row: row["a"]["b"], None),
        (lambda row: row["a"] + 1, None),
        (lambda row: row[NAME], None),
        (lambda row: row.a, None),
        (lambda *row: row["a"], None),
        (lambda row: (yield row["a"]), None),
        (lambda: {"a": 1}["a"], None),
        (dict, None),
        (functools.partial(item), None),
    ],
)
def test_fields_that_a_function_reads_and_nothing_else(fn: Any, fields: Any) -> None:
    assert fields_of(fn) == fields


def test_fields_are_not_found_where_a_function_reads_by_what_it_has_caught() -> None:
    name = "a"

    def later(row: Any) -> Any:
        return row[caught]

    assert [fields_of(fn) for fn in (lambda row: row[name], later)] == [None, None]
    caught = "b"
    assert later({"b": 1}) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="names of files do not go by the locale")
def test_name_that_the_locale_does_not_know_is_refused_with_a_way_out() -> None:
    program = "from asyncstream import JsonLinesSource; JsonLinesSource('caf\\u00e9')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        timeout=60,
    )
    assert b"no file can be called so in ascii, which this locale asks for; set PYTHONUTF8=1" in done.stderr
