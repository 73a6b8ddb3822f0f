"""Aggregates by name."""

from __future__ import annotations

import copy
import pickle
import random
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.codec import JsonCodec
from asyncstream.errors import PipelineError
from asyncstream.windowing import (
    AggregateFunction,
    Aggregates,
    Collect,
    Count,
    CountDistinct,
    First,
    Last,
    Max,
    Mean,
    Min,
    Quantile,
    Reduce,
    Sum,
)


def aggregates(of: Any) -> dict[str, AggregateFunction[Any, Any]]:
    return {
        "n": Count(),
        "present": Count(of),
        "total": Sum(of),
        "mean": Mean(of),
        "low": Min(of),
        "high": Max(of),
        "first": First(of),
        "last": Last(of),
        "all": Collect(of),
        "kinds": CountDistinct(of),
    }


def result(aggregate: AggregateFunction[Any, Any], values: list[Any]) -> Any:
    held = aggregate.create()
    for value in values:
        held = aggregate.add(held, value)
    return aggregate.result(held)


def test_each_gives_what_its_name_says() -> None:
    values = [{"x": 3}, {"x": None}, {"x": 1}, {"x": 3}]
    assert result(Aggregates(**aggregates("x")), values) == {
        "n": 4,
        "present": 3,
        "total": 7,
        "mean": 7 / 3,
        "low": 1,
        "high": 3,
        "first": 3,
        "last": 3,
        "all": [3, None, 1, 3],
        "kinds": 2,
    }


def test_having_seen_nothing_they_give_none() -> None:
    nothing = {"n": 0, "present": 0, "all": [], "kinds": 0}
    assert result(Aggregates(**aggregates("x")), []) == dict.fromkeys(aggregates("x")) | nothing


def test_fields_are_read_from_mappings_objects_and_by_functions() -> None:
    @dataclass
    class Order:
        amount: int

    assert result(Sum("amount"), [{"amount": 1}, Order(2)]) == 3
    assert result(Sum(lambda order: order["amount"]), [{"amount": 4}]) == 4
    assert result(Sum(), [1, 2]) == 3


VALUES = st.lists(st.one_of(st.none(), st.integers(-9, 9)))


@given(VALUES, VALUES, VALUES)
def test_fused_ones_do_what_each_does_alone(left: list[Any], right: list[Any], more: list[Any]) -> None:
    parts = {**aggregates(None), "own": Reduce(lambda a, b: (a or 0) + (b or 0))}
    together = Aggregates(**parts)
    codec = JsonCodec()

    def fold(aggregate: AggregateFunction[Any, Any]) -> Any:
        held, other = aggregate.create(), aggregate.create()
        for value in left or [1]:
            held = aggregate.add(held, value)
        for value in right or [1]:
            other = aggregate.add(other, value)
        before = copy.deepcopy(aggregate.save(other))
        held = aggregate.merge(held, other)
        assert aggregate.save(other) == before
        held = aggregate.load(codec.decode(codec.encode(aggregate.save(held))))
        if aggregate is together:
            return together.result(together.add_all(held, more))
        for value in more:
            held = aggregate.add(held, value)
        return aggregate.result(held)

    assert fold(together) == {name: fold(part) for name, part in parts.items()}


def test_what_fused_ones_can_do_is_no_part_of_what_they_are_known_by() -> None:
    """State of an `AggregatingDescriptor` goes by it: with another word the state of before is refused."""
    functions = ("add", "add_each", "add_order_free", "create", "load", "merge", "result", "save")
    known = {"type": "Aggregates", "joins_in_order": True, "order_free": True}
    parts = {"n": {"type": "Count", "of": None}}
    assert Aggregates(n=Count()).state_schema() == {
        **known,
        **dict.fromkeys(functions, "a function"),
        "parts": parts,
    }


def test_what_is_saved_does_not_change_when_accumulators_do() -> None:
    together = Aggregates(n=Count(), every=Collect())
    held = together.add(together.create(), "a")
    kept = together.save(held)
    together.add(together.load(kept), "b")
    together.add(held, "c")
    assert kept == [1, ["a"]]


@pytest.mark.parametrize("aggregate", [CountDistinct(), Aggregates(kinds=CountDistinct())])
def test_nans_are_one_kind_whichever_objects_they_are(aggregate: Any) -> None:
    kept = aggregate.create()
    for value in (float("nan"), 1.5, float("nan"), None):
        kept = aggregate.add(kept, value)
    kept = pickle.loads(pickle.dumps(kept))  # as on disk
    kept = aggregate.load(JsonCodec().decode(JsonCodec().encode(aggregate.save(kept))))
    kept = aggregate.add(kept, float("nan"))
    assert aggregate.result(aggregate.merge(kept, aggregate.add(aggregate.create(), float("nan")))) in (
        2,
        {"kinds": 2},
    )


def test_a_subclass_of_a_built_in_one_is_called_not_written_out() -> None:
    class Twice(Sum):
        def add(self, accumulator: Any, value: Any) -> Any:
            return super().add(super().add(accumulator, value), value)

    assert result(Aggregates(total=Twice()), [1, 2]) == {"total": 6}


def test_names_are_data_not_source() -> None:
    name = '": (1/0), "'
    assert result(Aggregates(**{name: Count(), "class": Sum()}), [1]) == {name: 1, "class": 1}


def test_copies_and_pickles_do_the_same() -> None:
    original = Aggregates(n=Count(), total=Sum(itemgetter("x")))
    for other in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
        assert result(other, [{"x": 2}]) == {"n": 1, "total": 2}


def test_results_share_nothing_with_the_accumulator() -> None:
    collect = Collect()
    held = collect.add(collect.create(), 1)
    collect.result(held).append(2)
    assert collect.result(held) == [1]


def test_order_free_only_if_all_parts_are() -> None:
    assert Aggregates(n=Count(), total=Sum()).order_free
    assert not Aggregates(n=Count(), first=First()).order_free


def test_a_quantile_is_about_right_merges_and_survives_a_snapshot() -> None:
    pytest.importorskip("datasketches")
    median = Quantile(0.5)
    held, other = median.create(), median.create()
    assert median.result(held) is None
    numbers = list(range(20_000))
    random.Random(1).shuffle(numbers)
    for number in numbers[:10_000]:
        held = median.add(held, number)
    for number in numbers[10_000:]:
        other = median.add(other, number)
    held = median.load(median.save(median.merge(held, other)))
    found = median.result(held)
    assert found is not None
    assert abs(found - 10_000) < 800


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda held: pickle.loads(pickle.dumps(held))])
def test_what_a_quantile_holds_can_be_copied_and_brought_to_disk(copied: Any) -> None:
    pytest.importorskip("datasketches")
    low = Quantile(0)
    held = low.add(low.create(), 5)
    other = copied(held)
    assert low.result(other) == 5
    low.add(other, 1)
    assert (low.result(held), low.result(other)) == (5, 1)


@pytest.mark.parametrize("make", [Aggregates, lambda wrong: Aggregates(n=wrong), Sum, Reduce])
def test_wrong_arguments_are_refused(make: Any) -> None:
    with pytest.raises(PipelineError):
        make(*() if make is Aggregates else (3,))


def test_wrong_quantiles_are_refused() -> None:
    pytest.importorskip("datasketches")
    for share, k in ((1.5, 200), ("x", 200), (0.5, 3)):
        with pytest.raises(PipelineError):
            Quantile(share, k=k)  # type: ignore[arg-type]
