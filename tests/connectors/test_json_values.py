"""JSON is read as it was written, whatever the size of its numbers, and as orjson reads it otherwise."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncstream.connectors.json_values import LEVELS, are_for_loads, loads

WHOLE = st.integers() | st.integers(-(2**70), 2**70) | st.integers(-(10**25), 10**25)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | WHOLE
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
@example(-(2**63) - 1)
@example(2**64)
@example({"": [0.1, {"a": 10**300}]})
@example([10**308, -(10**309), {"\u0001" + "1" * 400: 10**4000, "b": 0.5}])
def test_values_come_back(value: Any) -> None:
    text = json.dumps(value)
    for data in (text, text.encode(), json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")):
        found = loads(data)
        assert repr(found) == repr(json.loads(data))


@pytest.mark.parametrize(
    ("data", "is_long"),
    [
        (b"1234567890123456789", True),
        (b"[-1234567890123456789]", True),
        (b"0.0001234567890123456", False),
        (b"0." + b"1" * 60, False),
        (b"[0." + b"1" * 60 + b",1234567890123456789]", True),
        (b"123456789012345678", False),
        (b'"123", 456', False),
    ],
)
def test_long_numbers_are_told_from_fractions(data: bytes, is_long: bool) -> None:
    assert are_for_loads(data, [data]) == is_long


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
@pytest.mark.parametrize("before", [0, 800, 900, 1000, 1100])
def test_deep_nesting_is_found_among_others(begin: str, end: str, before: int) -> None:
    """Wherever it begins and ends, of what is looked at together."""
    deep = (begin * (LEVELS + 1) + "1" + end * (LEVELS + 1)).encode()
    for padding in range(0, 1000, 100):
        texts = [b"x" * before, deep + b" " * padding, b"z" * 900]
        assert are_for_loads(b"\n".join(texts), texts)
    flat = json.dumps({"a": [1, {"b": 2}], "c": "x" * 400}).encode()
    assert not are_for_loads(b"\n".join([flat] * 1000), [flat] * 1000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"NaN",
        b"Infinity",
        b"[NaN, " + b"1" * 400 + b"]",
        b"1" * 400 + b".5",
        b"1" * 400 + b"e1",
        b"1e+" + b"1" * 400,
        b"1" * 5000,
        b"0" * 400,
        b"[" * 2000 + b"]" * 2000,
        b"[" * 1000 + b"1" * 20 + b"]" * 1000,
        b'"\\ud800"',
        b"\xff",
        "\ud800" + "1" * 400,
    ],
)
def test_what_is_no_json_is_refused(data: bytes | str) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        loads(data)


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"$tag": ', "}")])
def test_what_is_nested_deeper_than_anything_is_kept_is_refused(begin: str, end: str) -> None:
    deepest = begin * LEVELS + "1" + end * LEVELS
    assert loads(deepest) == loads(deepest.encode()) == orjson.loads(deepest)
    for deeper in (f"[{deepest}]", f"[1, [2], {deepest}]".encode()):
        with pytest.raises(orjson.JSONDecodeError, match="nested more than 100 levels deep"):
            loads(deeper)


def test_brackets_side_by_side_and_in_texts_are_no_levels() -> None:
    values = [[1]] * 1000 + ["[" * 300]
    assert loads(json.dumps(values)) == values
