"""A worker holds the tables of key groups as far as there is room, and gives them back once."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from asyncstream import Count
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.pipeline import Stream
from asyncstream.runtime.spark.worker import group_memory, shipped
from asyncstream.runtime.spark.worker import turn as turns
from asyncstream.runtime.spark.worker.group_log import Log, Position
from asyncstream.runtime.spark.worker.group_memory import has_room, hold, room, take_back
from asyncstream.runtime.spark.worker.keyed import KeyGroup
from asyncstream.state import Scale, Table, Tables
from asyncstream.windowing import TumblingWindows
from asyncstream.windowing.pane_schedule import Schedule
from tests.spark.cluster import event_columns, run_stream
from tests.spark.contract import (
    Alarm,
    Definition,
    batches_of,
    functions,
    key_of,
    on_spark,
    on_stand_in,
    row,
    windows,
)
from tests.spark.fake_spark import StandIn
from tests.spark.scripts import Run

AMPLE = 10**9

LOG = Log(None, {}, [])
"""In which nothing has been written."""


@pytest.fixture(autouse=True)
def _worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_memory, "_worker", group_memory._Worker())


def filled(rows: int = 100) -> dict[str, Tables]:
    tables = Tables()
    table = tables.declare(Table("rows"))
    for key in range(rows):
        table.put(None, 1_000 + key, [10_000 + key])
    tables.cut()
    tables.merge()
    return {"step": tables}


WEIGHT = filled()["step"].bytes_here(Scale())


def test_tables_are_given_back_at_their_position_only_and_once() -> None:
    tables = filled()
    position = Position().after(100)
    hold(position, tables, AMPLE, {})
    assert take_back(position.begun(1), LOG) is None
    assert take_back(position, LOG) is None, "they were at another position"
    hold(position, tables, AMPLE, {})
    assert take_back(Position().after(100), LOG) is None, "that is another log"
    assert take_back(position, LOG) is tables
    assert take_back(position, LOG) is None
    assert take_back(Position(), LOG) is None
    hold(Position(), tables, AMPLE, {})
    assert take_back(Position(), LOG) is None, "nothing has been written yet"


def test_tables_that_are_held_keep_nothing_of_the_task_that_had_them() -> None:
    """Or that were garbage that the collector is spared, with the task's connection to Spark's state."""
    on_stand_in(batches_of(3, count=3), lambda rows: {**functions(rows), **windows(rows)})
    held = [one.tables for one in group_memory._worker.held.values()]
    assert held
    assert {
        type(part) for part in parts_of(held) if isinstance(part, Operator | OperatorContext | KeyGroup)
    } == set()


def test_what_a_worker_keeps_of_functions_does_not_lead_to_the_task_that_ran_them() -> None:
    """A function has its state in its attributes until it is opened again."""
    on_stand_in(batches_of(3, count=2), functions)
    kept = list(parts_of(shipped._worker))
    assert any(isinstance(part, Alarm) for part in kept)
    assert not any(isinstance(part, KeyGroup) for part in kept)


def test_of_many_small_groups_that_a_task_reads_the_collector_is_spared_the_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would look at all of them again and again, which takes longer than to read them."""
    sizes: list[int] = []
    spared: list[int] = []
    read = Log.read

    def noted(log: Log, position: Position, last: int | None = None) -> Any:
        sizes.append(position.size)
        return read(log, position, last)

    @contextmanager
    def sparing() -> Iterator[None]:
        yield
        spared.append(sizes[-1])

    def run() -> None:
        source: Any = StandIn(1, partitions=1, unsteady=False).stream(
            [[rows] for rows in batches_of(3, count=3)], event_columns()
        )
        run_stream(on_spark(source.sparkSession, source, windows, key_groups=3, held_bytes=0), Path())

    monkeypatch.setattr(Log, "read", noted)
    monkeypatch.setattr(turns, "staying", sparing)
    run()
    assert sizes
    assert not spared, "all together they are small"
    monkeypatch.setattr(turns, "SMALL", max(sizes) + 1)
    run()
    assert 0 < len(spared) < len(sizes) // 2


@pytest.mark.parametrize("is_same", [True, False])
def test_tables_of_a_plan_with_other_classes_of_the_same_names_are_read_anew(*, is_same: bool) -> None:
    """As when a cell of a notebook is run again, in a session whose workers are still there."""

    def counts(run: Run) -> Definition:
        card = partial(run.card, run.suit.CLUBS)

        def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
            counted = timed.key_by(lambda row: card(1)).count_window(7).aggregate(n=Count(), name="counts")
            return {"counts": counted, "rows": timed.filter(lambda row: False)}

        return define

    session = StandIn(1, partitions=1, unsteady=False)
    source: Any = session.stream([[rows] for rows in batches_of(3, count=4, size=10)], event_columns())
    found: list[str] = []
    run = Run()
    for session.stop_before in (2, None):
        plan = on_spark(source.sparkSession, source, counts(run), key_groups=1)
        found += run_stream(plan, Path())["lines"]
        assert group_memory._worker.held
        run = run if is_same else Run()
    assert len(found) == 40 // 7


