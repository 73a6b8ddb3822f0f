"""The oldest generation in memory is a dict of dicts, however it keeps rows that are alone."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from asyncstream.state.rows import MISSING, MemoryRows


@pytest.mark.parametrize("seed", range(30))
def test_it_holds_what_a_dict_of_dicts_holds(seed: int) -> None:
    rng = random.Random(seed)
    rows, model = MemoryRows(), dict[int, dict[str, int | None]]()
    for _ in range(400):
        space, key = rng.randrange(4), rng.choice("abc")
        found = model.get(space, {})
        match rng.randrange(5):
            case 0 | 1:
                some = {rng.choice("abc"): rng.choice((None, None, 7)) for _ in range(rng.randrange(3))}
                if some:
                    model.setdefault(space, {}).update(some)
                if space in rows or rng.random() < 0.5 or not some:
                    rows.update(space, iter(some.items()))
                else:
                    rows.adopt(space, dict(some))
            case 2:
                assert rows.remove(space, key) == (found.pop(key, MISSING) is not MISSING)
                if not found:
                    model.pop(space, None)
            case 3:
                rows.drop(space)
                model.pop(space, None)
            case 4:
                assert rows.get(space, key) is found.get(key, MISSING)
        assert {space: dict(rows.of(space)) for space in rows.namespaces()} == model
        assert all(list(rows.of(space)) == list(model[space]) for space in model)
        assert all((space in rows) == (space in model) for space in range(4))
    assert sorted(rows.entries(), key=repr) == sorted(
        ((space, key, value) for space, of in model.items() for key, value in of.items()), key=repr
    )
    rows.clear()
    assert not list(rows.namespaces())
    assert not list(rows.entries())


def test_a_row_that_is_alone_takes_no_dict() -> None:
    rows, keys = MemoryRows(), [f"key {number}" for number in range(10_000)]
    tracemalloc.start()
    try:
        for number, key in enumerate(keys):
            rows.update(number, [(key, None)])
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / len(keys) < 150, "a dict of one key takes more than 200 bytes"
