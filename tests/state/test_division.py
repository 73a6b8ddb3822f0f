"""Snapshots that are divided by key and united again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.operators.base import Operator
from tests.operators.recorder import record
from tests.state.operators import ELEMENTS, OPERATORS, feed, results


@pytest.mark.parametrize("make", OPERATORS.values(), ids=OPERATORS)
@given(before=ELEMENTS, after=ELEMENTS, watermark=st.integers(0, 40))
def test_operators_of_parts_give_what_one_operator_gives(
    make: Callable[[], Operator], before: list[Any], after: list[Any], watermark: int
) -> None:
    whole = make()
    recorder = record(whole)
    feed(whole, before)
    whole.advance_watermark(watermark)
    parts = whole.divided(whole.snapshot(), lambda key: ord(key) % 2, {0, 1})
    assert parts is not None
    recorder.seen.clear()
    feed(whole, after)
    whole.advance_watermark(100)
    expected = results(recorder)

    def go_on(state: Any, values: list[Any]) -> list[str]:
        operator = make()
        recorder = record(operator)
        operator.advance_watermark(watermark)
        operator.restore(state)
        feed(operator, values)
        operator.advance_watermark(100)
        return results(recorder)

    shares = (go_on(part, [value for value in after if ord(value[0]) % 2 == n]) for n, part in parts.items())
    assert sorted(line for lines in shares for line in lines) == expected
    assert go_on(whole.united([parts[1], parts[0]]), after) == expected
