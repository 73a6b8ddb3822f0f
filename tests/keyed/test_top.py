"""Rows of rankings that are taken back are found, whatever they rank by, and most without a look at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from asyncstream import Change, Pipeline


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
