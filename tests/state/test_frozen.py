"""What is held fast stays as it was, whatever happens to the original, and whatever it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.errors import HttpError
from asyncstream.state import freeze

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda parts: st.lists(parts) | st.dictionaries(st.text(), parts) | st.tuples(parts, parts),
    max_leaves=20,
)


@dataclass(slots=True)
class Point:
    x: int
    tags: list[str]


@given(PLAIN)
def test_plain_values_come_back_equal_and_of_the_same_types(value: Any) -> None:
    frozen = freeze(value)
    assert not frozen.is_live
    assert repr(frozen.thaw()) == repr(value)


@pytest.mark.parametrize(
    "value",
    [Point(1, ["a"]), {Decimal("1.5")}, datetime(2026, 1, 1), [Point(1, []), {"when": datetime(2026, 1, 1)}]],
)
def test_values_with_classes_come_back_too(value: Any) -> None:
    frozen = freeze(value)
    assert not frozen.is_live
    assert frozen.thaw() == value


@pytest.mark.parametrize("size", [100_000, 5 * 2**20])
def test_a_class_behind_much_that_is_plain_comes_back_too(size: int) -> None:
    """The copy of plain values is given up when some of it is written."""
    value = [*map(str, range(20_000)), "x" * size, Point(1, ["a"])]
    frozen = freeze(value)
    assert not frozen.is_live
    assert frozen.thaw() == value


def test_later_changes_do_not_show() -> None:
    value = {"a": [1]}
    point = Point(1, ["a"])
    frozen, frozen_point = freeze(value), freeze(point)
    value["a"].append(2)
    point.tags.append("b")
    assert frozen.thaw() == {"a": [1]}
    assert frozen_point.thaw() == Point(1, ["a"])


@pytest.mark.parametrize("value", [lambda: 1, object, HttpError("u", 500, "r", retryable=True), iter(())])
def test_what_cannot_be_copied_for_sure_is_given_as_it_is(value: Any) -> None:
    frozen = freeze([value])
    if frozen.is_live:
        assert frozen.thaw()[0] is value
    else:
        assert frozen.thaw()[0] is value or type(frozen.thaw()[0]) is type(value)


def test_exceptions_are_never_pickled() -> None:
    """Many are pickled without complaint, and fail only when they are read."""
    assert freeze([HttpError("u", 500, "r", retryable=True)]).is_live
