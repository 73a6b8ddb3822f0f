"""Keys that were restored are forgotten in the order of their age, and finding it holds up nobody."""

from __future__ import annotations

from random import Random
from typing import Any

from asyncstream import ManualClock
from asyncstream.keyed.deduplicate import DeduplicateSpec
from asyncstream.state import SLICE, Table, TimeToLive
from asyncstream.state.tables import Kept
from tests.on_disk import IN_MEMORY_AND_ON_DISK, keep_on_disk
from tests.operators.recorder import record

KEYS = 5 * SLICE
SECOND = 1_000


def own(value: Any) -> Any:
    return value


@IN_MEMORY_AND_ON_DISK
def test_keys_that_are_restored_grow_old_in_the_order_in_which_they_were_seen(on_disk: bool) -> None:
    operator: Any = DeduplicateSpec(own, within=TimeToLive(1.0)).build()
    if on_disk:
        keep_on_disk(operator)
    clock = ManualClock(KEYS)
    recorder = record(operator, clock)
    seen = Table("seen")
    rows = [(key, key) for key in range(KEYS)]  # each a millisecond after the one before
    Random(1).shuffle(rows)
    seen.put_old([(None, rows)])
    slices = sum(1 for _ in operator.tables.take_over(Kept({"seen": seen}, {"cells": {}})))
    assert slices >= 2 * KEYS // SLICE
    for number in range(KEYS):
        operator.process_batch([("new", number)], None)
    left = [key for _, key, _ in operator.tables["seen"].items() if type(key) is int]
    assert sorted(left) == list(range(KEYS - SECOND + 1, KEYS))
    assert len(recorder.values()) == KEYS
