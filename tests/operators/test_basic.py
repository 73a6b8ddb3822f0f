from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.errors import UserFunctionError
from asyncstream.operators.base import Operator
from asyncstream.operators.basic import Branch, Filter, FlatMap, Map, several
from tests.operators.recorder import Recorder, record


def test_map_keeps_timestamps() -> None:
    operator = Map(str)
    recorder = record(operator)
    operator.process(1, 10)
    operator.process_batch([2, 3], [20, None])
    operator.process_batch([4], None)
    assert recorder.seen == [("1", 10), ("2", 20), ("3", None), ("4", None)]


def test_filter_keeps_what_is_true_in_any_way() -> None:
    operator = Filter(lambda value: value)
    recorder = record(operator)
    operator.process_batch([0, 1, "", "a", None, [0]], [1, 2, 3, 4, 5, 6])
    operator.process(0, 7)
    operator.process(2, 8)
    assert recorder.seen == [(1, 2), ("a", 4), ([0], 6), (2, 8)]


def test_filter_pushes_no_empty_batch() -> None:
    operator = Filter(lambda value: False)
    recorder = record(operator)
    operator.process_batch([1, 2], None)
    assert recorder.batches == []


def test_branch_sends_the_others_to_the_side() -> None:
    operator, others = Branch(lambda value: value % 2), Recorder()
    operator.side[Branch.OTHERS] = others
    recorder = record(operator)
    operator.process_batch([1, 2, 3], [10, 20, 30])
    operator.process(4, 40)
    operator.process(5, None)
    assert recorder.seen == [(1, 10), (3, 30), (5, None)]
    assert others.seen == [(2, 20), (4, 40)]


def test_flat_map_gives_each_result_the_timestamp_of_its_element() -> None:
    operator = FlatMap(lambda value: (value for _ in range(value)))
    recorder = record(operator)
    operator.process_batch([2, 0, 1], [10, 20, 30])
    operator.process(1, None)
    assert recorder.seen == [(2, 10), (2, 10), (1, 30), (1, None)]


def test_flat_map_may_return_one_list_again_and_again() -> None:
    last: list[int] = []

    def last_two(value: int) -> list[int]:
        last.append(value)
        del last[:-2]
        return last

    operator = FlatMap(last_two)
    recorder = record(operator)
    operator.process_batch([1, 2, 3], None)
    assert recorder.values() == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("results", ["text", b"bytes", {"a": 1}, MappingProxyType({"a": 1}), 5, None])
def test_flat_map_refuses_what_nobody_means(results: Any) -> None:
    with pytest.raises(TypeError, match="returns an iterable of results"):
        several(results)


def failing(bad: int, error: type[BaseException]) -> Callable[[int], Any]:
    def function(value: int) -> Any:
        if value == bad:
            raise error
        return [value]

    return function


OPERATORS: list[Callable[[Callable[[Any], Any]], Operator]] = [Map, Filter, Branch, FlatMap]


@pytest.mark.parametrize("error", [ValueError, StopIteration, asyncio.CancelledError])
@pytest.mark.parametrize("make", OPERATORS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("bad", [0, 2, 4])
def test_failure_passes_on_what_came_before_and_blames_the_right_element(
    make: Callable[[Any], Operator], error: type[BaseException], bad: int
) -> None:
    operator = make(failing(bad, error))
    recorder = record(operator)
    with pytest.raises(UserFunctionError) as caught:
        operator.process_batch([0, 1, 2, 3, 4], [0, 10, 20, 30, 40])
    assert caught.value.element == bad
    assert isinstance(caught.value.__cause__, error)
    assert [timestamp for _, timestamp in recorder.seen] == [value * 10 for value in range(bad)]
    with pytest.raises(UserFunctionError) as caught:
        operator.process(bad, None)
    assert caught.value.element == bad


class Undecided:
    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array is ambiguous")


def test_verdict_that_cannot_be_read_is_blamed_on_its_element() -> None:
    operator = Filter(lambda value: Undecided() if value == 2 else True)
    recorder = record(operator)
    with pytest.raises(UserFunctionError, match="ambiguous") as caught:
        operator.process_batch([1, 2, 3], None)
    assert caught.value.element == 2
    assert recorder.values() == [1]


def test_generator_that_fails_half_way_gives_nothing_of_its_element() -> None:
    def half(value: int) -> Iterator[int]:
        yield value
        if value == 2:
            raise ValueError
        yield value

    operator = FlatMap(half)
    recorder = record(operator)
    with pytest.raises(UserFunctionError):
        operator.process_batch([1, 2, 3], None)
    assert recorder.values() == [1, 1]


class Broken(Recorder):
    """Downstream that fails; it has noted what it was given before."""

    def process_batch(self, values: Any, timestamps: Any) -> None:
        super().process_batch(values, timestamps)
        raise UserFunctionError("downstream", values[0], ValueError())


@pytest.mark.parametrize("make", [Map, Filter, FlatMap])
def test_error_from_downstream_is_not_blamed_on_this_step_and_nothing_is_pushed_twice(make: Any) -> None:
    operator = make(lambda value: [value])
    record(operator)
    operator.out = broken = Broken()
    with pytest.raises(UserFunctionError) as caught:
        operator.process_batch([1, 2], None)
    assert caught.value.step == "downstream"
    assert len(broken.seen) == 2


@given(st.lists(st.integers(0, 9)), st.integers(1, 5), st.booleans())
def test_batches_do_not_matter(values: list[int], size: int, stamped: bool) -> None:
    """Element by element, in batches of any size, with and without timestamps: the same comes out."""
    makes: list[Callable[[], Operator]] = [
        lambda: Map(lambda value: value * 2),
        lambda: Filter(lambda value: value % 3),
        lambda: FlatMap(lambda value: range(value % 4)),
    ]
    stamps = [value * 10 for value in values] if stamped else None
    for make in makes:
        one, many = make(), make()
        first, second = record(one), record(many)
        for index, value in enumerate(values):
            one.process(value, None if stamps is None else stamps[index])
        for start in range(0, len(values), size):
            part = None if stamps is None else stamps[start : start + size]
            many.process_batch(values[start : start + size], part)
        assert first.seen == second.seen


def test_first_element_of_a_batch_may_fail_also_when_results_are_trusted() -> None:
    operator = Map(lambda value: 1 // value, "skip")
    recorder = record(operator)
    operator.process_batch([1] * 2000, None)
    operator.process_batch([0, 1], None)
    assert recorder.values() == [1] * 2001


def test_what_came_before_a_result_that_is_none_keeps_its_timestamps() -> None:
    async def later() -> None: ...

    unawaited = later()
    operator = Map(lambda value: value if value < 3 else unawaited)
    recorder = record(operator)
    with pytest.raises(UserFunctionError):
        operator.process_batch([1, 2, 3, 4], [10, 20, 30, 40])
    unawaited.close()
    assert recorder.seen == [(1, 10), (2, 20)]
