"""What tells for which element a call was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


def test_others_have_others() -> None:
    others = [0, 1, 2.5, "1", b"1", (1,), [1], {"a": 1}, {"a": 2}, Order(1, []), Order(2, []), Order(1, [1])]
    assert len(set(checks(others, CODEC))) == len(others)


def test_there_is_none_of_what_cannot_be_written() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert checks([lambda: None, endless, 1], CODEC) == [None, None, check(1, CODEC)]