def parts_of(value: object) -> Iterator[object]:
    """All that it refers to, and what that refers to, but for modules, classes and what functions see."""
    seen: dict[int, object] = {}
    left = [value]
    while left:
        part = left.pop()
        if id(part) in seen or isinstance(part, type | ModuleType):
            continue
        seen[id(part)] = part
        yield part
        if isinstance(part, FunctionType):
            left += part.__closure__ or ()
        else:
            left += gc.get_referents(part)


def test_those_held_longest_go_first() -> None:
    positions = [Position().after(100) for _ in range(4)]
    for position in positions:
        hold(position, filled(), int(2.5 * WEIGHT), {})
    assert [take_back(position, LOG) is not None for position in positions] == [False, False, True, True]
    assert group_memory._worker.weight == 0
    hold(positions[0], filled(), WEIGHT - 1, {})
    assert take_back(positions[0], LOG) is None


def turn(position: Position, most: int) -> bool:
    """Whether a group has room in its turn."""
    tables = take_back(position, LOG) or filled()
    if has_room(position, tables, most):
        hold(position, tables, most, {})
        return True
    return False


def test_a_group_has_room_if_others_of_its_size_had() -> None:
    positions = [Position().after(1_000) for _ in range(4)]
    tight, wide = int(3.5 * WEIGHT), int(4.5 * WEIGHT)
    assert all(turn(position, tight) for position in positions), "all are new"
    assert not any(turn(position, tight) for position in positions)
    assert all(turn(position, wide) for position in positions)
    for _ in range(2):  # the others are of a query that has ended
        found = [turn(position, tight) for position in positions[:2]]
    assert all(found)


@pytest.mark.parametrize("seed", range(5))
def test_other_groups_are_counted_once_each(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_memory, "KNOWN", 20)
    random_groups = random.Random(seed)
    positions = [Position().after(100) for _ in range(30)]
    turns: list[Position] = []  # the last of each group
    for _ in range(500):
        position = random_groups.choice(positions[: random_groups.choice([3, 10, 30])])
        others = 0
        if position in turns:
            others = len(turns) - 1 - turns.index(position)
            turns.remove(position)
        turns = [*turns, position][-20:]
        take_back(position, LOG)
        assert group_memory._worker.groups[position.log].others == others
    assert len(group_memory._worker.groups) == 20


def test_tables_are_weighed_anew_when_their_log_has_grown_or_was_rewritten() -> None:
    position = Position().after(1_000)
    assert not has_room(position, filled(), WEIGHT - 1)
    assert not has_room(position.after(250), filled(10), WEIGHT - 1)
    assert has_room(position.after(251), filled(10), WEIGHT - 1)
    assert not has_room(position.begun(900), filled(), WEIGHT - 1)


def test_room_is_what_the_user_or_spark_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_EXECUTOR_MEMORY_MB", raising=False)
    assert room(None) == 512 * 2**20
    monkeypatch.setenv("PYSPARK_EXECUTOR_MEMORY_MB", "1024")
    assert room(None) == 256 * 2**20
    assert room(7) == 7
    monkeypatch.setenv("PYSPARK_EXECUTOR_MEMORY_MB", "1000000")
    assert room(None) == 512 * 2**20


def lenient(lateness: float, timed: Stream[Any]) -> dict[str, Stream[Any]]:
    windowed = timed.key_by(key_of).window(TumblingWindows(1)).allowed_lateness(lateness)
    counts = windowed.aggregate(n=Count(), name="counts")
    return {"counts": counts, "late": counts.late}


def test_a_micro_batch_does_not_look_at_windows_that_it_does_not_touch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduled = 0

    def keep(schedule: Schedule, *args: Any) -> None:
        nonlocal scheduled
        scheduled += 1
        kept(schedule, *args)

    kept = Schedule.keep
    monkeypatch.setattr(Schedule, "keep", keep)
    first = [row(1_000_000 + 1_000 * window) for window in range(200)]
    ones = [[row(1_200_000 + 1_000 * number)] for number in range(10)]
    on_stand_in([first, *ones], partial(lenient, 3600), unsteady=False)
    assert scheduled == 210


@pytest.mark.parametrize("lateness", [0, 1, 5])
def test_a_worker_goes_on_with_another_lateness_as_one_that_reads_the_log(
    monkeypatch: pytest.MonkeyPatch, lateness: float
) -> None:
    def told(*, is_new: bool) -> list[str]:
        monkeypatch.setattr(group_memory, "_worker", group_memory._Worker())
        spark: Any = StandIn(1, unsteady=False)
        rows = spark.stream([[rows] for rows in batches_of(5, count=8)], event_columns())
        spark.stop_before = 4
        run_stream(on_spark(spark, rows, partial(lenient, 1), key_groups=2), Path("checkpoint"))
        spark.stop_before = None
        if is_new:
            monkeypatch.setattr(group_memory, "_worker", group_memory._Worker())
        plan = on_spark(spark, rows, partial(lenient, lateness), key_groups=2)
        return run_stream(plan, Path("checkpoint"))["lines"]

    lines = told(is_new=False)
    assert sorted(lines) == sorted(told(is_new=True))
    assert lines
