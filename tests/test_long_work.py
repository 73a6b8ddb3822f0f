"""Long work lets others run in between, and what it makes is not new to the garbage collector afterwards."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from asyncstream import long_work
from asyncstream.long_work import (
    FEW,
    FROZEN_AT_START,
    URGENT_SLICES,
    aging,
    give_back,
    in_slices,
    without_collector,
)

MANY = 50_000

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def old(nothing_frozen: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(aging, "frozen", 0)
    gc.freeze()  # which makes old what is there, as a collection would, in no time
    gc.unfreeze()
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


def test_what_stays_is_old_though_as_much_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector's own count says that nothing has been made; the time that it took tells."""
    before = [[number] for number in range(MANY)]
    monkeypatch.setattr(long_work, "perf_counter", count().__next__)
    with without_collector(all_stays=True):
        made = [[before.pop()] for _ in range(MANY)]
    assert len(gc.get_objects(generation=0)) < MANY // 10
    assert len(made) == MANY


def test_what_another_has_frozen_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with without_collector(all_stays=True):
        made = [[number] for number in range(MANY)]
    assert gc.get_freeze_count() >= frozen - 100
    assert len(made) == MANY


def test_what_is_frozen_is_counted_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def count_all() -> int:
        counted.append(0)
        return 1_000_000

    monkeypatch.setattr(gc, "get_freeze_count", count_all)
    monkeypatch.setattr(long_work, "perf_counter", lambda: 0.0)  # a busy machine takes its time
    kept: list[list[list[int]]] = []

    def make(many: int) -> None:
        with without_collector(all_stays=True):
            kept.append([[number] for number in range(many)])

    for _ in range(20):
        make(FEW // 10)
    assert not counted  # the collector has soon seen so few
    for _ in range(10):
        make(FEW)
    assert len(counted) == 1  # and is not asked again before a tenth as many were made
    for _ in range(10):
        make(FEW)
    assert len(counted) == 2


@pytest.mark.parametrize(("is_urgent", "turns"), [(False, 100), (True, 100 // URGENT_SLICES)])
def test_urgent_work_gets_on_where_time_flies(is_urgent: bool, turns: int) -> None:
    """On a busy machine each slice takes more than its time; others get few turns, if it is urgent."""

    async def main() -> int:
        loop = asyncio.get_running_loop()
        loop.time = count(0, 10).__next__  # type: ignore[method-assign]
        work = asyncio.ensure_future(in_slices(iter([None] * 100), lambda: is_urgent))
        seen = 0
        while not work.done():
            await asyncio.sleep(0)
            seen += 1
        return seen

    assert turns <= asyncio.run(main()) <= turns + 3


def test_memory_is_given_back_wherever_there_is_a_way(monkeypatch: pytest.MonkeyPatch) -> None:
    give_back()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    give_back()  # another C library


def test_a_python_that_was_built_without_libffi_will_do() -> None:
    program = (
        "import sys; sys.modules['ctypes'] = None; from asyncstream import long_work as it; it.give_back()"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)
