"""A keyed step made outside of the package on the stand-in for Spark, and moved there and back."""

from __future__ import annotations

from typing import Any

import pytest

from asyncstream import Stream
from asyncstream.runtime.spark.worker import group_memory
from tests.operators.deduplicating import deduplicated
from tests.spark.contract import embedded, key_of, on_stand_in, row

BATCHES = [
    [row(1_000 * number + n, "abcdefghij"[(number * n) % 10]) for n in range(8)] for number in range(6)
]


@pytest.mark.parametrize("ttl", [None, 3600.0])
@pytest.mark.parametrize("held_bytes", [0, 10**6])
def test_what_came_in_an_earlier_micro_batch_is_seen(
    ttl: float | None, held_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tables that the worker still has, and with those that are read from the log."""
    monkeypatch.setattr(group_memory, "_worker", group_memory._Worker())
    monkeypatch.setattr(group_memory, "HELD_BYTES", held_bytes)

    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        return {"first": deduplicated(timed, key_of, ttl), "all": timed.map(dict)}

    found = sorted(on_stand_in(BATCHES, define))
    assert found == embedded(BATCHES, define)
    keys = {key_of(value) for batch in BATCHES for value in batch}
    assert sum(line.startswith("first") for line in found) == len(keys)
