"""What is made in a block without the garbage collector is not new to it afterwards, if it is to stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from asyncstream.runtime.aio.slices import FROZEN_AT_START, without_collector

MANY = 50_000


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    gc.collect()
    yield
    gc.unfreeze()


def test_what_stays_is_old_at_once() -> None:
    with without_collector(all_stays=True):
        made = [[number] for number in range(MANY)]
    assert gc.isenabled()
    assert len(gc.get_objects(generation=0)) < MANY // 10
    assert gc.get_freeze_count() <= FROZEN_AT_START
    assert len(made) == MANY


def test_what_may_be_garbage_is_new() -> None:
    with without_collector():
        made = [[number] for number in range(MANY)]
        assert len(gc.get_objects(generation=0)) >= MANY
    assert len(made) == MANY


def test_what_another_has_frozen_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with without_collector(all_stays=True):
        made = [[number] for number in range(10)]
    assert gc.get_freeze_count() >= frozen - 100
    assert len(made) == 10
