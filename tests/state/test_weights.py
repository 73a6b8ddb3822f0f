"""What rows weigh is about what they take of memory."""

from __future__ import annotations

import gc
import pickle
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from asyncstream.state import Scale, Table, Tables
from asyncstream.state.weights import DEPTH, PARTS, are_heavy, ends

ROWS = 2_000


@dataclass
class Plain:
    number: int
    text: str


@dataclass(slots=True)
class Slotted:
    number: int
    text: str


VALUES: dict[str, Callable[[int], Any]] = {
    "numbers": lambda n: 1_000 + n,
    "tuples": lambda n: (1_000 + n, n / 7),
    "lists": lambda n: [1_000 + n, 7 * n + 300],
    "long lists": lambda n: [n / part for part in range(1, n * 7919 % 40 + 1)],
    "texts": lambda n: f"{n} " + "x" * (n * 7919 % 90),
    "dicts": lambda n: {"count": 1_000 + n, "total": n / 7, "name": f"name {n}"},
    "long dicts": lambda n: {1_000 * n + part: part / 7 for part in range(n * 7919 % 30)},
    "sets in tuples": lambda n: ({n + 300, n + 301}, [(n + 302, f"{n}")]),
    "objects": lambda n: Plain(1_000 + n, f"name {n}"),
    "objects with slots": lambda n: Slotted(1_000 + n, f"name {n}"),
    "nothing": lambda n: None,
}

SPACES: dict[str, Callable[[int], Any]] = {
    "one": lambda n: None,
    "many": lambda n: (n % 300 * 1_000, n % 300 * 1_000 + 1_000),
    "each": lambda n: 3 * n + 10**12,
}


@pytest.mark.usefixtures("others_gone")
@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("spaces", SPACES)
@pytest.mark.parametrize("values", VALUES)
def test_rows_weigh_about_what_they_take(values: str, spaces: str, is_loaded: bool) -> None:
    value_of, space_of = VALUES[values], SPACES[spaces]
    tables = Tables()
    table = tables.declare(Table("rows"))
    saved = pickle.dumps([(space_of(n), f"key {n}", value_of(n)) for n in range(ROWS)], 5)
    tracemalloc.start()
    try:
        if is_loaded:
            for space, key, value in pickle.loads(saved):
                table.put_old([(space, [(key, value)])])
            space = key = value = None
        else:
            for n in range(ROWS):
                table.put(space_of(n), f"key {n}", value_of(n))
            tables.cut()
            tables.merge()
        gc.collect()  # lets go of what tuples have left
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / 1.5 < tables.bytes_here(Scale()) < 1.5 * taken


def test_what_is_shared_weighs_once() -> None:
    large = "x" * 10_000
    scale = Scale()
    assert scale.of([large, large, large]) < 11_000
    assert scale.of(large) == 0
    assert Scale().of([str, len, test_what_is_shared_weighs_once, pytest]) < 200


def test_what_leads_back_to_itself_weighs_once() -> None:
    loop: list[Any] = [list(range(1_000))]
    loop.append(loop)
    assert Scale().of(loop) < 40_000


def test_little_is_looked_at_however_much_there_is() -> None:
    looked: list[int] = []

    class Told:
        def __sizeof__(self) -> int:
            looked.append(1)
            return 100

    nested: Any = [Told() for _ in range(1_000)]
    for _ in range(3):
        nested = [nested, [Told() for _ in range(1_000)]]
    assert 4 * 100_000 < Scale().of(nested) < 4 * 160_000
    assert len(looked) <= 4 * PARTS


def test_depth_is_bounded() -> None:
    deep: Any = "x" * 10_000
    for _ in range(DEPTH + 1):
        deep = (deep,)
    assert Scale().of(deep) < 1_000
    assert Scale().of(deep[0]) > 10_000


def test_rows_from_both_ends_are_looked_at() -> None:
    assert list(ends(range(10), 4)) == [0, 1, 9, 8]
    assert list(ends(dict.fromkeys("abcdef"), 2)) == ["a", "f"]
    assert list(ends({1}, 2)) == [1]
    assert len(list(ends(set(range(10)), 4))) == 4


class Unbound:
    """Stands in for nothing yet, as proxies do that are asked too early."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("unbound")


def test_values_are_heavy_wherever_in_them_the_weight_is() -> None:
    light: list[Any] = [Plain(1, "x"), {"a": [(1, 2)]}, [[str, len, Unbound()]], None]
    assert not are_heavy(light, 10_000)
    deep: Any = "x" * 10_000
    for _ in range(3 * DEPTH):
        deep = ({"before": 1}, [deep], "behind")
    for heavy in (deep, Plain(1, "x" * 10_000), list(range(2_000)), [[1] for _ in range(200)]):
        assert are_heavy([*light, heavy, *light], 10_000)
    round_and_round: list[Any] = []
    round_and_round.append(round_and_round)
    assert are_heavy([round_and_round], 10_000)
