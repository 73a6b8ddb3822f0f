"""What tells for which element a call was made."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream.checkpoint.journal_checks import check, checks
from asyncstream.codec import codec

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary()
)
values = st.recursive(
    scalars,
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.tuples(parts, parts)
        | st.dictionaries(st.text(max_size=3), parts, max_size=3)
        | st.frozensets(scalars, max_size=3)
    ),
    max_leaves=8,
)


@dataclass
class Order:
    number: int
    lines: list[Any]


CODEC = codec("json", [Order])


@settings(max_examples=60)
@given(values, st.booleans())
def test_an_element_from_a_checkpoint_has_the_check_of_the_one_that_was_read(value: Any, typed: bool) -> None:
    element = Order(1, [value, value]) if typed else [value, value]  # the same object twice, and not after
    again = CODEC.decode(CODEC.encode(element))

    assert check(again, CODEC) == check(element, CODEC)
    assert check(element, CODEC) is not None
    assert checks([element, 3], CODEC) == [check(element, CODEC), check(3, CODEC)]


IN_A_PROCESS = """
import sys
from collections import Counter
from fractions import Fraction
from asyncstream.checkpoint.journal_checks import check
from asyncstream.codec import codec

words = frozenset("some words in no order that all processes share".split())
elements = [words, Counter("aab"), Fraction(1, 3), {"of": [words, Fraction(1, 2)]}, {Fraction(1, 2), *words},
            {frozenset(), words, Fraction(1, 7)}]
print([check(element, codec(sys.argv[1])) for element in elements])
"""


@pytest.mark.parametrize("name", ["json", "pickle"])
def test_it_is_the_same_in_every_process(name: str) -> None:
    """Sets of texts come in another order in each."""
    found = {
        subprocess.run(
            [sys.executable, "-c", IN_A_PROCESS, name],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1
    assert "None" not in found.pop()


def test_others_have_others() -> None:
    others = [0, 1, 2.5, "1", b"1", (1,), [1], {"a": 1}, {"a": 2}, Order(1, []), Order(2, []), Order(1, [1])]
    assert len(set(checks(others, CODEC))) == len(others)
    others += [Order(1, [{1}]), Order(1, [{2}]), Order(1, [frozenset({1})]), Order(1, [{1, "\x8f"}])]
    pickled = codec("pickle")
    assert len(set(checks(others, pickled))) == len(others)
    assert check(Order(1, [{1, 2}]), pickled) == check(Order(1, [{2, 1}]), pickled)


def test_there_is_none_of_what_cannot_be_written() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert checks([lambda: None, endless, 1], CODEC) == [None, None, check(1, CODEC)]
