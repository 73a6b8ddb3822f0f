"""Rows of rankings that are taken back are found, and those that do not rank leave no trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from asyncstream import Change, Pipeline, Ranking
from asyncstream.keyed import Ranks, TopSpec
from tests.operators.recorder import record


@dataclass
class Price:
    """What compares by its name alone, and counts how often it does."""

    name: str
    euros: float
    compared: list[str] = field(default_factory=list, repr=False)

    def __eq__(self, other: object) -> bool:
        self.compared.append(self.name)
        return isinstance(other, Price) and other.name == self.name

    __hash__ = None  # type: ignore[assignment]


def ranked(changes: list[Change[Any]]) -> list[list[str]]:
    found: list[list[str]] = []
    pipeline = Pipeline()
    top = (
        pipeline.source(changes).key_by(lambda change: 0).top(2, by=lambda price: price.euros, retracts=True)
    )
    top.map(lambda ranking: [price.name for price in ranking.values]).to(found)
    pipeline.run_blocking()
    return found


def test_row_that_is_taken_back_is_looked_for_among_those_that_rank_alike() -> None:
    prices = [Price(str(number), number // 2) for number in range(1000)]
    gone = Price("501", 250)
    changes = [
        *(Change("+I", price) for price in prices),
        Change("-D", gone),
        Change("-D", Price("999", 499)),
    ]
    assert ranked(changes)[-1] == ["998", "996"]
    compared = sum(len(price.compared) for price in [*prices, gone])
    assert compared <= 4


class Place(int):
    """What rows rank by, that counts in `total` how often such ones are compared."""

    total = 0

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Place.total += 1
        return super().__eq__(other)


def test_rows_that_rank_alike_are_not_all_compared_for_the_first_of_them() -> None:
    prices = [Price(str(number), Place(number // 1_000)) for number in range(2_000)]
    Place.total = 0
    changes = [*(Change("+I", price) for price in prices), Change("-D", Price("1000", Place(1)))]
    assert ranked(changes)[-1] == ["1001", "1002"]
    assert Place.total < 100


def test_row_that_ranks_otherwise_now_is_found_all_the_same() -> None:
    changes = [Change("+I", Price("a", 1)), Change("+I", Price("b", 2)), Change("-D", Price("b", 7))]
    assert ranked(changes) == [["a"], ["b", "a"], ["a"]]


def test_row_that_ranks_by_nan_is_found() -> None:
    changes = [
        Change("+I", Price("a", 1)),
        Change("+I", Price("b", float("nan"))),
        Change("-D", Price("b", float("nan"))),
    ]
    assert ranked(changes) == [["a"], ["a", "b"], ["a"]]


def test_next_checkpoint_has_nothing_of_a_row_that_does_not_rank() -> None:
    operator = TopSpec(itemgetter(0), Ranks(itemgetter(1), "descending", 1, 2)).build()
    seen = record(operator)
    operator.process_batch([("a", 5), ("a", 6)], None)
    operator.tables.cut()
    operator.process(("a", 1), None)
    operator.tables.merge()
    operator.process(("a", 2), None)
    assert not operator.tables.cut().deltas
    operator.tables.merge()
    operator.process(("a", 7), None)
    assert seen.values()[-1] == Ranking("a", [("a", 7), ("a", 6)])
    (delta,) = operator.tables.cut().deltas.values()
    assert delta.rows == {None: {"a": [(7, ("a", 7)), (6, ("a", 6))]}}
    operator.process(("a", 8), None)
    assert delta.rows == {None: {"a": [(7, ("a", 7)), (6, ("a", 6))]}}, "it is being written"
