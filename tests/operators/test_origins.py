"""Where elements come from stays with them, and is never that of another element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.elements import Timestamps
from asyncstream.eventtime import BoundedOutOfOrderness
from asyncstream.operators.base import Fanout, Operator, OperatorContext
from asyncstream.operators.basic import Branch, CheckKey, Filter, FlatMap, Map
from asyncstream.operators.ingestion import AssignIngestionTime
from asyncstream.operators.origins import Placed, digest, placed
from asyncstream.operators.quiet import AdvanceWhenQuiet
from asyncstream.operators.timestamps import AssignEventTime
from asyncstream.operators.union import Union


class Log(Operator):
    """Writes down each element with its origin."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Any, Any]] = []

    def process_batch(self, values: Any, timestamps: Timestamps) -> None:
        origins = timestamps.origins if isinstance(timestamps, Placed) else [None] * len(values)
        self.found += zip(values, origins, strict=True)


def odd(value: int) -> bool:
    return value % 2 == 1


def raising(value: int) -> int:
    if value % 5 == 0:
        raise ValueError(value)
    return value


KEEPING: list[Callable[[], Operator]] = [
    lambda: Map(raising, "skip"),
    lambda: Filter(odd),
    lambda: Filter(raising, "skip"),
    lambda: FlatMap(lambda value: [value] * (value % 4)),
    lambda: FlatMap(lambda value: [raising(value)] * 2, "skip"),
    lambda: CheckKey(raising, "skip"),
    lambda: AssignEventTime(raising, BoundedOutOfOrderness(2), None, "skip"),
    lambda: AdvanceWhenQuiet(10),
    lambda: AssignIngestionTime(10),
]


@pytest.mark.parametrize("number", range(len(KEEPING)))
@given(data=st.data())
def test_each_element_keeps_its_origin_and_no_two_share_one(number: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, 50), max_size=30))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=3)))
    operator, log = KEEPING[number](), Log()
    operator.out = log
    operator.open(OperatorContext("step"))
    for start, end in zip([0, *cuts], [*cuts, len(values)], strict=True):
        part = values[start:end]
        # the origin names the element, so what it belongs to can be seen
        operator.process_batch(part, placed(None, [(value, start + i) for i, value in enumerate(part)]))

    assert all(origin is not None and origin[0] == value for value, origin in log.found)
    origins = [origin for _, origin in log.found]
    assert len(set(origins)) == len(origins)


def test_both_sides_of_a_branch_keep_their_origins() -> None:
    branch, yes, no = Branch(odd), Log(), Log()
    branch.out, branch.side = yes, {"others": no}
    branch.process_batch([1, 2, 3], placed(None, [("a", 1), ("a", 2), ("a", 3)]))

    assert yes.found == [(1, ("a", 1)), (3, ("a", 3))]
    assert no.found == [(2, ("a", 2))]


def test_an_element_that_comes_into_a_union_twice_has_two_origins() -> None:
    union, log = Union(2, ["orders", "map"]), Log()
    union.out = log
    fanout = Fanout([union.port(0), union.port(1)])
    fanout.process_batch(["x"], placed(None, [("a", 1)]))

    assert log.found == [("x", ("a", 1, "orders")), ("x", ("a", 1, "map"))]


def test_an_operator_that_does_not_know_of_origins_loses_them() -> None:
    batch = placed([5, 6, 7], [("a", 1), ("a", 2), ("a", 3)])

    assert batch[1] == 6
    assert batch[1:].origins == [("a", 2), ("a", 3)]
    assert not isinstance([*batch], Placed)


def test_digests_tell_parts_from_each_other_by_kind_and_by_where_they_end() -> None:
    found = [digest("ab", "c"), digest("a", "bc"), digest("abc"), digest("1"), digest(1), digest(b"1")]

    assert len(set(found)) == len(found)
    assert digest("charge", "f00d", 17) == "".join(digest("charge", "f00d", 17))
    assert len(digest("x")) == 32
